"""Measures, comparisons, power and cost."""

from .._door import open_door

MODULES = (
    'scores statistics subgroup_scores evaluation comparison stress_tests fusion_weights effects similarity speed '
    'fastest_way score_frames copies mteb_reading'
).split()
__getattr__, __dir__, __all__ = open_door(__name__, MODULES)
