"MedTEB's tables: which registry row each printed system is, before its tuning and after."

import dataclasses, inspect, json, re
from pathlib import Path
import pandas as pd
import pytest, yaml
from medir_nb.judging import LexicalJudge, ModelJudge, judges_from, reannotation
from medir_nb.core import MedirError, registry
from medir_nb.data import load_task
from medir_nb.evaluator import interval, measure_throughput, tell_not_run, throughput_table
from medir_nb.papers import means_of, paper_tasks, printed_expression, published, with_interval
from medir_nb.trainer import diversify, Lists, pair
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


def test_figure_1_draws_the_papers_axis_and_every_tuned_system_of_tables_3_and_4():
    paper = PRESETS['paper']
    printed = {*expressions('Table 3').values(), *expressions('Table 4').values()}
    assert set(paper['speed_systems']) == printed and len(printed) == 16
    scored = {*(f'{name}-medteb' for name in paper['tuned']), *paper['own_systems']}
    assert printed <= scored and paper['speed_task'] == 'medteb-retrieval' in paper['tuned_tasks']
    assert {'medical-embedder-4b', 'medical-embedder-8b'} <= printed
    assert paper['asymmetric'] == ['mar-4b', 'mar-8b']


def cells_of(name):
    "The code of a paper notebook, cell by cell."
    cells = json.loads((ROOT / f'nbs/papers/{name}.ipynb').read_text(encoding='utf-8'))['cells']
    return [''.join(cell['source']) for cell in cells if cell['cell_type'] == 'code']


def prose_of(name):
    cells = json.loads((ROOT / f'nbs/papers/{name}.ipynb').read_text(encoding='utf-8'))['cells']
    return '\n'.join(''.join(cell['source']) for cell in cells if cell['cell_type'] == 'markdown')


def cell_with(name, part):
    (cell,) = [cell for cell in cells_of(name) if part in cell]
    return cell


