"Other words for a query: what rules make of it, and what systems do then."

import importlib.resources
import re

import pandas as pd
import pytest

from medir_nb.core import MedirError
from medir_nb.core.settings import registry
from medir_nb.data import defined_abbreviations, load_task, long_form, perturbations, task_from_frames
from medir_nb.evaluator import rank_biased_overlap, stress
from medir_nb.evaluator.stress_tests import changed_stretch

WORDED = [
    ('en', 'side', 'Left bundle branch block', 'Right bundle branch block'),
    ('en', 'side', 'left and right ventricle', None),
    ('en', 'side', 'Is that the right treatment?', None),
    ('en', 'hepatitis', 'hepatitis B vaccine', 'hepatitis C vaccine'),
    ('en', 'hepatitis', 'hepatitis B and C', None),
    ('en', 'type', 'type 2 diabetes', 'type 1 diabetes'),
    ('en', 'dose', '0.5 mg of digoxin', '5 mg of digoxin'),
    ('en', 'unit', 'fever of 38 °C', 'fever of 100.4 °F'),
    ('en', 'unit', '0.5 g', '500 mg'),
    ('en', 'unit', 'glucose of 7 mmol/L', 'glucose of 126.1 mg/dL'),
    ('en', 'unit', 'sodium of 7 mmol/L', None),
    ('en', 'spelling', 'Oesophageal ulcer', 'Esophageal ulcer'),
    ('en', 'hyper and hypo', 'Hyperkalemia', 'Hypokalemia'),
    ('en', 'hyper and hypo', 'a hypothesis', None),
    ('en', 'Greek letter', 'TNF-α blockade', 'TNF-alpha blockade'),
    ('en', 'before and after', 'preoperative pain', 'postoperative pain'),
    ('de', 'umlaut', 'Größe der Übelkeit', 'Groesse der Uebelkeit'),
    ('de', 'negation', 'Husten ohne Fieber', 'Husten mit Fieber'),
    ('zh', 'hepatitis', '乙肝会传染吗', '丙肝会传染吗'),
    ('zh', 'traditional characters', '发热', '發熱'),
    ('zh', 'side', '左右', None),
]


@pytest.mark.parametrize('language, kind, text, wanted', WORDED)
def test_a_rule_words_a_text_as_its_row_says(language, kind, text, wanted):
    assert perturbations(language, kinds=[kind])[kind](text) == wanted


def test_a_wording_hangs_on_seed_and_text_alone():
    rule = perturbations('en', kinds=['typing error'])['typing error']
    texts = ['myocardial infarction', 'pneumonia', 'hypertension']
    assert [rule(text) for text in texts] == [rule(text) for text in texts[::-1]][::-1]
    assert {rule(texts[0], seed) for seed in range(5)} != {rule(texts[0])}


def test_abbreviations_are_those_that_a_corpus_agrees_on():
    assert long_form('CRP', 'levels of C-reactive protein ') == 'C-reactive protein'
    assert long_form('ABC', 'no such words ') == ''
    texts = ['body mass index (BMI)'] * 3 + ['blood pressure (BP)', 'bipolar patients (BP)']
    assert defined_abbreviations(texts) == {'body mass index': 'BMI'}


def test_languages_have_the_rules_that_exist_for_them():
    of = {language: set(perturbations(language)) for language in ('en', 'de', 'zh')}
    assert 'umlaut' in of['de'] - of['en'] and 'traditional characters' in of['zh'] - of['de']
    assert 'typing error' not in of['zh'] and 'brand name' not in of['en']
    assert 'brand name' in perturbations('en', pairs={'Tylenol': 'acetaminophen'})
    with pytest.raises(MedirError, match='no kind'):
        perturbations('en', kinds=['typos'])


def test_overlap_of_lists():
    assert rank_biased_overlap([*'abc'], [*'abc']) == pytest.approx(1)
    assert rank_biased_overlap([*'abc'], [*'xyz']) == 0
    assert rank_biased_overlap([*'abcd'], [*'abdc']) > rank_biased_overlap([*'abcd'], [*'bacd'])
    assert (rank_biased_overlap([], []), rank_biased_overlap([], ['a'])) == (1, 0)


def test_the_stretch_that_changed_has_the_word_beside_it():
    assert changed_stretch('hepatitis B in children', 'hepatitis C in children') == ('hepatitis b', 'hepatitis c')
    assert changed_stretch('acute kidney injury', 'chronic kidney injury') == ('acute kidney', 'chronic kidney')


