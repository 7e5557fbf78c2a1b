"MedTEB's tables: which registry row each printed system is, before its tuning and after."

import dataclasses, inspect, re
from pathlib import Path
import pytest, yaml
from medir_nb.benchmark import ModelJudge
from medir_nb.core import registry
from medir_nb.ledger import means_of, paper_tasks, printed_expression, published
from medir_nb.miner import Lists, diversify
from medir_nb.trainer import pair
from medir_nb.trainer.alignment import JointSettings
from medir_nb.trainer.contrastive import ContrastiveSettings
from medir_nb.trainer.retromae import RetroMAESettings

ROOT = Path(__file__).parents[1]
PRESETS = {
    name: yaml.safe_load((ROOT / f'params/medteb_evaluation/{name}.yaml').read_text(encoding='utf-8'))
    for name in ('mini', 'paper')
}


def expressions(table):
    "Printed system → its expression, rows that are no system left out."
    cells = published('mar', table)
    cells = cells[cells.measure.notna() & ~cells.system.str.startswith(('Average', '('))]
    return {cell.system: printed_expression(cell) for cell in cells.itertuples()}


@pytest.mark.parametrize('table, count', [('Table 9', 14), ('Table 3', 13), ('Table 4', 5)])
def test_every_printed_system_has_a_row(table, count):
    found = expressions(table)
    assert len(found) == count == len(set(found.values())) and set(found.values()) <= set(registry('models'))


def test_a_name_of_table_3_is_the_tuned_model_and_nobody_elses():
    before, after = expressions('Table 9'), expressions('Table 3')
    both = set(before) & set(after)
    assert len(both) == 11 and all(after[name] == f'{before[name]}-medteb' for name in both)
    models = registry('models')
    for name in both:
        plain, tuned = models[before[name]], models[after[name]]
        assert tuned['checkpoint'] == after[name] and 'checkpoint' not in plain
        assert [tuned[field] for field in ('params', 'pooling')] == [plain[field] for field in ('params', 'pooling')]


def test_sizes_are_the_printed_ones():
    cells = published('mar', 'Table 9').drop_duplicates('system')
    printed = {cell.system: cell.variant.removeprefix('params ').partition(';')[0] for cell in cells.itertuples()}
    rows = registry('models')
    assert all(rows[row]['size'] == printed[name] for name, row in expressions('Table 9').items())


def test_the_paper_preset_names_all_of_them():
    paper = PRESETS['paper']
    assert set(paper['systems']) == set(expressions('Table 9').values())
    assert {f'{name}-medteb' for name in paper['tuned']} | {'mar-4b', 'mar-8b'} == set(expressions('Table 3').values())
    assert set(expressions('Table 4').values()) == set(paper['own_systems'])
    assert sorted(paper['tasks']) == sorted(paper_tasks('mar')) and set(PRESETS['mini']['tasks']) <= set(paper['tasks'])


def test_figure_1_draws_what_is_clocked_and_scored_the_pairs_among_it():
    paper = PRESETS['paper']
    assert set(paper['speed_systems']) <= {*paper['systems'], *paper['own_systems']}
    assert paper['asymmetric'] == ['mar-4b', 'mar-8b'] and set(paper['asymmetric']) <= set(paper['speed_systems'])


@pytest.mark.parametrize('preset', ['smoke', 'demo', 'mini', 'paper'])
def test_whom_a_pool_favours_can_be_told_of_each_of_its_retrievers(preset):
    told = yaml.safe_load((ROOT / f'params/medteb_construction/{preset}.yaml').read_text(encoding='utf-8'))
    assert set(told['retrievers']) <= set(told['systems']) and told['audit_retriever'] in told['retrievers']


def test_the_row_of_a_pair_is_as_long_as_its_queries():
    rows = registry('models')
    assert {rows[name]['dim'] for name in ('mar-4b', 'mar-8b')} == {rows['medical-embedder-base']['dim']} == {768}


def test_printed_means_of_groups_are_known():
    means = means_of('mar')
    assert sorted(means['Avg CMed'] + means['Avg. New']) == sorted(means['Avg(5 tasks)'])


def test_rows_that_run_code_of_a_checkpoint_say_so():
    rows = registry('models')
    own = {name for name in expressions('Table 9').values() if rows[name]['remote_code']}
    assert own == {'gte-multilingual-base', 'gte-qwen2-1.5b-instruct', 'gte-qwen2-7b-instruct'}
    assert {rows[name].get('environment', '') for name in own} == {'', 'gte-qwen2'}


def test_what_the_paper_leaves_open_is_a_setting_that_exists():
    text = (ROOT / 'docs/protocols/mar.md').read_text(encoding='utf-8')
    table = text.partition('What is open about training')[2].split('\n\n')[1].splitlines()[2:]
    named = {name for line in table for name in re.findall(r'`(\w+)[^`]*`', line.split('|')[2])}
    notebooks = ('mar_ablations', 'mar_pretraining')
    presets = [yaml.safe_load((ROOT / f'params/{n}/paper.yaml').read_text(encoding='utf-8')) for n in notebooks]
    notebook = (ROOT / 'nbs/papers/mar_ablations.ipynb').read_text(encoding='utf-8')
    settings = (RetroMAESettings, JointSettings, ContrastiveSettings, pair.PairSettings)
    known = {name for kind in settings for name in kind.model_fields} | {
        each.name for each in dataclasses.fields(Lists)
    }
    known |= {*inspect.signature(diversify).parameters, *inspect.signature(ModelJudge).parameters, *vars(pair)}
    known |= {*re.findall(r'"(\w+): ', notebook), *(key for preset in presets for key in preset)}
    known |= {'diversify', 'Lists', *notebooks}
    assert len(table) == 14 and len(named) > 25 and named <= known, named - known
