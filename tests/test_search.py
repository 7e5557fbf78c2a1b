"""Search against brute force and against formulas written down again, fusion by hand, run files that round-trip."""

import collections, math
import numpy as np, pandas as pd, pytest
from conftest import DOCUMENTS
from medir_nb.core import MedirError
from medir_nb.data import Corpus, task_from_frames
from medir_nb.encoder import Vectors, array_vectors
from medir_nb.retrieval import analyze, BM25, dense_search, read_run, rrf, RUN_COLUMNS, search, sort_run, write_run


def as_lists(run):
    return {q: list(zip(g.doc_id, g.score)) for q, g in run.groupby('query_id', sort=False)}


def corpus(texts, ids=None):
    import pyarrow as pa

    ids = ids or [f'd{i}' for i in range(len(texts))]
    return Corpus(
        pa.table(
            {
                'id': pa.array(ids, pa.large_string()),
                'title': pa.array([''] * len(texts), pa.large_string()),
                'body': pa.array(texts, pa.large_string()),
            }
        )
    )


# --- dense -----------------------------------------------------------------------------------------------------------


def brute_force(queries, documents, query_ids, doc_ids, k, similarity):
    "Every score in float64; equal scores by descending id."
    out = {}
    for q, x in zip(query_ids, queries.astype(float)):
        d = documents.astype(float)
        s = d @ x
        if similarity == 'cos':
            s = s / (np.linalg.norm(d, axis=1) * np.linalg.norm(x))
        # ids first, then a stable sort by score
        ranked = sorted(sorted(zip(doc_ids, s), key=lambda t: t[0], reverse=True), key=lambda t: -round(t[1], 9))
        out[q] = ranked[:k]
    return out


@pytest.mark.parametrize('seed', range(4))
@pytest.mark.parametrize('similarity', ['dot', 'cos'])
@pytest.mark.parametrize('block', [1, 7, None])
def test_dense_equals_brute_force_with_ties(seed, similarity, block):
    "Small whole numbers, so that many dot products are equal exactly; rows of one norm keep cosines exact too."
    rng = np.random.default_rng(seed)
    n, k = int(rng.integers(30, 90)), int(rng.integers(1, 25))
    documents = (
        rng.choice([-1, 1], (n, 4)).astype(np.float32)
        if similarity == 'cos'
        else rng.integers(-2, 3, (n, 5)).astype(np.float32)
    )
    queries = rng.choice([-1, 1], (6, documents.shape[1])).astype(np.float32)
    doc_ids = [f'x/{i}' for i in rng.permutation(n)]
    run = dense_search(
        queries, array_vectors(documents), [f'q{i}' for i in range(6)], doc_ids, k, similarity, 'cpu', block
    )
    expected = brute_force(queries, documents, [f'q{i}' for i in range(6)], doc_ids, k, similarity)
    got = as_lists(run)
    assert len({s for _, s in expected['q0']}) < k or k < 6
    assert {q: [d for d, _ in v] for q, v in got.items()} == {q: [d for d, _ in v] for q, v in expected.items()}
    assert all(abs(a[1] - b[1]) < 1e-6 for q in got for a, b in zip(got[q], expected[q]))


@pytest.mark.parametrize('similarity', ['dot', 'cos'])
def test_dense_on_real_numbers(similarity):
    rng = np.random.default_rng(5)
    documents, queries = rng.normal(size=(500, 24)).astype(np.float32), rng.normal(size=(9, 24)).astype(np.float32)
    ids, qids = [f'{i:03d}' for i in range(500)], list('abcdefghi')
    expected = brute_force(queries, documents, qids, ids, 20, similarity)
    for block in (1, 7, 64, None):
        got = as_lists(dense_search(queries, array_vectors(documents), qids, ids, 20, similarity, 'cpu', block))
        assert all([d for d, _ in got[q]] == [d for d, _ in expected[q]] for q in qids)
        assert np.allclose(
            [[s for _, s in got[q]] for q in qids], [[s for _, s in expected[q]] for q in qids], atol=1e-5
        )


