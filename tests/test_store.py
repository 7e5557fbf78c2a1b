"""The stores under real damage: processes killed with SIGKILL, torn and foreign files, two writers at once."""

import json, os, signal, subprocess, sys, time
from pathlib import Path
import numpy as np, pandas as pd, pytest
from medir_nb import core, encoder as encoding
from medir_nb.core import atomic_path, write_json
from medir_nb.data import load_task, task_from_frames
from medir_nb.encoder import Encoder, VectorStore, encode_corpus, corpus_keys, missing_texts
from medir_nb.evaluator import evaluate


class Letters:
    "A model of 26 dimensions that needs no weights and counts what it is asked."

    name, revision, similarity = 'letters', '1', 'cos'

    def __init__(self):
        self.asked = []

    def encode(self, texts):
        self.asked += texts
        return np.array(
            [[1 + t.lower().count(c) for c in 'abcdefghijklmnopqrstuvwxyz'] for t in texts], dtype=np.float32
        )


class Anonymous:
    def encode(self, texts):
        return Letters().encode(texts)


def frames(texts, queries=('q',)):
    "A task of plain texts."
    return task_from_frames(
        pd.DataFrame({'id': [f'd{i}' for i in range(len(texts))], 'text': texts}),
        pd.DataFrame({'id': [f'q{i}' for i in range(len(queries))], 'text': queries}),
        pd.DataFrame({'query_id': [f'q{i}' for i in range(len(queries))], 'doc_id': 'd0', 'relevance': 1}),
    )


def vectors(task, role='document', model=None):
    return encode_corpus(Encoder(model or Letters()), task.corpus if role == 'document' else task.queries, role)


def blocks(home):
    return sorted(home.rglob('block-*.safetensors'))


@pytest.fixture(scope='module')
def minilm():
    return Encoder('minilm')  # the weights load once; the home folder is looked up at each call


# ---------------------------------------------------------------- what is encoded, and what is not


def test_a_query_vector_is_never_served_for_a_document(home):
    class Asymmetric(Letters):
        def encode_queries(self, texts):
            return Letters.encode(self, texts) * 2

        def encode_corpus(self, texts):
            return Letters.encode(self, [f'{t["title"]} {t["text"]}'.strip() for t in texts])  # R2MED's own convention

    task = frames(['statins', 'metformin'], ['statins', 'metformin'])
    query, document = (vectors(task, r, Asymmetric()) for r in ('query', 'document'))
    assert query.stats['encoded'] == document.stats['encoded'] == 2 and (query.chunk() == 2 * document.chunk()).all()
    again = vectors(task, 'document', Asymmetric())
    assert again.stats['encoded'] == 0 and (again.chunk() == document.chunk()).all()


def test_a_text_is_encoded_once_wherever_it_stands(home):
    model = Letters()
    got = vectors(frames(['a', 'b', 'a', 'a', 'c']), model=model)
    assert sorted(model.asked) == ['a', 'b', 'c'] and got.stats['encoded'] == 3 and got.stats['cached'] == 2
    assert (got.chunk()[[0, 0, 4]] == got.chunk()[[2, 3, 4]]).all() and (got.chunk()[1] != got.chunk()[0]).any()
    assert (got.chunk() == Letters().encode(['a', 'b', 'a', 'a', 'c'])).all()


def test_a_grown_corpus_encodes_what_is_new(home):
    vectors(frames(['a', 'b']))
    model = Letters()
    task = frames(['new', 'b', 'a', 'newer'])
    assert [
        task.corpus.ids[i]
        for i in missing_texts(Encoder(model), corpus_keys(Encoder(model), task.corpus, 'document'), 'document')
    ] == ['d0', 'd3']
    got = vectors(task, model=model)
    assert model.asked == ['new', 'newer'] and (got.chunk() == Letters().encode(['new', 'b', 'a', 'newer'])).all()
    assert len(blocks(home)) == 2 and (got.chunk(1, 3) == Letters().encode(['b', 'a'])).all()


def test_another_revision_or_precision_is_another_store(home):
    class Newer(Letters):
        revision = '2'

    vectors(frames(['a']))
    model = Newer()
    assert vectors(frames(['a']), model=model).stats['encoded'] == 1 and model.asked == ['a']


