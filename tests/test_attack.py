"""Attacks on all rooms: hundreds of changed inputs, of which each gives a right result or one line, and over a hundred
SIGKILLs: the same line goes on to the result of an undisturbed run, computes nothing twice, leaves nothing behind."""

import collections, contextlib, csv, functools, io, itertools, json, os, random, shutil, signal, subprocess, sys
import tempfile, time, types, zipfile
from pathlib import Path
import numpy as np, pandas as pd, pytest
from conftest import DOCUMENTS, MOVED, QRELS, QUERIES, TASK_ROW, Fake, chat_answer, code_cell
from conftest import write_beir, write_lines, write_notebook
from medir_nb import core, data, encoder, evaluator, generator, retrieval, trainer, workbook
from medir_nb.core import MedirError, file_fingerprint, find_root, read_json, registry
from medir_nb.judging.sheets import read_sheet
from medir_nb.study.reading import write_documents
from tiny_models import as_sentence_transformer, make_model

LONGEST = 1500  # characters of a line that somebody still reads
# values that no field expects, as Python has them; DEEP and DIGITS stand for text that JSON's own reader refuses
DEEP, DIGITS = '<<deep>>', '<<digits>>'
NESTED, MANY_DIGITS = '[' * 100_000 + ']' * 100_000, '9' * 5000
ODD = [None, True, 0, -1, 1.5, float('nan'), float('inf'), 10**30, '', 'x', 'a\0b', '../x', 'é' * 400]
ODD += [[], [1], ['x', None], {}, {'x': 1}, [[['x']]], DEEP, DIGITS]


def as_json(value) -> str:
    "JSON text of a value in which an odd one may stand for what Python cannot write."
    text = json.dumps(value, ensure_ascii=False)
    return text.replace(f'"{DEEP}"', NESTED).replace(f'"{DIGITS}"', MANY_DIGITS)


def places(value, at=()) -> list:
    "The paths of all values inside `value`."
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(place for key, part in inside for place in places(part, (*at, key)))]


def changed(value, rng):
    "A copy of a JSON value with one of its parts odd, lost or added."
    value = json.loads(json.dumps(value))
    *above, last = rng.choice([place for place in places(value) if place] or [(None,)])
    if last is None:
        return rng.choice(ODD)
    parent = value
    for key in above:
        parent = parent[key]
    how = rng.random()
    if how < 0.2:
        del parent[last]
    elif how < 0.3 and isinstance(parent, list):
        parent.append(rng.choice(ODD))
    else:
        parent[last] = rng.choice(ODD)
    return value


def damaged(raw: bytes, rng) -> bytes:
    "A copy of a file's bytes, cut, flipped, blown up or in another encoding."
    at = rng.randrange(len(raw) + 1)
    head, tail = raw[:at], raw[at:]
    put_in = [b'\xff\xfe', b'\0', 'é'.encode('latin1'), NESTED.encode(), MANY_DIGITS.encode()]
    put_in.append(bytes([raw[at % len(raw)] ^ 0x55]))
    made = [head, tail, *(head + odd + tail for odd in put_in), raw + raw, b'', b'\n\n', b'\xef\xbb\xbf' + raw]
    made += [raw.replace(b'\n', b'\r\n'), raw.replace(b'"', b"'"), raw.decode('utf-8', 'replace').encode('utf-16')]
    return rng.choice(made)


def changed_text(value, rng, share=0.7):
    "JSON of a value as bytes, changed in a field or damaged as a text."
    if rng.random() < share:
        return as_json(changed(value, rng)).encode('utf-8', 'surrogatepass')
    return damaged(as_json(value).encode(), rng)


def changed_lines(rows, rng, share=0.6):
    "JSON lines of rows as bytes, one of them changed, or damaged as a text."
    rows = [dict(row) for row in rows]
    if rng.random() >= share:
        return damaged(''.join(f'{as_json(row)}\n' for row in rows).encode(), rng)
    i = rng.randrange(len(rows))
    rows[i] = changed(rows[i], rng)
    return ''.join(f'{as_json(row)}\n' for row in rows).encode('utf-8', 'surrogatepass')


def written(path, raw):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(raw)
    return path


def outcome(call, where) -> str:
    "What came of a call: `right`, or the one line that it was refused with."
    try:
        call()
    except MedirError as e:
        said = str(e)
        assert said.strip() and '\n' not in said and len(said) < LONGEST, f'{where}: {said[:300]!r}'
        return said
    except Exception as e:
        raise AssertionError(f'{where}: {type(e).__name__}: {str(e)[:300]}') from e
    return 'right'


WITHOUT_POS = {'neg': ['no answer'], 'rewrite_query': 'a text'}
TRAINING = [{'query': f'what is {title}', 'pos': [text], **WITHOUT_POS} for _, title, text in DOCUMENTS[:4]]
MINED = [{'id': i, 'text': t, 'doc': d, 'query': t, 'pos': [d], **WITHOUT_POS} for i, t, d in DOCUMENTS[:4]]
CONFIG = dict(task='contrastive', model='minilm', data='pairs.jsonl', output='own', batch_size=2, negatives=1)
CONFIG |= dict(learning_rate=1e-3, max_steps=1, precision='fp32', instruction=None)
SFT = dict(task='sft', model='smollm2', data='x.jsonl', output='own', method='hyde', held_out=0.1)
SFT |= {'lora': {'r': 4, 'targets': ['q_proj']}}
RUNS = [{'notebook': 'toy', 'preset': 'smoke', 'parameters': {'n': 3}}]
BATCH = {'workers': 1, 'runs': [*RUNS, {'notebook': 'toy', 'after': [0], 'parameters': {'tasks': ['x']}}]}
RECORD = dict(kind='encoder', task='contrastive', base='minilm', revision='abc', base_hub='x', config={}, steps=1)
RECORD |= dict(loss=0.5, seconds=1.0, counts={}, spec={'max_query_tokens': 8, 'max_document_tokens': 8, 'label': 'own'})
RECEIPT = dict(notebook='toy', preset=None, key='k', parts={}, output='/nowhere/toy.ipynb', output_fingerprint='x')
RECEIPT |= dict(files={'a.md': 'y'}, finished='2026-01-01T00:00:00', seconds=1.0)
RECEIPT |= dict(cassettes={'/nowhere/a.jsonl': [3, 'x']}, revisions={'model a/b': {'commit': 'c', 'resolved': 'd'}})
RECEIPT |= dict(not_run=[{'system': 'bm25', 'task': 'x', 'why': 'y', 'measurable': True}])
EXAMPLES = {'en': {'plain': {'pairs': [{'text': 'a text', 'query': 'a question'}]}}}
OPTIONS = dict(concurrency=2, timeout=5, budget=1000, base_url='http://127.0.0.1:9/v1', extra={'a': 1}, attempts=1)
OPTIONS |= dict(pause=0, backend='openai', served_as='x')
TAPE = [{'key': key, 'text': key, 'finish': 'stop', 'usage': {'prompt': 1, 'answer': 2}} for key in ('a', 'b')]
GENERATIONS = [{'id': query, 'rewrite_query': f'about {text}'} for query, text in QUERIES]
BEIR = {
    'corpus.jsonl': [{'_id': i, 'title': title, 'text': text} for i, title, text in DOCUMENTS],
    'queries.jsonl': [{'_id': i, 'text': text} for i, text in QUERIES],
    'qrels.jsonl': [{'q_id': query, 'p_id': doc, 'score': grade} for query, doc, grade in QRELS],
    'pairs.jsonl': [{'sentence1': 'a', 'sentence2': 'b', 'score': score} for score in (0, 1, 2.5)],
}


