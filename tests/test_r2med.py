"""R2MED: fifteen retrievers, checkpoints in their own environment, a reader's own model, layouts and printed scores."""

import gc, json, shutil, stat, struct, subprocess, sys, zipfile, zlib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
import numpy as np, pandas as pd, pytest
from conftest import DOCUMENTS, QRELS, QUERIES, refuses, table, write_lines
from medir_nb import data, encoder as encoder_module
from medir_nb.core import MedirError, registry
from medir_nb.data import load_task, Task
from medir_nb.encoder import encode_corpus, Encoder, encoder_spec, environment_python
from medir_nb.evaluator import evaluate, score_run
from medir_nb.papers import published
from medir_nb.retrieval import parse
from tiny_models import BIOLOGY, by_hand, close, frames, LONG, make_model, SENTENCES, TEXTS, WEB

R2MED = [n for n, r in registry('tasks').items() if r['paper'] == 'r2med']


@pytest.fixture(scope='module')
def mistral(tmp_path_factory):
    return make_model('mistral', tmp_path_factory.mktemp('mistral') / 'm')


@pytest.fixture(scope='module')
def bert(tmp_path_factory):
    return make_model('bert', tmp_path_factory.mktemp('bert') / 'm')


def packaged(name, **changes):
    return {**registry('models')[name], 'revision': 'tiny', **changes}


# what R2MED's protocol says, written down here and not read from the rows: pooling, normalised, tokens of a query and
# of a document, precision, how an LLM's text is encoded
PROTOCOL = {
    'contriever': ('mean', False, 512, 512, 'float32', 'plain'),
    **dict.fromkeys(('medcpt', 'MedCPT'), ('cls', False, 512, 512, 'float32', 'plain')),
    **dict.fromkeys(('inst-l', 'inst-xl'), ('mean', True, 512, 512, 'float32', 'query')),
    'bmr-410m': ('lasttoken', False, 512, 512, 'float32', 'plain'),
    'bmr-2b': ('lasttoken', False, 1024, 1024, 'float32', 'plain'),
    'bmr-7b': ('lasttoken', False, 2048, 2048, 'float32', 'plain'),
    'bge': ('cls', True, 512, 512, 'float32', 'plain'),
    **dict.fromkeys(('e5', 'sfr'), ('lasttoken', True, 2048, 2048, 'float32', 'plain')),
    'grit': ('mean', True, 512, 2048, 'bfloat16', 'query'),
    'nv': ('its own', True, 4096, 4096, 'float16', 'query'),
}
OF_BMRETRIEVER = f'{BIOLOGY}\nQuery: X', 'Represent this passage\npassage: B'
STRINGS = {  # those of Instructor stand in test_protocols.py
    'contriever': ('X', 'B'),
    'medcpt': ('X', '\x1fB'),
    **dict.fromkeys(('bmr-410m', 'bmr-2b', 'bmr-7b'), OF_BMRETRIEVER),
    'bge': ('Represent this sentence for searching relevant passages: X', 'B'),
    **dict.fromkeys(('e5', 'sfr', 'nv'), (f'Instruct: {BIOLOGY}\nQuery: X', 'B')),
    'grit': (f'<|user|>\n{BIOLOGY}\n<|embed|>\nX', '<|embed|>\nB'),
    **dict.fromkeys(('openai', 'voyage'), ('"X"', '"B"')),
}


def of_paper(printed):
    return parse(next(e for e, names in registry('systems')['r2med'].items() if printed in names))


def spec_of(printed):
    s = of_paper(printed)
    # on a GPU: a processor without instructions for a row's precision computes in float32
    return encoder_spec(s.name, device='cuda', **dict(s.settings))


def test_fifteen_retrievers_and_876_queries():
    base, board = set(published('r2med', 'base').system), set(published('r2med', 'leaderboard').retriever)
    assert {p for names in registry('systems')['r2med'].values() for p in names} >= base | board
    assert str(of_paper('bm25')) == 'bm25(gensim)' and len(base) == 15
    assert len(R2MED) == 8 and sum(registry('tasks')[t]['queries'] for t in R2MED) == 876


@pytest.mark.parametrize('printed', PROTOCOL)
def test_a_retriever_as_the_protocol_has_it(printed):
    s = spec_of(printed)
    own = registry('models')[s.name].get('hypothetical', 'plain')
    found = s.pooling, s.normalize, s.max_query_tokens, s.max_document_tokens, s.dtype, own
    assert found == PROTOCOL[printed] and s.similarity == 'cos'


