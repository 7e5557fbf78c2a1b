"""Notebooks as experiments: checked parameters, receipts, batches that survive SIGKILL, plans that touch no network."""

import json, os, re, signal, socket, subprocess, sys, time
from pathlib import Path
import nbformat, pytest, yaml
from conftest import write_beir, write_lines
from medir_nb import core, workbook
from medir_nb.core import find_root, MedirError, parse_options
from medir_nb.workbook import (
    find_notebook,
    notebooks,
    output_folder,
    plan,
    read_batch,
    receipt_key,
    receipts,
    resolve,
    run_notebook,
    schema,
    valid_receipt,
)

REAL = find_root(Path(__file__).parent)
PARAMETERS = "tasks: list[str] = ['hpo-lay']\nn: int = 1\nlr: float = 1e-05\nmode: Literal['a', 'b'] = 'a'\nnote: str|None = None"
# each run leaves a line in its counter, so a test sees what really ran
COUNT = 'import os, time\nfrom pathlib import Path\nwith open(Path(os.environ["MEDIR_ROOT"])/"counter", "a") as f: f.write(f"{n}\\n")'


def write_notebook(root, name='toy', code='value = n * 2\nvalue', parameters=PARAMETERS, folder='nbs'):
    cells = [
        nbformat.v4.new_markdown_cell('# Toy', id='a'),
        nbformat.v4.new_code_cell('from typing import Literal', id='i'),
        nbformat.v4.new_code_cell(parameters, metadata={'tags': ['parameters']}, id='b'),
        nbformat.v4.new_code_cell(COUNT, id='c'),
        nbformat.v4.new_code_cell(code, id='d'),
    ]
    path = root / folder / f'{name}.ipynb'
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(
        nbformat.v4.new_notebook(
            cells=cells, metadata={'kernelspec': {'name': 'python3', 'display_name': 'python3', 'language': 'python'}}
        ),
        path,
    )
    return path


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


# ---------------------------------------------------------------- parameters


def test_schema_and_defaults(root):
    assert {k: v[1] for k, v in schema(find_notebook('toy')).items()} == {
        'tasks': ['hpo-lay'],
        'n': 1,
        'lr': 1e-5,
        'mode': 'a',
        'note': None,
    }
    assert resolve(find_notebook('toy'))['n'] == 1 and resolve(find_notebook('toy'), 'smoke')['n'] == 2
    assert resolve(find_notebook('toy'), 'smoke', {'n': 3, 'mode': 'b', 'note': 'x'}) == {
        'tasks': ['hpo-lay'],
        'n': 3,
        'lr': 1e-5,
        'mode': 'b',
        'note': 'x',
    }


@pytest.mark.parametrize(
    'given, said',
    [
        ({'task': ['x']}, "unknown parameter 'task' of toy; did you mean 'tasks'?"),
        ({'tasks': 'hpo-lay'}, "parameter 'tasks' is 'hpo-lay'"),
        ({'n': 1.5}, "parameter 'n' is 1.5"),
        ({'n': '2'}, "parameter 'n' is '2'"),
        ({'n': True}, "'n' is True"),
        ({'mode': 'c'}, "'mode' is 'c'"),
        ({'tasks': ['a', 1]}, "'tasks'"),
        ({'api_key': 'x'}, 'looks like a secret'),
        ({'HF_TOKEN': 'x'}, 'looks like a secret'),
    ],
)
def test_wrong_parameters_are_one_line(root, given, said):
    with pytest.raises(MedirError) as e:
        resolve(find_notebook('toy'), 'smoke', given)
    assert said in str(e.value) and '\n' not in str(e.value)


