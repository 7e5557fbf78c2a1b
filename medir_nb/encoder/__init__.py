"""From texts to vectors: rows, backends, the contract, the store."""

from .spec import (
    EncoderSpec,
    check_positions,
    encoder_names,
    encoder_spec,
    exact_row,
    folder_fingerprint,
    folder_spec,
    parse_dtype,
    positions_of,
)
from .loading import load_sentence_transformer, load_tokenizer
from .tokens import Encoded, Tokens, padded, padded_batch, torch_device
from .local import TorchBackend
from .services import ServiceBackend, object_name
from .environments import Worker, environment_python
from .model import Encoder, contract, count_tokens, free_models
from .store import VectorStore, Vectors, array_vectors, corpus_keys, encode_corpus, missing_texts, text_keys
from .saving import save_encoder, why_not_carried
from .here import check_encoder, gigabytes_of, memory_here, models_table, weights_here

__all__ = [
    'EncoderSpec',
    'check_positions',
    'encoder_names',
    'encoder_spec',
    'exact_row',
    'folder_fingerprint',
    'folder_spec',
    'parse_dtype',
    'positions_of',
    'load_sentence_transformer',
    'load_tokenizer',
    'Encoded',
    'Tokens',
    'padded',
    'padded_batch',
    'torch_device',
    'TorchBackend',
    'ServiceBackend',
    'object_name',
    'Worker',
    'environment_python',
    'Encoder',
    'contract',
    'count_tokens',
    'free_models',
    'VectorStore',
    'Vectors',
    'array_vectors',
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
]
