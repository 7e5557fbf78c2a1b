"""The site's pages as they are laid out; the built site is checked in a browser by `make docs-check`."""

import csv, io, json, re, shutil, subprocess, sys, zipfile
from dataclasses import fields
from html.parser import HTMLParser
from pathlib import Path
import pandas as pd, pytest

ROOT = Path(__file__).parent.parent
NODE = shutil.which('node')
sys.path[:0] = [str(ROOT / 'tools' / 'site'), str(ROOT / 'tools')]
from medir_nb.core.settings import registry
from medir_nb.encoder.model_row import EncoderSpec
from medir_nb.evaluator import evaluate, scores_table
from medir_nb.generator.methods import ExpansionSettings
from medir_nb.judging.label_tables import write_csv
from medir_nb.papers import published
from medir_nb.papers.papers import paper_tasks
from medir_nb.retrieval.reranker_model import SETTINGS
from medir_nb.workbook.boards import board
import hook, hostile, notebooks, reference, stage, store_outputs


def notebook(*cells):
    return {'cells': [{'source': source, 'outputs': [], **more, 'cell_type': kind} for kind, source, more in cells]}


def test_an_output_keeps_its_table_and_nothing_that_runs():
    said = (
        '<style>td{}</style><table border=1 onclick="x()"><tr><th scope="row">a'
        '<td style="color:red"><img src=x onerror=alert(1)><a href="javascript:alert(1)">b</a> 1 &lt; 2'
        '<script>alert(1)</script></table><svg onload=alert(1)><text>no</text></svg>'
    )
    clean = notebooks.clean_html(said)
    assert clean == '<table><tr><th scope="row">a<td>b 1 &lt; 2</table>'
    assert notebooks.clean_html('&lt;script&gt;alert(1)&lt;/script&gt;') == '&lt;script&gt;alert(1)&lt;/script&gt;'


def test_no_kind_of_output_lets_a_text_run():
    class Found(HTMLParser):
        tags, attributes = set(), set()

        def handle_starttag(self, tag, attributes):
            self.tags.add(tag)
            self.attributes |= {name for name, _ in attributes}

    for part in notebooks.outputs_parts(hostile.hostile_notebook()['cells'][1]['outputs'], Path('nowhere'), 'x'):
        if part.startswith('<'):
            Found().feed(part)
            assert 'javascript:' not in re.sub(r'>[^<]*<', '><', part)
        else:
            lines = part.splitlines()
            assert set(lines[-1]) == {'`'} and lines[0] == f'{lines[-1]}text'
            assert not any(line.startswith(lines[-1]) for line in lines[1:-1])
    assert not Found.tags & {'img', 'script', 'svg', 'a', 'iframe'} and Found.attributes <= {'class', 'markdown'}
    # in a cell of a page's table nothing is left that Markdown or HTML would read
    said = '<b>[x](y){: onclick=1}`_*|'
    assert reference.plain(said) == ''.join(f'&#{ord(c)};' if c in '<>[]{}=`_*|' else c for c in said)


def test_a_notebook_becomes_prose_lessons_and_names_of_what_it_exports(tmp_path):
    export = '#| export\ndef load(name: str):  # of a task\n    "Read a task."\n    return name\n\n\n'
    export += 'def _private():\n    pass'
    outputs = [{'output_type': 'execute_result', 'data': {'text/plain': "'hpo-lay'"}}]
    outputs += [{'output_type': 'display_data', 'data': {'image/png': 'aGVsbG8='}}]
    code = ['#| default_exp data.x', 'import os\nfrom x import y', export]
    cells = [('markdown', '# data.x', {}), *(('code', source, {}) for source in code)]
    written = notebook(*cells, ('code', "load('hpo-lay')", {'outputs': outputs}))
    (tmp_path / 'n.ipynb').write_text(json.dumps(written))
    how = {'deeper': 1, 'api': '../api/encoding.md#data', 'door': {'load'}}
    page = notebooks.page_of(tmp_path / 'n.ipynb', tmp_path / 'pictures', **how)
    assert page.startswith('## data.x') and '> [`load`](../api/encoding.md#data-load)\n' in page
    inner = notebooks.page_of(tmp_path / 'n.ipynb', tmp_path / 'pictures')
    assert '> `load`: Read a task.\n' in inner and "```python\nload('hpo-lay')\n```" in page and "'hpo-lay'" in page
    assert '_private' not in page and 'import os' not in page and 'default_exp' not in page
    assert (tmp_path / 'pictures' / 'n-4-1.png').read_bytes() == b'hello'


