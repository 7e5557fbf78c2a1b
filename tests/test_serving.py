"""An index equals a fresh one after any updates, whatever is killed; the service answers what an evaluation answered, and hurts nobody."""

import json, os, random, signal, subprocess, sys, time
import numpy as np, pandas as pd, pytest
from conftest import DOCUMENTS, QUERIES, write_lines
from medir_nb import serving, systems
from medir_nb.core import MedirError
from medir_nb.data import corpus_in_memory, load_task
from medir_nb.serving import Index, Searcher, build_index, change_index
from medir_nb.walk.toy import write_toy_walk

QUESTIONS = [text for _, text in QUERIES] + [
    'diabetes',
    'nothing of this stands anywhere zzz',
    'a heart attack, a heart attack',
]
WORDS = 'iron anaemia heart attack diabetes insulin migraine pain liver drug risk women surgery vaccine asthma fever'.split()


def frame(documents):
    return pd.DataFrame({'id': list(documents), 'text': list(documents.values())})


def some_documents(n, rng):
    "Short texts of few words, so that scores tie."
    return {f'd{i:03d}': ' '.join(rng.choices(WORDS, k=rng.randint(0, 6))) for i in range(n)}


def changed(documents, rng, number):
    "Some added, some changed, some deleted; some texts the same as before."
    after = dict(documents)
    for doc_id in rng.sample(sorted(after), 5):
        del after[doc_id]
    for doc_id in rng.sample(sorted(after), 6):
        after[doc_id] = ' '.join(rng.choices(WORDS, k=rng.randint(0, 6)))
    for place in range(4):
        after[f'n{number}-{place}'] = ' '.join(rng.choices(WORDS, k=4))
    return after


def same_runs(folder, documents, system, home, **options):
    "The run of an index beside that of a fresh one, to the bit, and beside `systems.search`."
    fresh = home / f'fresh-{len(list(home.glob("fresh-*")))}'
    build_index(frame(documents), system, fresh, home_folder=home, **options)
    runs = [Searcher(place, home).search(QUESTIONS, 20) for place in (folder, fresh)]
    pd.testing.assert_frame_equal(*runs, check_exact=True)
    return runs[0]


def close(ours, theirs, tolerance=1e-6):
    "Same scores, and the same order but for scores that differ by less than a rounding."
    for query in set(ours.query_id) | set(theirs.query_id):
        a, b = ours[ours.query_id == query], theirs[theirs.query_id == query]
        assert len(a) == len(b) and np.allclose(a.score, b.score, atol=tolerance), query
        scores = dict(zip(b.doc_id, b.score))
        assert all(abs(scores.get(doc, b.score.min()) - score) < tolerance for doc, score in zip(a.doc_id, a.score)), (
            query
        )


# --- equality --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    'system',
    [
        'bm25',
        'bm25(gensim)',
        'bm25(k1=0.9,b=0.4,analyzer=lucene)',
        'minilm',
        'rrf(bm25,minilm)',
        'rrf(bm25,bm25(lucene),minilm)',
    ],
)
def test_an_updated_index_equals_a_fresh_one(system, home, tmp_path, fake_minilm):
    rng = random.Random(4)
    documents = some_documents(60, rng)
    build_index(frame(documents), system, tmp_path / 'index', home_folder=home)
    for number in range(12):
        documents, before = changed(documents, rng, number), documents
        if number % 2:
            update = change_index(tmp_path / 'index', everything=frame(documents), home_folder=home)
        else:
            new = {doc_id: text for doc_id, text in documents.items() if before.get(doc_id) != text}
            gone = before.keys() - documents.keys()
            update = change_index(tmp_path / 'index', put=frame(new), delete=gone, home_folder=home)
        assert update.generation == number + 2 and update.added == 4 and update.deleted == 5
        assert update.encoded + update.cached in (0, *range(4, 11))
        if number in (0, 5, 8, 11):
            same_runs(tmp_path / 'index', documents, system, home)
    index = Index(tmp_path / 'index')
    assert len(index.segments) <= 9 and sorted(index.place) == sorted(documents)
    assert change_index(tmp_path / 'index', everything=frame(documents), home_folder=home).generation == 13


@pytest.mark.parametrize(
    'system', ['bm25', 'bm25(gensim)', 'minilm', 'rrf(bm25,minilm)', 'rrf(bm25,bm25(lucene),minilm)']
)
def test_an_index_answers_what_a_search_answers(system, home, tmp_path, fake_minilm):
    documents = frame(some_documents(150, random.Random(7)))
    build_index(documents, system, tmp_path / 'index', home_folder=home)
    for k in (1, 3, 200):
        theirs = systems.search(system, documents, QUESTIONS, k=k, home_folder=home).run
        close(Searcher(tmp_path / 'index', home).search(QUESTIONS, k), theirs)


def test_an_index_answers_what_evaluate_answers(beir, home, tmp_path, fake_minilm):
    task = load_task(str(beir), home_folder=home)
    build_index(str(beir), 'rrf(bm25,minilm)', tmp_path / 'index', home_folder=home)
    theirs = systems.search('rrf(bm25,minilm)', task, 5, home_folder=home).run
    ours = Searcher(tmp_path / 'index', home).search(task.queries.texts(), 5)
    close(ours.assign(query_id=[task.queries.ids[int(q[1:]) - 1] for q in ours.query_id]), theirs)


