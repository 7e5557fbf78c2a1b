"""Training data and benchmarks that are built: the diversity filter, judged lists, washing, synonyms, CMIRB's recipe."""

import json, os, signal, subprocess, sys, textwrap, time
from collections import Counter
from dataclasses import replace
from pathlib import Path
import numpy as np, pandas as pd, pytest
from conftest import write_lines
from medir_nb.core import MedirError, registry, rows as more_rows
from medir_nb.encoder.vectors import array_vectors
from medir_nb.miner import (
    TABLE_10,
    Candidate,
    Limits,
    Lists,
    Scale,
    alignment_rows,
    curate,
    DIVERSIFICATION_ROWS,
    Mined,
    diverse_vectors,
    diversification_ablation,
    diversify,
    equal_volumes,
    found_documents,
    judged_lists,
    mine,
    read_rows,
    votes_of,
    wash,
)
from medir_nb.miner.diversity import near_pairs
from medir_nb.retrieval.dense import unit
from medir_nb.benchmark import (
    Entry,
    ModelRoles,
    Roles,
    answered_quality,
    build_cmirb,
    hpo_entries,
    read_entries,
    synonym_pairs,
    synonym_rows,
    synonym_sentences,
    synonym_task,
    write_synonyms,
)
from medir_nb.benchmark.cmirb import shortlists, verified_matches
from medir_nb.benchmark.synonyms import INTENTS, KINDS, fault_of_sentences, sentences_by_rule, with_query
from medir_nb.evaluator import evaluate
from medir_nb.generator import configure
from medir_nb.generator.toy import ToyServer
from medir_nb.data import (
    Document,
    PairFile,
    Washing,
    check_rule,
    load_task,
    task_from_frames,
    washed_documents,
    washed_rows,
)
from medir_nb.data import washed_task, write_pairs
from medir_nb.data.washing import shape
from medir_nb.trainer import Pairs

# ---------------------------------------------------------------- the diversity filter


