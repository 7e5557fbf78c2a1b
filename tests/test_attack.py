"""Killed at any moment: more than a hundred SIGKILLs at seeded random moments over encoding, cassettes, mining, training and batches.
After each, the same line goes on; what comes out is what an undisturbed run gives, nothing is computed twice beyond the unit of work
that was under way, and nothing is left behind."""

import collections, json, os, random, shutil, signal, subprocess, sys, time
from pathlib import Path
import pytest
from conftest import MOVED, Fake, write_lines
from medir_nb.core import find_root, read_json
from medir_nb.workbook import receipts

pytestmark = pytest.mark.slow

TESTS = Path(__file__).parent
WORDS = 'statins metformin insulin asthma vaccine migraine anaemia fracture appendix thyroid heart liver kidney lung skin bone'.split()
DOCUMENTS = [
    {
        '_id': f'd{i:02d}',
        'id': f'd{i:02d}',
        'title': w,
        'text': f'{w} is the first drug for type {i} diabetes',
        'doc': f'{w} is the first drug for type {i} diabetes',
    }
    for i, w in enumerate(WORDS)
]


class Jobs:
    "Processes that are forked from one that has everything imported."

    def __init__(self):
        environment = {
            **os.environ,
            'PYTHONPATH': f'{find_root(TESTS)}{os.pathsep}{TESTS}',
            'OMP_NUM_THREADS': '1',
            'TOKENIZERS_PARALLELISM': 'false',
            'MEDIR_PROGRESS': '0',
            'HF_HUB_OFFLINE': '1',
            'PYTHONWARNINGS': 'ignore',
        }
        self.server = subprocess.Popen(
            [sys.executable, str(TESTS / 'attack_jobs.py')],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        assert self.answer() == 'ready'

    def answer(self):
        return json.loads(self.server.stdout.readline())

    def ask(self, **request):
        self.server.stdin.write(json.dumps(request) + '\n')
        self.server.stdin.flush()
        return self.answer()

    def run(self, job, arguments, home, said, after=None):
        "The exit status of a job, killed `after` so many seconds where it is not done by then."
        pid, start = (
            self.ask(job=job, arguments=arguments, environment={'MEDIR_HOME': str(home)}, said=str(said)),
            time.monotonic(),
        )
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


@pytest.fixture(scope='module')
def folders(tmp_path_factory):
    from test_models import as_sentence_transformer, make_model
    from test_trainer import make_llm

    base = tmp_path_factory.mktemp('attacked')
    return {
        'encoder': as_sentence_transformer(make_model('bert', base / 'bert'), str(base / 'encoder'), pooling='mean'),
        'llm': make_llm('llama', base / 'llama', False),
    }


def litter(folder):
    "Files that no reader of a home folder has a use for."
    begun = [
        p
        for pattern in ('.*.part', '.*.part/**', '*.executing.ipynb', '*.bad', '.*.old', 'checkpoint-*', 'aside')
        for p in Path(folder).rglob(pattern)
    ]
    work = [p for p in Path(folder).rglob('.training/*') if not p.name.endswith('.lock')]
    return sorted({str(p) for p in [*begun, *work]})


def killed(jobs, job, make, kills, tmp_path, check, most=6):
    """Kill a job `kills` times. `make(folder)` → its arguments for a home folder below `folder`; `check(folder, kills, status)` is
    called where it came to its end. After at most `most` kills it may end undisturbed, and begins again in another folder."""
    said, rng, done, rounds, spent = tmp_path / 'said.txt', random.Random(f'{job} {MOVED}'), 0, 0, []

    def begin():
        nonlocal rounds
        folder = tmp_path / f'round{rounds}'
        folder.mkdir()
        rounds += 1
        return folder

    whole = begin()
    start = time.monotonic()
    assert jobs.run(job, make(whole), whole / 'home', said) == 0, said.read_text()[-3000:]
    length, reference = time.monotonic() - start, check(whole, 0)
    while done < kills:
        folder, here = begin(), 0
        while here < most and done < kills:
            status = jobs.run(job, make(folder), folder / 'home', said, rng.uniform(0, 1.02 * length))
            assert status in (0, -signal.SIGKILL), said.read_text()[-3000:]
            if status == 0:
                break
            here, done = here + 1, done + 1
        assert jobs.run(job, make(folder), folder / 'home', said) == 0, said.read_text()[-3000:]
        assert check(folder, here) == reference
        assert not litter(folder), litter(folder)
        spent.append(here)
        shutil.rmtree(folder)
    print(f'{job}: {done} kills in {rounds - 1} rounds {spent}, undisturbed {length:.1f} s')
    return done


def lines(path):
    return [json.loads(l) for l in Path(path).read_text(encoding='utf-8').splitlines()] if Path(path).exists() else []


KILLS = {'encode': 34, 'write': 30, 'mine': 20, 'train': 16, 'tune': 8, 'batch': 8}


def test_more_than_a_hundred_kills():
    assert sum(KILLS.values()) > 100


def test_encoding(jobs, folders, tmp_path):
    task = tmp_path / 'task'
    write_lines(
        task / 'corpus.jsonl',
        [{'_id': f'd{i:03d}', 'title': '', 'text': f'{WORDS[i % 16]} number {i}'} for i in range(96)],
    )
    write_lines(task / 'queries.jsonl', [{'_id': f'q{i}', 'text': f'what is {w}'} for i, w in enumerate(WORDS[:8])])
    write_lines(task / 'qrels' / 'test.tsv', [f'q{i}\td{i:03d}\t1' for i in range(8)])

    def make(folder):
        return dict(
            task=str(task), model=folders['encoder'], out=str(folder / 'x.run'), log=str(folder / 'log'), pause=0.02
        )

    def check(folder, kills):
        encoded = [t for texts in lines(folder / 'log') for t in texts]
        # four texts a block: those of a block that was under way are encoded again
        assert 104 <= len(encoded) <= 104 + 4 * kills and len(set(encoded)) == 104
        return (folder / 'x.run').read_text()

    killed(jobs, 'encode', make, KILLS['encode'], tmp_path, check)


@pytest.fixture
def server():
    "A language model whose answer hangs on the prompt alone."

    def answer(body):
        time.sleep(0.01)
        prompt = body['messages'][-1]['content']
        return {
            'choices': [
                {
                    'message': {
                        'content': f'{WORDS[sum(map(ord, prompt)) % 16]} answers {sum(map(ord, prompt)) * 7 % 1009}'
                    },
                    'finish_reason': 'stop',
                }
            ],
            'usage': {'prompt_tokens': 1, 'completion_tokens': 1},
        }

    made = Fake(answer=answer)
    yield made
    made.server.shutdown()
    made.server.server_close()


IN_FLIGHT = 8  # requests between two writes: four times the concurrency of two


def asked_since(server, marks, folder):
    "How often the server was asked for what this folder needed."
    before = marks.setdefault('all', 0)
    marks['all'] = len(server.bodies)
    marks[folder] = marks.get(folder, 0) + len(server.bodies) - before
    return marks[folder]


def test_cassettes(jobs, server, tmp_path):
    marks = {}

    def make(folder):
        asked_since(server, marks, folder)
        return dict(url=server.url, n=80, out=str(folder / 'texts.json'))

    def check(folder, kills):
        time.sleep(0.1)
        asked = asked_since(server, marks, folder)
        texts = json.loads((folder / 'texts.json').read_text())
        assert len(texts) == 80 and (kills or len(lines(folder / 'home' / 'cassettes' / 'smollm2.jsonl')) == 80)
        assert 80 <= asked <= 80 + IN_FLIGHT * kills, (asked, kills)
        return texts

    killed(jobs, 'write', make, KILLS['write'], tmp_path, check)


def test_mining(jobs, server, folders, tmp_path):
    documents, marks = write_lines(tmp_path / 'documents.jsonl', DOCUMENTS), {}

    def make(folder):
        asked_since(server, marks, folder)
        (folder / 'mined').mkdir(exist_ok=True)
        return dict(url=server.url, documents=str(documents), folder=str(folder / 'mined'), model=folders['encoder'])

    def check(folder, kills):
        time.sleep(0.1)
        asked, names = asked_since(server, marks, folder), sorted(p.name for p in (folder / 'mined').iterdir())
        assert names == ['candidates.jsonl', 'pairs.jsonl', 'queries.jsonl', 'selected.jsonl']
        first = marks.setdefault('undisturbed', asked)
        assert first <= asked <= first + IN_FLIGHT * kills, (asked, first, kills)
        return [(folder / 'mined' / n).read_text() for n in names]

    killed(jobs, 'mine', make, KILLS['mine'], tmp_path, check)


def trained(folder, log, steps, save_steps, kills):
    "What a finished training left, after a look at how many steps it computed."
    from medir_nb.core import file_fingerprint

    computed = lines(log)
    assert set(computed) == set(range(1, steps + 1)) and len(computed) <= steps + kills * save_steps, (
        len(computed),
        kills,
    )
    assert max(collections.Counter(computed).values()) <= kills + 1
    record = read_json(folder / 'medir.json')
    metrics = [
        {k: v for k, v in l.items() if k not in ('seconds', 'tokens_per_second')}
        for l in lines(folder / 'metrics.jsonl')
    ]
    return file_fingerprint(next(folder.rglob('model.safetensors'))), record['loss'], record['counts'], metrics


def test_training(jobs, folders, tmp_path):
    pairs = write_lines(
        tmp_path / 'pairs.jsonl',
        [
            {'query': f'what is {d["title"]}', 'pos': [d['text']], 'neg': [f'{d["title"]} is no drug', 'the risk']}
            for d in DOCUMENTS
        ],
    )

    def make(folder):
        settings = dict(
            task='contrastive',
            model=folders['encoder'],
            data=str(pairs),
            output='own',
            batch_size=2,
            negatives=1,
            epochs=2,
            save_steps=3,
            learning_rate=1e-3,
        )
        return dict(settings=settings, log=str(folder / 'log'), pause=0.03)

    def check(folder, kills):
        return trained(folder / 'home' / 'checkpoints' / 'own', folder / 'log', 16, 3, kills)

    killed(jobs, 'train', make, KILLS['train'], tmp_path, check)


def test_tuning_of_a_language_model(jobs, folders, tmp_path):
    answers = write_lines(
        tmp_path / 'answers.jsonl',
        [{'text': f'what is {d["title"]}', 'top_rewrite_query': d['text']} for d in DOCUMENTS],
    )

    def make(folder):
        settings = dict(
            task='sft',
            model=folders['llm'],
            data=str(answers),
            output='own',
            batch_size=2,
            epochs=1,
            save_steps=2,
            learning_rate=1e-3,
            warmup_steps=0,
            max_tokens=256,
            held_out=0.0,
        )
        return dict(settings=settings, log=str(folder / 'log'), pause=0.05)

    def check(folder, kills):
        return trained(folder / 'home' / 'checkpoints' / 'own', folder / 'log', 8, 2, kills)

    killed(jobs, 'train', make, KILLS['tune'], tmp_path, check, most=4)


# ---------------------------------------------------------------- batches: commands, kernels and all

COUNT = 'import os, time\nwith open(os.path.join(os.environ["MEDIR_ROOT"], "counter"), "a") as f: f.write(f"{n}\\n")\ntime.sleep(0.4)'
WRITE = 'from medir_nb.core import write_json\nfrom medir_nb.workbook import output_folder\nwrite_json(output_folder("toy")/"square.json", n * n)\nn * n'


def book(root):
    "A workbook with one notebook and a batch of three runs of it."
    cell = lambda i, source, tags=(): {
        'cell_type': 'code',
        'id': f'c{i}',
        'metadata': {'tags': list(tags)} if tags else {},
        'source': source.splitlines(True),
        'outputs': [],
        'execution_count': None,
    }
    told = {
        'cells': [cell(0, 'n: int = 1', ['parameters']), cell(1, COUNT), cell(2, WRITE)],
        'metadata': {'kernelspec': {'name': 'python3', 'display_name': 'python3', 'language': 'python'}},
        'nbformat': 4,
        'nbformat_minor': 5,
    }
    write_lines(root / 'settings.ini', ['[DEFAULT]'])
    write_lines(root / 'nbs' / 'toy.ipynb', [json.dumps(told)])
    write_lines(
        root / 'params' / 'batches' / 'all.yaml',
        ['workers: 2', 'runs:', *(f'- {{notebook: toy, parameters: {{n: {n}}}}}' for n in (1, 2, 3))],
    )
    return root


def batch(root, home, said, after=None):
    "The exit status of the batch; its process alone is killed, as a scheduler would."
    environment = {**os.environ, 'MEDIR_ROOT': str(root), 'MEDIR_HOME': str(home)}
    with open(said, 'a') as out:
        process = subprocess.Popen(
            [sys.executable, '-m', 'medir_nb.workbook', 'run', 'all'], stdout=out, stderr=out, env=environment
        )
    try:
        return process.wait(after)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def left_running(home):
    "Processes that still work for a home folder."

    def has(p):
        try:
            return str(home).encode() in (p / 'environ').read_bytes()
        except OSError:
            return False

    return [p.name for p in Path('/proc').glob('[0-9]*') if has(p)]


def test_batches(tmp_path):
    rng, done, rounds, said = random.Random(f'batch {MOVED}'), 0, 0, tmp_path / 'said.txt'
    root, start = book(tmp_path / 'whole'), time.monotonic()
    assert batch(root, root / 'home', said) == 0, said.read_text()[-3000:]
    length = time.monotonic() - start
    while done < KILLS['batch']:
        root, here = book(tmp_path / f'round{rounds}'), 0
        home, finished = root / 'home', {}
        rounds += 1
        while here < 4 and done < KILLS['batch']:
            status = batch(root, home, said, rng.uniform(0.5, length))
            # what had a receipt before the kill is never run again
            before, finished = finished, {r['key']: r for r in receipts(home)}
            assert all(finished[k] == r for k, r in before.items())
            if status == 0:
                break
            assert status == -signal.SIGKILL, said.read_text()[-3000:]
            here, done = here + 1, done + 1
        assert batch(root, home, said) == 0, said.read_text()[-3000:]
        after = {r['key']: r for r in receipts(home)}
        assert len(after) == 3 and all(after[k] == r for k, r in finished.items())
        assert sorted(read_json(Path(r['output']).parent / 'square.json') for r in after.values()) == [1, 4, 9]
        counted = collections.Counter((root / 'counter').read_text().split())
        assert set(counted) == {'1', '2', '3'} and sum(counted.values()) <= 3 + 2 * here, (counted, here)  # two workers
        end = time.monotonic() + 20
        while left_running(home) and time.monotonic() < end:
            time.sleep(0.2)
        assert not left_running(home) and not litter(home), litter(home)
    print(f'batch: {done} kills in {rounds} rounds, undisturbed {length:.1f} s')
