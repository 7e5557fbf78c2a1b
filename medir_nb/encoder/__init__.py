"""From texts to vectors."""

import lazy_loader

_NAMES = {
    'backends': ['BACKENDS', 'Backend', 'Encoded', 'backend_class', 'only_vectors', 'register_backend'],
    'model_row': ['EncoderSpec', 'parse_dtype'],
    'model_folders': ['check_positions', 'folder_fingerprint', 'folder_spec', 'positions_of'],
    'encoder_rows': ['encoder_names', 'encoder_spec', 'exact_row'],
    'loading': ['load_sentence_transformer', 'load_tokenizer'],
    'tokens': ['Tokens', 'padded', 'padded_batch', 'torch_device'],
    'local': ['FolderBackend', 'TorchBackend'],
    'services': ['ServiceBackend', 'object_name'],
    'environments': ['Worker', 'environment_lines', 'environment_python'],
    'model': ['Encoder', 'count_tokens', 'free_models'],
    'contracts': ['contract', 'contract_key'],
    'store': [
        'VectorStore', 'Vectors', 'array_vectors', 'corpus_keys', 'encode_corpus', 'missing_texts', 'text_keys',
    ],
    'availability': ['check_encoder', 'gigabytes_of', 'memory_here', 'models_table', 'weights_here'],
    'saving': ['save_encoder', 'why_not_carried'],
    'towers': ['joined_towers', 'keep_layers', 'pair_spec', 'save_query_side'],
}
# a module is reached by its name, too
__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, _NAMES, _NAMES)

# each of these registers its kinds
from . import local, services, environments  # noqa: E402
