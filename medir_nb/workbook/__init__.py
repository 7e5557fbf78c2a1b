"""Parameters, receipts, batches, plans and the command."""

from .find import batches, find_notebook, notebooks
from .parameters import resolve, schema
from .records import lacking, receipt_key, receipts, valid_receipt
from .runs import output_folder, run_notebook
from .batch import obstacles, read_batch, run_batch
from .plans import plan, plan_grid
from .skeleton import new_paper
from .cli import app, main, status

__all__ = [
    'batches',
    'find_notebook',
    'notebooks',
    'resolve',
    'schema',
    'lacking',
    'receipt_key',
    'receipts',
    'valid_receipt',
    'output_folder',
    'run_notebook',
    'obstacles',
    'read_batch',
    'run_batch',
    'plan',
    'plan_grid',
    'new_paper',
    'app',
    'main',
    'status',
]
