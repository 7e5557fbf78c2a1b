"""Training on several processes: the batch and curve of one, for every kind of stage; refusals; what ends with what."""

import contextlib, json, signal, socket, subprocess, sys
from pathlib import Path

import numpy as np, pytest
from conftest import refuses, TINY_ROW, write_lines
from test_encoder import wait_for
from test_retromae import make_masked
from test_trainer import ANSWERS, make_llm, PAIRS, without_dropout, WORDS
from tiny_models import make_model

from medir_nb import core, trainer as t
from medir_nb.core import checkpoint_record, MedirError
from medir_nb.trainer import train, train_encoder, training_config
from medir_nb.trainer.launch import log_folder, processes_to_start, tell_idle
from medir_nb.trainer.loop import training_arguments
from medir_nb.trainer.training_settings import devices_here, processes_of, TRAINING_KINDS
from medir_nb.trainer.pair import stage_settings, tower_settings


def free_port():
    with socket.create_server(('127.0.0.1', 0)) as server:
        return server.getsockname()[1]


NAMED = {'model': 'minilm', 'data': 'x.jsonl', 'output': 'y'}


@pytest.fixture(scope='module')
def folders(tmp_path_factory):
    "Models without dropout, whose masks would be drawn anew in each process."
    base = tmp_path_factory.mktemp('shared')
    calm = {'hidden_dropout_prob': 0.0, 'attention_probs_dropout_prob': 0.0}
    made = {'tiny': make_model('bert', base / 'bert', change=without_dropout)}
    made |= {'tiny-large': make_model('qwen2', base / 'qwen2'), 'tiny-chat': make_llm('qwen2', base / 'chat', True)}
    return made | {'tiny-masked': make_masked('bert', base / 'masked', 'Bert', **calm)}


@pytest.fixture
def rows(folders, own_registry, monkeypatch):
    monkeypatch.delenv('MEDIR_DATA', raising=False)
    models = {name: dict(TINY_ROW, hub=folders[name]) for name in folders if name != 'tiny-chat'}
    models['tiny'] |= {'pooling': 'mean', 'query_template': 'query: {text}'}
    models['tiny-large'] |= {'pooling': 'lasttoken', 'append_eos': True}
    chat = {'revision': 'tiny', 'backend': 'transformers', 'context': 256, 'languages': ['en'], 'dtype': 'float32'}
    chat |= {'sampling': {'max_tokens': 8}, 'licence': 'MIT', 'published_as': [], 'tried': 'x'}
    own_registry(models=models, llms={'tiny-chat': {**chat, 'hub': folders['tiny-chat']}})


@pytest.fixture
def data(tmp_path):
    lines = {
        'pairs': PAIRS,
        'texts': [{'title': f'On {word}', 'text': ' '.join(WORDS[: i + 1])} for i, word in enumerate(WORDS)],
        'answers': [{**line, 'top_rewrite_query': ' '.join(WORDS[: i + 1])} for i, line in enumerate(ANSWERS)],
        'same': [{'query': f'what is {word}', 'pos': [f'what is {word}']} for word in WORDS],
    }
    return {name: str(write_lines(tmp_path / f'{name}.jsonl', rows)) for name, rows in lines.items()}


