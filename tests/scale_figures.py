"""Figures of work in shards, each printed as a line of JSON. Times are seconds of a clock and, since a machine is
seldom alone, of processors (all processes of the work together).

    python tests/scale_figures.py engine --texts 20000 [--system minilm] [--rounds 3]
    python tests/scale_figures.py shards
    python tests/scale_figures.py million

`engine` encodes with two processes, each with its share, and with two actors of a Ray cluster on this machine.
`shards` gives the cost of a shard of ten texts, of 10 to 1,000 shards, with vectors that cost nothing.
`million` encodes and searches a million texts."""

import argparse, json, multiprocessing, tempfile, threading, time
from functools import partial
from pathlib import Path
import numpy as np
import psutil
from test_shards import ENCODER, Hashes, QUESTIONS, corpus_of
from ray_cluster import cluster_of
from medir_nb.core.engines import LocalEngine, RayEngine, share_of, work_off
from medir_nb.data import load_task
from medir_nb.encoder.shards import check_whole, encode_shard, plan_shards
from medir_nb.retrieval import parse, search_shards
from medir_nb.retrieval.dense_stage import encoder_of


class Watched:
    "Processor seconds and the most memory (MB) of this process and all that it started, also of those that ended."

    def __enter__(self):
        self.seconds, self.peak, self.most, self.ended = {}, 0, {}, threading.Event()
        self.look(before := {})
        self.before, self.begin = before, time.perf_counter()
        self.thread = threading.Thread(target=self.follow)
        self.thread.start()
        return self

    def look(self, into):
        for process in [me := psutil.Process(), *me.children(recursive=True)]:
            try:
                times, memory = process.cpu_times(), process.memory_info()
            except psutil.Error:
                continue
            into[process.pid] = times.user + times.system
            is_worker = process is me or 'Actor' in process.name() or 'python' in process.name()
            self.peak = max(self.peak, (memory.rss - memory.shared) / 1e6) if is_worker else self.peak

    def follow(self):
        while not self.ended.wait(1):
            self.look(self.seconds)

    def __exit__(self, *error):
        self.wall = time.perf_counter() - self.begin
        self.ended.set()
        self.thread.join()
        self.look(self.seconds)
        self.processor = sum(spent - self.before.get(pid, 0) for pid, spent in self.seconds.items())


def say(**figures):
    print(json.dumps({name: round(value, 3) if isinstance(value, float) else value for name, value in figures.items()}))


def encode(store, spec, engine, share=None):
    left = share_of([number for number in range(len(store.slices)) if not store.done(number)], share)
    work = partial(encode_shard, store.place, spec, None)
    work_off(engine, work, left, 'encode', lambda number: store.slices[number].texts)


def texts_of(folder, n):
    "So many definitions of the embedded task, with a number before each, since a text is encoded once."
    corpus = load_task('hpo-lay-full').corpus
    texts = corpus.texts()
    rows = ({'_id': f'd{i}', 'text': f'{i}. {texts[i % len(texts)]}'} for i in range(n))
    (path := folder / 'corpus.jsonl').write_text('\n'.join(map(json.dumps, rows)))
    return path


def model_of(system):
    "An encoder and what workers are told of it; hashes: one that takes $MEDIR_TEST_SECONDS a shard, as a GPU would."
    encoder = ENCODER if system == 'hashes' else encoder_of(parse(system))
    return encoder, Hashes() if system == 'hashes' else encoder.spec


def plain(place, system, share):
    encoder, told = model_of(system)
    encode(plan_shards(place.parent / 'corpus.jsonl', encoder, place, size=1000), told, LocalEngine(1), share)


def measure_engine(folder, texts, system, rounds):
    corpus = corpus_of(folder, texts) if system == 'hashes' else texts_of(folder, texts)
    encoder, told = model_of(system)
    child = multiprocessing.get_context('spawn').Process
    for round_ in range(rounds):
        place = folder / f'plain{round_}'
        store = plan_shards(corpus, encoder, place, size=1000)
        with Watched() as two:
            both = [child(target=plain, args=(place, system, share)) for share in ('1/2', '2/2')]
            for process in both:
                process.start()
            for process in both:
                process.join()
        check_whole(store, range(len(store.slices)))
        store = plan_shards(corpus, encoder, folder / f'ray{round_}', size=1000)
        with Watched() as actors:
            encode(store, told, RayEngine(2))
        check_whole(store, range(len(store.slices)))
        for name, met, store in (('two processes', two, place), ('two actors', actors, folder / f'ray{round_}')):
            in_shards = sum(json.loads(file.read_text())['seconds'] for file in store.glob('*/done.json'))
            spent = {'seconds': met.wall, 'processor': met.processor, 'outside_shards': 1 - in_shards / 2 / met.wall}
            say(figure='engine', texts=texts, system=system, by=name, **spent)


def measure_shards(folder):
    corpus = corpus_of(folder, 10_000).read_text().splitlines(keepends=True)
    for many in (10, 100, 1000):
        for name, engine in (('one process', LocalEngine(1)), ('one actor', RayEngine(1))):
            (part := folder / f'{many}.jsonl').write_text(''.join(corpus[: many * 10]))
            store = plan_shards(part, ENCODER, folder / f'{name}{many}', size=10)
            work, ends = partial(encode_shard, store.place, Hashes(), None), []
            for outcome in engine.map(work, range(many)):
                assert not outcome.error
                ends.append((time.perf_counter(), time.process_time()))
            check_whole(store, range(many))
            # between one end and the next: without the start of a worker; `processor` is that of this process alone
            apart, here = np.diff(ends, axis=0).T * 1000
            quartiles = [round(t, 2) for t in np.quantile(apart, [0.25, 0.5, 0.75])]
            say(figure='shards', shards=many, by=name, ms_a_shard=quartiles, processor_ms=float(np.median(here)))


def measure_million(folder):
    for n in (100_000, 1_000_000):
        (place := folder / str(n)).mkdir()
        corpus = corpus_of(place, n)
        store = plan_shards(corpus, ENCODER, place / 'store')
        with Watched() as met:
            encode(store, Hashes(), RayEngine(2))
        check_whole(store, range(len(store.slices)))
        say(figure='million', work='encode', texts=n, seconds=met.wall, processor=met.processor, peak_mb=met.peak)
        with Watched() as met:
            run = search_shards(store.place, QUESTIONS, 100, RayEngine(2), model=Hashes())
        assert len(run) == 300
        say(figure='million', work='search', texts=n, seconds=met.wall, processor=met.processor, peak_mb=met.peak)


if __name__ == '__main__':
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('figure', choices=['engine', 'shards', 'million'])
    parser.add_argument('--texts', type=int, default=20_000)
    parser.add_argument('--system', default='minilm')
    parser.add_argument('--rounds', type=int, default=3)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, cluster_of(2, name) as nodes:
        RayEngine(2, nodes.cluster.address)
        given = [asked.texts, asked.system, asked.rounds] if asked.figure == 'engine' else []
        globals()[f'measure_{asked.figure}'](Path(name), *given)
