"""Make medir_nb/registry/independent/mteb.csv: what contributors of mteb measured on the tasks of the registry.

    python tools/convert_independent.py CHECKOUT [TARGET]

CHECKOUT is a clone of embeddings-benchmark/results (CC0). Taken are the tasks that `tasks.yaml` names in mteb's words,
at the split of their row, for the models of `models.yaml` and for those that have all tasks of R2MED. Facts only; a row
is a result file, results/MODEL/REVISION/TASK.json of the commit. Columns: registry/independent/README.md.
"""

import argparse
import subprocess
import sys
from pathlib import Path

import pandas as pd

from medir_nb.core import registry

TARGET = Path(__file__).parents[1] / 'medir_nb' / 'registry' / 'independent' / 'mteb.csv'
# names that mteb has given up, or writes in more than one way
OLD_TASKS = {'CMedQAv1': 'CMedQAv1-reranking', 'CMedQAv2': 'CMedQAv2-reranking'}
NAMES = {'ndcg': 'nDCG', 'map': 'AP', 'recall': 'R', 'precision': 'P', 'mrr': 'RR'}
WHOLE = {'map': 'AP', 'mrr': 'RR', 'cosine_spearman': 'Spearman', 'cos_sim.spearman': 'Spearman'}
KEYS = ['task', 'mteb_task', 'model', 'model_revision', 'data_revision', 'mteb_version', 'commit']


def measure_of(name: str) -> str | None:
    "The measure in ir_measures' words, or None where the registry's tasks have no such measure."
    kind, _, cutoff = name.partition('_at_')
    if name in WHOLE:
        return WHOLE[name]
    return f'{NAMES[kind]}@{cutoff}' if kind in NAMES and cutoff.isdigit() else None


def tasks_by_mteb_name() -> dict[str, str]:
    "The registry's task of each name in mteb."
    tasks = {row['mteb']: name for name, row in registry('tasks').items() if row.get('mteb')}
    return tasks | {old: tasks[new] for old, new in OLD_TASKS.items()}


def wide(values: pd.DataFrame) -> pd.DataFrame:
    "A row a result file, a column a measure, of a row a value (`KEYS`, `measure`, `value`); models as `CHECKOUT` says."
    r2med = [name for name in registry('tasks') if name.startswith('r2med-')]
    tasks_of = values.groupby('model').task.agg(set)
    is_known = {row.get('hub') for row in registry('models').values()}
    kept = [model for model, tasks in tasks_of.items() if model in is_known or tasks >= set(r2med)]
    table = values[values.model.isin(kept)].pivot(index=KEYS, columns='measure', values='value').reset_index()
    order = {name: place for place, name in enumerate(registry('tasks'))}
    return table.sort_values(['task', *KEYS[1:]], key=lambda c: c.map(order) if c.name == 'task' else c)


def values_of(file: Path, tasks: dict[str, str], commit: str) -> list[dict]:
    "The values of a result file at the split of its task."
    from mteb import TaskResult

    result, task = TaskResult.from_disk(file), tasks[file.stem]
    about = {
        'task': task,
        'mteb_task': file.stem,
        'model': file.parts[-3].replace('__', '/', 1),
        'model_revision': file.parts[-2],
        'data_revision': result.dataset_revision or '',
        'mteb_version': result.mteb_version or '',
        'commit': commit,
    }
    scores = result.scores.get(registry('tasks')[task].get('split', 'test'), [])
    # a subset of a multilingual task is another task
    named = {name: value for part in scores if part['hf_subset'] == 'default' for name, value in part.items()}
    return [
        about | {'measure': m, 'value': v} for name, v in named.items() if (m := measure_of(name)) and v is not None
    ]


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('checkout', type=Path)
    parser.add_argument('target', type=Path, nargs='?', default=TARGET)
    given = parser.parse_args(arguments)
    commit = subprocess.check_output(['git', '-C', given.checkout, 'rev-parse', '--short=7', 'HEAD'], text=True).strip()
    tasks = tasks_by_mteb_name()
    files = [f for f in sorted((given.checkout / 'results').glob('*/*/*.json')) if f.stem in tasks]
    if not files:
        where = given.checkout / 'results'
        sys.exit(f'no result of a registered task: {where}: name a clone of embeddings-benchmark/results')
    values = [value for file in files for value in values_of(file, tasks, commit)]
    table = wide(pd.DataFrame(values))
    given.target.parent.mkdir(parents=True, exist_ok=True)
    table.to_csv(given.target, index=False)
    print(f'{len(table):,} result files, {table.model.nunique()} models, {table.task.nunique()} tasks: {given.target}')


if __name__ == '__main__':
    main()
