"""A system kept in a folder: built once, updated by what changed, asked over HTTP, exported."""

from .postings import Postings, Words, count_words
from .products import nearest_rows
from .stores import DATABASES, STORES, Database, close_databases
from .parts import PARTS, Part, keep_model, served_system
from .journal import Journal, read_journal
from .segments import Segment
from .index import Index, Searched, clean_leftovers, is_index, read_manifest
from .updates import Update, build_index, change_index, take_in_journal
from .lists import Ranked
from .ranking import PassageRanker, Questions, Ranker
from .answers import Searcher, hits, snippet
from .service import Batcher, Busy, Service
from .http import serve, web_app
from .export import export_system

__all__ = [
    'Postings',
    'Words',
    'count_words',
    'nearest_rows',
    'DATABASES',
    'STORES',
    'Database',
    'close_databases',
    'PARTS',
    'Part',
    'keep_model',
    'served_system',
    'Journal',
    'read_journal',
    'Segment',
    'Index',
    'Searched',
    'clean_leftovers',
    'is_index',
    'read_manifest',
    'Update',
    'build_index',
    'change_index',
    'take_in_journal',
    'Ranked',
    'PassageRanker',
    'Questions',
    'Ranker',
    'Searcher',
    'hits',
    'snippet',
    'Batcher',
    'Busy',
    'Service',
    'serve',
    'web_app',
    'export_system',
]
