"""Malformed inputs by the hundred: files, rows, options, answers of servers and weights, whole ones that are changed at a seeded
place. What may come of each is a right result or one line."""

import json, os, random, shutil, sys, types, zipfile
import numpy as np, pytest
from conftest import TASK_ROW, DOCUMENTS, MOVED, QRELS, QUERIES, write_beir, write_lines
from medir_nb import core, data, encoder, generator, trainer, retrieval, workbook
from medir_nb.core import MedirError, registry

LONGEST = 1500  # characters of a line that somebody still reads


def deep(n=100_000):
    return '[' * n + ']' * n


# values that no field expects, as Python has them; DEEP and DIGITS stand for text that JSON's own reader refuses
DEEP, DIGITS = '<<deep>>', '<<digits>>'
ODD = [
    None,
    True,
    0,
    -1,
    1.5,
    float('nan'),
    float('inf'),
    10**30,
    '',
    'x',
    'a\0b',
    '../x',
    'é' * 400,
    [],
    [1],
    ['x', None],
    {},
    {'x': 1},
    [[['x']]],
    DEEP,
    DIGITS,
]


def as_json(value) -> str:
    "JSON text of a value in which an odd one may stand for what Python cannot write."
    return json.dumps(value, ensure_ascii=False).replace(f'"{DEEP}"', deep()).replace(f'"{DIGITS}"', '9' * 5000)


def places(value, at=()) -> list:
    "The paths of all values inside `value`."
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(p for k, v in inside for p in places(v, (*at, k)))]


def changed(value, rng):
    "A copy of a JSON value with one of its parts odd, lost or added."
    value = json.loads(json.dumps(value))
    *above, last = rng.choice([p for p in places(value) if p] or [(None,)])
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
    return rng.choice(
        [
            raw[:at],
            raw[at:],
            raw[:at] + b'\xff\xfe' + raw[at:],
            raw[:at] + b'\0' + raw[at:],
            raw[:at] + 'é'.encode('latin1') + raw[at:],
            raw[:at] + deep().encode() + raw[at:],
            raw[:at] + b'9' * 5000 + raw[at:],
            raw + raw,
            b'',
            b'\n\n',
            raw.replace(b'\n', b'\r\n'),
            b'\xef\xbb\xbf' + raw,
            raw[:at] + bytes([raw[at % len(raw)] ^ 0x55]) + raw[at + 1 :],
            raw.replace(b'"', b"'"),
            raw.decode('utf-8', 'replace').encode('utf-16'),
        ]
    )


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


# ---------------------------------------------------------------- what is attacked: each makes a whole input and reads it

TRAINING = [
    {'query': f'what is {t}', 'pos': [b], 'neg': ['no answer'], 'rewrite_query': 'a text'} for _, t, b in DOCUMENTS[:4]
]
ANSWERS = [{'text': f'what is {t}', 'top_rewrite_query': b} for _, t, b in DOCUMENTS[:4]]
MINED = [
    {
        'id': i,
        'text': t,
        'rewrite_queries': ['one', 'two'],
        'rewrite_query': 'one',
        'doc': b,
        'query': t,
        'pos': [b],
        'neg': ['x'],
    }
    for i, t, b in DOCUMENTS[:4]
]
NOTEBOOK = {
    'cells': [
        {'cell_type': 'markdown', 'metadata': {}, 'source': ['# A\n', 'title']},
        {
            'cell_type': 'code',
            'metadata': {'tags': ['parameters']},
            'source': ["tasks: list[str] = ['hpo-lay']\n", 'n: int = 1'],
            'outputs': [],
            'execution_count': None,
        },
        {'cell_type': 'code', 'metadata': {}, 'source': ['n * 2'], 'outputs': [], 'execution_count': None},
    ],
    'metadata': {'kernelspec': {'name': 'python3', 'display_name': 'python3', 'language': 'python'}},
    'nbformat': 4,
    'nbformat_minor': 5,
}
CONFIG = {
    'task': 'contrastive',
    'model': 'minilm',
    'data': 'pairs.jsonl',
    'output': 'own',
    'batch_size': 2,
    'negatives': 1,
    'learning_rate': 1e-3,
    'max_steps': 1,
    'precision': 'fp32',
    'instruction': None,
}
SFT = {
    'task': 'sft',
    'model': 'smollm2',
    'data': 'x.jsonl',
    'output': 'own',
    'lora': {'r': 4, 'targets': ['q_proj']},
    'method': 'hyde',
    'held_out': 0.1,
}
BATCH = {
    'workers': 1,
    'runs': [
        {'notebook': 'toy', 'preset': 'smoke', 'parameters': {'n': 3}},
        {'notebook': 'toy', 'after': [0], 'parameters': {'tasks': ['x']}},
    ],
}
RECORD = {
    'kind': 'encoder',
    'task': 'contrastive',
    'base': 'minilm',
    'revision': 'abc',
    'spec': {'max_query_tokens': 8, 'max_document_tokens': 8, 'label': 'own'},
    'base_hub': 'x',
    'config': {},
    'steps': 1,
    'loss': 0.5,
    'seconds': 1.0,
    'counts': {},
}
RECEIPT = {
    'notebook': 'toy',
    'preset': None,
    'key': 'k',
    'parts': {},
    'output': '/nowhere/toy.ipynb',
    'output_fingerprint': 'x',
    'files': {'a.md': 'y'},
    'finished': '2026-01-01T00:00:00',
    'seconds': 1.0,
    'cassettes': {'/nowhere/a.jsonl': [3, 'x']},
    'revisions': {'model a/b': {'commit': 'c', 'resolved': 'd'}},
    'not_run': [{'system': 'bm25', 'task': 'x', 'why': 'y', 'measurable': True}],
}
MODULES = [
    {'idx': 0, 'name': '0', 'path': '', 'type': 'sentence_transformers.models.Transformer'},
    {'idx': 1, 'name': '1', 'path': '1_Pooling', 'type': 'sentence_transformers.models.Pooling'},
]
EXAMPLES = {'en': {'plain': {'pairs': [{'text': 'a text', 'query': 'a question'}]}}}


