"BM25 as Lucene does it, the default that keeps single characters, and what an index is keyed by."

import csv
import hashlib
import importlib.metadata
import json
import os
import random
import re
import shutil
import subprocess
import unicodedata
from array import array
from collections import Counter
from pathlib import Path
import bm25s
import numpy as np
import pandas as pd
import pytest
import Stemmer
from medir_nb.core import MedirError
from medir_nb.data import load_task
from medir_nb.data.corpus import write_table
from medir_nb.data.task import task_from_frames
from medir_nb.evaluator import evaluate
from medir_nb.evaluator.scores import score_run
from medir_nb.retrieval import (
    analyze,
    analyzers,
    BM25,
    build_index,
    Index,
    lucene_stem,
    lucene_tokens,
    parse,
    preset_settings,
    read_run,
    search,
    write_run,
)
from medir_nb.retrieval.bm25 import numbered_tokens
from medir_nb.retrieval.lucene import Field, byte_lengths, falling_scores
from medir_nb.retrieval.runs import run_frame
from medir_nb.retrieval.sparse_stage import bm25_settings
from medir_nb.study import export_system
from medir_nb.workbook.cell_tables import cell_table

ROOT = Path(__file__).parents[1]


def corpus(texts, ids=None, titles=None):
    ids, titles = ids or [f'd{i}' for i in range(len(texts))], titles or [''] * len(texts)
    return write_table([(i, title, text, i) for i, title, text in zip(ids, titles, texts, strict=True)], None)


# --- tokens ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    'text, tokens',
    [
        ("Crohn's disease", 'Crohn disease'),
        ('IL-6 of 7.1 pg/ml; 1,000 U', 'IL 6 of 7.1 pg ml 1,000 U'),
        ('U.S. and e.g. this', 'U.S and e.g this'),
        ('7. mg, 5:3, a:b', '7 mg 5 3 a:b'),
        ('anti_body _x_ _ vitamin__D', 'anti_body _x_ vitamin__D'),
        ('日本 ひら カナ ハﾛー', '日 本 ひ ら カナ ハﾛー'),
        ('한국어 ไทย', '한국어 ไทย'),
        ('☆ ★ ☢ 🩺 👍🏽 🇩🇪 👨‍👩‍👧 5㎎', '★ ☢ 🩺 👍🏽 🇩🇪 👨‍👩‍👧 5'),
        ('naïve e\u0301tude \u00adx', 'naïve e\u0301tude x'),
        ('K+ ° µg ½', 'K µg'),
    ],
)
def test_words_are_cut_as_unicode_says(text, tokens):
    assert [' '.join(lucene_tokens([text], stem=str)[0])] == [tokens.lower()]


def test_long_tokens_are_cut_at_255():
    assert [len(token) for token in lucene_tokens(['x' * 255 + 'y' * 300 + ' z'], stem=str)[0]] == [255, 255, 45, 1]
    assert [len(token) for token in lucene_tokens(['é' * 256], stem=str)[0]] == [255, 1]


@pytest.mark.parametrize(
    'words, stems',
    [
        ('as is ties dies', 'as is ti di'),
        ('cardiology virologies biology epidemiologie logy', 'cardiolog virolog biologi epidemiologi logi'),
        ('possibly nobly sensibly ably', 'possibl nobli sensibl abli'),
        ('generously infections relational', 'gener infect relat'),
    ],
)
def test_stems_are_those_of_lucenes_class(words, stems):
    assert ' '.join(map(lucene_stem, words.split())) == stems


def test_lower_case_is_that_of_each_character():
    assert lucene_tokens(['ΣΙΣ İx'], stem=str) == [['σισ', 'ix']]


# --- scores ----------------------------------------------------------------------------------------------------------


def small_float(i):
    "Lucene's SmallFloat, there and back."
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


WORDS = 'aspirin fever cough insulin heart liver kidney renal pain acute chronic statin'.split()


@pytest.mark.parametrize('preset', ['lucene', 'multifield'])
@pytest.mark.parametrize('seed', range(3))
def test_scores_and_order_are_lucenes(preset, seed, tmp_path):
    rng = random.Random(seed)
    some = [(' '.join(rng.choices(WORDS, k=rng.randint(0, n))) for n in (4, 60)) for _ in range(70)]
    titles, texts = map(list, zip(*some, strict=True))
    ids = rng.sample([f'{i:03d}' for i in range(500)], 70)
    asked = [' '.join(rng.choices(WORDS, k=rng.randint(1, 7))) for _ in range(9)]
    index = BM25(corpus(texts, ids, titles), **preset_settings(preset), home_folder=tmp_path)
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
    run = BM25(corpus(texts, ids), **preset_settings('lucene'), home_folder=tmp_path).search(corpus(['pain'], ['q']), 4)
    assert run.doc_id.tolist() == ['00', '01', '02', '03'] and run.score.is_unique
    assert read_run(write_run(run, tmp_path / 'a.run')).doc_id.tolist() == run.doc_id.tolist()
    same = np.full(2**12, np.float32(1.5))
    fallen = falling_scores(same)
    assert (np.diff(fallen) < 0).all() and (fallen.astype(np.float32) == same).all()


