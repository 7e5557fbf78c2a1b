"""From a reader's own documents to a verdict: what each step of the walk reads, and what it leaves."""

from .folder import Walk, WalkSettings
from .rivals import Candidates, candidates
from .costs import Costs, costs_columns, costs_of_each, measure_costs
from .evidence import Combined, combined, first_choice, rank_agreement
from .verdict import Verdict, give_verdict, read_verdict
from .adapting import Adapted, adapt
from .report import render_report, write_report

__all__ = [
    'Walk',
    'WalkSettings',
    'Candidates',
    'candidates',
    'Costs',
    'costs_columns',
    'costs_of_each',
    'measure_costs',
    'Combined',
    'combined',
    'first_choice',
    'rank_agreement',
    'Verdict',
    'give_verdict',
    'read_verdict',
    'Adapted',
    'adapt',
    'render_report',
    'write_report',
]
