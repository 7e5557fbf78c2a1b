"""Two tiny random towers of unequal size: losses by hand, what is frozen, kills, the query side, refusals, collapse."""

from pathlib import Path
from types import SimpleNamespace
import numpy as np, pandas as pd, pytest, tiny_models, torch, yaml
from conftest import refuses, write_lines
from hub.models import save_gte, save_tokenizer
from tiny_models import CAUSAL, FAMILIES, make_model
from medir_nb.core import checkpoint_record, MedirError
from medir_nb.encoder import Encoder, encoder_spec, joined_towers, save_query_side
from medir_nb.encoder.loading import modules_of_role
from medir_nb.encoder.saving import has_two_towers
from medir_nb.encoder.towers import KEPT_LAYERS, layer_numbers, pair_similarity
from medir_nb.evaluator import measure_throughput, throughput_table
from medir_nb.papers import published
from medir_nb.trainer import ABLATIONS, align_towers, Alignment, AlignmentData, APPROACHES, changed_pair, PRINTED
from medir_nb.trainer import PRINTED_AS, shortened_vectors, STAGE_DATA, train_encoder, train_pair, train_symmetric
from medir_nb.trainer import train_towers
from medir_nb.trainer.losses import DISTANCES
from medir_nb.trainer.pair import printed_settings, write_alignment_data

WORDS = 'statins metformin insulin asthma vaccine migraine anaemia fracture appendix thyroid heart liver'.split()
TEXTS = [f'what is {word}' for word in WORDS]
SMALL = {'kind': 'encoder', 'backend': 'transformers', 'revision': 'tiny', 'pooling': 'mean', 'normalize': True}
SMALL |= {'similarity': 'cos', 'max_query_tokens': 20, 'max_document_tokens': 24, 'query_template': 'query: {text}'}
SMALL |= {'document_template': '{text}'}
LARGE = {**SMALL, 'pooling': 'lasttoken', 'append_eos': True, 'normalize': False}
LARGE |= {'query_template': '{instruction}\nQuery: {text}', 'document_template': 'passage: {text}'}
LARGE |= {'default_instruction': 'Find passages'}
ROWS = ['Full Model', 'w/o query init', 'both stages, fine-tuning data']


@pytest.fixture(scope='module')
def folders(tmp_path_factory):
    base = tmp_path_factory.mktemp('towers')
    with pytest.MonkeyPatch.context() as patch:
        wide = {**CAUSAL, 'hidden_size': 64, 'num_hidden_layers': 4}
        patch.setitem(FAMILIES, 'wide', ('Qwen3Config', wide, *FAMILIES['qwen2'][2:]))
        patch.setattr(tiny_models, 'FAMILIES', FAMILIES)
        large = make_model('wide', base / 'large')
    return {'small': make_model('bert', base / 'small', seed=1), 'large': large}


@pytest.fixture
def rows(folders, own_registry, monkeypatch):
    monkeypatch.delenv('MEDIR_DATA', raising=False)
    own_registry(models={'small': dict(SMALL, hub=folders['small']), 'large': dict(LARGE, hub=folders['large'])})


@pytest.fixture
def same(tmp_path):
    return write_lines(tmp_path / 'same.jsonl', [{'query': text, 'pos': [text]} for text in TEXTS])


@pytest.fixture
def labelled(tmp_path):
    lines = [{'query': f'what is {w}', 'pos': [f'{w} is a drug'], 'neg': [f'no {w} at all']} for w in WORDS]
    return write_lines(tmp_path / 'labelled.jsonl', lines)


@pytest.fixture
def first(rows, same):
    steps = {'batch_size': 4, 'learning_rate': 1e-2, 'save_steps': 2, 'max_steps': 6, 'panel': {'every': 2}}
    return {'query': 'small', 'document': 'large', 'data': str(same), 'output': 'aligned', **steps}


@pytest.fixture
def second(labelled):
    steps = {'batch_size': 4, 'learning_rate': 1e-2, 'save_steps': 2, 'max_steps': 4}
    return {'model': 'aligned', 'data': str(labelled), 'output': 'joint', 'negatives': 1, **steps}


def opened(folder):
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(folder), device='cpu')