def test_every_room_has_one_place_in_the_api_and_every_name_one_anchor():
    assert sorted(' '.join(reference.GROUPS.values()).split()) == sorted(reference.ROOMS)
    for group in reference.GROUPS:
        anchors = re.findall(r'\{: #(\S+) \}$', reference.api_page(ROOT, group), re.M)
        assert anchors and len(set(anchors)) == len(anchors), [a for a in anchors if anchors.count(a) > 1]


def test_a_lesson_stands_without_what_it_asserts():
    said = notebooks.without_asserts('x = f(1)\nassert (\n    x == 2\n)\nif x:\n    assert x\nx')
    assert said == 'x = f(1)\nif x:\n    assert x\nx'


def test_every_variable_that_the_code_reads_has_its_line():
    sources = [file.read_text() for file in (ROOT / 'medir_nb').rglob('*.py')]
    own = {name for source in sources for name in re.findall(r"['\"](MEDIR_[A-Z_]+)['\"]", source)}
    asked = re.compile(r"environ(?:\[|\.(?:get|pop|setdefault)\()\s*'([A-Z_]+)'")
    read = own | {name for source in sources for name in asked.findall(source)}
    rows = [*registry('models').values(), *registry('llms').values()]
    keys = {row['key_variable'] for row in rows if row.get('key_variable')}
    assert {'OMP_NUM_THREADS', 'HF_ENDPOINT'} <= read and {'OPENAI_API_KEY', 'DEEPSEEK_API_KEY'} <= keys
    assert read | keys <= {*reference.VARIABLES, 'PYTHONPATH'}
    assert {name for name in reference.VARIABLES if name.startswith('MEDIR_')} <= own


def first_column(page, heading):
    "The code words in the first column of the table below a heading."
    return re.findall(r'^\| `([^`]+)` ', page.partition(f'\n## {heading}\n')[2].partition('\n## ')[0], re.M)


def test_every_setting_of_the_grammar_stands_on_its_page():
    page = reference.settings_page(ROOT)
    for field in fields(EncoderSpec):
        assert f'`{field.name}`' in page or field.name in reference.ABOUT
    assert sorted(first_column(page, 'Settings of a reranker')) == sorted(['complete', *SETTINGS])
    assert first_column(page, 'Settings of an expansion') == list(ExpansionSettings.model_fields)
    assert '`bm25(gensim)`' in page and '| `130` |' in page


def test_every_preset_and_batch_stands_on_the_page():
    page, files = reference.settings_page(ROOT), list(ROOT.glob('params/*/*.yaml'))
    batches = {file.stem for file in files if file.parent.name == 'batches'}
    assert set(first_column(page, 'Presets')) == {file.stem for file in files if file.parent.name != 'batches'}
    assert not [name for name in batches if f'`{name}`' not in page]


def test_links_to_files_of_the_repository_become_links_to_their_pages(tmp_path):
    site = stage.Site(tmp_path)
    site.add('papers/index.md', '', 'nbs/papers')
    site.add('adding.md', '', 'docs/adding.md')
    text = '[a](../docs/adding.md#x), [p](../nbs/papers), [gone](../tools/density.py), [out](https://x.org)\n'
    text += '```\n[a](../docs/adding.md)\n```\n'
    mended = site.linked('learn/x.md', text, 'nbs/x.ipynb')
    note, code = '<!-- not run: it takes a GPU -->\n', '```sh\n<!-- not run: x -->\n```\n'
    assert site.linked('x.md', f'a\n\n{note}{code}', 'x.md') == f'a\n\n{code}'
    links = '[a](../adding.md#x), [p](../papers/index.md), gone (`tools/density.py`), [out](https://x.org)'
    assert mended.startswith(links) and mended.endswith('```\n[a](../docs/adding.md)\n```\n')


