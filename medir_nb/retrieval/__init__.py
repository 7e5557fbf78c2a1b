"""Runs: exact dense search, BM25, fusion, TREC files."""

from .runs import RUN_COLUMNS, read_run, rrf, sort_run, write_run
from .folding import fold_run
from .dense import Product, dense_search, unit
from .bm25 import ANALYZERS, BM25, BM25_CHINESE, BM25_DEFAULTS, BM25_PRESETS, QUERY_WEIGHTS, STOPWORDS, analyze

__all__ = [
    'RUN_COLUMNS',
    'read_run',
    'rrf',
    'sort_run',
    'write_run',
    'fold_run',
    'Product',
    'dense_search',
    'unit',
    'ANALYZERS',
    'BM25',
    'BM25_CHINESE',
    'BM25_DEFAULTS',
    'BM25_PRESETS',
    'QUERY_WEIGHTS',
    'STOPWORDS',
    'analyze',
]
