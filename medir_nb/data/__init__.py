"""Collections, tasks and texts."""

import lazy_loader

_NAMES = {
    'corpus': ['Corpus', 'Queries'],
    'readers': ['read_judgements', 'read_qrels'],
    'passage_splitter': ['PassageSplitter', 'parse_windows'],
    'task': [
        'Task', 'build_task', 'cjk_share', 'detect_language', 'limit_task', 'part_of_task', 'pool_tasks',
        'task_from_frames',
    ],
    'task_folders': ['load_folder'],
    'mteb_tasks': ['load_mteb', 'check_single_task', 'suite_tasks'],
    'ontology': ['disease_family', 'hpo_lay', 'hpo_overlap', 'hpo_terms', 'overlap_oracle', 'read_obo'],
    'registered': [
        'expand_tasks', 'load_task', 'row_revision', 'suite_name', 'task_folder', 'task_reading', 'tasks_here',
    ],
    'corpora': ['asked', 'corpus_in_memory', 'corpus_task'],
    'tables': ['statistics_table', 'suite_table', 'tasks_table'],
    'documents': ['Document'],
    'raw': ['read_documents', 'sampled'],
    'text_pairs': ['PairSettings', 'make_pairs'],
    'duplicates': ['Duplicates'],
    'pretraining': ['corpus_pairs', 'pretraining_table', 'raw_documents'],
    'pair_files': ['PairFile', 'write_pairs'],
    'mixture': ['Mixture'],
    'splits': ['split_by_group', 'without_duplicates'],
    'washing': ['Rule', 'Washing', 'check_rule', 'washed_documents', 'washed_rows', 'washed_task'],
}
# a module is reached by its name, too
__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, _NAMES, _NAMES)
