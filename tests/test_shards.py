"""A corpus in shards: whoever encodes, and whatever stops, the same vectors; nothing twice, and gaps are said."""

import contextlib, json, multiprocessing, os, random, resource, shutil, threading, time
from functools import partial
from pathlib import Path

import numpy as np, pytest
from tqdm import tqdm

from medir_nb.core import MedirError
from medir_nb.core.engines import LocalEngine, RayEngine, work_off
from medir_nb.core.files import write_lines
from medir_nb.data import corpus_task
from medir_nb.encoder import encode_corpus, Encoder
from medir_nb.encoder.shards import check_whole, count_shards, encode_shard, plan_shards, shard_vectors, ShardStore
from medir_nb.generator.expansion import as_queries
from medir_nb.generator.toy_llm import ToyServer
from medir_nb.retrieval import generate_shards, parse, search_shards
from medir_nb.retrieval.dense_stage import encoder_of
from medir_nb.retrieval.sharded import search_shard
from medir_nb.workbook import run_batch


class Hashes:
    "64 numbers of the words of a text; MEDIR_TEST_SECONDS a block are the work that a kill interrupts."

    name, revision, similarity_fn_name = 'hashes', '1', 'dot'

    def encode(self, texts, **kwargs):
        time.sleep(float(os.environ.get('MEDIR_TEST_SECONDS', 0)))
        if size := int(os.environ.get('MEDIR_TEST_DISK', 0)):  # bytes that a file may have on this node
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
        vectors = np.zeros((len(texts), 64), np.float32)
        for row, text in zip(vectors, texts, strict=True):
            assert 'poison' not in text, 'this text kills'
            for word in text.split():
                row[sum(word.encode()) % 64] += 1 / 3
        return vectors


ENCODER = Encoder(Hashes())


def corpus_of(folder, n, poison=()):
    text = lambda i: f'{"poison " * (i in poison)}abstract {i} of {i * i}'
    rows = ({'_id': f'd{i}', 'title': f'T{i % 7}', 'text': text(i)} for i in range(n))
    write_lines(folder / 'corpus.jsonl', rows)
    return folder / 'corpus.jsonl'


def whole(store):
    vectors, ids = shard_vectors(store, ENCODER, range(len(store.slices)))
    return vectors.chunk().tobytes(), ids


def encode_all(corpus, place, size, engine=None):
    store = plan_shards(corpus, ENCODER, place, size=size)
    left = [number for number in range(len(store.slices)) if not store.done(number)]
    done = work_off(engine or LocalEngine(1), partial(encode_shard, store.place, Hashes(), None), left, 'encode')
    check_whole(store, range(len(store.slices)))
    return store, sum(shard['encoded'] for shard in done.values())


@pytest.mark.slow
def test_a_process_that_is_killed_thirty_times_leaves_the_same_vectors(tmp_path):
    corpus = corpus_of(tmp_path, 100_000)
    once, _ = encode_all(corpus, tmp_path / 'once', 3000)
    random.seed(7)
    kills, ended, child = 0, False, multiprocessing.get_context('fork').Process
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv('MEDIR_TEST_SECONDS', '0.05')
        while not ended:
            process = child(target=encode_all, args=(corpus, tmp_path / 'killed', 3000))
            process.start()
            process.join(random.random() / 5 if kills < 30 else None)
            ended = process.exitcode == 0
            process.kill()
            process.join()
            kills += not ended
    assert kills == 30
    store, encoded = encode_all(corpus, tmp_path / 'killed', 3000)
    assert encoded == 0 and whole(store) == whole(once)