def test_only_what_changed_is_encoded(home, tmp_path, fake_minilm):
    documents = some_documents(40, random.Random(1))
    build_index(frame(documents), 'minilm', tmp_path / 'index', home_folder=home)
    fake_minilm.clear()
    documents |= {'d001': 'a text that nobody has', 'd002': documents['d003']}
    update = change_index(tmp_path / 'index', everything=frame(documents), home_folder=home)
    assert [text for role, texts in fake_minilm for text in texts] == ['a text that nobody has']
    assert (update.changed, update.encoded, update.cached) == (2, 1, 1)


def test_an_index_may_be_emptied_and_filled_again(home, tmp_path, fake_minilm):
    documents = some_documents(5, random.Random(1))
    build_index(frame(documents), 'rrf(bm25,minilm)', tmp_path / 'index', home_folder=home)
    assert change_index(tmp_path / 'index', delete=[*documents, 'unknown'], home_folder=home).deleted == 5
    empty = Searcher(tmp_path / 'index', home)
    assert len(empty.index) == 0 and len(empty.search(QUESTIONS, 3)) == 0
    change_index(tmp_path / 'index', put=frame(documents), home_folder=home)
    same_runs(tmp_path / 'index', documents, 'rrf(bm25,minilm)', home)


def test_languages_and_titles(home, tmp_path):
    chinese = corpus_in_memory(
        pd.DataFrame(
            {'id': ['a', 'b'], 'title': ['贫血', ''], 'text': ['缺铁是贫血最常见的原因。', '偏头痛发作时尽早服药。']}
        )
    )
    build_index(chinese, 'bm25', tmp_path / 'index', home_folder=home)
    searcher = Searcher(tmp_path / 'index', home)
    assert searcher.index.manifest['language'] == 'zh' and list(searcher.search(['贫血的原因'], 1).doc_id) == ['a']
    assert serving.hits(searcher, searcher.ranked(['贫血'], 1)[0])[0]['title'] == '贫血'


# --- stores ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('store', ['qdrant', 'lancedb'])
def test_a_database_gives_what_plain_files_give(store, home, tmp_path, fake_minilm):
    rng = random.Random(2)
    documents = {f'd{i:03d}': ' '.join(rng.choices(WORDS, k=6)) + f' {i}' for i in range(60)}
    for place, kind in (('flat', 'flat'), ('database', store)):
        build_index(frame(documents), 'minilm', tmp_path / place, store=kind, home_folder=home)
    for number in range(3):
        documents = changed(documents, rng, number)
        for place in ('flat', 'database'):
            change_index(tmp_path / place, everything=frame(documents), home_folder=home)
    flat, other = (Searcher(tmp_path / place, home).search(QUESTIONS, 10) for place in ('flat', 'database'))
    close(other, flat, 1e-5)
    manifest = Index(tmp_path / 'database').manifest
    part = Index(tmp_path / 'database', home).parts()[0]
    rows = part.keeper.database.search(np.ones((1, manifest['parts'][0]['dimensions']), np.float32), 1000)[0][0]
    searched = Index(tmp_path / 'database').searched
    assert manifest['store'] == store and sorted(rows) == sorted(searched.rows[searched.alive])
    serving.close_databases(tmp_path)


def test_a_missing_database_is_one_line(home, tmp_path, monkeypatch, fake_minilm):
    for name, package in (('qdrant', 'qdrant_client'), ('lancedb', 'lancedb')):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(MedirError, match=r'is not installed; pip install "medir_nb\[vectordb\]"'):
            build_index(['a text'], 'minilm', tmp_path / name, store=name, home_folder=home)


# --- kills -----------------------------------------------------------------------------------------------------------

STEPS = ('os.replace', 'os.rename', 'os.fsync')  # a process is killed before or after one of these


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
def test_a_kill_at_any_step_of_an_update_leaves_the_old_index_or_the_new(home, tmp_path):
    rng, folder = random.Random(3), tmp_path / 'index'
    documents = some_documents(30, rng)
    build_index(frame(documents), 'bm25', folder, home_folder=home)
    outcomes = set()
    for step in range(1, 60):
        after = changed(documents, rng, step)
        ended = killed_at(step, lambda: change_index(folder, everything=frame(after), home_folder=home))
        index = Index(folder)
        there = {
            index.ids[place]: text
            for place, (_, text) in zip(np.flatnonzero(index.alive), index.texts(np.flatnonzero(index.alive)))
        }
        assert there in (documents, after), step
        outcomes.add((ended, there == after))
        documents = there
        if step % 7 == 0 or ended:
            same_runs(folder, documents, 'bm25', home)
            serving.clean_leftovers(folder)
            assert len(list((folder / 'segments').iterdir())) == len(Index(folder).segments)
        if ended:
            break
    assert (False, False) in outcomes and (True, True) in outcomes


