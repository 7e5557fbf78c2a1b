"""The leaderboard: its data, its page, its command. The browser's part is `make docs-check`."""

import csv, html.parser, io, json, re, shutil, subprocess
from pathlib import Path
import pandas as pd, pytest
from medir_nb.core.errors import MedirError
from medir_nb.core.files import write_json
from medir_nb.papers.cells import published
from medir_nb.workbook.board_pages import board_page, content_policy, packed_json, unpacked_json, write_board
from medir_nb.workbook.board_scores import own_scores
from medir_nb.workbook.board_systems import system_parts
from medir_nb.workbook.boards import board, board_rows, rank_spread
from medir_nb.workbook.cell_tables import cell_table

ROOT = Path(__file__).parent.parent
WEB = ROOT / 'medir_nb' / 'registry' / 'web'
NODE = shutil.which('node')
EVIL = '</script><img src=x onerror=alert(1)>'
NFCORPUS = {'paper': 'referees', 'table': 'mteb', 'system': 'all-MiniLM-L6-v2', 'variant': 'mteb 0.0.2'}
NFCORPUS |= {'dataset': 'NFCorpus', 'metric': 'ndcg_at_10', 'as': 'minilm'}


def of_script(said):
    "What the page's script, as `b`, answers; with no node on this machine, `make docs-check` asks a browser."
    if not NODE:
        pytest.skip('no node on this machine; make docs-check asks a browser')
    script = f'const b = require({str(WEB / "board.js")!r}); Promise.resolve({said}).then(a => console.log(JSON.stringify(a)))'
    return json.loads(subprocess.run([NODE, '-e', script], capture_output=True, text=True, check=True).stdout)


@pytest.fixture(scope='module')
def everything():
    return board(folder=ROOT / 'figures')


@pytest.fixture
def referees(tmp_path):
    "The referees' board with one measured cell and one score of one's own, all under hostile names."
    write_json(
        tmp_path / 'x_cells.json',
        {'cells': [{**NFCORPUS, 'measured': 0.31594, 'low': 0.28, 'high': 0.35, 'verdict': f'equal: {EVIL}'}]},
    )
    mine = [
        {'task': EVIL, 'system': EVIL, 'measure': 'nDCG@10', 'value': 0.5, 'low': 0.4, 'high': 0.6, 'dtype': '=1+1'}
    ]
    write_json(tmp_path / 'mine.json', mine)
    return board('referees', folder=tmp_path, files=[tmp_path / 'mine.json'])


# ---------------------------------------------------------------- data


@pytest.mark.medium
def test_every_printed_score_is_on_the_board_once_with_its_source(everything):
    cells = published()
    scored = cells[cells.measure.notna() & cells.value.notna()]
    packed = everything['cells']
    assert {len(values) for values in packed.values()} == {len(scored)}
    assert packed['text'] == list(scored.text)
    assert [everything['texts'][i] for i in packed['source']] == list(scored.source)
    expected = 100 * scored.value / scored.scale
    assert abs(pd.Series(packed['value']) - expected.reset_index(drop=True)).max() < 1e-5
    # a row holds a column once, else one score would hide another
    assert len(set(zip(packed['row'], packed['column']))) == len(scored)


def test_names_of_rows_are_their_own_so_that_links_find_them(everything):
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
    for system in everything['systems']:
        assert system['kind'] in ('alone', 'expanded', 'reranked')
        assert [list(part) for part in system_parts(system['expression'])] == system['parts']


def test_measured_cells_stand_on_their_printed_ones(everything):
    cells = everything['cells']
    assert everything['measured']
    for found in everything['measured']:
        if found['verdict'] in ('equal', 'close'):
            assert abs(found['value'] - cells['value'][found['cell']]) < 0.5


def test_a_readers_run_stands_before_the_stored_one_with_its_receipt(tmp_path):
    home, run = tmp_path / 'home', tmp_path / 'home' / 'runs' / 'referees' / 'demo-1'
    run.mkdir(parents=True)
    (run / 'referees.ipynb').write_text('{}')
    write_json(run / 'referees_cells.json', {'cells': [{**NFCORPUS, 'measured': 0.31, 'verdict': 'unexplained'}]})
    pd.DataFrame([{'task': 'hpo-lay', 'split': 'test', 'system': 'bm25', 'measure': 'nDCG@10', 'value': 0.53}]).to_csv(
        run / 'scores.csv', index=False
    )
    receipt = {
        'key': 'abc',
        'output': str(run / 'referees.ipynb'),
        'output_fingerprint': '1',
        'finished': '2026-01-02',
        'notebook': 'referees',
    }
    write_json(
        home / 'receipts' / 'referees-abc.json',
        {**receipt, 'files': {'referees_cells.json': '1', 'scores.csv': '2', 'gone_cells.json': '3'}},
    )
    folder = tmp_path / 'figures'
    write_json(folder / 'x_cells.json', {'cells': [{**NFCORPUS, 'measured': 0.31594, 'verdict': 'equal'}]})
    data = board('referees', home, folder)
    assert [found['verdict'] for found in data['measured']] == ['unexplained', 'equal']
    assert data['receipts'][data['measured'][0]['receipt']]['key'] == 'abc' and data['measured'][1]['receipt'] is None
    (own,) = data['own']
    assert own['value'] == 53 and data['systems'][own['row']]['paper'] == 'own'
    assert str(tmp_path) not in json.dumps(data)
    # without a home folder, nothing of it is read
    assert not board('referees', None, folder)['own']


