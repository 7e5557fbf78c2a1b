"""What each paper's code does, as exact strings: instructions, roles of sentences, titles, answers, precision."""

import json
from dataclasses import replace
from pathlib import Path
import numpy as np, pandas as pd, pytest, torch
from medir_nb import workbook
from medir_nb.core import checkpoint_record, registry, write_json
from medir_nb.data import load_task, Task
from medir_nb.encoder import contract, encode_corpus, Encoder, encoder_spec, folder_spec
from medir_nb.evaluator import evaluate
from medir_nb.generator import configure, expand, extract_answer, wording
from medir_nb.trainer import candidates, hypothesize, info_nce, synthesize_queries, train_encoder
from medir_nb.retrieval import parse, pending, score_pairs, search
from conftest import chat_answer, DOCUMENTS, QUERIES, refuses, table, TINY_ROW, write_lines
from tiny_models import make_model

ROOT = Path(__file__).parent.parent


def registered(name):
    return Task(name, instructions=registry('tasks')[name].get('instructions', {}))


def rendered(model, task, role):
    "What `model` is given for a text of `task`; a query has no title."
    encoder = Encoder(model)
    return encoder.render([('' if role == 'query' else 'T', 'B')], role, encoder.instruction(task, role))[0]


# what an Instructor model is given for a query and a document of a task; its authors have no text for bioasq
INSTRUCTOR = """
xl | nfcorpus | query | Represent the nutrition facts to retrieve Public medical articles: B
xl | nfcorpus | document | Represent the Public medical articles for retrieval: T B
xl | scifact | query | Represent the Scientific queries for retrieving a supporting passage: B
xl | scifact | document | represent the scientific paragraph for retrieval: T B
xl | trec-covid | query | Represent the Coronavirus questions to retrieve a supporting document: B
xl | trec-covid | document | Represent the Coronavirus documents for retrieval: T B
l | nfcorpus | query | Represent the Medicine question for retrieving a relevant document: B
l | nfcorpus | document | Represent the medical document for retrieval: T B
l | scifact | query | Represent a Scientific query for retrieving a supporting passage; B
l | scifact | document | represent the Scientific passage for retrieval; T B
l | trec-covid | query | Represent the Coronavirus question for retrieving supporting documents: B
l | trec-covid | document | Represent the Coronavirus document for retrieval: T B
xl, l | scidocs | query | Represent a Science question for retrieving supporting papers: B
xl, l | scidocs | document | Represent the Science paper: T B
xl, l | r2med-biology | query | Represent the Biology post for retrieving relevant paragraphs: B
xl, l | r2med-biology | document | Represent the Biology paragraph for retrieval: T B
xl, l | bioasq | query | Represent the question for retrieving supporting documents: B
xl, l | bioasq | document | Represent the document for retrieval: T B
"""


@pytest.mark.parametrize('sizes, task, role, text', table(INSTRUCTOR))
def test_instructor_gets_its_authors_texts(sizes, task, role, text):
    assert {rendered(f'instructor-{size}', registered(task), role) for size in sizes.split(', ')} == {text}


SENTENCES = {
    **dict.fromkeys('bge-large-en bge-large-en-v1.5 bge-small-en-v1.5 medcpt contriever sgpt-125m'.split(), 'B'),
    'instructor-l': 'Represent the Bio-medical statement: B',
    'instructor-xl': 'represent the Biological statement: B',
    'gritlm-7b': '<|user|>\nRetrieve semantically similar text.\n<|embed|>\nB',
    'e5-mistral': 'Instruct: Retrieve semantically similar text.\nQuery: B',
    'e5-large-v2': 'query: B',
    'bmretriever-410m': 'Given a sentence, retrieve sentences with the same meaning\nQuery: B',
}


def biosses():
    texts = {'sentence1': ['Aspirin helps.', 'It hurts.', 'B'], 'sentence2': ['Aspirin does help.', 'It heals.', 'C']}
    return replace(registered('biosses'), kind='pairs', pairs=pd.DataFrame(texts | {'score': [4.0, 0.0, 2.0]}))


