"""An index that keeps passages gives the documents that an evaluation gives, and replaces those of changed documents only."""

import dataclasses, json, random
import numpy as np, pandas as pd, pytest
from conftest import write_lines
from medir_nb import serving, systems
from medir_nb.core import MedirError
from medir_nb.data import Windows, parse_windows, task_from_frames
from medir_nb.serving import Index, Searcher, build_index, change_index
from medir_nb.serving.folding import Folded, is_settled
from medir_nb.walk import give_verdict, walk_steps
from medir_nb.walk.toy import write_toy_walk
from test_serving import QUESTIONS, WORDS, close, killed_at, wait_for
from test_serving import running  # noqa: F401 - a fixture
from test_reranker import shared_words  # noqa: F401 - a fixture

SETTINGS = [
    'tokens=7,overlap=2',
    'tokens=5,overlap=4,score=mean,k=2',
    'sentences=2,overlap=1',
    'sentences=1,score=mean',
]
SYSTEMS = ['bm25', 'bm25(gensim)', 'minilm', 'rrf(bm25,minilm)']


def long_documents(n, rng, longest=9):
    "Texts of a few sentences; the first fills the lists with its passages."
    lengths = [40, *(rng.randint(0, longest) for _ in range(n - 1))]
    return {
        f'd{place:03d}': ' '.join(f'The {" ".join(rng.choices(WORDS, k=4))} came.' for _ in range(length))
        for place, length in enumerate(lengths)
    }


def frame(documents):
    return pd.DataFrame({'id': list(documents), 'text': list(documents.values())})


def task_of(documents, said, **fields):
    queries = pd.DataFrame({'id': [f'q{n}' for n in range(1, 1 + len(QUESTIONS))], 'text': QUESTIONS})
    qrels = pd.DataFrame({'query_id': queries.id, 'doc_id': next(iter(documents)), 'relevance': 1})
    return task_from_frames(frame(documents), queries, qrels, passages=parse_windows(said), **fields)


def changed(documents, rng, number):
    "Some added, some deleted, some with one sentence more or less."
    after = dict(documents)
    for doc_id in rng.sample(sorted(after), 3):
        del after[doc_id]
    for doc_id in rng.sample(sorted(after), 4):
        after[doc_id] = f'{after[doc_id]} The {" ".join(rng.choices(WORDS, k=3))} went.'
    for place in range(3):
        after[f'n{number}-{place}'] = ' '.join(
            f'A {" ".join(rng.choices(WORDS, k=3))}.' for _ in range(rng.randint(1, 6))
        )
    return after


# --- the runs of an evaluation ---------------------------------------------------------------------------------------


@pytest.mark.medium
@pytest.mark.parametrize('said', SETTINGS)
@pytest.mark.parametrize('system', SYSTEMS)
def test_an_index_gives_the_documents_of_an_evaluation(system, said, home, tmp_path, fake_minilm):
    task = task_of(long_documents(60, random.Random(said)), said)
    build_index(task, system, tmp_path / 'index', home_folder=home)
    searcher = Searcher(tmp_path / 'index', home)
    assert len(searcher.index.searched.ids) == len(task.searched(home).corpus)
    for k in (1, 3, 10, 100):
        theirs = systems.search(system, task, k=k, home_folder=home, keep_self=True).run
        close(searcher.search(QUESTIONS, k), theirs)


@pytest.mark.medium
@pytest.mark.parametrize(
    'system',
    [
        'bm25>monobert@5',
        'bm25>monobert@3(complete=true)',
        'rrf(bm25,minilm)>monobert@8(complete=true)',
        'rrf(bm25,minilm>monobert@7)',
    ],
)
def test_a_reranker_reads_the_passages_of_the_first_documents(system, home, tmp_path, fake_minilm, shared_words):  # noqa: F811
    for said in ('sentences=2,overlap=1,k=2', 'sentences=1,score=mean'):
        task = task_of(long_documents(40, random.Random(said)), said)
        folder = tmp_path / said
        build_index(task, system, folder, home_folder=home)
        for k in (1, 4, 30):
            theirs = systems.search(system, task, k=k, home_folder=home, keep_self=True).run
            close(Searcher(folder, home).search(QUESTIONS, k), theirs, 1e-5)