def lines_of(rows):
    return ''.join(as_json(r) + '\n' for r in rows)


def rows_changed(rows, rng):
    rows = [dict(r) for r in rows]
    i = rng.randrange(len(rows))
    rows[i] = changed(rows[i], rng)
    return lines_of(rows).encode('utf-8', 'surrogatepass')


def beir_rows():
    return {
        'corpus.jsonl': [{'_id': i, 'title': t, 'text': b} for i, t, b in DOCUMENTS],
        'queries.jsonl': [{'_id': i, 'text': t} for i, t in QUERIES],
        'qrels.jsonl': [{'q_id': q, 'p_id': d, 'score': s} for q, d, s in QRELS],
    }


def task_files(home, name, rng):
    "A task with one file changed, searched by BM25."
    folder = write_beir(home / 'task')
    if name == 'qrels.jsonl':
        shutil.rmtree(folder / 'qrels')
    for file, rows in beir_rows().items():
        if file != 'qrels.jsonl' or name == file:
            write_lines(folder / file, rows)
    file = folder / name
    if name == 'candidates.tsv':
        write_lines(file, ['q1\td01', 'q1\td02', 'q2\td03'])
    if name == 'pairs.jsonl':
        (folder / 'corpus.jsonl').unlink()
        write_lines(file, [{'sentence1': 'a', 'sentence2': 'b', 'score': s} for s in (0, 1, 2.5)])
        file.write_bytes(
            rows_changed([json.loads(l) for l in file.read_text().splitlines()], rng)
            if rng.random() < 0.6
            else damaged(file.read_bytes(), rng)
        )
        return lambda: data.load_task(str(folder))
    rows = beir_rows().get(name)
    file.write_bytes(rows_changed(rows, rng) if rows and rng.random() < 0.6 else damaged(file.read_bytes(), rng))
    return lambda: retrieval.search('bm25', data.load_task(str(folder)))


def run_file(home, rng):
    folder = write_beir(home / 'task')
    (home / 'x.run').write_bytes(
        damaged('\n'.join(['q1 Q0 d02 1 3.5 t', 'q1 Q0 d01 2 2.5 t', 'q2 Q0 d03 1 1.5 t', '']).encode(), rng)
    )
    from medir_nb import evaluator

    return lambda: evaluator.score_run(data.load_task(str(folder)), retrieval.read_run(home / 'x.run'), None, 'x')


def packed(home, rng):
    folder, kind = (
        write_beir(home / 'task'),
        rng.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]),
    )
    with zipfile.ZipFile(home / 'task.zip', 'w', kind) as archive:
        for f in sorted(p for p in folder.rglob('*') if p.is_file()):
            archive.write(f, f.relative_to(folder))
    raw = bytearray((home / 'task.zip').read_bytes())
    for _ in range(rng.choice([1, 8])):
        raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
    (home / 'task.zip').write_bytes(bytes(raw[: rng.choice([len(raw), len(raw), rng.randrange(len(raw))])]))
    return lambda: data.load_task(str(home / 'task.zip'))


