"""What each paper's code does, as exact strings: instructions, roles of sentences, titles, answers, precision."""
import json
from dataclasses import replace
from pathlib import Path
import pandas as pd, pytest, yaml
from medir_nb.core import MedirError, registry
from medir_nb.data import Task
from medir_nb.encoder import Encoder, contract, encoder_spec, folder_spec
from medir_nb.evaluator import evaluate
from medir_nb.systems import parse, pending, score_pairs

ROOT = Path(__file__).parent.parent

def write_folder(folder):
    "The configuration of a sentence-transformers folder, without weights."
    modules = [{'type': f'sentence_transformers.models.{kind}', 'path': path} for kind, path in (('Transformer', ''), ('Pooling', '1_Pooling'))]
    (folder/'1_Pooling').mkdir(parents=True)
    (folder/'modules.json').write_text(json.dumps(modules))
    (folder/'1_Pooling'/'config.json').write_text(json.dumps({'pooling_mode_cls_token': True}))
    return folder

def registered(name):
    "A registry task without its texts."
    return Task(name, instructions=registry('tasks')[name].get('instructions', {}))

def rendered(model, task, role, title='T', body='B'):
    "What `model` is given for a text of `task`; a query has no title."
    encoder = Encoder(model)
    return encoder.render([('' if role == 'query' else title, body)], role, encoder.instruction(task, role))[0]

INSTRUCTOR_XL = [
    ('nfcorpus', 'Represent the nutrition facts to retrieve Public medical articles: B', 'Represent the Public medical articles for retrieval: T B'),
    ('scifact', 'Represent the Scientific queries for retrieving a supporting passage: B', 'represent the scientific paragraph for retrieval: T B'),
    ('scidocs', 'Represent a Science question for retrieving supporting papers: B', 'Represent the Science paper: T B'),
    ('trec-covid', 'Represent the Coronavirus questions to retrieve a supporting document: B', 'Represent the Coronavirus documents for retrieval: T B'),
    ('bioasq', 'Represent the question for retrieving supporting documents: B', 'Represent the document for retrieval: T B'),      # a task that its authors have no text for
]
INSTRUCTOR_L = [
    ('nfcorpus', 'Represent the Medicine question for retrieving a relevant document: B', 'Represent the medical document for retrieval: T B'),
    ('scifact', 'Represent a Scientific query for retrieving a supporting passage; B', 'represent the Scientific passage for retrieval; T B'),
    ('scidocs', 'Represent a Science question for retrieving supporting papers: B', 'Represent the Science paper: T B'),
    ('trec-covid', 'Represent the Coronavirus question for retrieving supporting documents: B', 'Represent the Coronavirus document for retrieval: T B'),
    ('bioasq', 'Represent the question for retrieving supporting documents: B', 'Represent the document for retrieval: T B'),
]

@pytest.mark.parametrize('model,task,query,document', [*(('instructor-xl', *row) for row in INSTRUCTOR_XL), *(('instructor-l', *row) for row in INSTRUCTOR_L)])
def test_instructor_gets_its_authors_texts(model, task, query, document):
    assert rendered(model, registered(task), 'query') == query
    assert rendered(model, registered(task), 'document') == document

def test_instructor_gets_r2meds_texts_there():
    for model in ('instructor-l', 'instructor-xl'):
        assert rendered(model, registered('r2med-biology'), 'query') == 'Represent the Biology post for retrieving relevant paragraphs: B'
        assert rendered(model, registered('r2med-biology'), 'document') == 'Represent the Biology paragraph for retrieval: T B'

# ---------------------------------------------------------------- sentences of a similarity task

SENTENCES = {
    'instructor-l': 'Represent the Bio-medical statement: B', 'instructor-xl': 'represent the Biological statement: B',
    'bge-large-en': 'B', 'bge-large-en-v1.5': 'B', 'bge-small-en-v1.5': 'B',
    'gritlm-7b': '<|user|>\nRetrieve semantically similar text.\n<|embed|>\nB', 'e5-mistral': 'Instruct: Retrieve semantically similar text.\nQuery: B', 'e5-large-v2': 'query: B',
    'bmretriever-410m': 'Given a sentence, retrieve sentences with the same meaning\nQuery: B', 'medcpt': 'B', 'contriever': 'B', 'sgpt-125m': 'B',
}

def biosses():
    pairs = pd.DataFrame({'sentence1': ['Aspirin helps.', 'It hurts.', 'B'], 'sentence2': ['Aspirin does help.', 'It heals.', 'C'], 'score': [4.0, 0.0, 2.0]})
    return replace(registered('biosses'), kind='pairs', pairs=pairs)