@pytest.mark.parametrize('model, storable', [(Letters(), True), (Anonymous(), False)], ids=['named', 'anonymous'])
def test_an_own_object_is_stored_only_with_name_and_revision(home, beir, tmp_path, model, storable):
    scores = [evaluate(str(beir), model) for _ in range(2)]
    assert [s.stats['encoded_docs'] for s in scores] == ([12, 0] if storable else [12, 12])
    assert bool(blocks(home)) is storable
    rows = scores[1].rows()
    assert (
        rows[0]['system'] == ('letters' if storable else 'Anonymous')
        and rows[0]['value'] == scores[0].rows()[0]['value']
        and json.dumps(rows)
    )
    from medir_nb.evaluator import scores_table

    assert len(scores_table(scores)) == 4


def test_a_second_run_loads_neither_torch_nor_sentence_transformers(home, beir, medir):
    first = medir('evaluate', beir, '--system', 'minilm', '--system', 'bm25', '--json', home / 'one.json')
    assert first.code == 0, first.err
    code = (
        'import sys; from medir_nb import workbook\nsys.argv = ["medir", *sys.argv[1:]]\ntry: workbook.main()\nexcept SystemExit as e: assert not e.code, e.code\n'
        'print("LOADED", *(m for m in ("torch", "sentence_transformers", "transformers", "datasets", "mteb", "matplotlib") if m in sys.modules))'
    )
    second = subprocess.run(
        [
            sys.executable,
            '-c',
            code,
            'evaluate',
            str(beir),
            '--system',
            'minilm',
            '--system',
            'bm25',
            '--json',
            str(home / 'two.json'),
        ],
        capture_output=True,
        text=True,
    )
    assert second.returncode == 0, second.stderr
    assert second.stdout.splitlines()[-1] == 'LOADED'
    one, two = (json.loads((home / f).read_text()) for f in ('one.json', 'two.json'))
    same = lambda rows: [
        {k: v for k, v in r.items() if k not in ('seconds', 'encoded_docs', 'cached_docs')} for r in rows
    ]
    assert same(one) == same(two)
    assert [r['encoded_docs'] for r in two] == [0] * 4 and two[0]['cached_docs'] == 12 and one[0]['encoded_docs'] == 12


# ---------------------------------------------------------------- kill -9

ENCODE = """
import sys
from medir_nb.encoder import Encoder, encode_corpus, store
from medir_nb.data import load_task
store._BLOCK = 8
encode_corpus(Encoder("minilm"), load_task("hpo-lay", limit=200).corpus, "document")
"""


def wait_for(condition, process=None, seconds=90):
    end = time.time() + seconds
    while not condition():
        assert time.time() < end, 'it did not happen in time'
        assert process is None or process.poll() is None, 'the process ended before it could be killed'
        time.sleep(0.01)


@pytest.mark.medium
def test_kill_while_encoding(home, minilm, monkeypatch, tmp_path):
    monkeypatch.setattr(encoding.store, '_BLOCK', 8)
    task = load_task('hpo-lay', limit=200)
    monkeypatch.setenv('MEDIR_HOME', str(tmp_path / 'unkilled'))
    whole = encode_corpus(minilm, task.corpus, 'document')
    monkeypatch.setenv('MEDIR_HOME', str(home))
    process = subprocess.Popen([sys.executable, '-c', ENCODE], stderr=subprocess.DEVNULL)
    wait_for(lambda: len(blocks(home)) >= 2, process)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    kept = len(blocks(home))
    assert 2 <= kept < 25
    resumed = encode_corpus(minilm, task.corpus, 'document')
    assert resumed.stats['encoded'] == whole.stats['encoded'] - 8 * kept  # what was written is not encoded again
    assert (resumed.chunk() == whole.chunk()).all() and (resumed.tokens == whole.tokens).all()
    assert encode_corpus(minilm, task.corpus, 'document').stats['encoded'] == 0


WRITE = """
import sys, time
from pathlib import Path
from medir_nb.core import atomic_path
with atomic_path(sys.argv[1]) as tmp, open(tmp, "w") as f:
    for i in range(10_000):
        f.write("new " * 100); f.flush(); time.sleep(0.01)
"""