def test_a_second_update_waits_for_the_first(home, tmp_path):
    documents = some_documents(30, random.Random(5))
    build_index(frame(documents), 'bm25', tmp_path / 'index', home_folder=home)
    children = []
    for place in range(4):
        child = os.fork()
        if not child:
            change_index(
                tmp_path / 'index',
                put=frame({f'new{place}': f'text {place}', 'd000': f'from {place}'}),
                home_folder=home,
            )
            os._exit(0)
        children.append(child)
    assert all(os.waitpid(child, 0)[1] == 0 for child in children)
    index = Index(tmp_path / 'index')
    assert (
        index.manifest['generation'] == 5
        and {f'new{place}' for place in range(4)} <= set(index.place)
        and len(index) == 34
    )
    last = index.texts([index.place['d000']])[0][1]
    same_runs(
        tmp_path / 'index',
        {**documents, 'd000': last, **{f'new{place}': f'text {place}' for place in range(4)}},
        'bm25',
        home,
    )


def test_what_is_no_index_is_one_line(home, tmp_path, fake_minilm):
    build_index(['a text'], 'minilm', tmp_path / 'index', home_folder=home)
    with pytest.raises(MedirError, match='an index is there already'):
        build_index(['a text'], 'bm25', tmp_path / 'index', home_folder=home)
    (tmp_path / 'mine').mkdir()
    (tmp_path / 'mine' / 'thesis.tex').write_text('x')
    with pytest.raises(MedirError, match="holds 'thesis.tex' and no index"):
        build_index(['a text'], 'bm25', tmp_path / 'mine', home_folder=home)
    for expression in ('bm25+hyde(smollm2)', 'rrf(bm25,bm25+hyde(smollm2))'):
        with pytest.raises(MedirError, match='asks a language model for every question'):
            build_index(['a text'], expression, tmp_path / 'x', home_folder=home)
    manifest = json.loads((tmp_path / 'index' / 'manifest.json').read_text())
    manifest['parts'][0]['contract'] = 'another'
    (tmp_path / 'index' / 'manifest.json').write_text(json.dumps(manifest))
    with pytest.raises(MedirError, match='reads texts otherwise than when this index was made'):
        Searcher(tmp_path / 'index', home).search(['a text'])
    (tmp_path / 'index' / 'manifest.json').write_text('{"format": 1, ')
    with pytest.raises(MedirError, match='format .* of an index, and this version reads 1; remove the folder'):
        Index(tmp_path / 'index')


# --- journal ---------------------------------------------------------------------------------------------------------


def test_a_journal_holds_what_it_promised_and_nothing_torn(tmp_path):
    journal = serving.Journal(tmp_path / 'journal')
    entries = [{'put': [{'_id': f'd{place}', 'text': 'ein Täxt\u2028 mit\x85 Zeilen'}]} for place in range(5)]
    assert [journal.append(entry) for entry in entries] == [1, 2, 3, 4, 5]
    journal.close()
    whole = (tmp_path / 'journal').read_bytes()
    ends = [place + 1 for place, byte in enumerate(whole) if byte == 10]
    for size in range(len(whole) + 1):
        (tmp_path / 'journal').write_bytes(whole[:size])
        kept, _ = serving.read_journal(tmp_path / 'journal')
        assert len(kept) == sum(end <= size for end in ends)
    damaged = whole[:40] + b'X' + whole[41:]
    (tmp_path / 'journal').write_bytes(damaged)
    assert serving.Journal(tmp_path / 'journal', 7).append(entries[0]) == 8


def test_promises_are_taken_in_before_anything_else(home, tmp_path):
    documents = some_documents(20, random.Random(6))
    build_index(frame(documents), 'bm25', tmp_path / 'index', home_folder=home)
    journal = serving.Journal(tmp_path / 'index' / 'journal')
    journal.append({'put': [{'_id': 'a', 'title': 'A', 'text': 'one'}, {'_id': 'b', 'title': '', 'text': 'two'}]})
    journal.append({'delete': ['d000', 'b']})
    update = change_index(tmp_path / 'index', put=frame({'c': 'three'}), delete=['a'], home_folder=home)
    index = Index(tmp_path / 'index')
    assert {'a', 'b', 'd000'}.isdisjoint(index.place) and 'c' in index.place and index.manifest['journal'] == 2
    assert change_index(tmp_path / 'index', put=frame({'d': 'four'}), home_folder=home).added == 1
    assert 'd000' not in Index(tmp_path / 'index').place


# --- service ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def running(home):
    "`running(folder, …)` serves an index in this process; a client of it."
    import threading, httpx

    opened = []

    def start(folder, **options):
        told, listens = {}, threading.Event()

        def ready(server, address):
            told.update(server=server, address=address)
            listens.set()

        thread = threading.Thread(
            target=serving.serve, args=(folder,), kwargs={'port': 0, 'home_folder': home, 'ready': ready, **options}
        )
        thread.start()
        assert listens.wait(30)
        client = httpx.Client(base_url=told['address'], timeout=30)
        opened.append((told['server'], thread, client))
        return client

    yield start
    for server, thread, client in opened:
        client.close()
        server.should_exit = True
        thread.join(40)
        assert not thread.is_alive()


def is_error(answer, status):
    body = answer.json()
    assert (
        answer.status_code == status
        and set(body) == {'error', 'where', 'fix'}
        and body['error']
        and 'Traceback' not in answer.text
    )
    return body['error']


