"""Losses on the first numbers of vectors and a temperature that is trained: by hand, in parts, over processes, after a kill, with a LoRA, and what they bring."""

import numpy as np, pytest
from conftest import seeded, write_lines
from tiny_models import SENTENCES, close, make_model
from test_trainer import ENCODER, PAIRS, ROWS, batch_of, free_port, model_of, without_dropout
from medir_nb.core import MedirError, checkpoint_record
from medir_nb.encoder import Encoder, encoder_spec
from medir_nb.trainer import info_nce, InfoNCE, matryoshka_loss, train_encoder, training_config


@pytest.fixture(scope='module')
def folders(tmp_path_factory):
    base = tmp_path_factory.mktemp('nested')
    calm = make_model('bert', base / 'calm', change=without_dropout)
    return {'tiny-cls': make_model('bert', base / 'bert'), 'tiny-instruct': calm}


@pytest.fixture
def rows(folders, own_registry):
    row = dict(ENCODER, pooling='cls', query_template='{text}', document_template='{text}')
    models = {'tiny-cls': dict(row, hub=folders['tiny-cls'])}
    models['tiny-instruct'] = dict(ROWS['tiny-instruct'], hub=folders['tiny-instruct'])
    own_registry(models=models)


@pytest.fixture
def pairs(tmp_path):
    return write_lines(tmp_path / 'pairs.jsonl', PAIRS)


def small(data, output='own', **settings):
    first = {'model': 'tiny-cls', 'data': data, 'output': output, 'negatives': 1, 'batch_size': 4}
    return {**first, 'learning_rate': 1e-2, **settings}


NESTED = {'matryoshka': [4, 8, 32], 'learn_temperature': True, 'temperature': 0.05}


# ---------------------------------------------------------------- the loss


def vectors(n=5, dim=8, columns=2, seed=0):
    import torch

    with seeded(seed):
        return torch.randn(n, dim), [torch.randn(n, dim) for _ in range(columns)]


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.mark.parametrize('normalise', ['after', 'before'])
def test_the_mean_over_sizes_by_hand(normalise):
    queries, documents = vectors()

    def contrast(queries, documents, similarity):
        return info_nce(queries, documents, 0.1, similarity)

    by_hand = []
    for size in (2, 5, 8):
        q, d = queries.numpy(), np.concatenate([column.numpy() for column in documents])
        q, d = (
            (unit(q)[:, :size], unit(d)[:, :size]) if normalise == 'before' else (unit(q[:, :size]), unit(d[:, :size]))
        )
        scores = q @ d.T / 0.1
        by_hand.append(np.mean([np.log(np.exp(row).sum()) - row[i] for i, row in enumerate(scores)]))
    loss = matryoshka_loss(contrast, queries, documents, [2, 5, 8], 'cos', normalise)
    assert abs(loss.item() - np.mean(by_hand)) < 1e-5


def gradients(model, loss, features, labels):
    "The loss, the gradient of the model, and that of the temperature where it is trained."
    import torch

    model.zero_grad()
    value = loss(features, labels)
    value.backward()
    grads = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    return value.item(), grads, loss.temperature.log.grad.item() if loss.learns else None