def task_files(name):
    "A task with the file `name` changed, searched by BM25."

    def make(home, rng):
        folder = write_beir(home / 'task')
        if name == 'candidates.tsv':
            write_lines(folder / name, ['q1\td01', 'q1\td02', 'q2\td03'])
        rows = BEIR.get(name)
        raw = changed_lines(rows, rng) if rows else damaged((folder / name).read_bytes(), rng)
        written(folder / name, raw)
        if name == 'qrels.jsonl':
            shutil.rmtree(folder / 'qrels')
        if name == 'pairs.jsonl':
            (folder / 'corpus.jsonl').unlink()
            return lambda: data.load_task(str(folder))
        return lambda: retrieval.search(data.load_task(str(folder)), 'bm25')

    return make


def run_file(home, rng):
    lines = b'q1 Q0 d02 1 3.5 t\nq1 Q0 d01 2 2.5 t\nq2 Q0 d03 1 1.5 t\n'
    folder, run = write_beir(home / 'task'), written(home / 'x.run', damaged(lines, rng))
    return lambda: evaluator.score_run(data.load_task(str(folder)), retrieval.read_run(run), None, 'x')


def packed(home, rng):
    folder = write_beir(home / 'task')
    kind = rng.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
    with zipfile.ZipFile(home / 'task.zip', 'w', kind) as archive:
        for file in sorted(path for path in folder.rglob('*') if path.is_file()):
            archive.write(file, file.relative_to(folder))
    raw = bytearray((home / 'task.zip').read_bytes())
    for _ in range(rng.choice([1, 8])):
        raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
    (home / 'task.zip').write_bytes(bytes(raw[: rng.choice([None, None, rng.randrange(len(raw))])]))
    return lambda: data.load_task(str(home / 'task.zip'))


PARAMETERS = "tasks: list[str] = ['hpo-lay']\nn: int = 1"
TITLE = {'cell_type': 'markdown', 'metadata': {}, 'source': ['# A\n', 'title']}


def a_workbook(home, source=PARAMETERS):
    root = home / 'book'
    write_lines(root / 'settings.ini', ['[DEFAULT]'])
    write_notebook(root / 'nbs' / 'toy.ipynb', TITLE, code_cell(source, ['parameters']), code_cell('n * 2'))
    write_lines(root / 'params' / 'toy' / 'smoke.yaml', ['n: 2'])
    os.environ['MEDIR_ROOT'] = str(root)
    return root


def read_parameters():
    found = workbook.find_notebook('toy')
    workbook.receipt_key(found, workbook.resolve_parameters(found, 'smoke'))


def notebook(home, rng):
    path = a_workbook(home) / 'nbs/toy.ipynb'
    written(path, changed_text(read_json(path), rng))
    return read_parameters


def preset(home, rng):
    written(a_workbook(home) / 'params/toy/smoke.yaml', changed_text({'n': 2, 'tasks': ['a']}, rng))
    return read_parameters


def batch_file(home, rng):
    path = written(a_workbook(home) / 'params/batches/all.yaml', changed_text(BATCH, rng))
    return lambda: workbook.read_batch(path)


def own_row(home, rng, name, copied='', **fields):
    "A registry of one's own with a changed row, or a changed copy of a row of the package."
    row = {key: value for key, value in registry(name).get(copied, {}).items() if value is not None}
    written(home / f'registry/{name}.yaml', changed_text({'mine': {**row, **fields}}, rng))
    os.environ['MEDIR_REGISTRY'] = str(home / 'registry')
    core.registry.cache_clear()


def model_row(home, rng):
    task = data.load_task(str(write_beir(home / 'task')))
    own_row(home, rng, 'models', 'e5-small-v2', hub='own/missing', revision='1' * 40)

    def read():
        retrieval.parse('mine')
        encoder.Encoder('mine').render([('a', 'b')], 'query', 'c')
        encoder.check_encoder(encoder.encoder_spec('mine'))
        retrieval.pending('mine', task)

    return read


def llm_row(home, rng):
    own_row(home, rng, 'llms', 'smollm2', languages=['en'])
    mine = lambda: generator.LLM('mine')
    return lambda: (mine().sampling(), retrieval.parse('bm25+hyde(mine)'), mine().missing([generator.Request('p')]))


def reranker_row(home, rng):
    own_row(home, rng, 'rerankers', next(iter(registry('rerankers'))))
    return lambda: (retrieval.parse('bm25>mine@10'), retrieval.reranker_spec('mine').key)


def task_row(home, rng):
    write_beir(home / 'data' / 'F')
    os.environ['MEDIR_DATA'] = str(home / 'data')
    own_row(home, rng, 'tasks', **TASK_ROW, queries=4, documents=12, qrels=9)
    return lambda: data.load_task('mine')


