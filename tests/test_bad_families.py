"What a sparse encoder, token vectors, a model that reads lists and a fusion cannot work with: one line each."

import pytest
from hub.models import token_files
from medir_nb.core import MedirError, registry
from medir_nb.generator import configure
from medir_nb.generator.toy_llm import ToyServer
from medir_nb.retrieval import search
from tiny_models import frames, make_tokenizer, SIZES

BAD = [
    ('{headless}(representation=sparse)', 'it has no masked-language head'),
    ('narrow', 'its token vectors have 128 numbers, its row says 64; correct dim in its row'),
    ('linear(bm25:.6,minilm:.5)', 'the weights sum to 1.1 instead of 1'),
    ('bm25>listwise(qwen2-7b,window=3)@3', '2 missing ids, 1 invented ids; what an answer leaves out keeps its old'),
]


@pytest.fixture(scope='module')
def headless(tmp_path_factory):
    "The folder of an encoder of one vector a text."
    import transformers
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    folder, tokenizer = tmp_path_factory.mktemp('headless'), make_tokenizer('bert')
    config = transformers.BertConfig(vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id, **SIZES)
    for part in (tokenizer, transformers.AutoModel.from_config(config)):
        part.save_pretrained(folder / 'plain')
    parts = [Transformer(str(folder / 'plain')), Pooling(SIZES['hidden_size'])]
    SentenceTransformer(modules=parts, device='cpu').save(str(folder / 'dense'))
    return folder / 'dense'


@pytest.fixture
def narrow(tmp_path, own_registry):
    "A row that says 64 of a checkpoint with 128."
    row = registry('models')['colbertv2']
    (tmp_path / 'narrow').mkdir()
    token_files(row, 'colbertv2')(tmp_path / 'narrow')
    own_registry(models={'narrow': row | {'hub': str(tmp_path / 'narrow'), 'revision': 'tiny', 'dim': 64}})


@pytest.fixture
def reader():
    "A language model that names one passage that it was shown, and one that it was not."
    server = ToyServer(lambda messages: '[9] > [2]')
    configure('qwen2-7b', backend='openai', base_url=server.url)
    yield
    server.close()
    configure('qwen2-7b')


@pytest.mark.parametrize('system, said', BAD)
def test_bad_input_is_one_line(system, said, headless, narrow, reader, home, capsys):
    task = frames(['fever', 'fever and rash', 'a fever of a child'], ['fever'])
    try:
        run = search(task, system.format(headless=headless), 3).run
        line = capsys.readouterr().err.strip()
        assert sorted(run.doc_id) == ['d0', 'd1', 'd2']
    except MedirError as refused:
        line = str(refused)
    assert said in line and '\n' not in line