@pytest.mark.parametrize(
    'text, said',
    [
        ('n: [1, 2', 'smoke.yaml:'),
        ('n: 1\n  m: 2', 'smoke.yaml:2: malformed YAML'),
        ('- n', 'smoke.yaml'),
        ('n', 'smoke.yaml'),
        ('m: 2', "smoke.yaml: unknown parameter 'm' of toy; known: lr, mode, n"),
        ('n: two', "smoke.yaml: parameter 'n' is 'two'"),
        ('token: x', 'smoke.yaml'),
        ('n: "\x07"', 'smoke.yaml'),
    ],
    ids=['open', 'indent', 'list', 'word', 'unknown', 'type', 'secret', 'control'],
)
def test_a_wrong_preset_names_its_file(root, text, said):
    preset(root, text)
    with pytest.raises(MedirError) as e:
        resolve(find_notebook('toy'), 'smoke')
    assert said in str(e.value)


@pytest.mark.parametrize('number', ['1e-5', '0.00001', '1.0e-5'])
def test_a_small_number_may_be_written_in_any_way(root, number):
    assert resolve(find_notebook('toy'), None, parse_options([f'lr={number}']))['lr'] == 1e-5
    preset(root, f'lr: {number}')
    assert resolve(find_notebook('toy'), 'smoke')['lr'] == 1e-5


@pytest.mark.parametrize(
    'arguments, said',
    [
        (['toy', '--preset', 'smok'], "did you mean 'smoke'"),
        (['toi'], "did you mean 'toy'"),
        (['toy', '-p', 'n'], 'is no k=v'),
        (['toy', '-p', 'n=[1'], 'is no YAML'),
        (['toy', '-p', 'm=1'], "unknown parameter 'm'"),
    ],
)
def test_the_command_refuses_in_one_line(root, medir, arguments, said):
    ran = medir('run', *arguments)
    assert (
        ran.code == 2
        and said in ran.err
        and ran.err.count('\n') == 1
        and ran.err.startswith('medir: error: ')
        and not counted(root)
    )


@pytest.mark.parametrize(
    'parameters, said', [('x = 1', 'no annotated parameter'), ('x: int', 'no annotated parameter')]
)
def test_a_parameters_cell_is_annotated(root, parameters, said):
    with pytest.raises(MedirError, match=said):
        schema(write_notebook(root, 'bare', parameters=parameters))


def test_a_folder_without_notebooks_is_said(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv('MEDIR_ROOT', raising=False)
    with pytest.raises(MedirError, match='no workbook here'):
        notebooks()


def test_notebooks_lists_only_parameterised_ones(root):
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell('1')]), root / 'nbs' / 'plain.ipynb')
    write_notebook(root, 'deep', folder='nbs/papers')
    assert (
        set(notebooks()) == {'toy', 'deep'}
        and find_notebook(str(root / 'nbs' / 'toy.ipynb')) == root / 'nbs' / 'toy.ipynb'
    )
    write_lines(root / 'nbs' / 'broken.ipynb', ['{'])
    with pytest.raises(MedirError, match='not a notebook'):
        notebooks()


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


# ---------------------------------------------------------------- receipts


@pytest.mark.medium
def test_run_receipt_reuse_force_and_edited_output(root, home, medir):
    first = medir('run', 'toy', '--preset', 'smoke')
    assert first.code == 0 and first.out.startswith('executed ') and counted(root) == ['2'], first.err
    (receipt,) = receipts()
    output = Path(receipt['output'])
    assert (
        output.is_relative_to(home)
        and valid_receipt(receipt['key'])
        and receipt['preset'] == 'smoke'
        and receipt['parts']['parameters']['n'] == 2
    )
    assert any("'4'" in str(c.get('outputs')) for c in nbformat.read(output, 4).cells if c.cell_type == 'code')
    assert medir('run', 'toy', '--preset', 'smoke').out.startswith('unchanged since') and counted(root) == ['2']
    assert medir('run', 'toy', '-p', 'n=2').out.startswith(
        'unchanged since'
    )  # the same parameters, however they were given
    assert 'would not run again' in medir('plan', 'toy', '--preset', 'smoke').out
    assert '| yes ' in medir('status').out
    output.write_text(output.read_text().replace("'4'", "'5'").replace('"4"', '"5"'))
    assert valid_receipt(receipt['key']) is None and '| no' in medir('status').out
    assert medir('run', 'toy', '--preset', 'smoke').out.startswith('executed ') and counted(root) == ['2', '2']
    assert medir('run', 'toy', '--preset', 'smoke', '--force').out.startswith('executed ') and len(counted(root)) == 3
    output.unlink()
    assert valid_receipt(receipt['key']) is None