EXPRESSIONS = ['minilm', 'bm25(k1=0.9,b=0.4)', 'rrf(bm25,minilm)', 'bm25+hyde(smollm2,n=2)']
EXPRESSIONS += ['minilm(max_query_tokens=32)+hyde(smollm2@authors)', 'bm25>bge-reranker-v2-m3@10']
EXPRESSIONS += ['bm25+lamer(smollm2,k=5)', 'minilm(dtype=bf16,pooling=cls)']
PIECES = [*'(),=+>@²٣\0 \n/~%\'"é\ud800', 'rrf', 'nan', 'inf', '1e400', '9' * 400, '-1', '{text', '{}', '{x}', '..']
PIECES += ['x' * 5000, '(((((' * 2000, 'rrf(' * 3000, 'true', 'None', '0x1', '1_0']


def expression(home, rng):
    text = rng.choice(EXPRESSIONS)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(text) + 1)
        text = text[:at] + rng.choice(PIECES) + text[at + rng.choice([0, 0, 1, 4]) :]
    return lambda: str(retrieval.parse(text))


class Letters:
    name, revision = 'letters', '1'

    def encode(self, texts):
        return np.array([[1 + text.count(letter) for letter in 'abcde'] for text in texts], np.float32)


def vector_store(home, rng):
    "The head of a block of a vector store, damaged (its numbers carry no sum of theirs); its texts are encoded again."
    task = data.load_task(str(write_beir(home / 'task')))
    read = lambda: encoder.encode_corpus(encoder.Encoder(Letters()), task.corpus, 'document').chunk()
    whole = np.array(read())
    (block,) = (home / 'home').rglob('block-*.safetensors')
    raw = block.read_bytes()
    n = int.from_bytes(raw[:8], 'little')
    if rng.random() < 0.6:
        head = as_json(changed(json.loads(raw[8 : 8 + n]), rng)).encode('utf-8', 'surrogatepass')
        head = len(head).to_bytes(8, 'little') + head
    else:
        head = damaged(raw[: 8 + n], rng)
    block.write_bytes(head + raw[8 + n :])
    return lambda: np.testing.assert_array_equal(read(), whole)


def table_store(home, rng):
    folder = write_beir(home / 'task')
    data.load_task(str(folder))
    for file in (home / 'home' / 'corpora').glob('*'):
        if file.suffix in ('.arrow', '.json') and rng.random() < 0.7:
            file.write_bytes(damaged(file.read_bytes()[:400], rng))
    return lambda: np.testing.assert_equal(len(data.load_task(str(folder)).corpus), 12)


def bm25_store(home, rng):
    task = data.load_task(str(write_beir(home / 'task')))
    whole = retrieval.search(task, 'bm25').run
    for file in (home / 'home' / 'bm25').rglob('*.json'):
        if rng.random() < 0.5:
            file.write_bytes(damaged(file.read_bytes(), rng))

    def again():
        outcome(lambda: retrieval.search(task, 'bm25'), 'bm25')
        assert retrieval.search(task, 'bm25').run.equals(whole)  # it is rebuilt

    return again


def cassette(home, rng):
    file = written(home / 't.jsonl', changed_lines(TAPE, rng))

    def read():
        tape = generator.Cassette(file)
        tape.find(['a', 'b'])
        tape.append({'c': generator.Generation('z', 'stop', 1, 1, 0)})
        assert generator.Cassette(file).find(['c'])['c'].text == 'z'

    return read


def generations(home, rng):
    file, task = written(home / 'g.jsonl', changed_lines(GENERATIONS, rng)), data.load_task(write_beir(home / 'task'))
    return lambda: retrieval.search(task, f'bm25+hyde(file:{file})')


def training_pairs(home, rng):
    file = written(home / 'pairs.jsonl', changed_lines(TRAINING, rng, 0.7))
    return lambda: [pairs.draw(i, 1) for pairs in [trainer.Pairs(file, 2)] for i in range(len(pairs))]


MINING = {'select': {'retriever': 'bm25'}, 'hard_negatives': {'retriever': 'bm25', 'n': 2, 'window': [0, 3]}}
MINING |= {'round_trip': {'retriever': 'bm25', 'k': 2}, 'shuffle_pairs': {}, 'load_documents': {}}


def mined(home, rng):
    step = rng.choice(list(MINING))
    parameters = dict(MINING[step])
    if rng.random() < 0.3:
        plain = [value for value in ODD if value not in (DEEP, DIGITS)]
        parameters[rng.choice([*parameters, 'seed', 'limit', 'depth'])] = rng.choice(plain)
    rows = [{'id': row['id'], 'doc': row['doc']} for row in MINED] if step == 'load_documents' else MINED
    file = written(home / 'pairs.jsonl', changed_lines(rows, rng, 0.7))
    return lambda: trainer.mine(step, str(file), home / 'out.jsonl', **parameters)


def changed_file(place, value, read):
    "A maker of a changed JSON or YAML file, of which `read(file)` is called."
    return lambda home, rng: functools.partial(read, written(home / place, changed_text(value, rng)))


def read_record(_):
    for kind, read in (('encoder', encoder.encoder_spec), ('llm', generator.llm_spec)):
        outcome(lambda: read('own'), kind)
    workbook.keys.checkpoint_mark('own')


read_receipt = lambda _: (workbook.receipts(), workbook.valid_receipt('k'), workbook.status())
read_examples = lambda file: trainer.synthetic.example_blocks('en', file=str(file))


def options(home, rng):
    told = changed_text(OPTIONS, rng, 0.8).decode('utf-8', 'replace')
    os.environ['MEDIR_LLM_OPTIONS'] = told.replace('\0', '')[:100_000]
    model = lambda: generator.LLM('smollm2')
    return lambda: model().backend if model().backend_name == 'openai' else None  # no weights are loaded for this


PUBMED = """<?xml version="1.0" encoding="utf-8"?>
<!DOCTYPE PubmedArticleSet PUBLIC "-//NLM//DTD PubMedArticle, 1st January 2025//EN" "https://dtd.nlm.nih.gov/x.dtd">
<PubmedArticleSet>%s<DeleteCitation><PMID Version="1">3</PMID></DeleteCitation></PubmedArticleSet>"""
CITATION = (
    '<PubmedArticle><MedlineCitation><PMID Version="%d">%d</PMID>'
    '<Article><ArticleTitle>Beta<sub>2</sub> &amp; %s\n</ArticleTitle>'
    '<Abstract><AbstractText Label="AIM">10<sup>-3</sup> g &lt; 2</AbstractText><AbstractText>é</AbstractText>\n'
    '</Abstract></Article></MedlineCitation></PubmedArticle>'
)
JATS = (
    '<article xmlns:mml="http://www.w3.org/1998/Math/MathML"><front><article-meta>'
    '<article-id pub-id-type="pmc">7</article-id>\n<title-group><article-title>Gout</article-title></title-group>'
    '<abstract><p>10<sup>9</sup>/L</p></abstract></article-meta>\n</front>'
    '<body><sec><title>Aim</title><p>Uric acid.</p><table-wrap><td>1</td></table-wrap></sec></body></article>'
)
MARKUP = '<sup> </sup> <p> </PMID> &nbsp; &#0; &x; <![CDATA[ ]]> <!-- <?xml?> é \0'.split() + ['<a>' * 9999]