def mapping(home, name, value, rng):
    "A YAML or JSON file of a mapping, changed."
    file = home / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(
        as_json(changed(value, rng)).encode('utf-8', 'surrogatepass')
        if rng.random() < 0.7
        else damaged(as_json(value).encode(), rng)
    )
    return file


def book(home, rng, notebook=False, preset=None, batch=False):
    root = home / 'book'
    write_lines(root / 'settings.ini', ['[DEFAULT]'])
    write_lines(root / 'nbs' / 'toy.ipynb', [as_json(NOTEBOOK)])
    write_lines(root / 'params' / 'toy' / 'smoke.yaml', ['n: 2'])
    if notebook:
        mapping(root, 'nbs/toy.ipynb', NOTEBOOK, rng)
    if preset:
        mapping(root, 'params/toy/smoke.yaml', preset, rng)
    if batch:
        mapping(root, 'params/batches/all.yaml', BATCH, rng)
    os.environ['MEDIR_ROOT'] = str(root)
    if batch:
        return lambda: workbook.read_batch(root / 'params' / 'batches' / 'all.yaml')
    return lambda: workbook.receipt_key(
        workbook.find_notebook('toy'), workbook.resolve(workbook.find_notebook('toy'), 'smoke')
    )


SOURCES = [
    'n: int = (',
    'n: int = 1\0',
    'n: int = ' + '(' * 500 + '1' + ')' * 500,
    'n: int = ' + '-' * 100_000 + '1',
    'n: int = ' + '1+' * 50_000 + '1',
    'n: list[int, str] = []',
    'n: dict[str] = {}',
    'x.y: int = 1',
    'x[0]: int = 1',
    '_n: int = 1',
    'model_config: int = 1',
    'n: int = {[]: 1}',
    'n: int = {1, [2]}',
    'n: Literal[()] = 1',
    'n: Literal[[1]] = 1',
    'n: Optional = None',
    'n: list[list[list[int]]] = [[[1]]]',
    'n: "int" = 1',
    'n: int = 9' + '9' * 5000,
    'def f(): pass',
    'n: int',
    '',
    'n: None = None',
    'n: list[None] = []',
    'schema: str = "x"',
    'n: int|str|None = 2',
    'é: int = 1',
    'n: int = f"{1}"',
    'n: Literal["a\\ud800"] = "b"',
]


def cell(home, source):
    root = home / 'book'
    notebook = json.loads(json.dumps(NOTEBOOK))
    notebook['cells'][1]['source'] = [source]
    write_lines(root / 'settings.ini', ['[DEFAULT]'])
    write_lines(root / 'nbs' / 'toy.ipynb', [json.dumps(notebook)])
    os.environ['MEDIR_ROOT'] = str(root)
    return lambda: workbook.resolve(workbook.find_notebook('toy'))


def own_rows(home, name, row, rng, read):
    "A registry of one's own, changed, and what is read of it."
    mapping(home, f'registry/{name}.yaml', {'mine': row}, rng)
    os.environ['MEDIR_REGISTRY'] = str(home / 'registry')
    core.registry.cache_clear()
    return read


def packaged(name, row):
    return {k: v for k, v in registry(name)[row].items() if v is not None}


def model_row(home, rng):
    core.registry.cache_clear()
    row = {**packaged('models', 'e5-small-v2'), 'hub': 'own/missing', 'revision': '1' * 40}
    task = data.load_task(str(write_beir(home / 'task')))
    return own_rows(
        home,
        'models',
        row,
        rng,
        lambda: (
            retrieval.parse('mine'),
            encoder.encoder_spec('mine'),
            encoder.Encoder('mine').render([('a', 'b')], 'query', 'c'),
            encoder.check_encoder(encoder.encoder_spec('mine')),
            retrieval.pending('mine', task),
        ),
    )


def llm_row(home, rng):
    core.registry.cache_clear()
    return own_rows(
        home,
        'llms',
        {**packaged('llms', 'smollm2'), 'languages': ['en']},
        rng,
        lambda: (
            generator.llm_spec('mine'),
            generator.LLM('mine').sampling(),
            retrieval.parse('bm25+hyde(mine)'),
            generator.LLM('mine').missing([generator.Request('p')]),
        ),
    )


