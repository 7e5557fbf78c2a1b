"""BM25, dense retrieval, fusion, reranking, expressions, the chain, the index and its service."""

import lazy_loader

_NAMES = {
    'reranker_rows': [
        'RerankerSpec', 'check_reranker', 'folder_reranker', 'reranker_runs', 'reranker_spec', 'rerankers_table',
    ],
    'reranker_model': ['PairBackend', 'Reranker', 'load_cross_encoder', 'pair_tokens', 'written_pairs'],
    'reranker_scores': ['ScoreStore', 'missing_pairs', 'normal_reranker', 'rerank', 'reranker_of'],
    'runs': ['RUN_COLUMNS', 'read_run', 'rrf', 'sort_run', 'write_run'],
    'nearest': ['dense_search', 'unit'],
    'analyzers': ['ANALYZERS', 'STOPWORDS', 'analyze', 'analyzer_key', 'lucene_stem', 'lucene_tokens'],
    'bm25': [
        'BM25', 'BM25_CHINESE', 'BM25_DEFAULTS', 'BM25_PRESETS', 'FIELDS', 'QUERY_WEIGHTS', 'SCORERS',
        'preset_settings',
    ],
    'index': ['Index', 'is_index', 'read_manifest', 'snippet'],
    'updates': ['Update', 'build_index', 'change_index', 'count_promised', 'promise'],
    'service': ['Batcher', 'Busy', 'Service', 'serve', 'web_app'],
    'syntax': ['Expansion', 'Fusion', 'Reranking', 'System'],
    'stages': ['COMBINATIONS', 'RERANKERS', 'RETRIEVERS', 'Answer', 'Counts', 'Job', 'Plan', 'Ranking', 'Stage'],
    'expand_stage': ['Expand'],
    'passage_search': ['aggregate_passages'],
    'retriever': ['BM25Retriever', 'Retriever', 'Trial', 'candidate_pool'],
    'vector_files': ['DATABASES', 'STORES'],
    'dense_stage': ['DenseRetriever', 'encoder_of', 'encoder_spec_or_hint', 'pair_queries'],
    'rerank_stage': ['Fuse', 'Reorder', 'Rerank'],
    'expressions': ['model_rows', 'parse', 'parts', 'retriever_of'],
    'chain': [
        'ask', 'chain_of', 'check_system', 'check_systems', 'expanded_texts', 'models_of', 'pending', 'row_label',
        'score_pairs', 'search', 'system_settings', 'with_max_tokens',
    ],
}
# a module is reached by its name, too
__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, _NAMES, _NAMES)