def damaged_markup(text, rng):
    "A copy of an XML text with a piece of markup put in, or damaged as bytes."
    at = rng.randrange(len(text))
    return (text[:at] + rng.choice(MARKUP) + text[at:]).encode() if rng.random() < 0.6 else damaged(text.encode(), rng)


def raw_documents(home, rng):
    "A folder of text, JSON lines, PubMed and JATS with one file changed, read as a study and as an index read it."
    folder = home / 'documents'
    whole = PUBMED % ''.join(CITATION % (version, number, 'x') for version, number in ((1, 1), (2, 1), (1, 2), (1, 3)))
    files = {'note.txt': DOCUMENTS[0][2], 'a/b.md': '# Gout', 'new.jsonl': '', 'set.xml': whole, 'full.nxml': JATS}
    chosen = rng.choice(list(files))
    for name, text in files.items():
        raw = (
            changed_lines(BEIR['corpus.jsonl'][:3], rng if name == chosen else random.Random(0))
            if name == 'new.jsonl'
            else text.encode()
        )
        if name == chosen and text:
            raw = damaged_markup(text, rng) if name.endswith('ml') else damaged(raw, rng)
        written(folder / name, raw)

    def read():
        met = write_documents(folder, home / 'corpus.jsonl')
        assert met.files == 5 and met.kept >= 3
        for lost in met.unreadable[:1]:
            raise MedirError(lost['why'], lost['file'], lost['fix'])
        list(data.read_documents(folder))

    return read


def saved_encoder(home, rng):
    "A folder that sentence-transformers wrote, one of its JSON files changed: what is read gives its vectors."
    from sentence_transformers import SentenceTransformer

    folder = home / 'encoder'
    shutil.copytree(tiny_encoder(), folder)
    names = ('modules', 'config_sentence_transformers', '1_Pooling/config', 'sentence_bert_config', 'config')
    name = rng.choice([f'{name}.json' for name in names if (folder / f'{name}.json').is_file()])
    written(folder / name, changed_text(read_json(folder / name), rng, 0.8))

    def read():
        own = encoder.Encoder(str(folder)).encode(['statins lower cholesterol'], 'document').vectors
        try:
            theirs = SentenceTransformer(str(folder), device='cpu').encode(['statins lower cholesterol'])
        except Exception:
            return  # what the library refuses has no vectors to be compared with
        assert np.allclose(own, theirs, atol=1e-5), (name, (folder / name).read_text()[:500])

    return read


@functools.cache
def tiny_encoder():
    base = Path(tempfile.mkdtemp(prefix='medir-tiny-'))
    return as_sentence_transformer(make_model('bert', base / 'bert'), str(base / 'encoder'), pooling='mean')


DIALECTS = [{'delimiter': ';'}, {'delimiter': '\t'}, {'quoting': csv.QUOTE_ALL}, {'lineterminator': '\r\n'}]
DIALECTS += [{'quotechar': "'"}, {'quoting': csv.QUOTE_NONE, 'escapechar': '\\'}]


def sheet(home, rng):
    "A sheet of grades in some dialect of CSV, as spreadsheets save it, damaged half of the time."
    text = io.StringIO()
    lines = csv.writer(text, **rng.choice(DIALECTS))
    lines.writerow(rng.sample(['pair', 'query', 'text', 'grade', 'comment', 'grade'], 5))
    lines.writerows(
        [f'p{i}', 'what; is "gout"?', 'a\nb', rng.choice(['0', '1', '２', '', 'x', '1.0']), '=1+1'] for i in range(4)
    )
    raw = text.getvalue().encode(rng.choice(['utf-8', 'utf-8-sig', 'utf-16', 'latin1']), 'replace')
    file = written(home / 'sheet.csv', raw if rng.random() < 0.5 else damaged(raw, rng))
    return lambda: read_sheet(file, [f'p{i}' for i in range(4)])


# maker (home folder of the case, rng) → what is called, and how many cases a full run has of it
TASK_FILES = ('corpus.jsonl', 'queries.jsonl', 'qrels.jsonl', 'qrels/test.tsv', 'candidates.tsv', 'pairs.jsonl')
CHANGED = {f'task {name}': (16, task_files(name)) for name in TASK_FILES}
COUNTS = {run_file: 14, packed: 20, notebook: 24, preset: 20, batch_file: 24, model_row: 30, llm_row: 24}
COUNTS |= {reranker_row: 16, task_row: 24, training_pairs: 24, mined: 40}
COUNTS |= {generations: 16, cassette: 20, expression: 60, options: 24}
COUNTS |= {vector_store: 24, table_store: 10, bm25_store: 10, raw_documents: 60, saved_encoder: 40, sheet: 40}
for told in (CONFIG, SFT):
    CHANGED[f'configuration {told["task"]}'] = 15, changed_file('c.yaml', told, trainer.training_config)
CHANGED['examples'] = 12, changed_file('e.yaml', EXAMPLES, read_examples)
CHANGED['training_record'] = 20, changed_file('home/checkpoints/own/medir.json', RECORD, read_record)
CHANGED['receipt'] = 30, changed_file('home/receipts/toy-1.json', RECEIPT, read_receipt)
CHANGED |= {make.__name__: (count, make) for make, count in COUNTS.items()}
# what is made again, or left out, where it is damaged
MENDED = ('receipt', 'cassette', 'table_store', 'vector_store', 'bm25_store', 'training_record')

SET_BY_CASES = 'ROOT DATA REGISTRY LLM_URL EMBEDDING_URL LLM_OPTIONS LLM_KEY EMBEDDING_KEY LLM_BACKEND'.split()