def test_all_documents_equal():
    "The widest tie there is: the k largest ids win, in every block size."
    ids = [f'{i:03d}' for i in range(100)]
    for block in (1, 7, None):
        run = dense_search(np.ones((1, 3)), array_vectors(np.ones((100, 3))), ['q'], ids, 5, 'cos', 'cpu', block)
        assert run.doc_id.tolist() == ids[:-6:-1]


def test_k_beyond_the_corpus_and_empty_sides():
    run = dense_search(np.eye(2), array_vectors(np.eye(2)), ['a', 'b'], ['x', 'y'], 50, 'dot', 'cpu')
    assert as_lists(run) == {'a': [('x', 1.0), ('y', 0.0)], 'b': [('y', 1.0), ('x', 0.0)]}
    assert list(dense_search(np.empty((0, 2)), array_vectors(np.eye(2)), [], ['x', 'y'], 5).columns) == RUN_COLUMNS
    assert len(dense_search(np.eye(2), Vectors([], np.empty(0, int)), ['a', 'b'], [], 5)) == 0
    with pytest.raises(MedirError, match="did you mean 'cos'"):
        dense_search(np.eye(2), array_vectors(np.eye(2)), ['a', 'b'], ['x', 'y'], 5, 'cosine')


def test_zero_vector_has_cosine_zero():
    run = dense_search(
        np.array([[1, 0]]),
        array_vectors(np.array([[0, 0], [-1, 0], [2, 0]])),
        ['q'],
        ['zero', 'against', 'along'],
        3,
        'cos',
        'cpu',
    )
    assert as_lists(run)['q'] == [('along', 1.0), ('zero', 0.0), ('against', -1.0)]


@pytest.mark.parametrize('seed', range(3))
def test_vectors_gather_rows_over_blocks(seed):
    rng = np.random.default_rng(seed)
    whole = rng.normal(size=(40, 3)).astype(np.float32)
    cuts = np.sort(rng.choice(range(1, 40), 4, replace=False))
    rows = np.concatenate([rng.permutation(40)[:25], np.arange(10, 22)])
    gathered = Vectors(np.split(whole, cuts), rows)
    for _ in range(20):
        i, j = sorted(rng.integers(0, len(rows) + 1, 2))
        assert np.array_equal(gathered.chunk(i, j), whole[rows[i:j]])


def frames(order):
    documents = [DOCUMENTS[i] for i in order]
    return task_from_frames(
        pd.DataFrame(documents, columns=['id', 'title', 'text']),
        pd.DataFrame({'id': ['a', 'b'], 'text': ['heart attack drugs', 'insulin for type 2 diabetes']}),
        pd.DataFrame({'query_id': ['a', 'b'], 'doc_id': ['d01', 'd04'], 'relevance': [1, 1]}),
        allow_unknown_qrels=True,
    )


@pytest.mark.parametrize('system', ['bm25', 'minilm', 'rrf(bm25,minilm)'])
def test_order_of_the_corpus_and_of_the_store_changes_nothing(system, fake_minilm, tmp_path):
    "Stores filled in different orders, and a store filled by another corpus first, give the same run."
    order = list(np.random.default_rng(1).permutation(len(DOCUMENTS)))
    runs = [
        search(system, frames(o), 10, home_folder=tmp_path / h).run
        for o, h in (
            (range(12), 'one'),
            (order, 'two'),
            ([0, 3, *order[:5]], 'three'),
            (range(12), 'three'),
            (order, 'one'),
        )
    ]
    runs.pop(2)
    for run in runs[1:]:
        pd.testing.assert_frame_equal(run, runs[0])


# --- BM25 ------------------------------------------------------------------------------------------------------------