def tower_weights(model, role):
    return torch.cat([w.detach().flatten() for m in modules_of_role(model, role) for w in m.parameters()])


def row_model(query='small', document='large', **how):
    return joined_towers(encoder_spec(query), encoder_spec(document), **how)


def plane(*degrees):
    return torch.stack([torch.tensor([d, 90.0 - d]).deg2rad().cos() for d in degrees])


def test_a_duplicate_of_the_batch_is_no_negative():
    texts, labels = plane(0, 0, 50), torch.tensor([[1, 1], [1, 1], [2, 2]])
    loss = Alignment(None, distance_weight=0, temperature=0.02)
    assert loss.calculate_loss([[texts], [texts]], labels) < 1e-3 < 0.4 < loss.calculate_loss([[texts], [texts]])


@pytest.mark.medium
@pytest.mark.parametrize('cut', ['truncate-normalise', 'normalise-truncate'])
def test_towers_cut_as_the_equation_does(rows, cut):
    whole = row_model('large', 'large').encode_document(TEXTS, convert_to_tensor=True)
    vectors = row_model('large', 'large', dimensions=16, cut=cut).encode_document(TEXTS, convert_to_tensor=True)
    torch.testing.assert_close(vectors, shortened_vectors(whole, 16, cut), rtol=1e-4, atol=1e-5)


@pytest.mark.medium
def test_the_order_of_the_released_code_is_kept_on_disk(rows, first, second):
    done = align_towers(first, cut='normalise-truncate')
    vectors = Encoder('aligned').encode(TEXTS, 'document').vectors
    assert encoder_spec('aligned').similarity == 'dot' and np.linalg.norm(vectors, axis=1).max() < 0.99
    joint = train_towers(second)
    assert pair_similarity(opened(joint.folder)) == 'dot' and done.loss > 0


@pytest.mark.medium
@pytest.mark.parametrize('distance', DISTANCES)
def test_every_distance_falls(rows, first, distance):
    alone = {'distance': distance, 'contrastive_weight': 0, 'max_steps': 12, 'save_steps': 0}
    done = align_towers(first, **alone)
    assert done.history.loss.iloc[-3:].mean() < done.history.loss.iloc[:3].mean()
    # a student of scores answers no other tower
    assert has_two_towers(encoder_spec('aligned')) == (distance != 'scores')


@pytest.mark.parametrize('mirrored', [False, True])
@pytest.mark.parametrize('mini_batch', [1, 4, 5])
def test_parts_by_length_have_the_loss_and_the_gradients_of_the_whole(rows, mirrored, mini_batch, monkeypatch):
    pair, texts = row_model().eval(), [' '.join(TEXTS[: 1 + n % 4]) for n in range(len(TEXTS))]
    roles = ['query', 'document'] * (1 + mirrored)
    roles[2:] = roles[:1:-1]  # mirrored: by the other tower
    labels = torch.tensor([[n, n % 4] for n in range(len(texts))])
    widths, forward, found = [], type(pair).forward, []

    def noted(model, features, *args, **how):
        widths.append(int(features['attention_mask'].sum(1).max()))
        return forward(model, features, *args, **how)

    monkeypatch.setattr(type(pair), 'forward', noted)
    for size in (0, mini_batch):
        pair.zero_grad()
        columns = [pair.preprocess(texts, task=role) | {'task': role} for role in roles]
        loss = Alignment(pair, mini_batch=size, mirrored=mirrored)(columns, labels)
        widths.clear()
        loss.backward()
        grads = (weights.grad.clone() for weights in pair.parameters() if weights.grad is not None)
        found.append((loss.detach(), *grads))
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-5)
    parts = len(widths) // len(roles)
    of_columns = [widths[n : n + parts] for n in range(0, len(widths), parts)]
    assert all(of_one == sorted(of_one, reverse=True) for of_one in of_columns)


@pytest.mark.medium
def test_a_finished_stage_is_not_repeated_and_the_panel_decides_nothing(rows, first):
    align_towers(first)
    assert align_towers(first, panel={'every': 1, 'texts': 4}).reused
    refuses(lambda: align_towers(first, distance_weight=0.5), 'trained otherwise ', 'distance_weight')