@pytest.fixture
def case_home(tmp_path, monkeypatch, home):
    "`case_home()` → a folder of the next case, with a home folder in it; the environment is put back at the end."
    for name in SET_BY_CASES:
        monkeypatch.setenv(f'MEDIR_{name}', '')
    folders = map(tmp_path.joinpath, map(str, itertools.count()))

    def make():
        (made := next(folders)).mkdir()
        for name in SET_BY_CASES:
            os.environ.pop(f'MEDIR_{name}', None)
        os.environ['MEDIR_HOME'] = str(made / 'home')
        core.registry.cache_clear()
        generator.models.loaded_llm.cache_clear()
        return made

    return make


HOW_MANY = [pytest.param(0.2, id='some'), pytest.param(1, id='all', marks=pytest.mark.slow)]


@pytest.mark.parametrize('share', HOW_MANY)
@pytest.mark.parametrize('name', CHANGED)
def test_malformed_inputs_are_one_line(name, share, case_home):
    count, make = CHANGED[name]
    found = []
    for i in range(max(1, int(count * share))):
        rng, folder = random.Random(f'{name} {i} {MOVED}'), case_home()
        found.append(outcome(make(folder, rng), f'{name} {i}'))
        shutil.rmtree(folder, ignore_errors=True)
    # an attack after which all is right attacked nothing
    assert share < 1 or name in MENDED or any(said != 'right' for said in found), found


SOURCES = ['n: int = (', 'n: int = 1\0', 'n: int = ' + '(' * 500 + '1' + ')' * 500, 'n: int = ' + '-' * 100_000 + '1']
SOURCES += ['n: int = ' + '1+' * 50_000 + '1', 'n: int = 9' + MANY_DIGITS, 'n: Literal["a\\ud800"] = "b"', '']
GIVEN_SOURCES = """
n: list[int, str] = []; n: dict[str] = {}; x.y: int = 1; x[0]: int = 1; _n: int = 1; model_config: int = 1; n: int
n: int = {[]: 1}; n: int = {1, [2]}; n: Literal[()] = 1; n: Literal[[1]] = 1; n: Optional = None; n: "int" = 1
n: list[list[list[int]]] = [[[1]]]; def f(): pass; n: None = None; n: list[None] = []; schema: str = "x"
n: int|str|None = 2; é: int = 1; n: int = f"{1}"
"""
SOURCES += GIVEN_SOURCES.strip().replace('\n', '; ').split('; ')
GIVEN_VALUES = r"""
[   {   &a [1]   *a   !!python/object:os.system x   !!bool x   !!int x   !!timestamp x   2021-99-99   {[a]: 1}   - -
: :   |   >   %   @x   `   "\x   !!float x   !!binary é   <<: x   !!set {a, b}   !!omap [1]   1:2:3   0o9   ~
.inf   .nan   '   "
"""
VALUES = GIVEN_VALUES.strip().replace('\n', '   ').split('   ')
VALUES += [MANY_DIGITS, '"\ud800', '\x07', '? [a]\n: 1', '\t', '[' * 20_000, '{a: ' * 5000]
ADDRESSES = ['', 'x', 'localhost:8000/v1', 'http://', 'https://:80', 'ftp://host/x', 'http://host:99999999']
ADDRESSES += ['http://host:x/', 'http://[::1', 'http://a b/c', 'http://host\n/x', 'http://ho\tst', 'http://é']
ADDRESSES += ['http://' + 'x' * 400, 'http://[zz]/', '//host', 'http:host', 'http://%zz', 'file:///etc/passwd']
ADDRESSES += ['http://host/\x00', '\u202e://x', 'http://xn--\u0378']
KEYS = ['schlüssel-0123456789', 'abc\ndef-0123456789', 'abc\x7fdef', 'ключ', '\u200babcdefgh', 'abc\tdef']


def parameters_cell(home, source):
    a_workbook(home, source)
    return lambda: workbook.resolve_parameters(workbook.find_notebook('toy'))


yaml_file = lambda home, value: written(home / 'v.yaml', f'x: {value}\n'.encode('utf-8', 'surrogatepass'))


def ask_llm():
    generator.LLM('smollm2', backend='openai', attempts=1, timeout=1, pause=0).generate([generator.Request('p')])


def variable(kind, name):
    "A maker that sets a variable of servers to a text."
    ask_service = lambda: encoder.ServiceBackend(encoder.encoder_spec('voyage-3'), 'query')

    def make(home, text):
        os.environ['MEDIR_LLM_URL'] = os.environ['MEDIR_EMBEDDING_URL'] = 'http://127.0.0.1:9/v1'
        os.environ[f'MEDIR_{kind}_{name}'] = text.replace('\0', '')
        return ask_llm if kind == 'LLM' else ask_service

    return make


GIVEN = {
    'cell': (parameters_cell, SOURCES),
    'option': (lambda home, value: lambda: core.parse_options([f'x={value}']), VALUES),
    'YAML file': (lambda home, value: functools.partial(core.read_yaml, yaml_file(home, value)), VALUES),
}
for kind in ('LLM', 'EMBEDDING'):
    GIVEN |= {f'{kind} URL': (variable(kind, 'URL'), ADDRESSES), f'{kind} KEY': (variable(kind, 'KEY'), KEYS)}


@pytest.mark.parametrize('kind', GIVEN)
def test_given_oddities_are_one_line(kind, case_home):
    make, odd = GIVEN[kind]
    found = [outcome(make(case_home(), value), f'{kind} {value[:50]!r}') for value in odd]
    assert any(said != 'right' for said in found)


VECTORS = [{'index': 0, 'embedding': [0.1, 0.2, 0.3]}, {'index': 1, 'embedding': [0.4, 0.5, 0.6]}]
CALL = {'function': {'name': 'search', 'arguments': '{}'}}
MESSAGE = {'content': 'an answer about statins', 'reasoning_content': 'x', 'tool_calls': [CALL]}
USED = {'prompt_tokens': 4, 'completion_tokens': 5}
CHAT = {'choices': [{'message': MESSAGE, 'finish_reason': 'stop'}], 'usage': USED}


def embed_two():
    texts = [{'id': 'a', 'text': 'x'}, {'id': 'b', 'text': 'y'}]
    task = data.task_from_frames(texts, texts, [{'query_id': 'a', 'doc_id': 'a', 'relevance': 1}])
    encoder.encode_corpus(encoder.Encoder('voyage-3'), task.corpus, 'document')