def lucene(query, documents, k1, b):
    "Lucene's BM25 (without the constant k1 + 1), for each document; a query word counts as often as it stands there."
    n, average = len(documents), sum(map(len, documents)) / len(documents)
    df, out = collections.Counter(t for d in documents for t in set(d)), []
    for d in documents:
        tf = collections.Counter(d)
        out.append(
            sum(
                math.log(1 + (n - df[t] + 0.5) / (df[t] + 0.5)) * tf[t] / (tf[t] + k1 * (1 - b + b * len(d) / average))
                for t in query
                if tf[t]
            )
        )
    return out


WORDS = 'aspirin fever cough insulin heart liver kidney renal pain acute chronic statin cancer lung asthma migraine stroke sepsis virus vaccine'.split()


@pytest.mark.parametrize(
    'seed,k1,b,analyzer',
    [(0, 1.5, 0.75, 'english'), (1, 0.9, 0.4, 'porter'), (2, 2.0, 0.0, 'english'), (3, 1.2, 1.0, 'english')],
)
def test_bm25_is_lucenes(seed, k1, b, analyzer, tmp_path):
    rng = np.random.default_rng(seed)
    texts = [' '.join(rng.choice(WORDS, int(rng.integers(1, 30)))) for _ in range(60)] + ['']
    questions = [' '.join(rng.choice(WORDS, int(rng.integers(1, 5)))) for _ in range(8)] + [
        'heart heart attack',
        'unheard words',
    ]
    documents = analyze(texts, analyzer)
    run = as_lists(
        BM25(corpus(texts), k1, b, analyzer, home_folder=tmp_path).search(
            corpus(questions, [f'q{i}' for i in range(10)]), 100
        )
    )
    for i, tokens in enumerate(analyze(questions, analyzer)):
        expected = {f'd{j}': s for j, s in enumerate(lucene(tokens, documents, k1, b)) if s > 0}
        found = dict(run.get(f'q{i}', []))
        assert found.keys() == expected.keys()
        assert all(found[d] == pytest.approx(expected[d], rel=1e-6) for d in expected)
    assert 'q8' in run and 'q9' not in run


def query_side(query, documents, k1, b):
    "Scores of the documents by gensim's LuceneBM25Model on both sides: a dot product of two weighted bags of words."
    n, average = len(documents), sum(map(len, documents)) / len(documents)
    df = collections.Counter(t for d in documents for t in set(d))

    def weights(words):
        tf = collections.Counter(t for t in words if df[t])
        return {
            t: (math.log(n + 1) - math.log(df[t] + 0.5)) * f / (f + k1 * (1 - b + b * sum(tf.values()) / average))
            for t, f in tf.items()
        }

    q = weights(query)
    return [sum(w * q.get(t, 0) for t, w in weights(d).items()) for d in documents]


@pytest.mark.parametrize('seed,k1,b', [(0, 0.9, 0.4), (1, 1.5, 0.75), (2, 0.0, 1.0)])
def test_bm25_on_both_sides_is_gensims(seed, k1, b, tmp_path):
    rng = np.random.default_rng(seed)
    texts = [' '.join(rng.choice(WORDS, int(rng.integers(1, 30)))) for _ in range(90)] + ['']
    questions = [' '.join(rng.choice(WORDS, int(rng.integers(1, 60)))) for _ in range(70)] + [
        'heart heart heart attack',
        'unheard words',
    ]
    documents, index = (
        analyze(texts, 'lucene'),
        BM25(corpus(texts), k1, b, 'lucene', query='bm25', home_folder=tmp_path),
    )
    asked = corpus(questions, [f'q{i}' for i in range(72)])
    run = as_lists(index.search(asked, 100))
    pairs = pd.DataFrame([(q, d) for q in ('q0', 'q71') for d in ('d0', 'd1', 'd90')], columns=['query_id', 'doc_id'])
    scored = index.score(asked, pairs).set_index(['query_id', 'doc_id']).score
    for i, tokens in enumerate(analyze(questions, 'lucene')):
        expected = {f'd{j}': s for j, s in enumerate(query_side(tokens, documents, k1, b)) if s > 0}
        found = dict(run.get(f'q{i}', []))
        assert found.keys() == expected.keys() and all(
            found[d] == pytest.approx(expected[d], rel=1e-6) for d in expected
        )
        if i == 0:
            assert all(scored['q0', d] == pytest.approx(expected.get(d, 0.0), rel=1e-6) for d in ('d0', 'd1', 'd90'))
    assert (scored['q71'] == 0).all() and 'q71' not in run


