"""Measures against trec_eval and by hand, tests against enumeration, and what the command prints and writes."""

import itertools, json
import numpy as np, pandas as pd, pytest
from conftest import QRELS, seeded, write_beir, write_lines, refuses
from medir_nb.core import to_markdown
from medir_nb.data import load_task, task_from_frames
from medir_nb.evaluator import case_view, compare, compare_all, correlation, difference_spread, evaluate, find_copies
from medir_nb.evaluator import gain_counts, holm, interval, judged_at_10, macro_average, order_bounds, PAIR_MEASURES
from medir_nb.evaluator import paired_p, paired_power, parse_measure, per_query, Power, queries_needed, resampled_means
from medir_nb.evaluator import score_frames, score_run, scores_without, separation, smallest_difference, subgroup_scores
from medir_nb.evaluator import subgroups
from medir_nb.papers import against_baseline, experiment
from medir_nb.retrieval import read_run, RUN_COLUMNS

FIELDS = 'task split system revision dtype measure value low high n_queries judged_at_10'.split()
FIELDS += ['encoded_docs', 'cached_docs', 'seconds', 'cut', 'settings']


def frames(qrels, run):
    return pd.DataFrame(qrels, columns=['query_id', 'doc_id', 'relevance']), pd.DataFrame(run, columns=RUN_COLUMNS)


def scores(qrels, run, measure):
    return per_query(*frames(qrels, run), [measure]).set_index('query_id').value.to_dict()


OF_TREC = {'nDCG@10': 'ndcg_cut_10', 'nDCG': 'ndcg', 'R@100': 'recall_100', 'R@5': 'recall_5', 'AP': 'map'}
OF_TREC |= {'RR': 'recip_rank', 'P@10': 'P_10', 'AP@20': 'map_cut_20', 'Success@1': 'success_1'}


@pytest.mark.parametrize('seed', range(5))
def test_per_query_values_are_trec_evals(seed):
    import pytrec_eval

    rng, queries = np.random.default_rng(seed), [f'q{i}' for i in range(12)]
    drawn = lambda n: [f'd{j}' for j in rng.choice(300, n, replace=False)]
    qrels = {q: {d: int(rng.choice([0, 0, 1, 2, 3])) for d in drawn(40)} for q in queries}
    run = {q: dict(zip(drawn(150), map(float, rng.permutation(150)))) for q in queries}
    asked = {'ndcg', 'ndcg_cut.10', 'recall.5,100', 'map', 'map_cut.20', 'recip_rank', 'P.10', 'success.1'}
    expected = pytrec_eval.RelevanceEvaluator(qrels, asked).evaluate(run)
    flat = ([(q, d, value) for q, of_query in table.items() for d, value in of_query.items()] for table in (qrels, run))
    got = per_query(*frames(*flat), list(OF_TREC))
    assert len(got) == 12 * len(OF_TREC)
    for r in got.itertuples():
        assert r.value == pytest.approx(expected[r.query_id][OF_TREC[r.measure]], abs=1e-9)


HAND = [('q', 'a', 2), ('q', 'b', 1), ('q', 'c', 1), ('q', 'd', 0), ('q', 'e', 2)]
# relevant at ranks 2 (1), 4 (2), 6 (2)
HAND_RUN = [('q', doc_id, 9 - rank) for rank, doc_id in enumerate('xbdaye')]
LOG = np.log2
IDEAL = 2 / LOG(2) + 2 / LOG(3) + 1 / LOG(4) + 1 / LOG(5)
STRICT = 1 / LOG(2) + 1 / LOG(3)
BY_HAND = {'RR@5': 1 / 2, 'RR@1': 0, 'RR(rel=2)@5': 1 / 4, 'RR(rel=2)@3': 0, 'MRR@10': 1 / 2, 'R(rel=2)@1': 0}
BY_HAND |= {'R(rel=2)@4': 1 / 2, 'R(rel=2)@6': 1, 'R@4': 2 / 4, 'recall@4': 2 / 4, 'P@4': 2 / 4, 'Success@1': 0}
BY_HAND |= {'MAP': (1 / 2 + 2 / 4 + 3 / 6) / 4, 'AP(rel=2)': (1 / 4 + 2 / 6) / 2}
BY_HAND |= {'nDCG@10': (1 / LOG(3) + 2 / LOG(5) + 2 / LOG(7)) / IDEAL}
BY_HAND |= {f'nDCG(gains={{1:0,2:1}})@{k}': at / STRICT for k, at in ((10, 1 / LOG(5) + 1 / LOG(7)), (4, 1 / LOG(5)))}