ANSWERS = {
    'embeddings': ({'data': VECTORS, 'usage': {'total_tokens': 4}}, embed_two),
    'chat': (CHAT, lambda: generator.LLM('smollm2', backend='openai').generate([generator.Request('p')])),
}


@pytest.mark.parametrize('share', HOW_MANY)
@pytest.mark.parametrize('kind', ANSWERS)
def test_answers_of_servers_are_read_or_refused(kind, share, case_home, monkeypatch):
    "Every server answers changed bytes, without a connection."
    import httpx

    (body, ask), found = ANSWERS[kind], []
    monkeypatch.setattr(core.Server.__init__, '__defaults__', ('', '', '', 300, 2, 0.0, 0.0))
    for i in range(int(60 * share)):
        case_home()
        os.environ['MEDIR_EMBEDDING_URL'] = os.environ['MEDIR_LLM_URL'] = 'http://127.0.0.1:9/v1'
        raw = changed_text(body, random.Random(f'{kind} {i} {MOVED}'), 0.8)
        answer = lambda: types.SimpleNamespace(status_code=200, headers=httpx.Headers(), iter_raw=lambda: iter([raw]))
        monkeypatch.setattr(httpx.Client, 'stream', lambda *_, **__: contextlib.nullcontext(answer()))
        encoder.model._recent.clear()
        found.append(outcome(ask, f'{kind} {i}'))
    assert any(said != 'right' for said in found)
    encoder.model._recent.clear()


COMMANDS = 'evaluate compare plan run mine contract'.split()
FLAGS = '--limit --home --system --measures -p --dtype --lang x 0 -1 nDCG@ é = -- --json /nowhere/x/y'.split()


@pytest.mark.parametrize('share', [pytest.param(6, id='some'), pytest.param(60, id='all', marks=pytest.mark.slow)])
def test_commands_of_any_words_end_in_one_line(share, case_home, medir):
    codes = []
    for i in range(share):
        rng, _ = random.Random(f'line {i} {MOVED}'), case_home()
        words = [rng.choice(COMMANDS), *rng.choices([*COMMANDS, *FLAGS, ''], k=rng.randint(0, 4))]
        ran = medir(*words)
        said = [line for line in ran.err.splitlines() if line.strip()]
        assert 'Traceback' not in ran.out + ran.err and ran.code in (0, 2), words
        assert 'was not foreseen' not in ran.err, words
        if ran.code and not ran.out.startswith('Usage'):
            assert said[-1].startswith('medir: error: ') and len(said[-1]) < LONGEST, words
            assert all(line.startswith('medir: ') for line in said), words
        codes.append(ran.code)
    assert 2 in codes


def as_trec_files_are(lines, rng) -> str:
    "Lines of TREC with the separators and ends that trec_eval does not mind."
    space, end = rng.choice([' ', '\t', '   ', ' \t ']), rng.choice(['\n', '\r\n'])
    text = end.join(space.join(line.split()) + rng.choice(['', '', ' ', '\t']) for line in lines)
    return text + rng.choice(['', end])


def by_query(frame, value):
    return {q: dict(zip(rows.doc_id, rows[value])) for q, rows in frame.groupby('query_id')}


@pytest.mark.parametrize('seed', range(12))
def test_runs_and_qrels_are_read_as_pytrec_eval_reads_them(seed, tmp_path):
    pytrec_eval = pytest.importorskip('pytrec_eval')
    rng = random.Random(f'peer {seed} {MOVED}')
    pairs = [(f'q{i}', f'D-{j}') for i in range(3) for j in rng.sample(range(9), 5)]
    files = {
        'qrels': [f'{q} {rng.choice(["0", "Q0"])} {d} {rng.choice([0, 1, 2, -1])}' for q, d in pairs] + ['q9 0 x 1'],
        'run': [f'{q} Q0 {d} {i} {rng.choice(["1.5", "-2", "3e-2", "7"])} tag' for i, (q, d) in enumerate(pairs)],
    }
    paths = {name: written(tmp_path / name, as_trec_files_are(lines, rng).encode()) for name, lines in files.items()}
    with open(paths['qrels']) as theirs:
        assert by_query(data.readers.read_qrels(paths['qrels']), 'relevance') == pytrec_eval.parse_qrel(theirs)
    with open(paths['run']) as theirs:
        assert by_query(retrieval.read_run(paths['run']), 'score') == pytrec_eval.parse_run(theirs)


def test_an_id_may_hold_what_is_no_space_to_trec_eval(tmp_path):
    run = pd.DataFrame([('q\xa01', 'D\u20031\x1c', 1.5)], columns=retrieval.RUN_COLUMNS)
    assert retrieval.read_run(retrieval.write_run(run, tmp_path / 'run')).equals(run)
    judged = data.readers.read_qrels(written(tmp_path / 'qrels', 'q\xa01 0 D\u20031\x1c 2\n'.encode()))
    assert by_query(judged, 'relevance') == {'q\xa01': {'D\u20031\x1c': 2}}


@pytest.mark.parametrize('dialect', [*({'sep': sep} for sep in ',;\t|'), *DIALECTS[2:4]])
@pytest.mark.parametrize('encoding', ['utf-8', 'utf-8-sig', 'utf-16'])
def test_a_sheet_is_read_as_pandas_wrote_it_or_refused(dialect, encoding, tmp_path):
    texts = ['a, b; c', 'a "quoted" word', 'two\nlines', '', 'é 中']
    sheet = pd.DataFrame({'pair': list('abcde'), 'text': texts, 'grade': list('01201'), 'comment': texts})
    sheet.to_csv(tmp_path / 'sheet.csv', index=False, encoding=encoding, **dialect)
    try:
        found = read_sheet(tmp_path / 'sheet.csv', list('abcde'))
    except MedirError as refused:
        assert encoding == 'utf-16' and 'not UTF-8' in str(refused)
    else:
        assert found.to_dict('list') == sheet[['pair', 'grade', 'comment']].to_dict('list')


