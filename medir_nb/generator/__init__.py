"""Language models: asked, recorded, replayed."""

from .._door import open_door

MODULES = 'llm_rows cassettes local_llm models methods expansion agent'.split()
__getattr__, __dir__, __all__ = open_door(__name__, MODULES)
