"The repository itself: one direction, one set of versions, notebooks with outputs, nothing that belongs to one machine."

import ast, configparser, json, os, re, shutil, subprocess, sys, tempfile
from pathlib import Path
import pytest, yaml
from conftest import seeded
from medir_nb.core import registry

ROOT = Path(__file__).parents[1]


def module_of(notebook):
    "The module that a notebook exports, such as `encoder.spec`."
    return ast.literal_eval(re.search(r'default_exp ([\w.]+)', notebook.read_text()).group(1).join("''"))


EXPORTING = sorted(p for p in (ROOT / 'nbs').rglob('[0-9]*.ipynb') if '.ipynb_checkpoints' not in p.parts)
ORDER = [module_of(notebook) for notebook in EXPORTING]
NOTEBOOKS = sorted(p for p in (ROOT / 'nbs').rglob('*.ipynb') if '.ipynb_checkpoints' not in p.parts)
LAZY = {
    'torch',
    'transformers',
    'sentence_transformers',
    'datasets',
    'faiss',
    'mteb',
    'matplotlib',
    'seaborn',
    'fastcore',
    'nbdev',
    'papermill',
    'bm25s',
}


def settings():
    c = configparser.ConfigParser(delimiters=['='])
    c.read(ROOT / 'settings.ini')
    return c['DEFAULT']


def pins(lines):
    return dict(
        re.match(r'([A-Za-z0-9_.-]+)==([^\s#;]+)', l).groups() for l in lines if re.match(r'[A-Za-z0-9_.-]+==', l)
    )


lock = lambda: {
    k.lower().replace('_', '-'): v
    for k, v in pins((ROOT / 'requirements/lock-py311-cpu.txt').read_text().splitlines()).items()
}
name_of = lambda requirement: re.match(r'[A-Za-z0-9_.-]+', requirement)[0].lower().replace('_', '-')


def file_of(module):
    return ROOT / 'medir_nb' / f'{module.replace(".", "/")}.py'


def imported_modules(module):
    "The modules of this package that `module` imports, as `encoder.spec`; the export writes `from ..core.errors import …`."
    package = ['medir_nb', *module.split('.')[:-1]]
    for node in ast.walk(ast.parse(file_of(module).read_text())):
        if not isinstance(node, ast.ImportFrom):
            continue
        above = package[: len(package) + 1 - node.level] if node.level else []
        whole = '.'.join([*above, *(node.module or '').split('.')]).strip('.')
        names = (
            [whole] if whole != 'medir_nb' else [f'medir_nb.{a.name}' for a in node.names if a.name != '__version__']
        )
        yield from (name.removeprefix('medir_nb.') for name in names if name.startswith('medir_nb.'))


@pytest.mark.parametrize('module', ORDER)
def test_modules_import_only_from_modules_before_them(module):
    used = set(imported_modules(module))
    before = ORDER[: ORDER.index(module)]
    doors = {m.split('.')[0] for m in before} - {module.split('.')[0]}
    assert not used - set(before) - doors
    # the worker runs in other environments, so it imports nothing
    assert not used or module != 'worker'


@pytest.mark.parametrize('module', ORDER)
def test_a_module_imports_no_private_name_of_another(module):
    tree = ast.parse(file_of(module).read_text())
    imports = [
        n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and (n.level or 'medir_nb' in (n.module or ''))
    ]
    assert not [a.name for n in imports for a in n.names if a.name.startswith('_') and not a.name.startswith('__')]


@pytest.mark.parametrize('door', sorted({m.split('.')[0] for m in ORDER if '.' in m}))
def test_a_door_offers_what_its_modules_define(door):
    import importlib

    package = importlib.import_module(f'medir_nb.{door}')
    assert package.__doc__ and len(set(package.__all__)) == len(package.__all__)
    for name in package.__all__:
        assert not name.startswith('_') and hasattr(package, name), name


ABOUT_TORCH = {'trainer.contrastive_loss', 'trainer.alignment_loss', 'trainer.reconstruction_loss'}


