"""Pools, judges, people, labels and agreement."""

import lazy_loader

_NAMES = {
    'pools': ['MERGE_RULES', 'Pool', 'known_relevant', 'pool_documents', 'pool_recall', 'pool_table'],
    'votes': [
        'CUT', 'SCALE', 'Judge', 'check_votes', 'collect_votes', 'fault_counts', 'grade_counts', 'is_relevant',
        'LexicalJudge', 'RetrieverJudge', 'best_threshold', 'with_fitted_threshold', 'pair_scores',
    ],
    'model_judges': [
        'JUDGES', 'PassageBatch', 'ModelJudge', 'judges_from', 'judging_costs', 'judging_prompt', 'read_grades',
        'shuffled_batches',
    ],
    'labels': [
        'LABELS', 'benchmark_task', 'consensus', 'label_counts', 'agreement_of', 'agreement_table', 'cohen_table',
        'fleiss', 'fleiss_kappa', 'kappa_of', 'vote_table', 'overrule', 'person_agreement', 'read_review',
        'write_review',
    ],
    'validation': [
        'check_independent', 'gold_labels', 'gold_quality', 'ranks_without', 'reannotation', 'relabelling_counts',
        'score_shift', 'scores_under', 'tau_by_pairs', 'tau_interval',
    ],
    'building': ['Benchmark', 'benchmark_row', 'build_benchmark', 'pending_calls', 'reranking_task', 'write_task'],
    'synonyms': [
        'SynonymEntry', 'Synonyms', 'hpo_entries', 'read_entries', 'synonym_pairs', 'synonym_rows',
        'synonym_sentences', 'synonym_task', 'write_synonyms',
    ],
    'cmirb': ['AnsweredBenchmark', 'ModelRoles', 'Roles', 'answered_quality', 'build_cmirb'],
    'study_folder': [
        'StudyFolder', 'StudySettings', 'note_step', 'queries_task', 'read_queries', 'study_corpus', 'study_steps',
    ],
    'available_systems': ['CandidateSystems', 'candidate_systems', 'recorded_writers'],
    'label_pool': ['labelling_order', 'make_pool', 'read_pool', 'sheet_records'],
    'sheets': ['excerpt', 'read_sheet', 'write_sheet', 'AnnotationSession', 'grade_by_keyboard', 'label_widget'],
    'labelling': [
        'Labels', 'decisions', 'gather_votes', 'judge_pairs', 'judge_table', 'kappa_table', 'read_labels',
        'read_votes', 'label_power',
    ],
}
# a module is reached by its name, too
__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, _NAMES, _NAMES)