def clumps(n, dim=48, seed=0, spread=0.5, centres=None):
    "Unit vectors around some centres, with a few that stand several times."
    rng = np.random.default_rng(seed)
    middle = rng.normal(size=(centres or max(2, n // 12), dim))
    vectors = middle[rng.integers(len(middle), size=n)] + spread * rng.normal(size=(n, dim))
    vectors[rng.integers(n, size=n // 10)] = vectors[rng.integers(n, size=n // 10)]
    return unit(vectors.astype(np.float32))


def one_by_one(vectors, limits, order, seeds=0, others=()):
    "The definition: positions that enter, each compared with the k nearest of all that entered before."
    wide, inside, kept = vectors.astype(np.float64), [np.asarray(o, np.float64) for o in others], []
    for number, position in enumerate(order):
        cosines = sorted(((wide[position] * other).sum() for other in inside), reverse=True)
        if number < seeds or sum(c > limits.t for c in cosines[: limits.k]) <= limits.n:
            inside.append(wide[position])
            kept.append(int(position))
    return kept


@pytest.mark.medium
@pytest.mark.parametrize('limits', [*TABLE_10.values(), Limits(3, 0.6, 0), Limits(5, 0.7, 4), Limits(2, 0.85, 1)])
@pytest.mark.parametrize('block', [1, 37, 4096])
def test_blocks_keep_what_the_definition_keeps(tmp_path, limits, block):
    vectors = clumps(500, seed=limits.k)
    found = diverse_vectors(vectors, limits, seeds=25, folder=tmp_path, block=block)
    assert list(found.kept) == one_by_one(vectors, limits, found.order, seeds=25)
    assert 25 <= len(found) < 500 and list(found.kept[:25]) == list(found.order[:25])


def test_other_vectors_keep_out_and_do_not_stay(tmp_path):
    vectors, others = clumps(200, seed=1), clumps(200, seed=1)[:60]
    found = diverse_vectors(vectors, 'query', seeds=3 * others, folder=tmp_path)
    assert list(found.kept) == one_by_one(vectors, TABLE_10['query'], found.order, others=others)


def test_k_decides_nothing_beyond_n(tmp_path):
    vectors = clumps(300)
    kept = [list(diverse_vectors(vectors, Limits(k, 0.8, 1), 10, folder=tmp_path).kept) for k in (2, 5, 50)]
    assert kept[0] == kept[1] == kept[2]


def test_pairs_at_the_threshold_fall_to_one_side_whatever_the_block():
    vectors = clumps(300, dim=384, seed=3)
    products = vectors @ vectors.T
    for left, right in ((0, 1), (5, 80), (17, 200)):
        t = float((vectors[left].astype(np.float64) * vectors[right]).sum())
        whole = near_pairs(products, vectors, vectors, t)
        rows = np.concatenate([near_pairs(v[None] @ vectors.T, v[None], vectors, t) for v in vectors])
        nudged = near_pairs(products + np.float32(3e-6), vectors, vectors, t)
        assert (whole == rows).all() and (whole == nudged).all() and not whole[left, right]


def test_order_and_seed_decide_and_are_recorded(tmp_path):
    vectors = clumps(400)
    first, again, other = (
        diverse_vectors(vectors, seeds=20, seed=s, folder=tmp_path / str(i)) for i, s in enumerate((1, 1, 2))
    )
    given = diverse_vectors(vectors, seeds=20, order='given', folder=tmp_path)
    assert list(first.kept) == list(again.kept) != list(other.kept)
    assert list(given.order) == list(range(400)) and list(given.kept) == sorted(given.kept)
    [folder] = (tmp_path / '0').glob('*/')
    assert (
        list(np.load(folder / 'order.npy')) == list(first.order)
        and '"seed": 1' in (folder / 'settings.json').read_text()
    )


def test_more_seeds_than_candidates_are_said(tmp_path, capfd):
    assert len(diverse_vectors(clumps(30), folder=tmp_path)) == 30
    assert 'with 5,000 seeds all 30 candidates enter unasked' in capfd.readouterr().err


def test_a_finished_filter_is_not_repeated_and_other_vectors_are_another_filter(tmp_path, monkeypatch):
    vectors = clumps(300)
    before = diverse_vectors(vectors, seeds=10, folder=tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr('medir_nb.miner.diversity.let_in', lambda *_: pytest.fail('it was finished'))
        assert list(diverse_vectors(vectors, seeds=10, folder=tmp_path).kept) == list(before.kept)
    changed = vectors.copy()
    changed[7] = vectors[8]
    diverse_vectors(changed, seeds=10, folder=tmp_path)
    assert len(list(tmp_path.glob('*/kept.npz'))) == 2


KILLED = """
    import sys, time, numpy as np
    sys.path.insert(0, sys.argv[1])
    from test_curation import clumps
    from medir_nb.encoder.vectors import Vectors
    from medir_nb.miner import diverse_vectors

    class Slow(Vectors):
        def take(self, positions):
            time.sleep(0.1)
            return super().take(positions)

    vectors = clumps(2000)
    diverse_vectors(Slow([vectors], np.arange(2000)), 'query', 50, folder=sys.argv[2], block=40, pause=0)
"""


@pytest.mark.medium
def test_a_killed_filter_goes_on_and_keeps_the_same(tmp_path):
    command = [sys.executable, '-c', textwrap.dedent(KILLED), str(Path(__file__).parent), str(tmp_path / 'killed')]
    job, marks = subprocess.Popen(command), []
    while not marks and job.poll() is None:
        time.sleep(0.1)
        states = list(tmp_path.glob('killed/*/kept.npz'))
        marks = [n for s in states if (n := int(np.load(s)['done'])) >= 200]
    os.kill(job.pid, signal.SIGKILL)
    assert job.wait() == -signal.SIGKILL
    [state] = tmp_path.glob('killed/*/kept.npz')
    assert 200 <= int(np.load(state)['done']) < 2000
    resumed = diverse_vectors(clumps(2000), 'query', 50, folder=tmp_path / 'killed', block=512)
    whole = diverse_vectors(clumps(2000), 'query', 50, folder=tmp_path / 'whole')
    assert list(resumed.kept) == list(whole.kept) and len(list(tmp_path.glob('killed/*/kept.npz'))) == 1


def test_rows_are_thinned_by_their_field(fake_minilm, home, tmp_path):
    texts = ['kidney stone pain', 'kidney stone pain', 'kidney stone pain', 'rash on hands', ' ', 'cough at night']
    rows = [{'id': str(i), 'text': text} for i, text in enumerate(texts)]
    kept = diversify(rows, 'minilm', side='query', seeds=0, order='given', home_folder=home)
    assert [row['id'] for row in kept] == ['0', '1', '3', '5']
    assert kept.stats == {'kept': 4, 'empty': 1, 'said already': 1}
    strict = diversify(rows, 'minilm', side='query', n=0, seeds=0, order='given', home_folder=home)
    assert [row['id'] for row in strict] == ['0', '3', '5']
    with pytest.raises(MedirError, match="field 'doc' is missing"):
        diversify(rows, 'minilm', home_folder=home)
    source, output = write_lines(tmp_path / 'rows.jsonl', rows), tmp_path / 'thinned.jsonl'
    how = {'retriever': 'minilm', 'side': 'query', 'seeds': 0, 'order': 'given'}
    assert mine('diversify', str(source), output, home_folder=home, **how).rows == kept.rows == read_rows(output)


@pytest.mark.parametrize(
    'change, message',
    [
        ({'limits': 'passages'}, "no limits 'passages'"),
        ({'order': 'sorted'}, "unknown order 'sorted'"),
        ({'vectors': np.full((20, 8), np.nan, np.float32)}, 'vectors of a block are no numbers'),
        ({'seeds': -1}, 'seeds is -1'),
    ],
)
def test_a_filter_refuses_what_it_cannot_do(tmp_path, change, message):
    with pytest.raises(MedirError, match=message):
        diverse_vectors(**{'vectors': clumps(20, 8), 'seeds': 2, 'folder': tmp_path, **change})


@pytest.mark.parametrize('limits', [{'k': 2, 'n': 2}, {'n': -1}, {'t': 1.0}])
def test_limits_that_leave_nothing_or_everything_out_are_refused(limits):
    with pytest.raises(MedirError, match='limits k='):
        Limits(**limits)


@pytest.mark.slow
def test_a_hundred_thousand_vectors_take_less_than_three_minutes(tmp_path):
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(30_000, 384)).astype(np.float32)
    vectors = centres[rng.integers(30_000, size=100_000)] + 0.35 * rng.normal(size=(100_000, 384)).astype(np.float32)
    start = time.perf_counter()
    found = diverse_vectors(array_vectors(vectors), 'query', folder=tmp_path)
    assert time.perf_counter() - start < 180 and 30_000 < len(found) < 90_000


# ---------------------------------------------------------------- judged lists

TOPICS = ('kidney', 'lung', 'skin', 'eye')
ASKED = [{'id': f'q{i}', 'text': f'what helps a sick {topic}'} for i, topic in enumerate(TOPICS)]
FOUND = [
    {'id': f'd{i}-{n}', 'doc': f'a sick {topic} is helped by remedy {"x" * n}'}
    for i, topic in enumerate(TOPICS)
    for n in range(1, 8)
]


def topic_judge(asked):
    "S where the topic agrees and the remedy is a short one, nothing for one remedy, D elsewhere."
    return [
        None if c.doc_id.endswith('-7') else 'S' if c.doc_id[1] == c.query_id[1] and c.doc_id[-1] in '12' else 'D'
        for c in asked
    ]


def curated(home, judge=topic_judge, lists=None, **changes):
    return curate(ASKED, FOUND, 'bm25', judge, lists=lists, home_folder=home, language='en', **changes)


def test_judged_documents_become_rows_that_the_trainer_reads(home, tmp_path):
    rows = curated(home, top=28, lists=Lists(positives=1, negatives=5), instruction='find help')
    assert len(rows) == 4 and all(len(row['pos']) == 1 and len(row['neg']) == 5 for row in rows)
    for row in rows:
        topic = row['query'].split()[-1]
        assert topic in row['pos'][0] and row['pos'][0].split()[-1] in ('x', 'xx')
        assert not any(topic in text and text.split()[-1] in ('x', 'xx', 'x' * 7) for text in row['neg'])
    pairs = Pairs(rows.write(tmp_path / 'rows.jsonl'), negatives=5, instructions=True)
    assert len(pairs) == 4 and pairs.counts['filled_negatives'] == 0 and pairs.instructions == ['find help'] * 4
    assert rows.stats == {'kept': 4, 'pairs without a usable vote': 16, 'pairs judged': 112}


def test_what_the_public_sample_has_is_the_default(home):
    assert Lists() == Lists(positives=1, negatives=15, rows=1)
    rows = curated(home, top=28)
    assert all(len(row['neg']) == 15 for row in rows)


def test_queries_without_a_positive_and_short_lists_are_counted(home):
    def judge(asked):
        return ['S' if c.query_id == 'q0' else 'D' for c in asked]

    rows = curated(home, judge, top=3)
    assert len(rows) == 1 and rows.rows[0]['neg'] == []
    assert rows.stats['queries without a positive'] == 3 and rows.stats['with fewer negatives than asked'] == 1
    with pytest.raises(MedirError, match='no row is left of 4 .*queries without a positive'):
        curated(home, lambda asked: ['D'] * len(asked))


def test_rows_of_a_query_share_no_positive_and_draws_hang_on_the_query(home):
    lists = Lists(positives=1, negatives=3, rows=5)
    rows, again = curated(home, top=28, lists=lists), curated(home, top=28, lists=lists)
    assert rows.rows == again.rows and len(rows) == 8
    assert [row['id'] for row in rows][:2] == ['curated/q0', 'curated/q0#1']
    assert len({(row['query'], row['pos'][0]) for row in rows}) == 8
    first = Lists(negatives=2, draw='first').drawn('q', ['a', 'b'], ['c', 'd', 'e'])
    assert first == [(['a'], ['c', 'd'])]


@pytest.mark.parametrize(
    'scale, votes, positives, negatives',
    [
        ('grades', ['S', 'A', 'B', 'D', None, 'X'], 2, 2),
        ('binary', [True, False, None, 'S', False, True], 2, 2),
        (Scale(('S',), ('A', 'B', 'C', 'D')), ['S', 'A', 'B', 'C', 'D', ''], 1, 4),
    ],
)
def test_the_cut_of_a_scale_decides_exactly(scale, votes, positives, negatives):
    asked, counts = [[Candidate('q', 'query', str(i), 'text') for i in range(6)]], Counter()
    [(good, bad)] = judged_lists(asked, lambda _: votes, scale, counts)
    assert (len(good), len(bad)) == (positives, negatives)
    assert counts['pairs without a usable vote'] == 6 - positives - negatives


def test_a_query_may_bring_its_instruction(home):
    queries = [{'id': 'q1', 'text': 'statins', 'instruction': 'Find it'}, {'id': 'q2', 'text': 'insulin'}]
    documents = [{'id': f'd{i}', 'doc': f'{word} and more'} for i, word in enumerate(('statins', 'insulin', 'gout'))]
    mined = curate(queries, documents, 'bm25', lambda asked: ['S'] * len(asked), instruction='Answer')
    assert {row['query']: row['instruction'] for row in mined} == {'statins': 'Find it', 'insulin': 'Answer'}


def test_a_judge_that_grades_pairs_of_a_task_is_a_function_too(home):
    class Grader:
        def grade(self, task, pairs):
            texts = [task.corpus.text(d) + task.queries.text(q) for q, d in pairs.itertuples(index=False)]
            return [
                ('A', '') if 'xx' not in text else ('', 'no answer') if 'xxx' in text else ('D', '') for text in texts
            ]

    rows = curated(home, votes_of(Grader()), top=28, lists=Lists(negatives=2))
    assert len(rows) == 4 and all(row['pos'][0].endswith('remedy x') for row in rows)
    assert all(text.endswith('remedy xx') for row in rows for text in row['neg'])
    assert rows.stats['pairs without a usable vote'] == 80


@pytest.mark.parametrize('votes', [[], ['S'], ['S'] * 7])
def test_a_judge_who_answers_for_other_pairs_is_refused(votes):
    asked = [[Candidate('q', 'query', str(i), 'text') for i in range(6)]]
    with pytest.raises(MedirError, match=f'{len(votes)} votes for 6 candidates'):
        judged_lists(asked, lambda _: votes)


def test_candidates_are_asked_once_in_order_and_the_query_itself_is_no_candidate(home):
    documents = [*FOUND, {'id': 'same', 'doc': ASKED[0]['text']}]
    asked = []
    found = found_documents(ASKED, documents, 'bm25', 10, home_folder=home)
    judged_lists(found, lambda some: asked.extend(some) or ['D'] * len(some))
    assert len(asked) == len(set(asked)) and ('q0', 'same') not in {c[::2] for c in asked}
    assert [c.query_id for c in asked] == sorted(c.query_id for c in asked)
    with pytest.raises(MedirError, match='two queries have one id'):
        found_documents([*ASKED, ASKED[0]], FOUND, 'bm25', home_folder=home)


@pytest.mark.parametrize('lists', [{'draw': 'best'}, {'positives': 0}, {'rows': 0}, {'negatives': -1}])
def test_lists_that_cannot_be_drawn_are_refused(lists):
    with pytest.raises(MedirError, match='lists: '):
        Lists(**lists)


# ---------------------------------------------------------------- Table 11


def test_equal_volumes_are_drawn_by_a_seed_and_counted():
    mined = {name: Mined('rows', [*range(size)], {'kept': size}) for name, size in {'a': 4, 'b': 40, 'c': 40}.items()}
    drawn, again, other = (equal_volumes(mined, seed) for seed in (1, 1, 2))
    assert {len(rows) for rows in drawn.values()} == {4} and drawn['b'].stats == {'kept': 4, 'drawn away': 36}
    assert drawn['b'].rows == again['b'].rows == sorted(drawn['b'].rows) != other['b'].rows
    assert drawn['b'].rows != drawn['c'].rows and mined['b'].stats == {'kept': 40}


def test_each_row_of_table_11_thins_its_sides_and_has_as_many_rows(fake_minilm, home):
    words = ('tea', 'ice', 'oak', 'fog', 'sun', 'jam')
    queries = [{'id': f'{word}{i}', 'text': f'what is {word}'} for word in words for i in range(3)]
    documents = [{'id': f'd{word}{i}', 'doc': f'{word} is known{"!" * i}'} for word in words for i in range(2)]
    seen = Counter()

    def judge(asked):
        seen.update((pair.query_id, pair.doc_id) for pair in asked)
        return [pair.query.split()[-1] in pair.document for pair in asked]

    limits = {side: {'t': 0.99, 'n': 0, 'seeds': 0} for side in ('query', 'document')}
    made = diversification_ablation(
        queries, documents, 'bm25', judge, 'minilm', limits=limits, top=4, scale='binary', options={'home_folder': home}
    )
    assert list(made) == list(DIVERSIFICATION_ROWS) and len({len(rows) for rows in made.values()}) == 1
    thin = [row['query'] for row in made['queries']]
    assert len(set(thin)) == len(thin) == len(made['neither']) and made['neither'].stats['drawn away'] > 0
    positives = [row['pos'][0] for row in made['queries and documents']]
    assert len(set(positives)) == len(positives) and seen


@pytest.mark.parametrize(
    ('change', 'message'),
    [({'rows': ['queri']}, "no row 'queri'.*queries"), ({'limits': {'doc': {}}}, "no side 'doc'.*document")],
)
def test_table_11_refuses_what_it_does_not_have(fake_minilm, home, change, message):
    rows = [{'id': '1', 'text': 'tea', 'doc': 'tea'}]
    with pytest.raises(MedirError, match=message):
        diversification_ablation(rows, rows, 'bm25', topic_judge, 'minilm', options={'home_folder': home}, **change)


def test_alignment_sets_are_streams_that_the_trainer_reads(tmp_path):
    counts = Counter()
    queries = [*ASKED, {'id': 'e', 'text': ' '}, {**ASKED[0], 'id': 'again'}]
    rows = [*alignment_rows(iter(queries), 'queries', counts), *alignment_rows(iter(FOUND), 'documents', counts)]
    report = write_pairs(rows, tmp_path / 'alignment.jsonl', counts)
    assert counts == {'queries': 4, 'documents': 28, 'empty': 1, 'repeated': 1} and report['pairs'] == 32
    assert all(row['pos'] == [row['query']] and row['neg'] == [] for row in PairFile(tmp_path / 'alignment.jsonl'))
    pairs = Pairs(tmp_path / 'alignment.jsonl', negatives=0)
    assert len(pairs) == 32 and pairs.draw(0) == (ASKED[0]['text'], [])


# ---------------------------------------------------------------- washing and anonymisation

RULES = list(registry('washing'))


@pytest.mark.parametrize('name', RULES)
def test_a_rule_changes_its_example_and_leaves_alone_what_it_must(name):
    row = registry('washing')[name]
    check_rule(name, row)
    alone, every = Washing([name]), Washing()
    washed = every.text(row['example'])
    assert alone.text(row['example']) != row['example'] and alone.hits[name] >= 1
    assert Washing().text(washed) == washed  # washed twice is washed once
    assert all(alone.text(text) == text for text in row.get('keeps', []))


@pytest.mark.parametrize('name', [n for n in RULES if registry('washing')[n].get('kind') == 'anonymise'])
def test_no_value_stands_in_text_or_table(name):
    row, washing = registry('washing')[name], Washing()
    washed = washing.text(f'before {row["example"]} after')
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
    with more_rows('washing', {'bed': {'pattern': r'bed [0-9]+', 'replacement': '<BED>'}}):
        assert Washing(['bed']).text('bed 7') == '<BED>'
    with pytest.raises(MedirError, match="unknown rule 'mobil'; did you mean 'mobile'"):
        Washing(['mobil'])


@pytest.mark.parametrize(
    'row, message',
    [
        ({'pattern': '(', 'replacement': ''}, 'its pattern or replacement is none'),
        ({'pattern': 'a', 'replacement': r'\1'}, 'its pattern or replacement is none'),
        ({'pattern': 'a', 'by': 'mended'}, 'it needs a pattern or a function'),
        ({'title': 'nothing'}, 'it needs a pattern or a function'),
        ({'by': 'mend'}, "no function 'mend'; did you mean 'mended'"),
        ({'pattern': 'a', 'kind': 'hide'}, "no kind 'hide' of rule"),
        ({'pattern': 'a', 'replace': 'b'}, "unknown field 'replace'"),
    ],
)
def test_a_rule_that_is_none_is_refused(row, message):
    with pytest.raises(MedirError, match=message):
        check_rule('mine', row)


def test_documents_and_rows_pass_through_and_empty_ones_are_counted(tmp_path):
    washing = Washing()
    documents = [Document('1', 'T', '<p>a</p>', 'b'), Document('2', '', '<p></p>')]
    assert list(washed_documents(iter(documents), washing)) == [Document('1', 'T', 'a', 'b')]
    rows = [{'id': '1', 'text': 'a  b', 'n': 3}, {'id': '2', 'text': ' '}]
    assert list(washed_rows(iter(rows), washing)) == [{'id': '1', 'text': 'a b', 'n': 3}]
    assert washing.counts['empty after washing'] == 2
    washed = wash(rows)
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


@pytest.mark.parametrize(
    'text', ['-1' * 50_000, 'a@' * 50_000, '<a ' + 'x=y ' * 20_000, '12 Aa ' * 20_000, '+1' + '-' * 50_000]
)
def test_no_text_keeps_a_rule_busy(text):
    start = time.process_time()
    Washing().text(text)
    assert time.process_time() - start < 3


def test_a_shape_says_no_letter_and_no_digit():
    assert shape('张三 138-0013 someone@example.org') == '字字 999-9999 aaaaaaa@aaaaaaa.aaa'
    assert len(shape('x' * 100)) <= 41


# ---------------------------------------------------------------- the set of synonyms

GOUT = Entry('gout', 'gout', 'podagra', 'Is gout painful?', 'Is podagra painful?')
SENTENCES = {
    'positive': 'Does podagra hurt?',
    'negative-1': 'Who gets podagra first?',
    'negative-2': 'Which diet prevents gout?',
}


@pytest.mark.parametrize(
    'change, fault',
    [
        ({}, ''),
        ({'origin': ''}, 'a term is missing'),
        ({'synonym': 'GOUT'}, 'the synonym is the term'),
        ({'query': ''}, 'no query'),
        ({'query': 'Why do toes hurt?'}, 'the query lacks its term'),
        ({'other': 'Is it painful?'}, 'the other query lacks the synonym'),
    ],
)
def test_an_entry_says_why_it_cannot_be_used(change, fault):
    assert Entry(**{**vars(GOUT), **change}).fault == fault


@pytest.mark.parametrize(
    'change, fault',
    [
        ({}, ''),
        ({'positive': 'Does gout hurt?'}, 'positive lacks its term'),
        ({'negative-1': 'Who gets gout first?'}, 'negative-1 lacks its term'),
        ({'negative-2': 'Which diet prevents podagra?'}, 'negative-2 lacks its term'),
        ({'positive': 'Is it known whether or not podagra hurts at all?'}, 'the positive is of another length'),
        ({'positive': 'Podagra?'}, 'the positive is of another length'),
        ({'negative-2': 'is gout painful?'}, 'a sentence stands twice'),
    ],
)
def test_sentences_must_hold_what_they_promise(change, fault):
    assert fault_of_sentences({**SENTENCES, **change}, GOUT) == fault


@pytest.mark.parametrize('language', INTENTS)
def test_rules_make_sentences_that_hold_for_every_query_that_rules_make(language):
    for seed in range(60):
        entry = with_query(Entry(str(seed), '夜尿症', '夜间多尿'), language, seed)
        sentences = sentences_by_rule(entry, language, seed)
        assert not entry.fault and not fault_of_sentences(sentences, entry)
        asked = {
            i
            for i, w in enumerate(INTENTS[language])
            for s in sentences.values()
            for t in w
            if s in (t.format(term=entry.origin), t.format(term=entry.synonym))
        }
        assert len(asked) == 3  # the positive's and two others


ANSWERED = {
    'fine': json.dumps(SENTENCES),
    'wrapped': f'Sure:\n```json\n{json.dumps(SENTENCES)}\n```',
    'open': '{"positive": "Does podagra',
    'prose': 'I cannot do this.',
    'lacking': json.dumps({k: v for k, v in SENTENCES.items() if k != 'negative-2'}),
    'more': json.dumps({**SENTENCES, 'note': 'done'}),
    'number': json.dumps({**SENTENCES, 'positive': 7}),
    'untrue': json.dumps({**SENTENCES, 'positive': 'Does gout hurt?'}),
}


def test_broken_answers_are_counted_and_named_and_never_guessed(home, monkeypatch):
    monkeypatch.delenv('MEDIR_REPLAY', raising=False)
    entries = [
        Entry(**{**vars(GOUT), 'id': name, 'query': f'Is gout painful, {name}?', 'other': f'Is podagra bad {name}?'})
        for name in ANSWERED
    ]
    server = ToyServer(
        lambda messages: next(a for name, a in ANSWERED.items() if f'painful, {name}?' in messages[-1]['content'])
    )
    try:
        configure('smollm2', backend='openai', base_url=server.url)
        found = synonym_sentences(
            [*entries, Entry('blank', 'gout', 'podagra')], 'smollm2', tolerance=0.9, home_folder=home
        )
        again = synonym_sentences(entries, 'smollm2', tolerance=0.9, home_folder=home)
    finally:
        server.close()
    assert [row['id'] for row in found] == ['fine', 'wrapped'] and found.rows == again.rows
    assert all({k: row[k] for k in KINDS} == SENTENCES for row in found)
    assert dict(found.unusable) == {
        'blank': 'no query', 'untrue': 'positive lacks its term',
        **dict.fromkeys(('open', 'prose', 'lacking', 'more', 'number'), 'broken answer'),
    }  # fmt: skip
    assert sum(n for what, n in found.stats.items() if what.startswith('broken')) == 5
    assert found.stats['unwrapped'] == 1 and server.asked == 8 and 'blank (no query)' in repr(found)


def test_a_dictionary_of_the_readers_is_read_and_faults_name_the_file(tmp_path):
    path = tmp_path / 'd.csv'
    path.write_text(
        '\ufefforigin,synonym,query,id\ngout,podagra,Is gout bad?,g\nscurvy,,What is scurvy?,s\n', encoding='utf-8'
    )
    gout, scurvy = read_entries(path)
    assert (
        gout == Entry('g', 'gout', 'podagra', 'Is gout bad?', 'Is podagra bad?') and scurvy.fault == 'a term is missing'
    )
    for text, message in (
        ('term,synonym\na,b\n', "column 'origin' is missing"),
        ('origin,synonym,id\na,b,1\nc,d,1\n', "the id .'1'. stands twice"),
        ('', 'the CSV cannot be read'),
    ):
        path.write_text(text)
        with pytest.raises(MedirError, match=f'd.csv: {message}'):
            read_entries(path)


def test_a_dictionary_of_which_nothing_can_be_used_is_one_line():
    blank, untrue = Entry('a', 'gout', 'podagra'), Entry(**{**vars(GOUT), 'query': 'Why do toes hurt?'})
    message = r'^synonyms: no entry of 2 can be used \(1 no query, 1 the query lacks its term\); mend the dictionary$'
    with pytest.raises(MedirError, match=message):
        synonym_sentences([blank, untrue])


def test_a_query_of_the_readers_keeps_its_wording_and_is_counted():
    found = synonym_sentences([GOUT])
    assert found.rows[0]['positive'] == 'Is podagra painful?' and found.stats['by rule, what is asked not known'] == 1


def test_weights_decide_what_is_drawn():
    rows = synonym_sentences(hpo_entries(300)).rows
    kinds = {w: Counter(p['kind'] for p in synonym_pairs(rows, w)) for w in ((1, 1, 1), (2, 1, 1), (0, 1, 0))}
    assert kinds[0, 1, 0] == {'negative-1': 300} and 125 < kinds[2, 1, 1]['positive'] < 175
    assert all(70 < n < 130 for n in kinds[1, 1, 1].values())
    assert Counter(p['score'] for p in synonym_pairs(rows, None)) == {1: 300, 0: 600}
    assert synonym_pairs(rows) == synonym_pairs(rows) != synonym_pairs(rows, seed=7)
    for weights in ((1, 1), (0, 0, 0), (-1, 1, 1)):
        with pytest.raises(MedirError, match='weights are'):
            synonym_pairs(rows, weights)


def test_the_training_part_keeps_all_sentences(tmp_path):
    found = synonym_sentences(hpo_entries(40)).rows
    rows = synonym_rows(found)
    path = tmp_path / 'rows.jsonl'
    path.write_text(''.join(json.dumps(row) + '\n' for row in rows))
    for row, sentences in zip(rows, found, strict=True):
        assert row['pos'] == [sentences['positive']] and len(row['neg']) == 9 and row['query'] not in row['neg']
        assert row['neg'][:2] == [sentences['negative-1'], sentences['negative-2']]
    assert Pairs(path, negatives=9).counts['filled_negatives'] == 0 and rows == synonym_rows(found)
    assert all(len(row['neg']) == 2 for row in synonym_rows(found, others=0))


def test_the_task_is_one_that_is_evaluated_by_pearson(fake_minilm, home, tmp_path):
    pairs = synonym_pairs(synonym_sentences(hpo_entries(40)).rows, None)
    folder = write_synonyms(pairs, tmp_path / 'synonyms', {'by': 'rule'})
    stored = load_task(str(folder), home_folder=home)
    assert stored.kind == 'pairs' and stored.pairs.equals(synonym_task(pairs).pairs)
    scores = evaluate(synonym_task(pairs), 'minilm', home_folder=home)
    expected = np.corrcoef(scores.pair_scores, [p['score'] for p in pairs])[0, 1]
    assert scores.rows()[0]['measure'] == 'Pearson' and abs(scores.mean('Pearson') - expected) < 1e-9
    report = json.loads((folder / 'report.json').read_text())
    assert report == {'pairs': 120, 'kinds': dict.fromkeys(KINDS, 40), 'by': 'rule'}


# ---------------------------------------------------------------- CMIRB's recipe


def remedies(**changes):
    "Roles to whom the remedies of a topic's second document are evidence."
    roles = Roles(
        best=lambda lists: [sorted(range(len(docs)), key=lambda i: len(docs[i])) for _, docs in lists],
        evidence=lambda pairs: [d.split('remedy ')[1] if q.split()[-1] in d else '' for q, d in pairs],
        answer=lambda pairs: ['' if evidence == 'xxx' else evidence for _, evidence in pairs],
        agrees=lambda triples: [answer == reference for _, answer, reference in triples],
    )
    return replace(roles, **changes)


ANSWERS = [{**row, 'answer': 'xx'} for row in ASKED]


def built(home, rows=ANSWERS, **changes):
    how = {name: changes.pop(name) for name in ('top', 'best', 'keep', 'pairs', 'scale') if name in changes}
    return build_cmirb(rows, FOUND, remedies(**changes), home_folder=home, **{'top': 28, 'best': 28, **how})


def test_the_recipe_keeps_the_first_document_whose_answer_is_verified(home):
    made = built(home)
    assert sorted(zip(made.task.qrels.query_id, made.task.qrels.doc_id)) == [(f'q{i}', f'd{i}-2') for i in range(4)]
    outcome = {(row.query_id, row.doc_id): row.outcome for row in made.trail.itertuples()}
    assert outcome['q0', 'd0-1'] == 'not verified' and outcome['q0', 'd0-2'] == 'verified'
    assert (
        outcome['q0', 'd1-1'] == 'no evidence' and ('q0', 'd0-3') not in outcome
    )  # nobody asked about what came later
    every = built(home, keep='all')
    assert len(every.trail) == 112 and every.task.qrels.equals(made.task.qrels)
    assert Counter(every.trail.outcome) == {'no evidence': 84, 'not verified': 20, 'verified': 4, 'no answer': 4}


def test_pairs_are_counted_beside_what_is_known(home):
    made = built(home)
    known = [('q0', 'd0-2'), ('q1', 'd1-2'), ('q2', 'd2-2'), ('q2', 'd2-3'), ('q3', 'd3-5')]  # q3: another one
    texts = [{'_id': row['id'], 'title': '', 'text': row['doc']} for row in FOUND]
    qrels = pd.DataFrame([(*pair, 1) for pair in known], columns=['query_id', 'doc_id', 'relevance'])
    gold = task_from_frames(pd.DataFrame(texts), pd.DataFrame(ASKED), qrels, name='gold', language='en')
    found = answered_quality(gold, made, 8).set_index('share')
    assert list(found.hits) == [3, 3] and list(found.of) == [4, 8] and list(found.value) == [0.75, 0.375]
    middle = (3 + 1.96**2 / 2) / (4 + 1.96**2)  # of Wilson's interval of 3 in 4
    assert (found.low + found.high).iloc[0] / 2 == pytest.approx(middle, abs=1e-4)
    assert (found.low < found.value).all() and (found.value < found.high).all()


def test_a_query_with_no_known_answer_is_compared_with_the_document(home):
    made = built(
        home, rows=ASKED, agrees=lambda triples: [answer == 'xx' and answer in text for _, answer, text in triples]
    )
    assert set(made.task.qrels.doc_id) == {'d0-2', 'd1-2', 'd2-2', 'd3-2'}


def test_what_is_not_medical_or_not_said_leaves_and_is_counted(home):
    def is_medical(texts):
        return [None if 'eye' in text else 'skin' not in text for text in texts]

    made = built(home, is_medical=is_medical)
    assert set(made.task.queries.ids) == {'q0', 'q1'} and len(made.task.corpus) == 14
    assert made.counts['queries that are not medical'] == 1 and made.counts['documents that are not medical'] == 7
    assert made.counts['queries about which nothing was said'] == 1


@pytest.mark.parametrize('ranking', [None, [], [0, 0], [28], [-1], 'best'])
def test_a_ranking_that_is_none_is_counted(ranking):
    counts, found = Counter(), [[Candidate('q', 'query', f'd{i}', 'text') for i in range(28)]]
    assert shortlists(found, remedies(best=lambda lists: [ranking]), 3, counts) == []
    assert counts['queries whose ranking is none'] == 1


def test_a_quotation_that_does_not_stand_in_its_document_is_no_evidence():
    candidates = [Candidate('q', 'lung', 'd', 'a  sick\nlung is helped')]
    for quote, outcome in (('sick lung', 'verified'), ('sick kidney', 'no evidence'), (None, 'no evidence')):
        roles = remedies(evidence=lambda pairs, quote=quote: [quote], agrees=lambda triples: [True])
        assert verified_matches(candidates, {}, roles)[0].outcome == outcome


def test_the_last_filter_takes_a_judge_and_its_scale(home):
    votes = {'q0': 'S', 'q1': 'B', 'q2': None, 'q3': 'A'}

    def relevance(asked):
        return [votes[c.query_id] for c in asked]

    made = built(home, relevance=relevance)
    assert set(made.task.queries.ids) == {'q0', 'q3'}
    assert made.counts['pairs of low relevance'] == made.counts['pairs without a usable vote'] == 1
    assert set(built(home, relevance=relevance, scale=Scale(('B',), ('S', 'A'))).task.queries.ids) == {'q1'}


def test_given_pairs_skip_the_search(home):
    nobody = {name: lambda _: pytest.fail('nobody is asked') for name in ('best', 'evidence', 'answer', 'agrees')}
    made = built(home, pairs=[('q0', 'd0-7'), ('q1', 'd0-1'), ('q9', 'd0-1')], **nobody)
    assert list(zip(made.task.qrels.query_id, made.task.qrels.doc_id)) == [('q0', 'd0-7'), ('q1', 'd0-1')]
    assert not len(made.trail)


@pytest.mark.parametrize(
    'change, message',
    [
        ({'answer': lambda pairs: []}, '0 answers to .* questions'),
        ({'is_medical': lambda texts: [False] * len(texts)}, 'nothing medical is left'),
        ({'agrees': lambda triples: [False] * len(triples)}, 'no query has a relevant document'),
        ({'keep': 'last'}, "unknown keep 'last'"),
    ],
)
def test_a_recipe_that_leads_to_nothing_says_so(home, change, message):
    with pytest.raises(MedirError, match=message):
        built(home, **change)


def test_a_language_model_plays_every_role_in_both_languages(home, monkeypatch):
    monkeypatch.delenv('MEDIR_REPLAY', raising=False)
    said = {'medical': True, 'order': [0], 'evidence': '痛风', 'answer': '痛风', 'score': 4}

    def toy(messages):
        prompt = messages[-1]['content']
        [asked] = [name for name in said if f'{{"{name}"' in prompt]
        return json.dumps({asked: said[asked]}, ensure_ascii=False)

    server = ToyServer(toy)
    try:
        configure('qwen2.5-coder-1.5b', backend='openai', base_url=server.url)
        for language in ('zh', 'en'):
            model = ModelRoles('qwen2.5-coder-1.5b', language, how={'home_folder': home})
            queries, documents = (
                [{'id': 'q', 'text': '什么是痛风', 'answer': '痛风'}],
                [{'id': 'd', 'doc': '痛风是一种病。'}],
            )
            made = build_cmirb(queries, documents, model.roles(), home_folder=home)
            assert list(made.trail.outcome) == ['verified'] and not +model.broken and model.usage.answers == 6
            strict = replace(model, agrees_from=5)
            with pytest.raises(MedirError, match='no query has a relevant document'):
                build_cmirb(queries, documents, strict.roles(), home_folder=home)
    finally:
        server.close()
