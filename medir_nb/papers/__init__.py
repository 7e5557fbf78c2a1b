"""The papers' printed cells beside measured ones, and their figures."""

import lazy_loader

_NAMES = {
    'figure_style': ['save_figure'],
    'size_figures': ['size_data', 'size_figure'],
    'similarity_figures': ['similarity_figure'],
    'score_figures': ['gain_figure', 'scores_figure'],
    'audit_figures': ['overlap_figure', 'ranks_figure'],
    'training_figures': ['recall_figure', 'training_figure'],
    'expansion_figures': ['length_figure', 'spread_figure', 'weight_figure'],
    'judge_figures': ['tau_figure'],
    'tower_figures': ['panel_figure', 'throughput_figure'],
    'papers': ['MEANS', 'long_name', 'means_of', 'paper_row', 'paper_tasks', 'paper_tasks_table'],
    'cells': ['published', 'recomputed_means', 'unit_value', 'with_means'],
    'table_rows': ['printed_expression', 'printed_name'],
    'display': ['ScoreFrame', 'folded_intervals', 'p_text', 'signed', 'tests_table', 'with_interval'],
    'table': ['Ledger', 'setting_switches', 'table_apart'],
    'groups': ['group_correlation', 'group_means'],
    'claims': ['audit', 'leave_one_out', 'published_gains', 'task_table', 'task_tests'],
    'experiments': [
        'Experiment', 'against_baseline', 'by_label', 'experiment', 'first_stage', 'gain_rows', 'gain_verdict',
        'unexpanded', 'write_tables',
    ],
    'seeds': ['scores_by_name', 'seeds_table', 'seeds_together'],
    'speeds': ['beside_speeds', 'printed_speeds', 'speed_caveat'],
    'printed_names': ['case_instructions', 'example_sizes', 'printed_cases', 'printed_examples'],
}
# a module is reached by its name, too
__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, _NAMES, _NAMES)