@pytest.mark.parametrize('module', ORDER)
def test_heavy_imports_are_inside_functions(module):
    tree = ast.parse(file_of(module).read_text())
    top = {a.name.split('.')[0] for n in tree.body if isinstance(n, ast.Import) for a in n.names}
    top |= {(n.module or '').split('.')[0] for n in tree.body if isinstance(n, ast.ImportFrom)}
    assert not top & (LAZY - {'torch', 'sentence_transformers'} if module in ABOUT_TORCH else LAZY)


def test_a_stage_of_training_is_named_without_torch():
    code = 'import sys; from medir_nb.trainer import STAGES; sys.exit(not STAGES or "torch" in sys.modules)'
    assert subprocess.run([sys.executable, '-c', code]).returncode == 0


def test_lock_holds_what_the_package_needs_at_a_version_it_allows():
    from packaging.requirements import Requirement

    s, have = settings(), lock()
    wanted = [
        r for k in ('', 'cpu_', 'embedded_', 'serve_', 'label_', 'mteb_', 'dev_') for r in s[f'{k}requirements'].split()
    ]
    for text in wanted:
        r = Requirement(text)
        assert name_of(text) in have, text
        assert r.specifier.contains(have[name_of(text)], prereleases=True), (text, have[name_of(text)])


def test_cpu_and_gpu_faiss_never_meet():
    s, env = settings(), (ROOT / 'environment.yml').read_text()
    assert (
        'faiss-gpu' not in s['requirements'] + s['cpu_requirements']
        and 'faiss-cpu' not in s['requirements'] + s['gpu_requirements']
    )
    assert (
        'faiss-gpu' not in lock()
        and 'faiss-cpu' not in env
        and 'cpu' not in re.search(r'-e \.\[(.*)\]', env)[1].split(',')
    )


def test_environment_lock_and_settings_name_the_same_versions():
    env = yaml.safe_load((ROOT / 'environment.yml').read_text())
    pip = next(d['pip'] for d in env['dependencies'] if isinstance(d, dict))
    have, s = lock(), settings()
    pinned = pins(pip)
    for name, version in pinned.items():
        if name not in ('vllm', 'faiss-gpu'):
            assert have[name] == version, name
    assert pinned['faiss-gpu'] == have['faiss-cpu']
    assert {'torch', 'vllm', 'faiss-gpu', 'jupyterlab'} <= set(pinned)
    extras = re.search(r'\[(.*)\]', next(p for p in pip if p.startswith('-e')))[1].split(',')
    assert 'gpu' in extras and all(f'{e}_requirements' in s for e in extras)
    python = next(d for d in env['dependencies'] if isinstance(d, str) and d.startswith('python='))
    assert python == 'python=3.11' and s['min_python'] <= '3.11'


@pytest.mark.parametrize('path', NOTEBOOKS, ids=lambda p: p.stem)
def test_notebooks_show_results_and_no_errors(path):
    nb = json.loads(path.read_text())
    code = [c for c in nb['cells'] if c['cell_type'] == 'code']
    assert any(c['outputs'] for c in code) and not any(o['output_type'] == 'error' for c in code for o in c['outputs'])
    assert nb['metadata']['kernelspec']['name'] == 'python3' and all(c['execution_count'] is None for c in code)
    if path.parent.name in ('papers', 'recipes'):
        assert any('parameters' in c['metadata'].get('tags', []) for c in code)


@pytest.mark.parametrize(
    'notebook', sorted(p.name for p in (ROOT / 'params').iterdir() if p.is_dir() and p.name != 'batches')
)
def test_presets_resolve_and_smoke_is_the_default(notebook):
    from medir_nb import workbook

    path = workbook.find_notebook(notebook)
    defaults = {k: d for k, (_, d) in workbook.schema(path).items()}
    for preset in (ROOT / 'params' / notebook).glob('*.yaml'):
        resolved = workbook.resolve(path, preset.stem)
        if preset.stem == 'smoke':
            assert resolved == defaults


def test_batches_resolve():
    from medir_nb import workbook

    for path in workbook.batches().values():
        assert workbook.read_batch(path)['runs']


