"""The papers' printed cells beside measured ones, and their figures."""

import lazy_loader

_NAMES = {
    'figure_style': ['save_figure'],
    'score_figures': ['gain_figure', 'ranks_figure', 'scores_figure', 'second_figure'],
    'curve_figures': ['panel_figure', 'recall_figure', 'tau_figure', 'training_figure', 'weight_figure'],
    'distribution_figures': ['length_figure', 'overlap_figure', 'similarity_figure', 'spread_figure'],
    'tradeoff_figures': ['size_data', 'size_figure', 'throughput_data', 'throughput_figure'],
    'papers': ['gold_pools', 'long_name', 'means_of', 'paper_row', 'paper_tasks', 'paper_tasks_table'],
    'cells': ['published', 'recomputed_means', 'unit_value', 'with_means'],
    'table_rows': ['printed_expression', 'printed_name'],
    'independent': [
        'in_place_of_printed', 'independent_results', 'independent_verdict', 'ranking_agreement', 'second_ranking',
        'with_independent',
    ],
    'table': ['Ledger', 'RowOnTask', 'Switch', 'SwitchKey', 'setting_switches'],
    'claims': [
        'audit', 'group_correlation', 'group_means', 'leave_one_out', 'published_gains', 'task_table', 'task_tests',
    ],
    'experiments': [
        'Experiment', 'Seeds', 'against_baseline', 'by_label', 'experiment', 'first_stage', 'gain_rows', 'gain_verdict',
        'seeded_name', 'systems_of', 'unexpanded', 'worth_table', 'write_tables',
    ],
    'printed': [
        'beside_speeds', 'case_instructions', 'example_sizes', 'printed_cases', 'printed_examples', 'printed_speeds',
        'speed_caveat',
    ],
}
# a module is reached by its name, too
__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, _NAMES, _NAMES)