def test_the_service_answers_what_a_search_answered(home, tmp_path, running, fake_minilm):
    documents = frame(some_documents(80, random.Random(8)))
    build_index(documents, 'rrf(bm25,minilm)', tmp_path / 'index', home_folder=home)
    theirs = systems.search('rrf(bm25,minilm)', documents, QUESTIONS, k=7, home_folder=home).run
    client = running(tmp_path / 'index')
    for number, question in enumerate(QUESTIONS, 1):
        posted = client.post('/search', json={'query': question, 'k': 7}).json()['hits']
        got = client.get('/search', params={'query': question, 'k': 7}).json()['hits']
        expected = theirs[theirs.query_id == f'q{number}']
        assert posted == got and [hit['rank'] for hit in got] == list(range(1, len(got) + 1))
        close(
            pd.DataFrame(
                {'query_id': f'q{number}', 'doc_id': [h['id'] for h in got], 'score': [h['score'] for h in got]}
            ),
            expected,
        )
    health = client.get('/health').json()
    assert (health['documents'], health['generation'], health['system']) == (80, 1, 'rrf(bm25,minilm)')
    page = client.get('/docs')
    assert page.status_code == 200 and 'POST /search' in page.text and '://' not in page.text
    assert client.get('/').text == page.text  # whoever types the address alone
    # errors say "see /docs for the fields", and "for what is allowed"
    assert '<code>query</code>' in page.text and 'string, 1 to 10,000 characters; A question' in page.text
    assert '<code>k</code>' in page.text and 'integer, 1 to 1,000, default 10' in page.text
    assert set(client.get('/openapi.json').json()['paths']) == {'/search', '/health'}


@pytest.mark.medium
def test_a_bad_request_gets_an_error_and_hurts_nobody(beir, home, tmp_path, running):
    import socket

    build_index(str(beir), 'bm25', tmp_path / 'index', home_folder=home)
    client = running(tmp_path / 'index')
    expected = client.get('/search', params={'query': 'diabetes'}).json()
    as_json = {'content-type': 'application/json'}

    def post(content, headers=as_json):
        return client.post('/search', content=content, headers=headers)

    is_error(post(b'{"query": "diab'), 400)
    is_error(post(b''), 400)
    is_error(post(b'\xff\xfe{'), 400)
    is_error(post(b'[' * 100_000), 400)
    is_error(post(b'{"query": "x", "k": ' + b'9' * 5000 + b'}'), 400)
    is_error(post(b'["query"]'), 400)
    is_error(post(b'null'), 400)
    assert is_error(post(b'{"query": "diabetes"}', {'content-type': 'text/plain'}), 400)
    for k in (0, -1, 1001, 2.5, 'three', True, None):
        is_error(client.post('/search', json={'query': 'x', 'k': k}), 422)
    for query in ('', '  \n', 5, None, ['x'], 'x' * 10_001):
        is_error(client.post('/search', json={'query': query}), 422)
    is_error(post(b'{"query": "\\ud800"}'), 422)
    assert is_error(client.post('/search', json={'query': 'x', 'top': 3}), 422) == "unknown field 'top'"
    assert is_error(client.get('/search'), 422) == "the parameter 'query' is missing"
    is_error(client.get('/search', params={'query': 'x', 'top': 3}), 422)
    is_error(post(b'{"query": "' + b'x' * 10_000_000 + b'"}'), 413)
    is_error(client.post('/search', content=(b'x' * 65_536 for _ in range(160)), headers=as_json), 413)
    is_error(client.get('/nothing'), 404)
    is_error(client.delete('/search'), 405)
    assert 'updates' in is_error(client.post('/documents', json={'documents': []}), 403)
    is_error(client.delete('/documents/d01'), 403)
    assert 'not called' in is_error(client.get('/health', headers={'host': 'evil.example'}), 421)
    for raw in (b'not http at all\r\n\r\n', b'GET /search?query=' + b'x' * 200_000 + b' HTTP/1.1\r\n\r\n'):
        with socket.create_connection((client.base_url.host, client.base_url.port)) as line:
            line.sendall(raw)
            answer = b''.join(iter(lambda: line.recv(10_000), b''))
        assert answer.startswith(b'HTTP/1.1 400') and b'"error"' in answer
    with socket.create_connection((client.base_url.host, client.base_url.port)) as line:
        line.sendall(b'POST /search HTTP/1.1\r\nhost: localhost\r\ncontent-length: 50\r\n\r\n{"que')  # and goes away
    assert client.get('/search', params={'query': 'diabetes'}).json() == expected


def test_one_bad_question_hurts_no_other_of_its_batch(beir, home, tmp_path, monkeypatch):
    import threading

    build_index(str(beir), 'bm25', tmp_path / 'index', home_folder=home)
    searcher = Searcher(tmp_path / 'index', home)
    whole = searcher.ranked

    def brittle(questions, k):
        if 'poison' in questions:
            raise RuntimeError('no')
        return whole(questions, k)

    monkeypatch.setattr(searcher, 'ranked', brittle)
    batcher, held = serving.Batcher(searcher, room=5), threading.Event()
    batcher.run(lambda: held.wait(20))
    time.sleep(0.05)
    waiting = [batcher.ask(question, 2) for question in ('diabetes', 'poison', 'migraine', 'asthma', 'anaemia')]
    with pytest.raises(serving.Busy):
        batcher.ask('more', 2)
    waiting[3].cancel()
    held.set()
    assert [waiting[place].result(20)['hits'][0]['id'] for place in (0, 2, 4)] == ['d04', 'd07', 'd08']
    with pytest.raises(RuntimeError):
        waiting[1].result(20)
    batcher.stop()


