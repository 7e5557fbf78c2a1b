"""Cross-encoders that reorder the head of a run."""

from .spec import RerankerSpec, check_reranker, folder_reranker, reranker_runs, reranker_spec, rerankers_table
from .model import PairBackend, Reranker, load_cross_encoder, pair_tokens, written_pairs
from .scores import ScoreStore, missing_pairs, normal_reranker, rerank, reranker_of

__all__ = [
    'RerankerSpec',
    'check_reranker',
    'folder_reranker',
    'reranker_runs',
    'reranker_spec',
    'rerankers_table',
    'PairBackend',
    'Reranker',
    'load_cross_encoder',
    'pair_tokens',
    'written_pairs',
    'ScoreStore',
    'missing_pairs',
    'normal_reranker',
    'rerank',
    'reranker_of',
]