def test_citations_are_read_as_an_xml_library_reads_them(tmp_path):
    "The words of titles and abstracts, without the signs that say how they are set."
    from xml.etree import ElementTree

    file = written(tmp_path / 'set.xml', (PUBMED % ''.join(CITATION % (1, number, 'é') for number in (7, 8))).encode())
    found = list(data.read_documents(file))
    letters = lambda text: ''.join(c for c in text if c.isalnum())
    theirs = ElementTree.parse(file).findall('.//PubmedArticle')
    assert [document.id for document in found] == [one.findtext('.//PMID') for one in theirs]
    for document, one in zip(found, theirs, strict=True):
        assert letters(document.title) == letters(''.join(one.find('.//ArticleTitle').itertext()))
        assert letters(document.text) == letters(''.join(''.join(part.itertext()) for part in one.iter('AbstractText')))


TESTS = Path(__file__).parent
TOPICS = 'statins iron insulin asthma vaccine migraine gout ear thyroid heart liver kidney lung skin bone eye'.split()
FACTS = [f'{topic} is the first drug for type {i} diabetes' for i, topic in enumerate(TOPICS)]
KILLS = {'encode': 34, 'write': 30, 'mine': 20, 'train': 16, 'tune': 8, 'batch': 8}


class Jobs:
    "Processes that are forked from one that has everything imported."

    def __init__(self):
        told = {'PYTHONPATH': f'{find_root(TESTS)}{os.pathsep}{TESTS}', 'PYTHONWARNINGS': 'ignore'}
        command = [sys.executable, str(TESTS / 'attack_jobs.py')]
        pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.server = subprocess.Popen(command, **pipes, env={**os.environ, **told, 'TOKENIZERS_PARALLELISM': 'false'})
        assert json.loads(self.server.stdout.readline()) == 'ready'

    def ask(self, **request):
        self.server.stdin.write(json.dumps(request) + '\n')
        self.server.stdin.flush()
        return json.loads(self.server.stdout.readline())

    def run(self, job, arguments, home, said, after=None):
        "The exit status of a job, killed `after` so many seconds where it is not done by then."
        pid = self.ask(job=job, arguments=arguments, environment={'MEDIR_HOME': str(home)}, said=str(said))
        start = time.monotonic()
        while after is not None and time.monotonic() - start < after:
            # a process that has ended is a zombie until it is waited for
            if Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[0] == 'Z':
                break
            time.sleep(0.002)
        if after is not None:
            os.kill(pid, signal.SIGKILL)
        return self.ask(wait=pid)


@pytest.fixture(scope='module')
def jobs():
    made = Jobs()
    yield made
    made.server.stdin.close()
    made.server.wait()


def litter(folder):
    "Files that no reader of a home folder has a use for."
    patterns = ('.*.part', '.*.part/**', '*.executing.ipynb', '*.bad', '.*.old', 'checkpoint-*', 'aside')
    begun = [path for pattern in patterns for path in Path(folder).rglob(pattern)]
    work = [path for path in Path(folder).rglob('.training/*') if not path.name.endswith('.lock')]
    return sorted({str(path) for path in [*begun, *work]})


def killed(name, run, check, tmp_path, most=6):
    "Kill a job as often as KILLS says, at most `most` times in a folder; `check(folder, kills)` → what came out."
    rng, done = random.Random(f'{name} {MOVED}'), 0
    (tmp_path / 'whole').mkdir()
    start = time.monotonic()
    assert run(tmp_path / 'whole', None) == 0
    length, reference = time.monotonic() - start, check(tmp_path / 'whole', 0)
    rounds = itertools.count()
    while done < KILLS[name]:
        (folder := tmp_path / f'round{next(rounds)}').mkdir()
        here = 0
        while here < most and done < KILLS[name]:
            status = run(folder, rng.uniform(0, 1.02 * length))
            assert status in (0, -signal.SIGKILL)
            if status == 0:
                break
            here, done = here + 1, done + 1
        assert run(folder, None) == 0 and check(folder, here) == reference
        assert not litter(folder), litter(folder)
        shutil.rmtree(folder)


def lines_of(path):
    return [json.loads(line) for line in path.read_text(encoding='utf-8').splitlines()] if path.exists() else []


@pytest.fixture
def kills(jobs, tmp_path):
    "`kills(name, job, arguments, check)`: a job of `attack_jobs`, killed; `arguments(folder)` are its own."

    def start(name, job, arguments, check, most=6):
        said = tmp_path / 'said.txt'

        def run(folder, after):
            status = jobs.run(job, arguments(folder), folder / 'home', said, after)
            assert status in (0, -signal.SIGKILL), said.read_text()[-3000:]
            return status

        killed(name, run, check, tmp_path, most)

    return start


@pytest.mark.slow
def test_encoding_is_killed(kills, tiny_weights, tmp_path):
    texts = [(f'd{i:03d}', '', f'{TOPICS[i % 16]} number {i}') for i in range(96)]
    queries = [(f'q{i}', f'what is {topic}') for i, topic in enumerate(TOPICS[:8])]
    task = write_beir(tmp_path / 'task', texts, queries, [(f'q{i}', f'd{i:03d}', 1) for i in range(8)])

    def arguments(folder):
        out, log = str(folder / 'x.run'), str(folder / 'log')
        return dict(task=str(task), model=tiny_weights['encoder'], out=out, log=log, pause=0.02)

    def check(folder, kills):
        # 'a' alone is the probe of an encoder's width, before its first block
        encoded = [text for texts in lines_of(folder / 'log') for text in texts if texts != ['a']]
        # four texts a block: those of a block that was under way are encoded again
        assert 104 <= len(encoded) <= 104 + 4 * kills and len(set(encoded)) == 104
        return (folder / 'x.run').read_text()

    kills('encode', 'encode', arguments, check)


class Counted(Fake):
    "A language model whose answer hangs on the prompt alone; `since(folder)` counts what was asked for a folder."

    def __init__(self):
        self.seen, self.counts = 0, collections.Counter()
        super().__init__(answer=self.told)

    def told(self, body):
        time.sleep(0.01)
        total = sum(map(ord, body['messages'][-1]['content']))
        return chat_answer(f'{TOPICS[total % 16]} answers {total * 7 % 1009}')

    def since(self, folder):
        self.counts[folder] += self.asked - self.seen
        self.seen = self.asked
        return self.counts[folder]


@pytest.fixture
def server():
    with contextlib.closing(Counted()) as made:
        yield made


IN_FLIGHT = 8  # requests between two writes: four times the concurrency of two