def reranker_row(home, rng):
    core.registry.cache_clear()
    return own_rows(
        home,
        'rerankers',
        packaged('rerankers', next(iter(registry('rerankers')))),
        rng,
        lambda: (retrieval.reranker_spec('mine'), retrieval.parse('bm25>mine@10'), retrieval.reranker_spec('mine').key),
    )


def task_row(home, rng):
    core.registry.cache_clear()
    write_beir(home / 'data' / 'F')
    os.environ['MEDIR_DATA'] = str(home / 'data')
    row = {
        **TASK_ROW,
        'queries': 4,
        'documents': 12,
        'qrels': 9,
    }
    return own_rows(home, 'tasks', row, rng, lambda: data.load_task('mine'))


EXPRESSIONS = [
    'minilm',
    'bm25(k1=0.9,b=0.4)',
    'rrf(bm25,minilm)',
    'bm25+hyde(smollm2,n=2)',
    'minilm(max_query_tokens=32)+hyde(smollm2@authors)',
    'bm25>bge-reranker-v2-m3@10',
    'bm25+lamer(smollm2,k=5)',
    'minilm(dtype=bf16,pooling=cls)',
]
PIECES = [
    '(',
    ')',
    ',',
    '=',
    '+',
    '>',
    '@',
    'rrf',
    '²',
    '٣',
    '\0',
    'nan',
    'inf',
    '1e400',
    '9' * 400,
    '-1',
    '{text',
    '{}',
    '{x}',
    ' ',
    '\n',
    'é',
    '\ud800',
    'x' * 5000,
    '/',
    '..',
    '~',
    '%',
    "'",
    '"',
    '(((((' * 2000,
    'rrf(' * 3000,
    'true',
    'None',
    '0x1',
    '1_0',
]


def expression(home, rng):
    text = rng.choice(EXPRESSIONS)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(text) + 1)
        text = text[:at] + rng.choice(PIECES) + text[at + rng.choice([0, 0, 1, 4]) :]
    return lambda: str(retrieval.parse(text))


VALUES = [
    '[',
    '{',
    '&a [1]',
    '*a',
    '!!python/object:os.system x',
    '!!bool x',
    '!!int x',
    '!!timestamp x',
    '2021-99-99',
    '9' * 5000,
    '"\ud800',
    '\x07',
    '? [a]\n: 1',
    '{[a]: 1}',
    '- -',
    ': :',
    '|',
    '>',
    '%',
    '@x',
    '`',
    '\t',
    '"\\x',
    '!!float x',
    '!!binary é',
    '<<: x',
    '!!set {a, b}',
    '!!omap [1]',
    '[' * 20_000,
    '{a: ' * 5000,
    '1:2:3',
    '0o9',
    '~',
    '.inf',
    '.nan',
    "'",
]


def service(home, rng, body):
    "An embedding service whose answer is changed; two texts are asked for."
    reply = (
        as_json(changed(body, rng)).encode('utf-8', 'surrogatepass')
        if rng.random() < 0.8
        else damaged(as_json(body).encode(), rng)
    )
    return reply


EMBEDDED = {
    'data': [{'index': 0, 'embedding': [0.1, 0.2, 0.3]}, {'index': 1, 'embedding': [0.4, 0.5, 0.6]}],
    'usage': {'total_tokens': 4},
}
CHAT = {
    'choices': [
        {
            'message': {
                'content': 'an answer about statins',
                'reasoning_content': 'x',
                'tool_calls': [{'function': {'name': 'search', 'arguments': '{}'}}],
            },
            'finish_reason': 'stop',
        }
    ],
    'usage': {'prompt_tokens': 4, 'completion_tokens': 5},
}


@pytest.fixture
def answering(monkeypatch):
    "`answering(bytes)`: every server answers these bytes, without a connection."
    import httpx

    def answer(raw, headers=()):
        def stream(self, method, url, **k):
            import contextlib

            return contextlib.nullcontext(
                types.SimpleNamespace(
                    status_code=200, headers=httpx.Headers(list(headers)), iter_bytes=lambda: iter([raw])
                )
            )

        monkeypatch.setattr(httpx.Client, 'stream', stream)
        monkeypatch.setattr(core.Server.__init__, '__defaults__', ('', '', '', 300, 2, 0.0, 0.0))

    return answer


