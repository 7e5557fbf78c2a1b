"""The papers' printed cells beside measured ones, and their figures."""

from .._door import open_door

MODULES = (
    'figure_style score_figures curve_figures papers table_rows independent table audits claims experiments '
    'printed'
).split()
__getattr__, __dir__, __all__ = open_door(__name__, MODULES)