def kinds(data: dict) -> dict[str, dict]:
    lora = {'r': 2, 'alpha': 4, 'dropout': 0.0}
    steps = {'learning_rate': 1e-3, 'batch_size': 4, 'max_steps': 5, 'save_steps': 0}
    pairs = {**steps, 'task': 'contrastive', 'model': 'tiny', 'data': data['pairs'], 'negatives': 2}
    texts = {**steps, 'task': 'retromae', 'model': 'tiny-masked', 'data': data['texts']}
    towers = {**steps, 'query': 'tiny', 'document': 'tiny-large', 'dimensions': 16}
    align = {**towers, 'task': 'alignment', 'data': data['same']}
    learned = {'matryoshka': [8, 32], 'learn_temperature': True, 'gradient_cache': 3}
    of_decoder = {'model': 'tiny-large', 'lora': lora, 'gradient_cache': 2, 'gradient_checkpointing': True}
    sft = {**steps, 'task': 'sft', 'model': 'tiny-chat', 'data': data['answers'], 'lora': lora, 'accumulation': 2}
    ranked = {**steps, 'task': 'cross-encoder', 'model': 'tiny', 'data': data['pairs'], 'negatives': 2}
    late = {**pairs, 'task': 'late-interaction', 'projection': 8}
    sparse = {**pairs, 'task': 'splade', 'model': 'tiny-masked'}
    joint = {**towers, 'task': 'joint', 'data': data['pairs'], 'lora': lora, 'gradient_cache': 2, 'negatives': 1}
    made = {'in-batch': pairs, 'accumulated': {**pairs, 'batch_size': 2, 'accumulation': 2}}
    made |= {'without-negatives': {**pairs, 'negatives': 0, 'data': data['same']}, 'cached': {**pairs, **learned}}
    made |= {'decoder': {**pairs, **of_decoder}, 'retromae': {**texts, 'accumulation': 2}}
    made |= {'retromae-checkpointed': {**texts, 'gradient_checkpointing': True}, 'late': late}
    made |= {'generator': {**sft, 'warmup_steps': 0, 'max_tokens': 256, 'held_out': 0.0}}
    made |= {'reranker': {**ranked, 'max_tokens': 24}, 'aligned': {**align, 'panel': {'every': 2}}, 'joint': joint}
    made |= {
        'aligned-cached': {**align, 'gradient_cache': 2, 'keep_vectors': True},
        'scores': {**align, 'distance': 'scores'},
    }
    return made | {'sparse': {**sparse, 'cross_device': False}, 'priced': sparse}


def in_two_processes(settings: list[dict], folder: Path):
    "Train all in one world of two processes, as `torchrun` starts them."
    given = write_lines(folder / 'all.json', [json.dumps(settings)])
    script = 'import json, sys; from medir_nb.trainer import train; [train(s) for s in json.load(open(sys.argv[1]))]'
    how = ['--nproc-per-node', '2', '--master-addr', '127.0.0.1', '--master-port', str(free_port())]
    command = [sys.executable, '-m', 'torch.distributed.run', *how, write_lines(folder / 'all.py', [script]), given]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-5000:]


@pytest.mark.slow
def test_two_processes_have_the_batch_and_the_curve_of_one(rows, data, tmp_path):
    trainings = kinds(data)
    assert {settings['task'] for settings in trainings.values()} == {*TRAINING_KINDS}
    in_two_processes([{**settings, 'output': f'two-{name}'} for name, settings in trainings.items()], tmp_path)
    for name, settings in trainings.items():
        alone = name in ('late', 'sparse', 'priced')  # a process compares, or prices, its own half of a batch
        halves = {'batch_size': 2, 'accumulation': 2} if name in ('late', 'sparse') else {}
        one = train({**settings, **halves, 'output': name})
        two = t.progress.read_trained(core.checkpoint_folder(f'two-{name}'))
        assert checkpoint_record(f'two-{name}')['processes'] == 2 and one.steps == two.steps == 5, name
        assert one.counts == two.counts, name
        # where the weights are the same, either machine finds the checkpoint of the other
        same = checkpoint_record(name)['revision'] == checkpoint_record(f'two-{name}')['revision']
        assert same != alone, name
        if name == 'priced':
            continue
        np.testing.assert_allclose(two.history.loss, one.history.loss, rtol=1e-5, err_msg=name)
        told = [column for column in one.history if column.startswith(('loss_', 'encoder_', 'decoder_', 'temperature'))]
        np.testing.assert_allclose(two.history[told], one.history[told], rtol=1e-4, err_msg=name)


@pytest.mark.slow
def test_a_training_on_a_cluster_has_the_curve_of_one_process_also_when_a_node_is_lost(
    rows, data, tmp_path, monkeypatch
):
    pytest.importorskip('ray', reason='Ray is not installed: pip install "medir_nb[ray]"')
    from ray_cluster import cluster_of

    settings = {**kinds(data)['in-batch'], 'max_steps': 200, 'save_steps': 20}
    one, lost = train({**settings, 'output': 'one'}), []

    def lose(lines, now=False):
        if lines[-1]['step'] > 30 and not lost:
            lost.append(next(node for node in nodes.at_work('RayTrainWorker').values() if node in nodes.others))
            nodes.remove(lost[0])

    with cluster_of(4, tmp_path) as nodes:
        monkeypatch.setenv('MEDIR_ENGINE', f'ray:{nodes.cluster.address}')
        two = train({**settings, 'output': 'two', 'processes': 2}, watch=lose)
    assert lost and checkpoint_record('two')['processes'] == 2
    np.testing.assert_allclose(two.history.loss, one.history.loss, rtol=1e-3, atol=1e-6)
    assert one.counts == two.counts and one.steps == two.steps == 200