@pytest.mark.parametrize('printed', STRINGS)
def test_strings_of_the_protocol(printed):
    encoder = Encoder(spec_of(printed))
    task = Task('Biology', instructions=registry('tasks')['r2med-biology']['instructions'])
    texts = {'query': 'X', 'document': 'B'}
    found = [encoder.render([('', t)], role, encoder.instruction(task, role))[0] for role, t in texts.items()]
    assert tuple(found) == STRINGS[printed]


def test_medcpt_of_the_files_and_of_the_leaderboard():
    slip, pair = spec_of('medcpt'), spec_of('MedCPT')
    assert slip.hub == slip.document['hub'] == 'ncbi/MedCPT-Article-Encoder' == pair.document['hub']
    assert pair.hub == 'ncbi/MedCPT-Query-Encoder' and slip.vector_key('query') != pair.vector_key('query')


def with_own_code(folder, out):
    "A checkpoint whose configuration names code of its own, which leaves a trace when it runs."
    shutil.copytree(folder, out)
    code = ['from pathlib import Path', 'from transformers import MistralModel', '(Path.home()/"ran").touch()']
    write_lines(Path(out) / 'own_code.py', [*code, 'class OwnModel(MistralModel): pass'])
    return with_config(out, sliding_window=4096, auto_map={'AutoModel': 'own_code.OwnModel'})


def with_config(out, **changes):
    file = Path(out) / 'config.json'
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    return str(out)


def both_ways(folder, texts, skip):
    "Mean of the hidden states after `skip` tokens under a mask that was written out in full, one text at a time."
    import torch, transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model, out = transformers.AutoModel.from_pretrained(folder).eval(), []
    for t in texts:
        ids = torch.tensor([tokenizer(t)['input_ids']])
        with torch.no_grad():
            found = model(input_ids=ids, attention_mask=torch.zeros(1, 1, ids.shape[1], ids.shape[1]))
        mean = found.last_hidden_state[0, skip:].mean(0)
        out.append((mean / mean.norm()).numpy())
    return np.stack(out)


def test_gritlm_attends_both_ways_and_runs_no_code(mistral, own_registry, tmp_path, monkeypatch):
    import transformers

    monkeypatch.setenv('HOME', str(tmp_path))
    own_registry(models={'gritlm-7b': packaged('gritlm-7b', hub=with_own_code(mistral, tmp_path / 'grit'))})
    encoder = Encoder(encoder_spec('gritlm-7b', dtype='fp32'))
    prompt = '<|user|>\nFind it\n<|embed|>\n'
    texts = encoder.render(TEXTS[:4], 'query', 'Find it')
    assert texts[0] == f'{prompt}statins'
    skip = len(transformers.AutoTokenizer.from_pretrained(mistral)(prompt)['input_ids'])
    for part in (texts, texts[1:2]):  # one alone has no padding
        close(encoder.encode(part, 'query', 'Find it').vectors, both_ways(mistral, part, skip))
    how = {'hub': mistral, 'revision': 'tiny', 'dtype': 'fp32', 'pooling': 'mean', 'append_eos': False}
    causal = Encoder(encoder_spec('e5-mistral', **how)).encode(texts, 'query').vectors
    assert not np.allclose(causal, both_ways(mistral, texts, 0), atol=1e-3) and not (tmp_path / 'ran').exists()
    one_way = encoder_spec('gritlm-7b', dtype='fp32', bidirectional=False)
    assert encoder.spec.vector_key('query') != one_way.vector_key('query')


def test_sfr_equals_plain_transformers(mistral, own_registry):
    name, prompts = 'sfr-embedding-mistral', {'query': f'Instruct: {WEB}\nQuery: ', 'document': ''}
    own_registry(models={name: packaged(name, hub=mistral)})
    encoder = Encoder(encoder_spec(name, dtype='fp32', max_query_tokens=64, max_document_tokens=64))
    for role, prompt in prompts.items():
        texts = encoder.render([*TEXTS[:4], LONG], role, WEB)
        assert texts[0] == f'{prompt}statins'
        wanted, counts = by_hand('mistral', mistral, texts, 64, True, 'lasttoken', True)
        got = encoder.encode(texts, role, WEB)
        close(got.vectors, wanted)
        assert got.tokens.tolist() == counts


