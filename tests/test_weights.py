"""No number from random weights: a file with a tensor missing, too many or misshapen is refused, whatever reads it."""

import json, shutil, sys
from pathlib import Path
import pytest, torch
from conftest import refuses, seeded, TINY_ROW, write_lines
from tiny_models import as_sentence_transformer, CAUSAL, make_model, make_tokenizer, SIZES
from safetensors.torch import load_file, save_file
from test_trainer import make_llm
from medir_nb.encoder import Encoder, encoder_spec, save_query_side
from medir_nb.core import MedirError, registry
from medir_nb.generator import LLM, Request, Sampling
from medir_nb.retrieval import Reranker
from medir_nb.trainer import train_encoder, train_generator, train_reranker, train_retromae

LORA = {'r': 4, 'lora_alpha': 8, 'init_lora_weights': False}
LINES = [{'query': 'fever', 'pos': ['a high temperature'], 'neg': ['a rash']}] * 4


def save_with(model, tokenizer, folder, **config):
    for name, value in config.items():
        setattr(model.config, name, value)
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope='module')
@seeded()
def folders(tmp_path_factory):
    import transformers as t
    from peft import LoraConfig, get_peft_model
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Router
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    base = tmp_path_factory.mktemp('weights')
    out = {'bert': make_model('bert', base / 'bert'), 'llama': make_model('llama', base / 'llama')}
    out['encoder'] = as_sentence_transformer(out['bert'], str(base / 'encoder'), dense=True)
    towers = [[Transformer(out['bert']), Pooling(32, 'mean')] for _ in range(2)]
    SentenceTransformer(modules=[Router.for_query_document(*towers)], device='cpu').save(str(base / 'towers'))
    out['towers'] = str(base / 'towers')
    lora = LoraConfig(**LORA, target_modules=['q_proj', 'v_proj'], task_type='FEATURE_EXTRACTION')
    get_peft_model(t.AutoModel.from_pretrained(out['llama']), lora).save_pretrained(base / 'lora')
    out['lora'] = str(base / 'lora')
    inside = SentenceTransformer(out['encoder'], device='cpu')
    inside.add_adapter(LoraConfig(**LORA, task_type='FEATURE_EXTRACTION'))
    inside.save(str(base / 'inside'), create_model_card=False)
    out['inside'] = str(base / 'inside')
    words = make_tokenizer('bert')
    config = t.BertConfig(vocab_size=len(words), num_labels=1, **SIZES)
    out['reranker'] = save_with(t.BertForSequenceClassification(config), words, base / 'reranker')
    out['masked'] = save_with(t.BertForMaskedLM(config), words, base / 'masked')
    out['llm'] = make_llm('llama', base / 'llm', False)
    words = make_tokenizer('llama')
    tied = {'pad_token_id': None, 'num_labels': 1, 'tie_word_embeddings': True}
    judge = t.LlamaForSequenceClassification(t.LlamaConfig(vocab_size=len(words), **tied, **CAUSAL))
    out['judge'] = save_with(judge, words, base / 'judge')
    lora = LoraConfig(**LORA, target_modules=['q_proj'], task_type='SEQ_CLS')
    head = t.AutoModelForSequenceClassification.from_pretrained(out['llm'], num_labels=1)
    get_peft_model(head, lora).save_pretrained(base / 'head')
    out['head'] = str(base / 'head')
    return out


def stored(file):
    return load_file(file) if file.suffix == '.safetensors' else torch.load(file)


def matrix_of(tensors):
    "The last matrix by name that is read in any case: no pooler, no head of a masked language model."
    read = [name for name in sorted(tensors) if 'pooler' not in name and not name.startswith('cls.')]
    return [name for name in read if tensors[name].ndim == 2][-1]


DAMAGE = {
    'rename': lambda tensors: {f'old.{name}': value for name, value in tensors.items()},
    'drop': lambda tensors: {name: value for name, value in tensors.items() if name != matrix_of(tensors)},
    'add': lambda tensors: tensors | {'gate.weight': tensors[matrix_of(tensors)].clone()},
    'reshape': lambda tensors: tensors | {matrix_of(tensors): tensors[matrix_of(tensors)][:-1].contiguous()},
}
SAID = {'rename': 'missing', 'drop': '1 missing', 'add': '1 unexpected', 'reshape': '1 of another shape'}
DAMAGES = pytest.mark.parametrize('damage', DAMAGE)


