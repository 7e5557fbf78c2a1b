"How much of the papers was measured: every cell once, in one way, and the same wherever a reader sees it."

import json, socket, subprocess, sys, time
from pathlib import Path
import pytest
from medir_nb.core import MedirError, registry, write_json
from medir_nb.core.settings import rows
from medir_nb.papers import Ledger, published, write_tables
from medir_nb.papers.table import CELL_KEY, VERDICTS
from medir_nb.workbook import cell_table, coverage, coverage_line, coverage_reasons, coverage_table, with_coverage
from medir_nb.workbook.coverages import hours_of
from medir_nb.workbook.ways import Way, data_way, model_way, text_way, way_of, works_of

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / 'tools'))
WAYS = list(registry('coverage')['ways'])
KINDS = [kind for kind in VERDICTS if kind != 'not run']
BM25 = {'paper': 'bmretriever', 'table': 'Table 2', 'system': 'BM25 (Robertson et al., 2009)', 'variant': '-'}
NFCORPUS = {**BM25, 'dataset': 'NFCorpus', 'metric': 'nDCG@10', 'measured': 0.321, 'as': 'bm25'}


@pytest.fixture(scope='module')
def cells():
    return cell_table()


@pytest.fixture(scope='module')
def counts():
    return coverage()


@pytest.mark.medium
def test_every_published_cell_has_exactly_one_way(cells, counts):
    assert len(cells) == len(published()) == counts.published.sum()
    assert set(cells.way) <= set(WAYS) and not cells.duplicated(list(CELL_KEY)).any()
    for row in counts.to_dict('records'):
        assert sum(row[way] for way in WAYS) == row['published'] == len(published(row['paper'])), row['paper']
        assert sum(row[kind] for kind in KINDS) == row['measured'] <= row['published'], row['paper']


def test_what_is_no_score_is_in_no_other_way(cells):
    assert (cells[cells.measure.isna()].way == 'no score').all()
    assert not (cells[cells.measure.notna()].way == 'no score').any()


@pytest.mark.medium
def test_every_reason_is_counted_once(counts):
    reasons = coverage_reasons()
    for row in counts.to_dict('records'):
        own = reasons[reasons.paper == row['paper']]
        for way in ('larger', 'service', 'unknown', 'never'):
            assert own[own.way == way].cells.sum() == row[way], (row['paper'], way)
    assert reasons.why.str.len().gt(5).all()


def test_a_mean_takes_the_way_of_its_hardest_task(cells):
    order = {way: i for i, way in enumerate(WAYS)}
    means = cells[cells.task.isna() & cells.measure.notna() & (cells.expression != '') & cells.tasks.str.len().gt(0)]
    assert len(means) > 50
    for mean in means.drop_duplicates(['expression', 'tasks']).itertuples():
        ways = [way_of(mean.expression, task).name for task in mean.tasks]
        assert mean.way == max(ways, key=order.get), mean


@pytest.mark.parametrize(
    'expression, task, way',
    [
        ('bm25', 'nfcorpus', 'cpu'),
        ('bge-large-en-v1.5', 'nfcorpus', 'cpu'),
        ('bge-large-en-v1.5', 'trec-covid', 'gpu'),
        ('bmretriever-7b', 'biosses', 'gpu'),
        ('voyage-3', 'r2med-biology', 'service'),
        ('voyage-3', 'bioasq', 'never'),
        ('cpt-text-xl', 'nfcorpus', 'never'),
        ('bge-large-zh-slhyde', 'cmirb-covid', 'never'),
        ('specter2', 'nfcorpus', 'unknown'),
        ('bm25+hyde(gpt-4o@authors)', 'r2med-biology', 'cpu'),
        ('bm25+search-o1(qwq-32b@authors)', 'r2med-biology', 'unknown'),
        ('bm25+hyde(llama2-7b@authors)', 'cmirb-covid', 'never'),
        ('nv-embed-v2>monobert@10', 'r2med-biology', 'gpu'),
        ('rrf(bm25,voyage-3)', 'nfcorpus', 'service'),
        ('minilm', 'no-such-task', 'unknown'),
    ],
)
def test_ways(expression, task, way):
    assert way_of(expression, task).name == way