def test_kill_while_a_file_is_written(home):
    target = home / 'out' / 'table.md'
    write_json(target, 'old')
    old = target.read_bytes()
    process = subprocess.Popen([sys.executable, '-c', WRITE, str(target)])
    parts = lambda: [p for p in target.parent.glob('.*.part') if p.stat().st_size > 1000]
    wait_for(parts, process)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert target.read_bytes() == old and parts()
    write_json(target, 'next')
    assert json.loads(target.read_text()) == 'next'


def test_leftovers_of_a_killed_writer_disturb_no_store(home, beir):
    first = evaluate(str(beir), Letters())
    evaluate(str(beir), 'bm25')
    for folder in {p.parent for p in home.rglob('*') if p.is_file()}:
        (folder / '.block-000007.safetensors.abc.part').write_bytes(b'half')
        (folder / '.table.arrow.x.part').write_bytes(b'')
    task = load_task(str(beir))
    again = evaluate(task, Letters())
    assert again.stats['encoded_docs'] == 0 and again.rows()[0]['value'] == first.rows()[0]['value']


@pytest.mark.parametrize('when', ['error', 'good'])
def test_atomic_path_leaves_no_part(home, when):
    target = home / 'a.txt'
    try:
        with atomic_path(target) as tmp:
            tmp.write_text('x')
            if when == 'error':
                raise ValueError
    except ValueError:
        pass
    assert [p.name for p in home.iterdir()] == (['a.txt'] if when == 'good' else [])


# ---------------------------------------------------------------- damage


def foreign(path):
    "The block of another contract, under this name."

    class Other(Letters):
        name = 'other'

    vectors(frames(['only here']), model=Other())
    path.write_bytes(next(p for p in blocks(path.parents[3]) if 'other' in str(p)).read_bytes())


def header(text):
    def damage(path):
        path.write_bytes(len(text).to_bytes(8, 'little') + text + b'\0' * 100)

    return damage


DAMAGE = {
    'truncated': lambda p: p.write_bytes(p.read_bytes()[:-100]),
    'cut in its header': lambda p: p.write_bytes(p.read_bytes()[:40]),
    'zero length': lambda p: p.write_bytes(b''),
    'foreign': foreign,
    'longer': lambda p: p.write_bytes(p.read_bytes() + b'x'),
    'garbage': lambda p: p.write_bytes(bytes(range(256)) * 8),
    'text': lambda p: p.write_text('not a block at all, but a note of somebody'),
    'no object': header(b'[1, 2]'),
    'no tensors': header(b'{"__metadata__": {}}'),
}


@pytest.mark.parametrize('damage', DAMAGE)
def test_a_damaged_block_is_named_set_aside_and_rebuilt(home, beir, capfd, damage):
    first = evaluate(str(beir), Letters())
    block = next(p for p in blocks(home) if p.parent.name == 'document')
    DAMAGE[damage](block)
    capfd.readouterr()
    again = evaluate(str(beir), Letters())
    said = capfd.readouterr().err
    assert said.count('medir: ') == 1 and str(block) in said and said.count('\n') == 1
    assert [p.name for p in home.rglob('*.bad')] == [f'{block.name}.bad'] and again.stats['encoded_docs'] == 12
    assert [r['value'] for r in again.rows()] == [r['value'] for r in first.rows()]
    assert evaluate(str(beir), Letters()).stats['encoded_docs'] == 0 and not capfd.readouterr().err


def test_only_the_damaged_block_is_encoded_again(home, monkeypatch):
    monkeypatch.setattr(encoding.store, '_BLOCK', 3)
    texts = [f'text {chr(97 + i)}' for i in range(10)]
    vectors(frames(texts))
    block = blocks(home)[1]
    block.write_bytes(block.read_bytes()[:-1])
    model = Letters()
    got = vectors(frames(texts), model=model)
    assert model.asked == texts[3:6] and (got.chunk() == Letters().encode(texts)).all()