def test_paper_presets_name_rows_that_exist():
    from medir_nb.core import registry

    for preset in ('mini', 'paper'):
        p = yaml.safe_load((ROOT / f'params/bmretriever_evaluation/{preset}.yaml').read_text())
        assert set(p['tasks']) <= set(registry('tasks'))
        plain = {s.partition('(')[0] for s in p['systems'] if not s.startswith(('bm25', 'rrf'))}
        assert plain <= set(registry('models'))
    from medir_nb.papers import published

    cells = published('bmretriever')
    printed = set(cells[cells.table != 'Table 4'].system)
    rows = {n for n, r in registry('models').items() if printed & set(r.get('published_as') or ())}
    assert plain == rows  # all rows of Tables 2 and 3; those of Table 4 are before any labelled data
    assert set(p['tasks']) == {n for n, r in registry('tasks').items() if r['paper'] == 'bmretriever'}


TEXT = [
    p
    for d in ('medir_nb', 'nbs', 'tests', 'params', 'requirements', 'docs', 'tools', '.ci', '.github')
    for p in (ROOT / d).rglob('*')
    if p.suffix in {'.py', '.yaml', '.yml', '.ipynb', '.txt', '.md', '.csv', ''} and p.is_file()
] + [
    ROOT / f
    for f in (
        'README.md',
        'CONTRIBUTING.md',
        'CHANGELOG.md',
        '.pre-commit-config.yaml',
        'Makefile',
        'environment.yml',
        'settings.ini',
    )
]


def test_nothing_of_one_machine_is_committed():
    needle = re.compile(
        '|'.join(['/ro' + 'ot/', '/ho' + r'me/\w', '/wo' + 'rk/', 'sk' + '-[A-Za-z0-9]{20,}', r'py' + 'pi.org'])
    )
    found = {
        str(p.relative_to(ROOT)): m.group(0)
        for p in TEXT
        if not {'__pycache__', '.ruff_cache'} & set(p.parts) and (m := needle.search(p.read_text(errors='replace')))
    }
    assert not found


def test_readme_commands_exist():
    readme, make = (ROOT / 'README.md').read_text(), (ROOT / 'Makefile').read_text()
    from typer.main import get_command
    from medir_nb.workbook import app, batches, notebooks

    commands = get_command(app).commands
    used = re.findall(r'^medir (\w+)(?: (\S+))?', readme, re.M)
    assert used and all(c in commands for c, _ in used)
    assert all(arg in notebooks() or arg in batches() for c, arg in used if c in ('run', 'plan'))
    for target in re.findall(r'make (\w+)', readme):
        assert re.search(rf'^{target}:', make, re.M), target
    for link in re.findall(r'\]\((?!http)([^)]+)\)', readme):
        assert (ROOT / link).exists(), link


DOCUMENTS = [
    *sorted((ROOT / 'docs').rglob('*.md')),
    *(ROOT / f for f in ('CONTRIBUTING.md', 'CHANGELOG.md', 'medir_nb/registry/published/README.md')),
]


