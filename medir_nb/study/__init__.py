"""From one's own documents to a verdict."""

import lazy_loader

_NAMES = {
    'reading': ['PersonalData'],
    'profile': ['CorpusProfile', 'profile_corpus'],
    'queries': [
        'QueryReport', 'add_log', 'log_queries', 'read_report', 'generate_queries', 'STYLES', 'query_fault',
        'sample_documents',
    ],
    'costs': ['Costs', 'costs_columns', 'costs_of_each', 'measure_costs'],
    'quality': ['choose_system', 'rank_agreement'],
    'verdict': ['give_verdict', 'Verdict', 'read_verdict'],
    'adapting': ['Adaptation', 'adapt'],
    'report': ['render_report', 'privacy_line', 'write_report'],
    'export': ['export_system'],
}
# a module is reached by its name, too
__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, _NAMES, _NAMES)
