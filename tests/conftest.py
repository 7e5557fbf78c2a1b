"""Fixtures of every test: a private home folder, a tiny task in BEIR's layout, the command here or as a process."""

import contextlib, html.parser, http.server, json, multiprocessing.util, os, re
import signal, socket, subprocess, sys, tempfile, threading, time, zlib
from collections import namedtuple
from pathlib import Path
import pytest

os.environ['OMP_NUM_THREADS'] = '1'  # torch and faiss read it when they are imported
os.environ['HF_HUB_OFFLINE'] = '1'  # huggingface_hub does so too
os.environ['MEDIR_PROGRESS'] = '0'
os.environ['MEDIR_PROCESSES'] = '1'  # a machine with several GPUs trains as one with none

from medir_nb import core

Ran = namedtuple('Ran', 'code out err')


def table(text):
    "The rows of a table that is written as lines, with ` | ` between the cells."
    return [tuple(cell.strip(' ') for cell in line.split(' | ')) for line in text.strip('\n').splitlines()]


DOCUMENTS = table("""
d01 | Statins | Atorvastatin lowers LDL cholesterol and the risk of a first myocardial infarction.
d02 | Beta blockers | Metoprolol slows the heart rate and is given after a myocardial infarction.
d03 | Metformin | Metformin is the first drug for type 2 diabetes; it reduces glucose production in the liver.
d04 | Insulin | Insulin glargine is injected once a day in type 1 and type 2 diabetes.
d05 | Asthma inhalers | Inhaled corticosteroids prevent asthma attacks; salbutamol relieves them.
d06 | Vaccination | Influenza vaccination is offered every autumn to adults older than 65.
d07 | Migraine | Triptans stop a migraine attack when they are taken early.
d08 | Anaemia | Iron deficiency is the commonest cause of anaemia in young women.
d09 | Hip fracture | Surgery within 36 hours lowers mortality after a hip fracture.
d10 | Appendicitis | Pain that moves to the right lower abdomen suggests appendicitis.
d11 | Hypothyroidism | Levothyroxine replaces the missing hormone; tiredness and weight gain improve.
""") + [('d12', '', '')]
QUERIES = table("""
q1 | drugs after a heart attack
q2 | first treatment of type 2 diabetes
q3 | why am I tired and gaining weight
q4 | treatment of snake bite
""")
_GRADES = 'q1 d02 2, q1 d01 1, q1 d09 0, q2 d03 2, q2 d04 1, q2 d06 0, q3 d11 1, q3 d08 0, q4 d10 0'
QRELS = [(query, doc, int(grade)) for query, doc, grade in map(str.split, _GRADES.split(', '))]

# questions about sick organs, and seven remedies for each
TOPICS = ('kidney', 'lung', 'skin', 'eye')
ASKED = [{'id': f'q{i}', 'text': f'what helps a sick {topic}'} for i, topic in enumerate(TOPICS)]
FOUND = [
    {'id': f'd{i}-{n}', 'doc': f'a sick {topic} is helped by remedy {"x" * n}'}
    for i, topic in enumerate(TOPICS)
    for n in range(1, 8)
]
# a row of the model registry, which lacks the folder of its weights (`hub`)
TINY_ROW = {
    'kind': 'encoder',
    'backend': 'transformers',
    'revision': 'tiny',
    'pooling': 'cls',
    'normalize': True,
    'similarity': 'cos',
    'max_query_tokens': 20,
    'max_document_tokens': 32,
    'query_template': '{text}',
    'document_template': '{text}',
}

# a row of the task registry for that layout below $MEDIR_DATA/F; tests add the counts
TASK_ROW = {'title': 'F', 'paper': 'mar', 'kind': 'retrieval', 'folder': 'F', 'language': 'en', 'split': 'test'}
TASK_ROW |= {'measures': ['nDCG@10'], 'access': 'licence'}