def test_chinese_documents_are_cut_too(home, tmp_path):
    text = '缺铁是贫血最常见的原因。偏头痛发作时尽早服药。二甲双胍是二型糖尿病的首选药。'
    corpus = pd.DataFrame({'id': ['a', 'b'], 'text': [text * 3, '哮喘发作时吸入沙丁胺醇。']})
    build_index(corpus, 'bm25', tmp_path / 'index', home_folder=home, passages='sentences=1')
    searcher = Searcher(tmp_path / 'index', home)
    found = serving.hits(searcher, searcher.ranked(['偏头痛怎么办'], 1)[0])[0]
    assert (found['id'], found['passage']) == ('a', '偏头痛发作时尽早服药。') and len(searcher.index.searched.ids) == 10


@pytest.mark.medium
def test_scores_of_random_lists_are_those_of_a_run():
    from medir_nb.retrieval.folding import document_scores, settled_queries

    rng = np.random.default_rng(5)
    for draw in range(60):
        n = int(rng.integers(1, 30))
        parents, scores = rng.integers(0, 8, n), np.sort(rng.choice([0.1, 0.25, 0.5, 0.8, 0.9], n))[::-1]
        sizes = np.bincount(parents, minlength=8) + rng.integers(0, 3, 8)
        run = pd.DataFrame({'query_id': 'q', 'doc_id': [f'{d}#{i}' for i, d in enumerate(parents)], 'score': scores})
        # equal scores in a run stand by descending id, so the list is put in its order first
        order = np.lexsort((run.doc_id.to_numpy(str), run.score))[::-1]
        parents, scores, run = parents[order], scores[order], run.iloc[order]
        of_run = {str(document): int(size) for document, size in enumerate(sizes)}
        for windows in (Windows('tokens', 5), Windows('tokens', 5, score='mean', k=int(rng.integers(1, 4)))):
            for absent in (None, 0.0):
                theirs = document_scores(run, windows, of_run, absent).set_index('document')
                ours = Folded.of(parents, scores, windows, sizes, absent)
                assert set(map(str, ours.documents)) == set(theirs.index)
                np.testing.assert_allclose(ours.scores, theirs.score.loc[list(map(str, ours.documents))], rtol=1e-12)
            for k in (1, 2, 5):
                assert is_settled(parents, scores, windows, sizes, k) == bool(settled_queries(run, windows, k, of_run))


# --- updates ---------------------------------------------------------------------------------------------------------


@pytest.mark.medium
@pytest.mark.parametrize('said', ['tokens=7,overlap=2', 'sentences=1,score=mean'])
@pytest.mark.parametrize('system', ['bm25', 'minilm', 'rrf(bm25,minilm)'])
def test_an_updated_index_equals_a_fresh_one(system, said, home, tmp_path, fake_minilm):
    rng = random.Random(said)
    documents = long_documents(40, rng)
    build_index(task_of(documents, said), system, tmp_path / 'index', home_folder=home)
    for number in range(10):
        before, documents = documents, changed(documents, rng, number)
        if number % 2:
            update = change_index(tmp_path / 'index', everything=frame(documents), home_folder=home)
        else:
            new = {doc_id: text for doc_id, text in documents.items() if before.get(doc_id) != text}
            update = change_index(
                tmp_path / 'index', put=frame(new), delete=before.keys() - documents.keys(), home_folder=home
            )
        assert (update.generation, update.added, update.deleted) == (number + 2, 3, 3)
        if number in (0, 4, 9):
            fresh = tmp_path / f'fresh{number}'
            build_index(task_of(documents, said), system, fresh, home_folder=home)
            runs = [Searcher(place, home).search(QUESTIONS, 20) for place in (tmp_path / 'index', fresh)]
            pd.testing.assert_frame_equal(*runs, check_exact=True)
    updated, whole = Index(tmp_path / 'index').searched, Index(tmp_path / 'fresh9').searched
    assert sorted(zip(updated.corpus().ids, updated.corpus().texts())) == sorted(
        zip(whole.corpus().ids, whole.corpus().texts())
    )
    assert len(np.unique(updated.rows)) == len(updated.rows)


