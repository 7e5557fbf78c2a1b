"""Losses and trainings with tiny random models: what is fed, left out, saved; what happens when something breaks."""

import json, shutil, signal, subprocess, sys, time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import IPython, IPython.display, numpy as np, pytest, torch, transformers
from conftest import refuses, seeded, write_lines
from safetensors.torch import load_file
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.sentence_transformer import losses as of_library
from sentence_transformers.util import cos_sim, dot_score
from tiny_models import close, FAMILIES, make_model, make_tokenizer, SENTENCES

from medir_nb import core, trainer as t
from medir_nb.core import checkpoint_record, file_fingerprint, MedirError
from medir_nb.encoder import Encoder, encoder_spec, folder_spec, load_sentence_transformer
from medir_nb.encoder.model_row import ROLES
from medir_nb.generator import fill, LLM, llm_spec, Request, Sampling, wording
from medir_nb.generator.local_llm import rendered_prompt as _rendered
from medir_nb.retrieval.nearest import unit
from medir_nb.retrieval import PairBackend, Reranker, reranker_spec, written_pairs
from medir_nb.trainer import GroupBatches, info_nce, InfoNCE, matryoshka_loss, PairBatches, Pairs
from medir_nb.trainer import train_encoder, train_generator, train_reranker, training_config, Watch
from medir_nb.trainer.encoders import encoder_recipe
from medir_nb.trainer.loop import training_arguments
from medir_nb.trainer.losses import false_negatives
from medir_nb.trainer.sft import sft_examples

WORDS = 'statins metformin insulin asthma vaccine migraine anaemia fracture appendix thyroid heart liver'.split()
PAIRS = [
    {'query': f'what is {w}', 'pos': [f'{w} is given once a day in type {i} diabetes']}
    | {'neg': [f'{w} is not the first drug', f'the risk of {w} attacks']}
    | ({'rewrite_query': f'{w} reduces glucose'} if i % 2 else {})
    for i, w in enumerate(WORDS)
]
ANSWERED = '{} is the first drug for type {} diabetes; it reduces glucose production.'
ANSWERS = [{'text': f'what is {w}', 'top_rewrite_query': ANSWERED.format(w, i)} for i, w in enumerate(WORDS)]
ENCODER = {'kind': 'encoder', 'backend': 'transformers', 'revision': 'tiny', 'normalize': True, 'similarity': 'cos'}
ENCODER |= {'max_query_tokens': 20, 'max_document_tokens': 32, 'document_template': '{text}'}
E5 = {'normalize': False, 'similarity': 'dot', 'query_template': 'query: {text}'}
E5 |= {'document_template': 'passage: {text}'}
ASKED = {'query_template': '{instruction}\nQuery: {text}', 'default_instruction': 'Given a query, retrieve passages'}
ROWS = {'tiny-cls': {**ENCODER, 'pooling': 'cls', 'query_template': 'Represent {{this}}: {text}'}}
ROWS |= {'tiny-mean': {**ENCODER, 'pooling': 'mean', **E5}, 'tiny-instruct': {**ENCODER, 'pooling': 'mean', **ASKED}}
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    '{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}'
)


def without_dropout(model, tokenizer):
    model.config.hidden_dropout_prob = model.config.attention_probs_dropout_prob = 0.0


def make_llm(family, folder, chat):
    "A tiny language model with a head; `chat` gives it ChatML and its end token."
    tokenizer = make_tokenizer(family)
    if chat:
        tokenizer.add_special_tokens({'eos_token': '<|im_end|>', 'additional_special_tokens': ['<|im_start|>']})
        tokenizer.chat_template = CHATML
    special = {f'{name}_token_id': getattr(tokenizer, f'{name}_token_id') for name in ('pad', 'bos', 'eos')}
    config = getattr(transformers, FAMILIES[family][0])(vocab_size=len(tokenizer), **special, **FAMILIES[family][1])
    with seeded():
        model = transformers.AutoModelForCausalLM.from_config(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope='module')
def folders(tmp_path_factory):
    base = tmp_path_factory.mktemp('trainees')
    made = {'tiny-cls': make_model('bert', base / 'bert'), 'tiny-mean': make_model('xlm-r', base / 'xlm-r')}
    made |= {'tiny-instruct': make_model('bert', base / 'calm', change=without_dropout)}
    made |= {'tiny-chat': make_llm('qwen2', base / 'qwen2', True)}
    return made | {'tiny-llama': make_llm('llama', base / 'llama', False)}


@pytest.fixture
def rows(folders, own_registry):
    llm = {'revision': 'tiny', 'backend': 'transformers', 'context': 256, 'languages': ['en'], 'licence': 'MIT'}
    llm |= {'published_as': [], 'tried': 'x', 'sampling': {'max_tokens': 8}, 'dtype': 'float32'}
    chat = {'system': 'You are a careful doctor.', 'sampling': {'temperature': 0.7, 'max_tokens': 8}}
    chat |= {'dtype': 'bfloat16', 'answer': {'after': 'Answer:'}}
    llms = {'tiny-chat': {**llm, **chat}, 'tiny-llama': {**llm, 'chat': '[INST] {prompt} [/INST]'}}
    with_folders = [{name: {**row, 'hub': folders[name]} for name, row in of.items()} for of in (ROWS, llms)]
    own_registry(models=with_folders[0], llms=with_folders[1])


@pytest.fixture
def pairs(tmp_path):
    return write_lines(tmp_path / 'emb_train_data.jsonl', PAIRS)


@pytest.fixture
def answers(tmp_path):
    return write_lines(tmp_path / 'llm_train_data.jsonl', ANSWERS)


def small(data, output='own', **settings):
    return dict(model='tiny-cls', data=data, output=output, negatives=2, learning_rate=1e-3, **settings)