def damaged(folder, to, damage, part='model.safetensors', pickled=False):
    "A copy of a folder, with the tensors of one file changed; a name that the message must hold."
    shutil.copytree(folder, to)
    (file,) = Path(to).glob(part)
    tensors = stored(file)
    name = {'rename': 'old.', 'add': 'gate.weight'}.get(damage) or matrix_of(tensors)
    changed = DAMAGE.get(damage, damage)(tensors)
    if pickled:
        file.unlink()
        torch.save(changed, file.with_name('pytorch_model.bin'))
    else:
        save_file(changed, file, {'format': 'pt'})
    return name


def refused(read, damage, name):
    with pytest.raises(MedirError) as e:
        read()
    line, short = str(e.value), name.removeprefix('base_model.model.').removesuffix('.weight')
    assert '\n' not in line and SAID[damage] in line and short in line, line
    assert e.value.fix.startswith(('save or fetch it again', 'name a whole checkpoint', 'train it again')), line
    return line


def encode(name, role='document'):
    return Encoder(encoder_spec(name, dtype='fp32')).encode(['fever'], role).vectors


def write(name):
    return LLM(name).generate([Request('fever', Sampling(max_tokens=2))])


def row_of(folder, **more):
    return TINY_ROW | {'hub': str(folder)} | more


@DAMAGES
@pytest.mark.parametrize('part, pickled', [('model', False), ('2_Dense/model', False), ('2_Dense/model', True)])
def test_a_folder_and_its_dense_head(folders, tmp_path, damage, part, pickled):
    assert encode(folders['encoder']).shape == (1, 24)
    name = damaged(folders['encoder'], tmp_path / 'own', damage, f'{part}.safetensors', pickled)
    refused(lambda: encode(str(tmp_path / 'own')), damage, name)


@DAMAGES
def test_a_row_and_its_second_tower(folders, tmp_path, own_registry, damage):
    name = damaged(folders['bert'], tmp_path / 'own', damage)
    document = {'hub': str(tmp_path / 'own'), 'revision': 'tiny'}
    own_registry(models={'own': row_of(tmp_path / 'own'), 'pair': row_of(folders['bert'], document=document)})
    refused(lambda: encode('own'), damage, name)
    assert encode('pair', 'query').shape == (1, 32)
    refused(lambda: encode('pair', 'document'), damage, name)


@DAMAGES
def test_both_towers_of_one_folder(folders, tmp_path, damage):
    name = damaged(folders['towers'], tmp_path / 'own', damage, 'document_0_Transformer/model.safetensors')
    own = str(tmp_path / 'own')
    # a folder is read as a whole, so either role and the query side alone find it out
    for read in (lambda: encode(own, 'query'), lambda: encode(own), lambda: save_query_side(own, tmp_path / 'alone')):
        refused(read, damage, name)
    assert not (tmp_path / 'alone').exists()


@DAMAGES
def test_a_lora_of_a_row(folders, tmp_path, own_registry, damage):
    name = damaged(folders['lora'], tmp_path / 'own', damage, 'adapter_model.safetensors')
    adapters = {'whole': folders['lora'], 'own': str(tmp_path / 'own')}
    row = row_of(folders['llama'], pooling='lasttoken')
    own_registry(models={kind: row | {'adapter': {'hub': at, 'revision': 'tiny'}} for kind, at in adapters.items()})
    assert encode('whole').shape == (1, 32)
    refused(lambda: encode('own'), damage, name)


@DAMAGES
def test_a_lora_inside_a_folder_and_its_base(folders, tmp_path, damage):
    assert encode(folders['inside']).shape == (1, 24)
    name = damaged(folders['inside'], tmp_path / 'own', damage, 'adapter_model.safetensors')
    refused(lambda: encode(str(tmp_path / 'own')), damage, name)
    # the base that it names is read first
    name = damaged(folders['bert'], tmp_path / 'base', damage)
    shutil.copytree(folders['inside'], tmp_path / 'on')
    told = json.loads((tmp_path / 'on' / 'adapter_config.json').read_text())
    told['base_model_name_or_path'] = str(tmp_path / 'base')
    (tmp_path / 'on' / 'adapter_config.json').write_text(json.dumps(told))
    refused(lambda: encode(str(tmp_path / 'on')), damage, name)


