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