@pytest.mark.parametrize(
    'text, tokens',
    [
        ("Crohn's disease", 'crohn diseas'),
        ('Vitamin B 12, type 2', 'vitamin b 12 type 2'),
        ('IL-6 of 7.1 pg/ml; 1,000 U', 'il 6 7.1 pg ml 1,000 u'),
        ('U.S. and e.g. this', 'u. e.g'),
        ("don't", "don't"),
        ('patients’ patient’s', 'patient patient'),
        ('well-known anti_body', 'well known anti_bodi'),
        ('', ''),
        ('T. cells.', 't cell'),
        ('The AND with', ''),
    ],
)
def test_lucenes_tokens_and_those_that_come_near(text, tokens):
    assert analyze([text], 'lucene') == analyze([text], 'lucene_like') == [tokens.split()]


def test_bm25_cuts_ties_by_descending_id(tmp_path):
    texts = ['aspirin for pain'] * 60 + ['aspirin'] + ['fever']
    ids = [f'{i:02d}' for i in range(62)]
    index = BM25(corpus(texts, ids), home_folder=tmp_path)
    assert index.search(corpus(['aspirin pain'], ['q']), 4).doc_id.tolist() == ['59', '58', '57', '56']
    assert index.search(corpus(['aspirin'], ['q']), 3).doc_id.tolist() == ['60', '59', '58']


def test_bm25_of_empty_texts(tmp_path):
    assert len(BM25(corpus(['', ' ']), home_folder=tmp_path).search(corpus(['fever'], ['q']), 5)) == 0


def test_bm25_index_is_kept_per_setting(tmp_path):
    texts = corpus(['aspirin for pain', 'insulin'])
    assert not BM25(texts, home_folder=tmp_path).cached and BM25(texts, home_folder=tmp_path).cached
    assert (
        not BM25(texts, k1=0.9, home_folder=tmp_path).cached
        and not BM25(corpus(['aspirin for pain', 'insulins']), home_folder=tmp_path).cached
    )


def test_english_tokens():
    assert analyze(['The infections of THE lungs'])[0] == ['infect', 'lung']
    assert analyze(['type 2, IL-6'], 'english')[0] == ['type', 'il']
    assert analyze(['The lungs'], stopwords='none')[0] == ['the', 'lung']
    assert analyze(['generously'], 'porter') != analyze(['generously'], 'english')


@pytest.mark.parametrize('analyzer', ['jieba', 'bigram', 'char'])
def test_chinese_analyzers_drop_punctuation(analyzer):
    tokens = analyze(['糖尿病(2型)患者,能吃阿司匹林吗?——“可以”。HbA1c<7%!', '。,、;'], analyzer)
    assert tokens[1] == [] and all(any(c.isalnum() for c in t) for t in tokens[0]) and 'hba1c' in tokens[0]
    # nothing but punctuation is lost
    assert set(filter(str.isalnum, ''.join(tokens[0]))) == {c.lower() for c in '糖尿病2型患者能吃阿司匹林吗可以HbA1c7'}


def test_chinese_grams_by_hand():
    assert analyze(['高血压,药 A型'], 'bigram') == [['高血', '血压', '药', 'a', '型']]
    assert analyze(['高血压'], 'char') == [['高', '血', '压']]
    with pytest.raises(MedirError, match="did you mean 'jieba'"):
        analyze(['x'], 'jeiba')