def test_the_key_changes_with_code_parameters_upstream_and_data(root, beir, monkeypatch, tmp_path):
    data = tmp_path / 'data'
    write_beir(data / 'nfcorpus')
    monkeypatch.setenv('MEDIR_DATA', str(data))
    path = find_notebook('toy')
    key = lambda upstream=(), **p: receipt_key(
        path, {**resolve(path, 'smoke'), 'tasks': ['nfcorpus', str(beir)], **p}, upstream
    )[0]
    first = key()
    assert key() == first and len({first, key(n=3), key(upstream=['x']), key(tasks=['hpo-lay'])}) == 4
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


def test_a_changed_model_folder_changes_the_key(root, tmp_path):
    path = write_notebook(root, 'dense', parameters="systems: list[str] = ['bm25']")
    model = tmp_path / 'model'
    write_lines(model / 'config.json', ['{}'])
    for system in (str(model), f'{model}(dtype=bf16)', f'rrf(bm25,{model})'):
        before = receipt_key(path, {'systems': [system]})[0]
        write_lines(model / 'config.json', [json.dumps(system)])
        assert receipt_key(path, {'systems': [system]})[0] != before, system


def test_a_torn_receipt_is_passed_over(root, home):
    write_lines(home / 'receipts' / 'toy-1.json', ['{"key": '])
    write_lines(home / 'receipts' / 'toy-2.json', [''])
    write_lines(home / 'receipts' / 'toy-3.json', ['[]'])
    assert receipts() == [] and valid_receipt('x') is None


def test_a_failing_notebook_names_the_cell_and_stays(root, home, medir):
    write_notebook(root, code='1 / 0')
    ran = medir('run', 'toy')
    assert ran.code == 2 and not receipts()
    last = ran.err.splitlines()[-1]
    assert (
        last.startswith('medir: error: ')
        and re.search(r'toy stopped in cell In \[\d+\]: ZeroDivisionError: division by zero', last)
        and 'Traceback' not in ran.out
    )
    (partial,) = (home / 'runs' / 'toy').rglob('*.ipynb')
    assert partial.name == 'toy.executing.ipynb' and str(partial) in last and 'ZeroDivisionError' in partial.read_text()
    assert 'no: running, stopped or failed' in medir('status').out
    write_notebook(root, code='n')
    assert medir('run', 'toy').code == 0


# the second holds characters that JSON and repr() write differently
@pytest.mark.parametrize(
    'secret', ['sk-0123456789abcdef', 'pass"word\\with-é', "it's-secret-\n"], ids=['plain', 'quoted', 'line end']
)
def test_secrets_of_the_environment_stay_out(root, home, monkeypatch, medir, secret):
    monkeypatch.setenv('MEDIR_TEST_KEY', secret)
    write_notebook(root, code='import os\nprint(os.environ["MEDIR_TEST_KEY"])\nos.environ["MEDIR_TEST_KEY"]')
    ran = medir('run', 'toy', '-p', f'note={json.dumps(secret)}')
    assert ran.code == 0, ran.err
    files = [p for p in home.rglob('*') if p.is_file() and p.suffix in ('.ipynb', '.json')]
    assert len(files) == 2
    spellings = {
        secret,
        repr(secret)[1:-1],
        *(json.dumps(s, ensure_ascii=a)[1:-1] for s in (secret, repr(secret)[1:-1]) for a in (True, False)),
    }
    assert not [(p.name, s) for p in files for s in spellings if s in p.read_text(encoding='utf-8')]
    assert '<MEDIR_TEST_KEY>' in next(p for p in files if p.suffix == '.ipynb').read_text(encoding='utf-8')


def test_a_printed_receipt_holds_no_secret(root, monkeypatch, medir):
    monkeypatch.setenv('MEDIR_TEST_KEY', 'sk-0123456789abcdef')
    ran = medir('run', 'toy', '-p', 'note=sk-0123456789abcdef', '--receipt')
    assert json.loads(ran.out)['parts']['parameters']['note'] == '<MEDIR_TEST_KEY>'


