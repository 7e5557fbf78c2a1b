"""From a reader's own documents to a verdict: what each step of the walk reads, and what it leaves."""

from .folder import Walk, WalkSettings
from .steps import note_step, walk_line, walk_steps
from .personal import PersonalData
from .look import Look, look
from .asked import queries_task, read_queries, walk_corpus
from .samples import sample_documents
from .usable import STYLES, query_fault
from .logs import log_queries
from .queries import QueryReport, add_log, read_report, write_queries
from .pooling import labelling_order, make_pool, read_pool
from .sheets import excerpt, read_sheet, sheet_records, write_sheet
from .votes import decisions, gather_votes, kappa_of, kappa_table, read_votes
from .labelling import Labels, judge_pairs, judge_table, read_labels, walk_power
from .sitting import Sitting, grade_by_keyboard, label_widget
from .rivals import Candidates, candidates, recorded_writers
from .costs import Costs, costs_columns, costs_of_each, measure_costs
from .choice import first_choice, rank_agreement
from .pages import Verdict, read_verdict
from .verdict import give_verdict
from .adapting import Adapted, adapt
from .report import render_report, write_report

__all__ = [
    'Walk',
    'WalkSettings',
    'note_step',
    'walk_line',
    'walk_steps',
    'PersonalData',
    'Look',
    'look',
    'queries_task',
    'read_queries',
    'walk_corpus',
    'sample_documents',
    'STYLES',
    'query_fault',
    'log_queries',
    'QueryReport',
    'add_log',
    'read_report',
    'write_queries',
    'labelling_order',
    'make_pool',
    'read_pool',
    'excerpt',
    'read_sheet',
    'sheet_records',
    'write_sheet',
    'decisions',
    'gather_votes',
    'kappa_of',
    'kappa_table',
    'read_votes',
    'Labels',
    'judge_pairs',
    'judge_table',
    'read_labels',
    'walk_power',
    'Sitting',
    'grade_by_keyboard',
    'label_widget',
    'Candidates',
    'candidates',
    'recorded_writers',
    'Costs',
    'costs_columns',
    'costs_of_each',
    'measure_costs',
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
