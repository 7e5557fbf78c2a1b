"""Training of encoders, language models and cross-encoders."""

from .settings import TASKS, training_config
from .pairs import PairBatches, Pairs
from .progress import Watch, read_metrics, watch
from .contrastive import train_encoder
from .sft import sft_examples, train_generator
from .cross_encoder import GroupBatches, train_reranker
from .command import check_trainable, main, train

__all__ = [
    'TASKS',
    'training_config',
    'PairBatches',
    'Pairs',
    'Watch',
    'read_metrics',
    'watch',
    'train_encoder',
    'sft_examples',
    'train_generator',
    'GroupBatches',
    'train_reranker',
    'check_trainable',
    'main',
    'train',
]