def test_secrets_stay_out_of_a_failed_notebook(root, home, monkeypatch, medir):
    monkeypatch.setenv('MEDIR_TEST_KEY', 'sk-0123456789abcdef')
    write_notebook(
        root, code='import os\nprint(os.environ["MEDIR_TEST_KEY"])\nraise ValueError(os.environ["MEDIR_TEST_KEY"])'
    )
    ran = medir('run', 'toy')
    assert (
        ran.code == 2
        and 'sk-0123456789abcdef' not in ran.err + ran.out + next((home / 'runs').rglob('*.ipynb')).read_text()
    )


def test_a_run_leaves_the_environment_as_it_was(root, home, tmp_path, monkeypatch):
    monkeypatch.setenv('MEDIR_OUT', str(tmp_path / 'mine'))
    before = dict(os.environ)
    write_notebook(
        root, code='from medir_nb.workbook import output_folder\n(output_folder("toy")/"table.md").write_text("x")'
    )
    receipt = run_notebook('toy', home_folder=tmp_path / 'elsewhere')
    assert list(receipt['files']) == ['table.md'] and Path(receipt['output']).is_relative_to(tmp_path / 'elsewhere')
    assert dict(os.environ) == before


def test_output_folder(home, monkeypatch, tmp_path):
    monkeypatch.delenv('MEDIR_OUT', raising=False)
    assert output_folder('toy') == home / 'out' / 'toy' and (home / 'out' / 'toy').is_dir()
    monkeypatch.setenv('MEDIR_OUT', str(tmp_path / 'o'))
    assert output_folder('toy') == tmp_path / 'o'


# ---------------------------------------------------------------- batches


def write_batch(root, text, name='all'):
    return write_lines(root / 'params' / 'batches' / f'{name}.yaml', text.splitlines())


@pytest.mark.parametrize(
    'text, said',
    [
        ('runs: []', 'no runs'),
        ('', 'no runs'),
        ('runs:\n- {notebook: toy, presett: smoke}', "did you mean 'preset'"),
        ('run:\n- {notebook: toy}', 'run'),
        ('workerss: 2\nruns:\n- {notebook: toy}', "did you mean 'workers'"),
        ('runs:\n- {notebook: toy, after: [0]}', 'stands before one it waits for'),
        ('runs:\n- {notebook: toi}', "did you mean 'toy'"),
        ('runs:\n- {notebook: toy, parameters: {m: 1}}', "unknown parameter 'm'"),
        ('runs: [', 'all.yaml:'),
        ('- a', 'all.yaml'),
        ('runs:\n- toy', 'all.yaml'),
        ('runs:\n- {preset: smoke}', 'all.yaml'),
        ('workers: many\nruns:\n- {notebook: toy}', 'all.yaml'),
        ('runs:\n- {notebook: toy}\n- {notebook: toy, after: 0}', 'all.yaml'),
        ('runs:\n- {notebook: toy}\n- {notebook: toy, after: [-1]}', 'all.yaml'),
    ],
)
def test_a_wrong_batch_is_refused_before_anything_runs(root, medir, text, said):
    write_batch(root, text)
    ran = medir('run', 'all')
    assert ran.code == 2 and said in ran.err and ran.err.count('\n') == 1 and not counted(root)


