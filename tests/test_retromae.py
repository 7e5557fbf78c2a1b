"""RetroMAE with and without a table of positions: whole words, what the decoder sees, kills, what is saved, refused."""

import shutil
import numpy as np, pytest, torch
from conftest import refuses, seeded, TINY_ROW, write_lines
from test_alignment import opened
from tiny_models import close, make_model, make_tokenizer, SENTENCES, SIZES
from medir_nb.core import checkpoint_record, MedirError
from medir_nb.encoder import Encoder, encoder_spec
from medir_nb.trainer import DiskTexts, pretraining_ablation, RetroMAE, RetroMAESettings, TextBatches, train_retromae
from medir_nb.trainer import train_tower, training_config
from medir_nb.trainer.losses import decoder_views
from medir_nb.trainer.retromae import load_masked, word_numbers

WORDS = np.array([-1, 0, 0, 1, 2, 3, 3, 3, 4, 5, -1])
TEXTS = [{'title': f'On {word}', 'text': f'{SENTENCES[i % 2]} Type {i}.'} for i, word in enumerate('abcdefghijkl')]


def with_mask(tokenizer):
    tokenizer.add_special_tokens({'mask_token': '<mask>'})
    return tokenizer


def make_masked(family, folder, kind, **more):
    "A tiny masked language model with its head, whose padding and special tokens are those of its tokenizer."
    import transformers

    tokenizer = with_mask(make_tokenizer(family))
    marks = {'pad': tokenizer.pad_token_id, 'cls': tokenizer.cls_token_id, 'sep': tokenizer.sep_token_id}
    marks |= {'bos': marks['cls'], 'eos': marks['sep']}
    sizes = {**SIZES, **{f'{name}_token_id': number for name, number in marks.items()}, **more}
    config = getattr(transformers, f'{kind}Config')(vocab_size=len(tokenizer), **sizes)
    with seeded():
        model = transformers.AutoModelForMaskedLM.from_config(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope='module')
def folders(tmp_path_factory):
    "Backbones with a table of positions (BERT, XLM-R, which counts from 2) and with rotary positions."
    base = tmp_path_factory.mktemp('masked')
    local = {'sliding_window': 8, 'initializer_cutoff_factor': 2.0}
    return {
        'bert': make_masked('bert', base / 'bert', 'Bert'),
        'xlm-r': make_masked('xlm-r', base / 'xlm-r', 'XLMRoberta'),
        'modernbert': make_masked('bert', base / 'modernbert', 'ModernBert', **local),
        'nomic': make_masked('bert', base / 'nomic', 'NomicBert'),
        'headless': make_model(
            'bert', base / 'headless', change=lambda model, words: model.resize_token_embeddings(len(with_mask(words)))
        ),
        'decoder': make_model('qwen3', base / 'qwen3'),
    }


KINDS = ('bert', 'xlm-r', 'modernbert', 'nomic')


@pytest.fixture
def rows(folders, own_registry, monkeypatch):
    monkeypatch.delenv('MEDIR_DATA', raising=False)
    rows = {f'tiny-{name}': dict(TINY_ROW, hub=folder) for name, folder in folders.items()}
    rows['tiny-decoder'] |= {'pooling': 'lasttoken', 'append_eos': True}
    own_registry(models=rows)


@pytest.fixture
def texts(tmp_path):
    return write_lines(tmp_path / 'texts.jsonl', TEXTS)


def small(data, output='own', **settings):
    return {'model': 'tiny-bert', 'data': data, 'output': output, 'batch_size': 4, 'learning_rate': 1e-3, **settings}


@pytest.mark.parametrize('family', ['bert', 'xlm-r', 'qwen2'])
def test_an_ideograph_is_a_word_whatever_the_tokenizer_cuts_at(family):
    "A tokenizer that cuts at spaces takes a Chinese sentence for a word; one of bytes has several pieces a character."
    tokenizer, text = make_tokenizer(family), '糖尿病患者的血糖'
    encoding = tokenizer(text).encodings[0]
    numbers = word_numbers(encoding, text)
    first = [text[begin : begin + 1] for (begin, _), number in zip(encoding.offsets, numbers) if number >= 0]
    words = numbers[numbers >= 0]
    for number in range(words.max() + 1):
        assert len({character for character, n in zip(first, words) if n == number and character.strip()}) == 1
    assert words.max() + 1 >= 6


def one_text(name, length=11, seed=0):
    "A model, a batch of two texts, the second shorter, and the view of its decoder."
    model = RetroMAE(load_masked(encoder_spec(f'tiny-{name}'))).eval()
    rng = np.random.default_rng(seed)
    ids = torch.from_numpy(rng.integers(10, 60, (2, length)))
    attention = torch.ones_like(ids)
    attention[1, -3:] = 0
    views = np.stack([decoder_views(WORDS[:length], 0.5, rng) for _ in range(2)])
    return model, ids, attention, torch.from_numpy(views)


