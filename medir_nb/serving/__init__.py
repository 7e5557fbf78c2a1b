"""A system kept in a folder: built once, updated by what changed, asked over HTTP, exported."""

from .index import DATABASES, STORES, Index, is_index, read_manifest, snippet
from .updates import Update, build_index, change_index, count_promised, promise
from .service import Batcher, Busy, Service, serve, web_app
from .export import export_system

__all__ = [
    'DATABASES',
    'STORES',
    'Index',
    'is_index',
    'read_manifest',
    'snippet',
    'Update',
    'build_index',
    'change_index',
    'count_promised',
    'promise',
    'Batcher',
    'Busy',
    'Service',
    'serve',
    'web_app',
    'export_system',
]
