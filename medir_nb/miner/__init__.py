"""Training data: from documents by a language model, from labelled sets, with hard negatives and filters."""

from .rows import Mined, load_documents, read_rows
from .asking import Usage
from .questions import candidates, example_blocks, load_queries, prompt_files, synthesize_queries
from .selection import hypothesize, select
from .negatives import hard_negatives, labelled_pairs, round_trip, shuffle_pairs
from .sets import check_tuning_row, tuning_table
from .labelled import load_labelled, load_sets, searched_corpus
from .synthetic import Written, brainstorm_tasks, write_corpus_queries, write_examples, write_queries
from .contamination import Contamination, contamination, without_test_queries
from .tuning import consistent_rows, draw_negatives, mixture_table
from .diversity import TABLE_10, Diversified, Limits, diverse_vectors, diversify
from .curation import (
    SCALES,
    Candidate,
    Lists,
    Scale,
    alignment_rows,
    curate,
    found_documents,
    judged_lists,
    leave_rows,
    rows_file,
    votes_of,
    wash,
)
from .thinned import DIVERSIFICATION_ROWS, diversification_ablation, equal_volumes
from .steps import mine, steps_help

__all__ = [
    'Mined',
    'load_documents',
    'read_rows',
    'Usage',
    'candidates',
    'example_blocks',
    'load_queries',
    'prompt_files',
    'synthesize_queries',
    'hypothesize',
    'select',
    'hard_negatives',
    'labelled_pairs',
    'round_trip',
    'shuffle_pairs',
    'check_tuning_row',
    'load_labelled',
    'load_sets',
    'searched_corpus',
    'tuning_table',
    'Written',
    'brainstorm_tasks',
    'write_corpus_queries',
    'write_examples',
    'write_queries',
    'Contamination',
    'contamination',
    'without_test_queries',
    'consistent_rows',
    'draw_negatives',
    'mixture_table',
    'TABLE_10',
    'Diversified',
    'Limits',
    'diverse_vectors',
    'diversify',
    'SCALES',
    'Candidate',
    'Lists',
    'Scale',
    'alignment_rows',
    'curate',
    'found_documents',
    'judged_lists',
    'leave_rows',
    'rows_file',
    'votes_of',
    'wash',
    'DIVERSIFICATION_ROWS',
    'diversification_ablation',
    'equal_volumes',
    'mine',
    'steps_help',
]