def test_titles_and_texts_are_counted_apart(tmp_path):
    task = task_from_frames(
        pd.DataFrame(
            [('a', '', 'gout flare'), ('b', 'gout', 'flare'), *((f'c{i}', 'asthma', 'cough') for i in range(8))],
            columns=['id', 'title', 'text'],
        ),
        pd.DataFrame({'id': ['q'], 'text': ['gout']}),
        pd.DataFrame({'query_id': ['q'], 'doc_id': ['b'], 'relevance': [1]}),
    )
    flat, apart = (search(s, task, home_folder=tmp_path).run for s in ('bm25(lucene)', 'bm25(multifield)'))
    assert flat.doc_id.tolist() == ['a', 'b'] and apart.doc_id.tolist() == ['b', 'a']


@pytest.mark.parametrize(
    'system',
    ['bm25(lucene,query=bm25)', 'bm25(fields=apart)', 'bm25(multifield,scorer=bm25s)', 'bm25(gensim,scorer=lucene)'],
)
def test_settings_that_do_not_go_together_are_refused(system):
    with pytest.raises(MedirError, match='do not go together; query=count goes with scorer=lucene'):
        parse(system)


# --- published figures -----------------------------------------------------------------------------------------------

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
    assert (*means, hash_of_lists(search(system, load_task(task), k=1000).run)) == ANSERINI[task, system]


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


# --- the default -----------------------------------------------------------------------------------------------------

PAIRS = {
    'hepatitis B': ('Treatment of hepatitis B', 'Treatment of hepatitis C'),
    'IL-6 in sepsis': ('IL-6 in sepsis', 'IL-1 in sepsis'),
    'type 1 diabetes': ('type 1 diabetes in children', 'type 2 diabetes in children'),
    'K+ low': ('a low K+ was found', 'a low I− was found'),
}


def test_a_single_character_can_be_the_question(tmp_path):
    "P@1 is 4 of 4, and 0 where single characters are dropped: of two that tie the wrong one has the later id."
    for question, (right, wrong) in PAIRS.items():
        texts, asked = corpus([right, wrong], ['a', 'b']), corpus([question], ['q'])
        first = {
            preset: BM25(texts, **preset_settings(preset), home_folder=tmp_path).search(asked).doc_id[0]
            for preset in ('', 'lucene', 'bm25s')
        }
        assert first == {'': 'a', 'lucene': 'a', 'bm25s': 'b'}, question


def run_of_words(task, pattern):
    "The run of bm25s over the words that a pattern finds."
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
    single = [
        query
        for query, text in texts.items()
        if not re.search(r"['’]s\b", text) and set(re.findall(r'\b\w\b', text.lower())) - {'a'}
    ]
    assert len(single) == 9
    means = [score.values('nDCG@10')[single].mean() for score in scores]
    assert [round(mean, 3) for mean in means] == [0.298, 0.416, 0.298, 0.422]


def test_numbers_stay_whole():
    assert analyze(['HbA1c of 7.5 %, 1,000 U']) == [['hba1c', '7.5', '1,000', 'u']]


# --- Chinese ---------------------------------------------------------------------------------------------------------


def test_width_is_folded_and_no_more(tmp_path):
    [tokens] = analyze(['ＨｂＡ１ｃ为７．５％，５㎎，３７℃，１，０００Ｕ，m²'], 'grams')
    assert {'hba1c', '7.5', '㎎', '℃', '1,000', 'u', '为', 'm²'} <= set(tokens) and 'mg' not in tokens
    index = BM25(corpus(['糖化血红蛋白HbA1c升高', '血压升高']), **preset_settings('', 'zh'), home_folder=tmp_path)
    assert index.search(corpus(['ＨｂＡ１ｃ'], ['q'])).doc_id.tolist() == ['d0']
    assert analyze(['ＨｂＡ１ｃ 7.5'], 'grams_plain')[0] == ['ｈｂａ１ｃ', '7', '5']


def test_every_width_is_folded():
    for code in range(0xFF01, 0xFFEF):
        decomposed = unicodedata.decomposition(chr(code)).split()
        if decomposed and decomposed[0] in ('<wide>', '<narrow>'):
            assert analyzers.folded_width(chr(code)) == chr(int(decomposed[1], 16))


def test_the_published_baseline_is_itself_in_chinese():
    task = load_task('zh-lay')
    settings = {s: bm25_settings(parse(s), task)['analyzer'] for s in ('bm25', 'bm25(bm25s)', 'bm25(lucene)')}
    assert settings == {'bm25': 'grams', 'bm25(bm25s)': 'grams_plain', 'bm25(lucene)': 'grams'}
    assert evaluate(task, 'bm25(bm25s)', ['nDCG@10']).mean('nDCG@10') == pytest.approx(0.41006, abs=5e-6)


