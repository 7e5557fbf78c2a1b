"An index in the tools that people have: the real packages, where they are installed (requirements/integrations.txt)."

import asyncio, json, os, sys
from pathlib import Path
import pytest
from medir_nb.core import MedirError
from medir_nb.integrations import Searcher
from medir_nb.retrieval import build_index, serve
from medir_nb.retrieval.monitoring import QueryLog
from medir_nb.study.queries import log_queries

TEXTS = [
    'Iron deficiency is the commonest cause of anaemia in young women.',
    'Triptans stop a migraine attack when they are taken early.',
    'Surgery within 36 hours lowers mortality after a hip fracture.',
]
QUESTION = 'what stops migraine?'


@pytest.fixture
def index(home, tmp_path):
    build_index(TEXTS, 'bm25', tmp_path / 'index', home_folder=home)
    return tmp_path / 'index'


@pytest.fixture(params=['folder', 'service'])
def place(request, index):
    if request.param == 'folder':
        return str(index)
    return str(request.getfixturevalue('running')(index).base_url)


def test_a_folder_and_a_service_answer_alike(index, running):
    here, there = Searcher(index), Searcher(running(index).base_url)
    assert here.search(QUESTION, 2) == there.search(QUESTION, 2)
    assert here.fetch('1') == there.fetch('1')
    for searcher in (here, there):
        with pytest.raises(MedirError, match="there is no document '9'"):
            searcher.fetch('9')
    with pytest.raises(MedirError, match='the service does not answer'):
        Searcher('http://127.0.0.1:9').search(QUESTION)


def test_langchain_cites_what_was_found(place):
    pytest.importorskip('langchain_core', reason='langchain-core is not installed (the extra langchain)')
    from langchain_core.runnables import RunnableLambda
    from medir_nb.integrations.langchain import MedirRetriever

    chain = MedirRetriever(place=place, k=1) | RunnableLambda(lambda found: found[0].metadata['id'])
    assert chain.invoke(QUESTION) == asyncio.run(chain.ainvoke(QUESTION)) == '1'


def test_llama_index_has_nodes_with_scores(place):
    pytest.importorskip('llama_index.core', reason='llama-index-core is not installed (the extra llama-index)')
    from medir_nb.integrations.llama_index import MedirRetriever

    [node] = MedirRetriever(place, k=1).retrieve(QUESTION)
    assert (node.node_id, node.text) == ('1', TEXTS[1]) and node.score == Searcher(place).search(QUESTION, 1)[0][
        'score'
    ]


def test_haystack_writes_a_pipeline_down(place):
    haystack = pytest.importorskip('haystack', reason='haystack-ai is not installed (the extra haystack)')
    from medir_nb.integrations.haystack import MedirRetriever

    pipeline = haystack.Pipeline()
    pipeline.add_component('retriever', MedirRetriever(place, k=2))
    again = haystack.Pipeline.loads(pipeline.dumps(), allowed_modules=['medir_nb.integrations.haystack'])
    found = again.run({'retriever': {'query': QUESTION, 'k': 1}})['retriever']['documents']
    assert [(document.id, document.content) for document in found] == [('1', TEXTS[1])]


async def talk(client):
    "The tools, what `search` and `fetch` answer, and what a wrong id is told."
    async with client:
        names = sorted(tool.name for tool in (await client.list_tools()).tools)
        found = await client.call_tool('search', {'query': QUESTION, 'k': 1})
        whole = await client.call_tool('fetch', {'id': '1'})
        wrong = await client.call_tool('fetch', {'id': '9'})
        filtered = [
            await client.call_tool('search', {'query': 'migraine, or a hip fracture?', 'filters': {'id': {how: '2'}}})
            for how in ('eq', 'like')
        ]
    return names, found.structured_content['results'], whole.structured_content, wrong, filtered


def check_talk(names, results, whole, wrong, filtered):
    assert names == ['fetch', 'search']
    assert [(hit['id'], hit['text']) for hit in results] == [('1', TEXTS[1])]
    assert whole['text'] == TEXTS[1] and wrong.is_error and 'there is no document' in wrong.content[0].text
    assert [hit['id'] for hit in filtered[0].structured_content['results']] == ['2']
    assert filtered[1].is_error and "unknown operator 'like'" in filtered[1].content[0].text


def test_assistants_search_and_fetch_over_http(index, running, monkeypatch):
    pytest.importorskip('mcp', reason='mcp is not installed (the extra mcp)')
    from mcp.client.client import Client

    http = running(index, mcp=True)
    check_talk(*asyncio.run(talk(Client(f'{str(http.base_url).rstrip("/")}/mcp'))))
    assert http.get('/search', params={'query': QUESTION}).json()['hits'][0]['id'] == '1'
    for header in ('host', 'origin'):
        for path, codes in (('/mcp', (403, 421)), ('/mcp/', (404,))):
            assert http.post(path, json={}, headers={header: 'http://evil.example'}).status_code in codes
    assert http.get('/nothing').json()['error'] == 'there is nothing here'


@pytest.mark.medium
def test_assistants_search_and_fetch_over_stdio(index, home):
    pytest.importorskip('mcp', reason='mcp is not installed (the extra mcp)')
    from mcp.client.client import Client
    from mcp.client.stdio import StdioServerParameters, stdio_client

    arguments = ['--home', str(home), 'serve', str(index), '--mcp', '--stdio']
    medir = str(Path(sys.executable).with_name('medir'))
    command = StdioServerParameters(command=medir, args=arguments, env=dict(os.environ))
    check_talk(*asyncio.run(talk(Client(stdio_client(command)))))


def test_a_service_asks_for_its_key_counts_and_logs(index, running, tmp_path, monkeypatch, home):
    monkeypatch.setenv('MEDIR_SERVE_KEY', 'k3y')
    log = tmp_path / 'questions.jsonl'
    http = running(index, log=log)
    for path in ('/search?query=a', '/health', '/metrics', '/mcp', '/'):
        assert http.get(path).status_code == 401 and 'Bearer' in http.get(path).json()['fix']
    found = Searcher(http.base_url).search(QUESTION, 1)
    monkeypatch.setenv('MEDIR_SERVE_KEY', 'another')
    with pytest.raises(MedirError, match='asks for a key'):
        Searcher(http.base_url).search(QUESTION, 1)
    figures = http.get('/metrics', headers={'authorization': 'Bearer k3y'})
    assert figures.headers['content-type'].startswith('text/plain')
    assert {'medir_search_seconds_count 1.0', 'medir_documents 3.0'} <= {*figures.text.splitlines()}
    [row] = map(json.loads, log.read_text().splitlines())
    assert (row['query'], row['ids']) == (QUESTION, [found[0]['id']]) and row['ms'] > 0
    assert log.stat().st_mode & 0o077 == 0  # nobody else reads what was asked
    rows, counts = log_queries(log, [])
    assert [row['text'] for row in rows] == [QUESTION] and counts['kept'] == 1


@pytest.mark.parametrize('key', ['wíth', 'two words', 'new\nline'])
def test_a_key_that_cannot_be_sent_is_refused(key, index, monkeypatch):
    monkeypatch.setenv('MEDIR_SERVE_KEY', key)
    with pytest.raises(MedirError, match='the key cannot be sent'):
        serve(index, port=0)


def test_a_full_disk_stops_no_answer(capfd):
    log = QueryLog('/dev/full')
    for _ in range(3):
        log.add('a question', [], 0.1)
    assert capfd.readouterr().err.count('questions are not logged (No space left on device)') == 1
