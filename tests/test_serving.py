"""An index equals a fresh one after any updates, whatever is killed; the service answers what an evaluation answered, and hurts nobody."""

import json, os, random, signal, subprocess, sys, time
import numpy as np, pandas as pd, pytest
from conftest import DOCUMENTS, QUERIES, seeded, write_lines
from medir_nb import serving, systems
from medir_nb.core import MedirError
from medir_nb.data import corpus_in_memory, load_task
from medir_nb.retrieval import rrf
from medir_nb.serving import Index, Searcher, build_index, change_index

QUESTIONS = [text for _, text in QUERIES] + ['diabetes', 'nothing of this stands anywhere zzz', 'a heart attack, a heart attack']
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
    fresh = home / f'fresh-{random.random()}'
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
        assert all(abs(scores.get(doc, b.score.min()) - score) < tolerance for doc, score in zip(a.doc_id, a.score)), query


# --- equality --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    'system', ['bm25', 'bm25(gensim)', 'bm25(k1=0.9,b=0.4,analyzer=lucene)', 'minilm', 'rrf(bm25,minilm)', 'rrf(bm25,bm25(lucene),minilm)']
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


@pytest.mark.parametrize('system', ['bm25', 'bm25(gensim)', 'minilm', 'rrf(bm25,minilm)', 'rrf(bm25,bm25(lucene),minilm)'])
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
    chinese = corpus_in_memory(pd.DataFrame({'id': ['a', 'b'], 'title': ['贫血', ''], 'text': ['缺铁是贫血最常见的原因。', '偏头痛发作时尽早服药。']}))
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
    assert manifest['store'] == store and sorted(rows) == sorted(Index(tmp_path / 'database').rows[Index(tmp_path / 'database').alive])
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


def test_a_kill_at_any_step_of_an_update_leaves_the_old_index_or_the_new(home, tmp_path):
    rng, folder = random.Random(3), tmp_path / 'index'
    documents = some_documents(30, rng)
    build_index(frame(documents), 'bm25', folder, home_folder=home)
    outcomes = set()
    for step in range(1, 60):
        after = changed(documents, rng, step)
        ended = killed_at(step, lambda: change_index(folder, everything=frame(after), home_folder=home))
        index = Index(folder)
        there = {index.ids[place]: text for place, (_, text) in zip(np.flatnonzero(index.alive), index.texts(np.flatnonzero(index.alive)))}
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
            change_index(tmp_path / 'index', put=frame({f'new{place}': f'text {place}', 'd000': f'from {place}'}), home_folder=home)
            os._exit(0)
        children.append(child)
    assert all(os.waitpid(child, 0)[1] == 0 for child in children)
    index = Index(tmp_path / 'index')
    assert index.manifest['generation'] == 5 and {f'new{place}' for place in range(4)} <= set(index.place) and len(index) == 34
    last = index.texts([index.place['d000']])[0][1]
    same_runs(tmp_path / 'index', {**documents, 'd000': last, **{f'new{place}': f'text {place}' for place in range(4)}}, 'bm25', home)


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
    with pytest.raises(MedirError, match='no manifest that this version reads'):
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
