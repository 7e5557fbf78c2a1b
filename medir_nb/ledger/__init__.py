"""Published numbers beside measured ones."""

from .papers import MEANS, long_name, means_of, paper_row, paper_tasks, paper_tasks_table
from .cells import published, recomputed_means, unit_value, with_means
from .rows import printed_expression, printed_name
from .display import ScoreFrame, folded_intervals, p_text, signed, tests_table, with_interval
from .table import Ledger, setting_switches, table_apart
from .groups import group_correlation, group_means
from .claims import audit, leave_one_out, published_gains, task_table, task_tests
from .experiments import (
    Experiment,
    against_baseline,
    by_label,
    experiment,
    first_stage,
    gain_rows,
    gain_verdict,
    unexpanded,
    write_tables,
)
from .seeds import scores_by_name, seeds_table, seeds_together
from .speeds import beside_speeds, printed_speeds, speed_caveat
from .printed import case_instructions, example_sizes, printed_cases, printed_examples

__all__ = [
    'MEANS',
    'long_name',
    'means_of',
    'paper_row',
    'paper_tasks',
    'paper_tasks_table',
    'published',
    'recomputed_means',
    'unit_value',
    'with_means',
    'printed_expression',
    'printed_name',
    'ScoreFrame',
    'p_text',
    'signed',
    'tests_table',
    'folded_intervals',
    'with_interval',
    'Ledger',
    'setting_switches',
    'table_apart',
    'group_correlation',
    'group_means',
    'audit',
    'leave_one_out',
    'published_gains',
    'task_table',
    'task_tests',
    'Experiment',
    'against_baseline',
    'by_label',
    'experiment',
    'first_stage',
    'gain_rows',
    'gain_verdict',
    'unexpanded',
    'write_tables',
    'scores_by_name',
    'seeds_table',
    'seeds_together',
    'beside_speeds',
    'printed_speeds',
    'speed_caveat',
    'case_instructions',
    'example_sizes',
    'printed_cases',
    'printed_examples',
]
