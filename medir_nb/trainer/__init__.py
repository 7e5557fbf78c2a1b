"""Training rows, losses and stages."""

import lazy_loader

_NAMES = {
    'contrastive_loss': ['InfoNCE', 'false_negatives', 'info_nce', 'matryoshka_loss'],
    'reconstruction_loss': ['RetroMAE', 'decoder_views', 'with_noise', 'word_masks'],
    'alignment_loss': ['DISTANCES', 'Alignment', 'shortened_vectors'],
    'mined_rows': ['Mined', 'load_documents', 'mine', 'read_rows', 'steps_help'],
    'prompt_batch': ['Usage'],
    'questions': ['candidates', 'example_blocks', 'load_queries', 'prompt_files', 'synthesize_queries'],
    'negative_mining': ['hard_negatives', 'hypothesize', 'labelled_pairs', 'round_trip', 'select', 'shuffle_pairs'],
    'tuning_sets': ['check_tuning_row', 'tuning_table'],
    'labelled_sets': ['load_labelled', 'load_sets', 'searched_corpus'],
    'synthetic': ['Written', 'brainstorm_tasks', 'write_corpus_queries', 'write_examples', 'write_queries'],
    'contamination_check': ['Contamination', 'contamination', 'without_test_queries'],
    'tuning_rows': ['consistent_rows', 'draw_negatives', 'mixture_table'],
    'diversity': ['TABLE_10', 'Limits', 'diverse_vectors', 'diversify'],
    'curation': [
        'DIVERSIFICATION_ROWS', 'SCALES', 'Candidate', 'Lists', 'Scale', 'curate', 'diversification_ablation',
        'equal_volumes', 'judged_lists', 'leave_rows', 'retrieved_candidates', 'rows_file', 'votes_of', 'wash',
    ],
    'settings': ['PIPELINES', 'STAGES', 'Settings', 'Stage', 'training_config'],
    'pairs': ['DiskPairs', 'PairBatches', 'Pairs'],
    'progress': ['Trained', 'Watch', 'read_metrics', 'show_metrics'],
    'safe_training': ['Lora', 'safe_trainer'],
    'identity': ['Recipe'],
    'loop': ['check_enough', 'plain_arguments', 'run_training', 'seeded_arguments', 'stage'],
    'encoders': ['ContrastiveSettings', 'EncoderSettings', 'encoder_recipe', 'train_encoder'],
    'sft': ['SFTSettings', 'sft_examples', 'train_generator'],
    'cross_encoder': ['CrossEncoderSettings', 'GroupBatches', 'train_reranker'],
    'stage_data': ['PairData', 'TuningData', 'beside_table_8', 'write_pair_data', 'write_tuning_data'],
    'retriever': ['Retriever', 'RetrieverSettings', 'printed_training', 'retriever_settings', 'train_retriever'],
    'retromae': ['DiskTexts', 'RetroMAESettings', 'TextBatches', 'train_retromae'],
    'tower': [
        'PRINTED', 'Tower', 'TowerSettings', 'matryoshka_lengths', 'pretraining_ablation', 'printed_precision',
        'printed_settings', 'printed_stages', 'tower_settings', 'train_tower',
    ],
    'tower_monitor': ['TowerMonitor', 'TowerMonitorSettings'],
    'alignment': ['AlignmentSettings', 'JointSettings', 'align_towers', 'train_towers'],
    'pair': [
        'ABLATIONS', 'APPROACHES', 'PRINTED_AS', 'STAGE_DATA', 'AlignmentData', 'PairSettings', 'TowerPair',
        'alignment_key', 'changed_pair', 'document_lengths', 'train_pair', 'train_symmetric',
    ],
    'command': ['check_trainable', 'keys_help', 'main', 'train'],
}
# a module is reached by its name, too
__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, _NAMES, _NAMES)

# each of these registers its kinds
from . import (
    mined_rows,
    questions,
    negative_mining,
    tuning_sets,
    labelled_sets,
    synthetic,
    contamination_check,
    tuning_rows,
    diversity,
    curation,
    encoders,
    sft,
    cross_encoder,
    retriever,
    retromae,
    tower,
    alignment,
    pair,
)  # noqa: E402