@pytest.mark.parametrize('path', DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_documents_lead_somewhere(path):
    "Links between files, `make` targets and the paths that a document names."
    text = path.read_text()
    for link in re.findall(r'\]\((?!http)([^)#]+)\)', text):
        assert (path.parent / link).exists(), link
    for target in re.findall(r'`make ([\w-]+)`', text):
        assert target == 'lint' or re.search(rf'^{target}:', (ROOT / 'Makefile').read_text(), re.M), target
    for name in re.findall(r'`((?:nbs|medir_nb|params|figures|tests|tools|docs|requirements)/[\w./-]+)`', text):
        # a part in capitals stands for any name
        assert re.search(r'/[A-Z]{4,}', name) or (ROOT / name).exists(), name


ROOMS = {module.split('.')[0] for module in ORDER}
# decisions tell of what has gone, too
PROSE = [path for path in sorted((ROOT / 'docs').rglob('*.md')) if path.name != 'decisions.md']
PROSE += [ROOT / 'README.md', ROOT / 'CONTRIBUTING.md', *NOTEBOOKS]


def names_in_prose(path):
    "The names `room.name` between backticks in a document, or in the Markdown of a notebook; fenced code is not prose."
    text = path.read_text()
    if path.suffix == '.ipynb':
        cells = [cell for cell in json.loads(text)['cells'] if cell['cell_type'] == 'markdown']
        text = '\n'.join(''.join(cell['source']) for cell in cells)
    text = re.sub(r'^(```+).*?^\1', '', text, flags=re.M | re.S)
    names = re.findall(r'`(?:medir_nb\.)?([a-z]\w*(?:\.\w+)+)(?:\([^`]*)?`', text)
    files = ('py', 'yaml', 'ipynb', 'md', 'json', 'csv', 'jsonl')
    return sorted({n for n in names if n.split('.')[0] in ROOMS and n.split('.')[-1] not in files})


def exists(name):
    "Whether a name of the package leads to a module, or to something in one."
    import importlib

    first, *rest = name.split('.')
    found, path = importlib.import_module(f'medir_nb.{first}'), f'medir_nb.{first}'
    for part in rest:
        path = f'{path}.{part}'
        if not hasattr(found, part) and part not in getattr(found, '__annotations__', {}):
            try:
                importlib.import_module(path)
            except ModuleNotFoundError:
                return False
        found = getattr(found, part, None)
    return True


@pytest.mark.parametrize('path', PROSE, ids=lambda p: str(p.relative_to(ROOT)))
def test_names_in_prose_exist(path):
    assert not [name for name in names_in_prose(path) if not exists(name)]


def test_a_stale_name_is_found(tmp_path):
    page = tmp_path / 'page.md'
    page.write_text('`core.registry` `core.settings.rows(x)` `core.no_such_name` `core/settings.py` `numpy.array`')
    names = names_in_prose(page)
    assert names == ['core.no_such_name', 'core.registry', 'core.settings.rows']
    assert [name for name in names if not exists(name)] == ['core.no_such_name']


def test_import_is_light():
    code = 'import sys, medir_nb, medir_nb.workbook as w; bad = {"torch", "pandas", "transformers", "faiss", "datasets", "papermill"} & set(sys.modules); sys.exit(str(bad) if bad else 0)'
    assert subprocess.run([sys.executable, '-c', code]).returncode == 0


# ---------------------------------------------------------------- the tests themselves


def write_checkpoints(folder, state):
    "The tiny checkpoints of three test files, in a process that has drawn before."
    import test_models, test_reranker, test_trainer

    class Factory:
        def mktemp(self, name):
            (folder / name).mkdir(parents=True)
            return folder / name

    with seeded(state):
        for module in (test_models, test_reranker, test_trainer):
            module.folders.__wrapped__(Factory())


@pytest.mark.medium
def test_tiny_checkpoints_are_the_same_in_every_process(tmp_path):
    "Whatever was drawn before them, and however a process orders its sets."
    code = """
import pathlib, sys
sys.path.insert(0, sys.argv[1])
import test_repo
test_repo.write_checkpoints(pathlib.Path(sys.argv[2]), 2)
"""
    there, here = tmp_path / 'there', tmp_path / 'here'
    env = {**os.environ, 'PYTHONHASHSEED': '2', 'PYTHONPATH': os.pathsep.join(sys.path)}
    command = [sys.executable, '-c', code, str(ROOT / 'tests'), str(there)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=env)
    assert done.returncode == 0, done.stderr[-3000:]
    write_checkpoints(here, 1)

    def files(root):
        "Name → bytes, without the folder, which a config may name. peft writes the modules of an adapter as a set."
        kept = [p for p in root.rglob('*') if p.suffix in ('.json', '.txt', '.safetensors', '.bin')]
        kept = [p for p in kept if p.name != 'adapter_config.json']
        return {str(p.relative_to(root)): p.read_bytes().replace(str(root).encode(), b'') for p in kept}

    a, b = files(here), files(there)
    assert a.keys() == b.keys() and len([n for n in a if n.endswith(('.safetensors', '.bin'))]) > 20
    assert not [n for n in a if a[n] != b[n]]


def test_temporary_files_stay_with_the_tests(temporary, tmp_path_factory):
    child = subprocess.run(
        [sys.executable, '-c', 'import tempfile; print(tempfile.gettempdir())'], capture_output=True, text=True
    )
    assert tempfile.gettempdir() == str(temporary) == child.stdout.strip()
    assert temporary.is_relative_to(tmp_path_factory.getbasetemp())


# ---------------------------------------------------------------- the size of the house

sys.path.insert(0, str(ROOT / 'tools'))
import density


def test_the_house_stays_within_its_limits():
    figures = density.house()
    assert figures.keys() == density.LIMITS.keys()
    missed = {
        name: (figures[name], limit)
        for name, limit in density.LIMITS.items()
        if (figures[name] < limit if name in density.AT_LEAST else figures[name] > limit)
    }
    assert not missed


def test_what_the_limits_count(tmp_path):
    module, notebook = tmp_path / 'medir_nb' / 'room' / 'module.py', tmp_path / 'nbs' / '00_module.ipynb'
    test = tmp_path / 'tests' / 'test_room.py'
    for file in (module, notebook, test):
        file.parent.mkdir(parents=True)
    module.write_text("__all__ = ['a', 'b']\ndef a(home_folder): pass\ndef b(*, home_folder=None): pass\n")
    (module.parent / '__init__.py').write_text("__all__ = ['a', 'b']\n")
    test.write_text('x\ny\n')
    sources = ['#| default_exp room.module', '#| export\ndef a():\n    pass', 'import os', '_helper(1)', 'a(1)']
    cells = [{'cell_type': 'code', 'source': source} for source in sources]
    cells.append({'cell_type': 'markdown', 'source': 'six words of prose stand here'})
    notebook.write_text(json.dumps({'cells': cells}))
    figures = density.house(tmp_path)
    assert list(figures.values()) == [4, 2, 1, 2, 2, 50.0, 2.0, 3, 3]


# ---------------------------------------------------------------- the Makefile


def test_the_makefile_leaves_no_file_behind_and_hides_no_error():
    make = (ROOT / 'Makefile').read_text()
    assert not re.search(r'/tmp|\|\|\s*(true|:)|2>\s*/dev/null|2>&1', make)
    assert make.count('mktemp') == make.count("$$(mktemp -d); trap 'rm -rf")
    assert not re.search(r'^\t@?-', make, re.M)


@pytest.fixture
def installing(tmp_path):
    "`installing(medir)` runs the install step with commands that do nothing, `medir` among them doing what it is told."
    if not shutil.which('make'):
        pytest.skip('no make on this machine')
    root, temporary = tmp_path / 'clone', tmp_path / 'temporary'
    for folder in (root / 'requirements', root / '.venv' / 'bin', temporary):
        folder.mkdir(parents=True)
    shutil.copy(ROOT / 'Makefile', root)
    for name in ('requirements/lock-py311-cpu.txt', 'settings.ini', 'setup.py'):
        (root / name).touch()

    def run(medir):
        for name, does in (('python', ':'), ('pip', ':'), ('medir', medir)):
            command = root / '.venv' / 'bin' / name
            command.write_text(f'#!/bin/sh\n{does}\n')
            command.chmod(0o755)
        env = {k: v for k, v in os.environ.items() if not k.startswith('MAKE') and k != 'MFLAGS'}
        env['TMPDIR'] = str(temporary)
        done = subprocess.run(['make', 'install'], cwd=root, capture_output=True, text=True, env=env)
        assert not any(temporary.iterdir())
        return done, root / '.venv' / 'installed'

    return run


def test_an_install_says_how_long_it_took(installing):
    done, mark = installing('echo a long contract; sleep 1')
    assert done.returncode == 0 and int(mark.read_text()) in range(1, 60) and 'a long contract' not in done.stdout


def test_an_install_without_a_readable_language_model_fails_with_its_message(installing):
    done, mark = installing('echo "medir: error: model smollm2: its weights do not load" >&2; exit 2')
    assert done.returncode and 'its weights do not load' in done.stderr and not mark.exists()


@pytest.mark.parametrize('name', ['models', 'rerankers', 'llms'])
def test_packaged_rows_name_no_folder(name):
    "A folder of one machine belongs into a row of its owner's, below $MEDIR_REGISTRY."
    named = {row: values.get('hub', '') for row, values in registry(name).items()}
    assert not {row: hub for row, hub in named.items() if hub.startswith(('/', '.', '~'))}