@pytest.mark.parametrize('model', SENTENCES)
def test_a_sentence_takes_the_role_of_its_models_row(model, fake_minilm, home):
    task, spec = biosses(), encoder_spec(model)
    first, answer = pending(model, task), score_pairs(model, task)
    texts = [t for _, ts in fake_minilm for t in ts]
    assert SENTENCES[model] in texts
    assert sorted(texts) == sorted(SENTENCES[model][:-1] + t for t in [*task.pairs.sentence1, *task.pairs.sentence2])
    assert first['to_encode'] == 6 and pending(model, task)['to_encode'] == 0  # the plan looks where the scores lie
    assert evaluate(task, model).stats['encoded_docs'] == 0 and len(answer.run) == 3
    assert spec.sentence_role == ('document' if model.startswith('bge') else 'query')


def test_the_role_of_a_sentence_can_be_turned(fake_minilm, home):
    with_instruction = 'Represent this sentence for searching relevant passages: '
    for call in (
        lambda: score_pairs('bge-large-en(sentence_role=query)', biosses()),
        lambda: score_pairs('bge-large-en', biosses(), role='query'),
        lambda: evaluate(biosses(), 'bge-large-en', pair_role='query'),
    ):
        call()
        assert {t.startswith(with_instruction) for _, ts in fake_minilm for t in ts} == {True}
    refuses(lambda: encoder_spec('bge-large-en', sentence_role='quary'), "unknown sentence_role 'quary'")


def test_the_first_sentence_may_be_a_query_and_the_second_a_document(fake_minilm, home):
    task, system = biosses(), 'bge-large-en(sentence_role=sides)'
    assert pending(system, task)['to_encode'] == 6
    score_pairs(system, task)
    read = {t for _, ts in fake_minilm for t in ts}
    asked = 'Represent this sentence for searching relevant passages: '
    assert read >= {asked + text for text in task.pairs.sentence1} | set(task.pairs.sentence2)


def test_a_checkpoint_keeps_the_role_of_its_base(tmp_path):
    folder, paths = tmp_path / 'tuned', {'Transformer': '', 'Pooling': '1_Pooling'}
    modules = [{'type': f'sentence_transformers.models.{kind}', 'path': path} for kind, path in paths.items()]
    write_json(folder / 'modules.json', modules)
    write_json(folder / '1_Pooling' / 'config.json', {'pooling_mode_cls_token': True})
    assert folder_spec(folder).sentence_role == 'query'
    (folder / 'medir.json').write_text(json.dumps({'spec': {'sentence_role': 'document'}}))
    assert folder_spec(folder).sentence_role == 'document'


BEST = 'Given a question, retrieve relevant documents that best answer the question'
NFCORPUS = {  # what R2MED's released code gives each: a query, a document
    'nv': (f'Instruct: {BEST.replace(" best", "")}\nQuery: B', 'T B'),
    **dict.fromkeys(('bmr-410m', 'bmr-2b', 'bmr-7b'), (f'{BEST}\nQuery: B', 'Represent this passage\npassage: T B')),
    'bge': ('Represent this sentence for searching relevant passages: B', 'T B'),
    'contriever': ('B', 'T B'),
    'e5': (f'Instruct: {BEST}\nQuery: B', 'T B'),
    **dict.fromkeys(('medcpt', 'MedCPT'), ('B', '\x1fT B')),
}


@pytest.mark.parametrize('printed', NFCORPUS)
def test_r2meds_nfcorpus(printed):
    expression = next(e for e, names in registry('systems')['r2med'].items() if printed in names)
    system, task = parse(expression), registered('nfcorpus')
    spec = encoder_spec(system.name, **dict(system.settings))
    assert (rendered(spec, task, 'query'), rendered(spec, task, 'document')) == NFCORPUS[printed]
    assert str(system) == expression and parse(str(system)) == system