# --- the index -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('package', ['PyStemmer', 'jieba', 'regex', 'bm25s'])
def test_an_index_is_keyed_by_what_makes_its_tokens(package, tmp_path, monkeypatch):
    texts, version = corpus(['aspirin for pain', 'insulin']), importlib.metadata.version
    assert not BM25(texts, home_folder=tmp_path).cached and BM25(texts, home_folder=tmp_path).cached
    monkeypatch.setattr(importlib.metadata, 'version', lambda name: '0' if name == package else version(name))
    analyzers.analyzer_key.cache_clear()
    try:
        assert not BM25(texts, home_folder=tmp_path).cached
    finally:
        monkeypatch.undo()
        analyzers.analyzer_key.cache_clear()


def test_an_index_is_keyed_by_the_code_of_the_analyzers(tmp_path, monkeypatch):
    before = analyzers.analyzer_key()
    for name in ('lucene_analyzer.py', 'analyzers.py'):
        shutil.copy(Path(analyzers.__file__).with_name(name), tmp_path)
    with open(tmp_path / 'lucene_analyzer.py', 'a', encoding='utf-8') as f:
        f.write('# another pattern\n')
    monkeypatch.setattr(analyzers, '__file__', str(tmp_path / 'analyzers.py'))
    analyzers.analyzer_key.cache_clear()
    try:
        assert analyzers.analyzer_key() != before
    finally:
        analyzers.analyzer_key.cache_clear()


def test_tokens_are_held_as_numbers():
    numbers, words = numbered_tokens(corpus(['fever and fever', '', 'cough fever']), 'words', 'en')
    assert all(isinstance(of_text, array) and of_text.itemsize == 4 for of_text in numbers)
    assert list(map(list, numbers)) == [[0, 0], [], [1, 0]] and words == {'fever': 0, 'cough': 1}


@pytest.mark.parametrize('system', ['bm25(lucene)', 'bm25(multifield)'])
def test_a_served_index_answers_as_lucene_does(system, home, tmp_path):
    rng = random.Random(3)
    frame = pd.DataFrame(
        [(f'd{i:02d}', *(' '.join(rng.choices(WORDS[:5], k=rng.randint(0, n))) for n in (2, 5))) for i in range(50)],
        columns=['id', 'title', 'text'],
    )
    build_index(frame, system, tmp_path / 'index', home_folder=home)
    asked = ['aspirin fever', 'cough cough heart']
    ours = Index(tmp_path / 'index', home).search(asked, 7)
    theirs = search(system, frame, asked, k=7, home_folder=home).run
    pd.testing.assert_frame_equal(ours[theirs.columns].reset_index(drop=True), theirs)


def test_the_fields_of_a_twin_are_exported(beir, home, tmp_path):
    export_system(str(beir), tmp_path / 'out', 'bm25(multifield)', home_folder=home)
    manifest = json.loads((tmp_path / 'out' / 'manifest.json').read_text())
    folder = tmp_path / 'out' / manifest['parts'][0]['files'][0]
    text, task = Field.load(folder / 'text'), load_task(str(beir), home_folder=home)
    assert sorted(path.name for path in folder.iterdir()) == ['text', 'title'] and text.n_docs == len(task.corpus)
    [words] = analyze([task.corpus.rows(0, 1)[0][1]], 'lucene')
    assert len(words) and all((text.scores([word]) > 0)[0] for word in words)


# --- Anserini itself -------------------------------------------------------------------------------------------------

TRICKY = [
    "Crohn's disease, IL-6 of 7.1 pg/ml and K+; e.g. vitamin_D possibly",
    'cardiology biologies epidemiologie nobly ably generously ΣΙΣ İx',
    '日本 ひら カナ 한국어 ไทย ☆ ★ 👍🏽 🇩🇪 naïve ½ µg ㎎',
]


@pytest.mark.slow
def test_lists_are_those_of_anserini(tmp_path):
    "$ANSERINI_JAR is the jar of Anserini 0.22.1, which pyserini 0.22.1 carries."
    jar = os.environ.get('ANSERINI_JAR', '')
    if not shutil.which('java') or not Path(jar).is_file():
        pytest.skip('needs Java and $ANSERINI_JAR')
    rng, source = random.Random(5), tmp_path / 'in'
    words = [*WORDS, *(word for text in TRICKY for word in text.split())]
    rows = [
        {
            '_id': f'd{i:03d}',
            **{n: ' '.join(rng.choices(words, k=rng.randint(1, m))) for n, m in (('title', 6), ('text', 80))},
        }
        for i in range(300)
    ]
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
        run = BM25(texts, **preset_settings(preset), home_folder=tmp_path / 'home').search(queries, 1000)
        assert run.groupby('query_id').doc_id.agg(list).to_dict() == theirs