@pytest.mark.parametrize('measure, value', BY_HAND.items())
def test_measures_by_hand(measure, value):
    assert scores(HAND, HAND_RUN, measure) == pytest.approx({'q': value}, abs=1e-9)


def test_a_query_that_the_run_lacks_scores_zero_and_one_without_relevant_is_not_asked():
    qrels = [('q1', 'a', 1), ('q2', 'b', 1), ('q3', 'c', 0), ('q4', 'd', -1)]
    assert scores(qrels, [('q1', 'a', 1.0), ('q3', 'c', 1.0), ('q9', 'a', 1.0)], 'nDCG@10') == {'q1': 1.0, 'q2': 0.0}
    assert scores(qrels, [], 'R@100') == scores(qrels, [('q3', 'c', 1.0)], 'RR') == {'q1': 0.0, 'q2': 0.0}


def test_ties_are_broken_by_descending_id_and_close_scores_are_not_tied():
    for run in itertools.permutations([('q', 'a', 1.0), ('q', 'b', 1.0), ('q', 'c', 1.0)]):
        assert scores([('q', 'a', 1)], run, 'RR') == {'q': pytest.approx(1 / 3)}
    # trec_eval holds scores in single precision, where these two are equal
    assert scores([('q', 'a', 1)], [('q', 'a', 1 + 1e-12), ('q', 'b', 1.0)], 'RR') == {'q': 1.0}


def test_other_spellings_of_measures():
    typed = 'ndcg@10 map mrr@5 Recall@100 precision@3 hit@1 spearman PEARSON'.split()
    printed = 'nDCG@10 AP RR@5 R@100 P@3 Success@1 Spearman Pearson'.split()
    assert [str(parse_measure(name)) for name in typed] == printed


def test_judged_at_10():
    run = [('q1', 'a', 3), ('q1', 'x', 2), ('q1', 'b', 1), ('q2', 'c', 1)]
    mixed, positives = [('q1', 'a', 1), ('q1', 'b', 0), ('q2', 'c', 1)], [('q1', 'a', 1), ('q2', 'c', 2)]
    assert judged_at_10(*frames(positives, run)) is None
    # Judged@k of ir_measures divides by the k documents that a full list would have
    full = [('q1', f'd{i}', 10.0 - i) for i in range(12)]
    graded = frames([('q1', f'd{i}', int(i == 0)) for i in (0, 3, 9, 10)], full)
    assert judged_at_10(*graded) == pytest.approx(3 / 10) and 0 < judged_at_10(*frames(mixed, run)) < 1


def test_intervals_cover():
    rng = np.random.default_rng(0)
    covered = [low <= 0.5 <= high for low, high in (interval(rng.beta(2, 2, 40), seed=i) for i in range(300))]
    assert 0.89 <= np.mean(covered) <= 0.98


def test_intervals_respect_groups():
    "Ten paraphrases of one term say no more than one: the interval is that of the terms."
    values = np.random.default_rng(1).uniform(size=30)
    copies, terms = np.repeat(values, 10), np.repeat(np.arange(30), 10)
    assert interval(copies, terms) == pytest.approx(interval(values), abs=1e-12)
    assert np.ptp(interval(copies)) < np.ptp(interval(copies, terms)) / 2.5
    assert interval(values) == interval(values) and np.isnan([*interval([0.5] * 9), *interval([])]).all()


@pytest.mark.parametrize('seed, group', [*((seed, range(8)) for seed in range(4)), (4, np.repeat(np.arange(6), 4))])
def test_p_is_exact_for_few_and_flips_groups_whole(seed, group):
    d = np.random.default_rng(seed).normal(0.1 * seed, 0.4, len(group))
    total, zero = np.bincount(group, d), np.zeros(len(group))
    sums = [abs(np.dot(total, signs)) for signs in itertools.product([1, -1], repeat=len(total))]
    expected = np.mean(np.array(sums) >= abs(total.sum()) - 1e-12)
    assert paired_p(d, zero, group) == pytest.approx(expected, abs=1e-12) == paired_p(zero, d, group)


def test_p_under_the_null_is_uniform_and_under_an_effect_small():
    rng = np.random.default_rng(3)
    null = [paired_p(*rng.uniform(size=(2, 30)), n=499, seed=i) for i in range(150)]
    assert 0.01 <= np.mean(np.array(null) < 0.05) <= 0.11
    x = rng.uniform(size=60)
    assert paired_p(x, x) == 1.0 and paired_p(x, x + 0.1 + rng.normal(0, 0.05, 60)) < 0.001