def embed_two():
    task = data.task_from_frames(
        *map(
            __import__('pandas').DataFrame,
            (
                [{'id': 'a', 'text': 'x'}, {'id': 'b', 'text': 'y'}],
                [{'id': 'q', 'text': 'z'}],
                [{'query_id': 'q', 'doc_id': 'a', 'relevance': 1}],
            ),
        )
    )
    return encoder.encode_corpus(encoder.Encoder(encoder.encoder_spec('voyage-3')), task.corpus, 'document')


def store(home, rng):
    "A block of a vector store, damaged; its texts are encoded again."

    class Letters:
        name, revision = 'letters', '1'

        def encode(self, texts):
            return np.array([[1 + t.count(c) for c in 'abcde'] for t in texts], np.float32)

    task = data.load_task(str(write_beir(home / 'task')))
    read = lambda: encoder.encode_corpus(encoder.Encoder(Letters()), task.corpus, 'document').chunk()
    whole = np.array(read())
    (block,) = (home / 'home').rglob('block-*.safetensors')
    raw = block.read_bytes()
    n = int.from_bytes(raw[:8], 'little')
    if rng.random() < 0.6:
        header = as_json(changed(json.loads(raw[8 : 8 + n]), rng)).encode('utf-8', 'surrogatepass')
        block.write_bytes(len(header).to_bytes(8, 'little') + header + raw[8 + n :])
    # the numbers themselves carry no sum of theirs: only the head is damaged
    else:
        block.write_bytes(damaged(raw[: 8 + n], rng) + raw[8 + n :])

    def again():
        assert (read() == whole).all()

    return again


def table_store(home, rng):
    folder = write_beir(home / 'task')
    data.load_task(str(folder))
    for file in (home / 'home' / 'corpora').glob('*'):
        if file.suffix in ('.arrow', '.json') and rng.random() < 0.7:
            file.write_bytes(damaged(file.read_bytes()[:400], rng))

    def again():
        assert len(data.load_task(str(folder)).corpus) == 12

    return again


def index_store(home, rng):
    task = data.load_task(str(write_beir(home / 'task')))
    whole = retrieval.search('bm25', task).run
    for file in (home / 'home' / 'bm25').rglob('*.json'):
        if rng.random() < 0.5:
            file.write_bytes(damaged(file.read_bytes(), rng))

    def again():
        try:
            retrieval.search('bm25', task)
        except MedirError:
            assert retrieval.search('bm25', task).run.equals(whole)  # it is rebuilt

    return again


def tape(home, rng):
    rows = [
        {'key': 'a', 'text': 'x', 'finish': 'stop', 'usage': {'prompt': 1, 'answer': 2}},
        {'key': 'b', 'text': 'y', 'finish': 'length', 'usage': {'prompt': 1, 'answer': 2}, 'cut': 3},
    ]
    file = write_lines(home / 't.jsonl', ['{}'])
    file.write_bytes(rows_changed(rows, rng) if rng.random() < 0.6 else damaged(lines_of(rows).encode(), rng))

    def read():
        cassette = generator.Cassette(file)
        cassette.find(['a', 'b'])
        cassette.append({'c': generator.Generation('z', 'stop', 1, 1, 0)})
        assert generator.Cassette(file).find(['c'])['c'].text == 'z'

    return read


def generations(home, rng):
    rows = [{'id': q, 'rewrite_query': f'about {t}'} for q, t in QUERIES]
    write_lines(home / 'g.jsonl', rows).write_bytes(
        rows_changed(rows, rng) if rng.random() < 0.6 else damaged(lines_of(rows).encode(), rng)
    )
    task = data.load_task(str(write_beir(home / 'task')))
    return lambda: retrieval.search(f'bm25+hyde(file:{home}/g.jsonl)', task)


def trained(home, rng, rows, read):
    file = write_lines(home / 'pairs.jsonl', ['{}'])
    file.write_bytes(rows_changed(rows, rng) if rng.random() < 0.7 else damaged(lines_of(rows).encode(), rng))
    return lambda: read(file)


def read_pairs(file):
    pairs = trainer.Pairs(file, 2)
    for i in range(len(pairs)):
        pairs.draw(i, 1)


MINING = [
    ('select', {'retriever': 'bm25'}),
    ('hard_negatives', {'retriever': 'bm25', 'n': 2, 'window': [0, 3]}),
    ('round_trip', {'retriever': 'bm25', 'k': 2}),
    ('shuffle_pairs', {}),
    ('load_documents', {}),
]


