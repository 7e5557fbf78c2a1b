"""Expressions that name a system, and the road from one to a run."""

from .syntax import Expansion, Fusion, Reranking, System
from .stages import COMBINATIONS, RERANKERS, RETRIEVERS, Answer, Counts, Job, Plan, Ranking, Stage
from .expand import Expand
from .sparse import Retrieve, SparseRetrieve, candidate_pool
from .dense import DenseRetrieve, encoder_of, encoder_spec_or_hint, pair_queries
from .rerank import Fuse, Reorder, Rerank
from .expressions import parse, parts, retriever_kind
from .chain import chain_of, expanded_texts, row_label, search
from .pairs import score_pairs
from .plan import check_system, check_systems, models_of, pending, system_settings, with_max_tokens

__all__ = [
    'Expansion',
    'Fusion',
    'Reranking',
    'System',
    'COMBINATIONS',
    'RERANKERS',
    'RETRIEVERS',
    'Answer',
    'Counts',
    'Job',
    'Plan',
    'Ranking',
    'Stage',
    'Expand',
    'Retrieve',
    'SparseRetrieve',
    'candidate_pool',
    'DenseRetrieve',
    'encoder_of',
    'encoder_spec_or_hint',
    'pair_queries',
    'Fuse',
    'Reorder',
    'Rerank',
    'parse',
    'parts',
    'retriever_kind',
    'chain_of',
    'expanded_texts',
    'row_label',
    'search',
    'score_pairs',
    'check_system',
    'check_systems',
    'models_of',
    'pending',
    'system_settings',
    'with_max_tokens',
]