def scores_file(folder, *rows):
    first = {'split': 'test', 'system': 'bm25', 'measure': 'nDCG@10', 'value': 0.5}
    write_json(folder, [{**first, **row} for row in rows])
    return folder


def test_a_part_of_a_task_is_named_by_its_task_and_a_label_by_its_measure(tmp_path):
    file = scores_file(
        tmp_path / 'mine.json',
        {'task': 'hpo-lay[limit=120]'},
        {'task': 'hpo-lay[limit=120]', 'measure': 'R@1 strict'},
        {'task': 'hpo-lay', 'measure': 'nDCG@10 strict'},
        {'task': 'my-clinic', 'measure': 'R@1 strict'},
    )
    data = board('referees', folder=tmp_path, files=[file])
    heads = [data['columns'][own['column']] for own in data['own']]
    tasks = [data['tasks'][head['task']] for head in heads]
    measures = ['nDCG@10', 'R(rel=2)@1', 'nDCG(gains={1:0,2:1})@10', 'R@1 strict']
    assert [head['measure'] for head in heads] == measures
    assert tasks[0]['title'].endswith(' [limit=120]') and tasks[0]['language'] == 'en'
    assert (tasks[0]['main'], tasks[0]['queries'], tasks[2]['queries']) == ('nDCG@10', None, 200)


def test_of_several_scores_in_one_place_the_newest_stands_there(tmp_path):
    task = {'task': 'hpo-lay'}
    newer = scores_file(tmp_path / 'newer.json', {**task, 'revision': 'b', 'measure': 'R@1 strict', 'value': 0.25})
    older = scores_file(tmp_path / 'older.json', {**task, 'revision': 'a', 'measure': 'R(rel=2)@1', 'value': 0.75})
    (own,) = board('referees', folder=tmp_path, files=[newer, older])['own']
    assert (own['value'], own['revision']) == (25, 'b')


def test_a_command_takes_a_part_of_a_task_by_its_limit(medir):
    ((line,), *others) = of_script("""[
        b.commandsFor('bm25', ['hpo-lay[limit=120]'], 'R(rel=2)@1'), b.commandsFor('bm25', ['x[held-out]', 'y'], 'AP'),
        b.commandsFor('bm25', ['x[held-out][limit=5]'], ''), b.commandsFor('bm25', ['my-clinic'], 'R@1 strict')]""")
    assert others == [['medir evaluate y --system bm25 --measures AP'], [], ['medir evaluate my-clinic --system bm25']]
    assert line == "medir evaluate hpo-lay --system bm25 --measures 'R(rel=2)@1' --limit 120"
    import shlex

    assert medir(*shlex.split(line)[1:]).code == 0


def test_what_does_not_read_is_named(tmp_path):
    (tmp_path / 'a.json').write_text('[{"task": "t"}]')
    with pytest.raises(MedirError, match='no system, measure, value'):
        own_scores(files=[tmp_path / 'a.json'])
    (tmp_path / 'b.json').write_text('{')
    with pytest.raises(MedirError, match='b.json'):
        own_scores(files=[tmp_path / 'b.json'])
    write_json(
        tmp_path / 'x_cells.json', {'cells': [{**NFCORPUS, 'dataset': 'Nowhere', 'measured': 1, 'verdict': 'equal'}]}
    )
    with pytest.raises(MedirError, match='not published: referees mteb'):
        board('referees', folder=tmp_path)


def test_rows_for_a_script_say_the_same(referees):
    rows = board_rows(referees)
    assert len(rows) == len(referees['cells']['row']) + len(referees['own'])
    (measured,) = [row for row in rows if row.get('verdict')]
    assert (measured['published'], measured['measured'], measured['low']) == (31.594, 31.594, 28)