@pytest.mark.medium
@pytest.mark.parametrize('damage', ['rename', 'drop'])
def test_minilm_evaluates_to_no_score(tmp_path, beir, medir, damage):
    from medir_nb.encoder.loading import checkpoint_paths

    own = tmp_path / 'minilm'
    name = damaged(checkpoint_paths(encoder_spec('minilm'), 'query')[0], own, damage)
    done = medir('evaluate', beir, '--system', own)
    assert done.code and name in done.err + done.out and 'nDCG' not in done.out
    assert not list((tmp_path / 'home').rglob('block-*'))


def test_a_head_that_the_configuration_names_stays_behind(folders, tmp_path, own_registry):
    "A masked language model read as an encoder: no pooler, and a head that no vector needs."
    own_registry(models={'masked': row_of(folders['masked'])})
    assert encode('masked').shape == (1, 32)
    # not one that it does not name
    save_as = dict(json.loads((Path(folders['masked']) / 'config.json').read_text()), architectures=['BertModel'])
    shutil.copytree(folders['masked'], tmp_path / 'own')
    (tmp_path / 'own' / 'config.json').write_text(json.dumps(save_as))
    own_registry(models={'masked': row_of(tmp_path / 'own')})
    refuses(lambda: encode('masked'), 'unexpected (cls.predictions')


def test_a_row_names_what_nothing_reads(folders, tmp_path, own_registry):
    damaged(folders['bert'], tmp_path / 'own', 'add')
    rows = {'own': row_of(tmp_path / 'own'), 'told': row_of(tmp_path / 'own', unread_tensors=['^gate'])}
    own_registry(models=rows)
    assert encode('told').shape == (1, 32)
    refuses(lambda: encode('own'), 'gate.weight')
    assert encoder_spec('told').vector_key('query') == encoder_spec('own').vector_key('query')


@pytest.mark.parametrize('row,kind,at', [('sgpt-125m', 'gpt_neo', 'attn.attention'), ('sgpt-5.8b', 'gptj', 'attn')])
def test_masks_of_old_checkpoints(tmp_path, own_registry, row, kind, at):
    "Those that transformers saved with a GPT of before 2023."
    make_model(kind, tmp_path / 'own')
    masks = {f'h.{i}.{at}.{name}': torch.zeros(1) for i in range(2) for name in ('bias', 'masked_bias')}
    assert damaged(tmp_path / 'own', tmp_path / 'old', lambda tensors: tensors | masks)
    own_registry(models={row: registry('models')[row] | {'hub': str(tmp_path / 'old'), 'revision': 'tiny'}})
    assert encode(row).shape == (1, 32)


def test_a_head_that_the_library_renames(tmp_path, own_registry):
    "GPT-NeoX's is embed_out in files and lm_head in transformers 5, so its class does not know it by name."
    row = registry('models')['pythia-410m'] | {'hub': make_llm('gpt_neox', tmp_path / 'own', False), 'revision': 'tiny'}
    own_registry(models={'pythia-410m': row, 'bare': {**row, 'unread_tensors': []}})
    assert encode('pythia-410m').shape == (1, 32)
    refuses(lambda: encode('bare'), 'unexpected (embed_out.weight)')


@DAMAGES
def test_a_language_model(folders, tmp_path, damage):
    name = damaged(folders['llm'], tmp_path / 'own', damage)
    own = tmp_path / 'own'
    assert write(folders['llm'])
    refused(lambda: write(str(own)), damage, name)


def test_a_model_that_judges_writes_nothing(folders):
    "Its embeddings are tied, so nothing is missing but the head of another kind."
    refuses(lambda: write(folders['judge']), '1 unexpected (score.weight)')


@DAMAGES
def test_a_cross_encoder_and_its_head(folders, tmp_path, damage):
    assert Reranker(folders['reranker']).backend()
    name = damaged(folders['reranker'], tmp_path / 'own', damage)
    refused(lambda: Reranker(str(tmp_path / 'own')).backend(), damage, name)


