"""Pools, judges, people, labels and agreement."""

from .._door import open_door

MODULES = (
    'pools model_judges labels validation building synonyms cmirb study_folder available_systems sheets labelling'
).split()
__getattr__, __dir__, __all__ = open_door(__name__, MODULES)