@pytest.mark.medium
def test_two_workers_after_and_a_failure(root, home, medir):
    write_notebook(root, 'bad', '1 / 0')
    write_notebook(
        root,
        code='start = time.time(); time.sleep(0.5); (Path(os.environ["MEDIR_OUT"])/"times").write_text(f"{start} {time.time()}")',
    )
    write_batch(
        root,
        'workers: 2\nruns:\n- {notebook: toy, parameters: {n: 10, lr: 0.001, note: "≈ 5: \\"x\\""}}\n- {notebook: bad}\n- {notebook: toy, parameters: {n: 11}}\n- {notebook: toy, parameters: {n: 12}, after: [0]}\n- {notebook: toy, parameters: {n: 13}, after: [1]}',
    )
    ran = medir('run', 'all')
    last = ran.err.splitlines()[-1]
    assert (
        ran.code == 2
        and '2 of 5 runs failed' in last
        and re.search(r'bad stopped in cell In \[\d+\]: ZeroDivisionError', ran.err)
    )
    assert sorted(counted(root)) == ['1', '10', '11', '12']  # 13 waits for the one that failed
    done = {r['parts']['parameters']['n']: r for r in receipts()}
    times = {n: [float(t) for t in (Path(r['output']).parent / 'times').read_text().split()] for n, r in done.items()}
    assert (
        set(done) == {10, 11, 12} and times[12][0] > times[10][1] and done[12]['parts']['upstream'] == [done[10]['key']]
    )
    assert done[10]['parts']['parameters'] == {
        'tasks': ['hpo-lay'],
        'n': 10,
        'lr': 0.001,
        'mode': 'a',
        'note': '≈ 5: "x"',
    }


@pytest.mark.medium
def test_a_batch_hands_on_small_numbers(root, home, medir):
    write_batch(root, 'runs:\n- {notebook: toy, parameters: {lr: 1.0e-6}}')
    ran = medir('run', 'all')
    assert ran.code == 0, ran.err
    assert receipts()[0]['parts']['parameters']['lr'] == 1e-6


