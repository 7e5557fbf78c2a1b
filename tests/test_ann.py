"""Approximate indexes: exact where all is read, scores in double, damage named, nothing else touched."""

import medir_nb as mr, numpy as np, pytest
from conftest import refuses, table

from medir_nb.data import load_task
from medir_nb.encoder import array_vectors, encoder_spec
from medir_nb.encoder.contracts import contract_key
from medir_nb.evaluator.evaluation import found_of_exact
from medir_nb.retrieval import Index, ask, build_index, dense_search, exact_twin, parse, with_ann
from medir_nb.retrieval.nearest import AnnIndex, ann_factory, build_ann, scaled
from medir_nb.retrieval.runs import run_frame


def clustered(n, width, seed=0):
    "Vectors around a few centres, the last tenth twins of the first."
    random = np.random.default_rng(seed)
    made = random.normal(size=(20, width))[random.integers(0, 20, n)] + 0.3 * random.normal(size=(n, width))
    made[-(n // 10) :] = made[: n // 10]
    return made.astype(np.float32)


@pytest.mark.parametrize('similarity', ['cos', 'dot'])
def test_all_lists_probed_give_the_exact_list_ties_included(similarity, tmp_path):
    points = clustered(3000, 24)
    documents, asked, names = array_vectors(points), points[:30], [f'd{i:04d}' for i in range(3000)]
    build_ann(documents, tmp_path / 'a', 'ivfpq', similarity)
    index = AnnIndex(tmp_path / 'a', documents, similarity, probe=10**6)
    found = run_frame(names[:30], names, *index.search(scaled(asked, similarity), 40), 20)
    exact = dense_search(asked, documents, names[:30], names, 20, similarity)
    assert found[['query_id', 'doc_id']].equals(exact[['query_id', 'doc_id']])
    assert np.allclose(found.score, exact.score, rtol=1e-6)
    assert (found_of_exact(found, exact, 20) == 1).all()


def test_a_graph_among_lists_misses_none(tmp_path):
    points = np.random.default_rng(0).normal(size=(5000, 24)).astype(np.float32)
    documents, asked = array_vectors(points), scaled(points[:50], 'cos')
    build_ann(documents, tmp_path / 'a', 'IVF512_HNSW32,Flat')
    found = AnnIndex(tmp_path / 'a', documents, probe=512).search(asked, 20)[1]
    exact = np.argsort(-asked @ scaled(points, 'cos').T, axis=1)[:, :20]
    assert (np.sort(found) == np.sort(exact)).all()


@pytest.mark.slow
def test_codes_pick_and_vectors_score(tmp_path):
    points = clustered(10_000, 32)
    documents = array_vectors(points)
    about = build_ann(documents, tmp_path / 'a', 'ivfpq')
    assert about['factory'].startswith('OPQ16_32,IVF256') and about['bytes'] < 40 * len(points)
    asked = scaled(points[:50], 'cos')
    scores, positions = AnnIndex(tmp_path / 'a', documents, probe=64, oversample=8).search(asked, 20)
    of_vectors = np.einsum('qkd,qd->qk', scaled(points, 'cos')[positions].astype(float), asked.astype(float))
    assert np.allclose(scores, of_vectors, rtol=0, atol=1e-12) and (np.diff(scores, axis=1) <= 0).all()
    names = np.arange(len(points)).astype(str)
    exact = dense_search(points[:50], documents, names[:50], names, 20)
    assert found_of_exact(run_frame(names[:50], names, scores, positions, 20), exact, 20).mean() > 0.9


def test_fewer_than_asked_for_are_marked(tmp_path):
    documents = array_vectors(clustered(300, 8))
    build_ann(documents, tmp_path / 'a', 'ivfpq')
    scores, positions = AnnIndex(tmp_path / 'a', documents, probe=1).search(scaled(documents.chunk(0, 2), 'cos'), 300)
    assert ((positions < 0) == np.isneginf(scores)).all() and (positions < 0).any() and (positions[:, 0] >= 0).all()


@pytest.mark.parametrize('harm', ['ann.json', 'ann.faiss', 'of others'])
def test_a_damaged_index_is_named(harm, tmp_path):
    documents = array_vectors(clustered(300, 8))
    build_ann(documents if '.' in harm else array_vectors(clustered(299, 8)), tmp_path / 'a', 'ivfpq')
    (tmp_path / 'a' / harm).unlink(missing_ok=True)
    said = 'is damaged (FileNotFoundError' if '.' in harm else 'has 299 vectors of 300'
    refuses(lambda: AnnIndex(tmp_path / 'a', documents), f'the approximate index {said}', 'build the index again')


REFUSED = """
ann=ivf | unknown ann 'ivf'; did you mean 'ivfpq'?
probe=8 | probe=8 has no meaning here; write ann=ivfpq,probe=64
ann=hnsw,probe=0 | probe=0 has no meaning here
ann=ivfpq,stored=binary | ann=ivfpq is for one vector of numbers a text; leave ann out
ann=ivfpq,vectors=tokens | ann=ivfpq is for one vector of numbers a text; leave ann out
"""


@pytest.mark.parametrize('settings, said', table(REFUSED))
def test_settings_without_a_meaning_are_refused(settings, said):
    refuses(lambda: parse(f'minilm({settings})'), said)


def test_no_key_of_an_exact_system_moves():
    plain, quick = encoder_spec('minilm'), encoder_spec('minilm', ann='hnsw', probe=8, oversample=9)
    for role in ('query', 'document'):
        assert plain.vector_key(role) == quick.vector_key(role)
    assert contract_key(plain, {}) == contract_key(quick, {})
    system = with_ann('rrf(bm25,minilm(stored=float16))', 'hnsw')
    assert str(system) == 'rrf(bm25,minilm(ann=hnsw,stored=float16))'
    assert str(exact_twin(system)) == 'rrf(bm25,minilm(stored=float16))'
    assert str(exact_twin('minilm(ann=ivfpq,oversample=9,probe=8)')) == 'minilm'
    assert str(with_ann('bm25', 'hnsw')) == str(exact_twin('bm25')) == 'bm25'


@pytest.mark.parametrize('kind', ['ivfpq', 'hnsw'])
def test_the_factory_grows_with_the_collection(kind):
    made = [ann_factory(kind, n, width) for n in (1, 100, 10**4, 10**6, 4 * 10**7) for width in (6, 384, 4096)]
    assert len(set(made)) > 1 and all(('IVF' in name) == (kind == 'ivfpq') for name in made)


@pytest.mark.medium
@pytest.mark.parametrize('stored', ['float32', 'float16'])
def test_an_index_keeps_it_and_an_evaluation_says_what_it_loses(stored, tmp_path, home):
    task = load_task('hpo-lay', limit=100)
    system = f'minilm(ann=ivfpq,probe=1,stored={stored})'
    scores = mr.evaluate(task, system)
    assert scores.stats['settings']['ann'] == 'ivfpq, probe 1, oversample 4'
    [row] = [row for row in scores.rows() if row['measure'] == 'nDCG@10']
    assert 0.3 < row['recall@100_low'] <= row['recall@100'] <= row['recall@100_high'] < 1
    exact = mr.evaluate(task, str(exact_twin(system)))
    assert row['loss'] == pytest.approx(exact.mean('nDCG@10') - row['value']) and 'ann' not in exact.stats
    build_index(task, system, tmp_path / 'index')
    questions = task.queries.texts()[:5]
    kept = Index(tmp_path / 'index').search(questions, 10)
    asked = ask(system, task, questions, 10).run
    assert kept[['query_id', 'doc_id']].equals(asked[['query_id', 'doc_id']])
    [file] = (tmp_path / 'index').rglob('ann.faiss')
    file.write_bytes(file.read_bytes()[:500])
    refuses(lambda: Index(tmp_path / 'index').search(questions, 10), 'the approximate index is damaged')