@pytest.mark.parametrize(
    'damage',
    [lambda b: b[:-50], lambda b: b[:10], lambda b: b'', lambda b: b'garbage' * 30],
    ids=['cut', 'head only', 'empty', 'garbage'],
)
def test_a_torn_corpus_is_rebuilt(home, beir, damage, capfd):
    first = load_task(str(beir)).fingerprint
    for arrow in (home / 'corpora').glob('*.arrow'):
        arrow.write_bytes(damage(arrow.read_bytes()))
    capfd.readouterr()
    assert load_task(str(beir)).fingerprint == first
    assert capfd.readouterr().err.count('is torn and is rebuilt') == 2


@pytest.mark.parametrize('damage', ['missing', 'cut', 'empty'])
def test_a_torn_report_of_a_corpus_is_rebuilt(home, beir, damage):
    first = load_task(str(beir)).fingerprint
    for f in (home / 'corpora').glob('*.json'):
        f.unlink() if damage == 'missing' else f.write_text(f.read_text()[:10] if damage == 'cut' else '')
    assert load_task(str(beir)).fingerprint == first


@pytest.mark.parametrize('damage', ['cut', 'empty', 'garbage', 'missing'])
def test_a_broken_bm25_index_is_refused_once_then_rebuilt(home, beir, medir, damage):
    first = medir('evaluate', beir, '--system', 'bm25')
    for f in (home / 'bm25').rglob('*'):
        if not f.is_file() or f.name == 'whole':
            continue
        if damage == 'missing':
            f.unlink()
        else:
            f.write_bytes(f.read_bytes()[:-7] if damage == 'cut' else b'' if damage == 'empty' else b'x' * 60)
    second = medir('evaluate', beir, '--system', 'bm25')
    assert second.code in (0, 2) and 'Traceback' not in second.err
    if second.code:
        assert 'the stored index is broken' in second.err.splitlines()[-1] and second.err.splitlines()[-1].startswith(
            'medir: error: '
        )
    third = medir('evaluate', beir, '--system', 'bm25')
    value = lambda r: [l.split('|')[6] for l in r.out.splitlines()[2:]]
    assert third.code == 0 and value(third) == value(first) != []


# ---------------------------------------------------------------- two at once

TWO = """
import sys, time
import numpy as np, pandas as pd
sys.path.insert(0, sys.argv[1])
from test_store import Letters, frames
from medir_nb import encoder
encoder.store._BLOCK = 5
class Slow(Letters):
    def encode(self, texts): time.sleep(0.03); return super().encode(texts)
model = Slow()
got = encoder.encode_corpus(encoder.Encoder(model), frames([f"text {i}" for i in range(60)]).corpus, "document")
assert (got.chunk() == Letters().encode([f"text {i}" for i in range(60)])).all()
print(len(model.asked))
"""


@pytest.mark.medium
def test_two_processes_write_one_copy(home):
    both = [
        subprocess.Popen([sys.executable, '-c', TWO, str(Path(__file__).parent)], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    asked = [int(p.communicate(timeout=60)[0]) for p in both]
    assert [p.returncode for p in both] == [0, 0] and sum(asked) == 60
    store = VectorStore(Encoder(Letters()).spec, 'document')
    keys = np.concatenate([s['keys'] for s in store.small])
    assert len(keys) == len(np.unique(keys, axis=0)) == 60 and len(blocks(home)) == 12


def test_a_killed_writer_frees_its_lock(home):
    code = 'import sys, time; from medir_nb.core import lock\nwith lock(sys.argv[1]): print("held", flush=True); time.sleep(60)'
    process = subprocess.Popen([sys.executable, '-c', code, str(home / 'store')], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == 'held\n'
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    with core.lock(home / 'store').acquire(timeout=5):
        pass


# ---------------------------------------------------------------- shapes


@pytest.mark.parametrize('size', [1, 3, 7, 100])
def test_any_chunk_equals_the_array(home, monkeypatch, size):
    monkeypatch.setattr(encoding.store, '_BLOCK', size)
    texts = [f'{i % 17} text {"abc"[i % 3]}' for i in range(40)]
    vectors(frames(texts[10:20]))
    got, plain = vectors(frames(texts)), Letters().encode(texts)
    assert all(
        (got.chunk(i, j) == plain[i:j]).all() and got.chunk(i, j).shape == plain[i:j].shape
        for i in range(0, 41, 5)
        for j in (*range(i, 45, 7), None)
    )