def test_medcpt_with_the_article_encoder_on_both_sides(bert, own_registry, tmp_path):
    article = make_model('bert', tmp_path / 'article', seed=5)
    document, hubs = {'hub': article, 'revision': 'tiny'}, {'medcpt': bert, 'medcpt-article': article}
    own_registry(models={name: packaged(name, hub=hub, document=document) for name, hub in hubs.items()})
    slip, pair = both = Encoder('medcpt-article'), Encoder(encoder_spec('medcpt', titles=False))
    vectors = lambda role: [each.encode(each.render(TEXTS[:3], role), role).vectors for each in both]
    assert np.allclose(*vectors('document'), atol=1e-5) and not np.allclose(*vectors('query'), atol=1e-5)
    wanted, _ = by_hand('bert', article, ['statins'], 512, False, 'cls', False)
    close(slip.encode(['statins'], 'query').vectors, wanted)


OWN_CODE = """
import os, signal
from pathlib import Path
from transformers import AutoTokenizer, BertConfig, BertModel
class OwnConfig(BertConfig): model_type = 'own-bert'
class OwnModel(BertModel):
    "Sums of word embeddings, doubled where an instruction was given: like nothing that this package could do itself."
    config_class = OwnConfig
    def encode(self, texts, instruction='', max_length=0):
        print('noise on stdout')
        here = Path(__file__).parent
        if any('boom' in t for t in texts): raise ValueError('no vector\\nfor boom')
        dies = any('die' in t for t in texts) and 'ALIVE' not in os.environ
        if dies and not Path(os.environ['HOME'], 'died').exists():
            Path(os.environ['HOME'], 'died').touch(); os.kill(os.getpid(), signal.SIGKILL)
        if any('secret' in t for t in texts): raise ValueError(os.environ.get('MEDIR_TEST_KEY', 'nothing'))
        words = self.get_input_embeddings().weight
        times = 2 if instruction else 1
        summed = lambda t, k: float(words[(len(t) + k) % len(words)].sum())
        return [[times * summed(t, k) for k in range(8)] + [max_length] for t in texts]
"""


def own_code_folder(bert, out):
    shutil.copytree(bert, out)
    (Path(out) / 'own_code.py').write_text(OWN_CODE)
    auto_map = {'AutoConfig': 'own_code.OwnConfig', 'AutoModel': 'own_code.OwnModel'}
    return with_config(out, model_type='own-bert', auto_map=auto_map)


def venv(folder, parent=False):
    "An environment without packages, or with those of this one behind its own."
    subprocess.run([sys.executable, '-m', 'venv', '--without-pip', str(folder)], check=True)
    site = next((folder / 'lib').glob('python*')) / 'site-packages'
    if parent:
        (site / 'parent.pth').write_text('\n'.join(p for p in sys.path if p.endswith('site-packages')))
    return folder


OWN_ROW = {'kind': 'encoder', 'backend': 'own', 'environment': 'tiny', 'revision': 'tiny', 'pooling': 'its own'}
OWN_ROW |= dict.fromkeys(('append_eos', 'prompt_in_pooling', 'normalize'), False)
OWN_ROW |= {'similarity': 'cos', 'max_query_tokens': 64, 'max_document_tokens': 64, 'remote_code': True}
OWN_ROW |= {'query_template': 'Instruct: {instruction}\nQuery: {text}', 'document_template': '{text}'}
OWN_ROW |= {'default_instruction': 'Find it', 'dtype': 'float32'}
ENVIRONMENT = {'tiny': {'python': '3.11', 'requirements': ['torch==2.13.0', 'transformers<5']}}


@pytest.fixture
def tiny_row(bert, own_registry, tmp_path, monkeypatch):
    "`tiny_row(**changes)`: a row whose code runs in the environment `tiny`, looked for in tmp_path/environments."
    monkeypatch.setenv('MEDIR_ENVIRONMENTS', str(tmp_path / 'environments'))
    monkeypatch.setenv('HOME', str(tmp_path))
    encoder_module.model._recent.clear()

    def add(**changes):
        row = {**OWN_ROW, 'hub': own_code_folder(bert, tmp_path / 'own'), **changes}
        own_registry(models={'own': row}, environments=ENVIRONMENT)
        return Encoder('own')

    yield add
    encoder_module.model._recent.clear()


