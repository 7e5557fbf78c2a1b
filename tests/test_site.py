"""The site's pages as they are laid out; the built site is checked in a browser by `make docs-check`."""

import json, re, sys
from pathlib import Path
import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / 'tools' / 'site'))
import notebooks, reference, stage


def notebook(*cells):
    return {'cells': [{'source': source, 'outputs': [], **more, 'cell_type': kind} for kind, source, more in cells]}


def test_an_output_keeps_its_table_and_nothing_that_runs():
    said = '<style>td{}</style><table border=1 onclick="x()"><tr><th scope="row">a<td style="color:red"><img src=x onerror=alert(1)>'
    said += '<a href="javascript:alert(1)">b</a> 1 &lt; 2<script>alert(1)</script></table><svg onload=alert(1)><text>no</text></svg>'
    clean = notebooks.clean_html(said)
    assert clean == '<table><tr><th scope="row">a<td>b 1 &lt; 2</table>'
    assert notebooks.clean_html('&lt;script&gt;alert(1)&lt;/script&gt;') == '&lt;script&gt;alert(1)&lt;/script&gt;'


def test_a_fence_is_longer_than_those_inside():
    assert notebooks.fenced('a\n````\nb', 'text').startswith('`````text\n')


def test_a_notebook_becomes_prose_lessons_and_names_of_what_it_exports(tmp_path):
    export = '#| export\ndef load(name: str):  # of a task\n    "Read a task."\n    return name\n\n\ndef _private():\n    pass'
    cells = notebook(
        ('markdown', '# data.x', {}),
        ('code', '#| default_exp data.x', {}),
        ('code', 'import os\nfrom x import y', {}),
        ('code', export, {}),
    )
    lesson = {
        'outputs': [
            {'output_type': 'execute_result', 'data': {'text/plain': "'hpo-lay'"}},
            {'output_type': 'display_data', 'data': {'image/png': 'aGVsbG8='}},
        ]
    }
    cells['cells'] += notebook(('code', "load('hpo-lay')", lesson))['cells']
    (tmp_path / 'n.ipynb').write_text(json.dumps(cells))
    page = notebooks.page_of(tmp_path / 'n.ipynb', tmp_path / 'pictures', deeper=1, api='../api/data.md')
    assert page.startswith('## data.x') and '[`load`](../api/data.md#load): Read a task.' in page
    assert "```python\nload('hpo-lay')\n```" in page and "'hpo-lay'" in page
    assert '_private' not in page and 'import os' not in page and 'default_exp' not in page
    assert (tmp_path / 'pictures' / 'n-4-1.png').read_bytes() == b'hello'


def test_the_reference_keeps_comments_of_parameters():
    page = reference.api_page(ROOT, 'workbook')
    assert 'home_folder=None,  # whose receipts are read, too; None reads none' in page and '### rank_spread' in page


def test_every_variable_that_the_code_reads_has_its_line():
    read = {
        name
        for file in (ROOT / 'medir_nb').rglob('*.py')
        for name in re.findall(r"['\"](MEDIR_[A-Z_]+)['\"]", file.read_text())
    }
    assert read <= set(reference.VARIABLES)
    assert {name for name in reference.VARIABLES if name.startswith('MEDIR_')} <= read


def test_every_setting_of_an_encoder_stands_on_its_page():
    from dataclasses import fields
    from medir_nb.encoder.row import EncoderSpec

    page = reference.settings_page(ROOT)
    for field in fields(EncoderSpec):
        assert f'`{field.name}`' in page or field.name in ('name', 'label', 'tried', 'licence')
    assert '`bm25(gensim)`' in page and '| 130 |' in page


def test_links_to_files_of_the_repository_become_links_to_their_pages(tmp_path):
    site = stage.Site(tmp_path)
    site.add('papers/index.md', '', 'nbs/papers')
    site.add('adding.md', '', 'docs/adding.md')
    text = '[a](../docs/adding.md#x), [p](../nbs/papers), [gone](../tools/density.py), [out](https://x.org)\n```\n[a](../docs/adding.md)\n```\n'
    mended = site.linked('learn/x.md', text, 'nbs/x.ipynb')
    assert mended.startswith(
        '[a](../adding.md#x), [p](../papers/index.md), gone (`tools/density.py`), [out](https://x.org)'
    )
    assert mended.endswith('```\n[a](../docs/adding.md)\n```\n')


@pytest.fixture(scope='module')
def data():
    from medir_nb.workbook.boards import board

    return board(folder=ROOT / 'figures')


def test_numbers_of_the_front_page_are_those_of_their_sources(data):
    from medir_nb.ledger import published
    from medir_nb.ledger.papers import paper_tasks
    from medir_nb.workbook.coverages import coverage, coverage_sentence

    page, tasks = stage.front_page(data), paper_tasks('r2med')
    cells = published('r2med', 'base', measure='nDCG@10', task=tasks)
    means = (100 * cells.groupby('system').value.mean()).round(2)
    lines = [line.split(' | ') for line in page.splitlines() if re.match(r'\| [^|]+ \| \d', line)]
    assert len(lines) == 5
    for line in lines:
        assert float(line[1]) in set(means)
    services = {'openai', 'voyage'}
    assert float(lines[0][1]) == means[~means.index.isin(services)].max()
    assert coverage_sentence(coverage(folder=ROOT / 'figures')) in page
    assert f'{len(data["cells"]["row"]):,} printed scores' in page
    assert page.index('## Six lines') < page.index('medir evaluate r2med-biology')


def test_the_readme_says_what_the_stored_scores_say():
    import csv

    rows = {
        (row['system'], row['measure']): row for row in csv.DictReader((ROOT / 'figures/bmretriever_scores.csv').open())
    }
    readme = (ROOT / 'README.md').read_text()
    for system in ('bm25', 'minilm', 'rrf(bm25,minilm)'):
        row = rows[system, 'nDCG@10']
        shown = f'{float(row["value"]):.3f} [{float(row["low"]):.3f}, {float(row["high"]):.3f}]'
        assert f'| {system} |' in readme and shown in readme
