"""Every block of code on a page of the site: run here, or marked as not run, with the reason, in the line above it.

`<!-- slow: WHY -->` above a block leaves it to `make slow`; `<!-- not run: WHY -->` leaves it out, and its `medir`
lines are held against the options of the command all the same. A block that is no code is marked `text`, a data file by
its language.
"""

import contextlib, json, os, re, runpy, shlex, shutil, subprocess, sys
from collections import namedtuple
from pathlib import Path
import pytest, yaml
from conftest import in_process, write_beir, write_lines
from markdown_it import MarkdownIt
from medir_nb.encoder import Encoder, save_encoder
from medir_nb.workbook import app, main
from typer.main import get_command

ROOT = Path(__file__).parent.parent
PAGES = ['README.md', 'CONTRIBUTING.md', 'CHANGELOG.md', 'medir_nb/registry/published/README.md']
PAGES += [str(p.relative_to(ROOT)) for f in ('docs', 'tools/site/pages') for p in sorted((ROOT / f).rglob('*.md'))]
NOTEBOOKS = sorted((ROOT / 'nbs').rglob('*.ipynb'))

Block = namedtuple('Block', 'place language text how why')


def blocks_of(text, place):
    "The blocks of code of a page, fenced or indented, each with the mark that stands right above it."
    found, mark = [], None
    for token in MarkdownIt('commonmark').parse(text):
        if token.type == 'html_block':
            mark = re.fullmatch(r'<!-- (not run|slow): (.+?) -->', token.content.strip(), re.S)
        elif token.type in ('fence', 'code_block'):
            how, why = mark.groups() if mark else ('run', '')
            found.append(Block(f'{place}:{token.map[0] + 1}', token.info.strip(), token.content, how, why))
        if token.type != 'html_block':
            mark = None
    return found


def texts():
    "`(place, text)` of all prose: of pages, of templates of the site (where braces stand twice), and of notebooks."
    for page in PAGES:
        text = (ROOT / page).read_text(encoding='utf-8')
        yield page, text.replace('{{', '{').replace('}}', '}') if page.startswith('tools/') else text
    for file in NOTEBOOKS:
        cells = json.loads(file.read_text(encoding='utf-8'))['cells']
        yield from ((file.stem, ''.join(cell['source'])) for cell in cells if cell['cell_type'] == 'markdown')


BLOCKS = [block for place, text in texts() for block in blocks_of(text, place)]
CODE = [block for block in BLOCKS if block.language in ('sh', 'python')]


def lines_of(block):
    "The commands of a block as words, without comments; a line goes on behind a backslash."
    text = block.text.replace('\\\n', ' ')
    return [words for line in text.splitlines() if (words := shlex.split(line, comments=True))]


@pytest.mark.parametrize('block', BLOCKS, ids=lambda block: block.place)
def test_a_block_says_what_it_is_and_why_it_is_not_run(block):
    assert block.language in ('sh', 'python', 'text', 'yaml', 'json'), 'name the language behind the fence'
    assert block.how == 'run' or len(block.why.split()) >= 3, 'say why in words'
    if block.language in ('yaml', 'json'):
        assert yaml.safe_load(block.text)


@pytest.mark.parametrize('block', CODE, ids=lambda block: block.place)
def test_lines_of_the_command_are_understood(block):
    "Subcommand, options and types of every `medir` line, run or not."
    group = get_command(app)
    for words in lines_of(block) if block.language == 'sh' else ():
        if words[0] != 'medir':
            continue
        context = group.make_context('medir', words[1:], resilient_parsing=True)
        name, command, rest = group.resolve_command(context, [*context._protected_args, *context.args])
        command.make_context(name, rest, parent=context)


@pytest.fixture
def desk(tmp_path, monkeypatch):
    "A folder with what the pages speak of: a task at path/to/folder, an encoder and two settings of trainings."
    folder = tmp_path / 'desk'
    write_beir(folder / 'path/to/folder')
    train = {'task': 'contrastive', 'model': 'minilm', 'data': 'emb_train_data.jsonl', 'batch_size': 4, 'negatives': 3}
    write_lines(folder / 'train.yaml', [json.dumps({**train, 'learning_rate': 2.0e-5})])
    cross = {'task': 'cross-encoder', 'model': 'minilm', 'batch_size': 4, 'negatives': 3, 'max_tokens': 96}
    write_lines(folder / 'cross.yaml', [json.dumps(cross)])
    monkeypatch.chdir(folder)
    return folder