def test_a_missing_environment_says_how_to_make_it(tiny_row, tmp_path, home):
    made = tmp_path / 'environments' / 'tiny'
    install = f"python3.11 -m venv {made} && {made}/bin/pip install torch==2.13.0 'transformers<5'"
    refuses(lambda: tiny_row().encode(['x'], 'document'), install)
    venv(home / 'environments' / 'tiny')
    assert environment_python('tiny') == home / 'environments' / 'tiny' / 'bin' / 'python'  # the second place


@pytest.mark.slow
def test_one_worker_over_blocks_killed_and_resumed(tiny_row, tmp_path, monkeypatch):
    "A checkpoint's published code in a real process: one load for all blocks, stray prints, errors, a kill, no secret."
    venv(tmp_path / 'environments' / 'tiny', parent=True)
    monkeypatch.setattr(encoder_module.store, '_BLOCK', 2)
    monkeypatch.setenv('MEDIR_TEST_KEY', 'hush-hush-hush')
    encoder = tiny_row()
    got = encoder.encode(encoder.render([('', 'statins'), ('', 'insulin')], 'query', 'Find it'), 'query', 'Find it')
    bare = encoder.encode(['statins', 'insulin'], 'document')
    # the text without its prompt, the prompt as instruction, the limit
    assert np.allclose(got.vectors[:, :8], 2 * bare.vectors[:, :8], rtol=1e-5) and (bare.vectors[:, 8] == 64).all()
    assert (got.tokens > bare.tokens).all() and not got.truncated.any()
    assert encoder.encode([' '.join(SENTENCES * 9)], 'document').truncated.all()
    first = encoder.backend('document').worker.process.pid
    with pytest.raises(MedirError, match=r'^model own in the environment tiny: ValueError: no vector for boom$'):
        encoder.encode(['boom'], 'document')
    with pytest.raises(MedirError, match='ValueError: nothing$'):
        encoder.encode(['secret'], 'document')
    assert encoder.backend('document').worker.process.pid == first  # an error does not end it
    task = frames(['a', 'bb', 'ccc', 'dddd', 'one may die', 'ffffff', 'g'])
    ended = r'the worker in the environment tiny ended \(killed by SIGKILL\)[^\n]*the blocks before it are kept[^\n]*$'
    with pytest.raises(MedirError, match=ended) as e:
        encode_corpus(encoder, task.corpus, 'document')
    again = encode_corpus(encoder, task.corpus, 'document')
    assert (again.stats['encoded'], again.stats['cached']) == (3, 4)
    assert encoder.backend('document').worker.process.pid != first
    assert encode_corpus(Encoder('own'), task.corpus, 'document').stats['encoded'] == 0
    worker = encoder.backend('document').worker.process
    encoder_module.model._recent.clear()
    del encoder, e
    gc.collect()
    assert worker.poll() is not None  # nobody left behind


def test_two_environments_have_two_keys(tiny_row, own_registry):
    tiny_row()
    key = lambda **settings: encoder_spec('own', **settings).vector_key('document')
    before = key()
    assert before != key(environment='')
    own_registry(environments={'tiny': {'python': '3.11', 'requirements': ['transformers==4.57.6']}})
    assert before != key()


def hashed(texts):
    "Bags of hashed words: a model that needs no weights and still finds something."
    out = np.zeros((len(texts), 128), np.float32)
    for i, t in enumerate(texts):
        for w in t.lower().replace('.', '').split():
            out[i, zlib.crc32(w.encode()) % 128] += 1
    return out


class CustomModel:
    "R2MED's own interface: queries are strings, a corpus holds dicts with title and text, or strings."

    name, revision = 'custom', '1'

    def __init__(self):
        self.calls = []

    def encode_queries(self, queries, **kwargs):
        self.calls.append(('queries', list(queries)))
        return self.encode(queries)

    def encode_corpus(self, corpus, **kwargs):
        self.calls.append(('corpus', list(corpus)))
        return self.encode([(d['title'] + ' ' + d['text']).strip() if isinstance(d, dict) else d for d in corpus])

    def encode(self, sentences, **kwargs):
        return hashed(sentences)


