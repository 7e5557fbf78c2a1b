"""Training of encoders, language models and cross-encoders."""

# each module with a stage registers it
from .settings import Settings
from .stages import PIPELINES, STAGES, pipeline, stage, training_config
from .pairs import Pairs
from .filed import FiledPairs
from .batches import PairBatches
from .progress import Trained, Watch, read_metrics, show_metrics
from .careful import careful_trainer
from .adapters import Lora
from .identity import Recipe
from .arguments import check_enough, plain_arguments, seeded_arguments
from .loop import run_training
from .encoders import EncoderSettings, encoder_recipe
from .contrastive import ContrastiveSettings, train_encoder
from .sft import SFTSettings, sft_examples, train_generator
from .cross_encoder import CrossEncoderSettings, GroupBatches, train_reranker
from .stage_data import PairData, TuningData, beside_table_8, write_pair_data, write_tuning_data
from .retriever import Retriever, RetrieverSettings, printed_training, retriever_settings, train_retriever
from .printed import PRINTED, matryoshka_lengths, printed_precision, printed_settings
from .retromae import FiledTexts, RetroMAESettings, TextBatches, train_retromae
from .tower import Tower, TowerSettings, pretraining_ablation, printed_stages, tower_settings, train_tower
from .panel import Panel, PanelSettings
from .alignment import AlignmentSettings, JointSettings, align_towers, train_towers
from .pair import ABLATIONS, APPROACHES, PRINTED_AS, STAGE_DATA, AlignmentData, PairSettings, TowerPair, alignment_key
from .pair import changed_pair, document_lengths, train_pair, train_symmetric
from .command import check_trainable, keys_help, main, train

__all__ = [
    'Settings',
    'PIPELINES',
    'STAGES',
    'pipeline',
    'stage',
    'training_config',
    'Pairs',
    'FiledPairs',
    'PairBatches',
    'Trained',
    'Watch',
    'read_metrics',
    'show_metrics',
    'careful_trainer',
    'Lora',
    'Recipe',
    'check_enough',
    'plain_arguments',
    'seeded_arguments',
    'run_training',
    'EncoderSettings',
    'encoder_recipe',
    'ContrastiveSettings',
    'train_encoder',
    'SFTSettings',
    'sft_examples',
    'train_generator',
    'CrossEncoderSettings',
    'GroupBatches',
    'train_reranker',
    'PairData',
    'TuningData',
    'beside_table_8',
    'write_pair_data',
    'write_tuning_data',
    'Retriever',
    'RetrieverSettings',
    'printed_training',
    'retriever_settings',
    'train_retriever',
    'PRINTED',
    'matryoshka_lengths',
    'printed_precision',
    'printed_settings',
    'FiledTexts',
    'RetroMAESettings',
    'TextBatches',
    'train_retromae',
    'Tower',
    'TowerSettings',
    'pretraining_ablation',
    'printed_stages',
    'tower_settings',
    'train_tower',
    'Panel',
    'PanelSettings',
    'AlignmentSettings',
    'JointSettings',
    'align_towers',
    'train_towers',
    'ABLATIONS',
    'APPROACHES',
    'PRINTED_AS',
    'STAGE_DATA',
    'AlignmentData',
    'PairSettings',
    'TowerPair',
    'alignment_key',
    'changed_pair',
    'document_lengths',
    'train_pair',
    'train_symmetric',
    'check_trainable',
    'keys_help',
    'main',
    'train',
]