def small_sft(data, output='own-llm', **settings):
    few = {'learning_rate': 1e-3, 'warmup_steps': 0, 'max_tokens': 320, 'held_out': 0.1}
    return {'model': 'tiny-chat', 'data': data, 'output': output, **few, **settings}


def weights(folder):
    return load_file(Path(folder) / 'model.safetensors')


def same_weights(a, b, rtol=0.0, atol=0.0):
    a, b = weights(a), weights(b)
    assert a.keys() == b.keys()
    for k in a:
        np.testing.assert_allclose(a[k].float(), b[k].float(), rtol=rtol, atol=atol, err_msg=k)


def test_a_file_may_say_numbers_as_people_write_them(tmp_path):
    file = write_lines(tmp_path / 'c.yaml', ['{task: sft, model: smollm2, data: x, output: y, learning_rate: 2e-5}'])
    assert (training_config(file, epochs=2).learning_rate, training_config(file, epochs=2).epochs) == (2e-5, 2)


@pytest.mark.parametrize('task', ['contrastive', 'retromae', 'sft', 'cross-encoder'])
def test_settings_that_are_checked_twice_are_the_same(task):
    "A default of 0 for a number with a point was 0.0 the second time, and made another training of it."
    once = training_config(task=task, model='minilm', data='x', output='y')
    written_out = training_config(task=task, model='minilm', data='x', output='y', warmup_ratio=0.0, max_grad_norm=1.0)
    keys = {json.dumps(config.decisive()) for config in (once, training_config(once), written_out)}
    assert len(keys) == 1


def test_a_malformed_line_is_named(tmp_path):
    wrong = {'{"query": "q"}': "field 'pos' is missing", '{"query": "q", "pos": []}': 'no document'}
    wrong |= {'{"query": "q", "pos": [1]}': 'neither text nor a list', '["q"]': 'must be a JSON object'}
    for line, message in wrong.items():
        path = write_lines(tmp_path / 'x.jsonl', [PAIRS[0], line])
        refuses(lambda path=path: Pairs(path), message, f'{path}:2')


@pytest.mark.medium
def test_a_batch_of_one_without_negatives_would_learn_nothing(rows, pairs):
    for settings in ({'batch_size': 1}, {'in_batch': False}):
        refuses(lambda more=settings: train_encoder({**small(pairs), 'negatives': 0, **more}), 'constant 0')
    # no cosines lead out of these bounds at temperature 1
    # at the default 0.02 a lead of 0.4 over both negatives rounds the loss to 0
    loss = train_encoder({**small(pairs), 'batch_size': 1, 'max_steps': 1, 'temperature': 1.0}).loss
    assert np.log1p(2 * np.exp(-2)) < loss < np.log1p(2 * np.exp(2))


def test_missing_negatives_are_filled_from_the_data(tmp_path):
    lines = [{'query': f'q{i}', 'pos': [f'd{i}', f'e{i}'], 'neg': [f'n{i}'] if i else []} for i in range(20)]
    found = Pairs(write_lines(tmp_path / 'x.jsonl', lines), 4, seed=7)
    assert found.counts['filled_negatives'] == 19 * 3 + 4
    for i in range(20):
        for epoch in range(3):
            positive, negatives = found.draw(i, epoch)
            assert positive in lines[i]['pos'] and not set(negatives) & set(lines[i]['pos'])
            assert len(set(negatives)) == 4 and set(lines[i]['neg']) <= set(negatives)
    draws = {str(found.draw(3, e)) for e in range(10)}
    same, other = (Pairs(tmp_path / 'x.jsonl', 4, seed=seed).draw(3, 2) for seed in (7, 8))
    assert len(draws) > 5 and found.draw(3, 2) == same != other
    two = Pairs(write_lines(tmp_path / 'y.jsonl', [{'query': 'q', 'pos': ['a']}, {'query': 'r', 'pos': ['b']}]), 3)
    assert two.draw(0)[1] == ['b'] * 3


def vectors(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float32).requires_grad_()


@pytest.mark.parametrize('similarity, temperature', [('cos', 0.02), ('dot', 1.0)])
def test_info_nce_is_that_of_sentence_transformers(similarity, temperature):
    columns = [vectors(6, 8, seed=i) for i in range(4)]
    given = {'scale': 1 / temperature, 'similarity_fct': cos_sim if similarity == 'cos' else dot_score}
    nothing = torch.nn.ModuleList([torch.nn.Identity()])
    whole = of_library.MultipleNegativesRankingLoss(nothing, **given).compute_loss_from_embeddings(columns, None)
    cached = of_library.CachedMultipleNegativesRankingLoss(nothing, **given).calculate_loss([[c] for c in columns])
    for want in (whole, cached):
        got = info_nce(columns[0], columns[1:], temperature, similarity)
        assert torch.isclose(got, want, rtol=1e-5)
        for a, b in zip(torch.autograd.grad(got, columns), torch.autograd.grad(want, columns)):
            assert (a - b).norm() <= 1e-5 * b.norm()


def test_documents_that_are_right_for_another_row_are_no_negatives(tmp_path, rows):
    rows_ = [('q', ['a'], 'x'), ('q', ['b'], 'y'), ('r', ['a', 'c'], 'b'), ('s', ['d'], 'c')]
    lines = [{'query': query, 'pos': pos, 'neg': [neg]} for query, pos, neg in rows_]
    found = Pairs(write_lines(tmp_path / 'x.jsonl', lines), 1)
    encoder = Encoder('tiny-cls')
    batch = first_rows(4, found, encoder, encoder.tokens('query').tokenizer)
    documents = ['a', 'b', found.draw(2)[0], 'd', 'x', 'y', 'b', 'c']
    masked = false_negatives(batch['label'][:, :2].T.flatten(), batch['label'][:, 2:])
    right = [{'a', 'b'}, {'a', 'b'}, {'a', 'c'}, {'d'}]
    assert masked.tolist() == [[d in r for d in documents] for r in right]
    columns = [torch.nn.functional.normalize(vectors(4, 8, seed=i), dim=-1) for i in range(3)]
    loss = InfoNCE(None, 0.1)
    wanted = info_nce(columns[0], columns[1:], 0.1, masked=masked)
    assert torch.isclose(loss.calculate_loss([[c] for c in columns], batch['label']), wanted)
    assert wanted < info_nce(columns[0], columns[1:], 0.1)


