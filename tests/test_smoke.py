"What the papers' notebooks write under `smoke`, their defaults: `nbdev_test` runs them before, and shows nothing of it."

from pathlib import Path
import pandas as pd
import pytest
from medir_nb.evaluator import evaluate
from medir_nb.workbook import find_notebook, resolve, run_notebook

ROOT = Path(__file__).parents[1]
PAPERS = sorted(path.stem for path in (ROOT / 'nbs' / 'papers').glob('*.ipynb'))
written_here = {}


def tables(folder):
    return sorted(folder.glob('*_tables.md'))


def is_of_this_code(folder, name):
    "Whether the tables of a notebook were written after everything that they hang on."
    code = [ROOT / 'nbs' / 'papers' / f'{name}.ipynb', *(ROOT / 'medir_nb').rglob('*.py')]
    code += (ROOT / 'medir_nb' / 'registry').rglob('*.*')
    newest = max(path.stat().st_mtime for path in code if '__pycache__' not in path.parts)
    return bool(tables(folder)) and tables(folder)[0].stat().st_mtime > newest


def written(name, tmp_path_factory):
    "The folder of a notebook's smoke run: that of `nbdev_test` where it is of this code, else one that runs now."
    folder = ROOT / '.medir' / 'out' / name
    if not is_of_this_code(folder, name):
        if name not in written_here:
            home = tmp_path_factory.mktemp(name)
            written_here[name] = Path(run_notebook(name, home_folder=home)['output']).parent
        folder = written_here[name]
    return folder


@pytest.mark.parametrize('name', PAPERS)
def test_a_smoke_run_writes_whole_tables(name, tmp_path_factory, monkeypatch):
    monkeypatch.delenv('MEDIR_DATA', raising=False)
    folder = written(name, tmp_path_factory)
    (report,) = tables(folder)
    parts = report.read_text(encoding='utf-8').split('\n# ')
    assert len(parts) >= 3 and all('|' in part for part in parts), [part[:60] for part in parts if '|' not in part]
    scores = pd.read_csv(folder / 'scores.csv')
    assert not (folder / 'not_run.csv').exists()
    assert (scores.low <= scores.value).all() and (scores.value <= scores.high).all()
    assert scores.value.between(-1, 1).all() and (scores.n_queries > 0).all()


@pytest.mark.parametrize('name', PAPERS)
def test_a_smoke_run_has_every_system_and_its_scores_are_the_librarys(name, tmp_path_factory, monkeypatch):
    monkeypatch.delenv('MEDIR_DATA', raising=False)
    parameters = resolve(find_notebook(name))
    scores = pd.read_csv(written(name, tmp_path_factory) / 'scores.csv')
    systems = parameters.get('systems', [parameters.get('retriever')])
    task, limit = parameters['tasks'][0], parameters.get('limit') or None
    for system in [s for s in systems if '+' not in s][:2]:
        score = evaluate(task, system, limit=limit)
        (found,) = scores[(scores.system == score.label) & (scores.measure == str(score.measures[0]))].value
        assert found == pytest.approx(score.mean(score.measures[0]), abs=1e-9)
    assert scores.system.nunique() >= len(systems)