@pytest.mark.slow
def test_cassettes_are_killed(kills, server):
    def arguments(folder):
        server.since(folder)
        return dict(url=server.url, n=80, out=str(folder / 'texts.json'))

    def check(folder, kills):
        time.sleep(0.1)
        texts = json.loads((folder / 'texts.json').read_text())
        assert len(texts) == 80 and (kills or len(lines_of(folder / 'home' / 'cassettes' / 'smollm2.jsonl')) == 80)
        assert 80 <= server.since(folder) <= 80 + IN_FLIGHT * kills
        return texts

    kills('write', 'write', arguments, check)


@pytest.mark.slow
def test_mining_is_killed(kills, server, tiny_weights, tmp_path):
    rows = [{'id': f'd{i:02d}', 'title': topic, 'doc': FACTS[i]} for i, topic in enumerate(TOPICS)]
    documents, undisturbed = write_lines(tmp_path / 'documents.jsonl', rows), []

    def arguments(folder):
        server.since(folder)
        (folder / 'mined').mkdir(exist_ok=True)
        model, made = tiny_weights['encoder'], str(folder / 'mined')
        return dict(url=server.url, documents=str(documents), folder=made, model=model)

    def check(folder, kills):
        time.sleep(0.1)
        asked, files = server.since(folder), sorted((folder / 'mined').iterdir())
        undisturbed.append(asked)
        assert [file.stem for file in files] == ['candidates', 'pairs', 'queries', 'selected']
        assert undisturbed[0] <= asked <= undisturbed[0] + IN_FLIGHT * kills
        return [file.read_text() for file in files]

    kills('mine', 'mine', arguments, check)


NEGATIVES = [[f'{topic} is no drug', 'the risk'] for topic in TOPICS]
PAIRS = [{'query': f'what is {t}', 'pos': [fact], 'neg': neg} for t, fact, neg in zip(TOPICS, FACTS, NEGATIVES)]
ANSWERED = [{'text': row['query'], 'top_rewrite_query': row['pos'][0]} for row in PAIRS]
CONTRASTIVE = dict(task='contrastive', negatives=1, epochs=2, save_steps=3)
TUNING = dict(task='sft', epochs=1, save_steps=2, warmup_steps=0, max_tokens=256, held_out=0.0)
# settings, lines, steps, a pause a step, kills in a round
TRAININGS = {'train': (CONTRASTIVE, PAIRS, 16, 0.03, 6), 'tune': (TUNING, ANSWERED, 8, 0.05, 4)}


@pytest.mark.slow
@pytest.mark.parametrize('name', TRAININGS)
def test_training_is_killed(name, kills, tiny_weights, tmp_path):
    settings, rows, steps, pause, most = TRAININGS[name]
    model = tiny_weights['encoder' if name == 'train' else 'llm']
    shared = dict(model=model, data=str(write_lines(tmp_path / 'rows.jsonl', rows)), output='own', batch_size=2)

    def arguments(folder):
        return dict(settings={**settings, **shared, 'learning_rate': 1e-3}, log=str(folder / 'log'), pause=pause)

    def check(folder, kills):
        computed, made = lines_of(folder / 'log'), folder / 'home' / 'checkpoints' / 'own'
        assert set(computed) == set(range(1, steps + 1))
        assert len(computed) <= steps + kills * settings['save_steps']
        assert max(collections.Counter(computed).values()) <= kills + 1
        record, metrics = read_json(made / 'medir.json'), lines_of(made / 'metrics.jsonl')
        timed = ('seconds', 'tokens_per_second')
        metrics = [{key: value for key, value in line.items() if key not in timed} for line in metrics]
        weights = file_fingerprint(next(made.rglob('model.safetensors')))
        return weights, record['loss'], record['counts'], metrics

    kills(name, 'train', arguments, check, most)


COUNT = """import os, time
with open(os.path.join(os.environ['MEDIR_ROOT'], 'counter'), 'a') as file: file.write(f'{n}\\n')
time.sleep(0.4)"""
WRITE = """from medir_nb import core, workbook
core.write_json(workbook.output_folder('toy') / 'square.json', n * n)"""


def left_running(home):
    "Processes that still work for a home folder."
    found = []
    for process in Path('/proc').glob('[0-9]*'):
        with contextlib.suppress(OSError):
            found += [process.name] if str(home).encode() in (process / 'environ').read_bytes() else []
    return found


@pytest.mark.slow
def test_batches_are_killed(tmp_path):
    finished = collections.defaultdict(dict)

    def run(root, after):
        "The exit status of the batch; its process alone is killed, as a scheduler would."
        if not (root / 'nbs').is_dir():
            write_lines(root / 'settings.ini', ['[DEFAULT]'])
            write_notebook(root / 'nbs' / 'toy.ipynb', 'n: int = 1', COUNT, WRITE)
            runs = [f'- {{notebook: toy, parameters: {{n: {n}}}}}' for n in (1, 2, 3)]
            write_lines(root / 'params' / 'batches' / 'all.yaml', ['workers: 2', 'runs:', *runs])
        home = root / 'home'
        environment = {**os.environ, 'MEDIR_ROOT': str(root), 'MEDIR_HOME': str(home)}
        with open(tmp_path / 'said.txt', 'a') as out:
            command = [sys.executable, '-m', 'medir_nb.workbook', 'run', 'all']
            process = subprocess.Popen(command, stdout=out, stderr=out, env=environment)
        try:
            status = process.wait(after)
        except subprocess.TimeoutExpired:
            process.kill()
            status = process.wait()
        # what had a receipt before the kill is never run again
        with core.places.at_home(home):
            now = {receipt['key']: receipt for receipt in workbook.receipts()}
        assert all(now[key] == receipt for key, receipt in finished[root].items())
        finished[root] = now
        return status

    def check(root, kills):
        squares = [read_json(Path(made['output']).parent / 'square.json') for made in finished[root].values()]
        counted = collections.Counter((root / 'counter').read_text().split())
        assert set(counted) == {'1', '2', '3'} and sum(counted.values()) <= 3 + 2 * kills, counted  # two workers
        end = time.monotonic() + 20
        while left_running(root / 'home') and time.monotonic() < end:
            time.sleep(0.2)
        assert not left_running(root / 'home')
        return sorted(squares)

    killed('batch', run, check, tmp_path, 4)
