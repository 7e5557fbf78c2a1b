"""A tiny encoder with the face of GTE-multilingual's own code: rotary BERT, one projection of qkv, gated layers."""

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPooling, MaskedLMOutput

from .configuration import NewConfig


def rotated(states, cosine, sine):
    half = states.shape[-1] // 2
    turned = torch.cat([-states[..., half:], states[..., :half]], dim=-1)
    return states * cosine + turned * sine


class NewEmbeddings(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size, padding_idx=config.pad_token_id)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, input_ids, inputs_embeds):
        return self.LayerNorm(self.word_embeddings(input_ids) if inputs_embeds is None else inputs_embeds)


class NewAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.heads = config.num_attention_heads
        self.qkv_proj = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.o_proj = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, states, mask, cosine, sine):
        rows, length, width = states.shape
        joined = self.qkv_proj(states).view(rows, length, 3, self.heads, width // self.heads)
        query, key, value = joined.permute(2, 0, 3, 1, 4)
        query, key = rotated(query, cosine, sine), rotated(key, cosine, sine)
        seen = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return self.o_proj(seen.transpose(1, 2).reshape(rows, length, width))


class NewGatedMLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.up_gate_proj = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size)

    def forward(self, states):
        up, gate = self.up_gate_proj(states).chunk(2, dim=-1)
        return self.down_proj(up * nn.functional.gelu(gate))


class NewLayer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.attention, self.mlp = NewAttention(config), NewGatedMLP(config)
        self.attn_ln = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.mlp_ln = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, states, mask, cosine, sine):
        states = self.attn_ln(states + self.attention(states, mask, cosine, sine))
        return self.mlp_ln(states + self.mlp(states))


class NewEncoder(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.layer = nn.ModuleList(NewLayer(config) for _ in range(config.num_hidden_layers))
        self.gradient_checkpointing = False

    def forward(self, states, *around):
        for layer in self.layer:
            spares = self.gradient_checkpointing and self.training
            states = self._gradient_checkpointing_func(layer, states, *around) if spares else layer(states, *around)
        return states


class NewPreTrainedModel(PreTrainedModel):
    config_class = NewConfig
    base_model_prefix = 'new'
    supports_gradient_checkpointing = True
    _no_split_modules = ['NewLayer']


class NewModel(NewPreTrainedModel):
    def __init__(self, config, add_pooling_layer=False):
        super().__init__(config)
        self.embeddings, self.encoder = NewEmbeddings(config), NewEncoder(config)
        self.post_init()

    def get_input_embeddings(self):
        return self.embeddings.word_embeddings

    def set_input_embeddings(self, value):
        self.embeddings.word_embeddings = value

    def turns(self, length, states):
        "Cosines and sines of the places."
        width = self.config.hidden_size // self.config.num_attention_heads
        speeds = self.config.theta ** (-torch.arange(0, width, 2, device=states.device).float() / width)
        angles = torch.outer(torch.arange(length, device=states.device).float(), speeds).repeat(1, 2)
        return angles.cos().to(states.dtype), angles.sin().to(states.dtype)

    def forward(self, input_ids=None, attention_mask=None, token_type_ids=None, inputs_embeds=None, **_):
        states = self.embeddings(input_ids, inputs_embeds)
        mask = None if attention_mask is None else attention_mask[:, None, None, :].bool()
        states = self.encoder(states, mask, *self.turns(states.shape[1], states))
        return BaseModelOutputWithPooling(last_hidden_state=states)


class NewLMPredictionHead(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)

    def forward(self, states):
        return self.decoder(self.norm(nn.functional.gelu(self.dense(states))))


class NewForMaskedLM(NewPreTrainedModel):
    _tied_weights_keys = {'lm_head.decoder.weight': 'new.embeddings.word_embeddings.weight'}

    def __init__(self, config):
        super().__init__(config)
        self.new, self.lm_head = NewModel(config), NewLMPredictionHead(config)
        self.post_init()

    def get_output_embeddings(self):
        return self.lm_head.decoder

    def set_output_embeddings(self, value):
        self.lm_head.decoder = value

    def forward(self, input_ids=None, attention_mask=None, labels=None, **more):
        states = self.new(input_ids, attention_mask, **more).last_hidden_state
        scores = self.lm_head(states)
        loss = None if labels is None else nn.functional.cross_entropy(scores.flatten(0, 1), labels.flatten())
        return MaskedLMOutput(loss=loss, logits=scores)