def test_a_pooler_that_scores_pairs(folders, tmp_path):
    without = lambda tensors: {name: value for name, value in tensors.items() if 'pooler' not in name}
    damaged(folders['reranker'], tmp_path / 'own', without)
    with pytest.raises(MedirError, match=r'2 missing \(bert.pooler.dense.bias, bert.pooler.dense.weight\)'):
        Reranker(str(tmp_path / 'own')).backend()


@DAMAGES
def test_a_head_that_a_lora_brings(folders, tmp_path, own_registry, damage):
    adapter = {'hub': str(tmp_path / 'own'), 'revision': 'tiny'}
    name = damaged(folders['head'], tmp_path / 'own', damage, 'adapter_model.safetensors')
    row = {'hub': folders['llm'], 'revision': 'tiny', 'architecture': 'llama', 'logits': 1, 'max_tokens': 32}
    adapters = {'whole': adapter | {'hub': folders['head']}, 'own': adapter}
    own_registry(rerankers={kind: row | {'adapter': of_kind} for kind, of_kind in adapters.items()})
    assert Reranker('whole').backend()
    named = {'rename': 'score.weight', 'drop': 'score.weight'}.get(damage, name.removeprefix('base_model.model.'))
    refuses(lambda: Reranker('own').backend(), named.removesuffix('.weight'))


@pytest.fixture
def there(home, own_registry):
    "`there(folder)`: the row `there`, which this Python encodes in a process of its own."
    python = home / 'environments' / 'own' / 'bin' / 'python'
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)

    def add(folder):
        row = row_of(folder, environment='own')
        own_registry(models={'there': row}, environments={'own': {'python': '3.11', 'requirements': []}})

    return add


@pytest.mark.medium
def test_a_worker_is_asked_what_its_files_lack(folders, tmp_path, there):
    there(folders['masked'])
    assert encode('there').shape == (1, 32)
    name = damaged(folders['bert'], tmp_path / 'own', 'drop')
    there(tmp_path / 'own')
    line = refused(lambda: encode('there'), 'drop', name)
    assert line.startswith('model there in the environment own: ')


@pytest.fixture
def lines(tmp_path):
    return write_lines(tmp_path / 'lines.jsonl', LINES)


def start(task, model, data, output):
    settings = {'model': model, 'data': data, 'output': output, 'max_steps': 1, 'batch_size': 2}
    return {
        'contrastive': lambda: train_encoder(settings | {'negatives': 1}),
        'cross-encoder': lambda: train_reranker(settings | {'negatives': 1}),
        'retromae': lambda: train_retromae(settings | {'text_fields': ['query']}),
    }[task]()


@DAMAGES
@pytest.mark.parametrize('task', ['contrastive', 'cross-encoder', 'retromae'])
def test_a_training_starts_from_whole_weights(folders, tmp_path, own_registry, lines, damage, task):
    name = damaged(folders['masked'], tmp_path / 'own', damage)
    own_registry(models={'own': row_of(tmp_path / 'own')})
    refused(lambda: start(task, 'own', lines, 'tuned'), damage, name.removeprefix('bert.'))


@pytest.mark.medium
def test_a_new_head_is_one_that_a_training_brings(folders, own_registry, lines, capsys):
    from medir_nb.trainer.retromae import load_masked

    own_registry(models={'masked': row_of(folders['masked']), 'bare': row_of(folders['bert'])})
    for model in ('masked', 'bare'):
        start('cross-encoder', model, lines, f'ce-{model}')
        assert Reranker(f'ce-{model}').backend()
        lm = load_masked(encoder_spec(model, dtype='fp32'))
        assert torch.isfinite(next(lm.parameters())).all()
    said = capsys.readouterr().err
    assert 'model bare: its files hold no head' in said and 'model masked' not in said


@DAMAGES
def test_a_language_model_is_tuned_from_whole_weights(folders, tmp_path, damage):
    answers = [{'text': 'fever', 'top_rewrite_query': 'a high temperature'}] * 4
    data = write_lines(tmp_path / 'answers.jsonl', answers)
    name = damaged(folders['llm'], tmp_path / 'own', damage)
    settings = {'model': str(tmp_path / 'own'), 'data': data, 'output': 'tuned', 'max_steps': 1}
    refused(lambda: train_generator(settings), damage, name)