def mined(home, rng):
    step, parameters = rng.choice(MINING)
    rows, parameters = (
        ([{'id': r['id'], 'doc': r['doc']} for r in MINED] if step == 'load_documents' else MINED),
        dict(parameters),
    )
    if rng.random() < 0.3:
        parameters[rng.choice([*parameters, 'seed', 'limit', 'depth'])] = rng.choice(
            [v for v in ODD if v not in (DEEP, DIGITS)]
        )
    return trained(home, rng, rows, lambda file: trainer.mine(step, str(file), home / 'out.jsonl', **parameters))


def record(home, rng):
    mapping(home, 'home/checkpoints/own/medir.json', RECORD, rng)

    def read():
        outcome(lambda: encoder.encoder_spec('own'), 'encoder')
        outcome(lambda: generator.llm_spec('own'), 'llm')
        workbook.keys.checkpoint_mark('own')

    return read


def receipt(home, rng):
    mapping(home, 'home/receipts/toy-1.json', RECEIPT, rng)
    return lambda: (workbook.receipts(), workbook.valid_receipt('k'))


def status(home, rng):
    mapping(home, 'home/receipts/toy-1.json', RECEIPT, rng)
    return workbook.status


OPTIONS = {
    'concurrency': 2,
    'timeout': 5,
    'budget': 1000,
    'base_url': 'http://127.0.0.1:9/v1',
    'extra': {'a': 1},
    'attempts': 1,
    'pause': 0,
    'backend': 'openai',
    'served_as': 'x',
}


def options(home, rng):
    os.environ['MEDIR_LLM_OPTIONS'] = (
        as_json(changed(OPTIONS, rng))
        if rng.random() < 0.8
        else damaged(as_json(OPTIONS).encode(), rng).decode('utf-8', 'replace').replace('\0', '')[:100_000]
    )

    def read():
        model = generator.LLM('smollm2')
        if model.backend_name == 'openai':
            model.backend  # the weights of other backends are not loaded for this

    return read


ADDRESSES = [
    '',
    'x',
    'localhost:8000/v1',
    'http://',
    'https://:80',
    'ftp://host/x',
    'http://host:99999999',
    'http://host:x/',
    'http://[::1',
    'http://a b/c',
    'http://host\n/x',
    'http://ho\tst',
    'http://é',
    'http://' + 'x' * 400,
    'http://[zz]/',
    '//host',
    'http:host',
    'http://%zz',
    'file:///etc/passwd',
    'http://host/\x00',
    '\u202e://x',
    'http://xn--\u0378',
]


def address(home, text, variable):
    os.environ[variable] = text.replace('\0', '')
    if variable == 'MEDIR_LLM_URL':
        return lambda: generator.LLM('smollm2', backend='openai', attempts=1, timeout=1, pause=0).generate(
            [generator.Request('p')]
        )
    return lambda: encoder.ServiceBackend(encoder.encoder_spec('voyage-3'), 'query')


KEYS = ['schlüssel-0123456789', 'abc\ndef-0123456789', 'abc\x7fdef', 'ключ', '\u200babcdefgh', 'abc\tdef']


def key(home, text, variable):
    os.environ[variable] = text
    os.environ['MEDIR_LLM_URL'] = os.environ['MEDIR_EMBEDDING_URL'] = 'http://127.0.0.1:9/v1'
    if variable == 'MEDIR_LLM_KEY':
        return lambda: generator.LLM('smollm2', backend='openai', attempts=1, timeout=1, pause=0).generate(
            [generator.Request('p')]
        )
    return lambda: encoder.ServiceBackend(encoder.encoder_spec('voyage-3'), 'query')