def first_rows(n, pairs, encoder, tokenizer, *more):
    return PairBatches(pairs, encoder, dict.fromkeys(ROLES, tokenizer), *more)([{'row': i} for i in range(n)])


def vectors_of(encoder, texts, role, instruction=''):
    return encoder.encode(encoder.render([('', x) for x in texts], role, instruction), role, instruction).vectors


def model_of(name):
    return load_sentence_transformer(replace(encoder_spec(name), dtype='float32'), device='cpu')


def batch_of(model, pairs, hypothetical=True):
    batch = first_rows(6, Pairs(pairs, 2), Encoder('tiny-cls'), model.tokenizer, '', hypothetical)
    columns = dict.fromkeys(k.split('_')[0] for k in batch if k not in ('label', 'counts'))
    return lambda: [
        {k[len(c) + 1 :]: v.clone() if hasattr(v, 'clone') else v for k, v in batch.items() if k.startswith(f'{c}_')}
        for c in columns
    ], batch['label']


LONG = ' '.join(SENTENCES[:2] * 4)


@pytest.mark.parametrize('name', ROWS)
def test_the_trained_model_sees_what_encode_gives_it(rows, tmp_path, name):
    lines = [*PAIRS[:3], {'query': LONG, 'pos': [LONG], 'neg': ['{braces} in text', ''], 'rewrite_query': LONG}]
    encoder, model = Encoder(name), model_of(name)
    found, instruction = Pairs(write_lines(tmp_path / 'x.jsonl', lines), 2), encoder.spec.default_instruction
    batch = first_rows(4, found, encoder, model.tokenizer, instruction)

    def seen(column):
        with torch.no_grad():
            features = {k[len(column) + 1 :]: v for k, v in batch.items() if k.startswith(f'{column}_')}
            return model(features)['sentence_embedding'].numpy()

    positives, negatives = zip(*(found.draw(i) for i in range(4)), strict=True)
    texts = {'query': [p.query for p in found.rows], 'document0': positives, 'document2': [n[1] for n in negatives]}
    for column, given in texts.items():
        close(seen(column), vectors_of(encoder, given, column.rstrip('02'), instruction))
    lengths = [batch[f'{column}_attention_mask'].sum(1).max() for column in ('query', 'document0')]
    assert lengths == [20, 32]
    # a hypothetical document stands without the query's prompt; a row without one shows its query again
    plain = Encoder(replace(encoder.spec, query_template='{text}'))
    both = (encoder, found.rows[0].query), (plain, found.rows[1].hypothetical)
    close(seen('hypothetical')[:2], np.concatenate([vectors_of(e, [x], 'query', instruction) for e, x in both]))
    assert batch['counts']['truncated'] >= 3 and {'rows': 4, 'texts': 20}.items() <= batch['counts'].items()


@pytest.mark.medium
@pytest.mark.parametrize('name', ROWS)
def test_the_checkpoint_opens_in_plain_sentence_transformers(rows, pairs, name, capfd):
    done = train_encoder({**small(pairs), 'model': name}, max_steps=3)
    plain, encoder, base = SentenceTransformer(str(done.folder), device='cpu'), Encoder('own'), encoder_spec(name)
    queries, documents = ['what is {this}', 'statins'], ['a document', 'Metformin']
    by_path = Encoder(str(done.folder))
    for role, texts, call in (('query', queries, plain.encode_query), ('document', documents, plain.encode_document)):
        given = vectors_of(encoder, texts, role)
        before = vectors_of(Encoder(name), texts, role, base.default_instruction)
        close(np.asarray(call(texts)), given)
        close(vectors_of(by_path, texts, role), given)
        assert not np.allclose(before, given, atol=1e-3)  # it was trained
    spec = encoder_spec('own')
    kept = ('pooling', 'normalize', 'similarity', 'max_query_tokens', 'max_document_tokens')
    assert [getattr(spec, field) for field in kept] == [getattr(base, field) for field in kept]
    told = base.query_template.format(text='X', instruction=base.default_instruction)
    assert spec.query_template.format(text='X') == told
    assert spec.document_template.format(text='X') == base.document_template.format(text='X')
    assert plain.similarity_fn_name == {'cos': 'cosine', 'dot': 'dot'}[base.similarity] and plain.max_seq_length == 32
    out = capfd.readouterr()  # the libraries say nothing
    assert not out.out and all(line.startswith('medir: ') for line in out.err.splitlines())


@pytest.mark.medium
def test_a_checkpoint_goes_by_its_name(rows, pairs, beir, medir, home, tmp_path):
    done = train_encoder(small(pairs), max_steps=2)
    ran = medir('evaluate', beir, '--system', 'own', '--home', home)
    assert ran.code == 0 and '| own ' in ran.out, ran.err
    refuses(lambda: llm_spec('own'), 'is an encoder')
    refuses(lambda: encoder_spec('ownn'), "did you mean 'own'")
    record = checkpoint_record('own')
    assert (record['base'], record['kind'], record['task']) == ('tiny-cls', 'encoder', 'contrastive')
    assert record['config']['max_steps'] == 2 and record['spec']['label'] == 'tiny-cls, trained'


