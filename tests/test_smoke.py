"The papers' notebooks and that of efficiency under `smoke`, their defaults: what they write."

import json
from pathlib import Path
import pandas as pd
import pytest
from medir_nb.evaluator import evaluate
from medir_nb.workbook import find_notebook, resolve_parameters, run_notebook

ROOT = Path(__file__).parents[1]
PAPERS = sorted(path.stem for path in (ROOT / 'nbs' / 'papers').glob('*.ipynb'))
pytestmark = pytest.mark.medium
written_here = {}


def written(name, tmp_path_factory):
    "The folder of a notebook's smoke run."
    if name not in written_here:
        home = tmp_path_factory.mktemp(name)
        written_here[name] = Path(run_notebook(name, home_folder=home)['output']).parent
    return written_here[name]


@pytest.mark.parametrize('name', PAPERS)
def test_a_smoke_run_writes_whole_tables(name, tmp_path_factory, monkeypatch):
    monkeypatch.delenv('MEDIR_DATA', raising=False)
    folder = written(name, tmp_path_factory)
    (report,) = folder.glob('*_tables.md')
    parts = report.read_text(encoding='utf-8').split('\n# ')
    assert len(parts) >= 3 and all('|' in part for part in parts), [part[:60] for part in parts if '|' not in part]
    scores = pd.read_csv(folder / 'scores.csv')
    assert not (folder / 'not_run.csv').exists()
    covered = scores.dropna(subset=['low', 'high'])  # few queries with one value have no interval
    assert len(covered) and (covered.low <= covered.value).all() and (covered.value <= covered.high).all()
    assert scores.value.between(-1, 1).all() and (scores.n_queries > 0).all()


def test_efficiency_runs_with_its_defaults_and_fills_every_row(tmp_path):
    output = Path(run_notebook('efficiency', home_folder=tmp_path)['output'])
    rows = pd.DataFrame(json.loads((output.parent / 'efficiency.json').read_text(encoding='utf-8'))['rows'])
    assert len(rows) >= 15 and rows.result.notna().all()
    assert (rows['this project'] > 0).all() and (rows.other > 0).all()


@pytest.mark.parametrize('name', PAPERS)
def test_a_smoke_run_has_every_system_and_its_scores_are_the_librarys(name, tmp_path_factory, monkeypatch):
    monkeypatch.delenv('MEDIR_DATA', raising=False)
    parameters = resolve_parameters(find_notebook(name))
    scores = pd.read_csv(written(name, tmp_path_factory) / 'scores.csv')
    systems = parameters.get('systems', [parameters.get('retriever')])
    task, limit = parameters['tasks'][0], parameters.get('limit') or None
    for system in [s for s in systems if '+' not in s][:2]:
        score = evaluate(task, system, limit=limit)
        (found,) = scores[(scores.system == score.label) & (scores.measure == str(score.measures[0]))].value
        assert found == pytest.approx(score.mean(score.measures[0]), abs=1e-9)
    assert scores.system.nunique() >= len(systems)


def test_figure_1_of_medteb_draws_a_tower_under_the_name_that_the_tuning_leaves(tmp_path_factory, monkeypatch):
    monkeypatch.delenv('MEDIR_DATA', raising=False)
    drawn = pd.read_csv(written('medteb_evaluation', tmp_path_factory) / 'medteb_figure1.csv')
    assert set(drawn.system) == {'minilm', 'minilm-medteb'} and set(drawn.measure) == {'nDCG@10'}


def test_the_roles_of_cmirb_are_replayed_and_nobody_is_asked(tmp_path_factory, monkeypatch):
    monkeypatch.delenv('MEDIR_DATA', raising=False)
    folder = written('cmirb_construction', tmp_path_factory)
    (made,) = folder.glob('benchmark/*/retrieval/benchmark.json')
    assert json.loads(made.read_text(encoding='utf-8'))['recipe'] == 'cmirb'
    assert "# CMIRB's recipe" in (folder / 'cmirb_construction_tables.md').read_text(encoding='utf-8')
    assert not list(folder.parents[2].glob('cassettes/*'))  # where an answer that was asked for would lie