# moves every seed, so that what holds by the luck of one tiny model is found out (`make test-orders`)
MOVED = int(os.environ.get('MEDIR_TEST_SEED', 0))


@contextlib.contextmanager
def seeded(seed=0):
    """The random states of Python, numpy and torch begin at `seed` and are put back afterwards.
    What is drawn inside hangs on nothing that ran before."""
    import random, numpy as np, torch

    seed += 1000 * MOVED
    before = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])


def write_lines(path, lines):
    "Write text lines (or objects, as JSON) to `path`."
    path.parent.mkdir(parents=True, exist_ok=True)
    texts = (line if isinstance(line, str) else json.dumps(line, ensure_ascii=False) for line in lines)
    path.write_text(''.join(f'{text}\n' for text in texts), encoding='utf-8')
    return path


def in_full(size):
    "A size as papers print it, such as 4.6K or 18K*, as a number."
    digits, unit = size.rstrip('*')[:-1], size.rstrip('*')[-1].upper()
    return round(float(digits) * {'K': 1e3, 'M': 1e6}[unit])


def write_beir(folder, documents=DOCUMENTS, queries=QUERIES, qrels=QRELS, split='test', header=True):
    "Write a task in BEIR's layout."
    write_lines(folder / 'corpus.jsonl', [{'_id': i, 'title': t, 'text': b} for i, t, b in documents])
    write_lines(folder / 'queries.jsonl', [{'_id': i, 'text': t} for i, t in queries])
    first = ['query-id\tcorpus-id\tscore'] if header else []
    write_lines(folder / 'qrels' / f'{split}.tsv', [*first, *('\t'.join(map(str, r)) for r in qrels)])
    return folder


def code_cell(source, tags=(), **more):
    "A cell of code that was not run."
    empty = {'outputs': [], 'execution_count': None, 'metadata': {'tags': list(tags)}}
    return {'cell_type': 'code', 'source': source.splitlines(True), **empty, **more}


def write_notebook(path, *cells):
    "Write a notebook; a text is a cell of code, and the first of them holds the parameters."
    made = [
        code_cell(cell, [] if n else ['parameters']) if isinstance(cell, str) else cell for n, cell in enumerate(cells)
    ]
    named = [{'id': f'c{n}', **cell} for n, cell in enumerate(made)]
    metadata = {'kernelspec': {'name': 'python3', 'display_name': 'python3', 'language': 'python'}}
    core.write_json(path, {'cells': named, 'metadata': metadata, 'nbformat': 4, 'nbformat_minor': 5})
    return path


def refused(ran, *patterns):
    "A command that ended in one line (notes may stand before it) with status 2: the line."
    said = ran.err.strip().splitlines()
    assert ran.code == 2 and 'Traceback' not in ran.err + ran.out and len(said) <= 3, ran.err[-2000:]
    assert said[-1].startswith('medir: error: ') and all(line.startswith('medir: ') for line in said), ran.err[:2000]
    for pattern in patterns:
        assert re.search(pattern, said[-1]), f'{pattern!r} is not in {said[-1]!r}'
    return said[-1]


def refuses(call, *said):
    "An error of one line that says all of it."
    with pytest.raises(core.MedirError) as error:
        call()
    assert '\n' not in str(error.value) and all(part in str(error.value) for part in said), str(error.value)


class Page(html.parser.HTMLParser):
    "The elements of an HTML page with their attributes, its texts, and whether everything is closed."

    def __init__(self, page):
        super().__init__(convert_charrefs=True)
        self.elements, self.texts, self.open, self.listings = [], [], [], []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in ('meta', 'img', 'br', 'link', 'input', 'hr'):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, tag

    def handle_data(self, data):
        if self.open[-1:] == ['pre']:
            self.listings.append(data)
        if self.open[-1:] != ['style']:
            self.texts.append(data)

    def named(self, tag):
        return [attrs for name, attrs in self.elements if name == tag]

    @property
    def text(self):
        return ' '.join(' '.join(self.texts).split())


