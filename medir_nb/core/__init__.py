"""Errors, files, settings, the console and the network."""

from .._door import open_door

MODULES = (
    'errors files places settings console guard private hardware server network commits hub_folders engines'
).split()
__getattr__, __dir__, __all__ = open_door(__name__, MODULES)