@pytest.mark.medium
def test_kill_between_the_runs_of_a_batch(root, home, medir):
    write_notebook(root, code='time.sleep(1.5 if n == 2 else 0)')
    write_batch(root, 'runs:\n' + '\n'.join(f'- {{notebook: toy, parameters: {{n: {n}}}}}' for n in (1, 2, 3)))
    process = subprocess.Popen(
        [sys.executable, '-m', 'medir_nb.workbook', 'run', 'all'],
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    end = time.time() + 60
    while counted(root) != ['1', '2']:  # the second is running, the first has its receipt
        assert time.time() < end and process.poll() is None
        time.sleep(0.02)
    (first,) = receipts()
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    ran = medir('run', 'all')
    assert ran.code == 0, ran.err
    assert counted(root) == ['1', '2', '2', '3']  # the killed one again, the finished one not
    assert (
        len(receipts()) == 3
        and next(r for r in receipts() if r['key'] == first['key']) == first
        and 'reused toy' in ran.err
    )
    assert not list(home.rglob('*.executing.ipynb'))


# ---------------------------------------------------------------- plans


@pytest.fixture
def no_network(monkeypatch):
    def refuse(self, address):
        raise AssertionError(f'a connection to {address}')

    for name in ('connect', 'connect_ex'):
        monkeypatch.setattr(socket.socket, name, refuse)
    for name in ('HF_HUB_OFFLINE', 'HF_DATASETS_OFFLINE'):
        monkeypatch.setenv(name, os.environ.get(name, ''))  # plan sets them


def test_a_plan_counts_what_is_at_hand_and_marks_the_rest(root, beir, medir, no_network, monkeypatch):
    monkeypatch.delenv('MEDIR_DATA', raising=False)
    write_notebook(
        root,
        parameters='tasks: list[str] = []\nsystems: list[str] = []\ndtype: str|None = None\nlimit: int|None = None\nn: int = 1',
    )
    ran = medir(
        'plan',
        'toy',
        '-p',
        f'tasks=[{beir},nfcorpus,r2med-biology]',
        '-p',
        'systems=[bm25,minilm,"rrf(bm25,minilm)",cpt-text-xl]',
    )
    assert ran.code == 0, ran.err
    rows = {
        (c[1].strip(), c[2].strip()): [x.strip() for x in c[3:]]
        for c in (l.split('|') for l in ran.out.splitlines() if l.startswith('| '))
        if c[1].strip() != 'task'
    }
    assert rows[str(beir), 'minilm'][:3] == ['at hand', '16', '0'] and rows[str(beir), 'bm25'][1] == '0'
    assert (
        rows['nfcorpus', 'minilm'][:2] == ['missing', '≈3,956']
        and rows['nfcorpus', 'minilm'][3].startswith('≈')
        and rows['nfcorpus', 'bm25'][1] == '0'
    )
    assert (
        rows['r2med-biology', 'minilm'][1] == '≈57,462'
        and 'cannot run: figures only' in rows[str(beir), 'cpt-text-xl'][4]
    )
    assert (
        ran.out.splitlines()[0].endswith('would run')
        and any(line.startswith('≈') for line in ran.out.splitlines())
        and not counted(root)
    )


def test_a_plan_knows_what_is_stored(root, beir, medir, fake_minilm, no_network):
    write_notebook(root, parameters="tasks: list[str] = []\nsystems: list[str] = ['minilm']\nn: int = 1")
    assert medir('evaluate', beir, '--system', 'minilm').code == 0
    receipt, frame = plan('toy', None, {'tasks': [str(beir)]})
    assert receipt is None and frame['texts to encode'].tolist() == [0] and frame.stored.tolist() == [16]


def test_a_plan_of_a_batch(root, medir, no_network):
    write_batch(
        root,
        'runs:\n- {notebook: toy, parameters: {tasks: []}}\n- {notebook: toy, preset: smoke, parameters: {tasks: []}}',
    )
    assert medir('plan', 'all').out.count('would run') == 2
    assert medir('plan', root / 'params' / 'batches' / 'all.yaml').out.count('would run') == 2


def test_status_of_an_empty_home(home, medir):
    ran = medir('status')
    assert ran.code == 0 and 'no runs yet' in ran.out and str(home) in ran.out


# ---------------------------------------------------------------- tables at a terminal


@pytest.mark.medium
@pytest.mark.parametrize('command', ['tasks', 'models', 'plan', 'evaluate', 'compare'])
def test_what_is_printed_fits_a_terminal(command, medir, beir, monkeypatch):
    monkeypatch.setenv('HF_HUB_OFFLINE', '1')
    arguments = {
        'plan': ['plan', beir],
        'evaluate': ['evaluate', beir, '--system', 'bm25', '--system', 'bm25(lucene)'],
        'compare': ['compare', beir, 'bm25(lucene)', 'bm25'],
    }.get(command, [command])
    piped = medir(*arguments).out
    monkeypatch.setenv('COLUMNS', '100')
    terminal, wide = medir(*arguments), medir(*arguments, '--wide')
    assert terminal.code == 0 and max(map(len, terminal.out.splitlines())) <= 100, terminal.err
    seconds = re.compile(r'\d\.\d{4}')
    assert seconds.sub('', wide.out) == seconds.sub('', piped)
    assert '|--' not in terminal.out and (command == 'compare' or '|--' in wide.out)


def test_rows_are_printed_as_json(medir, beir, monkeypatch):
    monkeypatch.setenv('HF_HUB_OFFLINE', '1')
    assert json.loads(medir('tasks', '--json').out)[0]['task'] == 'cmirb-medexam'
    assert set(json.loads(medir('models', '--json').out)) == {'encoders', 'rerankers', 'llms'}
    planned = json.loads(medir('plan', beir, '--json').out)
    assert [row['system'] for row in planned['runs'][0]['rows']] == ['bm25', 'minilm']
    assert planned['costs'][0]['model'] == 'minilm'


def test_a_table_of_one_long_name_is_folded():
    import pandas as pd
    from medir_nb.workbook.board_tables import fold_table

    name, why = 'bm25(k1=0.9,b=0.4)' * 4, 'no: its weights are not in the Hub cache, and HF_HUB_OFFLINE is set'
    frame = pd.DataFrame({'system': [name, 'minilm'], 'runs': [why, 'yes'], 'n': [float('nan'), 3.0]})
    lines = fold_table(frame, 40).splitlines()
    assert max(map(len, lines)) <= 40
    joined = ''.join(line.strip() for line in lines)
    assert name[:30] in joined and 'HF_HUB_OFFLINE' in joined and 'nan' not in joined
    twice = fold_table(pd.DataFrame({'system': [name] * 2, 'runs': [why] * 2}), 40)
    assert twice and max(map(len, twice.splitlines())) <= 40


# ---------------------------------------------------------------- a new paper


@pytest.fixture
def overlaid(root, monkeypatch):
    "A workbook with a registry of its own."
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
    assert resolve(paper.notebook, 'smoke') == resolve(paper.notebook)
    ran = medir('run', 'medcpt_2023', '--preset', 'smoke')
    assert ran.code == 0, ran.err
    folder = next((home / 'runs' / 'medcpt_2023').iterdir())
    tables = (folder / 'medcpt_2023_tables.md').read_text(encoding='utf-8')
    assert '# Table 1' in tables and 'Replace me' in tables and '0.500' in tables
    assert {'scores.csv', 'tests.csv', 'medcpt_2023_scores.png'} <= {p.name for p in folder.iterdir()}
    outputs = [o for c in nbformat.read(folder / 'medcpt_2023.ipynb', as_version=4).cells for o in c.get('outputs', ())]
    assert outputs and not any(o.output_type == 'error' for o in outputs)


def test_a_new_paper_is_a_row_of_the_registry(overlaid):
    from medir_nb.papers import Ledger, paper_row, published

    workbook.new_paper('medcpt_2023', overlaid)
    assert paper_row('medcpt_2023')['notebooks'] == ['medcpt_2023']
    cells = published('medcpt_2023', 'Table 1')
    assert cells.text.tolist() == ['0.500'] and cells.printed_step.tolist() == [0.001]
    assert Ledger(cells).counts() == {'not run': 1} and len(published('bmretriever', 2)) == 250
    # the second paper stands below the first
    workbook.new_paper('other_2024', overlaid, 'Another: study')
    assert [paper_row(n)['title'] for n in ('medcpt_2023', 'other_2024')] == ['medcpt_2023', 'Another: study']


@pytest.mark.parametrize(
    'name, said', [('Med CPT', 'no name of a paper'), ('../x', 'no name of a paper'), ('r2med', "paper 'r2med' exists")]
)
def test_a_name_that_cannot_be_a_paper(overlaid, name, said):
    with pytest.raises(MedirError, match=said):
        workbook.new_paper(name, overlaid)
    assert not (overlaid / 'nbs' / 'papers').exists() and not (overlaid / 'registry').exists()


def test_a_new_paper_writes_over_nothing(overlaid):
    preset(overlaid, 'n: 1', notebook='medcpt_2023')
    with pytest.raises(MedirError, match='this file exists'):
        workbook.new_paper('medcpt_2023', overlaid)
    (overlaid / 'registry').mkdir()
    (overlaid / 'registry' / 'papers.yaml').write_text('{"mine": {"title": "x"}}', encoding='utf-8')
    core.registry.cache_clear()
    with pytest.raises(MedirError, match='cannot be added at the end'):
        workbook.new_paper('other_2024', overlaid)
    assert not (overlaid / 'nbs' / 'papers').exists()


def test_a_workbook_without_a_registry_gets_no_paper(root):
    with pytest.raises(MedirError, match='no registry that a paper can be added to; export MEDIR_REGISTRY='):
        workbook.new_paper('medcpt_2023', root)


def test_a_new_paper_is_written_into_the_workbook(overlaid, medir):
    ran = medir('new-paper', 'mine')
    assert ran.code == 0 and any('mine' in name for name in notebooks()), ran.err


# ---------------------------------------------------------------- the real notebooks

PRESETS = sorted(p for p in (REAL / 'params').glob('*/*.yaml') if p.parent.name != 'batches') if REAL else []


def real_notebook(name):
    return next((p for p in sorted((REAL / 'nbs').rglob('*.ipynb')) if p.stem == name), None)


@pytest.mark.parametrize(
    'file',
    PRESETS or [pytest.param(None, marks=pytest.mark.skip('no presets'))],
    ids=lambda p: f'{p.parent.name}-{p.stem}' if p else 'none',
)
def test_a_preset_fits_its_notebook(file, monkeypatch):
    monkeypatch.setenv('MEDIR_ROOT', str(REAL))
    notebook = real_notebook(file.parent.name)
    assert notebook, f'{file} has no notebook'
    parameters = resolve(notebook, file.stem)
    # a preset beyond the four is one that the notebook tells of
    assert file.stem in {'smoke', 'demo', 'mini', 'paper'} or f'--preset {file.stem}' in notebook.read_text(
        encoding='utf-8'
    )
    if file.stem == 'smoke':
        assert parameters == resolve(notebook)
    given = yaml.safe_load(file.read_text(encoding='utf-8')) or {}
    for task in parameters.get('tasks', []):
        assert task in core.registry('tasks') or '/' in task or ':' in task, task
    from medir_nb.retrieval import parse

    for system in parameters.get('systems', []) if file.stem in ('smoke', 'demo') else []:
        parse(system)
    assert set(given) <= set(parameters)


@pytest.mark.parametrize(
    'file',
    sorted((REAL / 'params' / 'batches').glob('*.yaml'))
    if REAL and (REAL / 'params' / 'batches').is_dir()
    else [pytest.param(None, marks=pytest.mark.skip('no batches'))],
    ids=lambda p: p.stem if p else 'none',
)
def test_a_real_batch_is_whole(file, monkeypatch):
    monkeypatch.setenv('MEDIR_ROOT', str(REAL))
    assert read_batch(file)['runs']


@pytest.mark.parametrize(
    'notebook', sorted({p.parent.name for p in PRESETS}) or [pytest.param(None, marks=pytest.mark.skip('no presets'))]
)
def test_a_notebook_with_presets_has_smoke(notebook):
    assert (REAL / 'params' / notebook / 'smoke.yaml').is_file()


def test_bars_in_a_notebook_are_one_text_that_is_empty_in_the_end(monkeypatch, capfd):
    "In JupyterLab a cursor does not go up a line: loading a model left hundreds of lines of bars."
    from types import SimpleNamespace
    import IPython.display
    from medir_nb.core import console

    texts, cell, places = [], [1], []

    def display(bundle, raw, display_id):
        texts.append(bundle['text/plain'])
        places.append(SimpleNamespace(update=lambda bundle, raw: texts.append(bundle['text/plain'])))
        return places[-1]

    monkeypatch.setenv('MEDIR_PROGRESS', '1')
    monkeypatch.setattr(console, '_is_on_a_page', lambda: True)
    monkeypatch.setattr(console, '_running_cell', lambda: cell[0])
    monkeypatch.setattr(console, '_page', console._Page())
    monkeypatch.setattr(IPython.display, 'display', display)
    with console.progress(total=3, desc='systems') as outer, console.progress(total=512, desc='minilm') as inner:
        inner.update(64)
        console._redraw([outer, inner])
        both = texts[-1].splitlines()
    assert [line.partition(':')[0] for line in both] == ['systems', 'minilm'] and '64/512' in both[1]
    assert texts[-1] == '' and len(places) == 1 and capfd.readouterr().err == ''
    # a bar that a failed cell left open is not drawn in the next one
    left = console.progress(total=9, desc='left')
    console._redraw([left])
    assert texts[-1].startswith('left')
    cell[0] += 1
    drawn = len(texts)
    console._redraw([left])
    assert len(texts) == drawn
    left.close()


def test_a_cell_that_ends_in_an_error_of_ours_shows_one_line(monkeypatch):
    from IPython.core.interactiveshell import InteractiveShell

    shell, shown = InteractiveShell(), []
    monkeypatch.setattr(shell, '_showtraceback', lambda kind, error, lines: shown.append(lines))
    cell = 'from medir_nb.core import MedirError\nraise MedirError("no query is judged yet", "walk", "label some")'
    shell.run_cell(cell)
    assert shown == [['error: walk: no query is judged yet; label some']]
    monkeypatch.setenv('MEDIR_DEBUG', '1')
    shell.run_cell(cell)
    assert 'Traceback' in shown[1][0]