def test_only_the_passages_that_changed_are_encoded(home, tmp_path, fake_minilm):
    documents = {f'd{n}': f'Fever came on day {n}. Cough came on day {n}. Rash came on day {n}.' for n in range(30)}
    build_index(task_of(documents, 'sentences=1'), 'minilm', tmp_path / 'index', home_folder=home)
    fake_minilm.clear()
    documents['d7'] = documents['d7'].replace('Cough', 'Pain')
    del documents['d8']
    update = change_index(tmp_path / 'index', everything=frame(documents), home_folder=home)
    assert [text for role, texts in fake_minilm for text in texts] == ['Pain came on day 7.']
    assert (update.changed, update.deleted, update.encoded, update.cached) == (1, 1, 1, 2)
    searched = Index(tmp_path / 'index').searched
    assert len(searched.corpus()) == 87 and (~searched.alive).sum() == 6


@pytest.mark.medium
def test_a_kill_at_any_step_leaves_the_old_passages_or_the_new(home, tmp_path):
    rng, folder = random.Random(3), tmp_path / 'index'
    documents = long_documents(20, rng, 4)
    build_index(task_of(documents, 'sentences=1'), 'bm25', folder, home_folder=home)
    outcomes = set()
    for step in range(1, 60):
        after = changed(documents, rng, step)
        ended = killed_at(step, lambda: change_index(folder, everything=frame(after), home_folder=home))
        index = Index(folder)
        there = dict(zip(index.corpus().ids, index.corpus().texts()))
        assert there in (documents, after), step
        parts = {}
        for doc_id, body in zip(index.searched.corpus().documents, index.searched.corpus().texts()):
            parts.setdefault(doc_id, []).append(body)
        assert {doc_id: ' '.join(bodies) for doc_id, bodies in parts.items()} == there, step
        outcomes.add((ended, there == after))
        documents = there
        if ended:
            break
    assert (False, False) in outcomes and (True, True) in outcomes
    build_index(task_of(documents, 'sentences=1'), 'bm25', tmp_path / 'fresh', home_folder=home)
    runs = [Searcher(place, home).search(QUESTIONS, 20) for place in (folder, tmp_path / 'fresh')]
    pd.testing.assert_frame_equal(*runs, check_exact=True)


@pytest.mark.medium
@pytest.mark.parametrize('store', ['qdrant', 'lancedb'])
def test_a_database_gives_what_plain_files_give(store, home, tmp_path, fake_minilm):
    pytest.importorskip({'qdrant': 'qdrant_client', 'lancedb': 'lancedb'}[store])
    rng = random.Random(2)
    documents = long_documents(40, rng)
    task = task_of(documents, 'tokens=7,score=mean,k=2')
    for place, kind in (('flat', 'flat'), ('database', store)):
        build_index(task, 'minilm', tmp_path / place, store=kind, home_folder=home)
    for number in range(3):
        documents = changed(documents, rng, number)
        for place in ('flat', 'database'):
            change_index(tmp_path / place, everything=frame(documents), home_folder=home)
    flat, other = (Searcher(tmp_path / place, home).search(QUESTIONS, 10) for place in ('flat', 'database'))
    close(other, flat, 1e-5)
    index = Index(tmp_path / 'database', home)
    dim = index.manifest['parts'][0]['dimensions']
    rows = index.parts()[0].keeper.database.search(np.ones((1, dim), np.float32), 10_000)[0][0]
    assert sorted(rows) == sorted(index.searched.rows[index.searched.alive])
    serving.close_databases(tmp_path)