@pytest.mark.parametrize('name', KINDS)
def test_the_decoder_does_not_see_the_token_that_it_predicts(rows, name):
    "Each token is changed in turn: what is said of its position stays to the last bit; where it is in view it moves."
    model, ids, attention, visible = one_text(name)
    with torch.no_grad():
        _, vectors = model.vectors(ids, attention)
        before = model.decode(vectors, ids, attention, visible)
        for position in range(1, ids.shape[1]):
            changed = ids.clone()
            changed[:, position] += 7
            after = model.decode(vectors, changed, attention, visible)
            moved = (after != before).any(-1)
            assert not moved[:, position].any()
            in_view = visible[:, :, position] & attention[:, position, None].bool()
            assert torch.equal(moved, in_view), position


@pytest.mark.parametrize('name', KINDS)
def test_the_decoder_hears_the_vector_and_knows_where_it_is(rows, name):
    model, ids, attention, visible = one_text(name)
    with torch.no_grad():
        _, vectors = model.vectors(ids, attention)
        before = model.decode(vectors, ids, attention, visible)
        other = model.decode(vectors + 1, ids, attention, visible)
        blind = torch.zeros_like(visible)
        blind[:, :, 0] = True
        places = model.decode(vectors, ids, attention, blind)
    assert (other != before).any(-1).all()
    # with the vector alone in view, positions are told apart
    assert torch.cdist(places[0], places[0])[~torch.eye(len(places[0]), dtype=bool)].min() > 1e-3


def test_what_is_behind_the_end_of_a_text_is_in_no_view(rows):
    model, ids, attention, visible = one_text('bert')
    _, vectors = model.vectors(ids, attention)
    changed = ids.clone()
    changed[1, -3:] += 5
    before, after = (model.decode(vectors, each, attention, visible) for each in (ids, changed))
    assert torch.equal(before, after)


def test_xlm_r_counts_positions_from_two(rows):
    model, ids, *_ = one_text('xlm-r')
    table = model.lm.base_model.embeddings.position_embeddings.weight
    assert torch.equal(model.embedded(ids)[1][0], table[2 : 2 + ids.shape[1]])


def test_own_positions_are_trained_or_stay(rows):
    lm = load_masked(encoder_spec('tiny-modernbert'))
    learned, fixed = RetroMAE(lm, length=16), RetroMAE(lm, positions='sinusoidal', length=16)
    assert learned.decoder.positions.weight.requires_grad and not fixed.decoder.positions.weight.requires_grad
    assert RetroMAE(load_masked(encoder_spec('tiny-bert')), positions='learned').decoder.positions is not None
    with pytest.raises(MedirError, match="pooled by 'last'"):
        RetroMAE(lm, pooling='last')


@pytest.mark.parametrize('name', KINDS)
def test_the_loss_is_that_of_the_library_and_in_parts_the_same(rows, name):
    "L_enc against transformers' own masked language model, both losses whole and in parts of three positions."
    model, ids, attention, visible = one_text(name)
    labels = torch.where(torch.from_numpy(np.random.default_rng(5).random(ids.shape)) < 0.4, ids, -100)
    named = torch.where(torch.from_numpy(WORDS)[None] >= 0, ids, -100)
    batch = dict(input_ids=ids, attention_mask=attention, labels=labels, clean_ids=ids, clean_labels=named)

    def both(part):
        model.part, model.losses = part, []
        model.zero_grad()
        model.train()
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
            if hasattr(module, 'attention_dropout'):
                module.attention_dropout = 0.0
        model.lm.eval(), model.decoder.eval()
        loss = model(**batch, visible=visible)['loss']
        loss.backward()
        grads = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        return loss.item(), model.logged(), grads

    loss, told, whole = both(4096)
    assert abs(loss - told['encoder_loss'] - told['decoder_loss']) < 1e-5
    expected = model.lm(input_ids=ids, attention_mask=attention, labels=labels).loss
    assert abs(told['encoder_loss'] - expected.item()) < 1e-5
    in_parts, _, cut = both(3)
    assert abs(in_parts - loss) < 1e-5 and (whole - cut).norm() < 1e-5 * whole.norm()