@pytest.mark.medium
def test_small_numbers_and_shares_read_like_the_store_of_the_home_folder(tmp_path, medir):
    corpus = corpus_of(tmp_path, 50)
    for form in ('float32', 'float16', 'int8'):
        line = ['encode', corpus, '--system', 'minilm', '--to', tmp_path / form, '--size', 20, '--dtype', form]
        for share in ('1/2', '2/2'):
            assert medir(*line, '--shard', share).code == 0
        store = plan_shards(corpus, encoder_of(parse(f'minilm(stored={form})')), tmp_path / form, size=20)
        vectors, ids = shard_vectors(store, encoder_of(parse(f'minilm(stored={form})')), range(3))
        made = encode_corpus(encoder_of(parse('minilm')), corpus_task(corpus).corpus, 'document')
        assert ids == [f'd{i}' for i in range(50)]
        assert np.abs(vectors.chunk() - made.chunk()).max() < {'float32': 1e-6, 'float16': 1e-3, 'int8': 2e-3}[form]


def test_a_shard_that_always_fails_is_named_and_the_others_are_whole(tmp_path, capfd):
    corpus = corpus_of(tmp_path, 70, poison={25})
    with pytest.raises(MedirError, match='1 of 7 shards failed: 2;'):
        encode_all(corpus, tmp_path / 'store', 10)
    store = plan_shards(corpus, ENCODER, tmp_path / 'store', size=10)
    assert 'shard 2 failed on this machine: AssertionError: this text kills' in capfd.readouterr().err
    assert list(count_shards(store).missing) == [0, 0, 10, 0, 0, 0, 0]
    with pytest.raises(MedirError, match='10 texts are missing in shards 2'):
        check_whole(store, range(7))


