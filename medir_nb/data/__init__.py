"""Tasks: queries, a corpus, relevance judgements, from wherever they are published; raw documents and pairs of them."""

from .corpus import Corpus, Queries
from .readers import read_judgements, read_qrels
from .windows import Windows, parse_windows
from .task import Task, build_task, cjk_share, detect_language, limit_task, part_of_task, pool_tasks, task_from_frames
from .folders import load_folder
from .mteb_tasks import load_mteb, refuse_suite, suite_tasks
from .ontology import disease_family, hpo_lay, hpo_overlap, hpo_terms, overlap_oracle, read_obo
from .registered import expand_tasks, load_task, row_revision, suite_name, task_folder, task_reading, tasks_here
from .corpora import asked, corpus_in_memory, corpus_task
from .tables import statistics_table, suite_table, tasks_table
from .documents import Document
from .raw import read_documents, sampled
from .passages import PairSettings, make_pairs
from .duplicates import Duplicates
from .pretraining import corpus_pairs, pretraining_table, raw_documents
from .pair_files import PairFile, write_pairs
from .mixture import Mixture
from .splits import split_by_group, without_duplicates
from .washing import Rule, Washing, check_rule, washed_documents, washed_rows, washed_task

__all__ = [
    'Corpus',
    'Queries',
    'read_judgements',
    'read_qrels',
    'Windows',
    'parse_windows',
    'Task',
    'build_task',
    'cjk_share',
    'detect_language',
    'limit_task',
    'part_of_task',
    'pool_tasks',
    'task_from_frames',
    'load_folder',
    'load_mteb',
    'refuse_suite',
    'suite_tasks',
    'disease_family',
    'hpo_lay',
    'hpo_overlap',
    'hpo_terms',
    'overlap_oracle',
    'read_obo',
    'expand_tasks',
    'suite_name',
    'load_task',
    'row_revision',
    'asked',
    'corpus_in_memory',
    'corpus_task',
    'statistics_table',
    'suite_table',
    'task_folder',
    'task_reading',
    'tasks_here',
    'tasks_table',
    'Document',
    'read_documents',
    'sampled',
    'PairSettings',
    'make_pairs',
    'Duplicates',
    'corpus_pairs',
    'pretraining_table',
    'raw_documents',
    'PairFile',
    'write_pairs',
    'Mixture',
    'split_by_group',
    'without_duplicates',
    'Rule',
    'Washing',
    'check_rule',
    'washed_documents',
    'washed_rows',
    'washed_task',
]