def test_a_size_beyond_one_gpu_is_said():
    row = registry('models')['bmretriever-7b']
    with rows('models', {'giant': {**row, 'params': 70_000_000_000}}):
        assert model_way('giant').name == 'larger'
        assert model_way('giant', dtype='bfloat16').why == '140 GB of weights'
    assert data_way('drugbank').name == 'never' and model_way('nobody').name == 'unknown'
    assert text_way('hyde', 'smollm2', 'nfcorpus') == Way('unknown', 'its writer has no known size')


def test_work_that_cells_share_is_done_once():
    pieces = {*works_of('minilm', 'nfcorpus'), *works_of('minilm+hyde(gpt-4o@authors)', 'nfcorpus')}
    assert len(pieces) == 2
    once = cell_table('referees')
    twice = once.loc[[*once.index, *once.index]]
    assert hours_of(once) == hours_of(twice) and hours_of(once)['cpu hours'] > 0


def test_hours_of_a_gpu_are_the_plans():
    from medir_nb.workbook.money import encode_rate

    (work,) = works_of('bmretriever-7b', 'nfcorpus')
    assert work.texts == 3956 and work.gpu_hours == pytest.approx(3956 / encode_rate(7e9) / 3600, rel=0.05)


def test_two_results_of_one_cell_count_once_and_the_better_one(tmp_path):
    for name, verdict in {'a': 'not comparable: settings', 'b': 'equal', 'c': 'close'}.items():
        write_json(tmp_path / f'{name}_cells.json', {'cells': [{**NFCORPUS, 'verdict': verdict}]})
    row = coverage('bmretriever', folder=tmp_path).iloc[0]
    assert (row['measured'], row['equal'], row['close'], row['not comparable']) == (1, 1, 0, 0)
    assert coverage('bmretriever', ['Table 3'], tmp_path).iloc[0]['measured'] == 0
    assert 'here 1 was measured (1 equal)' in coverage_line('bmretriever', 'Table 2', folder=tmp_path)


def test_a_stored_result_of_no_published_cell_is_refused(tmp_path):
    write_json(tmp_path / 'a_cells.json', {'cells': [{**NFCORPUS, 'dataset': 'Nowhere', 'verdict': 'equal'}]})
    with pytest.raises(MedirError, match='not published: bmretriever Table 2'):
        coverage('bmretriever', folder=tmp_path)
    (tmp_path / 'a_cells.json').write_text('{"cells": [{}]}')
    with pytest.raises(MedirError, match='does not read as stored results'):
        coverage(folder=tmp_path)


def test_outside_a_workbook_nothing_is_claimed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv('MEDIR_ROOT', raising=False)
    counts = coverage('bmretriever')
    assert counts.iloc[0]['measured'] is None and list(coverage_table(counts)['measured']) == ['–']
    assert 'what was measured stands in the repository' in coverage_line('bmretriever', 'Table 3')


def test_a_ledger_leaves_what_it_compared(tmp_path, tiny_scores_of_nfcorpus):
    ledger = Ledger(published('bmretriever', 'Table 2'), tiny_scores_of_nfcorpus)
    write_tables(tmp_path / 'x_tables.md', {'Table 2': ledger, 'Beside': '…'})
    (left,) = json.loads((tmp_path / 'x_cells.json').read_text())['cells']
    assert {name: left[name] for name in BM25} == BM25 and left['verdict'].startswith('not comparable')
    assert coverage('bmretriever', folder=tmp_path).iloc[0]['not comparable'] == 1
    write_tables(tmp_path / 'y_tables.md', {'Beside': '…'})
    assert not (tmp_path / 'y_cells.json').exists()


@pytest.fixture
def tiny_scores_of_nfcorpus(tmp_path):
    import pandas as pd
    from medir_nb.data import task_from_frames
    from medir_nb.evaluator import evaluate

    documents = pd.DataFrame({'id': ['d1', 'd2'], 'text': ['scurvy is lack of vitamin C', 'gout is urate']})
    queries = pd.DataFrame({'id': ['q1'], 'text': ['vitamin C']})
    judged = pd.DataFrame({'query_id': ['q1'], 'doc_id': ['d1'], 'relevance': [1]})
    task = task_from_frames(documents, queries, judged, name='nfcorpus')
    return [evaluate(task, 'bm25', ['nDCG@10'], home_folder=tmp_path / 'home')]


