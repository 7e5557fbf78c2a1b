"The repository: one direction, one set of versions, notebooks with outputs, nothing that belongs to one machine."

import ast, configparser, importlib, json, re, subprocess, sys
from collections import Counter
from pathlib import Path
import pytest, typer, yaml
from packaging.requirements import Requirement
from medir_nb import workbook
from medir_nb._door import names_of
from medir_nb.core import registry

ROOT = Path(__file__).parents[1]


def module_of(notebook):
    "The module that a notebook exports, such as `encoder.spec`."
    return ast.literal_eval(re.search(r'default_exp ([\w.]+)', notebook.read_text()).group(1).join("''"))


EXPORTING = sorted(p for p in (ROOT / 'nbs').rglob('[0-9]*.ipynb') if '.ipynb_checkpoints' not in p.parts)
ORDER = [module_of(notebook) for notebook in EXPORTING]
NOTEBOOKS = sorted(p for p in (ROOT / 'nbs').rglob('*.ipynb') if '.ipynb_checkpoints' not in p.parts)
LAZY = 'torch transformers sentence_transformers datasets faiss mteb matplotlib seaborn fastcore nbdev papermill bm25s'
LAZY = set(LAZY.split())


def settings():
    c = configparser.ConfigParser(delimiters=['='])
    c.read(ROOT / 'settings.ini')
    return c['DEFAULT']


def pins(lines):
    return dict(found.groups() for line in lines if (found := re.match(r'([A-Za-z0-9_.-]+)==([^\s#;]+)', line)))


def lock():
    pinned = pins((ROOT / 'requirements/lock-py311-cpu.txt').read_text().splitlines())
    return {name.lower().replace('_', '-'): version for name, version in pinned.items()}


name_of = lambda requirement: re.match(r'[A-Za-z0-9_.-]+', requirement)[0].lower().replace('_', '-')


def file_of(module):
    return ROOT / 'medir_nb' / f'{module.replace(".", "/")}.py'


def imported_modules(module):
    "The modules of this package that `module` imports, as `encoder.spec`; exports write `from ..core.errors import …`."
    package = ['medir_nb', *module.split('.')[:-1]]
    for node in ast.walk(ast.parse(file_of(module).read_text())):
        if not isinstance(node, ast.ImportFrom):
            continue
        above = package[: len(package) + 1 - node.level] if node.level else []
        whole = '.'.join([*above, *(node.module or '').split('.')]).strip('.')
        names = [whole]
        if whole == 'medir_nb':
            names = [f'medir_nb.{alias.name}' for alias in node.names if alias.name != '__version__']
        yield from (name.removeprefix('medir_nb.') for name in names if name.startswith('medir_nb.'))


@pytest.mark.parametrize('module', ORDER)
def test_modules_import_only_from_modules_before_them(module):
    used = set(imported_modules(module))
    before = ORDER[: ORDER.index(module)]
    doors = {m.split('.')[0] for m in before} - {module.split('.')[0]}
    assert not used - set(before) - doors
    # the worker runs in other environments, so it imports nothing
    assert not used or module != 'worker'


@pytest.mark.parametrize('door', sorted({m.split('.')[0] for m in ORDER if '.' in m}))
def test_a_door_offers_what_its_modules_define(door):
    package = importlib.import_module(f'medir_nb.{door}')
    assert package.__doc__ and len(set(package.__all__)) == len(package.__all__)
    for name in package.__all__:
        assert not name.startswith('_') and hasattr(package, name), name