def test_a_figure_that_the_site_has_is_shown(tmp_path):
    site = stage.Site(tmp_path)
    (tmp_path / 'figures').mkdir()
    (tmp_path / 'figures/x.svg').touch()
    pictures = '![a](../figures/x.svg) ![b](../figures/none.svg)'
    assert site.linked('guide.md', pictures, 'docs/guide.md') == '![a](figures/x.svg) b'
    assert site.linked('learn/guide.md', pictures, 'docs/guide.md') == '![a](../figures/x.svg) b'


@pytest.fixture(scope='module')
def data():
    return board(folder=ROOT / 'figures')


@pytest.fixture(scope='module')
def front(data):
    return stage.front_page(data)


@pytest.mark.medium
def test_the_table_of_the_front_page_says_what_the_published_cells_say(front, data):
    tasks = paper_tasks('r2med')
    cells = published('r2med', 'base', measure='nDCG@10', task=tasks)
    frame = (100 * cells.pivot(index='system', columns='task', values='value')).drop(index=['openai', 'voyage'])
    means = frame.mean(axis=1).sort_values(ascending=False)
    without = pd.DataFrame({task: frame.drop(columns=task).mean(axis=1).rank(ascending=False) for task in tasks})
    rows = [line.strip('| ') for line in front.splitlines() if re.match(r'\| [^|]+ \| \d', line)]
    lines = [re.split(r' *\| *', row) for row in rows]
    assert len(lines) == 7 and [line[1] for line in lines[:5]] == [f'{mean:.2f}' for mean in means.head(5)]
    models, systems = registry('models'), data['systems']
    for label, mean, rank, size, licence, _ in lines:
        (name,) = [name for name, value in means.items() if f'{value:.2f}' == mean]
        place, best, worst = 1 + list(means.index).index(name), without.loc[name].min(), without.loc[name].max()
        assert rank == (f'{place}' if best == worst else f'{place} ({best:.0f}–{worst:.0f})'), label
        (expression,) = {s['expression'] for s in systems if (s['table'], s['label']) == ('base', label)}
        row = models.get(expression.partition('(')[0])
        if row is None:
            assert (size, licence) == ('no weights', 'no weights') and expression.startswith('bm25')
            continue
        unit = {'M': 1e6, 'B': 1e9}[size[-1]]
        assert abs(float(size[:-2]) - row['params'] / unit) <= (0.5 if unit == 1e6 else 0.051), label
        assert licence == row['licence'] != '', label
    # the sentences above and below it
    first, second = means.index[:2]
    assert f'{means[first]:.2f} nDCG@10' in front and f'is {means[first] - means[second]:.2f} points' in front
    assert f'over {len(tasks)} tasks' in front
    barred = [line[0] for line in lines if '-nc' in line[4]]
    assert f'Not for commercial use: {", ".join(barred)}.' in front and barred
    assert f'between {without.loc[first].min():.0f} and {without.loc[first].max():.0f};' in front
    assert all(f'is printed as {frame["r2med-biology"][name]:.2f};' in front for name in (first, 'bm25'))
    assert f'{len(data["cells"]["row"]):,} printed scores' in front


def test_what_the_six_lines_print_is_the_stored_output(front):
    cells = json.loads((ROOT / 'nbs/index.ipynb').read_text())['cells']
    first = next(cell for cell in cells if cell['cell_type'] == 'code')
    assert ''.join(first['outputs'][0]['data']['text/plain']).strip() in front


def test_the_front_page_says_what_its_offline_command_prints(front):
    said, command = re.search(r'this one is (.+?):\n\n```sh\n(.+?)\n```', front, re.S).groups()
    assert command == 'medir evaluate hpo-lay --system bm25 --measures nDCG@10'
    row = scores_table([evaluate('hpo-lay', 'bm25', measures=['nDCG@10'])]).iloc[0]
    assert said == f'{row["value"]:.4f} [{row["low"]:.4f}, {row["high"]:.4f}]'


