"""Language models: what they are asked, what they answered, and how the answers join a query."""

from .spec import LLMSpec, Sampling, llm_spec, llms_table
from .cassettes import Cassette, Cassettes, Generation, Request
from .local import TransformersBackend
from .models import BACKENDS, HOLDS_GPU, LLM, configure, free_memory, llm
from .answers import answer_of, judge
from .methods import expansion_settings, fill, method_row, normal_expansion, wording
from .imported import import_generations
from .expansion import (
    Expanded,
    as_queries,
    dense_queries,
    expand,
    fuse_dense,
    fuse_sparse,
    hypothetical_reader,
    pending_generations,
    sparse_queries,
)
from .agent import pending_turns, search_and_write

__all__ = [
    'LLMSpec',
    'Sampling',
    'llm_spec',
    'llms_table',
    'Cassette',
    'Cassettes',
    'Generation',
    'Request',
    'TransformersBackend',
    'BACKENDS',
    'HOLDS_GPU',
    'LLM',
    'configure',
    'free_memory',
    'llm',
    'answer_of',
    'judge',
    'expansion_settings',
    'fill',
    'method_row',
    'normal_expansion',
    'wording',
    'import_generations',
    'Expanded',
    'as_queries',
    'dense_queries',
    'expand',
    'fuse_dense',
    'fuse_sparse',
    'hypothetical_reader',
    'pending_generations',
    'sparse_queries',
    'pending_turns',
    'search_and_write',
]