def test_an_index_of_passages_may_be_emptied_and_filled_again(home, tmp_path, fake_minilm):
    documents = long_documents(5, random.Random(1))
    task = task_of(documents, 'sentences=1')
    for system in ('rrf(bm25,minilm)', 'bm25'):
        folder = tmp_path / system
        build_index(task, system, folder, home_folder=home)
        change_index(folder, delete=[*documents], home_folder=home)
        empty = Searcher(folder, home)
        assert len(empty.index) == 0 and len(empty.search(QUESTIONS, 3)) == 0
        change_index(folder, put=frame(documents), home_folder=home)
        build_index(task, system, tmp_path / f'{system}-fresh', home_folder=home)
        runs = [Searcher(place, home).search(QUESTIONS, 20) for place in (folder, tmp_path / f'{system}-fresh')]
        pd.testing.assert_frame_equal(*runs, check_exact=True)


def test_documents_that_are_cut_otherwise_are_refused(home, tmp_path):
    task = task_of(long_documents(5, random.Random(1)), 'sentences=1')
    build_index(task, 'bm25', tmp_path / 'index', home_folder=home)
    other = dataclasses.replace(task, passages=Windows('tokens', 5))
    with pytest.raises(MedirError, match='is searched by passages tokens=5, and the index by sentences=1'):
        change_index(tmp_path / 'index', everything=other, home_folder=home)
    manifest = json.loads((tmp_path / 'index' / 'manifest.json').read_text())
    manifest['passages']['segmenter'] = 'sentencex 0.0.1'
    (tmp_path / 'index' / 'manifest.json').write_text(json.dumps(manifest))
    with pytest.raises(MedirError, match='its sentences were found by sentencex 0.0.1'):
        change_index(tmp_path / 'index', delete=['d001'], home_folder=home)
    build_index(frame({'a': 'one'}), 'bm25', tmp_path / 'whole', home_folder=home)
    with pytest.raises(MedirError, match='and the index by whole documents'):
        change_index(tmp_path / 'whole', everything=task, home_folder=home)


# --- the service -----------------------------------------------------------------------------------------------------


@pytest.mark.medium
def test_the_service_shows_the_passage_and_takes_documents(home, tmp_path, running):  # noqa: F811
    documents = long_documents(10, random.Random(8))
    build_index(task_of(documents, 'sentences=1'), 'bm25', tmp_path / 'index', home_folder=home)
    client = running(tmp_path / 'index', updates=True)
    text = 'Snakes are rare here. Antivenom treats a snake bite. Call early.'
    assert client.post('/documents', json={'documents': [{'_id': 'new', 'text': text}]}).status_code == 200
    wait_for(lambda: not client.get('/health').json()['pending_updates'])
    wait_for(lambda: client.get('/search', params={'query': 'antivenom'}).json()['hits'])
    hit = client.get('/search', params={'query': 'antivenom'}).json()['hits'][0]
    assert (hit['id'], hit['text'], hit['passage']) == ('new', text, 'Antivenom treats a snake bite.')
    assert client.delete('/documents/new').status_code == 200
    wait_for(lambda: not client.get('/search', params={'query': 'antivenom'}).json()['hits'])


# --- commands --------------------------------------------------------------------------------------------------------


