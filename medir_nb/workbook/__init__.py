"""Parameters, receipts, batches, plans and the command."""

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
from .coverages import cell_ways, coverage, coverage_line, coverage_reasons, coverage_table, stored_cells
from .coverages import with_coverage
from .boards import board, board_rows, rank_spread
from .board_pages import board_page, write_board
from .skeleton import new_paper
from .cli import app, main

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
    'cell_ways',
    'coverage',
    'coverage_line',
    'coverage_reasons',
    'coverage_table',
    'stored_cells',
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
