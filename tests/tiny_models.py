"""Tiny models of all architectures, what transformers makes of a text by hand, and a model that counts letters."""

import collections
import json
import math
import string
from pathlib import Path

import numpy as np
import pandas as pd
from conftest import seeded
from medir_nb.data import task_from_frames

SENTENCES = [
    'Atorvastatin lowers LDL cholesterol and the risk of a first myocardial infarction.',
    'Metformin is the first drug for type 2 diabetes; it reduces glucose production.',
    'Given a query, retrieve passages that are relevant to the query',
    'Represent this passage passage: Instruct: Query: query: the sentence for searching relevant passages',
    'Given a Biology post, retrieve relevant passages that help answer the post',
    '糖尿病患者的血糖控制。高血压',
    string.ascii_letters + string.digits,
    ' '.join(string.ascii_letters + string.digits + string.punctuation),
]
TEXTS = [
    ('', 'statins'),
    ('Metformin', 'Metformin is the first drug for type 2 diabetes; it reduces glucose production in the liver.'),
    ('', 'a [bracket], {braces} and 50 % of LDL-C'),
    ('Beta blockers', 'after a heart attack'),
    ('', ''),
]
LONG = ('', ' '.join(SENTENCES[:2] * 60))
LAYERS = {'hidden_size': 32, 'num_hidden_layers': 2, 'num_attention_heads': 4, 'intermediate_size': 64}
SIZES = LAYERS | {'max_position_embeddings': 600, 'initializer_range': 0.3}
CAUSAL = SIZES | {'num_key_value_heads': 2, 'head_dim': 8}
GPT_NEO = {'hidden_size': 32, 'num_layers': 2, 'num_heads': 4, 'attention_types': [[['global', 'local'], 1]]}
GPT_NEO |= {'window_size': 16, 'max_position_embeddings': 600, 'initializer_range': 0.3}
GPTJ = {'n_embd': 32, 'n_layer': 2, 'n_head': 4, 'rotary_dim': 8, 'n_positions': 600, 'initializer_range': 0.3}
T5 = {'d_model': 32, 'd_kv': 8, 'd_ff': 64, 'num_layers': 2, 'num_heads': 4, 'feed_forward_proj': 'gated-gelu'}

# architecture: (config class, its settings, kind of tokenizer, tokens before a text, tokens after it)
FAMILIES = {
    'bert': ('BertConfig', SIZES, 'wordpiece', ['[CLS]'], ['[SEP]']),
    'xlm-r': ('XLMRobertaConfig', SIZES, 'unigram', ['<s>'], ['</s>']),
    'bert-xlm-r': ('BertConfig', SIZES, 'unigram', ['<s>'], ['</s>']),  # multilingual-e5-small: BERT, XLM-R's tokenizer
    'gpt_neox': ('GPTNeoXConfig', SIZES, 'bytes', [], []),
    'gemma': ('GemmaConfig', CAUSAL, 'unigram', ['<bos>'], []),
    'llama': ('LlamaConfig', CAUSAL, 'unigram', ['<s>'], []),
    'mistral': ('MistralConfig', CAUSAL | {'sliding_window': None}, 'unigram', ['<s>'], []),
    'qwen2': ('Qwen2Config', CAUSAL, 'bytes', [], []),
    'qwen3': ('Qwen3Config', CAUSAL, 'bytes', [], ['<|endoftext|>']),  # its tokenizer adds the end token itself
    'gpt_neo': ('GPTNeoConfig', GPT_NEO, 'bytes', [], []),
    'gptj': ('GPTJConfig', GPTJ, 'bytes', [], []),
    't5': ('T5Config', T5 | {'initializer_factor': 1.0}, 'unigram', [], ['</s>']),
}
ROBERTA = {'bos_token': '<s>', 'pad_token': '<pad>', 'eos_token': '</s>', 'unk_token': '<unk>'}
NAMES = {
    'bert': {'cls_token': '[CLS]', 'sep_token': '[SEP]', 'pad_token': '[PAD]', 'unk_token': '[UNK]'},
    'xlm-r': ROBERTA | {'cls_token': '<s>', 'sep_token': '</s>'},
    'gemma': {'pad_token': '<pad>', 'eos_token': '<eos>', 'bos_token': '<bos>', 'unk_token': '<unk>'},
    't5': {'pad_token': '<pad>', 'eos_token': '</s>', 'unk_token': '<unk>'},
    'llama': {'unk_token': '<unk>', 'bos_token': '<s>', 'eos_token': '</s>'},
    'gpt_neox': {'eos_token': '<|endoftext|>'},
}
NAMES |= {'bert-xlm-r': NAMES['xlm-r'], 'mistral': NAMES['llama']}
BIOLOGY = 'Given a Biology post, retrieve relevant passages that help answer the post'
WEB = 'Given a web search query, retrieve relevant passages that answer the query'