def test_texts_are_documents_or_named_fields(texts, tmp_path):
    assert DiskTexts(texts)[0] == f'On a {SENTENCES[0]} Type 0.'
    pairs = write_lines(tmp_path / 'pairs.jsonl', [{'query': 'what is it', 'pos': ['a drug', 'a pill']}])
    assert DiskTexts(pairs, ['query', 'pos'])[0] == 'what is it a drug a pill'
    with pytest.raises(MedirError, match="wrong.jsonl:1: .*field 'pos' is missing"):
        DiskTexts(write_lines(tmp_path / 'wrong.jsonl', [{'query': 'x'}]), ['pos'])[0]


def test_batches_hang_on_seed_epoch_and_line_alone(rows, texts):
    config = training_config(small(texts, max_tokens=12), 'retromae')
    tokenizer = Encoder('tiny-bert').tokens('query').tokenizer

    def batch(lines, epoch=0, **settings):
        batches = TextBatches(DiskTexts(texts), tokenizer, config.model_copy(update=settings))
        batches.epoch = epoch
        return batches(lines)

    one, alone = batch([3, 5]), batch([5])
    width = alone['input_ids'].shape[1]
    assert one['input_ids'][1, :width].equal(alone['input_ids'][0]) and one['labels'].shape == one['input_ids'].shape
    assert one['visible'][1, :width, :width].equal(alone['visible'][0])
    for other in (batch([3, 5], epoch=1), batch([3, 5], seed=7)):
        assert not other['input_ids'].equal(one['input_ids']) and other['clean_ids'].equal(one['clean_ids'])
    kept = one['labels'] < 0
    assert one['input_ids'][kept].equal(one['clean_ids'][kept])
    ends = (one['clean_ids'] == tokenizer.cls_token_id) | (one['clean_ids'] == tokenizer.sep_token_id)
    assert (one['clean_labels'][ends] == -100).all() and one['counts']['truncated'] == 2


@pytest.mark.medium
@pytest.mark.parametrize('name', KINDS)
def test_the_loss_falls_and_the_checkpoint_is_an_encoder(rows, texts, home, name):
    settings = small(texts, model=f'tiny-{name}', learning_rate=5e-3, epochs=6, warmup_ratio=0.1)
    done = train_retromae(settings)
    frame = done.history
    for loss in ('loss', 'encoder_loss', 'decoder_loss'):
        assert frame[loss].tail(4).mean() < frame[loss].head(4).mean(), loss
    np.testing.assert_allclose(frame.loss, frame.encoder_loss + frame.decoder_loss, rtol=1e-4)
    record = checkpoint_record('own')
    assert (record['kind'], record['task'], record['base'], done.steps) == ('encoder', 'retromae', f'tiny-{name}', 18)
    assert record['counts']['rows'] == 12 and record['counts']['texts'] == 72
    encoder = Encoder('own')
    ours = encoder.encode(encoder.render([('', text) for text in SENTENCES], 'document'), 'document').vectors
    close(opened(done.folder).encode_document(SENTENCES), ours)
    before = Encoder(f'tiny-{name}')
    theirs = before.encode(before.render([('', text) for text in SENTENCES], 'document'), 'document').vectors
    assert np.abs(ours - theirs).max() > 0.01 and train_retromae(settings).reused


def test_without_the_decoder_it_is_a_masked_language_model(rows, texts):
    done = train_retromae(small(texts, max_steps=2, decoder_weight=0))
    np.testing.assert_allclose(done.history.loss, done.history.encoder_loss, rtol=1e-5)


@pytest.mark.medium
def test_a_base_without_a_head_is_said(rows, texts, capsys):
    train_retromae(small(texts, model='tiny-headless', max_steps=1))
    assert 'hold no head that names masked tokens' in capsys.readouterr().err
    train_retromae(small(texts, 'other', max_steps=1))
    assert 'no head' not in capsys.readouterr().err


def test_what_cannot_be_trained_says_why(rows, texts, folders, tmp_path):
    wrong = small(texts, model='tiny-decoder')
    refuses(lambda: train_retromae(wrong), 'RetroMAE knows cls and mean')
    wrong['reading'] = {'pooling': 'mean'}
    refuses(lambda: train_retromae(wrong), 'does not load as a masked language model')
    unmasked = shutil.copytree(folders['bert'], tmp_path / 'unmasked')
    make_tokenizer('bert').save_pretrained(unmasked)
    refuses(lambda: train_retromae(small(texts, reading={'hub': str(unmasked)})), 'no token for a mask')