@pytest.mark.medium
@pytest.mark.parametrize('labels', [False, True])
@pytest.mark.parametrize('further', [{}, {'dimensions': 16, 'cut': 'normalise-truncate'}, {'gradient_cache': 3}])
def test_kept_vectors_are_those_that_the_frozen_tower_writes(rows, first, labelled, labels, further, capsys):
    of_labels = {'data': str(labelled), 'negatives': 1} if labels else {}
    settings = {**first, 'query': 'large', 'query_layers': 2, **further, **of_labels}  # no dropout
    read = align_towers(settings, output='read')
    kept = align_towers(settings, output='kept', keep_vectors=True)
    torch.testing.assert_close(*(torch.tensor(one.history.loss) for one in (read, kept)), rtol=1e-3, atol=1e-4)
    a, b = opened(read.folder), opened(kept.folder)
    torch.testing.assert_close(*(tower_weights(one, 'query') for one in (a, b)), rtol=1e-2, atol=1e-3)
    assert torch.equal(tower_weights(a, 'document'), tower_weights(b, 'document'))
    capsys.readouterr()
    align_towers(settings, output='again', keep_vectors=True, seed=7)
    assert 'document' not in capsys.readouterr().err  # no vector is encoded twice


@pytest.mark.medium
@pytest.mark.parametrize('lora', [None, {'r': 2}])
def test_both_towers_are_trained_with_one_rate(rows, first, second, lora):
    align_towers(first)
    before = opened(checkpoint_record('aligned') and Encoder('aligned').spec.hub)
    done = train_towers(second, lora=lora)
    after = opened(done.folder)
    for role in ('query', 'document'):
        assert tower_weights(before, role).shape == tower_weights(after, role).shape
        assert not torch.equal(tower_weights(before, role), tower_weights(after, role))
    assert done.history.drift_document.iloc[-1] > 0 and (done.folder / 'adapter').is_dir() == bool(lora)
    assert train_towers(second, lora=lora).reused


@pytest.mark.medium
def test_a_projected_query_meets_whole_documents(rows, first):
    done = align_towers(first, project=True)
    model = opened(done.folder)
    assert model.encode_query(TEXTS).shape == model.encode_document(TEXTS).shape == (12, 64)
    layer = modules_of_role(model, 'query')[2].linear.weight.detach().numpy()
    assert not np.array_equal(layer, np.eye(64, 32))  # it was trained


@pytest.fixture
def own_code(rows, folders, own_registry, tmp_path):
    "A query tower with rotary positions whose code comes with its weights, as GTE-multilingual's does."
    folder = tmp_path / 'rotary'
    folder.mkdir()
    save_gte(folder, save_tokenizer('new', folder, 128), 128, 'rotary')
    row = {**SMALL, 'pooling': 'cls', 'architecture': 'new', 'hub': str(folder), 'remote_code': True}
    models = {'small': dict(SMALL, hub=folders['small']), 'large': dict(LARGE, hub=folders['large'])}
    own_registry(models={**models, 'rotary': row, 'unread': {**row, 'remote_code': False}})


@pytest.mark.medium
def test_a_tower_with_code_of_its_own_is_trained_on_and_serves(own_code, first, second, labelled, tmp_path):
    from sentence_transformers import SentenceTransformer

    steps = {'batch_size': 4, 'max_steps': 1, 'gradient_checkpointing': True}
    train_encoder(model='rotary', data=str(labelled), output='prepared', negatives=1, **steps)
    align_towers(first, query='prepared', gradient_checkpointing=True)
    train_towers(second, gradient_checkpointing=True)
    side = save_query_side('joint', tmp_path / 'home' / 'checkpoints' / 'side')
    # the code is what `own_code` put beside its weights
    alone = SentenceTransformer(str(side), device='cpu', trust_remote_code=True).encode_query(TEXTS)
    own = Encoder('joint')
    vectors = own.encode(own.render([('', text) for text in TEXTS], 'query'), 'query').vectors
    np.testing.assert_allclose(vectors, alone, atol=1e-5)


