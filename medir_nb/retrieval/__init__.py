"""Runs: exact dense search, BM25, fusion, TREC files."""

from .runs import RUN_COLUMNS, read_run, rrf, sort_run, write_run
from .folding import fold_run
from .dense import Product, dense_search, unit
from .lucene_tokens import lucene_stem, lucene_tokens
from .analyzers import ANALYZERS, STOPWORDS, analyze, analyzer_key
from .bm25 import BM25, BM25_CHINESE, BM25_DEFAULTS, BM25_PRESETS, FIELDS, QUERY_WEIGHTS, SCORERS, preset_settings

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
    'lucene_stem',
    'lucene_tokens',
    'ANALYZERS',
    'STOPWORDS',
    'analyze',
    'analyzer_key',
    'BM25',
    'BM25_CHINESE',
    'BM25_DEFAULTS',
    'BM25_PRESETS',
    'FIELDS',
    'QUERY_WEIGHTS',
    'SCORERS',
    'preset_settings',
]