# name → how many cases a full run has of it, and the maker (home folder of the case, rng) → what is called
CHANGED = {
    **{
        f'task {n}': (16, lambda h, r, n=n: task_files(h, n, r))
        for n in ('corpus.jsonl', 'queries.jsonl', 'qrels.jsonl', 'qrels/test.tsv', 'candidates.tsv', 'pairs.jsonl')
    },
    'run file': (14, run_file),
    'zip': (20, packed),
    'notebook': (24, lambda h, r: book(h, r, notebook=True)),
    'preset': (20, lambda h, r: book(h, r, preset={'n': 2, 'tasks': ['a']})),
    'batch': (24, lambda h, r: book(h, r, batch=True)),
    'models row': (30, model_row),
    'llms row': (24, llm_row),
    'rerankers row': (16, reranker_row),
    'tasks row': (24, task_row),
    'training configuration': (
        30,
        lambda h, r: (lambda file: lambda: trainer.training_config(file))(
            mapping(h, 'c.yaml', r.choice([CONFIG, SFT]), r)
        ),
    ),
    'training pairs': (24, lambda h, r: trained(h, r, TRAINING, read_pairs)),
    'mining': (40, mined),
    'examples': (
        12,
        lambda h, r: (lambda file: lambda: trainer.example_blocks('en', file=str(file)))(
            mapping(h, 'e.yaml', EXAMPLES, r)
        ),
    ),
    'generations': (16, generations),
    'cassette': (20, tape),
    'expression': (60, expression),
    'options': (24, options),
    'record of a training': (20, record),
    'receipt': (20, receipt),
    'status': (10, status),
    'vector store': (24, store),
    'corpus store': (10, table_store),
    'bm25 store': (10, index_store),
}
GIVEN = [
    *(('cell', lambda h, s=s: cell(h, s)) for s in SOURCES),
    *(('option', lambda h, v=v: lambda: core.parse_options([f'x={v}'])) for v in VALUES),
    *(
        (
            'YAML file',
            lambda h, v=v: (lambda file: lambda: core.read_yaml(file))(
                (h.joinpath('v.yaml').write_bytes(f'x: {v}\n'.encode('utf-8', 'surrogatepass')), h / 'v.yaml')[1]
            ),
        )
        for v in VALUES
    ),
    *(
        (variable, lambda h, t=t, v=variable: address(h, t, v))
        for t in ADDRESSES
        for variable in ('MEDIR_LLM_URL', 'MEDIR_EMBEDDING_URL')
    ),
    *(
        (variable, lambda h, t=t, v=variable: key(h, t, v))
        for t in KEYS
        for variable in ('MEDIR_LLM_KEY', 'MEDIR_EMBEDDING_KEY')
    ),
]


SET_BY_CASES = (
    'MEDIR_ROOT',
    'MEDIR_DATA',
    'MEDIR_REGISTRY',
    'MEDIR_LLM_URL',
    'MEDIR_EMBEDDING_URL',
    'MEDIR_LLM_OPTIONS',
    'MEDIR_LLM_KEY',
    'MEDIR_EMBEDDING_KEY',
)


@pytest.fixture
def case_home(tmp_path, monkeypatch, home):
    "`case_home()` → a folder of the next case, with a home folder in it; the environment is put back at the end."
    for name in (*SET_BY_CASES, 'MEDIR_LLM_BACKEND'):
        monkeypatch.setenv(name, '')
    made = []

    def make():
        made.append(tmp_path / f'case{len(made)}')
        made[-1].mkdir()
        for name in SET_BY_CASES:
            os.environ.pop(name, None)
        os.environ['MEDIR_HOME'] = str(made[-1] / 'home')
        core.registry.cache_clear()
        generator.models.loaded_llm.cache_clear()
        return made[-1]

    yield make


def attack(case_home, name, share, found):
    count, make = CHANGED[name]
    for i in range(max(1, int(count * share))):
        rng, folder = random.Random(f'{name} {i} {MOVED}'), case_home()
        found.append(outcome(make(folder, rng), f'{name} {i}'))
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize('name', CHANGED)
def test_some_malformed_inputs_are_one_line(name, case_home):
    found = []
    attack(case_home, name, 0.2, found)
    assert found


@pytest.mark.slow
@pytest.mark.parametrize('name', CHANGED)
def test_malformed_inputs_are_one_line(name, case_home):
    found = []
    attack(case_home, name, 1, found)
    # an attack after which all is right attacked nothing
    assert any(f != 'right' for f in found) or name in (
        'receipt',
        'status',
        'cassette',
        'corpus store',
        'vector store',
        'bm25 store',
        'record of a training',
    ), found


@pytest.mark.parametrize('kind', sorted({k for k, _ in GIVEN}))
def test_given_oddities_are_one_line(kind, case_home):
    found = [outcome(make(case_home()), f'{kind} {i}') for i, (k, make) in enumerate(GIVEN) if k == kind]
    assert any(f != 'right' for f in found)


@pytest.mark.parametrize('share', [pytest.param(0.2, id='some'), pytest.param(1, id='all', marks=pytest.mark.slow)])
@pytest.mark.parametrize('kind', ['embeddings', 'chat'])
def test_answers_of_servers_are_read_or_refused(kind, share, case_home, answering, monkeypatch):
    found = []
    for i in range(int(60 * share)):
        rng = random.Random(f'{kind} {i} {MOVED}')
        case_home()
        os.environ['MEDIR_EMBEDDING_URL'] = os.environ['MEDIR_LLM_URL'] = 'http://127.0.0.1:9/v1'
        answering(service(None, rng, EMBEDDED if kind == 'embeddings' else CHAT))
        encoder.model._recent.clear()
        if kind == 'embeddings':
            found.append(outcome(embed_two, f'{kind} {i}'))
        else:
            found.append(
                outcome(
                    lambda: generator.LLM('smollm2', backend='openai').generate([generator.Request('p')]), f'{kind} {i}'
                )
            )
    assert any(f != 'right' for f in found)
    encoder.model._recent.clear()


