"""From a reader's own documents to a verdict: what each step of the walk reads, and what it leaves."""

from .folder import Walk, WalkSettings, note_step, queries_task, read_queries, walk_corpus, walk_steps
from .rivals import Candidates, candidate_systems, recorded_writers
from .pooling import labelling_order, make_pool, read_pool, sheet_records
from .sheets import excerpt, read_sheet, write_sheet
from .labelling import Labels, decisions, gather_votes, judge_pairs, judge_table, kappa_table, read_labels, read_votes
from .labelling import walk_power
from .sitting import Sitting, grade_by_keyboard, label_widget
from .reading import PersonalData
from .look import Look, look
from .usable import STYLES, query_fault, sample_documents
from .queries import QueryReport, add_log, log_queries, read_report, generate_queries
from .costs import Costs, costs_columns, costs_of_each, measure_costs
from .quality import first_choice, rank_agreement
from .pages import Verdict, read_verdict
from .verdict import give_verdict
from .adapting import Adapted, adapt
from .report import render_report, walk_line, write_report

__all__ = [
    'Walk',
    'WalkSettings',
    'note_step',
    'queries_task',
    'read_queries',
    'walk_corpus',
    'walk_steps',
    'Candidates',
    'candidate_systems',
    'recorded_writers',
    'labelling_order',
    'make_pool',
    'read_pool',
    'sheet_records',
    'excerpt',
    'read_sheet',
    'write_sheet',
    'Labels',
    'decisions',
    'gather_votes',
    'judge_pairs',
    'judge_table',
    'kappa_table',
    'read_labels',
    'read_votes',
    'walk_power',
    'Sitting',
    'grade_by_keyboard',
    'label_widget',
    'PersonalData',
    'Look',
    'look',
    'STYLES',
    'query_fault',
    'sample_documents',
    'QueryReport',
    'add_log',
    'log_queries',
    'read_report',
    'generate_queries',
    'Costs',
    'costs_columns',
    'costs_of_each',
    'measure_costs',
    'first_choice',
    'rank_agreement',
    'Verdict',
    'read_verdict',
    'give_verdict',
    'Adapted',
    'adapt',
    'render_report',
    'walk_line',
    'write_report',
]