@pytest.mark.medium
def test_an_encoder_is_its_weights(rows, pairs):
    done = train_encoder(small(pairs), max_steps=1)
    revision = encoder_spec('own').revision
    with open(done.metrics, 'a') as f:
        f.write('{"step": 9}\n')
    assert encoder_spec('own').revision == revision == folder_spec(done.folder).revision
    file = done.folder / 'model.safetensors'
    raw = bytearray(file.read_bytes())
    raw[-1] ^= 1
    file.write_bytes(raw)
    assert encoder_spec('own').revision != revision


@pytest.mark.medium
def test_a_row_may_stand_for_weights_that_a_training_makes(folders, own_registry, pairs, answers, medir, beir):
    by = 'medir run automir_slhyde --preset paper'
    writer = {'hub': 'unknown', 'revision': 'unknown', 'checkpoint': 'qwen-sl-1', 'trained_by': by, 'label': 'Qwen SL'}
    writer |= {'backend': 'transformers', 'context': 256, 'languages': ['en'], 'sampling': {'max_tokens': 4}}
    reader = {'kind': 'encoder', 'label': 'BGE SL-HyDE', 'checkpoint': 'bge-sl', 'trained_by': by}
    writer |= {'licence': 'MIT', 'published_as': ['q'], 'tried': 'x'}
    models = {'tiny-cls': dict(ROWS['tiny-cls'], hub=folders['tiny-cls']), 'bge-sl': reader}
    own_registry(models=models, llms={'qwen-sl': writer})
    for system in ('bge-sl', 'bm25+hyde(qwen-sl)'):
        message = medir('evaluate', beir, '--system', system).err
        assert f'train it: {by}' in message and 'never released' in message
    assert medir('models').code == 0 and 'none were trained here' in medir('models').out
    train_encoder(small(pairs, 'bge-sl'), max_steps=1)
    assert encoder_spec('bge-sl').label == 'BGE SL-HyDE' and medir('evaluate', beir, '--system', 'bge-sl').code == 0
    train_generator(small_sft(answers, 'qwen-sl-1', model=folders['tiny-chat']), max_steps=1)
    spec = llm_spec('qwen-sl')
    assert spec.published_as == ('q',) and spec.revision == checkpoint_record('qwen-sl-1')['revision']
    refuses(lambda: encoder_spec('qwen-sl-1'), 'language model')


@pytest.mark.medium
def test_mixed_precision_and_gradient_checkpointing(rows, pairs, answers):
    low, accumulated = {'precision': 'bf16', 'gradient_checkpointing': True}, {'max_steps': 1, 'accumulation': 2}
    plain = train_encoder({**small(pairs, 'plain'), 'model': 'tiny-instruct'}, **accumulated)
    done = train_encoder({**small(pairs), 'model': 'tiny-instruct'}, gradient_cache=2, **accumulated, **low)
    assert abs(done.loss - plain.loss) < 0.05 * plain.loss
    assert {str(v.dtype) for v in weights(done.folder).values()} == {'torch.float32'}
    assert np.isfinite(train_generator(small_sft(answers), **accumulated, **low).loss)


@pytest.mark.medium
def test_texts_over_the_limit_are_counted(rows, tmp_path, capsys):
    lines = [{'query': w, 'pos': [f'{LONG} {w}'], 'neg': ['short']} for w in WORDS[:4]]
    done = train_encoder(small(write_lines(tmp_path / 'x.jsonl', lines)), max_steps=1)
    record = checkpoint_record('own')
    drawn = Pairs(tmp_path / 'x.jsonl', 2)
    long = sum(len(d) > 100 for i in range(4) for d in [drawn.draw(i)[0], *drawn.draw(i)[1]])
    assert record['counts']['truncated'] == long >= 4 and record['counts']['texts'] == 16
    assert f'{long} of 16 texts were longer' in capsys.readouterr().err


@pytest.mark.medium
def test_metrics_are_written_while_it_runs(rows, pairs, home, monkeypatch):
    seen, shown = [], []

    def look(frame):
        for work in t.progress.work_folders(home / 'checkpoints' / 'own'):
            seen.append((len(frame), len((work / 'metrics.jsonl').read_text().splitlines())))
        return f'step {frame.step.iloc[-1]}'

    handle = SimpleNamespace(update=shown.append)
    monkeypatch.setattr(IPython, 'get_ipython', lambda: SimpleNamespace(kernel=object()))
    monkeypatch.setattr(IPython.display, 'display', lambda drawn, display_id: shown.append(drawn) or handle)
    done = train_encoder(small(pairs), watch=Watch(look, seconds=0), max_steps=3)
    assert shown[:3] == ['step 1', 'step 2', 'step 3'] and seen[:3] == [(1, 1), (2, 2), (3, 3)]
    frame = done.history
    assert frame.step.tolist() == [1, 2, 3] and {'grad_norm', 'tokens_per_second', 'epoch'} <= set(frame.columns)
    assert (frame.seconds.diff().dropna() > 0).all() and (frame.tokens_per_second > 0).all()
    assert frame.loss.iloc[-1] == done.loss and np.allclose(frame.learning_rate, [1e-3, 1e-3 * 2 / 3, 1e-3 / 3])
    assert repr(done) == f'own: 3 steps, loss {done.loss:.4f}, {done.seconds:.0f} s'