def run_python(words, monkeypatch):
    "`python -c CODE`, `python -m MODULE WORD…`, in this process."
    monkeypatch.setattr(sys, 'argv', words[2:] if words[1] == '-m' else ['-c', *words[3:]])
    with contextlib.suppress(SystemExit) as ended:
        if words[1] == '-m':
            runpy.run_module(words[2], run_name='__main__', alter_sys=False)
        else:
            exec(compile(words[2], '<-c>', 'exec'), {})
    return ended


def run_block(block, monkeypatch, capfd):
    if block.language == 'python':
        return exec(compile(block.text, block.place, 'exec'), {})
    medir = in_process(main, 'medir', monkeypatch, capfd)
    for words in lines_of(block):
        if words[:2] == ['.', '.venv/bin/activate']:
            continue
        if words[0] == 'medir':
            ran = medir(*words[1:])
            assert ran.code == 0, f'{shlex.join(words)}: {ran.err}'
        elif words[0] == 'python':
            run_python(words, monkeypatch)
        elif words[0] in ('seq', 'printf'):  # pipes, which need a shell and the command on its path
            line = ' '.join(word if word in ('|', '>') else shlex.quote(word) for word in words)
            path = os.pathsep.join([str(Path(sys.executable).parent), os.environ['PATH']])
            subprocess.run(line, shell=True, check=True, env={**os.environ, 'PATH': path})
        else:
            pytest.fail(f'nothing here runs {shlex.join(words)}: mark the block as not run, with its reason')
    return None


marked = lambda how: [pytest.param(block, id=block.place) for block in CODE if block.how == how]


@pytest.mark.medium
@pytest.mark.parametrize('block', marked('run'))
def test_a_block_runs_as_it_stands(block, desk, fake_minilm, monkeypatch, capfd):
    "Encoders are hashes of words here; the notebooks run the same lines with real ones."
    monkeypatch.setenv('MEDIR_ROOT', str(ROOT))
    if 'new_paper' in block.text:  # it writes into the workbook and its registry
        for name in ('nbs', 'params', 'registry'):
            (desk / name).mkdir()
        shutil.copy(ROOT / 'settings.ini', desk)
        monkeypatch.setenv('MEDIR_ROOT', str(desk))
        monkeypatch.setenv('MEDIR_REGISTRY', str(desk / 'registry'))
    if 'my-minilm' in block.text:
        save_encoder(Encoder('minilm'), 'my-minilm')
    run_block(block, monkeypatch, capfd)


@pytest.mark.slow
@pytest.mark.parametrize('block', marked('slow'))
def test_a_block_of_minutes_runs_as_it_stands(block, desk, tmp_path, monkeypatch, capfd):
    monkeypatch.setenv('MEDIR_ROOT', str(ROOT))
    with contextlib.ExitStack() as stack:
        if '--engine ray' in block.text:
            pytest.importorskip('ray', reason='Ray is not installed: pip install "medir_nb[ray]"')
            from ray_cluster import cluster_of

            nodes = stack.enter_context(cluster_of(3, tmp_path))
            monkeypatch.setenv('RAY_ADDRESS', nodes.cluster.address)
        run_block(block, monkeypatch, capfd)


def test_the_readme_is_short():
    "What a visitor reads first: at most 1,200 words, tables and code counted; the rest is on the pages below docs/."
    text = re.sub(r'<!--.*?-->', '', (ROOT / 'README.md').read_text(encoding='utf-8'), flags=re.S)
    assert len(text.split()) <= 1200


@pytest.mark.parametrize('page, link', [('README.md', '(docs/{})'), ('docs/README.md', '({})')])
def test_the_readme_and_the_list_of_documents_lead_to_every_page(page, link):
    text, pages = (ROOT / page).read_text(encoding='utf-8'), {file.name for file in (ROOT / 'docs').glob('*.md')}
    assert [name for name in pages - {'README.md'} if link.format(name) not in text] == []


def test_the_six_lines_of_the_readme_are_those_that_the_notebook_runs():
    readme = next(block for block in BLOCKS if block.language == 'python' and block.place.startswith('README'))
    cells = json.loads((ROOT / 'nbs/index.ipynb').read_text(encoding='utf-8'))['cells']
    first = next(''.join(cell['source']) for cell in cells if cell['cell_type'] == 'code')
    lines = [re.sub(r'\s+#.*', '', line) for line in readme.text.splitlines()]
    assert lines[:5] == first.splitlines()[:5]
