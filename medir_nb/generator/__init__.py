"""Language models: asked, recorded, replayed."""

import lazy_loader

_NAMES = {
    'llm_rows': ['LLMSpec', 'Sampling', 'llm_spec', 'llms_table'],
    'cassettes': ['Cassette', 'Cassettes', 'Generation', 'Request'],
    'local_llm': ['TransformersBackend'],
    'models': ['BACKENDS', 'HOLDS_GPU', 'LLM', 'configure', 'release_models', 'llm'],
    'answers': ['extract_answer', 'judge'],
    'methods': ['expansion_settings', 'fill', 'method_row', 'canonical_expansion', 'wording'],
    'imported': ['import_generations'],
    'expansion': [
        'Expanded', 'as_queries', 'dense_queries', 'expand', 'fuse_dense', 'fuse_sparse', 'hypothetical_encoder',
        'pending_generations', 'sparse_queries',
    ],
    'agent': ['pending_turns', 'search_and_write'],
}
# a module is reached by its name, too
__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, _NAMES, _NAMES)
