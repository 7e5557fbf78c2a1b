"""Expressions that name a system, and the road from one to a run."""

from .expressions import Fusion, System, parse, parts
from .chain import candidates, encoder_of, expanded_texts, row_label, search
from .pairs import score_pairs
from .plan import check_system, check_systems, pending, system_settings, with_max_tokens

__all__ = [
    'Fusion',
    'System',
    'parse',
    'parts',
    'candidates',
    'encoder_of',
    'expanded_texts',
    'row_label',
    'search',
    'score_pairs',
    'check_system',
    'check_systems',
    'pending',
    'system_settings',
    'with_max_tokens',
]