@pytest.mark.medium
def test_a_finished_training_is_not_repeated(rows, pairs, tmp_path, monkeypatch):
    first = train_encoder(small(pairs), max_steps=2)
    written = file_fingerprint(first.folder)
    again = train_encoder(small(pairs), max_steps=2, save_steps=7, logging_steps=5)
    assert again.reused and not first.reused and file_fingerprint(first.folder) == written
    assert (again.steps, again.loss) == (first.steps, first.loss) and repr(again).endswith('(trained before)')
    elsewhere = shutil.copy(pairs, tmp_path / 'copy.jsonl')
    there = train_encoder(small(elsewhere, str(tmp_path / 'there')), max_steps=2)  # other paths, same training
    assert checkpoint_record(there.folder)['revision'] == checkpoint_record('own')['revision']
    same_weights(there.folder, first.folder)
    assert not train_encoder(small(pairs), max_steps=2, seed=1, overwrite=True).reused
    write_lines(pairs, PAIRS[1:])
    assert not train_encoder(small(pairs), max_steps=2, overwrite=True).reused


def small_ce(data, output='own-ce', **settings):
    few = {'negatives': 2, 'learning_rate': 1e-3, 'batch_size': 4, 'max_steps': 3, 'max_tokens': 24}
    return {'model': 'tiny-instruct', 'data': data, 'output': output, **few, **settings}


@pytest.mark.medium
def test_a_group_is_a_query_with_its_positive_first(rows, pairs):
    done = train_reranker(small_ce(pairs))
    backend = PairBackend(reranker_spec('own-ce'), device='cpu')
    found = Pairs(pairs, 2)
    batch = GroupBatches(found, backend.spec, backend.tokenizer)([{'row': 3}, {'row': 0}])
    drawn = [(found.rows[i].query, d) for i in (3, 0) for p, n in [found.draw(i)] for d in (p, *n)]
    assert drawn[0][1] == PAIRS[3]['pos'][0] and batch['labels'].tolist() == [0, 0] and len(batch['input_ids']) == 6
    with torch.inference_mode():
        logits = backend.model(**{k: v for k, v in batch.items() if k not in ('labels', 'counts')}).logits[:, 0]
    np.testing.assert_allclose(logits, backend.encode(written_pairs(backend.spec, drawn)).vectors[:, 0], atol=1e-5)
    assert done.counts['texts'] == 3 * 4 * 3 and done.counts['rows'] == 12