def pieces(words, size, special, inside=''):
    """Up to `size` pieces with their counts: every character of `words`, then whole words, then parts of them, the
    frequent ones first; `inside` marks what does not begin a word. Counted here because the trainers of tokenizers,
    the byte-level one apart, find other pieces in each process."""
    counts, whole = collections.Counter(), set(words)
    for word in words:
        for i in range(len(word)):
            counts.update((inside if i else '') + word[i:j] for j in range(i + 1, len(word) + 1))
    length = lambda piece: len(piece.removeprefix(inside))
    ranked = sorted(
        counts, key=lambda piece: (length(piece) > 1, piece not in whole, -counts[piece], -length(piece), piece)
    )
    return {piece: counts[piece] for piece in list(dict.fromkeys([*special, *ranked]))[:size]}


def make_tokenizer(family):
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    _, _, kind, before, after = FAMILIES[family]
    names = NAMES.get(family) or dict(eos_token='<|endoftext|>', pad_token='<|endoftext|>')
    special = list(dict.fromkeys([*names.values(), *before, *after]))
    words = lambda splitter, texts: [w for x in texts for w, _ in splitter.pre_tokenize_str(x)]
    if kind == 'wordpiece':
        normalizer, splitter = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
        found = pieces(words(splitter, map(normalizer.normalize_str, SENTENCES)), 400, special, '##')
        t = Tokenizer(models.WordPiece({piece: i for i, piece in enumerate(found)}, unk_token='[UNK]'))
        t.normalizer, t.pre_tokenizer = normalizer, splitter
    elif kind == 'bytes':
        t = Tokenizer(models.BPE())
        t.pre_tokenizer, t.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=400,
            special_tokens=special,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        t.train_from_iterator(SENTENCES, trainer)
    else:
        splitter = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
        counts = pieces(words(splitter, SENTENCES), 300, special)
        scores = [(piece, math.log(n / sum(counts.values())) if n else 0.0) for piece, n in counts.items()]
        t = Tokenizer(models.Unigram(scores, special.index('<unk>')))
        t.pre_tokenizer = splitter
    t.add_special_tokens(special)
    if before or after:
        pair = (
            '[CLS] $A [SEP] $B:1 [SEP]:1'
            if family == 'bert'
            else ' '.join([*before, '$A', *after, *before, '$B', *after])
        )
        t.post_processor = processors.TemplateProcessing(
            single=' '.join([*before, '$A', *after]),
            pair=pair,
            special_tokens=[(s, t.token_to_id(s)) for s in dict.fromkeys([*before, *after])],
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=t,
        model_input_names=['input_ids', *(['token_type_ids'] if family == 'bert' else []), 'attention_mask'],
        **names,
    )


def make_model(family, folder, seed=0, change=None):
    import torch, transformers

    tokenizer = make_tokenizer(family)
    special = {f'{name}_token_id': getattr(tokenizer, f'{name}_token_id') for name in ('pad', 'bos', 'eos')}
    config = getattr(transformers, FAMILIES[family][0])(vocab_size=len(tokenizer), **special, **FAMILIES[family][1])
    with seeded(seed):
        model = (transformers.T5EncoderModel if family == 't5' else transformers.AutoModel.from_config)(config).eval()
        # a fresh model's padding row is zero; where padding is the end token, a trained one's is not
        with torch.no_grad():
            model.get_input_embeddings().weight.normal_(std=0.3)
    if change:
        change(model, tokenizer)
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
    return str(folder)