def test_an_object_with_r2meds_methods(beir):
    model = CustomModel()
    scores, kinds = evaluate(load_task(beir), model), dict(model.calls)
    assert kinds['queries'][0] == 'drugs after a heart attack'
    assert kinds['corpus'][0] == {'title': 'Statins', 'text': DOCUMENTS[0][2]}
    assert scores.stats['encoded_docs'] == 12 and scores.label == 'custom' and scores.mean('nDCG@10') > 0.2
    assert evaluate(load_task(beir), SimpleNamespace(encode=hashed)).frame.equals(
        scores.frame
    )  # the same text either way
    assert evaluate(load_task(beir), CustomModel()).stats['encoded_docs'] == 0  # named and revised, so stored


def mteb_model(seen):
    from mteb.models.abs_encoder import AbsEncoder
    from mteb.models.model_meta import ModelMeta

    class Hashing(AbsEncoder):
        mteb_model_meta = ModelMeta.create_empty(dict(name='own/hashing', revision='7', similarity_fn_name='dot'))
        instruction_template = 'Instruct: {instruction} Query: '

        def encode(self, inputs, *, task_metadata, hf_split, hf_subset, prompt_type=None, **kwargs):
            is_query, batches = prompt_type is not None and prompt_type.value == 'query', list(inputs)
            instruction = self.get_task_instruction(task_metadata, prompt_type) if is_query else ''
            first, sizes = {k: v[0] for k, v in batches[0].items()}, [len(b['text']) for b in batches]
            seen.append((prompt_type.value, instruction, first, sizes, hf_split))
            return hashed([t for b in batches for t in b['text']])

    return Hashing()


@pytest.mark.medium
def test_an_mteb_model_plugs_in_unchanged(beir):
    mteb, seen = pytest.importorskip('mteb'), []
    model, task = mteb_model(seen), replace(load_task(beir), instructions={'default': 'Find the passage'})
    scores = evaluate(task, model)
    document, query = seen
    texts = dict.fromkeys(('text', 'query'), 'drugs after a heart attack')
    assert query == ('query', 'Instruct: Find the passage Query: ', texts, [4], 'test')
    texts = {'text': f'Statins {DOCUMENTS[0][2]}', 'title': 'Statins', 'body': DOCUMENTS[0][2]}
    assert document == ('document', '', texts, [12], 'test')
    assert (scores.label, scores.stats['similarity'], scores.stats['encoded_docs']) == ('own/hashing', 'dot', 12)
    assert evaluate(task, mteb_model(seen)).stats['encoded_docs'] == 0
    other = evaluate(replace(task, instructions={'default': 'Something else'}), mteb_model(seen))
    assert (other.stats['encoded_docs'], other.stats['encoded_queries']) == (0, 4)
    assert isinstance(model, mteb.models.EncoderProtocol)


@pytest.fixture(scope='module')
def overlap():
    return data.hpo_overlap()


@pytest.fixture(scope='module')
def annotations():
    text = data.ontology.hpo_file('phenotype.hpoa').read_text(encoding='utf-8')
    first, *lines = [line.split('\t') for line in text.splitlines() if not line.startswith('#')]
    return [dict(zip(first, line)) for line in lines]


@pytest.mark.medium
def test_findings_are_affirmed_phenotypes_and_never_shared(overlap, annotations):
    affirmed = {(r['database_id'], r['hpo_id']) for r in annotations if r['aspect'] == 'P' and not r['qualifier']}
    asked, pool = data.ontology._split_findings(0, 1000, 200)
    assert all((q[:-1], t) in affirmed for q, found in asked.items() for t in found)
    assert all((d, t) in affirmed for d, found in pool.items() for t in found)
    assert all(3 <= len(found) <= 10 for found in asked.values()) and min(map(len, pool.values())) >= 3
    whole = pd.Series([d for d, _ in affirmed]).value_counts()
    assert min(whole[d] for d in pool) >= 8
    for q, d in zip(overlap.qrels.query_id, overlap.qrels.doc_id):
        assert not set(asked[q]) & set(pool[d]), (q, d)


FAMILIES = """
Retinitis pigmentosa 19 | Retinitis pigmentosa
Spastic paraplegia 88, autosomal dominant | Autosomal recessive spastic paraplegia type 23
Spinal muscular atrophy, scapuloperoneal | Scapuloperoneal spinal muscular atrophy
Charcot-Marie-Tooth disease, axonal, type 2Z | Charcot-Marie-Tooth disease axonal type 2CC
Sarcoidosis, susceptibility to, 1 | Sarcoidosis
Orofaciodigital syndrome type 4 | Orofaciodigital syndrome XIV
"""


