"""Parameters, receipts, batches, plans and the command."""

import os
import signal
import threading

import lazy_loader

_NAMES = {
    'find': ['batches', 'find_notebook', 'notebooks', 'workbook_root'],
    'annotations': ['schema'],
    'parameters': ['preset_line', 'resolve_parameters'],
    'keys': ['receipt_key'],
    'records': ['missing_results', 'receipts', 'status', 'valid_receipt'],
    'kernel': ['output_folder'],
    'runs': ['run_notebook'],
    'loops': ['obstacles'],
    'grids': ['plan_grid'],
    'batch': ['read_batch', 'run_batch'],
    'plans': ['plan'],
    'cell_tables': ['cell_table'],
    'coverages': ['coverage', 'coverage_line', 'coverage_reasons', 'coverage_table', 'with_coverage'],
    'boards': ['board', 'board_rows', 'rank_spread'],
    'board_pages': ['board_page', 'write_board'],
    'skeleton': ['new_paper'],
    'cli': ['app'],
}
# a module is reached by its name, too
__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, _NAMES, _NAMES)
__all__ += ['main']


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