@pytest.mark.medium
def test_code_runs_where_a_row_allows_it_and_nowhere_else(own_code, first):
    refuses(lambda: align_towers(first, query='unread'), 'would run code that comes with the weights')
    done = align_towers(first, query='rotary', max_steps=1)
    assert encoder_spec('aligned').remote_code and not encoder_spec(str(done.folder)).remote_code
    refuses(lambda: Encoder(str(done.folder)).encode(['text'], 'query'), 'contains custom code')


@pytest.mark.medium
def test_a_pair_reads_as_its_towers_did(rows, first):
    done = align_towers(first)
    model = opened(done.folder)
    assert model.prompts == {'query': 'query: ', 'document': 'passage: '}
    spec = encoder_spec('aligned')
    assert (spec.dim, spec.max_query_tokens, spec.max_document_tokens) == (32, 20, 24)
    # of a pair of sentences the first is a query, the second a document
    assert spec.sentence_role == 'sides'
    documents = Encoder('aligned').render([('', text) for text in TEXTS], 'document')
    vectors = Encoder('aligned').encode(documents, 'document').vectors
    np.testing.assert_allclose(vectors, model.encode_document(TEXTS), atol=1e-5)


@pytest.mark.medium
@pytest.mark.parametrize('which', KEPT_LAYERS)
def test_a_pruned_tower_is_its_first_layers(rows, first, which, folders):
    done = align_towers(first, query='large', query_layers=2, kept=which)
    body = modules_of_role(opened(done.folder), 'query')[0].model
    assert body.config.num_hidden_layers == len(body.layers) == len(body.config.layer_types) == 2
    assert layer_numbers(4, 2, which) == ([0, 1] if which == 'first' else [0, 3])


@pytest.mark.parametrize(
    'change, message',
    [
        ({'query': 'large', 'document': 'small'}, 'queries have 64 numbers, documents 32'),
        ({'dimensions': 48}, 'set dimensions to at most 32'),
        ({'project': True, 'dimensions': 16}, 'leave dimensions out'),
        ({'lora': {'r': 2}}, 'a frozen document tower has no adapter'),
        ({'contrastive_weight': 0, 'distance_weight': 0}, 'no part of the loss has a weight'),
    ],
)
def test_what_cannot_be_trained_is_refused_in_one_line(rows, first, change, message):
    refuses(lambda: align_towers({**first, **change}), message)
    assert not checkpoint_record('aligned')


@pytest.mark.medium
def test_towers_of_other_lengths_meet_where_both_are_cut(rows, first):
    done = align_towers(first, query='large', document='small', dimensions=24)
    assert opened(done.folder).encode_query(TEXTS).shape == (12, 24)


@pytest.fixture
def whole(rows, same, tmp_path):
    texts = [{'id': w, 'query': f'what is {w}', 'pos': [f'{w} is a drug'], 'neg': [f'no {w} at all']} for w in WORDS]
    lines = [{**row, 'instruction': 'Find', 'source': 'own'} for row in texts]
    data = {'files': [str(write_lines(tmp_path / 'written.jsonl', lines))]}
    steps = {'max_steps': 1, 'batch_size': 4, 'save_steps': 0}
    how = {'lora': {'r': 2, 'alpha': 4}, 'common': steps, 'tuning_data': data}
    return {'name': 'pair', 'query': 'small', 'document': 'large', 'alignment_data': {'queries': [str(same)]}, **how}


@pytest.mark.medium
@pytest.mark.parametrize('row', [*ROWS, 'HotelMatch', 'KALE', 'Wang & Lyu', 'ScalingNote', 'Distilled scores'])
def test_a_row_is_trained_by_its_settings(whole, row):
    change = (ABLATIONS | STAGE_DATA | APPROACHES)[row]
    pair = train_pair(changed_pair(whole, change))
    assert list(pair.checkpoints) == change.get('stages', ['query-init', 'document-init', 'align', 'joint'])
    folder, is_wide = list(pair.trained.values())[-1].folder, row in ('HotelMatch', 'KALE', 'Wang & Lyu')
    assert folder.name == 'pair' and opened(folder).encode_query(TEXTS).shape == (12, 64 if is_wide else 32)
    assert pair.table().steps.tolist() == [1] * len(pair.trained)