def test_many_at_once_get_their_own_answers(home, tmp_path, running, fake_minilm):
    from concurrent.futures import ThreadPoolExecutor

    documents = frame({f'd{i}': f'{WORDS[i % 16]} number{i}' for i in range(60)})
    build_index(documents, 'rrf(bm25,minilm)', tmp_path / 'index', home_folder=home)
    client = running(tmp_path / 'index')

    def ask(number):
        return client.post('/search', json={'query': f'number{number}', 'k': 1 + number % 3}).json()['hits']

    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(ask, range(60)))
    assert all(hits[0]['id'] == f'd{number}' and len(hits) == 1 + number % 3 for number, hits in enumerate(answers))


def test_a_slow_answer_and_a_full_queue_are_said(beir, home, tmp_path, running, monkeypatch):
    import threading

    build_index(str(beir), 'bm25', tmp_path / 'index', home_folder=home)
    held, plain = threading.Event(), Searcher.ranked

    def slow(self, questions, k):
        if 'warm' not in questions:
            held.wait(20)
        return plain(self, questions, k)

    monkeypatch.setattr(Searcher, 'ranked', slow)
    client = running(tmp_path / 'index', seconds=0.3, room=1)
    answer = client.get('/search', params={'query': 'diabetes'})
    assert 'no answer within' in is_error(answer, 503) and answer.headers['retry-after']
    queued = threading.Thread(target=client.get, args=('/search',), kwargs={'params': {'query': 'asthma'}})
    queued.start()
    time.sleep(0.1)
    assert 'waiting' in is_error(client.get('/search', params={'query': 'iron'}), 503)
    assert client.get('/health').status_code == 200
    held.set()
    queued.join()
    assert client.get('/search', params={'query': 'diabetes'}).status_code == 200


def wait_for(holds, seconds=30):
    until = time.time() + seconds
    while not holds():
        assert time.time() < until, 'this took too long'
        time.sleep(0.05)


def test_a_new_generation_is_taken_over_without_a_pause(beir, home, tmp_path, running):
    build_index(str(beir), 'bm25', tmp_path / 'index', home_folder=home)
    client = running(tmp_path / 'index')
    change_index(tmp_path / 'index', put=frame({'new': 'snake bite needs antivenom'}), delete=['d03'], home_folder=home)

    def found():
        answer = client.get('/search', params={'query': 'treatment of snake bite'})
        assert answer.status_code == 200
        return [hit['id'] for hit in answer.json()['hits']][:1] == ['new']

    wait_for(found)
    assert client.get('/health').json()['generation'] == 2


@pytest.mark.medium
def test_documents_are_taken_and_deleted(beir, home, tmp_path, running):
    build_index(str(beir), 'bm25', tmp_path / 'index', home_folder=home)
    client = running(tmp_path / 'index', updates=True)
    with pytest.raises(MedirError, match='another service takes updates'):
        serving.Service(tmp_path / 'index', updates=True, home_folder=home)
    for body in (
        {'documents': []},
        {'documents': [{'text': 'x'}]},
        {'documents': [{'_id': 'a\tb', 'text': 'x'}]},
        {'_id': 'a'},
    ):
        is_error(client.post('/documents', json=body), 422)
    is_error(
        client.post(
            '/documents',
            content=b'{"documents": [{"_id": "a", "text": "\\udfff"}]}',
            headers={'content-type': 'application/json'},
        ),
        422,
    )
    first = client.post(
        '/documents',
        json={'documents': [{'_id': 'guide/1', 'title': 'Bites', 'text': 'antivenom'}, {'_id': 'b', 'text': 'b'}]},
    )
    assert first.status_code == 200 and first.json()['promise'] == 1
    assert client.delete('/documents/b').json()['promise'] == 2
    wait_for(lambda: not client.get('/health').json()['pending_updates'])
    hits = client.get('/search', params={'query': 'antivenom'}).json()['hits']
    assert [(hit['id'], hit['title']) for hit in hits] == [('guide/1', 'Bites')] and 'b' not in Index(
        tmp_path / 'index'
    ).place
    assert client.delete('/documents/guide/1').status_code == 200
    wait_for(lambda: not client.get('/search', params={'query': 'antivenom'}).json()['hits'])


