"""BM25, dense retrieval, fusion, reranking, expressions, the chain, the index and its service."""

from .._door import open_door

MODULES = (
    'reranker_model rerank_stage runs databases nearest analyzers bm25 filters index updates monitoring '
    'service stages chain sharded retriever dense_stage late_stage reading_stage expanders '
    'expressions'
).split()
__getattr__, __dir__, __all__ = open_door(__name__, MODULES)
# another kind of retriever is registered here: from . import MODULE