@pytest.mark.medium
def test_its_loss_is_a_softmax_over_a_group_whatever_the_accumulation(rows, pairs):
    # no dropout, all rows in one step, and a new head on weights that stay as they are
    train_reranker(small_ce(pairs, 'start', max_steps=1, learning_rate=1e-12))
    settings = small_ce(pairs, model='start', batch_size=len(PAIRS), max_steps=1, learning_rate=1e-4)
    one = train_reranker(settings)
    two = train_reranker({**settings, 'output': 'two', 'batch_size': len(PAIRS) // 2, 'accumulation': 2})
    backend, found = PairBackend(reranker_spec('start'), device='cpu'), Pairs(pairs, 2)
    drawn = [(row.query, d) for i, row in enumerate(found.rows) for p, n in [found.draw(i)] for d in (p, *n)]
    scores = torch.tensor(backend.encode(written_pairs(backend.spec, drawn)).vectors).view(-1, 3)
    wanted = (scores.logsumexp(1) - scores[:, 0]).mean().item()
    assert one.loss == pytest.approx(wanted, rel=1e-4) and two.loss == pytest.approx(one.loss, rel=1e-5)
    a, b = weights(one.folder), weights(two.folder)
    # Adam's first step is the sign of the gradient; rounding may turn one that is zero
    assert max((a[k] - b[k]).abs().max() for k in a) < 3e-4
    assert sum(((a[k] - b[k]).abs() > 1e-5).sum() for k in a) < 0.02 * sum(a[k].numel() for k in a)


@pytest.mark.medium
def test_a_cross_encoder_learns_and_opens_everywhere(rows, pairs, beir, medir, home):
    done = train_reranker(small_ce(pairs, max_steps=40, learning_rate=5e-3, max_tokens=32))
    assert done.history.loss.tail(5).mean() < done.history.loss.head(5).mean()
    spec, record = reranker_spec('own-ce'), checkpoint_record('own-ce')
    assert (spec.max_tokens, spec.logits, spec.label) == (32, 1, 'tiny-instruct, trained')
    assert (record['kind'], record['base']) == ('reranker', 'tiny-instruct')
    texts = [('what is insulin', 'insulin is given once a day'), ('what is insulin', 'a fracture ' * 40)]
    plain = CrossEncoder(str(done.folder), device='cpu', activation_fn=torch.nn.Identity())
    scored = Reranker('own-ce', device='cpu').backend().encode(texts).vectors[:, 0]
    np.testing.assert_allclose(scored, plain.predict(texts), atol=1e-5)
    ran = medir('evaluate', beir, '--system', 'bm25>own-ce@10', '--home', home)
    assert ran.code == 0 and 'own-ce@10' in ran.out, ran.err
    further = train_reranker(small_ce(pairs, 'further', model='own-ce', max_steps=2, max_tokens=0))
    assert reranker_spec('further').max_tokens == 32 and further.history.loss[0] < np.log(3) - 0.05
    assert train_reranker(small_ce(pairs, 'elsewhere', model=str(done.folder), max_steps=1, max_tokens=0)).steps == 1


@pytest.mark.medium
def test_killed_between_the_last_step_and_the_checkpoint(rows, pairs, answers, monkeypatch):
    for run, settings in (
        (train_encoder, small(pairs, max_steps=2, save_steps=1)),
        (train_generator, small_sft(answers, max_steps=2, save_steps=1)),
    ):
        whole = run({**settings, 'output': f'whole-{run.__name__}'})
        with monkeypatch.context() as m:
            m.setattr(t.loop, 'atomic_folder', lambda path: 1 / 0)
            with pytest.raises(MedirError, match='could not be written'):
                run(settings)
        done = run(settings)
        assert done.steps == 2 and done.loss == whole.loss
        same_weights(done.folder, whole.folder)


def test_poisoned_weights_are_not_saved(folders, own_registry, pairs, tmp_path, home):
    def poison(model, tokenizer):
        with torch.no_grad():
            model.embeddings.word_embeddings.weight[5] = float('nan')

    poisoned = make_model('bert', tmp_path / 'poisoned', change=poison)
    own_registry(models={'tiny-cls': {**ROWS['tiny-cls'], 'hub': poisoned}})
    with pytest.raises(MedirError, match='no numbers|is nan at step 1'):
        train_encoder(small(pairs), max_steps=2, save_steps=1)
    assert not (home / 'checkpoints' / 'own').exists()
    assert not t.safe_training.last_checkpoint(t.progress.work_folders(home / 'checkpoints' / 'own')[-1])


@pytest.fixture
def full_disk(tmp_path):
    (folder := tmp_path / 'disk').mkdir()
    done = subprocess.run(['mount', '-t', 'tmpfs', '-o', 'size=4m', 'tmpfs', folder], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f'no file system can be mounted here: {done.stderr.strip()}')
    yield folder
    subprocess.run(['umount', folder])


@pytest.mark.medium
@pytest.mark.parametrize('when', ['under way', 'at the end'])
def test_an_old_checkpoint_survives_a_full_disk(rows, pairs, full_disk, when):
    disk = full_disk
    old = train_encoder(small(pairs, str(disk / 'own')), max_steps=1, save_steps=0)
    written = file_fingerprint(old.folder)
    free = shutil.disk_usage(disk).free
    (disk / 'ballast').write_bytes(b'x' * (free - 100_000))
    settings = small(pairs, str(disk / 'own'), max_steps=3, save_steps=2 * (when == 'under way'), overwrite=True)
    with pytest.raises(MedirError, match='could not be written.*make room and run the same line again'):
        train_encoder(settings)
    assert file_fingerprint(old.folder) == written and encoder_spec(str(old.folder)).pooling == 'cls'
    assert not list(disk.glob('.own*.part')) and not list(disk.glob('.training/*/aside'))
    (disk / 'ballast').unlink()
    done = train_encoder(settings)
    assert done.steps == 3 and file_fingerprint(old.folder) != written


def tokens_of(spec):
    return transformers.AutoTokenizer.from_pretrained(spec.hub)


@pytest.mark.parametrize('name', ['tiny-chat', 'tiny-llama'])
def test_prompts_of_training_and_inference_are_identical(rows, answers, name):
    spec, tokenizer = llm_spec(name), tokens_of(llm_spec(name))
    config = training_config(small_sft(answers, model=name), 'sft', form='question')
    examples, counts = sft_examples(config, spec, tokenizer, {tokenizer.eos_token_id})
    assert counts['language'] == 'en' and counts['rows'] == len(examples) == len(ANSWERS)
    for example, line in zip(examples, ANSWERS):
        prompt, cut = fill(wording('hyde', None, 'en', 'question'), 'query', query=line['text'])
        asked = _rendered(tokenizer, spec, Request(prompt, Sampling(), spec.system, cut=cut))
        n = len(asked)
        assert example['input_ids'][:n] == asked and example['labels'][:n] == [-100] * n
        assert example['labels'][n:] == example['input_ids'][n:]
        assert example['labels'][-1] == tokenizer.convert_tokens_to_ids('<|im_end|>' if name == 'tiny-chat' else '</s>')
        # the tiny vocabulary of the other has no such characters
        said = tokenizer.decode(example['labels'][n:-1]).split()
        assert name == 'tiny-llama' or said == line['top_rewrite_query'].split()
    begins = '<|im_start|>system\nYou are a careful doctor.<|im_end|>\n<|im_start|>user\nBelow is a medical question.'
    assert name == 'tiny-llama' or tokenizer.decode(asked).startswith(begins)


def test_long_prompts_and_answers(rows, tmp_path):
    spec, tokenizer = llm_spec('tiny-chat'), tokens_of(llm_spec('tiny-chat'))
    texts = {'short': LONG * 3, LONG * 3: 'short', 'q': ' '}
    lines = [{'text': text, 'top_rewrite_query': answer} for text, answer in texts.items()]
    config = training_config(small_sft(write_lines(tmp_path / 'x.jsonl', lines)), 'sft', max_tokens=300)
    made, counts = sft_examples(config, spec, tokenizer, {tokenizer.eos_token_id})
    met = {'rows': 2, 'without_answer': 1, 'shortened_prompts': 1, 'cut_answers': 1}
    assert {name: counts[name] for name in met} == met and max(len(e['input_ids']) for e in made) <= 300
    assert [e['labels'][-1] == tokenizer.eos_token_id for e in made] == [False, True]


@pytest.mark.medium
@pytest.mark.parametrize('name', ['tiny-chat', 'tiny-llama'])
def test_a_merged_generator_opens_in_plain_transformers(rows, answers, name, capfd):
    done = train_generator(small_sft(answers, model=name), epochs=3)  # 5 steps an epoch
    losses = done.history.loss.dropna()
    assert done.steps == 15 and losses.tail(5).mean() < losses.head(5).mean()
    assert np.isfinite(done.history.held_out_loss.dropna().iloc[0])
    files = {file.name for file in done.folder.iterdir()}
    assert not [f for f in files if 'adapter' in f] and {'config.json', 'model.safetensors', 'tokenizer.json'} <= files
    spec, base = llm_spec('own-llm'), llm_spec(name)
    model = transformers.AutoModelForCausalLM.from_pretrained(done.folder, dtype='auto')
    tokenizer = transformers.AutoTokenizer.from_pretrained(done.folder)
    assert str(model.dtype) == f'torch.{base.dtype}' and model.config.use_cache
    of_base, of_own = ((tokens_of(base), base), (tokenizer, spec))
    assert _rendered(*of_own, Request('x', system=base.system)) == _rendered(*of_base, Request('x', system=base.system))
    before = transformers.AutoModelForCausalLM.from_pretrained(base.hub, dtype='auto').to(model.dtype).state_dict()
    changed = {key.split('.')[-2] for key, value in model.state_dict().items() if not torch.equal(value, before[key])}
    assert changed == {'q_proj', 'k_proj', 'v_proj', 'o_proj', 'gate_proj', 'up_proj', 'down_proj'}
    for field in ('chat', 'chat_options', 'system', 'context', 'languages', 'sampling', 'answer', 'dtype'):
        assert getattr(spec, field) == getattr(base, field), field
    out = capfd.readouterr()
    assert not out.out and all(line.startswith('medir: ') for line in out.err.splitlines())


@pytest.mark.medium
def test_generations_of_a_tuned_model_replay_on_another_machine(rows, answers, tmp_path, monkeypatch):
    train_generator(small_sft(answers), max_steps=2)
    request = Request('what is a statin', Sampling(max_tokens=4))
    mine, base = LLM('own-llm'), LLM('tiny-chat')
    text = mine.generate([request])
    assert mine.cassettes.path == base.cassettes.path and base.missing([request])  # one cassette, two models
    monkeypatch.setenv('MEDIR_HOME', str(tmp_path / 'other'))
    monkeypatch.setenv('MEDIR_CASSETTES', str(mine.cassettes.path.parent))
    train_generator(small_sft(shutil.copy(answers, tmp_path / 'there.jsonl')), max_steps=2)
    again = LLM('own-llm')
    assert again.spec.folder != mine.spec.folder and again.generate([request], replay=True) == text
    train_generator(small_sft(answers), max_steps=3, overwrite=True)  # another training, another model
    refuses(lambda: LLM('own-llm').generate([request], replay=True), 'the cassette lacks')


def test_an_unreadable_record_is_named(home):
    write_lines(home / 'checkpoints' / 'torn' / 'medir.json', ['{"kind": '])
    refuses(lambda: encoder_spec('torn'), 'medir.json: no readable record')
    assert core.checkpoint_names() == ['torn'] and core.checkpoint_record('a/b') == {}


def nested(data, output='own', **settings):
    first = {'model': 'tiny-cls', 'data': data, 'output': output, 'negatives': 1, 'batch_size': 4}
    return {**first, 'learning_rate': 1e-2, **settings}


NESTED = {'matryoshka': [4, 8, 32], 'learn_temperature': True, 'temperature': 0.05}


def drawn_vectors():
    return vectors(5, 8).detach(), [vectors(5, 8, seed=seed).detach() for seed in (1, 2)]


@pytest.mark.parametrize('normalise', ['after', 'before'])
def test_the_mean_over_sizes_by_hand(normalise):
    queries, documents = drawn_vectors()

    def contrast(queries, documents, similarity):
        return info_nce(queries, documents, 0.1, similarity)

    by_hand = []
    for size in (2, 5, 8):
        q, d = queries.numpy(), np.concatenate([column.numpy() for column in documents])
        first = [unit(x)[:, :size] if normalise == 'before' else unit(x[:, :size]) for x in (q, d)]
        scores = first[0] @ first[1].T / 0.1
        by_hand.append(np.mean([np.log(np.exp(row).sum()) - row[i] for i, row in enumerate(scores)]))
    loss = matryoshka_loss(contrast, queries, documents, [2, 5, 8], 'cos', normalise)
    assert abs(loss.item() - np.mean(by_hand)) < 1e-5


def gradients(model, loss, features, labels):
    model.zero_grad()
    value = loss(features, labels)
    value.backward()
    grads = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    return value.item(), grads, loss.temperature.log.grad.item() if loss.learns else None


@pytest.mark.parametrize('mini_batch', [0, 2])
def test_where_the_library_can_do_the_same_it_does(rows, pairs, mini_batch):
    "Cosines cut before they are normalised, one process, no mask: sentence-transformers' wrapper of this very loss."
    model, sizes = model_of('tiny-cls'), [4, 16, 32]
    features, _ = batch_of(model, pairs, hypothetical=False)
    value, ours, _ = gradients(model, InfoNCE(model, 0.05, mini_batch=mini_batch, matryoshka=sizes), features(), None)
    inner = InfoNCE(model, 0.05, mini_batch=mini_batch)
    library = of_library.MatryoshkaLoss(model, inner, sizes, [1 / 3] * 3)
    library.learns = False
    theirs_value, theirs, _ = gradients(model, library, features(), None)
    assert abs(value - theirs_value) < 1e-5 * value and (ours - theirs).norm() < 1e-4 * ours.norm()
    with pytest.raises(MedirError, match="unknown order 'first'"):
        InfoNCE(model, 0.05, matryoshka=sizes, normalise='first')


@pytest.mark.parametrize('part', [1, 4, 6])
@pytest.mark.parametrize('normalise', ['after', 'before'])
def test_cached_gradients_are_those_of_the_whole_batch(rows, pairs, part, normalise):
    "With masked false negatives, a hypothetical column, several sizes and a temperature that is trained."
    model = model_of('tiny-cls')
    features, labels = batch_of(model, pairs)
    how = {**NESTED, 'temperature': 0.1, 'hypothetical': True, 'normalise': normalise, 'learn_temperature': True}
    a, whole, warm = gradients(model, InfoNCE(model, **how), features(), labels)
    b, cached, cached_warm = gradients(model, InfoNCE(model, mini_batch=part, **how), features(), labels)
    assert abs(a - b) < 1e-5 * a and (whole - cached).norm() < 1e-5 * whole.norm()
    # a sum in float32 of terms that all but cancel
    assert abs(warm - cached_warm) < 1e-6 + 1e-5 * abs(warm) and warm != 0


def test_the_gradient_of_the_temperature_by_hand():
    queries, documents = drawn_vectors()
    loss = InfoNCE(None, 0.1, learn_temperature=True)
    loss.calculate_loss([[queries], *[[column] for column in documents]]).backward()
    ahead, back = (info_nce(queries, documents, 0.1 * float(np.exp(step))) for step in (1e-3, -1e-3))
    assert abs(loss.temperature.log.grad.item() - (ahead - back).item() / 2e-3) < 1e-3


@pytest.mark.medium
def test_a_temperature_is_trained_logged_and_kept_in_the_record(rows, pairs):
    done = train_encoder(nested(pairs, epochs=3, **NESTED))
    told = done.history.temperature
    assert told.nunique() == done.steps == 9 and abs(told - 0.05).max() > 1e-3
    assert checkpoint_record('own')['learned'] == {'temperature': told.iloc[-1]}
    fixed = train_encoder(nested(pairs, 'fixed', epochs=3, temperature=0.05))
    assert 'temperature' not in fixed.history and 'learned' not in checkpoint_record('fixed')


def test_weight_decay_leaves_a_temperature_alone(rows, pairs, tmp_path):
    config = training_config(nested(pairs, weight_decay=0.05, **NESTED), 'contrastive')
    recipe = encoder_recipe(config, lambda model, config, hypothetical: InfoNCE(model, **NESTED))
    trainer = recipe.build(training_arguments(recipe.config, tmp_path))
    decayed, spared = trainer.create_optimizer().param_groups
    log = trainer.loss.temperature.log
    assert decayed['weight_decay'] == 0.05 and not spared['weight_decay']
    assert any(p is log for p in spared['params']) and not any(p is log for p in decayed['params'])


def encoded(name, **changes):
    return vectors_of(Encoder(encoder_spec(name, **changes)), SENTENCES, 'document')


@pytest.mark.medium
def test_a_row_cuts_what_it_encodes_in_either_order(rows, pairs):
    train_encoder(nested(pairs, max_steps=2, **NESTED))
    whole = encoded('own')
    close(encoded('own', dimensions=8), unit(whole[:, :8]))
    last = {'dimensions': 8, 'normalize_before_cut': True, 'similarity': 'dot'}
    close(encoded('own', **last), whole[:, :8])
    assert (np.linalg.norm(encoded('own', **last), axis=1) < 0.999).all()
    keys = {encoder_spec('own', **change).vector_key('document') for change in ({}, {'dimensions': 8}, last)}
    assert len(keys) == 3
    # a row whose vectors are cut is trained as it reads
    train_encoder(nested(pairs, 'cut', max_steps=1, temperature=1.0, reading=last))
    vectors = encoded('cut')
    assert encoder_spec('cut').similarity == 'dot' and vectors.shape[1] == 8
    assert (np.linalg.norm(vectors, axis=1) < 0.999).all()


@pytest.mark.medium
@pytest.mark.parametrize('how', [{}, {'lora': {'r': 2}}])
def test_a_layer_that_only_cuts_is_never_trained(rows, pairs, how):
    "Nor where a saved folder is trained on, whose layers come back with weights to train."
    train_encoder(nested(pairs, max_steps=1, reading={'dimensions': 8}))
    train_encoder(nested(pairs, 'again', model='own', max_steps=2, **how))
    layers = [module.linear.weight for module in model_of('again') if hasattr(module, 'linear')]
    assert [np.array_equal(weight.detach(), np.eye(8, 32)) for weight in layers] == [True]
    assert encoded('again').shape[1] == 8


@pytest.mark.medium
def test_a_killed_training_goes_on_to_the_same_end(rows, pairs, home):
    settings = dict(small(pairs), batch_size=2, epochs=2, save_steps=3)
    whole = train_encoder({**settings, 'output': 'whole'})
    assert whole.steps == 12
    slowly = 'import json, sys, time; from medir_nb.trainer import train_encoder; '
    slowly += 'train_encoder(json.loads(sys.argv[1]), watch=lambda lines, now=False: time.sleep(0.3))'
    for kill_at, saved in ((4, 3), (8, 6)):  # in the first and in the second epoch of 6 steps
        child = subprocess.Popen([sys.executable, '-c', slowly, json.dumps(settings, default=str)])
        deadline, found = time.monotonic() + 300, []
        while not (found and len(t.read_metrics(found[-1])) >= kill_at):
            assert child.poll() is None and time.monotonic() < deadline
            time.sleep(0.01)
            found = [w / 'metrics.jsonl' for w in t.progress.work_folders(home / 'checkpoints' / 'own')]
        child.kill()
        assert child.wait() == -signal.SIGKILL and not (home / 'checkpoints' / 'own').exists()
        assert t.safe_training.last_checkpoint(found[-1].parent)[0] >= saved
        with open(found[-1], 'a') as f:
            f.write('{"step": 99, "lo')  # as a line torn by the kill
    done = train_encoder(settings)
    assert done.history.step.tolist() == list(range(1, 13)) and done.loss == whole.loss
    np.testing.assert_array_equal(done.history.loss, whole.history.loss)
    same_weights(done.folder, whole.folder)
    assert checkpoint_record('own')['counts'] == checkpoint_record('whole')['counts']
    assert not t.progress.work_folders(home / 'checkpoints' / 'own')


def test_losses_made_by_hand_refuse_what_has_no_gradient():
    refuses(lambda: InfoNCE(None, 0.0), 'temperature is 0.0')
    refuses(lambda: t.losses.Alignment(None, 0, 0), 'no part of the loss has a weight')
    refuses(lambda: t.losses.Alignment(None, distance='scores'), 'set mirrored')