@pytest.mark.parametrize('module', ORDER)
def test_a_module_imports_no_private_name_of_another_and_heavy_ones_inside_functions(module):
    tree = ast.parse(file_of(module).read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    own = [node for node in imports if node.level or 'medir_nb' in (node.module or '')]
    assert not [alias.name for node in own for alias in node.names if re.match('_[^_]', alias.name)]
    top = {a.name.split('.')[0] for n in tree.body if isinstance(n, ast.Import) for a in n.names}
    top |= {(n.module or '').split('.')[0] for n in tree.body if isinstance(n, ast.ImportFrom)}
    assert not top & (LAZY - {'torch', 'sentence_transformers'} if module == 'trainer.losses' else LAZY)


def test_lock_holds_what_the_package_needs_at_a_version_it_allows():
    told, have = settings(), lock()
    extras = ('', 'cpu_', 'embedded_', 'serve_', 'label_', 'mteb_', 'dev_')
    for text in [word for extra in extras for word in told[f'{extra}requirements'].split()]:
        assert name_of(text) in have, text
        assert Requirement(text).specifier.contains(have[name_of(text)], prereleases=True), text


def test_environment_lock_and_settings_name_the_same_versions():
    env = yaml.safe_load((ROOT / 'environment.yml').read_text())
    pip = next(part['pip'] for part in env['dependencies'] if isinstance(part, dict))
    have, told, pinned = lock(), settings(), pins(pip)
    assert not {name for name in pinned if name not in ('vllm', 'faiss-gpu') and have[name] != pinned[name]}
    # faiss for processors and for GPUs never meet
    assert pinned['faiss-gpu'] == have['faiss-cpu'] and 'faiss-gpu' not in have and 'faiss-cpu' not in pinned
    assert {'torch', 'vllm', 'faiss-gpu', 'jupyterlab'} <= set(pinned)
    extras = re.search(r'\[(.*)\]', next(line for line in pip if line.startswith('-e')))[1].split(',')
    assert 'gpu' in extras and 'cpu' not in extras and all(f'{extra}_requirements' in told for extra in extras)
    assert 'faiss' not in told['requirements'] and 'python=3.11' in env['dependencies']


@pytest.mark.parametrize('path', NOTEBOOKS, ids=lambda p: p.stem)
def test_notebooks_show_results_and_no_errors(path):
    nb = json.loads(path.read_text())
    code = [c for c in nb['cells'] if c['cell_type'] == 'code']
    assert any(c['outputs'] for c in code) and not any(o['output_type'] == 'error' for c in code for o in c['outputs'])
    assert nb['metadata']['kernelspec']['name'] == 'python3' and all(c['execution_count'] is None for c in code)
    of_folder = {'papers': {'parameters', 'stored-with'}, 'recipes': {'parameters'}}  # tools/store_outputs.py
    assert of_folder.get(path.parent.name, set()) <= {t for c in nb['cells'] for t in c['metadata'].get('tags', [])}


@pytest.mark.parametrize('path', EXPORTING, ids=lambda p: p.stem)
def test_a_lesson_takes_back_the_variables_that_it_sets(path):
    "One process runs many lessons; what each of them names for itself is left to the next."
    cells = [''.join(c['source']) for c in json.loads(path.read_text())['cells'] if c['cell_type'] == 'code']
    lessons = '\n'.join(cell for cell in cells if not cell.startswith('#| export'))
    together = ' '.join(re.findall(r'environ \|= \{(.*?)\}', lessons, re.DOTALL))
    named = {*re.findall(r"environ\['(\w+)'\] = ", lessons), *re.findall(r"'(\w+)':", together)}
    for name in named - {'MEDIR_HOME', 'MEDIR_PROGRESS', 'HF_HUB_OFFLINE'}:
        assert re.search(rf"(del |pop\().*'{name}'", lessons), name


def test_batches_resolve():
    assert all(workbook.read_batch(path)['runs'] for path in workbook.batches().values())


FOLDERS = 'medir_nb nbs tests params requirements docs tools .ci .github'.split()
KINDS = {'.py', '.yaml', '.yml', '.ipynb', '.txt', '.md', '.csv', ''}
TEXT = [p for d in FOLDERS for p in (ROOT / d).rglob('*') if p.suffix in KINDS and p.is_file()]
PAGES = 'README.md CONTRIBUTING.md CHANGELOG.md medir_nb/registry/published/README.md'
PAGES = [ROOT / name for name in PAGES.split()]
TEXT += PAGES + [ROOT / name for name in ('.pre-commit-config.yaml', 'Makefile', 'environment.yml', 'settings.ini')]


def test_nothing_of_one_machine_is_committed():
    names = ['/ro' + 'ot/', '/ho' + r'me/\w', '/wo' + 'rk/', 'sk' + '-[A-Za-z0-9]{20,}', r'py' + 'pi.org']
    texts = [path for path in TEXT if not {'__pycache__', '.ruff_cache'} & set(path.parts)]
    found = {path: re.search('|'.join(names), path.read_text(errors='replace')) for path in texts}
    assert not {path: match for path, match in found.items() if match}


DOCUMENTS = [*sorted((ROOT / 'docs').rglob('*.md')), *PAGES]


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
# rooms of an earlier day: what is said to be in one is not found
GONE = 'agent benchmark figures hub ledger losses miner processor reranker search serving systems walk worker'.split()
# decisions tell of what has gone, too
PROSE = [path for path in sorted((ROOT / 'docs').rglob('*.md')) if path.name != 'decisions.md']
PROSE += [ROOT / 'README.md', ROOT / 'CONTRIBUTING.md', *NOTEBOOKS]
PROSE += [p for d in ('medir_nb', 'params') for p in sorted((ROOT / d).rglob('*')) if p.suffix in ('.py', '.yaml')]


def names_in_prose(text, kind='.md'):
    "The names `room.name` between backticks in a document, a docstring, a comment, or the Markdown of a notebook."
    if kind == '.ipynb':
        cells = [cell for cell in json.loads(text)['cells'] if cell['cell_type'] == 'markdown']
        text = '\n'.join(''.join(cell['source']) for cell in cells)
    # fenced code is not prose
    text = re.sub(r'^(```+).*?^\1', '', text, flags=re.M | re.S)
    names = re.findall(r'`(?:medir_nb\.)?([a-z]\w*(?:\.\w+)+)(?:\([^`]*)?`', text)
    files = ('py', 'yaml', 'ipynb', 'md', 'json', 'csv', 'jsonl')
    return sorted({n for n in names if n.split('.')[0] in {*ROOMS, *GONE} and n.split('.')[-1] not in files})


def exists(name):
    "Whether a name of the package leads to a module, or to something in one."
    first, *rest = name.split('.')
    if first in GONE:
        return False
    found, path = importlib.import_module(f'medir_nb.{first}'), f'medir_nb.{first}'
    for part in rest:
        path = f'{path}.{part}'
        if not hasattr(found, part) and part not in getattr(found, '__annotations__', {}):
            try:
                importlib.import_module(path)
            except ModuleNotFoundError as missing:  # a package of its own that is not installed here, or no such module
                return not missing.name.startswith('medir_nb')
        found = getattr(found, part, None)
    return True


def test_names_in_prose_exist():
    stale = {'`systems.ask`': ['systems.ask'], '# see `medir_nb.hub.pinned(x)`': ['hub.pinned'], '`search.csv`': []}
    assert all(names_in_prose(text) == names and not any(map(exists, names)) for text, names in stale.items())
    assert exists('retrieval.search') and not exists('retrieval.ask_nobody')
    named = {path.relative_to(ROOT): names_in_prose(path.read_text(), path.suffix) for path in PROSE}
    assert not [(place, name) for place, names in named.items() for name in names if not exists(name)]


def test_a_public_name_and_a_module_mean_one_thing():
    "Frameworks want a class of the same name each; nothing else stands twice."
    modules = [path for path in (ROOT / 'medir_nb').glob('*/[a-z]*.py') if path.parent.name != 'integrations']
    names = [name for path in modules for name in names_of(path.parent, [path.stem])[path.stem]]
    assert not [name for name, count in Counter(names).items() if count > 1]
    assert not [stem for stem, count in Counter(path.stem for path in modules).items() if count > 1]


def test_an_object_shows_itself_under_its_own_name():
    classes = [
        node
        for path in (ROOT / 'medir_nb').glob('*/[a-z]*.py')
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    ]
    shown = [(node.name, re.findall(r"return f'([A-Z]\w+)\(", ast.unparse(node))) for node in classes]
    assert sum(map(bool, dict(shown).values())) > 10
    assert not [(name, words) for name, words in shown if set(words) - {name}]


def test_import_is_light():
    "The package, its command and the stages of training are there without the heavy libraries."
    heavy = sorted(LAZY - {'fastcore', 'nbdev'} | {'pandas'})
    code = f'import sys, medir_nb, medir_nb.workbook; sys.exit(str(set({heavy}) & set(sys.modules) or "") or 0)'
    assert subprocess.run([sys.executable, '-c', code]).returncode == 0
    code = 'import sys; from medir_nb.trainer import TRAINING_KINDS as k; sys.exit(not k or "torch" in sys.modules)'
    assert subprocess.run([sys.executable, '-c', code]).returncode == 0


sys.path.insert(0, str(ROOT / 'tools'))
import density, refresh_outputs


# last digits of vectors and losses are those of the processor; two other notebooks say when a machine is busy, and a
# third one shows seconds in a column, or in a line where both are equal
SHOWING = [path for path in EXPORTING if path.parent.name not in ('02_encoder', '04_retrieval', '05_trainer')]
SHOWING = [
    ROOT / 'nbs/index.ipynb',
    *(path for path in SHOWING if path.stem not in ('01_profile', '18_cli_evaluate', '21_cli_study')),
]


@pytest.mark.medium
@pytest.mark.parametrize('path', SHOWING, ids=lambda p: f'{p.parent.name[:2]}-{p.stem}')
def test_a_lesson_shows_what_is_stored(path, home):
    "What a lesson shows and does not assert is checked here."
    assert refresh_outputs.differing(path) == {}


def test_the_house_stays_within_its_limits():
    figures = density.house()
    assert figures.keys() == density.LIMITS.keys()
    pairs = {name: (figures[name], limit) for name, limit in density.LIMITS.items()}
    assert not {name: (n, most) for name, (n, most) in pairs.items() if name not in density.AT_LEAST and n > most}
    assert not {name: (n, least) for name, (n, least) in pairs.items() if name in density.AT_LEAST and n < least}


@pytest.mark.parametrize('name', ['models', 'rerankers', 'llms'])
def test_packaged_rows_name_no_folder(name):
    "A folder of one machine belongs into a row of its owner's, below $MEDIR_REGISTRY."
    named = {row: values.get('hub', '') for row, values in registry(name).items()}
    assert not {row: hub for row, hub in named.items() if hub.startswith(('/', '.', '~'))}


def said_texts():
    "`(place, text)` of texts in modules, docstrings aside; what is filled in is `X` if it is typed, else `Y`."
    for path in sorted((ROOT / 'medir_nb').glob('*/*.py')):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        inside = {id(piece) for node in nodes if isinstance(node, ast.JoinedStr) for piece in node.values}
        inside |= {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        for node in nodes:
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            typed = [
                isinstance(p, ast.FormattedValue) and ast.unparse(p.value).startswith('typed_path(') for p in parts
            ]
            said = [p.value if isinstance(p, ast.Constant) else 'Y' for p in parts]
            words = ['X' if is_typed else word for word, is_typed in zip(said, typed, strict=True)]
            if id(node) not in inside and isinstance(node, ast.Constant | ast.JoinedStr) and isinstance(words[0], str):
                yield f'{path.relative_to(ROOT)}:{node.lineno}', ''.join(words)


def options_by_command():
    "Each command of `medir`, as `study label`, and its options."
    whole = typer.main.get_command(workbook.app)
    commands = {name: command for name, command in whole.commands.items() if not command.hidden}
    commands |= {f'study {name}': command for name, command in commands['study'].commands.items()}
    of_all = {option for parameter in whole.params for option in parameter.opts}
    return {n: {o for parameter in c.params for o in parameter.opts} | of_all for n, c in commands.items()}


def installable():
    "Extras of the package, and all packages that it or they need; vllm is for a GPU machine (environment.yml)."
    told = {key: value.split() for key, value in settings().items() if key.endswith('requirements')}
    extras = {key.removesuffix('_requirements') for key in told} - {'requirements'}
    return extras, {'vllm', *(name_of(word) for words in told.values() for word in words)}


def faults_of_text(text, options, extras, packages):
    "What is stale in the commands that a text names."
    for line in re.findall(r'\bmedir ([a-z-]+(?=[ ;,)`…]|$)[^;,)`…]*?)(?= or | and |[;,)`…]|$)', text):
        words = line.split()
        name = ' '.join(words[: 1 + (words[0] == 'study')])
        yield from [] if name in options or name.endswith((' X', ' Y')) else [f'no command {name}']
        known = options.get(name, set().union(*options.values()))
        yield from (f'{name} has no {o}' for o in re.findall(r'(?<!\S)--?[a-z][a-z-]*', line) if o not in known)
    yield from (f'no extra {extra}' for extra in re.findall(r'medir_nb\[([a-z-]+)\]', text) if extra not in extras)
    places = re.findall(r'(?:\bmedir (?:study )?(?!study)[a-z]+|\brm|--to) Y', text)
    yield from (f'{place} is not typed' for place in places)
    named = re.findall(r'pip install (?:--[a-z-]+ )*([a-z][a-z0-9-]*)', text)
    yield from (f'no requirement {name}' for name in named if name not in packages)


def test_a_command_in_a_message_is_one_that_runs():
    known, texts = (options_by_command(), *installable()), list(said_texts())
    assert sum('medir ' in text for _, text in texts) > 50
    stale = 'medir study label X --annotators NAME|medir lable|pip install "medir_nb[lable]"|pip install fais|rm Y'
    assert all(list(faults_of_text(text, *known)) for text in stale.split('|'))
    assert not [(place, fault) for place, text in texts for fault in faults_of_text(text, *known)]