def test_towers_that_cannot_meet_are_refused_before_one_is_trained(whole, folders, own_registry):
    small, large = dict(SMALL, hub=folders['small'], dim=32), dict(LARGE, hub=folders['large'], dim=64)
    own_registry(models={'small': small, 'large': large})
    with pytest.raises(MedirError, match='queries have 64 numbers, documents 32'):
        train_pair({**whole, 'query': 'large', 'document': 'small'})
    assert not checkpoint_record('pair-query') and not checkpoint_record('pair-document')


def test_each_stage_has_what_tables_19_and_20_print():
    cells = published('mar', ['Table 19', 'Table 20'])
    systems = {'retromae': 'RetroMAE', 'unsupervised': 'Unsupervised', 'query-init': 'Fine-tuning'}
    systems |= {'document-init': 'Fine-tuning', 'align': 'Asymmetric Stage I', 'joint': 'Asymmetric Stage II'}
    fields = {'learning_rate': 'Peak learning rate', 'batch_size': 'Global batch size', 'warmup_ratio': 'Warmup ratio'}
    fields |= {'epochs': 'Epochs'}
    assert set(PRINTED) == set(systems)
    for stage, system in systems.items():
        printed = cells[cells.system == system].set_index('metric').text
        read = {field: float(printed[metric].replace(',', '')) for field, metric in fields.items()}
        alone = printed_settings(stage, ['qwen3-4b'], symmetric=True)  # an init is printed as it is reported by itself
        assert read == {field: alone[field] for field in fields}, stage


@pytest.mark.parametrize('document, precision', [('qwen3-4b', 'fp16'), ('qwen3-8b', 'bf16')])
def test_each_stage_of_a_printed_pair_has_the_precision_of_its_towers(monkeypatch, tmp_path, document, precision):
    asked, done = [], SimpleNamespace(folder=Path('x'))
    for name in ('train_encoder', 'align_towers', 'train_towers'):
        monkeypatch.setattr(f'medir_nb.trainer.pair.{name}', lambda **how: asked.append(how) or done)
    lines = {name: SimpleNamespace(path=tmp_path / f'{name}.jsonl') for name in ('tuning', 'alignment')}
    config = {'name': 'own', 'query': 'gte-multilingual-mlm-base', 'document': document, 'printed': True}
    train_pair(config, written=lines)
    assert [how['precision'] for how in asked] == ['fp16', precision, precision, precision]
    own = encoder_spec(document).dim
    assert asked[1]['matryoshka'] == [64, 128, 256, 512, 768, own]
    asked.clear()
    train_symmetric(config, 'own-both', written=lines)
    assert (asked[0]['epochs'], asked[0]['output'], asked[0]['matryoshka'][-1]) == (2, 'own-both', own)


@pytest.mark.parametrize('row, begins', [('Full Model', 'prepared'), ('w/o query init', 'small'), ('KALE', 'large')])
def test_a_query_tower_that_was_prepared_elsewhere_is_not_prepared_again(monkeypatch, tmp_path, rows, row, begins):
    started, done = [], SimpleNamespace(folder=Path('x'))
    monkeypatch.setattr('medir_nb.trainer.pair.encoder_spec', lambda name: SimpleNamespace(dimensions=0, dim=0))
    monkeypatch.setattr('medir_nb.trainer.pair.train_encoder', lambda **how: started.append(how['model']) or done)
    monkeypatch.setattr('medir_nb.trainer.pair.align_towers', lambda **how: started.append(how['query']) or done)
    monkeypatch.setattr('medir_nb.trainer.pair.train_towers', lambda **how: done)
    lines = {name: SimpleNamespace(path=tmp_path / f'{name}.jsonl') for name in ('tuning', 'alignment')}
    plain = {'name': 'own', 'query': 'prepared', 'query_backbone': 'small', 'document': 'large'}
    change = (ABLATIONS | APPROACHES)[row]
    train_pair(changed_pair(plain, change), written=lines)
    assert started == ['large', begins if begins != 'large' else 'own-document']


