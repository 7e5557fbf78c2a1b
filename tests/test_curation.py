"""Training data and benchmarks that are built: the diversity filter, judged lists, washing, synonyms, CMIRB's recipe."""

import os, signal, subprocess, sys, textwrap, time
from collections import Counter
from pathlib import Path
import numpy as np, pandas as pd, pytest
from conftest import write_lines
from medir_nb.core import MedirError, registry, rows as more_rows
from medir_nb.encoder.vectors import array_vectors
from medir_nb.trainer import (
    alignment_rows,
    Candidate,
    curate,
    diverse_vectors,
    diversification_ablation,
    DIVERSIFICATION_ROWS,
    diversify,
    equal_volumes,
    found_documents,
    judged_lists,
    Limits,
    Lists,
    mine,
    Mined,
    Pairs,
    read_rows,
    Scale,
    TABLE_10,
    votes_of,
    wash,
)
from medir_nb.trainer.diversity import near_pairs
from medir_nb.retrieval.nearest import unit
from medir_nb.data import (
    check_rule,
    Document,
    PairFile,
    task_from_frames,
    washed_documents,
    washed_rows,
    washed_task,
    Washing,
    write_pairs,
)
from medir_nb.data.washing import shape

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
        patch.setattr('medir_nb.trainer.diversity.let_in', lambda *_: pytest.fail('it was finished'))
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
    from medir_nb.trainer import diverse_vectors

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