@pytest.mark.parametrize('sign', '=+-@＝＋－＠')
def test_no_table_for_spreadsheets_begins_with_a_sign_of_a_formula(sign, tmp_path):
    assert stage.csv_text([[f'{sign}cmd()']]) == f"'{sign}cmd()\n"
    write_csv(tmp_path / 'a.csv', ['query'], [{'query': f'{sign}cmd()'}])
    assert f"\n'{sign}cmd()" in (tmp_path / 'a.csv').read_text('utf-8-sig')
    board = (ROOT / 'medir_nb/registry/web/board.js').read_text(encoding='utf-8')
    [guarded] = re.findall(r'/\^\[(.*)\]/.test\(value\)', board)
    assert sign in guarded


def test_tables_of_a_notebook_are_downloads_in_which_nothing_runs():
    text = '# A\n\n| x | y |\n|---|---|\n| a \\| b | -0.5 |\n| =1+1 | +0.1 [-0.1, +0.3] |\n\n'
    text += 'said\n\n| z |\n|---|\n| -1+cmd |'
    tables = stage.tables_of(text)
    assert list(tables) == ['A', 'A (2)'] and tables['A'][1] == ['a | b', '-0.5']
    assert stage.csv_text(tables['A']) == 'x,y\na | b,-0.5\n\'=1+1,"+0.1 [-0.1, +0.3]"\n'
    assert stage.csv_text(tables['A (2)']) == "z\n'-1+cmd\n"
    packed = stage.packed_tables(text)
    assert packed == stage.packed_tables(text)
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        assert archive.namelist() == ['01-a.csv', '02-a-2.csv']


@pytest.fixture(scope='module')
def names(tmp_path_factory):
    "The files that the site offers to download."
    return stage.copy_files(tmp_path_factory.mktemp('downloads') / 'site')


OF_ALL = [ROOT / f'nbs/{name}.ipynb' for name in stage.OF_ALL_PAPERS]
PAPER_NOTEBOOKS = [*sorted((ROOT / 'nbs/papers').glob('*.ipynb')), *OF_ALL]


@pytest.mark.medium
def test_every_download_is_offered_with_the_papers_and_below_its_notebook(names):
    page = stage.papers_index(names)
    assert not [name for name in names if f'](../figures/{name})' not in page]
    assert '## Referees' in page and '](referees.md)' in page
    with_figures = [*PAPER_NOTEBOOKS, *(ROOT / 'nbs/11_workbook').glob('*_scale_plans.ipynb')]
    own = [name for notebook in with_figures for name in stage.own_files(notebook, names)]
    assert sorted(own) == sorted(name for name in names if '.published.' not in name)


