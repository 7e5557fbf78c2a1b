"""Published numbers beside measured ones."""

from .papers import MEANS, means_of, paper_row, paper_tasks
from .cells import published, recomputed_means, unit_value, with_means
from .rows import printed_expression, printed_name
from .display import ScoreFrame, with_interval
from .table import Ledger, setting_switches, table_apart
from .claims import audit, leave_one_out, published_gains, task_table
from .experiments import (
    Experiment,
    by_label,
    experiment,
    first_stage,
    gain_rows,
    unexpanded,
    write_tables,
)

__all__ = [
    'MEANS',
    'means_of',
    'paper_row',
    'paper_tasks',
    'published',
    'recomputed_means',
    'unit_value',
    'with_means',
    'printed_expression',
    'printed_name',
    'ScoreFrame',
    'with_interval',
    'Ledger',
    'setting_switches',
    'table_apart',
    'audit',
    'leave_one_out',
    'published_gains',
    'task_table',
    'Experiment',
    'by_label',
    'experiment',
    'first_stage',
    'gain_rows',
    'unexpanded',
    'write_tables',
]