def test_no_connection_is_opened_and_no_model_is_loaded(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError('a connection')

    monkeypatch.setattr(socket.socket, 'connect', refuse)
    start = time.process_time()
    assert len(coverage('automir')) == 1
    assert time.process_time() - start < 20
    code = (
        'import sys; from medir_nb.workbook import coverage; coverage("bmretriever"); '
        'bad = {"torch", "transformers", "sentence_transformers", "faiss", "datasets"} & set(sys.modules); '
        'sys.exit(str(bad) if bad else 0)'
    )
    assert subprocess.run([sys.executable, '-c', code], cwd=ROOT).returncode == 0


@pytest.mark.medium
def test_the_documents_say_what_is_computed():
    from write_coverage import DOCUMENTS

    texts = [document.read_text(encoding='utf-8') for document in DOCUMENTS]
    assert texts == [with_coverage(text) for text in texts], 'run make coverage'
    assert ['<!-- coverage -->' in text for text in texts] == [False, True]
    first, second = texts[0].split('\n\n')[1].split('. ', 1)
    assert second.startswith('<!-- measured -->Measured here so far: ')


@pytest.mark.medium
@pytest.mark.parametrize(
    'text', ['no marks', '<!-- measured -->', '<!-- coverage --><!-- /coverage --> <!-- /measured -->']
)
def test_a_document_without_its_marks_is_refused(text):
    with pytest.raises(MedirError, match='measured'):
        with_coverage(text)


@pytest.mark.medium
def test_the_stored_line_of_every_paper_notebook_is_what_is_computed():
    from write_coverage import NOTEBOOKS, stored_lines

    for path in NOTEBOOKS:
        notebook = json.loads(path.read_text())
        ((output, arguments),) = stored_lines(notebook)
        assert ''.join(output['data']['text/markdown']) == coverage_line(*arguments), f'{path.name}: run make coverage'


def test_every_notebook_of_a_paper_says_its_coverage_below_its_parameters():
    from write_coverage import called_with

    for path in sorted((ROOT / 'nbs/papers').glob('*.ipynb')):
        cells = [cell for cell in json.loads(path.read_text())['cells'] if cell['cell_type'] == 'code']
        paper, *_ = called_with(''.join(cells[1]['source']))
        assert path.stem in registry('papers')[paper]['notebooks']


# ---------------------------------------------------------------- the referees


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
    known = {
        ('all-MiniLM-L6-v2', 'nDCG@10'): (0.31594, 'equal'),
        ('all-MiniLM-L6-v2', 'R@100'): (0.31151, 'equal'),
        # documents of one text that are judged differently move it between .33255 and .33403
        ('all-mpnet-base-v2', 'nDCG@10'): (0.33289, 'equal'),
        ('all-mpnet-base-v2', 'R@100'): (0.33853, 'equal'),
    }
    assert known.items() <= found.items()
    equal = beside[beside.verdict == 'equal']
    assert (equal.measured - equal.value).abs().max() <= 0.5e-5 + 1e-9
    assert (beside.measured - beside.value).abs().max() <= 2e-5
    cells = json.loads((ROOT / 'figures' / 'referees_cells.json').read_text())['cells']
    assert all(cell['low'] < cell['measured'] < cell['high'] for cell in cells)


# ---------------------------------------------------------------- the command


def test_command(medir):
    shown = medir('coverage', 'bmretriever')
    assert shown.code == 0 and '565' in shown.out and 'never released' in shown.out
    rows = json.loads(medir('coverage', 'bmretriever', '--json').out)
    assert rows['coverage'][0]['published'] == 565 and rows['reasons']
    wrong = medir('coverage', 'bmretreiver')
    assert wrong.code == 2 and 'bmretriever' in wrong.err and len(wrong.err.strip().splitlines()) == 1
