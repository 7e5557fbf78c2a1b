"""The tests run this with HF_ENDPOINT set: it loads rows of the registries and prints a JSON line on each."""

import json, sys
import numpy as np
from medir_nb.core import MedirError

TEXTS = [
    ('Statins', 'Atorvastatin lowers LDL cholesterol.'),
    ('', '高血压的治疗 and a longer text about metformin in the first treatment of type 2 diabetes'),
]


def encoder(name):
    "Both roles of a row on two texts, with its instruction."
    from medir_nb.encoder import Encoder

    one = Encoder(name)
    found = {'revision': one.spec.revision}
    for role in ('query', 'document'):
        instruction = one.instruction(None, role)
        encoded = one.encode(one.render(TEXTS, role, instruction), role, instruction)
        v = encoded.vectors.toarray() if one.spec.representation == 'sparse' else encoded.vectors
        if hasattr(v, 'matrices'):  # a vector a token: the last of each text
            v = np.stack([matrix[-1] for matrix in v.matrices()])
        found[role] = {
            'dim': v.shape[1],
            'finite': bool(np.isfinite(v).all()),
            'norms': [round(float(n), 4) for n in np.linalg.norm(v, axis=1)],
            'apart': float(np.abs(v[0] - v[1]).max()),
            'tokens': encoded.tokens.tolist(),
            'first': [round(float(x), 5) for x in v[0][:4]],
        }
    return found


def weights(name):
    from medir_nb.core import file_fingerprint
    from medir_nb.encoder.loading import checkpoint_paths as _checkpoint
    from medir_nb.encoder import encoder_spec

    return {'files': file_fingerprint(_checkpoint(encoder_spec(name), 'query')[0])}


def writer(name):
    from medir_nb.generator import LLM, Request, Sampling

    one = LLM(name, backend='transformers')
    sampling = Sampling(**{**one.spec.sampling, 'max_tokens': 4})
    asked = ('What lowers cholesterol?', '什么药降低血压？')
    made = one.generate([Request(text, sampling, one.spec.system) for text in asked])
    counted = {'tokens': [g.tokens for g in made], 'prompts': [g.prompt_tokens for g in made]}
    return {'revision': one.spec.revision, 'texts': [g.text for g in made], **counted}


def served_writer(name):
    from medir_nb.generator import LLM, Request

    one = LLM(name, backend='openai')
    asked = Request('What lowers cholesterol?', one.sampling(max_tokens=4), one.spec.system)
    return {'texts': [made.text for made in one.generate([asked])]}


def reranker(name):
    from medir_nb.retrieval import Reranker, written_pairs

    one = Reranker(name)
    pairs = [('which drugs lower cholesterol', TEXTS[0][1]), ('高血压', TEXTS[1][1])]
    scored = one.backend().encode(written_pairs(one.spec, pairs))
    return {'scores': scored.vectors[:, 0].tolist(), 'tokens': scored.tokens.tolist()}


def task(name):
    from medir_nb.data import load_task

    one = load_task(name)
    told = {name: getattr(one, name) for name in ('kind', 'revision')}
    if one.kind == 'pairs':
        return {**told, 'pairs': len(one.pairs)}
    counts = {name: len(getattr(one, name)) for name in ('queries', 'qrels', 'labels')}
    counts['documents'] = len(one.corpus) + one.report['repeated_document_ids']
    counts['candidates'] = None if one.candidates is None else len(one.candidates)
    return {**told, **counts, 'language': one.language, 'fingerprint': one.fingerprint}


def read(name):
    "What a task holds: its name and parts, the first of its texts, what stands beside them."
    from medir_nb.data import load_task

    one = load_task(name)
    told = {'called': one.name, 'kind': one.kind}
    if one.kind == 'pairs':
        return {**told, 'pairs': one.pairs.values.tolist()}
    told |= {name: getattr(one, name) for name in ('split', 'revision', 'measures', 'instructions', 'report')}
    texts = {
        name: dict(zip(part.ids, part.texts())) for name, part in (('queries', one.queries), ('documents', one.corpus))
    }
    candidates = None if one.candidates is None else one.candidates.values.tolist()
    return {**told, **texts, 'qrels': one.qrels.values.tolist(), 'candidates': candidates}


def corpus(name):
    from medir_nb.trainer import load_documents

    return {'documents': len(load_documents(name))}


def generations(name):
    "The published texts of `TASK/METHOD/LLM`."
    from medir_nb.data import load_task
    from medir_nb.generator import expand

    at, method, llm = name.split('/')
    one = expand(load_task(at), (method, f'{llm}@authors', ()), 'sparse')
    return {'texts': one.texts, 'stats': one.stats}


def main(kind, names):
    for name in names:
        try:
            found = globals()[kind](name)
        except MedirError as e:
            found = {'error': str(e)}
        except Exception as e:
            found = {'crash': f'{type(e).__name__}: {e}'}
        print(json.dumps({'name': name, **found}, ensure_ascii=False), flush=True)


if __name__ == '__main__':
    main(sys.argv[1], sys.argv[2:])