def test_holm_by_hand():
    assert list(holm([0.01, 0.04, 0.03, 0.005])) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert list(holm([0.5, 0.6, 0.02])) == pytest.approx([1.0, 1.0, 0.06])
    assert list(holm([0.3])) == [0.3] and not len(holm([]))


@pytest.mark.parametrize('kind', PAIR_MEASURES)
def test_correlations_are_scipys(kind):
    from scipy import stats

    rng = np.random.default_rng(0)
    predicted = (gold := rng.integers(0, 6, 80)) + rng.normal(0, 2, 80)
    expected = {'Spearman': stats.spearmanr, 'Pearson': stats.pearsonr}[kind](predicted, gold).statistic
    value, (low, high) = correlation(predicted, gold, kind)
    assert value == pytest.approx(expected, abs=1e-12) and low < value < high and high - low < 0.4
    assert np.isnan(correlation(np.ones(5), gold[:5], kind)[0])


def test_rows_carry_the_interval_of_their_queries(beir):
    task = load_task(str(beir))
    task.groups = {'q1': 'heart', 'q2': 'other', 'q3': 'other', 'q4': 'other'}
    s = evaluate(task, 'bm25(k1=0.1,b=0)', ['nDCG@10'])
    row, v = s.rows()[0], s.values('nDCG@10')
    low, high = interval(v.values, [0 if q == 'q1' else 1 for q in v.index])
    assert (row['low'], row['high']) == (max(low, 0.0), min(high, 1.0))
    assert row['low'] < row['value'] < row['high']


def test_macro_average_and_comparison_table(beir):
    a, b = (evaluate(load_task(str(beir)), s) for s in ('bm25', 'bm25(k1=0.1,b=0)'))
    macro = macro_average([a, a])
    assert macro['value'] == pytest.approx(a.mean('nDCG@10')) and macro['tasks'] == 2
    assert macro['low'] <= macro['value'] <= macro['high']
    table = compare_all([a, b, a])
    assert len(table) == 3 and table.p_holm.tolist() == pytest.approx(holm(table.p).tolist())


def test_separation_by_hand():
    kinds, cosines = ['relevant'] * 3 + ['non-relevant'] * 3, [0.9, 0.8, 0.4, 0.5, 0.1, 0]
    row = separation(pd.DataFrame({'system': 's', 'pair': kinds, 'cosine': cosines}), bins=3).iloc[0]
    assert [row.AUC, row['mean gap'], row.overlap] == pytest.approx([8 / 9, 0.7 - 0.2, 1 / 3])


def test_a_group_beside_the_rest_and_the_gap_of_the_worst_by_hand():
    rng = np.random.default_rng(5)
    document, ids = {'id': 'd', 'text': 'fever', 'ward': 'east'}, [f'q{i}' for i in range(60)]
    queries = [{'id': q, 'text': 'fever', 'ward': 'north' if i < 20 else 'south'} for i, q in enumerate(ids)]
    task = task_from_frames([document], queries, [{'query_id': q, 'doc_id': 'd', 'relevance': 1} for q in ids])
    values = pd.Series(np.where(np.arange(60) < 20, 0.2, 0.7) + rng.uniform(-0.1, 0.1, 60), index=ids)
    found = subgroups(values, task, 'ward')
    north, south = found.groups.to_dict('records')
    apart = values[:20].mean() - values[20:].mean()
    assert [north['difference'], -south['difference']] == pytest.approx([apart, apart])
    assert found.gap.worst == 'north' and found.gap.value == pytest.approx(values.mean() - values[:20].mean())
    assert found.gap.low < found.gap.value < found.gap.high and found.shown.all()
    several = subgroups(values, task, {q: ['all', 'odd' if i % 2 else 'even'] for i, q in enumerate(ids)})
    assert set(several.groups.group) == {'odd', 'even'} and not several.shown.any()  # a group of all is none
    few = subgroups(values, task, {q: 'few' if i < 5 else 'many' for i, q in enumerate(ids)}, least=5)
    assert np.isinf(few.groups.smallest).all() and not few.shown.any()


@pytest.mark.parametrize('by', ['length', 'rarity', 'wording', 'language', 'body system'])
def test_each_label_knows_almost_every_query(by):
    task = load_task('hpo-lay')
    is_in = subgroup_scores.memberships(task, by, task.queries.ids)
    assert is_in.any(axis=1).mean() > 0.95 and is_in.shape[1] > 1 - (by == 'language')


