"""Measures, intervals, tests, comparisons."""

from .measures import PAIR_MEASURES, judged_at_10, measure_label, parse_measure, per_query
from .statistics import correlation, holm, interval, paired_p
from .scores import Scores, differences_text, evaluate, oracle_scores, score_run, scores_table
from .comparison import case_view, compare, compare_all
from .grid import evaluate_grid, gains, macro_average
from .similarity import expansion_lengths, order_bounds, query_overlap, separation, similarity_pairs

__all__ = [
    'PAIR_MEASURES',
    'judged_at_10',
    'measure_label',
    'parse_measure',
    'per_query',
    'correlation',
    'holm',
    'interval',
    'paired_p',
    'Scores',
    'differences_text',
    'evaluate',
    'oracle_scores',
    'score_run',
    'scores_table',
    'case_view',
    'compare',
    'compare_all',
    'evaluate_grid',
    'gains',
    'macro_average',
    'expansion_lengths',
    'order_bounds',
    'query_overlap',
    'separation',
    'similarity_pairs',
]