@pytest.fixture(scope='session', autouse=True)
def temporary(tmp_path_factory):
    """What libraries leave in the folder for temporary files goes with those of pytest: a killed kernel's connection
    file, an empty cache of torch's. The path is short, for sockets."""
    # its own folder goes at exit, when that of pytest may be gone already
    multiprocessing.util.get_temp_dir()
    folder = tmp_path_factory.getbasetemp() / 't'
    folder.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv('TMPDIR', str(folder))
        patch.setattr(tempfile, 'tempdir', str(folder))
        yield folder


@contextlib.contextmanager
def configured_models_forgotten():
    "What `configure` says of language models inside holds for nothing that runs afterwards."
    from medir_nb.generator import models

    options = models._OPTIONS
    before = dict(options)
    yield
    if options != before:
        options.clear()
        options.update(before)
        models.loaded_llm.cache_clear()


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch, request):
    "A home folder of the test's own; registries are read afresh."
    for name in ('MEDIR_REGISTRY', 'MEDIR_TEST_KEY', 'COLUMNS'):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv('MEDIR_HOME', str(tmp_path / 'home'))
    core.registry.cache_clear()
    # nothing may build on the random state that it finds
    if MOVED:
        core.seed_everything(zlib.crc32(f'{MOVED} {request.node.nodeid}'.encode()))
    with configured_models_forgotten():
        yield tmp_path / 'home'
    core.registry.cache_clear()


@pytest.fixture
def vllm_server(tmp_path, monkeypatch):
    """`with vllm_server(NAME, dtype) as options:` serves a language model of the registry by vLLM.
    An `LLM` with these options asks it. Skips where the environment `vllm` is in neither of its places."""
    from medir_nb.encoder.environments import environment_python
    from medir_nb.generator import llm_spec
    from medir_nb.generator.local_llm import weights_folder

    try:
        with core.places.at_home(os.environ.get('MEDIR_TEST_HOME')):
            python = environment_python('vllm')
    except core.MedirError as missing:
        pytest.skip(f'{missing.what}; {missing.fix}')

    @contextlib.contextmanager
    def serve(name, dtype):
        with socket.create_server(('127.0.0.1', 0)) as free:
            port = free.getsockname()[1]
        command = [python, '-m', 'vllm.entrypoints.openai.api_server', '--model', weights_folder(llm_spec(name))]
        command += ['--served-model-name', name, '--dtype', dtype, '--max-model-len', 2048, '--enforce-eager']
        command += ['--host', '127.0.0.1', '--port', port]
        clean = {k: v for k, v in os.environ.items() if k != 'PYTHONPATH'} | {'VLLM_CPU_KVCACHE_SPACE': '1'}
        log = tmp_path / 'vllm.txt'
        with log.open('w') as out:
            server = subprocess.Popen(
                list(map(str, command)), env=clean, stdout=out, stderr=out, start_new_session=True
            )
            try:
                wait_until_it_listens(server, port, log)
                yield {'backend': 'openai', 'base_url': f'http://127.0.0.1:{port}/v1', 'served_as': name}
            finally:
                os.killpg(server.pid, signal.SIGTERM)
                server.wait(60)

    return serve


def wait_until_it_listens(server, port, log, seconds=400):
    "Return as soon as a server takes connections; fail with its last words where it ends or never does."
    end = time.monotonic() + seconds
    while time.monotonic() < end and server.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(('127.0.0.1', port), 1):
            return
        time.sleep(0.5)
    pytest.fail(f'vLLM does not listen: {log.read_text()[-2000:]}')


@pytest.fixture
def own_registry(tmp_path, monkeypatch):
    "`own_registry(models={...}, tasks={...})` adds rows through $MEDIR_REGISTRY."

    def add(**files):
        for name, rows in files.items():
            write_lines(tmp_path / 'registry' / f'{name}.yaml', [json.dumps(rows)])
        monkeypatch.setenv('MEDIR_REGISTRY', str(tmp_path / 'registry'))
        core.registry.cache_clear()

    return add


