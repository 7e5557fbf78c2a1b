"""Search in shards: the lists of one index, ties included."""

import numpy as np
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
