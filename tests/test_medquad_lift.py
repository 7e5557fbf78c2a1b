"""Stage II has to help on real questions: MiniLM on MedQuAD, split by source document, near-duplicate answers dropped, three
seeds; and what it forgets of NFCorpus and PubMedQA. About an hour on two quiet cores, a quarter of an hour of CPU time a training at most."""

import time
import pandas as pd, pytest
from conftest import write_beir
from medir_nb.core import to_markdown
from medir_nb.data import Duplicates, load_task, split_by_group, without_duplicates
from medir_nb.data.readers import json_lines
from medir_nb.evaluator import compare, evaluate
from medir_nb.trainer import train_retriever

SEEDS = (0, 1, 2)
MOST_CPU_SECONDS = 15 * 60
LEAST_GAIN = 0.02  # nDCG@10 on held-out questions
MOST_FORGOTTEN = 0.04  # nDCG@10 of NFCorpus: above the spread of seeds, far below what a ruined encoder loses (0.3)
STEPS, BATCH = 60, 32
TUNING = dict(batch_size=BATCH, max_steps=STEPS, learning_rate=1e-4, warmup_ratio=0.1, temperature=0.05)
TUNING |= dict(max_query_tokens=32, max_document_tokens=128, save_steps=0, logging_steps=10)


def focus_of_queries(folder):
    "Query id → what its page is about; pages of several institutes about one disease count as one."
    rows = (row for row, _ in json_lines(folder / 'queries.jsonl'))
    return {row['_id']: row['focus'].strip().lower() or f'{row["source"]} without a focus' for row in rows}


def split_medquad(folder, limit=None):
    "What may be trained on, and what is held out."
    whole = without_duplicates(load_task(folder, limit=limit), Duplicates(near=0.8))
    return split_by_group(whole, focus_of_queries(folder), share=0.3)  # so many that the search is hard


def written(task, folder):
    "A task in BEIR's layout, which a row of tuning.yaml reads in place of the whole set."
    documents = [(doc_id, '', text) for doc_id, text in zip(task.corpus.ids, task.corpus.texts(), strict=True)]
    queries = zip(task.queries.ids, task.queries.texts(), strict=True)
    return write_beir(folder, documents, queries, task.qrels.itertuples(index=False))


def tuned(rest, folder, seed, **tuning):
    "MiniLM after stage II alone, all its weights trained, and the CPU seconds that this took."
    tuning = {**TUNING, **tuning}
    rows = tuning['batch_size'] * tuning['max_steps']  # each is seen once
    start = time.process_time()
    retriever = train_retriever(
        backbone='minilm',
        name=f'minilm-medquad-{seed}',
        stages=['tuning'],
        tuning_data={'sets': ['medquad'], 'paths': {'medquad': str(rest)}, 'limit': rows, 'miner': 'minilm', 'top': 30},
        reading={'similarity': 'cos', 'query_template': '', 'document_template': ''},  # as MiniLM was trained
        lora=None,
        tuning=tuning,
        data_folder=str(folder / f'data-{seed}'),
        seed=seed,
    )
    return retriever, time.process_time() - start


def gains(task, names, systems_before='minilm'):
    "A row a trained system: its difference to MiniLM, with interval and p."
    before = evaluate(task, systems_before, ['nDCG@10'])
    found = [compare(before, evaluate(task, name, ['nDCG@10']), show=0) for name in names]
    columns = ('b', 'difference', 'low', 'high', 'p', 'wins', 'losses', 'n_queries')
    frame = pd.DataFrame([{name: getattr(each, name) for name in columns} for each in found])
    return frame.assign(task=task.name, before=before.mean('nDCG@10'))


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp('medquad')


@pytest.fixture(scope='module')
def once():
    "What the tests of this module share: the split, and the names of the trained checkpoints."
    return {}


@pytest.fixture
def split(medir_data, folder, once, monkeypatch):
    monkeypatch.setenv('MEDIR_HOME', str(folder / 'home'))
    if not (medir_data / 'medquad_qa').is_dir():
        pytest.skip('$MEDIR_DATA has no medquad_qa')
    if 'split' not in once:
        once['split'] = split_medquad(medir_data / 'medquad_qa')
    return once['split']


@pytest.fixture
def names(split, folder, once):
    "The checkpoints of the three seeds."
    if 'names' not in once:
        rest = written(split[0], folder / 'rest')
        trained = [tuned(rest, folder, seed) for seed in SEEDS]
        once['names'] = [retriever.checkpoints['tuning'] for retriever, _ in trained]
        once['cpu'] = [seconds for _, seconds in trained]
    return once['names']


@pytest.mark.slow
def test_neither_a_page_nor_an_answer_is_on_both_sides(split):
    rest, held_out = split
    assert not set(rest.groups.values()) & set(held_out.groups.values())
    assert not set(rest.corpus.ids) & set(held_out.corpus.ids)
    assert not set(rest.queries.texts()) & set(held_out.queries.texts())
    again = Duplicates(near=0.8)
    documents = without_duplicates(rest, again), without_duplicates(held_out, again)
    # the index estimates likeness: a few pairs near 0.8 are met in one order and missed in the other
    assert [len(part.corpus) for part in documents] == [
        pytest.approx(len(part.corpus), rel=0.01) for part in (rest, held_out)
    ]
    assert len(held_out.queries) > 3000 and len(rest.queries) > 2 * len(held_out.queries)


@pytest.mark.slow
def test_stage_two_lifts_held_out_questions(split, names, once, capsys):
    frame = gains(split[1], names)
    with capsys.disabled():
        print('\n' + to_markdown(frame.assign(cpu_minutes=[seconds / 60 for seconds in once['cpu']]), 4))
    assert max(once['cpu']) <= MOST_CPU_SECONDS
    assert (frame.difference >= LEAST_GAIN).all() and (frame.p < 0.05).all()


@pytest.mark.slow
@pytest.mark.parametrize('name', ['nfcorpus', 'pubmedqa_pqal'])
def test_stage_two_forgets_little(name, medir_data, names, capsys):
    "Of titles that ask for abstracts, and of questions that ask for the abstract that answers them (nearest here to SciFact)."
    if not (medir_data / name).is_dir():
        pytest.skip(f'$MEDIR_DATA has no {name}')
    source = name if name == 'nfcorpus' else medir_data / name
    frame = gains(load_task(source, limit=1500), names)
    with capsys.disabled():
        print('\n' + to_markdown(frame, 4))
    assert frame.before.iloc[0] > 0.3  # untuned; a pool is easier than the whole (NFCorpus: 0.316)
    assert frame.difference.mean() >= -MOST_FORGOTTEN and frame.difference.min() >= -1.5 * MOST_FORGOTTEN
