"""Measures, comparisons, power and cost."""

import lazy_loader

_NAMES = {
    'measures': ['PAIR_MEASURES', 'judged_at_10', 'measure_label', 'parse_measure', 'per_query'],
    'statistics': ['correlation', 'holm', 'interval', 'mean_interval', 'paired_p'],
    'power': [
        'Power', 'difference_spread', 'paired_power', 'queries_needed', 'simulated_power', 'smallest_difference',
    ],
    'scores': ['Scores', 'oracle_scores', 'score_run', 'scores_table'],
    'evaluation': ['evaluate'],
    'differences': ['differences_text', 'setting_differences'],
    'comparison': ['compare', 'compare_all'],
    'cases': ['case_view', 'instruction_effect', 'side_by_side', 'with_and_without', 'without_instruction'],
    'grid': ['evaluate_grid', 'tell_not_run'],
    'averages': ['gain_counts', 'gains', 'macro_average', 'over_seeds', 'seed_spread'],
    'similarity': ['separation', 'similarity_pairs'],
    'overlap': ['query_overlap'],
    'bounds': ['order_bounds', 'tie_bounds'],
    'lengths': ['expansion_lengths'],
    'speed': ['Speed', 'documents_per_second', 'latency_ms', 'measure_speeds', 'speed_table', 'system_speed'],
    'throughput': ['Throughput', 'measure_throughput', 'throughput_table'],
}
# a module is reached by its name, too
__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, _NAMES, _NAMES)