def test_copies_are_merged_and_what_was_trained_on_is_left_out(beir, tmp_path, medir):
    long = 'Scurvy is a lack of vitamin C with bleeding gums and weak legs in sailors who eat no fruit for months.'
    documents = list(zip('abcd', [''] * 4, [long, long.upper(), 'Gout is uric acid.', long[:-1] + ' ago.']))
    asked = [('q1', 'what is scurvy'), ('q2', 'how is gout of the big toe treated'), ('q3', 'sailors without fruit')]
    folder = write_beir(tmp_path / 'copied', documents, asked, [('q1', 'a', 1), ('q2', 'c', 1), ('q3', 'd', 1)])
    trained = {'How is gout of the big toe treated?': ['none'], 'no': [long[:-1] + ' ago']}
    rows = write_lines(tmp_path / 'rows.jsonl', [{'query': query, 'pos': pos} for query, pos in trained.items()])
    found = find_copies(str(folder), str(rows))
    assert (found.same, found.near, found.queries, found.answered) == ({'b': 'a'}, 1, ['q2'], ['q1', 'q2', 'q3'])
    assert found.documents == dict.fromkeys('abd', 'near duplicate')
    run = pd.DataFrame([('q1', 'b', 1.0), ('q2', 'c', 1.0), ('q3', 'c', 1.0)], columns=RUN_COLUMNS)
    table = scores_without([score_run(found.task, run, ['RR@10'])], found).set_index('scored')
    assert [cell.split()[0] for cell in table['RR@10']] == ['0.333', '0.667', '0.000']
    assert [cell.split()[0] for cell in table.change[1:]] == ['+0.333', '−0.333'] and list(table.queries) == [3, 3, 2]
    said = medir('copies', folder, '--against', rows, '--system', 'bm25')
    assert said.code == 0 and '1 of 3 queries, 0 nearly' in said.out and 'copies merged' in said.out
    assert 'no such file' in medir('copies', folder, '--against', tmp_path / 'none.jsonl').err


def test_a_folder_needs_no_registration(beir, fake_minilm):
    for system in ('bm25', 'minilm', 'rrf(bm25,minilm)'):
        s = evaluate(str(beir), system, ['nDCG@10', 'RR(rel=2)@5'])
        assert [r['measure'] for r in s.rows()] == ['nDCG@10', 'RR(rel=2)@5'] and 0 < s.mean('nDCG@10') <= 1
        assert s.values('nDCG@10').mean() == s.mean('nDCG@10') and set(s.values('nDCG@10').index) == {'q1', 'q2', 'q3'}
    assert evaluate(beir, 'bm25').mean('nDCG@10') == evaluate(load_task(str(beir)), 'bm25').mean('nDCG@10')


def test_depth_follows_the_measure(tmp_path):
    documents = [(f'd{i:03d}', '', 'fever ' + 'cough ' * i) for i in range(300)]
    judged = [('q', f'd{i:03d}', 1) for i in range(300)]
    task = load_task(str(write_beir(tmp_path / 't', documents, [('q', 'fever')], judged)))
    assert evaluate(task, 'bm25', ['R@200']).mean('R@200') == pytest.approx(200 / 300)
    assert [len(evaluate(task, 'bm25', ['nDCG@10'], k=k).run) for k in (100, 7)] == [100, 10]


def test_rows_have_exactly_these_fields(beir, tmp_path, medir, fake_minilm):
    typed, measures = ['bm25', 'minilm', 'rrf( bm25, bm25(k1=1.5) )', 'bm25(k1=1.5)'], ['nDCG@10', 'RR(rel=2)@5']
    systems = [part for system in typed for part in ('--system', system)]
    for encoded in (12, 0):
        out = medir('evaluate', beir, *systems, '--measures', ','.join(measures), '--json', tmp_path / 'x.json')
        assert out.code == 0, out.err
        rows = json.loads((tmp_path / 'x.json').read_text())
        assert all(list(r) == FIELDS for r in rows)
        assert [(r['system'], r['measure']) for r in rows] == list(itertools.product(typed, measures))
        dense = next(r for r in rows if r['system'] == 'minilm')
        assert (dense['dtype'], dense['encoded_docs'], dense['cached_docs']) == ('float32', encoded, 12 - encoded)
        for r in rows:
            assert (r['task'], r['split'], r['n_queries']) == ('tiny', 'test', 3) and r['seconds'] >= 0
            ends = r['value'] if r['low'] is None else r['low'], r['value'] if r['high'] is None else r['high']
            assert 0 <= ends[0] <= r['value'] <= ends[1] <= 1 and 0 <= r['judged_at_10'] <= 1
    lines = out.out.partition('\n\nsettings that differ')[0].splitlines()
    assert len(lines) == 2 + 8 and '95 % interval' in lines[0] and '| rrf(bm25,bm25) ' in out.out