class Process:
    "`medir serve --updates` as a process of its own."

    def __init__(self, folder, *more):
        self.process = subprocess.Popen(
            [sys.executable, '-m', 'medir_nb.workbook', 'serve', str(folder), '--updates', '--port', '0', *more],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        line = self.process.stdout.readline()
        assert line.startswith('http://'), line + self.process.stderr.read()
        import httpx

        self.client = httpx.Client(base_url=line.split()[0], timeout=30)

    def kill(self):
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(20)
        self.client.close()


def kill_and_see(folder, kills, rng):
    "Send documents, kill at random moments, start again; every acknowledged document must be there."
    promised, number = {}, 0
    for _ in range(kills):
        server, until = Process(folder), time.time() + rng.uniform(0.0, 1.5)
        while time.time() < until:
            number += 1
            doc_id = f'p{number % 7}' if number % 3 else f'p{number}'
            body = {'documents': [{'_id': doc_id, 'text': f'promise number{number}'}]}
            answer = server.client.post('/documents', json=body)
            assert answer.status_code == 200, answer.text
            promised[doc_id] = f'promise number{number}'
            if number % 5 == 0:
                assert server.client.delete(f'/documents/{doc_id}').status_code == 200
                del promised[doc_id]
        server.kill()
    server = Process(folder)
    wait_for(lambda: not server.client.get('/health').json()['pending_updates'], 60)
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(30) == 0 and 'Traceback' not in server.process.stderr.read()
    index = Index(folder)
    found = {doc_id: index.texts([place])[0][1] for doc_id, place in index.place.items() if doc_id.startswith('p')}
    assert found == promised and number > kills


@pytest.mark.medium
def test_acknowledged_updates_survive_kills(beir, home, tmp_path):
    build_index(str(beir), 'bm25', tmp_path / 'index', home_folder=home)
    kill_and_see(tmp_path / 'index', 2, random.Random(9))


@pytest.mark.slow
def test_acknowledged_updates_survive_a_hundred_kills(beir, home, tmp_path):
    build_index(str(beir), 'bm25', tmp_path / 'index', home_folder=home)
    kill_and_see(tmp_path / 'index', 100, random.Random(10))


# --- commands --------------------------------------------------------------------------------------------------------


def test_the_commands_go_together(beir, home, tmp_path, medir, fake_minilm):
    index = tmp_path / 'index'
    built = medir('index', beir, '--system', 'rrf(bm25,minilm)', '--to', index)
    assert built.code == 0 and 'generation 1; 12 added' in built.out and f'next: medir serve {index}' in built.err
    (tmp_path / 'new.jsonl').write_text('{"_id": "new", "text": "Antivenom treats a snake bite."}\n')
    assert (
        'generation 2; 1 added, 0 changed, 1 deleted'
        in medir('index', index, '--add', tmp_path / 'new.jsonl', '--delete', 'd12').out
    )
    found = json.loads(medir('search', index, 'snake bite', 'insulin', '-k', '2', '--json').out)
    assert [answer['hits'][0]['id'] for answer in found] == ['new', 'd04'] and len(found[0]['hits']) == 2
    assert 'Antivenom treats' in medir('search', index, 'snake bite', '-k', '1').out
    assert "'nobody' is not in the index" in medir('index', index, '--delete', 'nobody').err
    assert 'generation 3; 1 added, 0 changed, 1 deleted' in medir('index', index, '--update', beir).out
    for source in (beir, beir / 'corpus.jsonl'):
        answer = json.loads(
            medir('search', source, 'glucose in the liver', '--system', 'bm25', '-k', '1', '--json').out
        )
        assert answer[0]['hits'][0]['id'] == 'd03'
    exported = medir('export', beir, '--system', 'bm25', '--to', tmp_path / 'exported')
    assert exported.code == 0 and (tmp_path / 'exported' / 'task' / 'qrels' / 'test.tsv').is_file()
    alone = write_lines(tmp_path / 'alone' / 'corpus.jsonl', [{'_id': 'x', 'text': 'insulin'}]).parent
    assert json.loads(medir('search', alone, 'insulin', '--system', 'minilm', '--json').out)[0]['hits'][0]['id'] == 'x'


def test_mistakes_of_the_commands_are_one_line(beir, home, tmp_path, medir):
    import socket

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
            ('search', index, ' '): 'a question is empty',
            ('search', index, 'x', '--system', 'minilm'): 'the index holds bm25',
            ('search', index): 'Missing argument',
            ('serve', beir): 'holds no index',
            ('serve', index, '--port', port): f'port {port} of 127.0.0.1 is in use',
            ('serve', index, '--port', '99999'): 'there is no port',
            ('serve', index, '--host', 'no.such.host.invalid'): 'is no address of this machine',
            ('export', beir, '--system', 'bm25', '--to', beir): 'the folder is not empty',
        }.items():
            ran = medir(*arguments)
            assert ran.code == 2 and words in ran.err and ran.err.count('\n') == 1, (arguments, ran)


def test_a_file_that_is_missing_is_named_with_what_to_do(beir, home, tmp_path, medir):
    index = tmp_path / 'index'
    build_index(str(beir), 'bm25', index, home_folder=home)
    segment = index / 'segments/000001'
    for path in (segment / 'p0/words.json', segment / 'documents.arrow'):
        path.unlink()
        ran = medir('search', index, 'diabetes')
        assert ran.code == 2 and ran.err.count('\n') == 1
        assert f'{index}: {path.name} is missing; remove the folder, and build it again: medir index' in ran.err


def test_a_walk_that_is_served_says_where_its_index_is(tmp_path, home, medir):
    walk = write_toy_walk(tmp_path / 'conditions').folder
    ran = medir('serve', walk)
    assert ran.code == 2 and f'holds no index; medir index {walk} builds one in {walk / "index"}' in ran.err
    for command in (
        ['search', walk / 'index', 'gout'],
        ['export', walk / 'index', '--to', tmp_path / 'e'],
        ['serve', walk / 'index'],
    ):
        ran = medir(*command)
        assert ran.code == 2 and f'no such folder yet; medir index {walk} makes its index/' in ran.err.replace(
            '\n', ' '
        )
    assert 'no such folder' in medir('search', tmp_path / 'nowhere', 'gout').err
    assert medir('index', walk, '--system', 'bm25').code == 0
    ran = medir('serve', walk)
    assert ran.code == 2 and f'holds no index; it is in {walk / "index"}' in ran.err