def test_the_printed_values_are_the_defaults():
    fields = RetroMAESettings.model_fields
    printed = {'learning_rate': 2e-4, 'warmup_ratio': 0, 'schedule': 'linear', 'epochs': 3, 'batch_size': 384 // 32}
    assert {name: fields[name].default for name in printed} == printed
    assert (fields['encoder_mask'].default, fields['decoder_mask'].default) == (0.3, 0.5)


@pytest.fixture
def tower(rows, texts, tmp_path):
    pairs = [{'query': row['title'], 'pos': [row['text']], 'neg': ['a note']} for row in TEXTS]
    data = str(write_lines(tmp_path / 'pairs.jsonl', pairs))
    steps = {'batch_size': 4, 'max_steps': 2}
    stages = {'retromae': steps, 'unsupervised': {**steps, 'negatives': 0, 'learn_temperature': True}}
    settings = {**stages, 'supervised': {**steps, 'negatives': 1}}
    files = {'retromae': str(texts), 'unsupervised': data, 'supervised': data}
    return {'backbone': 'tiny-bert', 'name': 'tower', 'data': files, 'settings': settings}


@pytest.mark.medium
def test_each_stage_stands_on_the_one_before(tower):
    trained = train_tower(tower)
    assert [*trained.trained] == ['retromae', 'unsupervised', 'supervised'] and trained.checkpoint == 'tower'
    bases = [checkpoint_record(name)['base'] for name in ('tower-retromae', 'tower-retromae-unsupervised', 'tower')]
    assert bases == ['tiny-bert', 'tower-retromae', 'tower-retromae-unsupervised']
    assert 'learned' in checkpoint_record('tower-retromae-unsupervised')
    assert trained.table().steps.tolist() == [2, 2, 2]
    assert all(stage.reused for stage in train_tower(tower).trained.values())


@pytest.mark.medium
def test_pairs_without_labels_are_read_without_an_instruction(tower, texts, tmp_path, monkeypatch):
    "Neither the one that stands in their lines nor the model's own; the labelled rows behind them have theirs."
    from medir_nb.trainer.pairs import TowerInput

    read, own = {}, TowerInput.read

    def tell(side, given, told=None):
        shown = [told[i] if told else '' for i in range(len(given))]
        pairs = zip(given, shown, strict=True)
        rendered = [side.encoder.render([('', x)], side.role, one or side.instruction)[0] for x, one in pairs]
        read.setdefault(side.role, []).append(rendered)
        return own(side, given, told)

    monkeypatch.setattr(TowerInput, 'read', tell)
    line = {'neg': ['a note'], 'instruction': 'Find a passage'}
    pairs = [{'query': row['title'], 'pos': [row['text']], **line} for row in TEXTS]
    told = str(write_lines(tmp_path / 'told.jsonl', pairs))
    data = {**tower['data'], 'unsupervised': told, 'supervised': told}
    template = {'query_template': '{instruction}: {text}', 'default_instruction': 'Find it'}
    train_tower(tower, reading=template, data=data)
    titles = {row['title'] for row in TEXTS}
    batches = [set(batch) for batch in read['query']]
    asked = [batch <= {f'Find a passage: {title}' for title in titles} for batch in batches]
    plain = [batch <= titles for batch in batches]
    # first the pairs, then the labelled rows
    assert plain == [not one for one in asked] == sorted(plain, reverse=True) and 0 < sum(plain) < len(plain)
    assert encoder_spec('tower-retromae-unsupervised').query_template == '{text}'
    assert encoder_spec('tower').query_template == '{instruction}: {text}'


@pytest.mark.medium
def test_rows_of_the_ablation_share_their_stages(tower):
    towers = pretraining_ablation(tower)
    reused = {row: [stage.reused for stage in one.trained.values()] for row, one in towers.items()}
    assert list(reused.values()) == [[False], [False, False], [False, False], [True, False, False]]
    weights = {row: checkpoint_record(one.checkpoint)['config'] for row, one in towers.items()}
    assert {config['max_steps'] for config in weights.values()} == {2}
    alone = checkpoint_record('tower-mlm-retromae')['config']['decoder_weight']
    assert (alone, checkpoint_record('tower-retromae')['config']['decoder_weight']) == (0, 1)


@pytest.mark.medium
def test_a_document_tower_is_a_decoder_with_a_lora_and_short_vectors(tower):
    settings = {**tower['settings']['supervised'], 'precision': 'fp32', 'gradient_checkpointing': False, 'max_steps': 1}
    settings |= {'matryoshka': [8, 32], 'max_query_tokens': 16, 'max_document_tokens': 16}
    own = {'backbone': 'tiny-decoder', 'stages': ['supervised'], 'printed': 'document'}
    own['settings'] = {'supervised': settings}
    trained = train_tower(tower, **own)
    record = checkpoint_record('tower')['config']
    assert trained.trained['supervised'].steps == 1 and record['lora']['r'] == 32 and record['matryoshka'] == [8, 32]
    assert Encoder(encoder_spec('tower', dimensions=8)).encode(['statins'], 'document').vectors.shape == (1, 8)
