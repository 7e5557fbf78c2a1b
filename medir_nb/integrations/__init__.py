"""Systems that were built here as retrievers of LangChain, LlamaIndex and Haystack; a module a framework."""

from .._door import open_door

MODULES = ['searcher']
__getattr__, __dir__, __all__ = open_door(__name__, MODULES)
