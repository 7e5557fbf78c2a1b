"""What an encoder is trained on."""

from .contrastive import InfoNCE, false_negatives, info_nce, matryoshka_loss
from .reconstruction import RetroMAE, decoder_views, with_noise, word_masks
from .alignment import DISTANCES, Alignment, shortened_vectors

__all__ = [
    'InfoNCE',
    'false_negatives',
    'info_nce',
    'matryoshka_loss',
    'RetroMAE',
    'decoder_views',
    'with_noise',
    'word_masks',
    'DISTANCES',
    'Alignment',
    'shortened_vectors',
]