def test_a_contract_shows_what_the_expression_sets(everything):
    (system,) = [s for s in everything['systems'] if (s['table'], s['label']) == ('base', 'NV-Embed-v2')]
    assert system['settings']['models/nv-embed-v2'] == {'max_document_tokens': 4096, 'max_query_tokens': 4096}
    for system in everything['systems']:
        assert set(system['settings']) <= {'/'.join(part) for part in system['parts']} | {'models/bm25'}


def test_a_system_names_its_encoders_with_what_they_set(everything):
    from medir_nb.retrieval import parse

    for system in everything['systems']:
        for encoder in system['encoders']:
            assert str(parse(encoder, runnable=False)) == encoder and not set('+>') & set(encoder)
        retrievers = [name for kind, name in system['parts'] if kind == 'models']
        assert [encoder.partition('(')[0] for encoder in system['encoders']] == retrievers
    (nv,) = [s for s in everything['systems'] if (s['table'], s['label']) == ('base', 'NV-Embed-v2')]
    assert nv['encoders'] == [nv['expression']] != ['nv-embed-v2']


def test_a_row_with_an_environment_of_its_own_says_how_it_is_made(everything):
    from medir_nb.core.settings import registry
    from medir_nb.encoder import environment_lines

    models = registry('models')
    for system in everything['systems']:
        wanted = [models[name].get('environment') for kind, name in system['parts'] if kind == 'models']
        assert system['environments'] == [name for name in wanted if name], system['label']
    made = everything['environments']
    assert set(made) == {name for system in everything['systems'] for name in system['environments']} > set()
    for name, about in made.items():
        assert about['lines'] == environment_lines(name, Path('.medir/environments') / name)


def test_what_was_measured_has_an_expression_whatever_was_printed(everything):
    "BM25 under the name of a printed one; an encoder under the name of a paper."
    for found in everything['measured']:
        assert everything['compared'][found['as']]['expression']
    by_name = {name: about['expression'] for name, about in everything['compared'].items()}
    of_bm25 = {name: name for name in ('bm25(multifield)', 'bm25')}
    assert by_name == {**of_bm25, 'all-MiniLM-L6-v2': 'minilm', 'all-mpnet-base-v2': 'mpnet'}
    assert everything['compared']['bm25(multifield)']['words']['bm25(multifield)']['en']['k1'] == 0.9
    for about in everything['compared'].values():
        for kind, name in about['parts']:
            assert (
                everything['models'][f'{kind}/{name}']['revision'] and everything['models'][f'{kind}/{name}']['dtype']
            )


def test_hours_of_a_cell_are_those_of_its_work(everything):
    from medir_nb.workbook.ways import hours_on

    cells, checked = everything['cells'], 0
    for i in range(0, len(cells['row']), 500):
        hours, way = everything['hours'][cells['hours'][i]], everything['ways'][cells['way'][i]][0]
        system, head = everything['systems'][cells['row'][i]], everything['columns'][cells['column'][i]]
        assert (hours is None) == (way not in ('cpu', 'gpu') or not system['expression'])
        if hours:
            whole = hours_on(system['expression'], [everything['tasks'][task]['name'] for task in head['tasks']])
            assert hours == [pytest.approx(value, rel=0.01) for value in whole.values()]
            checked += 1
    assert checked > 10 and everything['rates']['gpu'].startswith('BMRetriever Table 11')


# ---------------------------------------------------------------- ranks


def values_of(everything, paper, table, measure):
    "A frame system × task of printed values."
    cells, found = everything['cells'], {}
    for i, (row, column) in enumerate(zip(cells['row'], cells['column'])):
        system, head = everything['systems'][row], everything['columns'][column]
        if (system['paper'], system['table'], head['measure']) == (paper, table, measure) and 'task' in head:
            found.setdefault(system['label'], {})[everything['tasks'][head['task']]['name']] = cells['value'][i]
    return pd.DataFrame(found).T


def by_hand(frame):
    "Ranks by counting who is better."
    means = {name: round(sum(row) / len(row), 7) for name, row in zip(frame.index, frame.values.tolist())}
    return {name: 1 + sum(other > mean for other in means.values()) for name, mean in means.items()}


def test_a_rank_and_its_ends_are_those_of_counting(everything):
    frame = values_of(everything, 'r2med', 'base', 'nDCG@10').drop(columns='nfcorpus', errors='ignore')
    assert frame.shape == (15, 8)
    found = rank_spread(frame, list(frame))
    ranks, without = by_hand(frame), [by_hand(frame.drop(columns=task)) for task in frame]
    for name, row in found.iterrows():
        ends = [other[name] for other in without]
        assert (row['rank'], row['best'], row['worst']) == (ranks[name], min(ends), max(ends))
    assert (found.best <= found['rank']).all() and (found['rank'] <= found.worst).all()


