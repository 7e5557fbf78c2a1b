"""Parameters, receipts, batches, plans and the command."""

import importlib
import os
import signal
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .find import batches, find_notebook, notebooks, workbook_root
    from .annotations import schema
    from .parameters import preset_line, resolve
    from .keys import receipt_key
    from .records import lacking, receipts, status, valid_receipt
    from .kernel import output_folder
    from .runs import run_notebook
    from .loops import obstacles
    from .batch import read_batch, run_batch
    from .plans import plan, plan_grid
    from .cell_tables import cell_table
    from .coverages import coverage, coverage_line, coverage_reasons, coverage_table, with_coverage
    from .boards import board, board_rows, rank_spread
    from .board_pages import board_page, write_board
    from .skeleton import new_paper
    from .cli import app

# loaded when they are first used: `main` answers Ctrl-C before it imports anything
_MODULES = {
    'batches': 'find',
    'find_notebook': 'find',
    'notebooks': 'find',
    'workbook_root': 'find',
    'schema': 'annotations',
    'preset_line': 'parameters',
    'resolve': 'parameters',
    'receipt_key': 'keys',
    'lacking': 'records',
    'receipts': 'records',
    'status': 'records',
    'valid_receipt': 'records',
    'output_folder': 'kernel',
    'run_notebook': 'runs',
    'obstacles': 'loops',
    'read_batch': 'batch',
    'run_batch': 'batch',
    'plan': 'plans',
    'plan_grid': 'plans',
    'cell_table': 'cell_tables',
    'coverage': 'coverages',
    'coverage_line': 'coverages',
    'coverage_reasons': 'coverages',
    'coverage_table': 'coverages',
    'with_coverage': 'coverages',
    'board': 'boards',
    'board_rows': 'boards',
    'rank_spread': 'boards',
    'board_page': 'board_pages',
    'write_board': 'board_pages',
    'new_paper': 'skeleton',
    'app': 'cli',
}
__all__ = [
    'batches',
    'find_notebook',
    'notebooks',
    'workbook_root',
    'schema',
    'preset_line',
    'resolve',
    'receipt_key',
    'lacking',
    'receipts',
    'status',
    'valid_receipt',
    'output_folder',
    'run_notebook',
    'obstacles',
    'read_batch',
    'run_batch',
    'plan',
    'plan_grid',
    'cell_table',
    'coverage',
    'coverage_line',
    'coverage_reasons',
    'coverage_table',
    'with_coverage',
    'board',
    'board_rows',
    'rank_spread',
    'board_page',
    'write_board',
    'new_paper',
    'app',
    'main',
]


def __getattr__(name: str):
    "A name of this room, from its module."
    if name not in _MODULES:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    value = getattr(importlib.import_module(f'.{_MODULES[name]}', __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})


def _stop_at_once(number, frame):
    "Answer Ctrl-C with a line; an exception could be lost inside an import."
    os.write(2, b'medir: stopped; what was finished is kept, the same line goes on\n')
    os._exit(130)


def main():
    "The `medir` command; Ctrl-C is one line while it is being imported, too."
    in_front = threading.current_thread() is threading.main_thread()
    is_listening = in_front and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_listening:
        signal.signal(signal.SIGINT, _stop_at_once)
    try:
        from .cli import main as command
    finally:
        if is_listening:
            signal.signal(signal.SIGINT, signal.default_int_handler)
    command()