@pytest.mark.parametrize('one, other', table(FAMILIES))
def test_families_by_base_name(one, other):
    assert data.disease_family(one) == data.disease_family(other)


def test_the_task_is_the_registrys_and_the_same_every_time(overlap):
    task = load_task('hpo-overlap')
    assert task.registered and task.fingerprint == overlap.fingerprint
    assert task.labels == overlap.labels and set(task.labels) == set(task.queries.ids)
    data.ontology._split_findings.cache_clear()
    assert data.hpo_overlap().fingerprint == overlap.fingerprint != data.hpo_overlap(seed=1).fingerprint
    small = load_task('hpo-overlap', limit=120)
    assert len(small.corpus) == 120 and small.labels and not small.registered
    refuses(lambda: load_task('hpo-overlap', split='trein'), "did you mean 'train'")


def test_the_oracle(overlap):
    run = data.overlap_oracle(overlap)
    assert run.groupby('query_id').size().eq(100).all() and run.score.between(0, 1).all()
    oracle, bm25, chance = score_run(overlap, run), evaluate(overlap, 'bm25'), 10 / 1000
    assert oracle.mean('nDCG@10') > bm25.mean('nDCG@10') > 3 * chance and oracle.mean('R@100') > bm25.mean('R@100')
    terms, (asked, pool) = data.ontology._annotated()[0], data.ontology._split_findings(0, 1000, 200)

    def up(found):
        out = set(found)
        while more := {p for t in out for p in terms[t].parents if p in terms} - out:
            out |= more
        return out

    above = {d: up(f) for d, f in pool.items()}
    ic = lambda t: np.log(1000 / max(1, sum(t in a for a in above.values())))
    q, d, s = run.iloc[0]
    mine = up(asked[q])
    assert s == pytest.approx(sum(map(ic, mine & above[d])) / sum(map(ic, mine | above[d])), rel=1e-9)
    small = load_task('hpo-overlap', limit=60)
    assert set(data.overlap_oracle(small).doc_id) == set(small.corpus.ids)


def r2med_folder(folder, repeats=145):
    "A task as R2MED ships it: query.jsonl with more fields, corpus.jsonl in which ids repeat, qrels.txt."
    documents = [{'id': i, 'text': b or 'empty'} for i, _, b in DOCUMENTS]
    documents += [{'id': f'x{i % 100}', 'text': f'filler {i % 100}'} for i in range(100 + repeats)]
    write_lines(folder / 'corpus.jsonl', documents)
    asked, more = zip(QUERIES, ['Cardiovascular', ['Endocrine', 'Digestive'], '', None]), {'doc_id': [], 'answer': ''}
    write_lines(folder / 'query.jsonl', [{'id': i, 'text': t, **more, 'body_system': s} for (i, t), s in asked])
    write_lines(folder / 'qrels.txt', ['\t'.join(map(str, r)) for r in QRELS])
    return folder


def packed(path, folder, top='Biology'):
    with zipfile.ZipFile(path, 'w', zipfile.ZIP_DEFLATED) as z:
        for f in sorted(folder.iterdir()):
            z.write(f, f'{top}/{f.name}' if top else f.name)
    return path


OF_FOLDER = {'queries': 4, 'documents': 257, 'distinct_documents': 112, 'qrels': 9}


def test_repeated_ids_with_one_text_are_counted_once(tmp_path, own_registry, monkeypatch, medir):
    monkeypatch.setenv('MEDIR_DATA', str(tmp_path))
    folder = r2med_folder(tmp_path / 'PMC-Treatment')
    own_registry(tasks={'r2med-pmc-treatment': {**registry('tasks')['r2med-pmc-treatment'], **OF_FOLDER}})
    task = load_task('r2med-pmc-treatment')
    assert (len(task.corpus), task.report['repeated_document_ids'], task.registered) == (112, 145, True)
    assert task.labels == {'q1': 'Cardiovascular', 'q2': 'Endocrine, Digestive'}
    table = data.statistics_table(['r2med-pmc-treatment'])
    assert table['from'].tolist() == ['registry', 'data'] and table.documents.tolist() == [257, 257]
    assert table['repeated ids'].tolist() == [145, 145]
    assert '145 repeated document ids' in medir('evaluate', 'r2med-pmc-treatment', '--system', 'bm25(gensim)').err
    with open(folder / 'corpus.jsonl', 'a') as f:
        f.write(json.dumps({'id': 'x1', 'text': 'another text'}) + '\n')
    again = "corpus.jsonl:258: id 'x1' stands again with another text (first at "
    refuses(lambda: load_task('r2med-pmc-treatment'), again, ':14)')


