"""From one's own documents to a verdict."""

from .._door import open_door

MODULES = 'reading profile queries costs quality verdict adapting report export'.split()
__getattr__, __dir__, __all__ = open_door(__name__, MODULES)