def test_without_the_task_of_figure_1_nothing_is_clocked_and_the_notebook_says_so(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv('MEDIR_DATA', str(tmp_path))
    known = {'MedirError': MedirError, 'measure_throughput': measure_throughput, 'throughput_table': throughput_table}
    known |= {'speed_systems': ['minilm'], 'speed_task': 'medteb-retrieval', 'options': {'home_folder': tmp_path}}
    exec(cell_with('medteb_evaluation', 'measure_throughput(speed_systems'), known | dict.fromkeys(SPEED, 1))
    said = capsys.readouterr().out
    assert said.startswith('nothing is clocked: ') and '$MEDIR_DATA/medteb-retrieval' in said


SPEED = ('speed_queries', 'speed_rounds', 'speed_batch')


def test_what_the_page_says_of_means_is_within_half_a_printed_unit():
    "The stored table of group means beside the printed ones: no second digit that contradicts the paper."
    cells = json.loads((ROOT / 'nbs/papers/medteb_evaluation.ipynb').read_text(encoding='utf-8'))['cells']
    (cell,) = [cell for cell in cells if ''.join(cell['source']).startswith('by_group.round(')]
    lines = ''.join(cell['outputs'][0]['data']['text/plain']).splitlines()[2:]
    stored = {line.split()[0]: [float(number) for number in line.split()[1:3]] for line in lines}
    cells9 = published('mar', 'Table 9')
    printed = cells9[cells9.dataset.isin(['Avg CMed', 'Avg. New']) & ~cells9.system.str.startswith('Average')]
    printed = printed.pivot(index='system', columns='dataset', values='value')
    assert len(stored) == len(printed) == 14
    for system, row in printed.iterrows():
        assert stored[system] == pytest.approx(row[['Avg CMed', 'Avg. New']].tolist(), abs=0.005 + 1e-9), system


def test_sentences_of_the_evaluation_are_the_papers():
    prose = prose_of('medteb_evaluation')
    # one of three sentences stands beside a query, and the third has no synonym (section 3.1)
    assert 'with a synonym of the term (yes)' in prose and 'with the term itself (both no)' in prose
    # Table 19 has no row of negatives
    assert '7 hard negatives' not in prose and 'How many hard negatives a row has is not printed' in prose
    assert '512 tokens' in prose  # appendix G


# ---------------------------------------------------------------- the construction, and Table 13


def test_table_13_is_judged_again_on_both_benchmarks_before_any_pool():
    paper = yaml.safe_load((ROOT / 'params/medteb_construction/paper.yaml').read_text(encoding='utf-8'))
    printed = published('mar', 'Table 13')
    assert set(paper['audit_tasks']) == set(printed.task) == {'cmirb-medical', 'cmirb-cmedqa'}
    assert set(printed.variant) == {f'top-{paper["audit_k"]} from {paper["audit_retriever"]}'}
    assert paper['audit_judges'] == [{'kind': 'model', 'model': 'gpt-4o'}]
    cells = cells_of('medteb_construction')
    (again,) = [number for number, cell in enumerate(cells) if ' reannotation(' in cell]
    (pool,) = [number for number, cell in enumerate(cells) if 'built = build_benchmark(' in cell]
    assert again < pool


def test_table_13_needs_no_pool_and_goes_on_without_a_benchmark_that_is_not_here(capsys, home, monkeypatch, tmp_path):
    monkeypatch.setenv('MEDIR_OUT', str(tmp_path))
    cell = cell_with('medteb_construction', ' reannotation(')
    known = {'audit_tasks': ['hpo-lay', 'medteb-retrieval', 'zh-lay'], 'audit_retriever': 'bm25', 'audit_k': 5}
    known |= {'audit_judges': [{'kind': 'lexical', 'threshold': 0.5}], 'panel_of': judges_from, 'limit': 60}
    known |= {'cut': 'A', 'unread': 'discard', 'options': {}, 'MedirError': MedirError, 'load_task': load_task}
    known |= {
        'tell_not_run': tell_not_run,
        'reannotation': reannotation,
        'with_interval': with_interval,
        'interval': interval,
        'pd': pd,
    }
    exec(cell, known)
    assert known['table13'].task.tolist() == ['hpo-lay[limit=60]', 'zh-lay[limit=60]']
    assert capsys.readouterr().out.startswith('medteb-retrieval: not judged again: ')
    (told,) = json.loads((tmp_path / 'not_run.json').read_text(encoding='utf-8'))
    assert told['task'] == 'medteb-retrieval'


def test_a_pair_that_no_judge_read_is_left_out_of_a_reannotation(home):
    class Silent(LexicalJudge):
        name = 'silent'

        def grade(self, task, pairs):
            return [('', 'refused')] * len(pairs)

    task, panel = load_task('hpo-lay', limit=60), [LexicalJudge(0.5), Silent(0.5)]
    left = [reannotation(task, 'bm25', panel, k=5, unread=way)[0]['left out'][0] for way in ('discard', 'ignore')]
    assert left[0] > 0 == left[1]


def test_each_recipe_has_a_notebook_and_each_leads_to_the_other():
    medteb, cmirb = (cells_of(name) for name in ('medteb_construction', 'cmirb_construction'))
    assert not any('build_cmirb' in cell or 'cmirb_model' in cell for cell in medteb)
    assert not any('build_benchmark' in cell for cell in cmirb) and any(' build_cmirb(' in cell for cell in cmirb)
    assert '](cmirb_construction.ipynb)' in prose_of('medteb_construction')
    assert '](medteb_construction.ipynb)' in prose_of('cmirb_construction')
    sizes = {path.stem for path in (ROOT / 'params/cmirb_construction').glob('*.yaml')}
    assert sizes == {'smoke', 'demo', 'mini', 'paper'}
    paper = yaml.safe_load((ROOT / 'params/cmirb_construction/paper.yaml').read_text(encoding='utf-8'))
    # the two tasks that Algorithm 1 made, and the release's model
    assert paper['tasks'] == ['cmirb-medexam', 'cmirb-dubaike'] and paper['model'] == 'gpt-4o-mini'
    assert registry('llms')['gpt-4o-mini']['hub'] == 'gpt-4o-mini-2024-07-18'


def test_what_differs_of_the_construction_is_its_demos():
    demo = yaml.safe_load((ROOT / 'params/medteb_construction/demo.yaml').read_text(encoding='utf-8'))
    prose = prose_of('medteb_construction')
    assert {judge.get('batch') for judge in demo['judges'] + demo['gold_judges']} == {None, 12}
    assert 'Passages a call are not printed: twelve in the demo' in prose and ModelJudge('smollm2').batch == 10
    # section 3.1 says of the benchmark that it is anonymised, Figure 3 of the training data that they are washed
    assert 'were anonymised (section 3.1), those of its training data washed as well (Figure 3)' in prose


def test_what_the_page_on_cmirb_says_is_what_it_stores():
    tables = (ROOT / 'figures/cmirb_construction_tables.md').read_text(encoding='utf-8')
    outcomes = dict(re.findall(r'\| (not verified|no evidence|verified|no answer) +\| (\d+)', tables))
    lost = re.search(r'\| (\d+) +\| (\d+) +\| (\d+) +\| (\d+) +\| (\d+) +\|', tables.partition('# Where queries')[2])
    asked, among, _, verified, left = map(int, lost.groups())
    prose = prose_of('cmirb_construction')
    candidates = sum(map(int, outcomes.values()))
    assert f'Of {candidates} candidates of {asked} queries {outcomes["not verified"]} fail' in prose
    assert f'for {among} of {asked} queries, and the model verifies one for {verified}' in prose
    assert f'{left} of {asked}, ' in prose and outcomes['verified'] == '5' and 'and five pass' in prose


@pytest.mark.parametrize('preset', ['smoke', 'demo', 'mini', 'paper'])
def test_whom_a_pool_favours_can_be_told_of_each_of_its_retrievers(preset):
    told = yaml.safe_load((ROOT / f'params/medteb_construction/{preset}.yaml').read_text(encoding='utf-8'))
    assert set(told['retrievers']) <= set(told['systems'])


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