def as_sentence_transformer(folder, out, pooling='mean', dense=False, include_prompt=None, normalize=True):
    "A sentence-transformers folder around a transformers one; its pooling file says nothing of prompts unless asked."
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Dense, Normalize, Pooling, Transformer
    import torch

    with seeded(1):
        head = [Dense(32, 24, bias=False, activation_function=torch.nn.Identity())] if dense else []
    modules = [Transformer(folder), Pooling(32, pooling), *head, *([Normalize()] if normalize else [])]
    SentenceTransformer(modules=modules, device='cpu').save(out)
    config = Path(out) / '1_Pooling' / 'config.json'
    saved = json.loads(config.read_text())
    saved.pop('include_prompt', None)
    config.write_text(json.dumps(saved if include_prompt is None else {**saved, 'include_prompt': include_prompt}))
    return out


def by_hand(
    family,
    folder,
    rendered,
    limit,
    eos,
    pooling,
    normalize,
    prompt='',
    adapter=None,
    dense=None,
    segments=None,
    brackets=None,
):
    "One text at a time, no padding, special tokens put around the ids, pooling spelled out."
    import torch, transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = (transformers.T5EncoderModel if family == 't5' else transformers.AutoModel).from_pretrained(folder).eval()
    if adapter:
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, adapter).eval()  # not merged
    plain = lambda text: tokenizer(text, add_special_tokens=False)['input_ids']
    before, after = (tokenizer.convert_tokens_to_ids(x) for x in FAMILIES[family][3:])
    if eos:
        after = [tokenizer.eos_token_id]
    if brackets:
        before, after = plain(brackets[0])[:1], plain(brackets[1])[:1]
    out, counts = [], []
    for text in rendered:
        if segments:
            first, second = (plain(t) for t in text)
            while len(first) + len(second) > limit - 3:
                (first if len(first) > len(second) else second).pop()
            ids = [*before, *first, *after, *second, *after]
            kwargs = {'token_type_ids': torch.tensor([[0] * (len(first) + 2) + [1] * (len(second) + 1)])}
        else:
            ids, kwargs = [*before, *plain(text)[: limit - len(before) - len(after)], *after], {}
        counts.append(len(ids))
        if not ids:
            ids = [tokenizer.eos_token_id]
        with torch.no_grad():
            hidden = model(input_ids=torch.tensor([ids]), **kwargs).last_hidden_state[0]
        skip = len(before) + len(plain(prompt)) if prompt else 0
        w = torch.arange(1, len(ids) + 1).float()
        v = {
            'cls': lambda: hidden[0],
            'mean': lambda: hidden[skip:].mean(0),
            'lasttoken': lambda: hidden[-1],
            'weightedmean': lambda: (hidden * w[:, None]).sum(0) / w.sum(),
        }[pooling]()
        if dense is not None:
            v = dense @ v
        out.append((v / v.norm() if normalize else v).numpy())
    return np.stack(out), counts


def close(a, b):
    "Equal to 1e-5, measured against the size of the vectors."
    scale = max(1.0, float(np.abs(b).max()))
    assert a.shape == b.shape and float(np.abs(a - b).max()) <= 1e-5 * scale


class Letters:
    "A model of 26 dimensions that needs no weights and counts what it is asked."

    name, revision, similarity = 'letters', '1', 'cos'

    def __init__(self):
        self.asked = []

    def encode(self, texts):
        self.asked += texts
        return np.array(
            [[1 + t.lower().count(c) for c in 'abcdefghijklmnopqrstuvwxyz'] for t in texts], dtype=np.float32
        )


def frames(texts, queries=('q',)):
    "A task of plain texts."
    return task_from_frames(
        pd.DataFrame({'id': [f'd{i}' for i in range(len(texts))], 'text': texts}),
        pd.DataFrame({'id': [f'q{i}' for i in range(len(queries))], 'text': queries}),
        pd.DataFrame({'query_id': [f'q{i}' for i in range(len(queries))], 'doc_id': 'd0', 'relevance': 1}),
    )