@pytest.fixture
def pairs(tmp_path):
    "The folder of a task of six sentence pairs."
    words = 'hip knee chest head back tooth'.split()
    rows = [{'sentence1': f'{w} pain', 'sentence2': 'knee pain', 'score': i % 3} for i, w in enumerate(words)]
    return write_lines(tmp_path / 'sts' / 'pairs.jsonl', rows).parent


def test_sentence_pairs_have_no_test_over_queries(pairs, fake_minilm):
    task = load_task(pairs)
    one, other = evaluate(task, 'minilm'), evaluate(task, 'minilm(max_document_tokens=2)')
    refuses(lambda: compare(one, other), 'no score a query')
    assert not len(compare_all([one, other])) and not len(against_baseline([(one, other)]))


@pytest.mark.medium
def test_json_holds_null_where_there_is_nothing(tmp_path, pairs, medir, fake_minilm):
    positives = write_beir(tmp_path / 'positives', qrels=[r for r in QRELS if r[2] > 0])
    out = medir('evaluate', positives, '--system', 'bm25', '--json', tmp_path / 'x.json')
    assert json.loads((tmp_path / 'x.json').read_text())[0]['judged_at_10'] is None and 'positives only' in out.out
    out = medir('evaluate', pairs, '--system', 'minilm', '--json', tmp_path / 'y.json')
    rows = json.loads((tmp_path / 'y.json').read_text())
    assert out.code == 0 and [r['measure'] for r in rows] == ['Spearman', 'Pearson']
    assert all(list(r) == FIELDS and r['judged_at_10'] is None and r['n_queries'] == 6 for r in rows)


def test_compare_prints_interval_p_wins_and_five_queries(beir, medir, tmp_path):
    words = 'asthma sepsis stroke gout scurvy rickets measles mumps'.split()
    documents = [(w, '', f'{w} is a disease') for w in words] + [('z', '', 'disease')]
    asked = [(f'q{i}', f'what is {w}') for i, w in enumerate(words)]
    folder = write_beir(tmp_path / 'eight', documents, asked, [(f'q{i}', w, 1) for i, w in enumerate(words)])
    write_lines(tmp_path / 'half.run', [f'q{i} Q0 {w if i < 3 else "z"} 1 1.0 t' for i, w in enumerate(words)])
    out = medir('compare', folder, 'bm25', tmp_path / 'half.run', '--measure', 'RR@5')
    head, known, cut, title, *shown = out.out.splitlines()
    queries, firsts = shown[::3], shown[1:]
    assert 'half.run: not known' in known and cut == 'cut at their limit: bm25 none'
    assert out.code == 0 and 'RR@5 -0.6250 [' in head and '0 wins, 5 losses, 3 ties' in head
    # 5 equal losses of 8: the sums of 2^8 flips that are as far out, counted by hand: 2 · 2^3
    assert f'p = {2 * 2**3 / 2**8:.4f}' in head
    assert len(queries) == 5 and all(f'{w}' in q and '1.000 → 0.000' in q for w, q in zip(words[3:], queries))
    # a case is read by its texts: what each side put first
    assert firsts[0].strip() == 'bm25: gout is a disease' and firsts[1].strip().endswith('half.run: disease')
    low, high = map(float, head.split('[')[1].split(']')[0].split(','))
    assert low < -0.625 < high <= 0
    five = [{'_id': f'{q}{i}', 'text': t, 'kind': 'ab'[q > 'q3']} for q, t in asked for i in range(5)]
    write_lines(folder / 'queries.jsonl', five)
    write_lines(folder / 'qrels' / 'test.tsv', [f'q{n}{i}\t{w}\t1' for n, w in enumerate(words) for i in range(5)])
    said = medir('evaluate', folder, '--system', 'bm25', '--by', 'kindd')
    assert said.code == 2 and "did you mean 'kind'" in said.err
    assert 'the worst of 2 groups is ' in medir('evaluate', folder, '--system', 'bm25', '--by', 'kind').out
    assert 'RR@5 gained' in medir('compare', folder, 'bm25', 'bm25(k1=0.1)', '--measure', 'RR@5', '--by', 'kind').out