def test_two_drivers_on_one_store_write_what_one_writes(tmp_path):
    corpus = corpus_of(tmp_path, 5000)
    once, _ = encode_all(corpus, tmp_path / 'once', 1000)
    child = multiprocessing.get_context('fork').Process
    both = [child(target=encode_all, args=(corpus, tmp_path / 'two', 1000)) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join()
    assert [process.exitcode for process in both] == [0, 0]
    store, encoded = encode_all(corpus, tmp_path / 'two', 1000)
    assert encoded == 0 and whole(store) == whole(once)


@pytest.mark.parametrize(('sizes', 'unit', 'total'), [((3, 40), 'text', 43), ((3, None), 'shard', 2)])
def test_a_bar_counts_shards_where_their_texts_are_not_known(monkeypatch, sizes, unit, total):
    bars = []

    def recorded(**options):
        bars.append((options['unit'], options['total']))
        return tqdm(disable=True)

    monkeypatch.setattr('medir_nb.core.engines.progress', recorded)
    work_off(LocalEngine(1), abs, [0, 1], 'counting', sizes.__getitem__)
    assert bars == [(unit, total)]


QUESTIONS = as_queries(['q1', 'q2', 'q3'], ['abstract 7 of 49', 'T3', 'of'])


def test_lists_of_shards_are_the_list_of_the_whole_with_its_ties(tmp_path, home):
    corpus = corpus_of(tmp_path, 500)
    stores = [encode_all(corpus, tmp_path / str(size), size)[0].place for size in (500, 60)]
    whole, merged = (search_shards(place, QUESTIONS, 70, LocalEngine(1), model=Hashes()) for place in stores)
    assert whole.duplicated(['query_id', 'score']).sum() > 100
    assert whole.equals(merged)
    with pytest.raises(MedirError, match='there is no store of shards; make one: medir encode'):
        search_shards(tmp_path, QUESTIONS, 3, LocalEngine(1))


@pytest.mark.slow
def test_a_worker_that_is_killed_costs_its_shard_and_one_that_always_dies_is_named(tmp_path):
    done = work_off(LocalEngine(2), partial(dies_once, str(tmp_path)), list(range(6)), 'dying')
    assert done == {number: number for number in range(6)}
    with pytest.raises(MedirError, match='1 of 3 shards failed: 1;'):
        work_off(LocalEngine(2), dies_on_one, [0, 1, 2], 'dying')


def dies_on_one(number):
    return os._exit(9) if number == 1 else number


def dies_once(folder, number):
    mark = Path(folder) / 'died'
    if number == 3 and not mark.exists():
        mark.touch()
        os._exit(9)
    return number


@pytest.fixture(scope='module')
def nodes(tmp_path_factory):
    pytest.importorskip('ray', reason='Ray is not installed: pip install "medir_nb[ray]"')
    from ray_cluster import cluster_of

    with cluster_of(3, tmp_path_factory.mktemp('agent')) as nodes:
        RayEngine(2, nodes.cluster.address)
        yield nodes


@pytest.fixture
def corpus_and_whole(tmp_path, monkeypatch):
    "A corpus of 40 shards, and what one process makes of it; from then on each block takes its time."
    corpus = corpus_of(tmp_path, 40_000)
    of_one = whole(encode_all(corpus, tmp_path / 'here', 1000)[0])
    monkeypatch.setenv('MEDIR_TEST_SECONDS', '0.3')
    return corpus, of_one


@pytest.mark.slow
def test_a_node_that_is_lost_while_encoding_costs_the_shard_in_work(tmp_path, nodes, corpus_and_whole):
    corpus, expected = corpus_and_whole
    with nodes.losing_one(tmp_path / 'ray', '*/done.json', 5):
        store, encoded = encode_all(corpus, tmp_path / 'ray', 1000, RayEngine(3))
    assert 39_000 <= encoded <= 40_000
    assert whole(store) == expected


@pytest.mark.slow
def test_thirty_killed_workers_of_a_cluster_leave_the_same_vectors(tmp_path, nodes, corpus_and_whole, monkeypatch):
    corpus, expected = corpus_and_whole
    monkeypatch.setenv('MEDIR_TEST_SECONDS', '1')
    killed, ended, draw = [], threading.Event(), random.Random(11)

    def kill():
        while len(killed) < 30 and not ended.wait(2 * draw.random()):
            if working := list(nodes.at_work()):
                os.kill(killed.append(draw.choice(working)) or killed[-1], 9)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        store, _ = encode_all(corpus, tmp_path / 'ray', 1000, RayEngine(3))
    finally:
        ended.set()
        thread.join()
    assert len(killed) == 30 and whole(store) == expected


def driver(address, corpus, place):
    RayEngine(1, address)
    encode_all(corpus, place, 1000, RayEngine(1))


@pytest.mark.slow
def test_a_driver_that_dies_goes_on_and_two_do_no_harm(tmp_path, nodes, corpus_and_whole):
    corpus, expected = corpus_and_whole
    child, place = multiprocessing.get_context('spawn').Process, tmp_path / 'ray'
    drivers = [child(target=driver, args=(nodes.cluster.address, corpus, place)) for _ in range(3)]
    drivers[0].start()
    while len(before := {file: file.stat().st_mtime_ns for file in place.glob('*/done.json')}) < 5:
        time.sleep(0.05)
    drivers[0].kill()
    for again in drivers[1:]:
        again.start()
    for each in drivers:
        each.join()
    assert [each.exitcode for each in drivers] == [-9, 0, 0]
    store, encoded = encode_all(corpus, place, 1000, RayEngine(1))
    assert encoded == 0 and whole(store) == expected
    assert all(file.stat().st_mtime_ns == written for file, written in before.items())


@pytest.mark.slow
def test_a_full_disk_on_one_node_is_no_harm(tmp_path, nodes, corpus_and_whole, capfd):
    corpus, expected = corpus_and_whole
    full = nodes.add(MEDIR_TEST_DISK='10000')
    try:
        store, encoded = encode_all(corpus, tmp_path / 'ray', 1000, engine := Noted(4))
    finally:
        nodes.remove(full)
    assert {outcome.node for outcome in engine.failed} == {full.node_id}
    assert encoded == 40_000 and whole(store) == expected


class Noted(RayEngine):
    failed = ()

    def map(self, *given, **needs):
        for outcome in super().map(*given, **needs):
            self.failed = [*self.failed, outcome] if outcome.error else self.failed
            yield outcome


@pytest.mark.slow
def test_a_shard_that_always_fails_is_named_by_a_cluster(tmp_path, nodes, capfd):
    corpus = corpus_of(tmp_path, 70, poison={25})
    with pytest.raises(MedirError, match='1 of 7 shards failed: 2;'):
        encode_all(corpus, tmp_path / 'store', 10, RayEngine(3))
    assert 'AssertionError: this text kills' in capfd.readouterr().err
    assert list(count_shards(ShardStore(tmp_path / 'store')).missing) == [0, 0, 10, 0, 0, 0, 0]
    with pytest.raises(MedirError, match='1 of 3 shards failed: 1;'):
        work_off(RayEngine(2), dies_on_one, [0, 1, 2], 'dying')
    assert 'its workers were killed' in capfd.readouterr().err


def slow_search(*given):
    time.sleep(0.3)
    return search_shard(*given)


@pytest.mark.slow
def test_a_node_that_is_lost_while_searching_changes_no_list(tmp_path, nodes, home, monkeypatch):
    store, _ = encode_all(corpus_of(tmp_path, 3000), tmp_path / 'store', 100)
    expected = search_shards(store.place, QUESTIONS, 20, LocalEngine(1), model=Hashes())
    shutil.rmtree(store.local / 'lists')
    monkeypatch.setattr('medir_nb.retrieval.sharded.search_shard', slow_search)
    with nodes.losing_one(store.local, 'lists/*/*.parquet', 5):
        assert search_shards(store.place, QUESTIONS, 20, RayEngine(3), model=Hashes()).equals(expected)


@pytest.mark.slow
def test_a_node_that_is_lost_while_generating_changes_no_text(tmp_path, nodes, home, monkeypatch):
    def write(messages):
        time.sleep(0.1)
        return f'It is a sign of disease {sum(messages[-1]["content"].encode())}.'

    server, corpus = ToyServer(write), corpus_of(tmp_path, 5)
    write_lines(tmp_path / 'queries.jsonl', [{'_id': f'q{n}', 'text': f'what is symptom {n}?'} for n in range(60)])
    monkeypatch.setenv('MEDIR_LLM_URL', server.url)
    monkeypatch.setenv('MEDIR_LLM_BACKEND', 'openai')
    texts, asked = [], {'size': 3, 'queries': str(tmp_path / 'queries.jsonl')}
    for engine in (LocalEngine(1), RayEngine(3)):
        place = tmp_path / type(engine).__name__
        monkeypatch.setenv('MEDIR_HOME', str(place))
        is_ray = engine.__class__ is RayEngine
        with nodes.losing_one(place, 'cassettes/shards/*/*', 5) if is_ray else contextlib.nullcontext():
            counts = generate_shards(str(corpus), 'bm25+hyde(qwen2-7b)', engine, **asked)
        assert counts.made.sum() == 60 and not counts.missing.any()
        texts.append(set((place / 'cassettes' / 'qwen2-7b.jsonl').read_text().splitlines()))
    assert texts[0] == texts[1]
    assert server.asked <= 120 + 9


@pytest.mark.slow
def test_a_node_that_is_lost_in_a_batch_changes_no_receipt(tmp_path, nodes, monkeypatch):
    batch, receipts, names = tmp_path / 'two.yaml', [], ('cmirb_construction', 'r2med_generation')
    runs = [{'notebook': name, 'preset': 'smoke'} for name in names]
    batch.write_text(json.dumps({'workers': 2, 'runs': runs}))
    for engine in ('ray', 'local'):
        place = tmp_path / engine
        monkeypatch.setenv('MEDIR_HOME', str(place))
        with nodes.losing_one(place, 'runs/*', 1) if engine == 'ray' else contextlib.nullcontext():
            receipts.append(run_batch(batch, engine=engine))
    for of_nodes, here in zip(*receipts, strict=True):
        for name in ('notebook', 'preset', 'key', 'parts', 'revisions', 'execution', 'not_run', 'cassettes'):
            assert of_nodes[name] == here[name], name
        assert {name for name in of_nodes['files'] if of_nodes['files'][name] != here['files'][name]} == set()