@pytest.mark.parametrize(
    'text,mark,answer',
    [
        ('hm </think> It is gout.\n</think> No, pseudogout.', '</think>', 'It is gout.\n</think> No, pseudogout.'),
        ('x\n## Final Response\nGout.\n## Final Response\nNo.', 'Final Response', 'Gout.\n## Final Response\nNo.'),
        ('x</think>**Gout** hurts', '</think>', '**Gout** hurts'),
        ('x</think>\n ', '</think>', ''),
        ('x ## Final Response\n', 'Final Response', ''),
        ('never closed', '</think>', 'never closed'),
    ],
)
def test_an_answer_begins_at_the_first_mark(text, mark, answer):
    assert extract_answer(text, {'after': mark}) == (answer, mark in text)


def test_an_empty_answer_stays_an_empty_text_and_is_counted(beir, fake_minilm):
    "R2MED's code joins the empty text; this project's own rule, the query alone, is for texts without an answer."
    texts = {'q1': 'hm</think>', 'q2': 'hm</think> Metformin is the first drug', 'q3': '', 'q4': 'antivenom'}
    write_lines(beir / 'hyde' / 'qwq-32b.jsonl', [{'id': q, 'hy_doc': t} for q, t in texts.items()])
    task = load_task(str(beir))
    for kind in ('sparse', 'dense'):
        done = expand(task, ('hyde', 'qwq-32b@authors', ()), kind)
        assert done.texts == [[''], ['Metformin is the first drug'], [], ['antivenom']]
        assert done.faults == {'empty': 1, 'empty answer': 1} and done.stats['queries_alone'] == 1
    words = search(task, 'bm25+hyde(qwq-32b@authors)').run
    assert {'q2', 'q3'} <= set(words.query_id) <= {'q2', 'q3', 'q4'}  # an empty question finds nothing
    fake_minilm.clear()
    joined, encoder = search(task, 'minilm+hyde(qwq-32b@authors)'), Encoder('minilm')
    vector = lambda role, *texts: np.mean([encoder.encode([t], role).vectors[0] for t in texts], axis=0)
    unit = lambda v: v / np.linalg.norm(v)
    documents = [unit(vector('document', task.corpus.text(d))) for d in task.corpus.ids]
    for query, texts in {'q1': [task.queries.text('q1'), ''], 'q3': [task.queries.text('q3')]}.items():
        best = max(float(document @ unit(vector('query', *texts))) for document in documents)
        first = joined.run[joined.run.query_id == query].iloc[0]
        assert abs(first.score - best) < 1e-5


def data_set(folder, configurations):
    "A data set of R2MED's layout: `configurations` name → splits of generated texts."
    parts = {
        'corpus': [{'id': i, 'text': f'{t} {b}'} for i, t, b in DOCUMENTS],
        'query': [{'id': q, 'text': t} for q, t in QUERIES],
        'qrels': [{'q_id': q, 'p_id': 'd02', 'score': 1} for q, _ in QUERIES],
    }
    card = [f'- config_name: {n}\n  data_files:\n  - split: {n}\n    path: {n}.jsonl' for n in parts]
    for n, rows in parts.items():
        write_lines(folder / f'{n}.jsonl', rows)
    for c, splits in configurations.items():
        files = ''.join(f'\n  - split: {s}\n    path: {c}/{s}.jsonl' for s in splits)
        card.append(f'- config_name: {c}\n  data_files:{files}')
        for s in splits:
            rows = [{'id': q, 'text': t, 'hy_doc': f'hm</think> {c} {s} {q}'} for q, t in QUERIES]
            write_lines(folder / c / f'{s}.jsonl', rows)
    write_lines(folder / 'README.md', ['---', 'configs:', *card, '---', 'a copy'])
    return folder