# --- fusion and run files --------------------------------------------------------------------------------------------


def run_of(rows):
    return pd.DataFrame(rows, columns=RUN_COLUMNS)


def test_rrf_by_hand():
    one = run_of([('q', 'a', 9.0), ('q', 'b', 8.0), ('q', 'c', 7.0), ('p', 'a', 1.0)])
    two = run_of([('q', 'c', 0.3), ('q', 'a', 0.2), ('q', 'd', 0.2)])  # a and d are tied: d ranks second
    got = as_lists(rrf([one, two]))
    assert [d for d, _ in got['q']] == ['c', 'a', 'd', 'b']
    assert dict(got['q']) == pytest.approx(
        {'a': 1 / 61 + 1 / 63, 'c': 1 / 63 + 1 / 61, 'd': 1 / 62, 'b': 1 / 62}, abs=1e-15
    ) and got['p'] == [('a', 1 / 61)]
    assert [d for d, _ in as_lists(rrf([one, two], k=2))['q']] == ['c', 'a']
    pd.testing.assert_frame_equal(rrf([one]).drop(columns='score'), sort_run(one).drop(columns='score'))


@pytest.mark.parametrize('seed', range(5))
def test_sort_run_is_trec_evals_order(seed):
    rng = np.random.default_rng(seed)
    rows = [(q, d, float(rng.integers(0, 4))) for q in ('b', 'a') for d in rng.permutation([f'{i}' for i in range(12)])]
    expected = [
        r
        for q in ('b', 'a')
        for r in sorted(sorted((r for r in rows if r[0] == q), key=lambda r: r[1], reverse=True), key=lambda r: -r[2])
    ]
    assert list(sort_run(run_of(rows)).itertuples(index=False, name=None)) == expected


@pytest.mark.parametrize('seed', range(3))
def test_run_files_keep_every_bit(tmp_path, seed):
    rng = np.random.default_rng(seed)
    awkward = [
        0.1,
        1 / 3,
        1e-300,
        -1e300,
        5e-324,
        0.1 + 0.2,
        np.nextafter(1, 2),
        float(np.float32(0.7)),
        -0.0,
        123456789.12345679,
        *rng.normal(size=40) * 10.0 ** rng.integers(-30, 30, 40),
    ]
    ids = [f'文献{i}/a.b:c#é' for i in range(len(awkward))]
    run = sort_run(run_of([(q, d, s) for q in ('q/1', '问') for d, s in zip(ids, awkward)]))
    write_run(run, tmp_path / 'deep' / 'x.run', 'my tag')
    again = read_run(tmp_path / 'deep' / 'x.run')
    pd.testing.assert_frame_equal(again, run, check_exact=True)
    lines = (tmp_path / 'deep' / 'x.run').read_text(encoding='utf-8').splitlines()
    assert [l.split()[3] for l in lines] == [str(i) for _ in range(2) for i in range(1, len(ids) + 1)] and lines[
        0
    ].endswith(' mytag')


def test_run_file_written_by_others(tmp_path):
    "Tabs, CRLF, ranks that contradict the scores: the scores count, as in trec_eval."
    (tmp_path / 'x.run').write_bytes(b'q1\tQ0\tb\t1\t0.5\tt\r\nq1\tQ0\ta\t2\t7e-1\tt\r\n\r\nq0 Q0 a 1 3 t\r\n')
    assert list(read_run(tmp_path / 'x.run').itertuples(index=False, name=None)) == [
        ('q1', 'a', 0.7),
        ('q1', 'b', 0.5),
        ('q0', 'a', 3.0),
    ]


def test_an_id_with_white_space_is_refused_and_nothing_is_written(tmp_path):
    with pytest.raises(MedirError, match="'d 1' holds white space"):
        write_run(run_of([('q', 'd 1', 1.0)]), tmp_path / 'x.run')
    assert not list(tmp_path.iterdir())
