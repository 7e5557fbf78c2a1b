"Embedding services: what they are asked, what is paid once, and what goes wrong."

import numpy as np, pytest
from conftest import write_beir
from medir_nb import encoder as e
from medir_nb.core import concurrently, MedirError, Server, share_left
from medir_nb.data import load_task
from medir_nb.encoder import Encoder, encode_corpus, encoder_spec
from medir_nb.evaluator import evaluate
from medir_nb.retrieval import pending, search


@pytest.fixture(autouse=True)
def forget(monkeypatch):
    "No key, address or loaded backend of one test reaches another; pauses are short."
    for name in ('MEDIR_EMBEDDING_URL', 'MEDIR_EMBEDDING_KEY', 'OPENAI_API_KEY', 'VOYAGE_API_KEY'):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(
        e.services, 'Server', lambda *a, **k: Server(*a, **{'pause': 0.01, 'timeout': 0.4, 'attempts': 3, **k})
    )
    e.model._recent.clear()
    yield
    e.model._recent.clear()


def vector(text):
    return [len(text) + 1.0, text.count('a') + 1.0, text.count('e'), sum(map(ord, text)) % 97 / 9]


def embed(body):
    return {
        'data': [{'index': i, 'embedding': vector(t)} for i, t in list(enumerate(body['input']))[::-1]],
        'usage': {'total_tokens': 7},
    }  # in any order


@pytest.fixture
def service(fake, monkeypatch):
    def make(*script, **k):
        server = fake(*script, answer=embed, **k)
        monkeypatch.setenv('MEDIR_EMBEDDING_URL', server.url)
        return server

    return make


def texts_of(server):
    return [t for b in server.bodies for t in b['input']]


def corpus(tmp_path, n, length=1):
    return load_task(
        str(
            write_beir(
                tmp_path / f'c{n}',
                [(f'd{i}', '', f'document {i} ' * length) for i in range(n)],
                [('q1', 'a query')],
                [('q1', 'd1', 1)],
            )
        )
    )


def test_vectors_are_those_of_their_texts_and_are_asked_once(service, beir):
    server, task = service(), load_task(str(beir))
    assert pending('text-embedding-ada-002', task)['to_encode'] == 16 and not server.asked
    docs = encode_corpus(Encoder('text-embedding-ada-002'), task.corpus, 'document')
    wanted = np.array([vector(t) if t else [0] * 4 for t in task.corpus.texts()])
    assert (
        np.allclose(docs.chunk(), wanted)
        and '' not in texts_of(server)
        and server.bodies[0]['model'] == 'text-embedding-ada-002'
        and server.bodies[0]['encoding_format'] == 'float'
    )
    first = search('text-embedding-ada-002', task)
    asked = server.asked
    again = search('text-embedding-ada-002', task)
    assert (
        server.asked == asked
        and first.run.equals(again.run)
        and again.stats['encoded_docs'] == 0
        and pending('text-embedding-ada-002', task)['to_encode'] == 0
    )
    assert len(texts_of(server)) == 15  # 11 documents with a text and 4 queries


def test_voyage_is_told_the_role_and_cuts_nothing(service, beir):
    server = service()
    search('voyage-3', load_task(str(beir)))
    assert {b['input_type'] for b in server.bodies} == {'document', 'query'} and all(
        b['truncation'] is False and b['model'] == 'voyage-3' and 'encoding_format' not in b for b in server.bodies
    )
    assert all(('drugs after a heart attack' in b['input']) == (b['input_type'] == 'query') for b in server.bodies)


def test_requests_hold_a_number_of_texts_and_of_tokens(service, tmp_path):
    server = service()
    encode_corpus(Encoder('text-embedding-ada-002'), corpus(tmp_path, 150).corpus, 'document')
    assert sorted(len(b['input']) for b in server.bodies) == [22, 64, 64]
    server.bodies.clear()
    encode_corpus(
        Encoder('text-embedding-ada-002'), corpus(tmp_path, 20, 1000).corpus, 'document'
    )  # about 6,000 tokens each by the cautious count
    assert {len(b['input']) for b in server.bodies} == {5}


@pytest.mark.parametrize(
    'fault',
    [
        (429,),
        (503,),
        'broken',
        'cut',
        'hang',
        (200, '{"data": []}'),
        (200, '{"data": [{"index": 0, "embedding": [NaN, 1, 1, 1]}]}'),
    ],
    ids=str,
)
def test_what_passes_is_tried_again(service, fault):
    server = service(fault, fault)
    got = Encoder('text-embedding-ada-002').encode(['fever'], 'document').vectors
    assert np.allclose(got, [vector('fever')]) and server.asked == 3