def test_compare_with_groups_flips_whole_groups():
    qrels, good = frames(*([(f'q{i}', f'd{i}', value) for i in range(8)] for value in (1, 1.0)))
    documents, queries = pd.DataFrame({'id': [f'd{i}' for i in range(9)]}), pd.DataFrame({'id': qrels.query_id})
    groups = {f'q{i}': f't{i // 4}' for i in range(8)}
    task = task_from_frames(documents.assign(text='x'), queries.assign(text='y'), qrels, groups=groups)
    c = compare(score_run(task, good.assign(doc_id='d8'), ['RR']), score_run(task, good, ['RR']))
    assert (c.difference, c.n_groups, c.n_queries, c.wins, c.p) == (1.0, 2, 8, 8, 0.5)


def test_a_run_against_bare_qrels_without_a_task(tmp_path, beir, medir):
    done = medir('evaluate', beir, '--system', 'bm25', '--save-run', tmp_path / 'runs', '--json', tmp_path / 'a.json')
    file = next((tmp_path / 'runs').iterdir())
    out = medir('evaluate', '--run', file, '--qrels', beir / 'qrels' / 'test.tsv', '--json', tmp_path / 'b.json')
    assert done.code == out.code == 0 and '| nDCG@10' in out.out
    saved, again = (json.loads((tmp_path / f'{n}.json').read_text()) for n in 'ab')
    for x, y in zip(saved, again, strict=True):
        assert list(y) == FIELDS and y['system'] == str(file)
        assert all(x[f] == y[f] for f in ('measure', 'value', 'low', 'high', 'n_queries', 'judged_at_10'))
    # the saved run is the run: documents, scores, order
    pd.testing.assert_frame_equal(read_run(file), evaluate(str(beir), 'bm25').run, check_exact=True)


def test_gains_of_one_measure_do_not_reach_another():
    "ir_measures 0.4 changes the qrels it is given; in one call, plain nDCG came out with the strict gains."
    strict = 'nDCG(gains={1:0,2:1})@10'
    qrels, run = frames(
        [('a', 'x', 2), ('a', 'y', 1), ('b', 'z', 2)], [('a', 'x', 2.0), ('a', 'y', 3.0), ('b', 'z', 1.0)]
    )
    alone = {m: per_query(qrels, run, [m]).value.tolist() for m in ('nDCG@10', strict, 'R@1')}
    for order in (['nDCG@10', strict, 'R@1'], [strict, 'R@1', 'nDCG@10'], [strict, strict, 'nDCG@10']):
        together = per_query(qrels, run, order)
        for m in order:
            assert together[together.measure == m].value.tolist()[:2] == alone[m]
    assert np.isclose(alone[strict][0], 1 / np.log2(3)) and alone['nDCG@10'][0] > alone[strict][0]
    assert qrels.relevance.tolist() == [2, 1, 2]


def test_cases_show_what_changed_and_what_was_written(beir, home):
    texts = ('metoprolol after myocardial infarction', 'appendicitis', 'levothyroxine hormone', 'x')
    written = {f'q{i}': text for i, text in enumerate(texts, 1)}
    write_lines(home.parent / 'texts.jsonl', [{'id': q, 'rewrite': text} for q, text in written.items()])
    plain, more = (evaluate(str(beir), s, ['nDCG@10']) for s in ('bm25', f'bm25+hyde(file:{home.parent}/texts.jsonl)'))
    found = case_view([plain, more], 2)
    assert found.system.tolist() == [plain.label, more.label] * 2 and found.written[0] == '' != found.written[1]
    lost = found[found['query'] == 'first treatment of type 2 diabetes']
    assert lost['rank'].tolist()[0] == 1 and lost['rank'].isna().tolist() == [False, True]
    assert lost['relevant document'].iloc[0].startswith('Metformin')


