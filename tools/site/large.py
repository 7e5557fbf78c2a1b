"""Scores for a leaderboard of many cells: `make docs-check` clocks its filters.

python tools/site/large.py FILE writes what `medir leaderboard --html … --scores FILE` reads.
"""

import json
import random
import sys
from pathlib import Path

CELLS = 10_000
TASKS = 20


def scores(cells: int = CELLS, tasks: int = TASKS) -> list[dict]:
    "Drawn scores of systems with and without open weights, each on all of some tasks that no paper has."
    draw = random.Random(0)
    return [
        {
            'task': f'task-{task}',
            'system': f'system-{row}' if row % 2 else f'bm25(k1={1 + row / 1000},b=0.75)',
            'measure': 'nDCG@10',
            'value': round(draw.random(), 4),
        }
        for row in range(cells // tasks)
        for task in range(tasks)
    ]


if __name__ == '__main__':
    Path(sys.argv[1]).write_text(json.dumps(scores()), encoding='utf-8')