def stop_at_three(lines, now=False):
    if lines[-1]['step'] == 3 and not now:
        raise KeyboardInterrupt


@pytest.mark.medium
@pytest.mark.parametrize('kind', 'cached decoder retromae generator reranker aligned aligned-cached joint'.split())
def test_a_stopped_training_of_each_kind_goes_on_to_the_same_end(rows, data, kind, monkeypatch):
    monkeypatch.setenv('MEDIR_PROCESSES', '1')
    settings = {**kinds(data)[kind], 'save_steps': 2}
    whole = train({**settings, 'output': 'whole'})
    with pytest.raises(KeyboardInterrupt):
        train({**settings, 'output': 'own'}, watch=stop_at_three)
    done = train({**settings, 'output': 'own'})
    beside = ['seconds', 'tokens_per_second']
    assert done.history.drop(columns=beside).equals(whole.history.drop(columns=beside)) and done.counts == whole.counts
    for file in sorted(whole.folder.rglob('*.safetensors')):
        assert file.read_bytes() == (done.folder / file.relative_to(whole.folder)).read_bytes(), file.name


def in_a_world(monkeypatch, size: int):
    monkeypatch.setenv('WORLD_SIZE', str(size))
    monkeypatch.setenv('RANK', '0')


@pytest.mark.parametrize('world', [1, 2, 8])
def test_the_batches_of_the_paper_are_those_of_all_processes(monkeypatch, world):
    in_a_world(monkeypatch, world)
    monkeypatch.setattr('torch.cuda.is_available', lambda: True)  # for fp16
    paper = {'backbone': 'minilm', 'name': 'y', 'printed': 'query', 'devices': 0}
    config = tower_settings(paper, data=dict.fromkeys(('retromae', 'unsupervised', 'supervised'), 'x.jsonl'))
    rows_a_step = {}
    for name in config.stages:
        task = 'retromae' if name == 'retromae' else 'contrastive'
        settings = training_config({'model': 'minilm', **stage_settings(config, name)}, task)
        made = training_arguments(settings, Path('work'))
        rows_a_step[name] = made['per_device_train_batch_size'] * made['gradient_accumulation_steps'] * world
    assert rows_a_step == {'retromae': 384, 'unsupervised': 19_200, 'supervised': 640}


def test_processes_that_were_not_started_are_refused(monkeypatch):
    config = lambda rows: training_config({**NAMED, 'batch_size': rows, 'processes': 8}, 'contrastive')
    refuses(lambda: config(12), 'a batch of 12 is not cut for 8 processes; write a multiple of 8')
    in_a_world(monkeypatch, 2)
    refuses(lambda: config(640), '8 processes are asked for, and 2 were started; start 8')
    tower = {'backbone': 'minilm', 'name': 'y', 'stages': ['supervised'], 'data': {'supervised': 'x.jsonl'}}
    refuses(lambda: train({**tower, 'task': 'tower'}), 'tower has several stages', 'leave torchrun out')


def test_a_machine_trains_on_all_its_gpus(monkeypatch, capsys):
    monkeypatch.delenv('MEDIR_PROCESSES')
    for gpus, batch, processes in ((0, 640, 1), (1, 640, 1), (8, 640, 8), (8, 12, 6), (3, 640, 2)):
        monkeypatch.setattr('torch.cuda.device_count', lambda gpus=gpus: gpus)
        config = training_config({**NAMED, 'batch_size': batch}, 'contrastive')
        assert processes_to_start(config) == processes_of(config) == processes
        tell_idle(config, processes)
        told = capsys.readouterr().err
        assert (f'{processes} of {gpus} devices train' in told) == (processes < gpus)
    config = training_config({**NAMED, 'batch_size': 640, 'processes': 8}, 'contrastive')
    refuses(lambda: processes_to_start(config), '8 processes want a GPU each, and 3 can be seen')
    monkeypatch.setenv('MEDIR_PROCESSES', '2')
    assert devices_here() == 2


