"""Collections, tasks and texts."""

from .._door import open_door

MODULES = (
    'corpus readers passage_splitter languages task task_folders mteb_tasks ontology vocabularies '
    'query_perturbations registered corpora tables documents records pages office raw slices '
    'text_pairs duplicates pretraining washing'
).split()
__getattr__, __dir__, __all__ = open_door(__name__, MODULES)