DOCUMENTS = [
    'Vaccines against hepatitis B protect infants.',
    'Hepatitis C is treated with antivirals.',
    'An oesophageal tumour bleeds.',
    'Headache in adults.',
]
QUESTIONS = ['hepatitis B in newborns', 'oesophageal tumour', 'headache of adults']


def test_systems_are_asked_in_other_words():
    corpus = [{'id': f'd{i}', 'text': text} for i, text in enumerate(DOCUMENTS)]
    queries = [{'id': f'q{i}', 'text': text} for i, text in enumerate(QUESTIONS)]
    qrels = [{'query_id': f'q{i}', 'doc_id': doc_id, 'relevance': 1} for i, doc_id in enumerate(['d0', 'd2', 'd3'])]
    task = task_from_frames(corpus, queries, qrels, language='en')
    found = stress(task, ['bm25'], ['spelling', 'case', 'hepatitis', 'unit', 'umlaut'])
    kinds = found.kinds.set_index('kind')
    assert found.silent == {'unit': 'applies to no query', 'umlaut': 'no rule for en'}
    assert kinds.loc['case', 'difference'] == 0 and kinds.loc['case', 'rbo'] == 1 and kinds.loc['case', 'queries'] == 3
    assert kinds.loc['spelling', 'left'] == (kinds.loc['spelling', 'difference'] == -1)
    assert kinds.loc['hepatitis', ['same', 'contrary', 'wins']].tolist() == [0, 1, 0]
    assert found.examples('bm25', 'hepatitis').wording.tolist() == ['hepatitis C in newborns']
    assert kinds.loc['hepatitis', 'p_holm'] != kinds.loc['hepatitis', 'p_holm']  # no loss is tested there
    again = stress(task, ['bm25'], ['hepatitis', 'case', 'spelling'])
    assert again.kinds.set_index('kind').loc[kinds.index].equals(kinds)
    with pytest.raises(MedirError, match='no rule applies'):
        stress(task, ['bm25'], ['unit'])


def test_pairs_of_every_rule_were_read_and_hold():
    read = pd.read_csv(importlib.resources.files('medir_nb') / 'registry' / 'stress_read.csv')
    last = read[read['round'] == read.groupby(['kind', 'language'])['round'].transform('max')]
    shares, rows = last.groupby(['kind', 'language']).holds.mean(), registry('stress')
    assert {(kind, language) for kind in rows for language in rows[kind].get('drops', ())} == {
        *shares.index[shares < 0.95]
    }
    assert {kind for kind in rows if kind not in shares} == {'brand name'}  # the reader's own
    task, asked = load_task('hpo-lay'), last[(last.task == 'hpo-lay') & (last.kind != 'abbreviation')]
    rules = perturbations('en')  # without the abbreviations of a corpus
    assert len(asked) > 40 and all(rules[row.kind](task.queries.text(row.query_id)) for row in asked.itertuples())


@pytest.mark.parametrize('task, has, lacks', [
    ('zh-lay', {'traditional characters', 'filler', 'side'},
     {'typing error': 'no rule for zh', 'umlaut': 'no rule for zh'}),
    ('german-covid-faq', {'umlaut', 'typing error', 'negation'},
     {'lay wording': 'no rule for de', 'sex': 'dropped for de'}),
])  # fmt: skip
def test_a_task_in_another_language_runs_the_kinds_that_exist_for_it_and_names_the_others(task, has, lacks, request):
    if task == 'german-covid-faq':
        request.getfixturevalue('medir_data')
    found = stress(task, ['bm25'])
    assert has <= set(found.kinds.kind) and not set(found.silent) & set(found.kinds.kind)
    assert set(found.silent) | set(found.kinds.kind) == set(registry('stress'))
    assert all(found.silent[kind].startswith(why) for kind, why in lacks.items())
    assert found.silent['brand name'] == 'wants pairs of yours'
    assert found.kinds.equals(stress(task, ['bm25']).kinds)


def test_rows_name_what_holds_and_where_their_words_are_from():
    for name, row in registry('stress').items():
        assert row['must'] in ('stay', 'change') and row['holds'] and row['source'], name
        assert not re.search(r'[A-Z]{2}$', name)