def small(data, output='own', **settings):
    steps = {'learning_rate': 1e-3, 'batch_size': 4, 'negatives': 2}
    return {'model': 'tiny', 'data': data, 'output': output, **steps, 'processes': 2, **settings}


@pytest.mark.medium
def test_a_call_trains_in_two_processes_and_opens_what_they_left(rows, data, home):
    "Under --private, with a row that only a block of this process has, and a watch that only this process can draw."
    seen = []
    calm = {**core.registry('models')['tiny'], 'query_template': 'ask: {text}'}
    with core.nothing_leaves() as record, core.rows('models', {'tiny-asked': calm}):
        settings = small(data['pairs'], model='tiny-asked', max_steps=4)
        two = train_encoder(settings, watch=lambda lines, now=False: seen.append((len(lines), now)))
        assert core.private_report(record)['refused'] == {}
        one = train_encoder(settings, processes=1)
        alone = train_encoder(settings, processes=1, output='alone')
    assert not two.reused and one.reused and checkpoint_record('own')['processes'] == 2
    np.testing.assert_allclose(two.history.loss, alone.history.loss, rtol=1e-5)
    assert two.counts == alone.counts and seen[-1] == (4, True)
    assert not list(log_folder(t.progress.work_folder(home / 'checkpoints' / 'own', 'key')).parent.iterdir())


@pytest.mark.medium
def test_a_fault_of_one_process_is_one_line(rows, data, home):
    with pytest.raises(MedirError) as told:
        train_encoder(small(data['pairs'], learning_rate=1e30, max_steps=6))
    said = str(told.value)
    assert 'training of own: the loss is nan at step' in said and 'lower the learning rate' in said, said
    logs = Path(said.rpartition('what the processes said is kept in ')[2])
    assert len(list(logs.glob('said/*/attempt_0/*/stderr.log'))) == 2


def running(folder: Path) -> list[str]:
    lines = []
    for file in Path('/proc').glob('[0-9]*/cmdline'):
        with contextlib.suppress(OSError):
            lines.append(file.read_bytes().replace(b'\0', b' ').decode(errors='replace'))
    return [line for line in lines if str(folder) in line]


def stopped(settings: dict, trained: Path, stop) -> Path:
    "Where the steps of a training lie whose parent was stopped under way."
    call = 'import json, sys; from medir_nb.trainer import train_encoder; train_encoder(json.loads(sys.argv[1]))'
    parent = subprocess.Popen([sys.executable, '-c', call, json.dumps(settings)], stderr=subprocess.DEVNULL)

    def steps() -> int:
        files = [work / 'metrics.jsonl' for work in t.progress.work_folders(trained / 'own')]
        return len(t.read_metrics(files[-1])) if files else 0

    wait_for(lambda: steps() >= 15, parent, seconds=240)
    assert parent.poll() is None and len(running(trained)) >= 3  # the launcher and both processes
    parent.send_signal(stop)
    parent.wait()
    wait_for(lambda: not running(trained), seconds=40)
    return t.progress.work_folders(trained / 'own')[-1]


@pytest.mark.medium
@pytest.mark.parametrize('stop', [signal.SIGKILL, signal.SIGINT])
def test_a_parent_that_ends_leaves_no_process(rows, data, home, stop):
    trained = home / 'checkpoints'
    work = stopped(small(data['pairs'], max_steps=2000, save_steps=10), trained, stop)
    assert t.safe_training.last_checkpoint(work)[0] >= 10 and not (trained / 'own').exists()


@pytest.mark.slow
def test_a_killed_training_of_two_processes_goes_on_to_the_same_end(rows, data, home):
    settings = small(data['pairs'], learning_rate=1e-4, max_steps=200, save_steps=10)
    work = stopped(settings, home / 'checkpoints', signal.SIGKILL)
    saved = t.safe_training.last_checkpoint(work)[0]
    done = train_encoder(settings)
    whole = train_encoder({**settings, 'output': 'whole', 'processes': 1})
    assert 10 <= saved < done.steps == 200 and done.history.step.tolist() == list(range(1, 201))
    np.testing.assert_allclose(done.history.loss, whole.history.loss, rtol=1e-3)
    assert done.counts == whole.counts