@pytest.mark.medium
def test_bounds_of_an_order_by_hand():
    documents = [f'd{i:02d}' for i in range(20)]
    ranked = [('q', d, 1.0 - i / 100) for i, d in enumerate(documents)]
    qrels, run = frames([('q', 'd04', 2), ('q', 'd07', 1), ('q', 'd15', 1)], ranked)
    texts = pd.DataFrame({'id': documents, 'text': 'text'}), pd.DataFrame({'id': ['q'], 'text': ['text']})
    score = score_run(task_from_frames(*texts, qrels), run, ['nDCG@10', 'R@10', 'R@2'])
    found = order_bounds(score, 10, n=400)
    gain = lambda ranks: sum(g / np.log2(r + 1) for r, g in ranks)
    own, perfect, ideal = gain([(5, 2), (8, 1)]), gain([(1, 2), (2, 1)]), gain([(1, 2), (2, 1), (3, 1)])
    # the third lies below the depth
    assert found['nDCG@10'].tolist()[:2] == pytest.approx([own / ideal, perfect / ideal])
    random = 3 * np.mean([1 / np.log2(r + 1) for r in range(1, 11)]) / ideal
    assert found.loc['random', 'nDCG@10'] == pytest.approx(random, abs=0.03)
    assert found['R@10'].tolist() == pytest.approx([2 / 3] * 3)
    assert found['R@2'].tolist() == pytest.approx([0, 2 / 3, 2 / 3 * 0.2], abs=0.04)


def test_an_experiment_is_scores_tests_and_reasons(beir, tmp_path):
    systems = ['bm25', 'bm25(lucene)', 'no-such-model', 'bm25(k1=0.9)']
    run = experiment([str(beir)], systems, baseline='bm25(k1=1.5)', folder=tmp_path)
    assert [s.system for s in run.scores] == [systems[0], systems[1], systems[3]]
    assert run.missing().system.tolist() == ['no-such-model'] and 'no-such-model' in run._repr_html_()
    # the baseline in another spelling; Holm over the two rows
    assert run.tests.system.tolist() == ['bm25(lucene)', 'bm25(k1=0.9)'] and set(run.tests.baseline) == {'bm25'}
    assert np.allclose(run.tests.p_holm, holm(run.tests.p))
    assert {p.name for p in tmp_path.iterdir()} >= {'scores.csv', 'tests.csv', 'not_run.csv'}
    assert pd.read_csv(tmp_path / 'scores.csv').value.tolist() == [r['value'] for s in run.scores for r in s.rows()]


def test_a_value_stands_on_one_line_with_its_interval(beir):
    frame = score_frames.table_apart(experiment([str(beir)], ['bm25']).scores)
    values = frame.iloc[0, 3]
    assert f'<span style="white-space:nowrap">{values}</span>' in frame.drop(columns='split')._repr_html_()
    assert 'nowrap' not in to_markdown(frame) and values in to_markdown(frame)
    for text in ('.551 [.493, .606]', '−0.1 [−0.2, 0.0]', '+2.3 [+1.0, +3.1]'):
        assert (
            score_frames.keep_together(f'<td>{text} 6/8</td>')
            == f'<td><span style="white-space:nowrap">{text}</span> 6/8</td>'
        )
    assert score_frames.keep_together('<td>a [b, c] 0.5</td>') == '<td>a [b, c] 0.5</td>'


@pytest.mark.parametrize('effect, n, power', [(0.5, 34, 0.8077775), (0.2, 199, 0.8016930), (0.8, 15, 0.8213105)])
def test_the_formula_gives_the_textbooks_values(effect, n, power):
    "Those of G*Power 3.1: t test, two dependent means."
    assert paired_power(effect, 1.0, n) == pytest.approx(power, abs=5e-6) and queries_needed(effect, 1.0) == n


@pytest.mark.parametrize('seed', range(3))
def test_formula_and_simulation_agree(seed):
    with seeded(seed):
        rng = np.random.default_rng(seed)
        n = int(rng.integers(25, 80))
        # most queries do not change, as with nDCG
        observed = np.where(rng.random(400) < 0.5, 0, rng.normal(0, 0.35, 400))
        spread = difference_spread(observed)
        moved = observed - observed.mean() + smallest_difference(spread, n)
        draws = [rng.choice(moved, n) for _ in range(150)]
        simulated = np.mean([paired_p(draw, np.zeros(n), n=499) <= 0.05 for draw in draws])
        assert abs(simulated - 0.8) < 0.12  # 3.5 standard errors of 150 draws


@pytest.mark.parametrize('seed', range(5))
def test_smallest_difference_and_queries_needed_undo_each_other(seed):
    rng = np.random.default_rng(seed)
    n, spread = int(rng.integers(6, 3000)), float(rng.uniform(0.01, 0.6))
    difference = smallest_difference(spread, n)
    assert paired_power(difference, spread, n) == pytest.approx(0.8, abs=1e-6)
    assert queries_needed(difference * (1 + 1e-6), spread) == n
    assert smallest_difference(spread, n + 1) < difference < smallest_difference(2 * spread, n)