@pytest.mark.parametrize(
    'configurations,model,found',
    [
        ({'hyde': ['qwq_32b'], 'search-o1': ['qwen3_32b', 'qwq_32b']}, 'qwq-32b', 'search-o1 qwq_32b'),
        ({'search_o1': ['qwq_32b']}, 'qwq-32b', 'search_o1 qwq_32b'),
        ({'search-o1': ['qwen3_32b']}, 'qwen3-32b', 'search-o1 qwen3_32b'),
    ],
)
def test_search_o1_is_looked_for_under_its_likely_names(tmp_path, own_registry, configurations, model, found):
    pytest.importorskip('datasets')
    row = registry('tasks')['r2med-biology'] | {'queries': 4, 'documents': 12, 'qrels': 4, 'folder': 'nowhere'}
    row |= {'hub': str(data_set(tmp_path / 'hub', configurations)), 'revision': 'main'}
    own_registry(tasks={'r2med-copy': row})
    done = expand(load_task('r2med-copy'), ('search-o1', f'{model}@authors', ()), 'sparse')
    assert done.texts == [[f'{found} {q}'] for q, _ in QUERIES] and done.stats['generated'] == 0


def test_voyage_is_told_that_a_generated_text_is_a_query(fake, tmp_path, beir, monkeypatch):
    "R2MED sends query and generated text alike; the row says so."
    assert encoder_spec('voyage-3').hypothetical == 'query'
    assert 'not known' not in registry('models')['voyage-3']['note']
    vectors = lambda texts: [{'index': i, 'embedding': [1.0, float(len(t))]} for i, t in enumerate(texts)]
    server = fake(answer=lambda body, text=None: {'data': vectors(body['input'])})
    monkeypatch.setenv('MEDIR_EMBEDDING_URL', server.url)
    file = write_lines(tmp_path / 'h.jsonl', [{'id': q, 'hy_doc': f'written for {q}'} for q, _ in QUERIES])
    search(load_task(str(beir)), f'voyage-3(document_template={{json}},query_template={{json}})+hyde(file:{file})')
    kinds = {t: b['input_type'] for b in server.bodies for t in b['input']}
    texts = [text for q, t in QUERIES for text in (f'written for {q}', t)]
    assert {kinds[json.dumps(text)] for text in texts} == {'query'} and 'document' in kinds.values()


@pytest.fixture
def small_bmretriever(tmp_path, own_registry):
    row = registry('models')['bmretriever-410m'] | {'hub': make_model('gpt_neox', tmp_path / 'm'), 'revision': 'tiny'}
    own_registry(models={'bmretriever-410m': row})


@pytest.mark.parametrize('lower', ['float16', 'bfloat16'])
def test_autocast_moves_a_vector_a_little(small_bmretriever, lower):
    plain, cast = Encoder('bmretriever-410m'), Encoder(encoder_spec('bmretriever-410m', autocast=lower))
    texts = plain.render([('', 'Atorvastatin lowers LDL cholesterol.'), ('', 'Metformin.')], 'document')
    a, b = (e.encode(texts, 'document').vectors for e in (plain, cast))
    cosine = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    assert a.dtype == b.dtype == np.float32 and not (a == b).all() and cosine.min() > 0.999
    assert {str(p.dtype) for p in cast.backend('document').model.parameters()} == {'torch.float32'}


def test_autocast_has_a_key_a_store_and_a_line_of_its_own(small_bmretriever, beir, home):
    task = load_task(str(beir))
    plain, cast = Encoder('bmretriever-410m'), Encoder(encoder_spec('bmretriever-410m', autocast='fp16'))
    assert cast.spec.autocast == 'float16'
    assert all(plain.spec.vector_key(r) != cast.spec.vector_key(r) for r in ('query', 'document'))
    first, second = (encode_corpus(e, task.corpus, 'document') for e in (plain, cast))
    assert (first.stats['cached'], second.stats['cached']) == (0, 0) and len(list((home / 'vectors').iterdir())) == 2
    again = encode_corpus(cast, task.corpus, 'document')
    assert again.stats['encoded'] == 0
    assert (again.chunk() == second.chunk()).all() and not (again.chunk() == first.chunk()).all()
    assert 'float32 weights under float16 autocast' in repr(contract(cast, task))
    assert 'autocast' not in repr(contract(plain, task)) and contract(plain, task).key != contract(cast, task).key


def without_dropout(model, tokenizer):
    model.config.hidden_dropout_prob = model.config.attention_probs_dropout_prob = 0.0


