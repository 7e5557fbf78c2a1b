"""Published numbers beside measured ones."""

from .cells import MEANS, published, recomputed_means, unit_value, with_means
from .table import Ledger, printed_expression, printed_name, setting_switches, table_apart
from .claims import audit, leave_one_out, published_gains, task_table

__all__ = [
    'MEANS',
    'published',
    'recomputed_means',
    'unit_value',
    'with_means',
    'Ledger',
    'printed_expression',
    'printed_name',
    'setting_switches',
    'table_apart',
    'audit',
    'leave_one_out',
    'published_gains',
    'task_table',
]
