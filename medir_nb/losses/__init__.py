"""What an encoder is trained on."""

from .contrastive import InfoNCE, false_negatives, info_nce

__all__ = [
    'InfoNCE',
    'false_negatives',
    'info_nce',
]