@pytest.mark.parametrize('mini_batch', [0, 2])
def test_where_the_library_can_do_the_same_it_does(rows, pairs, mini_batch):
    "Cosines, cut before they are normalised, one process, no mask: sentence-transformers' wrapper around this very loss."
    from sentence_transformers.sentence_transformer.losses import MatryoshkaLoss

    model, sizes = model_of('tiny-cls'), [4, 16, 32]
    features, _ = batch_of(model, pairs, hypothetical=False)
    value, ours, _ = gradients(model, InfoNCE(model, 0.05, mini_batch=mini_batch, matryoshka=sizes), features(), None)
    inner = InfoNCE(model, 0.05, mini_batch=mini_batch)
    library = MatryoshkaLoss(model, inner, sizes, [1 / 3] * 3)
    library.learns = False
    theirs_value, theirs, _ = gradients(model, library, features(), None)
    assert abs(value - theirs_value) < 1e-5 * value and (ours - theirs).norm() < 1e-4 * ours.norm()


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
    "In finite differences of the logarithm."
    import torch

    queries, documents = vectors()

    class Given(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def get_embedding_dimension(self):
            return 8

    loss = InfoNCE(Given(), 0.1, learn_temperature=True)
    loss.calculate_loss([[queries], *[[column] for column in documents]]).backward()
    ahead, back = (info_nce(queries, documents, 0.1 * float(np.exp(step))) for step in (1e-3, -1e-3))
    assert abs(loss.temperature.log.grad.item() - (ahead - back).item() / 2e-3) < 1e-3


def _half(rank, model, features, labels, port, folder):
    "Gradients of one process of two: those of the model are averaged by its wrapper, that of the temperature by itself."
    import torch, torch.distributed as dist

    dist.init_process_group('gloo', init_method=f'tcp://127.0.0.1:{port}', rank=rank, world_size=2)
    own = slice(4 * rank, 4 * rank + 4)
    mine = [{k: v if k == 'task' else v[own].clone() for k, v in f.items()} for f in features]
    found = {}
    for mini_batch in (0, 2):
        loss = InfoNCE(model, mini_batch=mini_batch, **NESTED)
        value, grads, warm = gradients(model, loss, mine, labels[own])
        value = torch.tensor(value)
        for x in (value, grads):
            dist.all_reduce(x)
        found[mini_batch] = value / 2, grads / 2, warm
    torch.save(found, f'{folder}/{rank}.pt')
    dist.destroy_process_group()


@pytest.mark.medium
def test_two_processes_give_the_gradients_of_the_doubled_batch(rows, pairs, tmp_path):
    import torch

    model = model_of('tiny-instruct')  # without dropout
    features, labels = batch_of(model, pairs, 'tiny-instruct', n=8, hypothetical=False)
    a, whole, warm = gradients(model, InfoNCE(model, **NESTED), features(), labels)
    torch.multiprocessing.spawn(_half, (model, features(), labels, free_port(), str(tmp_path)), nprocs=2)
    for rank in (0, 1):
        for b, grads, both in torch.load(tmp_path / f'{rank}.pt').values():
            assert abs(a - b) < 1e-5 * a and (grads - whole).norm() < 1e-5 * whole.norm()
            assert abs(both - warm) < 1e-4 * abs(warm)


def test_what_is_wrong_is_said(rows, pairs):
    model = model_of('tiny-cls')
    for wrong, message in (
        ({'matryoshka': [8, 33]}, '33 of 32 numbers'),
        ({'matryoshka': [0, 8]}, 'numbers cannot be kept'),
        ({'matryoshka': [8], 'normalise': 'behind'}, "unknown order 'behind'"),
        ({'matryoshka': [8], 'normalise': 'before', 'similarity': 'dot'}, 'nothing is normalised'),
        ({'learn_temperature': True, 'temperature': 0.005}, 'below its floor of 0.01'),
    ):
        with pytest.raises(MedirError, match=message):
            InfoNCE(model, **wrong)
    with pytest.raises(MedirError, match='33 of 32'):
        train_encoder(small(pairs, matryoshka=[33]))


# ---------------------------------------------------------------- the training


@pytest.mark.medium
def test_a_temperature_is_trained_logged_and_kept_in_the_record(rows, pairs):
    done = train_encoder(small(pairs, epochs=3, **NESTED))
    told = done.history.temperature
    assert told.nunique() == done.steps == 9 and abs(told - 0.05).max() > 1e-3
    assert checkpoint_record('own')['learned'] == {'temperature': told.iloc[-1]}
    fixed = train_encoder(small(pairs, 'fixed', epochs=3, temperature=0.05))
    assert 'temperature' not in fixed.history and 'learned' not in checkpoint_record('fixed')


def test_weight_decay_leaves_a_temperature_alone(rows, pairs, tmp_path):
    from medir_nb.trainer.loop import training_arguments
    from medir_nb.trainer.encoders import encoder_recipe

    config = training_config(small(pairs, weight_decay=0.05, **NESTED), 'contrastive')
    recipe = encoder_recipe(config, lambda model, config, hypothetical: InfoNCE(model, **NESTED))
    trainer = recipe.build(training_arguments(recipe.config, tmp_path))
    decayed, spared = trainer.create_optimizer().param_groups
    log = trainer.loss.temperature.log
    assert decayed['weight_decay'] == 0.05 and not spared['weight_decay']
    assert any(p is log for p in spared['params']) and not any(p is log for p in decayed['params'])


LORA = {'lora': {'r': 4, 'alpha': 8, 'dropout': 0.1}}


def test_switches_that_are_off_leave_the_key_as_it_was(rows, pairs):
    new = {'matryoshka', 'normalise', 'learn_temperature', 'least_temperature'}
    off = training_config(small(pairs, least_temperature=0.001), 'contrastive').decisive()
    assert not new & set(off) and off == training_config(small(pairs), 'contrastive').decisive()
    assert new <= set(training_config(small(pairs, **NESTED), 'contrastive').decisive())


# ---------------------------------------------------------------- short vectors of a row


def encoded(name, role='document', **changes):
    encoder = Encoder(encoder_spec(name, **changes))
    return encoder.encode(encoder.render([('', text) for text in SENTENCES], role), role).vectors


@pytest.mark.medium
def test_a_row_cuts_what_it_encodes_in_either_order(rows, pairs):
    train_encoder(small(pairs, max_steps=2, **NESTED))
    whole = encoded('own')
    close(encoded('own', dimensions=8), unit(whole[:, :8]))
    last = {'dimensions': 8, 'normalize_before_cut': True, 'similarity': 'dot'}
    close(encoded('own', **last), whole[:, :8])
    assert (np.linalg.norm(encoded('own', **last), axis=1) < 0.999).all()
    keys = {encoder_spec('own', **change).vector_key('document') for change in ({}, {'dimensions': 8}, last)}
    assert len(keys) == 3
    for wrong in ({'normalize_before_cut': True}, {**last, 'similarity': 'cos'}):
        with pytest.raises(MedirError, match='nothing is cut, or cosines'):
            encoder_spec('own', **wrong)


@pytest.mark.medium
def test_cut_vectors_are_trained_and_saved_in_either_order(rows, pairs):
    "A row whose vectors are cut is trained as it reads."
    last = {'dimensions': 8, 'normalize_before_cut': True, 'similarity': 'dot'}
    train_encoder(small(pairs, max_steps=1, temperature=1.0, reading=last))
    assert encoder_spec('own').similarity == 'dot'
    vectors = encoded('own')
    assert vectors.shape[1] == 8 and (np.linalg.norm(vectors, axis=1) < 0.999).all()


@pytest.mark.medium
@pytest.mark.parametrize('how', [{}, {'lora': {'r': 2}}])
def test_a_layer_that_only_cuts_is_never_trained(rows, pairs, how):
    "Nor where a saved folder is trained on, whose layers come back with weights to train."
    train_encoder(small(pairs, max_steps=1, reading={'dimensions': 8}))
    train_encoder(small(pairs, 'again', model='own', max_steps=2, **how))
    layers = [module.linear.weight for module in model_of('again') if hasattr(module, 'linear')]
    assert [np.array_equal(weight.detach(), np.eye(8, 32)) for weight in layers] == [True]
    assert encoded('again').shape[1] == 8
