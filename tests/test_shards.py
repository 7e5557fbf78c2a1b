"""A corpus in shards: whoever encodes, and however often it is stopped, the same vectors; nothing twice, and gaps are said."""

import json, multiprocessing, os, random, time
from functools import partial
import numpy as np
import pytest
from medir_nb.core.engines import LocalEngine, work_off
from medir_nb.core.errors import MedirError
from medir_nb.encoder.model import Encoder
from medir_nb.data import corpus_task
from medir_nb.encoder import encode_corpus
from medir_nb.encoder.shards import check_whole, count_shards, encode_shard, plan_shards, shard_vectors
from medir_nb.retrieval import parse
from medir_nb.retrieval.dense_stage import encoder_of


class Hashes:
    "64 numbers of the words of a text; `MEDIR_TEST_SECONDS` a block is the work that a kill interrupts."

    name, revision, similarity_fn_name = 'hashes', '1', 'dot'

    def encode(self, texts, **kwargs):
        time.sleep(float(os.environ.get('MEDIR_TEST_SECONDS', 0)))
        vectors = np.zeros((len(texts), 64), np.float32)
        for row, text in zip(vectors, texts, strict=True):
            assert 'poison' not in text, 'this text kills'
            for word in text.split():
                row[sum(word.encode()) % 64] += 1 / 3
        return vectors


ENCODER = Encoder(Hashes())


def corpus_of(folder, n, poison=()):
    rows = (
        {'_id': f'd{i}', 'title': f'T{i % 7}', 'text': f'{"poison " * (i in poison)}abstract {i} of {i * i}'}
        for i in range(n)
    )
    path = folder / 'corpus.jsonl'
    path.write_text('\n'.join(map(json.dumps, rows)) + '\n')
    return path


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
    os.environ['MEDIR_TEST_SECONDS'] = '0.05'
    kills, ended, child = 0, False, multiprocessing.get_context('fork').Process
    try:
        while not ended:
            process = child(target=encode_all, args=(corpus, tmp_path / 'killed', 3000))
            process.start()
            process.join(random.random() / 5 if kills < 30 else None)
            ended = process.exitcode == 0
            process.kill()
            process.join()
            kills += not ended
    finally:
        del os.environ['MEDIR_TEST_SECONDS']
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