@pytest.fixture
def beir(tmp_path):
    "A folder in BEIR's layout: 12 documents (one empty, one standing twice), 4 queries (q4 has no relevant document)."
    return write_beir(tmp_path / 'tiny', [*DOCUMENTS, DOCUMENTS[0]])


def in_process(main, name, monkeypatch, capfd):
    "`call(*arguments)` runs the command `main` in this process; exit code, stdout, stderr."

    def call(*arguments):
        monkeypatch.setattr(sys, 'argv', [name, *map(str, arguments)])
        capfd.readouterr()
        try:
            main()
            code = 0
        except SystemExit as e:
            code = e.code or 0
        return Ran(code, *capfd.readouterr())

    return call


@pytest.fixture
def medir(monkeypatch, capfd):
    "`medir(*arguments)` runs the command in this process."
    from medir_nb import workbook

    return in_process(lambda: workbook.main(), 'medir', monkeypatch, capfd)


@pytest.fixture
def train_command(monkeypatch, capfd):
    "`train_command(*arguments)` runs the trainer's command in this process."
    from medir_nb import trainer

    return in_process(lambda: trainer.main(), 'trainer', monkeypatch, capfd)


@pytest.fixture(scope='session')
def tiny_weights(tmp_path_factory):
    "Folders of a tiny encoder in sentence-transformers' form, and of a tiny language model."
    from tiny_models import as_sentence_transformer, make_model
    from test_trainer import make_llm

    base = tmp_path_factory.mktemp('weights')
    encoder = as_sentence_transformer(make_model('bert', base / 'bert'), str(base / 'encoder'), pooling='mean')
    return {'encoder': encoder, 'llm': make_llm('llama', base / 'llama', False)}


@pytest.fixture
def medir_process():
    "`medir_process(*arguments, **environment)` runs the command as its own process."

    def call(*arguments, timeout=120, **environment):
        command = [sys.executable, '-m', 'medir_nb.workbook', *map(str, arguments)]
        told = {**os.environ, **environment}
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=told)
        return Ran(done.returncode, done.stdout, done.stderr)

    return call


@pytest.fixture
def medir_data():
    "The folder with real data, which a machine may lack."
    path = os.environ.get('MEDIR_DATA')
    if not path or not Path(path).is_dir():
        pytest.skip('MEDIR_DATA names no folder: the real data are not on this machine')
    return Path(path)


@pytest.fixture
def fake_minilm(monkeypatch):
    """Every torch model becomes a hash of words (64 dimensions, at most 8 words), without the 7 s of importing
    sentence-transformers. The returned list holds `(role, texts)` of each call."""
    import numpy as np
    from medir_nb import encoder

    calls = []

    class Backend(encoder.TorchBackend):
        device, budget = 'cpu', 0

        def __init__(self, spec, role, device=None, home_folder=None):
            self.role = role

        def encode(self, texts, prompt=''):
            calls.append((self.role, list(texts)))
            words = [t.lower().split() for t in texts]
            rows = [[np.random.default_rng(zlib.crc32(w.encode())).normal(size=64) for w in ws[:8]] for ws in words]
            vectors = np.array([np.sum(r, 0) if r else np.ones(64) for r in rows], np.float32)
            return encoder.Encoded(
                vectors, np.array([min(len(w), 8) for w in words], np.int32), np.array([len(w) > 8 for w in words])
            )

    encoder.model._recent.clear()
    for name, kind in encoder.BACKENDS.items():
        if issubclass(kind, encoder.TorchBackend):
            monkeypatch.setitem(encoder.BACKENDS, name, Backend)
    monkeypatch.setattr(encoder, 'TorchBackend', Backend)
    yield calls
    encoder.model._recent.clear()


