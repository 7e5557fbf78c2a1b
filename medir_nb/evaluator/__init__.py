"""Measures, intervals, tests, comparisons."""

from .measures import PAIR_MEASURES, judged_at_10, measure_label, parse_measure, per_query
from .statistics import correlation, holm, interval, paired_p
from .power import Power, difference_spread, paired_power, queries_needed, simulated_power, smallest_difference
from .scores import Scores, oracle_scores, score_run, scores_table
from .evaluation import evaluate
from .differences import differences_text, setting_differences
from .comparison import compare, compare_all
from .cases import case_view, instruction_effect, side_by_side, with_and_without, without_instruction
from .grid import evaluate_grid, tell_not_run
from .averages import gain_counts, gains, macro_average, over_seeds, seed_spread
from .similarity import separation, similarity_pairs
from .overlap import query_overlap
from .bounds import order_bounds, tie_bounds
from .lengths import expansion_lengths
from .speed import Speed, documents_per_second, latency_ms, measure_speeds, speed_table, system_speed
from .throughput import Throughput, measure_throughput, throughput_table

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
    'Power',
    'difference_spread',
    'paired_power',
    'queries_needed',
    'simulated_power',
    'smallest_difference',
    'Scores',
    'oracle_scores',
    'score_run',
    'scores_table',
    'evaluate',
    'differences_text',
    'setting_differences',
    'compare',
    'compare_all',
    'case_view',
    'instruction_effect',
    'side_by_side',
    'with_and_without',
    'without_instruction',
    'evaluate_grid',
    'tell_not_run',
    'gain_counts',
    'gains',
    'macro_average',
    'over_seeds',
    'seed_spread',
    'separation',
    'similarity_pairs',
    'query_overlap',
    'order_bounds',
    'tie_bounds',
    'expansion_lengths',
    'Speed',
    'documents_per_second',
    'latency_ms',
    'measure_speeds',
    'speed_table',
    'system_speed',
    'Throughput',
    'measure_throughput',
    'throughput_table',
]
