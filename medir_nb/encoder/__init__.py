"""From texts to vectors: rows, backends, the contract, the store."""

from .backends import BACKENDS, Backend, Encoded, backend_class, only_vectors, register_backend
from .row import EncoderSpec, parse_dtype
from .folders import check_positions, folder_fingerprint, folder_spec, positions_of
from .spec import encoder_names, encoder_spec, exact_row
from .loading import load_sentence_transformer, load_tokenizer
from .tokens import Tokens, padded, padded_batch, torch_device
from .local import FolderBackend, TorchBackend
from .services import ServiceBackend, object_name
from .environments import Worker, environment_lines, environment_python
from .model import Encoder, count_tokens, free_models
from .contracts import contract, contract_key
from .vectors import Vectors, array_vectors
from .store import VectorStore, corpus_keys, encode_corpus, missing_texts, text_keys
from .here import check_encoder, gigabytes_of, memory_here, models_table, weights_here
from .saving import save_encoder, why_not_carried
from .towers import joined_towers, keep_layers, pair_spec, save_query_side

__all__ = [
    'BACKENDS',
    'Backend',
    'Encoded',
    'backend_class',
    'only_vectors',
    'register_backend',
    'EncoderSpec',
    'parse_dtype',
    'check_positions',
    'folder_fingerprint',
    'folder_spec',
    'positions_of',
    'encoder_names',
    'encoder_spec',
    'exact_row',
    'load_sentence_transformer',
    'load_tokenizer',
    'Tokens',
    'padded',
    'padded_batch',
    'torch_device',
    'FolderBackend',
    'TorchBackend',
    'ServiceBackend',
    'object_name',
    'Worker',
    'environment_lines',
    'environment_python',
    'Encoder',
    'count_tokens',
    'free_models',
    'contract',
    'contract_key',
    'Vectors',
    'array_vectors',
    'VectorStore',
    'corpus_keys',
    'encode_corpus',
    'missing_texts',
    'text_keys',
    'check_encoder',
    'gigabytes_of',
    'memory_here',
    'models_table',
    'weights_here',
    'save_encoder',
    'why_not_carried',
    'joined_towers',
    'keep_layers',
    'pair_spec',
    'save_query_side',
]