def test_what_arrived_before_a_failure_is_stored_and_only_the_rest_is_asked(service, tmp_path, monkeypatch):
    monkeypatch.setattr(e.services, 'concurrently', lambda call, items, workers=1: concurrently(call, items, 1))
    server, docs = service('ok', 'ok', (401, '{"error": "no"}')), corpus(tmp_path, 200).corpus
    with pytest.raises(MedirError, match='answered 401.*check key and address'):
        encode_corpus(Encoder('text-embedding-ada-002'), docs, 'document')
    paid = [
        t for i, b in enumerate(server.bodies) if i != 2 for t in b['input']
    ]  # a request may have started before the failure was seen
    server.bodies.clear()
    got = encode_corpus(Encoder('text-embedding-ada-002'), docs, 'document')
    assert sorted(paid + texts_of(server)) == sorted(docs.texts()) and got.stats['cached'] == len(paid) >= 128
    assert np.allclose(got.chunk(), [vector(t) for t in docs.texts()])


def test_too_long_is_shortened_and_counted(service, beir):
    server = service(context=60)
    texts = ['short', 'fever ' * 40, 'cough']
    got = Encoder('text-embedding-ada-002').encode(texts, 'document')
    assert (
        got.truncated.tolist() == [False, True, False]
        and np.allclose(got.vectors[[0, 2]], [vector('short'), vector('cough')])
        and 30 < got.vectors[1, 0] <= 61
    )
    task = load_task(str(beir))
    answer = search('text-embedding-ada-002', task)
    assert answer.stats['truncated_docs'] == sum(len(t) > 60 for t in task.corpus.texts()) > 0


def test_keys_stay_in_the_environment_and_with_their_vendor(service, beir, monkeypatch, home):
    monkeypatch.setenv('OPENAI_API_KEY', 'vendor-secret-value')
    server = service()
    search('text-embedding-ada-002', load_task(str(beir)))
    assert not any(
        'authorization' in {k.lower() for k in h} for h in server.headers
    )  # another server never gets the vendor's key
    monkeypatch.setenv('MEDIR_EMBEDDING_KEY', 'own-secret-value')
    Encoder('text-embedding-ada-002').encode(['new'], 'query')
    assert server.headers[-1]['Authorization'] == 'Bearer own-secret-value'
    assert not any(b'secret-value' in p.read_bytes() for p in home.rglob('*') if p.is_file())
    monkeypatch.delenv('MEDIR_EMBEDDING_URL')
    e.model._recent.clear()
    Encoder(encoder_spec('text-embedding-ada-002', base_url=server.url)).encode(['new'], 'query')
    assert server.headers[-1]['Authorization'] == 'Bearer own-secret-value'
    monkeypatch.delenv('OPENAI_API_KEY')
    with pytest.raises(MedirError) as error:
        Encoder('text-embedding-ada-002').encode(['x'], 'query')
    assert (
        str(error.value)
        == 'model text-embedding-ada-002: the key of https://api.openai.com/v1 is not set; set $OPENAI_API_KEY'
    )


def test_the_server_is_part_of_the_key_and_of_the_ledgers_reason(service, beir, monkeypatch):
    from medir_nb.papers.verdicts import system_or_none as _system, system_reason as _system_reason

    spec = encoder_spec('voyage-3')
    vendors = spec.vector_key('query')
    service()
    assert spec.vector_key('query') != vendors and encoder_spec('voyage-3', dtype='bf16').vector_key(
        'query'
    ) == spec.vector_key('query') != spec.vector_key('document')
    assert _system_reason(evaluate(str(beir), 'voyage-3'), _system('voyage-3')).startswith('asked at http://127.0.0.1')
    with pytest.raises(MedirError, match="service's own affair"):
        encoder_spec('voyage-3', max_document_tokens=512)


@pytest.mark.parametrize(
    'complaint, share',
    [
        ('context length is 8,192 tokens, you requested 16384', 0.475),
        ('context length is 100 tokens, you requested at least 101', 0.06),
        ('maximum 512 tokens', 0.8),
        ('too long', 0.8),
    ],
)
def test_the_share_that_a_complaint_leaves(complaint, share):
    assert share_left(complaint, 10_000) == pytest.approx(share, abs=0.001)