def test_who_lacks_a_task_has_no_rank_and_one_task_has_no_spread():
    frame = pd.DataFrame({'a': [1.0, 2.0, None], 'b': [3.0, 2.0, 9.0]}, index=list('xyz'))
    assert sorted(rank_spread(frame, ['a', 'b']).index) == ['x', 'y']
    assert rank_spread(frame, ['b']).best.to_dict() == {'x': 2, 'y': 3, 'z': 1}


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
            assert [row['rank'], row['best'], row['worst']] == expected.loc[name, ['rank', 'best', 'worst']].astype(
                int
            ).to_list()


def test_commands_and_tables_of_the_page_are_safe_to_paste():
    commands, none, quoted, fields = of_script("""[
        b.commandsFor("bge+hyde(qwen@authors)", ["r2med-biology"], "nDCG@10"), b.commandsFor("", ["x"], "AP"),
        b.quoted("a'; rm -rf /"), ['=1+1', '@x', 'a"b', 'plain', -1, null].map(b.csvField)]""")
    assert (
        commands == ["medir evaluate r2med-biology --system 'bge+hyde(qwen@authors)' --measures nDCG@10"] and none == []
    )
    import shlex

    assert shlex.split(quoted) == ["a'; rm -rf /"]
    assert next(csv.reader(io.StringIO(','.join(fields)))) == ["'=1+1", "'@x", 'a"b', 'plain', '-1', '']


def test_the_page_says_how_long_a_cell_takes():
    said = """[
        b.hoursText('cpu', [12.3, 0.05, 0]), b.hoursText('gpu', [99, 1.92, 0]), b.hoursText('cpu', [0, 0, 0]),
        b.hoursText('gpu', [99, 0.3, 1030]), b.hoursText('service', null), b.hoursText('gpu', [900, null, 0]),
        b.hardestWay([0, 2, 1]), b.hardestWay([])]"""
    assert of_script(said) == [
        '≈3 min on one 80 GB GPU, or ≈12 h on two CPU cores',
        '≈1.9 h on one 80 GB GPU',
        'minutes on a CPU',
        '≈18 min on one 80 GB GPU, and 1,030 pairs to score, for which no GPU has a published rate',
        '',
        '',
        2,
        0,
    ]


# ---------------------------------------------------------------- the page


class Elements(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.found, self.texts, self.inside = [], {}, ''
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))
        self.inside = dict(attributes).get('id', '') if tag == 'script' else ''

    def handle_endtag(self, tag):
        self.inside = ''

    def handle_data(self, text):
        if self.inside:
            self.texts[self.inside] = text


def test_what_a_page_shows_cannot_become_part_of_it(referees):
    page = board_page(referees)
    elements = Elements(page)
    tags = [tag for tag, _ in elements.found]
    assert tags.count('script') == 3 and 'img' not in tags
    assert not [name for _, attributes in elements.found for name in attributes if name.startswith('on')]
    assert unpacked_json(elements.texts['data']) == referees
    assert EVIL in unpacked_json(elements.texts['data'])['systems'][-1]['label']


def test_the_page_asks_nobody_for_anything(referees):
    page = board_page(referees, home_link='../index.html')
    elements = Elements(page)
    links = [v for _, attributes in elements.found for k, v in attributes.items() if k in ('src', 'href')]
    assert [link for link in links if not link.startswith(('#', 'data:'))] == ['../index.html']
    (policy,) = [a['content'] for _, a in elements.found if a.get('http-equiv') == 'Content-Security-Policy']
    assert "default-src 'none'" in policy and 'unsafe' not in policy and 'http' not in policy
    style = re.search(r'<style>(.*?)</style>', page, re.S)[1]
    scripts = re.findall(r'<script>(.*?)</script>', page, re.S)
    assert policy == content_policy(scripts, [style]) and '@import' not in style and 'url(' not in style
    assert 'sourceMappingURL' not in page


def test_the_script_writes_texts_and_never_markup():
    script = (WEB / 'board.js').read_text()
    assert not re.search(
        r'innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function|DOMParser|srcdoc', script
    )
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


def test_the_page_stays_small(everything):
    assert len(board_page(everything).encode()) < 400_000


def test_the_command(medir, tmp_path):
    ran = medir('leaderboard', 'referees', '--html', tmp_path / 'board.html', '--home', tmp_path / 'home')
    assert ran.code == 0 and (tmp_path / 'board.html').read_text().startswith('<!doctype html>')
    rows = json.loads(medir('leaderboard', 'referees', '--json', '--home', tmp_path / 'home').out)
    assert len(rows) == 12 and rows[0]['way'] == 'cpu'
    assert 'nothing to write' in medir('leaderboard').err
    assert 'r2med' in medir('leaderboard', 'r2mde', '--json').err