def chat_answer(text):
    "What a server of chats answers."
    choice = {'message': {'content': text}, 'finish_reason': 'stop'}
    return {'choices': [choice], 'usage': {'prompt_tokens': 10, 'completion_tokens': 5}}


def echo(body, text=None):
    return chat_answer(f'echo: {body["messages"][-1]["content"]}' if text is None else text)


class Fake:
    """A server that follows a script, then answers what `answer(body)` makes of a request (chat: `echo: PROMPT`).
    An item of the script is `(status, body, headers)`, or one of ok, hang, broken, cut, text:TEXT."""

    def __init__(self, *script, context=None, answer=echo):
        self.script, self.context, self.answer = list(script), context, answer
        self.bodies, self.headers, self.guard = [], [], threading.Lock()
        handler = type('Handler', (FakeHandler,), {'fake': self})
        self.server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), handler)
        self.server.daemon_threads = True
        self.url = f'http://127.0.0.1:{self.server.server_port}/v1'
        threading.Thread(target=self.server.serve_forever, kwargs={'poll_interval': 0.05}, daemon=True).start()

    @property
    def asked(self):
        return len(self.bodies)

    def close(self):
        self.server.shutdown()
        self.server.server_close()


class FakeHandler(http.server.BaseHTTPRequestHandler):
    fake = None

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers['content-length'])))
        with self.fake.guard:
            self.fake.bodies.append(body)
            self.fake.headers.append(dict(self.headers))
            what = self.fake.script.pop(0) if self.fake.script else 'ok'
        limit = self.fake.context
        asked = max(map(len, body['input'] if 'input' in body else [body['messages'][-1]['content']]))
        if limit and asked > limit:
            said = f"This model's maximum context length is {limit} tokens, you requested {asked}"
            return self.send(400, json.dumps({'error': {'message': said}}))
        if isinstance(what, tuple):
            return self.send(*what)
        if what == 'hang':
            return time.sleep(1.0)
        text = [what[5:]] if what.startswith('text:') else []
        good = json.dumps(self.fake.answer(body, *text))
        if what == 'cut':
            return self.cut_short(good)
        return self.send(200, good[:40] if what == 'broken' else good)

    def send(self, status, text='{}', headers=None):
        with contextlib.suppress(OSError):
            self.send_response(status)
            for name, value in {**(headers or {}), 'content-length': str(len(text.encode()))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(text.encode())

    def cut_short(self, text):
        "More is promised than comes."
        self.send_response(200)
        self.send_header('content-length', str(len(text)))
        self.end_headers()
        self.wfile.write(text[:30].encode())
        self.wfile.flush()
        self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, *_):
        pass


@pytest.fixture
def fake():
    servers = []

    def make(*script, **k):
        servers.append(Fake(*script, **k))
        return servers[-1]

    yield make
    for server in servers:
        server.close()


def pytest_configure(config):
    config.addinivalue_line('markers', 'medium: takes more than two seconds (make medium, and CI)')
    config.addinivalue_line('markers', 'slow: takes minutes (make slow)')


@pytest.fixture
def running(home):
    "`running(folder, …)` serves an index in this process; a client of it."
    import httpx
    from medir_nb import retrieval

    opened = []

    def start(folder, **options):
        told, listens = {}, threading.Event()

        def ready(server, address):
            told.update(server=server, address=address)
            listens.set()

        thread = threading.Thread(
            target=retrieval.serve, args=(folder,), kwargs={'port': 0, 'home_folder': home, 'ready': ready, **options}
        )
        thread.start()
        assert listens.wait(30)
        client = httpx.Client(base_url=told['address'], timeout=30)
        opened.append((told['server'], thread, client))
        return client

    yield start
    for server, thread, client in opened:
        client.close()
        server.should_exit = True
        thread.join(40)
        assert not thread.is_alive()