@pytest.mark.parametrize('model', SENTENCES)
def test_a_sentence_takes_the_role_of_its_models_row(model, fake_minilm, home):
    task, spec = biosses(), encoder_spec(model)
    first = pending(model, task)
    answer = score_pairs(model, task)
    texts = [t for _, ts in fake_minilm for t in ts]
    assert SENTENCES[model] in texts and sorted(texts) == sorted(SENTENCES[model][:-1] + t for t in [*task.pairs.sentence1, *task.pairs.sentence2])
    assert first['to_encode'] == 6 and pending(model, task)['to_encode'] == 0       # the plan looks where the scores lie
    assert evaluate(task, model).stats['encoded_docs'] == 0 and len(answer.run) == 3
    assert spec.sentence_role == ('document' if model.startswith('bge') else 'query')

def test_the_role_of_a_sentence_can_be_turned(fake_minilm, home):
    with_instruction = 'Represent this sentence for searching relevant passages: '
    for call in (lambda: score_pairs('bge-large-en(sentence_role=query)', biosses()), lambda: score_pairs('bge-large-en', biosses(), role='query'), lambda: evaluate(biosses(), 'bge-large-en', pair_role='query')):
        call()
        assert {t.startswith(with_instruction) for _, ts in fake_minilm for t in ts} == {True}
    with pytest.raises(MedirError, match="sentence_role 'quary' is no side of a search"): encoder_spec('bge-large-en', sentence_role='quary')

def test_the_contract_of_a_sentence(own_registry):
    row = {**registry('models')['text-embedding-3-large'], 'query_template': 'Find: {text}', 'document_template': '{text}'}
    own_registry(models={'asks': row, 'tells': {**row, 'sentence_role': 'document'}})
    assert [(r['role'], r['text']) for r in contract(Encoder('asks'), biosses()).rows] == [('query', 'Find: Aspirin helps.')]
    assert [(r['role'], r['text']) for r in contract(Encoder('tells'), biosses()).rows] == [('document', 'Aspirin helps.')]

def test_a_checkpoint_keeps_the_role_of_its_base(tmp_path):
    folder = write_folder(tmp_path/'tuned')
    assert folder_spec(folder).sentence_role == 'query'
    (folder/'medir.json').write_text(json.dumps({'spec': {'sentence_role': 'document'}}))
    assert folder_spec(folder).sentence_role == 'document'

# ---------------------------------------------------------------- R2MED's check on NFCorpus

BEST = 'Given a question, retrieve relevant documents that best answer the question'
NFCORPUS = {    # what R2MED's released code gives each of the seven: a query, a document
    'nv': (f'Instruct: {BEST.replace(" best", "")}\nQuery: B', 'T B'), **dict.fromkeys(('bmr-410m', 'bmr-2b', 'bmr-7b'), (f'{BEST}\nQuery: B', 'Represent this passage\npassage: T B')),
    'bge': ('Represent this sentence for searching relevant passages: B', 'T B'), 'contriever': ('B', 'T B'), 'medcpt': ('B', '\x1fT B'), 'MedCPT': ('B', '\x1fT B')}

@pytest.mark.parametrize('printed', NFCORPUS)
def test_r2meds_nfcorpus(printed):
    expression = next(e for e, names in registry('systems')['r2med'].items() if printed in names)
    system, task = parse(expression), registered('nfcorpus')
    encoder = Encoder(encoder_spec(system.name, **dict(system.settings)))
    assert (encoder.render([('', 'B')], 'query', encoder.instruction(task))[0], encoder.render([('T', 'B')], 'document', encoder.instruction(task, 'document'))[0]) == NFCORPUS[printed]
    assert str(system) == expression and parse(str(system)) == system

def test_the_check_of_every_preset_runs_r2meds_settings():
    for preset in ('mini', 'paper'):
        chosen = yaml.safe_load((ROOT/'params'/'r2med_retrieval'/f'{preset}.yaml').read_text())
        assert set(chosen['check_systems']) <= set(registry('systems')['r2med']) and chosen['check_tasks'] == ['nfcorpus']

def test_other_models_keep_their_title_and_nv_its_other_tasks():
    assert rendered('medcpt', registered('nfcorpus'), 'document') == 'T\x1fB'
    assert rendered('nv-embed-v2', registered('r2med-biology'), 'query') == 'Instruct: Given a Biology post, retrieve relevant passages that help answer the post\nQuery: B'
    assert rendered('e5-mistral', registered('nfcorpus'), 'query') == f'Instruct: {BEST}\nQuery: B'
