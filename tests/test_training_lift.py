"""A training that has to help: MiniLM on pairs mined from HPO, three seeds. About four minutes a training on one core; the whole collection (16,449 definitions) is encoded in bf16, for all systems alike."""

import pandas as pd, pytest
from conftest import write_lines
from medir_nb.core import to_markdown
from medir_nb.data.ontology import _hpo_file
from medir_nb.data import load_task, read_obo
from medir_nb.evaluator import evaluate
from medir_nb.trainer import train_encoder

SEEDS = (0, 1, 2)


def mined(split, path):
    "Pairs (name or layperson synonym → definition) of the terms of a training split, as JSON lines."
    terms, _ = read_obo(_hpo_file('hp.obo'))
    chosen = [terms[i] for i in load_task('hpo-lay', split).corpus.ids]
    return write_lines(path, [{'query': word, 'pos': [t.definition]} for t in chosen for word in (t.name, *t.lay)])


def trained(split, seed, folder):
    "A MiniLM after 60 steps of 32 pairs, in-batch negatives alone."
    data = folder / f'{split}.jsonl'
    if not data.exists():
        mined(split, data)
    return train_encoder(
        model='minilm',
        data=data,
        output=f'{split}-{seed}',
        seed=seed,
        max_steps=60,
        batch_size=32,
        negatives=0,
        learning_rate=2e-4,
        warmup_ratio=0.1,
    )


def scores(task, systems, dtype=None):
    return pd.DataFrame(
        [
            {
                'task': task,
                'system': s,
                'dtype': dtype or 'fp32',
                'nDCG@10': evaluate(task, s, ['nDCG@10'], dtype=dtype).mean('nDCG@10'),
            }
            for s in systems
        ]
    )


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp('lift')


@pytest.fixture
def kept(folder, monkeypatch):
    monkeypatch.setenv('MEDIR_HOME', str(folder / 'home'))


@pytest.mark.slow
def test_training_lifts_held_out_queries(folder, kept, capsys):
    names = [trained(split, seed, folder).folder.name for split in ('train', 'train-kin') for seed in SEEDS]
    frame = scores('hpo-lay', ['minilm', *names])
    with capsys.disabled():
        print('\n' + to_markdown(frame))
    lift = frame['nDCG@10'] - frame['nDCG@10'].iloc[0]
    # terms of the test split are in neither training; of their kin (parents, children, siblings) the second has none: it is shown, whatever it says
    assert lift[1 : 1 + len(SEEDS)].mean() >= 0.05 and lift[1 : 1 + len(SEEDS)].min() > 0


@pytest.mark.slow
def test_the_whole_collection_is_reported(folder, kept, capsys):
    frame = scores(
        'hpo-lay-full',
        ['minilm', *(trained(split, seed, folder).folder.name for split in ('train', 'train-kin') for seed in SEEDS)],
        'bf16',
    )
    with capsys.disabled():
        print('\n' + to_markdown(frame))
    assert frame['nDCG@10'].between(0, 1).all() and frame['nDCG@10'].nunique() == len(frame)