# --- a folder of text files ------------------------------------------------------------------------------------------


@pytest.fixture
def leaflets(tmp_path):
    "Text files in two folders, one file of JSON lines, one that cannot be read, one that says what another says."
    folder = tmp_path / 'our leaflets'
    (folder / 'lungs').mkdir(parents=True)
    for name, (_, title, text) in zip(('statins', 'lungs/a b', 'metformin', 'insulin', 'lungs/asthma'), DOCUMENTS):
        (folder / f'{name}.txt').write_text(f'{title}. {text}\n')
    (folder / 'again.txt').write_text((folder / 'statins.txt').read_text())
    (folder / 'latin.txt').write_bytes('Pr\xe9cis'.encode('latin1'))
    write_lines(folder / 'cases.jsonl', [{'_id': 'c 1', 'text': 'Iron deficiency in young women. '}])
    return folder


@pytest.fixture
def walk_of_leaflets(leaflets, tmp_path):
    "The walk that `medir look` makes of them, without its encoders."
    from medir_nb.walk import Walk
    from medir_nb.walk.reading import write_corpus

    passages = {'unit': 'tokens', 'size': 8, 'overlap': 2}
    walk = Walk.begin(tmp_path / 'w', name='our leaflets', documents=str(leaflets), passages=passages)
    write_corpus(leaflets, walk.path('corpus.jsonl'))
    return walk.folder


def all_ids(index):
    return sorted(Index(index).corpus().ids)


def test_an_index_of_a_walk_is_kept_up_from_its_folder(leaflets, walk_of_leaflets, medir):
    index = walk_of_leaflets / 'index'
    assert medir('index', walk_of_leaflets, '--system', 'bm25').code == 0
    of_the_walk = all_ids(index)
    assert 'lungs/a_b.txt' in of_the_walk and 'c_1' in of_the_walk and 'latin.txt' not in of_the_walk
    same = medir('index', index, '--update', leaflets)
    assert same.code == 0 and '0 added, 0 changed, 0 deleted' in same.out and all_ids(index) == of_the_walk
    assert 'latin.txt is not read, or not to the end: not UTF-8' in same.err and same.err.count('\n') == 1
    (leaflets / 'lungs' / 'asthma.txt').write_text('Salbutamol relieves an attack.')
    (leaflets / 'lungs' / 'new.md').write_text('Tiotropium opens the airways.')
    for file, said in {'asthma.txt': '0 added, 1 changed', 'new.md': '1 added, 0 changed'}.items():
        ran = medir('index', index, '--add', leaflets / 'lungs' / file)
        assert ran.code == 0 and said in ran.out, ran
    assert all_ids(index) == sorted([*of_the_walk, 'lungs/new.md'])
    (leaflets / 'insulin.txt').unlink()
    everything = medir('index', index, '--update', leaflets)
    assert everything.code == 0 and '0 added, 0 changed, 1 deleted' in everything.out
    assert 'insulin.txt' not in all_ids(index) and Index(index).windows is not None


def test_a_folder_of_text_files_is_indexed_searched_and_exported(leaflets, tmp_path, medir, monkeypatch):
    assert medir('index', leaflets, '--system', 'bm25', '--to', tmp_path / 'i').code == 0
    found = medir('search', leaflets, 'asthma attacks', '--system', 'bm25', '-k', '1', '--json')
    assert found.code == 0 and json.loads(found.out)[0]['hits'][0]['id'] == 'lungs/asthma.txt'
    (leaflets / 'lungs' / 'asthma.txt').write_text('Salbutamol relieves an attack.')
    monkeypatch.chdir(leaflets / 'lungs')  # from wherever, a file is called as the index calls it
    ran = medir('index', tmp_path / 'i', '--add', 'asthma.txt')
    assert ran.code == 0 and '0 added, 1 changed' in ran.out
    single = medir('search', 'asthma.txt', 'attack', '--system', 'bm25', '--json')
    assert json.loads(single.out)[0]['hits'][0]['id'] == 'asthma.txt'
    exported = medir('export', leaflets, '--system', 'bm25', '--to', tmp_path / 'e')
    assert exported.code == 0 and json.loads((tmp_path / 'e' / 'ids.json').read_text()) == all_ids(tmp_path / 'i')


def test_a_mistyped_file_is_not_taken_for_a_task(leaflets, beir, tmp_path, medir):
    medir('index', leaflets, '--system', 'bm25', '--to', tmp_path / 'i')
    for arguments, said in {
        ('index', tmp_path / 'i', '--add', 'typo.jsonl'): 'typo.jsonl: no such file; give --add a folder',
        ('index', tmp_path / 'i', '--update', 'typo/docs'): 'typo/docs: no such folder; give --update a folder',
        ('search', 'typo.md', 'x', '--system', 'bm25'): 'typo.md: no such file',
        ('search', 'nfcorpos', 'x', '--system', 'bm25'): "unknown task 'nfcorpos'; did you mean 'nfcorpus'?",
    }.items():
        ran = medir(*arguments)
        assert ran.code == 2 and said in ran.err and ran.err.count('\n') == 1, ran
    (beir / 'corpus.jsonl').unlink()  # the folder of a task, whose queries are no documents
    ran = medir('search', beir, 'x', '--system', 'bm25')
    assert ran.code == 2 and 'no corpus.jsonl here' in ran.err and 'nbs/' not in ran.err


