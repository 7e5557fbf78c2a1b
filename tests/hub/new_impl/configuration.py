"""The configuration of a tiny encoder with the face of GTE-multilingual's own code."""

from transformers import PretrainedConfig


class NewConfig(PretrainedConfig):
    model_type = 'new'

    def __init__(
        self,
        vocab_size=2000,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=512,
        initializer_range=0.3,
        layer_norm_eps=1e-12,
        rope_theta=20000.0,
        pad_token_id=1,
        **kwargs,
    ):
        super().__init__(pad_token_id=pad_token_id, **kwargs)
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.intermediate_size = intermediate_size
        self.max_position_embeddings = max_position_embeddings
        self.initializer_range = initializer_range
        self.layer_norm_eps = layer_norm_eps
        self.theta = rope_theta  # transformers has its own idea of a key that is called rope_theta
        self.position_embedding_type = 'rope'