@pytest.mark.medium
@pytest.mark.parametrize('cache', [0, 2])
def test_known_positives_of_the_batch_count_as_negatives_on_request(tmp_path, own_registry, home, cache):
    own_registry(models={'tiny': {**TINY_ROW, 'hub': make_model('bert', tmp_path / 'm', change=without_dropout)}})
    rows = [('Metformin is the first drug.', 'a heart attack'), ('It reduces glucose production.', 'the risk')]
    lines = [{'query': 'diabetes', 'pos': [positive], 'neg': [negative]} for positive, negative in rows]
    data = write_lines(tmp_path / 'pairs.jsonl', lines)
    how = {'model': 'tiny', 'data': data, 'max_steps': 1, 'batch_size': 2, 'negatives': 1, 'learning_rate': 1e-6}

    def vectors(texts, role):
        encoder = Encoder('tiny')
        return torch.tensor(encoder.encode(encoder.render([('', text) for text in texts], role), role).vectors)

    texts = vectors(['diabetes'] * 2, 'query'), [vectors(side, 'document') for side in zip(*rows)]
    known = torch.tensor([[False, True, False, False], [True, False, False, False]])
    whole, masked = (float(info_nce(*texts, 0.02, masked=mask)) for mask in (None, known))
    how['gradient_cache'] = cache
    kept, counted = (train_encoder(**how, output=f'own-{m}', mask_positives=m) for m in (True, False))
    assert kept.loss == pytest.approx(masked, rel=1e-3) and counted.loss == pytest.approx(whole, rel=1e-3)
    assert counted.loss > kept.loss and not checkpoint_record('own-False')['config']['mask_positives']


def test_other_wording_reaches_the_model(tmp_path, fake):
    server = fake(answer=lambda body, text=None: chat_answer('a text about gout'))
    configure('smollm2', backend='openai', base_url=server.url)
    write = lambda name, text: str(write_lines(tmp_path / name, [text]))
    rows = [{'id': '1', 'text': 'why gout', 'doc': 'Gout hurts.'}]
    synthesize_queries(rows, 'smollm2', language='en', prompt=write('q.txt', 'My query of {document}'))
    candidates(rows, 'smollm2', 1, language='en', prompt=write('c.txt', 'My candidate of {query} and {document}'))
    hypothesize(rows, 'smollm2', settings={'prompt': write('h.txt', 'My document of {query}')}, language='en')
    configure('smollm2')
    assert [b['messages'][-1]['content'].strip() for b in server.bodies] == [
        'My query of Gout hurts.',
        'My candidate of why gout and Gout hurts.',
        'My document of why gout',
    ]


def test_a_folder_holds_a_wording_for_each_form(tmp_path):
    for form in ('question', 'title', 'text'):
        write_lines(tmp_path / 'own' / f'{form}.txt', [f'{form}: {{query}}'])
    forms = {'cmirb-covid': 'question', 'cmirb-iiyipost': 'title', 'cmirb-cslrel': 'text'}
    for task, form in forms.items():
        assert wording('hyde', registered(task), 'zh', file=str(tmp_path / 'own')).strip() == f'{form}: {{query}}'


def test_files_inside_a_mapping_are_absolute_and_in_the_key(tmp_path, monkeypatch):
    monkeypatch.setenv('MEDIR_ROOT', str(ROOT))
    monkeypatch.chdir(tmp_path)
    file = write_lines(tmp_path / 'q.txt', ['one {document}'])
    path = workbook.find_notebook(str(ROOT / 'nbs' / 'papers' / 'automir_slhyde.ipynb'))
    prompts = {'synthesize-query': './q.txt', 'hyde': {'search': './q.txt'}}
    parameters = workbook.resolve_parameters(path, None, {'prompts': prompts})
    assert parameters['prompts'] == {'synthesize-query': str(file), 'hyde': {'search': str(file)}}
    before = workbook.receipt_key(path, parameters)[0]
    write_lines(file, ['two {document}'])
    assert workbook.receipt_key(path, parameters)[0] != before