def test_the_commands_show_the_passage(beir, home, tmp_path, medir):
    long = ' '.join(['pain'] * 30 + ['iron anaemia'] + ['pain'] * 30)
    write_lines(beir / 'corpus.jsonl', [{'_id': 'long', 'text': long}, {'_id': 'other', 'text': 'pain drug'}])
    (beir / 'walk.yaml').write_text('name: tiny\ndocuments: x\npassages: {unit: tokens, size: 8, overlap: 2}\n')
    built = medir('index', beir, '--system', 'bm25', '--to', tmp_path / 'index')
    assert built.code == 0 and 'passages tokens=8,overlap=2' in built.out
    hit = json.loads(medir('search', tmp_path / 'index', 'iron anaemia', '--json').out)[0]['hits'][0]
    assert hit['id'] == 'long' and 'iron anaemia' in hit['passage'] and hit['text'] == long
    assert 'iron anaemia' in medir('search', tmp_path / 'index', 'iron anaemia', '--wide').out
    whole = medir('index', beir, '--system', 'bm25', '--to', tmp_path / 'whole', '--passages', 'none')
    assert whole.code == 0 and Index(tmp_path / 'whole').windows is None


def test_a_walk_is_indexed_by_what_its_verdict_recommends(home, tmp_path, medir):
    walk = write_toy_walk(tmp_path / 'conditions')
    said = medir('index', walk.folder)
    assert said.code == 2 and said.err.count('\n') == 1
    assert 'there is no verdict yet' in said.err and f'medir verdict {walk.folder}' in said.err
    choice = give_verdict(walk, ['bm25', 'bm25(b=0)'], clock=False).choice
    done = medir('index', walk.folder)
    assert done.code == 0 and f'{choice}, as its verdict recommends' in done.err
    assert Index(walk.folder / 'index').manifest['system'] == choice
    assert walk_steps(walk)[-1]['step'] == 'index'
    asked = medir('search', walk.folder, 'fever', '-k', '1', '--json')
    assert asked.code == 0 and json.loads(asked.out)[0]['hits']
    exported = medir('export', walk.folder, '--to', tmp_path / 'out')
    assert exported.code == 0 and json.loads((tmp_path / 'out' / 'manifest.json').read_text())['system'] == choice


# --- export ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('store', ['flat', 'qdrant', 'lancedb'])
def test_an_export_takes_the_vectors_of_an_index(store, home, tmp_path, fake_minilm, monkeypatch):
    if store != 'flat':
        pytest.importorskip({'qdrant': 'qdrant_client', 'lancedb': 'lancedb'}[store])
    monkeypatch.setattr('medir_nb.serving.export.save_encoder', lambda *given: None)  # the model is a hash of words
    documents = long_documents(30, random.Random(6))
    build_index(task_of(documents, 'sentences=1'), 'rrf(bm25,minilm)', tmp_path / 'index', store, home_folder=home)
    documents = changed(documents, random.Random(7), 0)
    change_index(tmp_path / 'index', everything=frame(documents), home_folder=home)
    fake_minilm.clear()
    manifest = serving.export_system(tmp_path / 'index', tmp_path / 'out', home_folder=home)
    assert fake_minilm == [] and manifest['passages'] == 'sentences=1' and manifest['documents'] == len(documents)
    ids = json.loads((tmp_path / 'out' / 'ids.json').read_text())
    vectors = dict(zip(ids, np.load(tmp_path / 'out' / 'vectors' / 'minilm.npy'), strict=True))
    fresh = task_of(documents, 'sentences=1')
    theirs = serving.export_system(fresh, tmp_path / 'fresh', 'rrf(bm25,minilm)', home_folder=home)
    of_fresh = json.loads((tmp_path / 'fresh' / 'ids.json').read_text())
    assert sorted(of_fresh) == sorted(ids) and theirs['texts'] == manifest['texts'] == len(ids) > len(documents)
    for name, vector in zip(of_fresh, np.load(tmp_path / 'fresh' / 'vectors' / 'minilm.npy'), strict=True):
        np.testing.assert_allclose(vectors[name], vector / np.linalg.norm(vector), atol=1e-6)
    assert [part.get('from_index') for part in manifest['parts']] == [None, True]
    rows = [json.loads(line) for line in (tmp_path / 'out' / 'passages.jsonl').read_text().splitlines()]
    assert [row['_id'] for row in rows] == ids and all(row['text'] in documents[row['document']] for row in rows)
    serving.close_databases(tmp_path)