@pytest.mark.parametrize('notebook', PAPER_NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_every_picture_of_a_paper_stands_once_and_is_a_download(notebook, tmp_path, names):
    notebooks.page_of(notebook, tmp_path / 'pictures')
    pictures = [file.read_bytes() for file in sorted(tmp_path.glob('pictures/*.png'))]
    assert len(set(pictures)) == len(pictures), 'a picture stands there twice'
    own = [Path(name).stem for name in stage.own_files(notebook, names) if name.endswith('.svg')]
    offered = {(ROOT / f'figures/{name}.png').read_bytes() for name in own}
    count, why = stage.UNKEPT.get(notebook.stem, (0, 'a reason'))
    assert sum(picture not in offered for picture in pictures) == count and why


def test_the_search_knows_the_names_that_a_table_explains():
    rows = '<tr><td><code>pooling</code></td><td><code>mean</code></td></tr><tr><td>x</td></tr><tr><td><code>dim</code>'
    settings = f'<table><tr><th>setting</th></tr>{rows}</td></tr></table>'
    page = f'<h1 id="p">P</h1><p>x</p><h2 id="s">S</h2>{settings}<h2 id="e">E</h2>'
    found = hook.names_of(page, 'learn/settings.html')
    assert found == {'learn/settings.html#s': ['pooling', 'dim']}
    entry = {'title': 'S', 'text': '<p>The <code>dim</code> of</p>'}
    assert hook.shortened(entry, ['pooling', 'dim']) == {'title': 'S', 'text': 'The dim of pooling'}


def test_the_search_reads_headings_and_prose_alone():
    text = '<p>Prose <code>x</code>.</p><pre>secret = 1</pre><table><tr><td>cell</table><blockquote>`name`</blockquote>'
    assert hook.shortened({'title': 'T', 'text': text}) == {'title': 'T', 'text': 'Prose x .'}
    assert len(hook.shortened({'text': 'word ' * 200})['text']) <= hook.SHOWN + 2


def test_a_style_keeps_rules_of_classes_that_pages_have():
    style = '.a .b{c:d}.a .gone,.a{e:f}.gone:hover{g:h}.a:not(.gone){i:j}'
    style += 'a[href$=".pdf"]{k:l}@media print{.gone{m:n}.b{o:p}}'
    kept = '.a .b{c:d}.a .gone,.a{e:f}.a:not(.gone){i:j}a[href$=".pdf"]{k:l}@media print{.b{o:p}}'
    assert hook.pruned(style, {'a', 'b'}) == kept


def test_what_every_page_repeats_stands_in_one_file():
    def page(base, search):
        scope = f'<script>__md_scope=new URL("{base}",location)</script>'
        config = json.dumps({'base': base, 'search': search, 'tags': None})
        palette = '<form class="md-header__option" data-md-component="palette">\n <i>x</i>\n</form>'
        palette += '<script>var palette=1<2</script>'
        field = '<header><nav><div class="md-search" role="dialog">\n <nav>x</nav>\n</div>\n</nav>\n</header>'
        return f'{scope}{palette}{field}<script id="__config" type="application/json">{config}</script>'

    frame = {}
    field = '<header><nav><script>__md_search()</script>\n</nav>\n</header>'
    called = f'<script>__md_colours()</script><script>__md_palette()</script>{field}<script>__md_config()</script>'
    top = hook.with_one_frame(page('.', 's/w.js'), hook.base_of('index.html'), frame)
    assert top == f'<script src="assets/frame.js"></script>{called}'
    below = hook.with_one_frame(page('../..', '../../s/w.js'), hook.base_of('a/b/c.html'), frame)
    assert below == f'<script src="../../assets/frame.js"></script>{called}'
    another = page('..', '../other.js')
    assert hook.with_one_frame(another, '..', frame) == another, 'a page that repeats something else keeps it'
    made = hook.frame_script(frame)
    assert '__md_scope=new URL(base,location)' in made and '{var palette=1<2}' in made and '"s/w.js"' in made
    assert '<div class=md-search role=dialog><nav>x</nav></div>' in made
    assert '<form class=md-header__option data-md-component=palette><i>x</i></form>' in made


@pytest.mark.skipif(not NODE, reason='no node on this machine; make docs-check saves a table in a browser')
def test_a_saved_table_is_a_csv_file_in_which_nothing_runs():
    def cell(text, rows=1, columns=1):
        return {'innerText': text, 'rowSpan': rows, 'colSpan': columns}

    lines = [[cell('task', rows=2), cell('nDCG@10', columns=2)], [cell('bm25'), cell(' =1+1 ')]]
    lines += [[cell('a,\n"b"'), cell('-0.5'), cell('+0.1 [-0.1, +0.3]')]]
    said = f"""const s = require({str(stage.HERE / 'web/site.js')!r})
        console.log(s.csvText(s.rowsOf({{rows: {json.dumps([{'cells': line} for line in lines])}}})))"""
    text = subprocess.run([NODE, '-e', said], capture_output=True, text=True, check=True).stdout
    rows = list(csv.reader(io.StringIO(text.removesuffix('\n'))))
    assert rows == [['task', 'nDCG@10', 'nDCG@10'], ['task', 'bm25', "'=1+1"], ['a, "b"', '-0.5', '+0.1 [-0.1, +0.3]']]


FORMULA_PAGE = r"""
For one query with score $s^+$ the loss is

$$-\log \frac{\exp(s^+/\tau)}{\sum_j \exp(s_j/\tau)},$$

A formula is text, too: $\text{<img src=x onerror="alert(1)">}$ and $a < b$.

It costs $5 to $10, or $5-$7; `$MEDIR_HOME` and `$MEDIR_DATA` are variables.

```sh
echo $HOME $PATH $x^2$
```
"""
TO_HTML = """
import sys
sys.path.insert(0, 'tools/site')
import hook, markdown, yaml
from mkdocs.utils.yaml import get_yaml_loader

settings = yaml.load(open('mkdocs.yml'), get_yaml_loader())['markdown_extensions']
names = [name if isinstance(name, str) else next(iter(name)) for name in settings]
options = {name: given for entry in settings if isinstance(entry, dict) for name, given in entry.items()}
page = markdown.markdown(sys.stdin.read(), extensions=names, extension_configs=options)
print(hook.with_formulas(page, 'x.md'))
"""
SITE_PYTHON = ROOT / '.venv-docs/bin/python'


@pytest.mark.skipif(not SITE_PYTHON.is_file(), reason='no tools of the site; make docs-check looks at formulas, too')
def test_formulas_are_drawn_and_dollars_of_other_kinds_stay():
    def made(text):
        return subprocess.run([SITE_PYTHON, '-c', TO_HTML], input=text, cwd=ROOT, capture_output=True, text=True)

    page = made(FORMULA_PAGE).stdout
    assert '<math><msup><mi>s</mi><mo>+</mo></msup></math>' in page
    assert page.count('<math display="block">') == 1 and page.count('<mfrac>') == 1 and page.count('<math') == 4
    assert not any(text in page for text in ('arithmatex', r'\frac', '<img')) and '<mtext>&lt;img' in page
    assert 'It costs $5 to $10, or $5-$7;' in page
    assert '<code>$MEDIR_HOME</code> and <code>$MEDIR_DATA</code>' in page and 'echo $HOME $PATH $x^2$' in page
    wrong = made(r'A formula that nobody can read: $\nosuch{x}$.')
    said = "x.md: the formula '\\\\nosuch{x}' cannot be drawn"
    assert wrong.returncode and said in wrong.stderr.splitlines()[-1]


def test_what_arithmatex_takes_for_a_formula_before_a_figure_is_an_amount():
    page = r'<p><span class="arithmatex">\(5-\)</span>7 and <span class="arithmatex">\(5&lt;\)</span>7</p>'
    assert hook.with_formulas(page) == '<p>$5-$7 and $5&lt;$7</p>'


def test_a_stored_page_names_the_parameters_of_its_outputs(tmp_path):
    def code(source, outputs, *tags):
        return {'cell_type': 'code', 'source': [source], 'outputs': outputs, 'metadata': {'tags': list(tags)}}

    output = {'output_type': 'stream', 'name': 'stdout', 'text': ['40']}
    own, call = code('limit = 10', [], 'parameters'), code('print(limit)', [])
    injected = code('# Parameters\nlimit = 40\n', [], 'injected-parameters')
    page, executed = tmp_path / 'page.ipynb', tmp_path / 'executed.ipynb'
    page.write_text(json.dumps({'cells': [own, call]}))
    executed.write_text(json.dumps({'cells': [own, injected, {**call, 'outputs': [output]}]}))
    for _ in range(2):  # storing again replaces the cell
        store_outputs.store(page, executed)
        first, shown, last = json.loads(page.read_text())['cells']
        assert first == own and last['outputs'] == [output]
        assert shown['cell_type'] == 'markdown' and '\nlimit = 40\n' in ''.join(shown['source'])


SITE = ROOT / 'site'


@pytest.mark.skipif(not (SITE / 'index.html').is_file(), reason='no site is built; make docs-check measures it, too')
def test_the_site_stays_small():
    files = [file for file in SITE.rglob('*') if file.is_file() and file.suffix not in ('.png', '.svg')]
    assert sum(file.stat().st_size for file in files) < stage.LIMIT