def test_few_pairs_no_spread_and_far_out_values_are_numbers():
    assert paired_power(1.0, 0.001, 5) == 0 and smallest_difference(0.001, 5) == float('inf')
    assert queries_needed(1.0, 0.001) == 6 and 'too few' in repr(Power(5, 0.2))
    assert paired_power(0.1, 0.0, 10) == 1.0 and smallest_difference(0.0, 10) == 0.0
    assert paired_power(1.0, 0.001, 5000) == 1.0 and np.isnan(difference_spread([0.1]))
    assert queries_needed(0.001, 0.3) > 100_000


def test_the_spread_of_groups_is_that_of_the_mean():
    rng = np.random.default_rng(2)
    group = np.unique(np.sort(rng.integers(0, 40, 200)), return_inverse=True)[1]
    effect = rng.normal(0, 0.3, 40)[group] + rng.normal(0, 0.1, 200)
    spread = difference_spread(effect, group)
    error = resampled_means(effect, group, n=4000).std()
    assert spread / np.sqrt(group.max() + 1) == pytest.approx(error, rel=0.1)
    assert spread > difference_spread(effect) * np.sqrt((group.max() + 1) / 200) * 1.5  # kin are no evidence


def two_runs(n, better, worse=0):
    "Scores of two systems on `n` queries: the second is right on `better` more, and wrong on `worse` others."
    qrels = pd.DataFrame([(f'q{i:03}', f'd{i:03}', 1) for i in range(n)], columns=['query_id', 'doc_id', 'relevance'])
    documents = pd.DataFrame({'id': [*qrels.doc_id, 'z'], 'text': 'a disease'})
    task = task_from_frames(documents, pd.DataFrame({'id': qrels.query_id, 'text': 'what is it'}), qrels)

    def score(right):
        found = [(q, d if right(i) else 'z', 1.0) for i, (q, d) in enumerate(zip(qrels.query_id, qrels.doc_id))]
        return score_run(task, pd.DataFrame(found, columns=RUN_COLUMNS), ['nDCG@10'])

    return score(lambda i: i >= better), score(lambda i: not better <= i < better + worse)


def test_compare_ends_in_words():
    shown, unsure, same = (compare(*two_runs(60, *case)) for case in ((20, 0), (5, 4), (0, 0)))
    first = lambda comparison: repr(comparison).splitlines()[0]
    assert first(shown).endswith('40 ties; a difference is shown')
    needed, (before, _, words) = queries_needed(0.03, unsure.spread) - 60, first(unsure).rpartition('; ')
    assert before.endswith('no difference shown') and words.startswith('about ')
    assert needed <= int(words.split()[1].replace(',', '')) < 1.1 * needed
    assert 'more queries would show one of 0.03' in words
    unknown = 'none of these 60 queries tells the two apart, so what they would show is unknown'
    assert first(same).endswith(f'no difference shown; {unknown}')


def test_equal_scores_have_no_interval_and_a_table_prints_them():
    assert all(np.isnan(interval(np.full(n, value))).all() for n in (3, 14, 15, 40) for value in (0.5, 0))
    low, high = interval(np.arange(40) / 40)
    assert low < 39 / 80 < high
    for n in (4, 20):
        ids = [f'q{i}' for i in range(n)]
        texts = pd.DataFrame({'id': ids, 'text': [f'word{i}' for i in range(n)]})
        task = task_from_frames(texts, texts, pd.DataFrame({'query_id': ids, 'doc_id': ids, 'relevance': 1}))
        scores = [evaluate(task, system, keep_self=True) for system in ('bm25', 'bm25(k1=0.9)', 'bm25(b=0.4)')]
        assert np.isnan(scores[0].rows()[0]['low'])
        table = compare_all(scores)
        assert table.low.isna().all() and (table.difference == 0).all()
        assert score_frames.tests_table(table).difference.tolist() == ['+0.000'] * 3
        assert ' +0.0000, p = 1.0000' in str(compare(*scores[:2]))
        assert gain_counts(table.assign(task='t')).open.tolist() == [3]


def test_two_kinds_of_passages_are_a_setting_that_differs():
    tasks = [load_task('hpo-lay', passages=passages) for passages in ('tokens=20', 'tokens=20,cuts=anywhere')]
    said = str(compare(*(evaluate(task, 'bm25') for task in tasks)))
    assert 'passages: tokens=20 (bm25 1) | tokens=20,cuts=anywhere (bm25 2)' in said