@pytest.mark.medium
@pytest.mark.parametrize('cut, order', [('truncate-normalise', 'after'), ('normalise-truncate', 'before')])
def test_the_document_tower_is_prepared_to_be_cut_as_the_pair_cuts(whole, cut, order):
    own = {'max_steps': 1, 'batch_size': 4, 'precision': 'fp32', 'gradient_checkpointing': False}
    few = {**whole, 'stages': ['document-init', 'align'], 'common': {**whole['common'], **own}, 'printed': True}
    refuses(lambda: train_pair(few, cut=cut), 'write numbers from 1 to 64')
    train_pair(few, cut=cut, document_init={'matryoshka': [16, 64]})
    config = checkpoint_record('pair-document')['config']
    assert config['matryoshka'] == [16, 64] and config['normalise'] == order


def test_a_place_for_texts_that_nobody_released_names_what_is_read_instead(tmp_path, monkeypatch, same, capsys):
    data = {'queries': ['mar-queries'], 'documents': ['mar-documents'], 'instead': {'queries': [str(same)]}}
    monkeypatch.setenv('MEDIR_DATA', str(tmp_path))
    write_lines(tmp_path / 'mar-documents' / 'part.jsonl', [{'id': str(i), 'text': f'a text {i}'} for i in range(3)])
    mixed = write_alignment_data(AlignmentData(**data), tmp_path / 'mixed')
    assert mixed.table.source.tolist() == [str(same), 'mar-documents'] and mixed.table.texts.tolist()[1] == 3
    assert 'mar-queries: not here' in capsys.readouterr().err
    assert {row['query'] for row in mixed.mined if row['side'] == 'documents'} == {f'a text {i}' for i in range(3)}
    write_lines(tmp_path / 'mar-queries' / 'part.jsonl', [{'id': '1', 'text': 'a question'}])
    brought = write_alignment_data(AlignmentData(**data), tmp_path / 'brought')
    assert brought.table.source.tolist() == ['mar-queries', 'mar-documents'] and brought.rows == 4


def test_alignment_texts_stand_once_in_a_seeded_order(tmp_path, same):
    data = AlignmentData(queries=[str(same)], most=5, seed=3)
    first, second = (write_alignment_data(data, tmp_path / name) for name in 'ab')
    assert first.rows == 5 and first.path.read_bytes() == second.path.read_bytes()


def test_towers_take_turns(rows, beir):
    found, failed = measure_throughput(['small', 'large', 'bm25'], str(beir), queries=2, rounds=2, batch=1)
    assert [one['system'] for one in found] == ['small', 'large'] and 'no query tower' in str(*failed.values())
    for one in found:
        assert one['least'] <= one['queries_per_second'] <= one['most'] and 0 < one['embeddings'] < one['weights']
    table = throughput_table(found)
    assert table.ratio.iloc[0] == 1 and table.dimension.tolist() == [32, 64]


@pytest.mark.medium
def test_a_collapse_is_told_once(rows, first, capfd):
    limits = {'every': 1, 'rank': 12.0, 'cosine': 0.999}
    falling = {'learning_rate': 0.5, 'contrastive_weight': 0, 'max_grad_norm': 0}
    done = align_towers(first, panel=limits, **falling)
    said = capfd.readouterr().err
    assert said.count('the query tower has collapsed') == 1 and 'document tower' not in said and done.steps == 6


def test_weights_that_blow_up_are_one_line_with_the_panel_on(rows, first):
    falling = {'learning_rate': 1e30, 'contrastive_weight': 0, 'max_grad_norm': 0, 'save_steps': 0}
    with pytest.raises(MedirError, match='(no numbers|is nan).*lower the learning rate'):  # no line ends in between
        align_towers(first, panel={'every': 1}, **falling)


def test_each_printed_row_of_the_ablations_is_a_row_of_the_paper_preset():
    root = Path(__file__).parents[1]
    preset = yaml.safe_load((root / 'params' / 'mar_ablations' / 'paper.yaml').read_text(encoding='utf-8'))
    cells = pd.concat([published('mar', name) for name in ('Table 5', 'Table 6', 'Table 7')])
    printed = cells[['system', 'variant']].drop_duplicates()
    assert len(printed) == 16
    rows = [PRINTED_AS.get(row.variant) or PRINTED_AS[row.system] for row in printed.itertuples()]
    assert all(set(own) & set(preset['ablations']) for own in rows)