@pytest.mark.medium
def test_a_database_is_closed_before_the_interpreter_goes(beir, tmp_path, medir_process):
    "Qdrant's client imports something when it is closed, which an interpreter that shuts down refuses."
    code = (
        'import sys, numpy as np\nfrom pathlib import Path\nfrom medir_nb.serving.stores import database_at\n'
        'database = database_at(Path(sys.argv[1]), "qdrant", 4)\ndatabase.add(np.arange(3), np.eye(3, 4))\n'
        'print(len(database.vectors(np.arange(3))))'
    )
    for _ in range(2):  # a folder that was let go of may be opened again
        ran = subprocess.run([sys.executable, '-c', code, str(tmp_path / 'v')], capture_output=True, text=True)
        assert ran.returncode == 0 and ran.stdout == '3\n'
        assert 'Traceback' not in ran.stderr and 'Exception ignored' not in ran.stderr, ran.stderr


def test_closing_below_a_folder_leaves_its_neighbours(tmp_path):
    from medir_nb.serving import stores

    near, far = (stores.database_at(tmp_path / name, 'lancedb', 4) for name in ('docs', 'docs2'))
    serving.close_databases(tmp_path / 'docs')
    assert near not in stores._open.values() and far in stores._open.values()
    serving.close_databases(tmp_path)


def test_nothing_of_the_making_is_given_away(beir, home, tmp_path, medir, fake_minilm):
    assert medir('export', beir, '--system', 'bm25', '--to', tmp_path / 'out').code == 0
    assert (tmp_path / 'out' / 'task' / 'qrels' / 'test.tsv').is_file()
    assert not list((tmp_path / 'out').rglob('*.lock'))


def test_an_export_opens_elsewhere(beir, home, tmp_path, fake_minilm):
    import bm25s, pyarrow.parquet as pq

    build_index(str(beir), 'bm25', tmp_path / 'index', home_folder=home)
    manifest = serving.export_system(tmp_path / 'index', tmp_path / 'out', home_folder=home)
    assert (
        manifest['system'] == 'bm25'
        and bm25s.BM25.load(str(tmp_path / 'out' / 'bm25' / 'bm25')).scores['num_docs'] == 12
    )
    from medir_nb.encoder import Encoder, encode_corpus
    from medir_nb.serving.export import write_vectors

    corpus = load_task(str(beir), home_folder=home).corpus
    vectors = encode_corpus(Encoder('minilm', home_folder=home), corpus, 'document')
    write_vectors(vectors, corpus.ids, tmp_path / 'v' / 'minilm')
    table = pq.read_table(tmp_path / 'v' / 'minilm.parquet')
    assert table['id'].to_pylist() == list(corpus.ids)
    assert np.array_equal(np.array(table['vector'].to_pylist(), np.float32), np.load(tmp_path / 'v' / 'minilm.npy'))
    assert np.array_equal(np.load(tmp_path / 'v' / 'minilm.npy'), vectors.chunk())


# --- rerankers -------------------------------------------------------------------------------------------------------


def test_a_reranked_index_answers_what_a_search_answers(home, tmp_path, fake_minilm, monkeypatch):
    from medir_nb.encoder import Encoded
    from medir_nb.reranker import model as reranker_model

    class Backend:
        "The share of a query's words that a document has, and its length."

        device = 'cpu'

        def __init__(self, *given):
            pass

        def encode(self, pairs):
            scores = [len(set(q.split()) & set(d.split())) + len(d) / 1000 for q, d in pairs]
            return Encoded(
                np.array(scores, np.float32)[:, None], np.ones(len(pairs), np.int32), np.zeros(len(pairs), bool)
            )

    monkeypatch.setattr(reranker_model, 'PairBackend', Backend)
    monkeypatch.setattr(reranker_model, 'pinned', lambda spec, home_folder: spec)
    documents = frame(some_documents(150, random.Random(11)))
    for number, system in enumerate(
        ('bm25>monobert@5', 'rrf(bm25,minilm)>monobert@20(complete=true)', 'rrf(bm25,minilm>monobert@7)')
    ):
        build_index(documents, system, tmp_path / f'index{number}', home_folder=home)
        for k in (3, 50):
            theirs = systems.search(system, documents, QUESTIONS, k=k, home_folder=home).run
            close(Searcher(tmp_path / f'index{number}', home).search(QUESTIONS, k), theirs, 1e-5)


# --- the real model --------------------------------------------------------------------------------------------------


def test_with_the_real_model(beir, home, tmp_path):
    task = load_task(str(beir), home_folder=home)
    build_index(str(beir), 'rrf(bm25,minilm)', tmp_path / 'index', with_model=True, home_folder=home)
    change_index(
        tmp_path / 'index', put=frame({'new': 'Antivenom treats a snake bite.'}), delete=['d12'], home_folder=home
    )
    documents = dict(zip(task.corpus.ids, task.corpus.texts())) | {'new': 'Antivenom treats a snake bite.'}
    del documents['d12']
    theirs = systems.search('rrf(bm25,minilm)', frame(documents), QUESTIONS, k=5, home_folder=home).run
    close(Searcher(tmp_path / 'index', home).search(QUESTIONS, 5), theirs)
    assert Index(tmp_path / 'index').manifest['parts'][1]['model'] == 'model/p1'
