"""Search in shards: the lists of one index, ties included."""

import subprocess
import sys
from pathlib import Path
import numpy as np
import pandas as pd
import pytest
from medir_nb.core.places import at_home
from medir_nb.data.corpus import Corpus, Queries, write_table
from medir_nb.retrieval.bm25 import BM25, BM25_PRESETS


def generated(n, of=Corpus, words=300, length=8, seed=0):
    "Short texts of few words, so that many scores are equal; one in twenty is empty."
    random = np.random.default_rng(seed)
    drawn = np.minimum(random.zipf(1.3, (n, length)) - 1, words - 1)
    rows = ((f'd{i}', '', ' '.join(f'w{w}' for w in row) if i % 20 else '', '') for i, row in enumerate(drawn))
    return write_table(rows, None, of)


@pytest.mark.parametrize('settings', [{}, BM25_PRESETS['gensim'], {'k1': 0.9, 'b': 0.4}])
def test_bm25_in_shards_lists_what_one_index_lists(settings, tmp_path):
    corpus, queries = generated(2000), generated(60, Queries, length=4, seed=1)
    runs, indexes = [], []
    for name, size in (('one', 10**6), ('seven', 300)):
        with at_home(tmp_path / name):
            indexes.append(BM25(corpus, shard=size, **settings))
            runs.append(indexes[-1].search(queries, 20))
    one, seven = runs
    assert len(indexes[1].index.parts) == 7 and one.equals(seven)
    assert (one.groupby('query_id').score.nunique() < 20).mean() > 0.5  # ties are what is tested
    pairs = one[['query_id', 'doc_id']]
    assert indexes[0].score(queries, pairs).equals(indexes[1].score(queries, pairs))
    assert indexes[0].index.documents_with('w3') == indexes[1].index.documents_with('w3') > 0
    with at_home(tmp_path / 'seven'):
        again = BM25(corpus, **settings)
        assert again.cached and again.search(queries, 20).equals(seven)


MILLION = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from test_bm25_shards import generated
from medir_nb.core.places import at_home
from medir_nb.data.corpus import Queries
from medir_nb.retrieval.bm25 import BM25

folder, n, size = Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
documents, queries = generated(n, words=100_000, length=12), generated(300, Queries, words=100_000, length=4, seed=1)

def peak():  # of this process alone; ru_maxrss begins with that of the process that started it
    return next(int(line.split()[1]) for line in open('/proc/self/status') if line.startswith('VmHWM'))

before = peak()
with at_home(folder):
    index = BM25(documents, shard=size)
    after = peak()
    index.search(queries, 100).to_parquet(folder / 'run.parquet')
print((after - before) / 1024)
"""


@pytest.mark.slow
def test_a_million_documents_in_shards(tmp_path):
    "The lists of one index, ties included, and a build that takes the memory of a shard."
    runs, peaks = {}, {}
    for n, size in ((10**6, 10**7), (10**6, 10**5), (2 * 10**5, 10**5)):
        folder = tmp_path / f'{n}-{size}'
        folder.mkdir()
        command = [sys.executable, '-c', MILLION, str(Path(__file__).parent), str(folder), str(n), str(size)]
        peaks[n, size] = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        runs[n, size] = pd.read_parquet(folder / 'run.parquet')
    print({f'{n:,} documents, {size:,} a shard': f'{mb:,.0f} MB' for (n, size), mb in peaks.items()})
    whole, parts, few = peaks.values()
    assert runs[10**6, 10**7].equals(runs[10**6, 10**5])
    assert (runs[10**6, 10**7].groupby('query_id').score.nunique() < 100).mean() > 0.5
    assert parts < whole / 3 and parts < few + 150
