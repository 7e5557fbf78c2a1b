"""Rules that wash and anonymise texts: what each changes, what it must leave alone, and what no rule lets through."""

import time
import pandas as pd, pytest
from conftest import refuses
from medir_nb.core import registry
from medir_nb.data import check_rule, task_from_frames, washed_task, Washing
from medir_nb.trainer import mine, read_rows, wash

RULES = list(registry('washing'))


@pytest.mark.parametrize('name', RULES)
def test_a_rule_changes_its_example_and_shows_nothing_of_it(name):
    row, washing = registry('washing')[name], Washing()
    washed = washing.text(f'before {row["example"]} after')
    assert washing.hits[name] >= 1 and Washing().text(washed) == washed  # washed twice is washed once
    if row.get('kind') == 'anonymise':
        table = washing.table().to_string() + str(washing.shapes)
        values = [w for w in row['example'].replace('：', ' ').split() if any(c.isdigit() for c in w) or '@' in w]
        assert washing.texts[name] == 1 and washed.startswith('before') and washed.endswith('after')
        assert not any(value in washed or value in table for value in values)


MEDICINE = [
    '血压120/80mmHg，心率72次/分，白细胞13.8×10^9/L，2020年1月15日入院，住院5天。',
    '阿司匹林100mg每日1次，氯吡格雷75mg，疗程12-18个月，随访1386例患者。',
    'CD4+ count below 200 cells/mm3, 95% CI 1.02-1.35 (p<0.05), doi 10.1056/NEJM199304013281301, NCT01234567.',
    "Down syndrome, St. John's wort, born at 39 weeks; EC 3.4.21.4; 0.5-1.0 mg/kg; 1,234,567 people.",
    'Take 2 tablets (500 mg) 3 times a day for 7-10 days @ 8 pm.',
]


@pytest.mark.parametrize('text', MEDICINE)
def test_figures_of_medicine_stay(text):
    assert Washing().text(text) == text


SAID = [
    ('Patient name: Jane Doe, age 40', 'Patient name: <NAME>, age 40'),
    ('Next of kin: Jane Q. Doe; Dr. A. Doe-Roe said', 'Next of kin: <NAME>; Dr. <NAME> said'),
    ('1-800-555-0199 or 202.555.0143', '<PHONE> or <PHONE>'),
    ('MRN: 123456 and NHS number 943 476 5919.', 'MRN: <RECORD> and NHS number <RECORD>.'),
    ('Date of birth: 1 January', 'Date of birth: 1 January'),
    ('born on January 1, 1970 in spring', 'born on <DATE> in spring'),
    ('lives at 12 Example Street, call +44 20 7946 0958', 'lives at <ADDRESS>, call <PHONE>'),
    ('电话010-62345678或400-123-4567', '电话<PHONE>或<PHONE>'),
    ('微信：example_01，QQ群 10000000', '微信：<ACCOUNT>，QQ群 <ACCOUNT>'),
    ('联系人：李四；家住某省某市某镇某村，务农', '联系人：<NAME>；家住<ADDRESS>，务农'),
    ('出生日期：1970年1月1日，王某某先生，+86 138 0013 8000', '出生日期：<DATE>，<NAME>先生，<PHONE>'),
    ('病历号A123456，卡4111111111111111', '病历号<RECORD>，卡<CARD>'),
]


@pytest.mark.parametrize('raw, washed', SAID)
def test_what_points_to_a_person_is_replaced_and_nothing_around_it(raw, washed):
    assert Washing().text(raw) == washed


def test_numbers_in_full_width_and_broken_text_do_not_slip_through():
    washing = Washing()
    assert washing.text('电话１３８００１３８０００') == '电话<PHONE>'
    assert washing.text('CafÃ©&lt;br&gt;someone＠example.org') == 'Café <EMAIL>'
    assert washing.text('110105194912310021') == '<NUMBER>'  # wrong check digit: no identity card, still a long number
    assert washing.hits['identity-card'] == 0 and washing.hits['long-number'] == 1


def test_rules_are_chosen_by_name_and_language():
    text = 'Dr. Doe: 13800138000'
    assert Washing(['mobile']).text(text) == 'Dr. Doe: <PHONE>'
    assert Washing(languages=('en',)).text(text) == 'Dr. <NAME>: 13800138000'
    refuses(lambda: Washing(['mobil']), "unknown rule 'mobil'; did you mean 'mobile'")


def test_a_rule_that_is_none_is_refused():
    refuses(lambda: check_rule('mine', {'pattern': '(', 'replacement': ''}), 'its pattern or replacement is none')
    refuses(lambda: check_rule('mine', {'title': 'nothing'}), 'it needs a pattern or a function')
    refuses(lambda: check_rule('mine', {'pattern': 'a', 'replace': 'b'}), "unknown field 'replace'")


def test_rows_pass_through_and_empty_ones_are_counted(tmp_path):
    washed = wash([{'id': '1', 'text': 'a  b', 'n': 3}, {'id': '2', 'text': ' '}])
    assert washed.rows == [{'id': '1', 'text': 'a b', 'n': 3}]
    assert washed.stats == {'kept': 1, 'empty after washing': 1, 'texts changed by spaces': 1}
    washed.write(tmp_path / 'raw.jsonl')
    mine('wash', str(tmp_path / 'raw.jsonl'), tmp_path / 'washed.jsonl')
    assert read_rows(tmp_path / 'washed.jsonl') == washed.rows


def test_a_task_is_washed_in_its_place_and_stays_itself_where_nothing_is_found():
    corpus = pd.DataFrame({'id': ['d1', 'd2'], 'text': ['call (202) 555-0143', '<br/>']})
    asked = pd.DataFrame({'id': ['q1'], 'text': ['Is  gout <b>serious</b>?']})
    labels = pd.DataFrame({'query_id': ['q1'], 'doc_id': ['d2'], 'relevance': [1]})
    task, washing = task_from_frames(corpus, asked, labels, name='notes'), Washing()
    clean = washed_task(task, washing)
    assert clean.corpus.texts() == ['call <PHONE>', ''] and clean.queries.texts() == ['Is gout serious ?']
    assert list(clean.corpus.ids) == list(task.corpus.ids) and clean.qrels.equals(task.qrels)
    assert washing.counts['empty after washing'] == 1 and clean.corpus.fingerprint != task.corpus.fingerprint
    assert washed_task(clean, washing) is clean and task.corpus.texts()[0] == 'call (202) 555-0143'


SLOW = ['-1' * 50_000, 'a@' * 50_000, '<a ' + 'x=y ' * 20_000, '12 Aa ' * 20_000, '+1' + '-' * 50_000]


@pytest.mark.parametrize('text', SLOW)
def test_no_text_keeps_a_rule_busy(text):
    start = time.process_time()
    Washing().text(text)
    assert time.process_time() - start < 3
