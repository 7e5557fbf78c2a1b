"""A reproducible workbook for medical information retrieval.

    import medir_nb as mr

    task = mr.load_task('hpo-lay')                  # a registry name, or a folder of documents, queries and judgements
    bm25 = mr.evaluate(task, 'bm25')
    fused = mr.evaluate(task, 'rrf(bm25,minilm)')
    mr.compare(bm25, fused)                         # the difference, its test, and the queries behind it

The names below are loaded when they are first used; everything else lies in the rooms: `medir_nb.data`, `encoder`,
`retrieval`, `generator`, `reranker`, `systems`, `miner`, `trainer`, `evaluator`, `ledger`, `figures`, `workbook`.
"""

__version__ = "0.1.0"

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .data import load_task, task_from_frames
    from .encoder import Encoder, contract
    from .evaluator import compare, evaluate
    from .ledger import Ledger, experiment, published
    from .systems import search

_ROOMS = {
    'load_task': 'data',
    'task_from_frames': 'data',
    'Encoder': 'encoder',
    'contract': 'encoder',
    'search': 'systems',
    'evaluate': 'evaluator',
    'compare': 'evaluator',
    'experiment': 'ledger',
    'published': 'ledger',
    'Ledger': 'ledger',
}
__all__ = [
    'load_task',
    'task_from_frames',
    'Encoder',
    'contract',
    'search',
    'evaluate',
    'compare',
    'experiment',
    'published',
    'Ledger',
]


def __getattr__(name: str):
    "One of the ten names, from its room; importing the package alone loads none of them."
    if name not in _ROOMS:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    value = getattr(importlib.import_module(f'.{_ROOMS[name]}', __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_ROOMS})