def test_the_table_has_hundreds_of_cases():
    assert sum(n for n, _ in CHANGED.values()) + len(GIVEN) + 120 >= 300


# ---------------------------------------------------------------- through the command line


def line_of(name, home, rng):
    "The arguments of a command that meets the changed input `name`, and the command."
    if name == 'task':
        file = rng.choice(['corpus.jsonl', 'queries.jsonl', 'qrels/test.tsv'])
        task_files(home, file, rng)
        return workbook, ['evaluate', home / 'task', '--system', 'bm25']
    if name == 'run':
        run_file(home, rng)
        return workbook, ['evaluate', home / 'task', '--run', home / 'x.run']
    if name == 'expression':
        text = rng.choice(EXPRESSIONS)
        at = rng.randrange(len(text) + 1)
        return workbook, [
            'evaluate',
            write_beir(home / 'task'),
            '--limit',
            '1',
            '--system',
            text[:at] + rng.choice([p for p in PIECES if '\0' not in p]) + text[at + 1 :],
        ]
    if name == 'notebook':
        book(home, rng, notebook=True)
        return workbook, ['plan', 'toy', '--preset', 'smoke']
    if name == 'batch':
        book(home, rng, batch=True)
        return workbook, ['plan', 'all']
    if name == 'registry':
        own_rows(home, 'models', packaged('models', 'e5-small-v2'), rng, None)
        return workbook, ['contract', 'mine', write_beir(home / 'task')]
    if name == 'mining':
        mined(home, rng)
        return workbook, [
            'mine',
            'hard_negatives',
            home / 'pairs.jsonl',
            home / 'out.jsonl',
            '-p',
            'retriever=bm25',
            '-p',
            f'n={rng.choice(VALUES)}',
        ]
    if name == 'line':
        words = [
            'evaluate',
            'compare',
            'plan',
            'run',
            'mine',
            'contract',
            '--limit',
            '--home',
            '--system',
            '--measures',
            '-p',
            '--dtype',
            '--lang',
            'x',
            '0',
            '-1',
            'nDCG@',
            'é',
            '=',
            '--',
            '',
            '--json',
            '/nowhere/x/y',
        ]
        return workbook, [rng.choice(words[:6]), *rng.choices(words, k=rng.randint(0, 4))]
    mapping(
        home, 'c.yaml', {**rng.choice([CONFIG, SFT]), 'model': 'no-such-model', 'data': str(home / 'none.jsonl')}, rng
    )
    return trainer, [home / 'c.yaml', *([f'seed={rng.choice(VALUES)}'] if rng.random() < 0.3 else [])]


LINES = ('task', 'run', 'expression', 'notebook', 'batch', 'registry', 'mining', 'line', 'training')


@pytest.mark.parametrize('share', [pytest.param(3, id='some'), pytest.param(20, id='all', marks=pytest.mark.slow)])
@pytest.mark.parametrize('name', LINES)
def test_commands_end_in_one_line(name, share, case_home, monkeypatch, capfd):

    codes = []
    for i in range(share):
        rng, home = random.Random(f'line {name} {i} {MOVED}'), case_home()
        module, arguments = line_of(name, home, rng)
        monkeypatch.setattr(sys, 'argv', ['medir', *map(str, arguments)])
        capfd.readouterr()
        try:
            code = module.main() or 0
        except SystemExit as e:
            code = e.code or 0
        out, err = capfd.readouterr()
        where = f'{name} {i} {arguments}: {err[-600:]!r}'
        assert 'Traceback' not in out + err and code in (0, 2), where
        said = [l for l in err.splitlines() if l.strip()]
        if code and not out.startswith('Usage'):
            assert (
                said
                and said[-1].startswith('medir: error: ')
                and all(l.startswith('medir: ') for l in said)
                and len(said[-1]) < 2 * LONGEST
            ), where
        # what was not foreseen is said in one line as well, but a reader could mend what he is told better
        assert 'was not foreseen' not in err, where
        codes.append(code)
    assert 2 in codes
