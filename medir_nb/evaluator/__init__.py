"""Measures, comparisons, power and cost."""

import lazy_loader

_NAMES = {
    'measures': ['PAIR_MEASURES', 'judged_at_10', 'measure_label', 'parse_measure', 'per_query'],
    'statistics': ['correlation', 'holm', 'interval', 'mean_interval', 'paired_p'],
    'power': [
        'Power', 'difference_spread', 'paired_power', 'queries_needed', 'simulated_power', 'smallest_difference',
    ],
    'scores': ['Scores', 'oracle_scores', 'score_run', 'scores_table'],
    'evaluation': ['evaluate', 'evaluate_grid', 'tell_not_run'],
    'comparison': ['compare', 'compare_all', 'differences_text', 'setting_differences'],
    'cases': ['case_view', 'instruction_effect', 'side_by_side', 'with_and_without', 'without_instruction'],
    'averages': ['expansion_lengths', 'gain_counts', 'gains', 'macro_average', 'over_seeds', 'seed_spread'],
    'similarity': ['query_overlap', 'separation', 'similarity_pairs'],
    'bounds': ['order_bounds', 'tie_bounds'],
    'speed': [
        'Speed',
        'latency_ms',
        'measure_speeds',
        'measure_throughput',
        'speed_table',
        'system_speed',
        'throughput_table',
    ],
    'score_frames': [
        'ScoreFrame', 'folded_intervals', 'p_text', 'signed', 'table_apart', 'tests_table', 'with_interval',
    ],
    'slips': ['SLIPS', 'slip_costs', 'with_slip'],
    'mteb_reading': ['beside_mteb'],
}
# a module is reached by its name, too
__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, _NAMES, _NAMES)