def test_the_official_zip(tmp_path, own_registry, monkeypatch, home, medir):
    path = packed(tmp_path / 'Biology.zip', r2med_folder(tmp_path / 'made'))
    task = load_task(path)
    assert (task.name, len(task.queries), len(task.corpus)) == ('Biology', 4, 112) and not task.registered
    assert task.fingerprint == load_task(tmp_path / 'made').fingerprint
    assert medir('evaluate', path, '--system', 'bm25').code == 0
    # beside the folders of $MEDIR_DATA, a zip file stands for its folder
    own_registry(tasks={'r2med-biology': {**registry('tasks')['r2med-biology'], **OF_FOLDER}})
    monkeypatch.setenv('MEDIR_DATA', str(tmp_path))
    named = load_task('r2med-biology')
    assert named.registered and named.labels['q1'] == 'Cardiovascular'
    assert len(list((home / 'corpora').glob('zip-*'))) == 2  # the folder and its lock
    assert load_task(packed(tmp_path / 'flat.zip', tmp_path / 'made', top='')).fingerprint == task.fingerprint


def hostile(path, *entries):
    "A zip file with `(name, content, mode)` entries beside a whole task."
    packed(path, r2med_folder(path.parent / 'made'))
    with zipfile.ZipFile(path, 'a', zipfile.ZIP_DEFLATED) as z:
        for name, content, mode in entries:
            info = zipfile.ZipInfo(name)
            info.external_attr = mode << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            z.writestr(info, content)
    return path


PLAIN = stat.S_IFREG | 0o644


@pytest.mark.parametrize(
    'name, mode, said',
    [
        ('../evil.jsonl', PLAIN, 'leads out'),
        ('Biology/../../evil.jsonl', PLAIN, 'leads out'),
        ('/tmp/evil.jsonl', PLAIN, 'leads out'),
        ('..\\evil.jsonl', PLAIN, 'leads out'),
        ('C:\\evil.jsonl', PLAIN, 'leads out'),
        ('Biology/evil.jsonl', stat.S_IFLNK | 0o777, 'is a link'),
        ('Biology/pipe.jsonl', stat.S_IFIFO | 0o644, 'is a link or no plain file'),
        ('Biology/CORPUS.jsonl', PLAIN, 'stands twice'),
    ],
)
def test_an_entry_that_leads_elsewhere_refuses_the_file(tmp_path, home, name, mode, said):
    path = hostile(tmp_path / 'evil.zip', (name, '/etc/passwd', mode))
    outside = lambda: {p for p in tmp_path.rglob('*') if home not in (p, *p.parents)}
    before = outside()
    refuses(lambda: load_task(path), said, str(path))
    assert outside() == before and not list(home.rglob('*.jsonl')) and not Path('/tmp/evil.jsonl').exists()


def test_bombs(tmp_path, monkeypatch):
    path = hostile(tmp_path / 'bomb.zip', ('Biology/big.jsonl', b'0' * (40 << 20), PLAIN))
    with pytest.raises(MedirError, match=r"'Biology/big\.jsonl' swells to 41,943,040 bytes from 40,\d{3}"):
        load_task(path)
    monkeypatch.setattr(data.task_folders, '_ZIP_BYTES', 10_000)
    refuses(lambda: load_task(packed(tmp_path / 'large.zip', tmp_path / 'made')), 'swells to')
    monkeypatch.setattr(data.task_folders, '_ZIP_FILES', 2)
    monkeypatch.setattr(data.task_folders, '_ZIP_BYTES', 1 << 30)
    refuses(lambda: load_task(packed(tmp_path / 'many.zip', tmp_path / 'made')), 'one of more than 2 files')


def test_a_size_that_lies(tmp_path, home):
    "The directory of an archive promises a small file: no more than that is written."
    path = packed(tmp_path / 'liar.zip', r2med_folder(tmp_path / 'made'))
    raw = path.read_bytes()
    true = (tmp_path / 'made' / 'corpus.jsonl').stat().st_size
    path.write_bytes(raw.replace(struct.pack('<L', true), struct.pack('<L', 100)))
    refuses(lambda: load_task(path), 'broken zip file')
    assert not list(home.rglob('*.jsonl'))
