"What a reader meets who brings collections and models of his own: settings that differ, titles, limits, checks before work, plans."
import json
import re

import pandas as pd
import pytest

from conftest import DOCUMENTS, QRELS, QUERIES, write_beir, write_lines
from medir_nb import data
from medir_nb.core import MedirError
from medir_nb.data import limit_task, load_task, task_from_frames
from medir_nb.evaluator import compare, evaluate


# ---------------------------------------------------------------- titles of queries

@pytest.fixture
def titled(tmp_path):
    "A folder of which two judged queries have a title."
    folder = write_beir(tmp_path/'titled')
    titles = {'q1': 'Metformin', 'q2': 'Hip fracture surgery'}
    write_lines(folder/'queries.jsonl', [{'_id': q, 'title': titles.get(q, ''), 'text': t} for q, t in QUERIES])
    data._tell_unread_titles.cache_clear()
    return folder


def test_a_query_is_its_text_alone_and_the_title_is_reported_once(titled, capfd):
    task = load_task(titled)
    assert task.queries.texts() == [t for _, t in QUERIES]
    assert task.queries.rows(0, 1) == [('', 'drugs after a heart attack')] and task.report['query_titles_unread'] == 2
    load_task(titled)
    said = capfd.readouterr().err.splitlines()
    assert len(said) == 1 and '2 of 4 queries have a title, which is not read' in said[0] and '--query-titles' in said[0]
    assert task.fingerprint == load_task(write_beir(titled.with_name('plain'))).fingerprint


def test_titles_are_read_on_request(titled, capfd):
    task = load_task(titled, query_titles=True)
    assert task.queries.text('q1') == 'Metformin drugs after a heart attack' and 'query_titles_unread' not in task.report
    # a part of a task keeps what was chosen
    assert limit_task(task, 8).queries.text('q1') == 'Metformin drugs after a heart attack'
    assert not capfd.readouterr().err
    assert evaluate(titled, 'bm25', query_titles=True).mean('nDCG@10') != evaluate(titled, 'bm25').mean('nDCG@10')
    frames = [pd.DataFrame(rows, columns=columns) for rows, columns in ((DOCUMENTS, ['id', 'title', 'text']), ([('q1', 'Gout', 'toe')], ['id', 'title', 'text']), (QRELS[:3], ['query_id', 'doc_id', 'relevance']))]
    assert [task_from_frames(*frames, query_titles=t).queries.texts() for t in (False, True)] == [['toe'], ['Gout toe']]


def test_the_command_takes_query_titles(titled, medir):
    plain, read = (medir('evaluate', titled, '--system', 'bm25', *more) for more in ((), ('--query-titles',)))
    assert plain.code == read.code == 0 and 'which is not read' in plain.err and 'which is not read' not in read.err
    assert plain.out.split('bm25')[1][:40] != read.out.split('bm25')[1][:40]
    both = medir('compare', titled, 'bm25', 'bm25(k1=9)', '--query-titles')
    assert both.code == 0 and 'Hip fracture surgery first treatment' in both.out


def test_a_registry_row_says_that_its_queries_are_titled_texts(titled, own_registry, monkeypatch):
    from medir_nb.core import registry
    assert registry('tasks')['relish']['query_titles'] is True
    row = {'title': 'T', 'paper': 'r2med', 'kind': 'retrieval', 'split': 'test', 'language': 'en', 'measures': ['nDCG@10'], 'folder': 'titled'}
    own_registry(tasks={'with': {**row, 'query_titles': True}, 'without': row})
    monkeypatch.setenv('MEDIR_DATA', str(titled.parent))
    assert load_task('with').queries.text('q1') == 'Metformin drugs after a heart attack'
    assert load_task('without').queries.text('q1') == load_task('with', query_titles=False).queries.text('q1') == 'drugs after a heart attack'
