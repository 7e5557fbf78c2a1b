"""Training data from documents: queries, hypothetical documents, hard negatives."""

from .rows import Mined, load_documents, read_rows
from .questions import candidates, example_blocks, load_queries, prompt_files, synthesize_queries
from .selection import hypothesize, select
from .negatives import hard_negatives, labelled_pairs, round_trip, shuffle_pairs
from .steps import mine, steps_help

__all__ = [
    'Mined',
    'load_documents',
    'read_rows',
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
    'mine',
    'steps_help',
]
