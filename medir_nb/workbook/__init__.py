"""Parameters, receipts, batches, plans and the command."""

import os
import signal
import threading

from .._door import open_door

MODULES = (
    'find parameters keys notebook_runs grids batch plans cell_tables reproductions coverages boards board_pages '
    'skeleton cli trainings'
).split()
__getattr__, __dir__, __all__ = open_door(__name__, MODULES)
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
