"""For every row of models.yaml, llms.yaml and rerankers.yaml a tiny random model of its architecture, as on the Hub."""

import collections, json, math, string, zlib
from pathlib import Path
import torch
from hub.data import SENTENCES, carded
from hub.server import Repository
from medir_nb.core import registry
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HIDDEN, HEAD = 32, 24
_SIZES = dict(hidden_size=HIDDEN, initializer_range=0.3)
ENCODER = dict(_SIZES, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64)
DISTIL = dict(dim=HIDDEN, n_layers=2, n_heads=4, hidden_dim=64, initializer_range=0.3)
DECODER = dict(ENCODER, num_key_value_heads=2, head_dim=8)
NEO = dict(_SIZES, num_layers=2, num_heads=4, attention_types=[[['global', 'local'], 1]], window_size=16)
MODERN = dict(ENCODER, cls_token_id=1, sep_token_id=2, global_attn_every_n_layers=1)
GPTJ = dict(n_embd=HIDDEN, n_layer=2, n_head=4, rotary_dim=8, initializer_range=0.3)
T5 = dict(d_model=HIDDEN, d_kv=8, d_ff=64, num_layers=2, num_heads=4, initializer_factor=1.0)
T5 |= dict(feed_forward_proj='gated-gelu')


# A kind of checkpoint: its configuration, its tokenizer (wordpiece, bytes: byte-level BPE, fallback: BPE that falls
# back to bytes, unigram), the tokens before and after a text, positions that no token can take (spare), how a pair of
# texts is joined, where not like two texts, and special tokens of the vocabulary that no name is given to (also)
_FIELDS = 'config sizes pieces tokenizer_class names before after positions spare pair also'
Family = collections.namedtuple('Family', _FIELDS, defaults=((), (), 'max_position_embeddings', 0, '', ()))
BERT = dict(cls_token='[CLS]', sep_token='[SEP]', pad_token='[PAD]', unk_token='[UNK]', mask_token='[MASK]')
# in the order of the real vocabulary: positions are counted from the padding's id
ROBERTA = dict(bos_token='<s>', pad_token='<pad>', eos_token='</s>', cls_token='<s>', sep_token='</s>')
ROBERTA |= dict(unk_token='<unk>', mask_token='<mask>')
MPNET = {**ROBERTA, 'unk_token': '[UNK]'}
LLAMA = dict(unk_token='<unk>', bos_token='<s>', eos_token='</s>')
LLAMA3 = dict(bos_token='<|begin_of_text|>', eos_token='<|eot_id|>')
GEMMA = dict(pad_token='<pad>', eos_token='<eos>', bos_token='<bos>', unk_token='<unk>')
T5_NAMES = dict(pad_token='<pad>', eos_token='</s>', unk_token='<unk>')
END = dict(bos_token='<|endoftext|>', eos_token='<|endoftext|>', unk_token='<|endoftext|>')
PADDED = {**END, 'pad_token': '<|endoftext|>'}
CHATML = dict(eos_token='<|im_end|>', pad_token='<|endoftext|>', additional_special_tokens=['<|im_start|>'])
TWO = dict(spare=2, pair='<s> $A </s> </s> $B </s>')
MISTRAL = dict(DECODER, sliding_window=None)
BYTES, OCTETS = ('bytes', 'PreTrainedTokenizerFast'), ('fallback', 'LlamaTokenizer')
QWEN2, GPT2 = ('bytes', 'Qwen2Tokenizer'), ('bytes', 'GPT2Tokenizer')
BERT_PAIR, S = '[CLS] $A [SEP] $B:1 [SEP]:1', ('<s>',)
WORDPIECE, UNIGRAM = ('wordpiece', 'BertTokenizer'), ('unigram', 'XLMRobertaTokenizer')
FAMILIES = {
    'bert': Family('BertConfig', ENCODER, *WORDPIECE, BERT, ('[CLS]',), ('[SEP]',), pair=BERT_PAIR),
    'distilbert': Family('DistilBertConfig', DISTIL, *WORDPIECE, BERT, ('[CLS]',), ('[SEP]',)),
    'mpnet': Family('MPNetConfig', ENCODER, 'wordpiece', 'MPNetTokenizer', MPNET, S, ('</s>',), **TWO),
    'xlm-r': Family('XLMRobertaConfig', ENCODER, *UNIGRAM, ROBERTA, S, ('</s>',), **TWO),
    'gpt_neox': Family('GPTNeoXConfig', ENCODER, 'bytes', 'GPTNeoXTokenizer', END, also=('<|padding|>',)),
    'gpt_neo': Family('GPTNeoConfig', NEO, *GPT2, PADDED),
    'gptj': Family('GPTJConfig', GPTJ, *GPT2, PADDED, positions='n_positions'),
    'gemma': Family('GemmaConfig', DECODER, 'fallback', 'GemmaTokenizer', GEMMA, ('<bos>',)),
    'llama': Family('LlamaConfig', DECODER, *OCTETS, LLAMA, S),
    'mistral': Family('MistralConfig', MISTRAL, *OCTETS, LLAMA, S),
    'llama3': Family('LlamaConfig', DECODER, *BYTES, LLAMA3, ('<|begin_of_text|>',)),
    'qwen2': Family('Qwen2Config', DECODER, *QWEN2, CHATML),
    'qwen3': Family('Qwen3Config', DECODER, *QWEN2, CHATML),
    'modernbert': Family('ModernBertConfig', MODERN, *BYTES, BERT, ('[CLS]',), ('[SEP]',)),
    't5': Family('T5Config', T5, 'unigram', 'T5Tokenizer', T5_NAMES, after=('</s>',), positions=''),
}
# what the registries call an architecture whose tokenizer and code are another's
FAMILIES['nvembed'] = FAMILIES['mistral']
FAMILIES['xlm-roberta'] = FAMILIES['xlm-r']
FAMILIES['xlm-roberta-flash'] = FAMILIES['xlm-r']  # jina-colbert-v2
FAMILIES['new'] = FAMILIES['xlm-r']  # gte-multilingual: its vocabulary; for its model see `save_gte`


def make_tokenizer(family, sentences=SENTENCES, size=2000, words=()):
    "A small tokenizer of the family's kind, trained on a few sentences; it knows the `words` besides."
    from transformers import PreTrainedTokenizerFast

    f = FAMILIES[family]
    named = [name for value in f.names.values() for name in (value if isinstance(value, list) else [value])]
    special = list(dict.fromkeys([*named, *f.before, *f.after, *f.also]))
    t = KINDS[f.pieces](f, special, sentences, size)
    if f.before or f.after:
        around = ' '.join([*f.before, '$A', *f.after])
        known = [(s, t.token_to_id(s)) for s in dict.fromkeys([*f.before, *f.after])]
        pair = f.pair or f'{around} {around.replace("$A", "$B")}'
        t.post_processor = processors.TemplateProcessing(single=around, pair=pair, special_tokens=known)
    t.add_tokens([word for word in words if t.token_to_id(word) is None])
    inputs = ['input_ids', *(['token_type_ids'] if family == 'bert' else []), 'attention_mask']
    return PreTrainedTokenizerFast(tokenizer_object=t, model_input_names=inputs, **f.names)


def letters_of(sentences):
    known = set(string.ascii_letters + string.digits + string.punctuation)
    return sorted(known | {letter for sentence in sentences for letter in sentence if not letter.isspace()})


# trainers of word pieces and of unigrams give another vocabulary in each process, so those are written down by counting


def word_pieces(family, special, sentences, size):
    normalizer, splitter = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    normal = normalizer.normalize_str
    words = _counted(word for s in sentences for word, _ in splitter.pre_tokenize_str(normal(s)))
    small = sorted({normal(letter).strip() for letter in letters_of(sentences)} - {''})
    frequent = (word for word, count in words if count > 1)
    vocabulary = dict.fromkeys([*special, *small, *(f'##{letter}' for letter in small), *frequent])
    ids = {word: i for i, word in enumerate(vocabulary)}
    t = Tokenizer(models.WordPiece(ids, unk_token=family.names['unk_token']))
    t.add_special_tokens(special)
    t.normalizer, t.pre_tokenizer, t.decoder = normalizer, splitter, decoders.WordPiece()
    return t


def unigrams(family, special, sentences, size):
    splitter = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    words = _counted(word for s in sentences for word, _ in splitter.pre_tokenize_str(s))
    scores = {**dict.fromkeys(special, 0.0), **dict.fromkeys(['▁', *letters_of(sentences)], -12.0)}
    scores |= {word: math.log(n / len(words)) - 4 for word, n in words if n > 1 and len(word) > 1}
    t = Tokenizer(models.Unigram(list(scores.items()), special.index('<unk>')))
    t.add_special_tokens(special)
    t.pre_tokenizer, t.decoder = splitter, decoders.Metaspace()
    return t


def byte_pairs(family, special, sentences, size):
    t = Tokenizer(models.BPE())
    t.pre_tokenizer, t.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    more = dict(initial_alphabet=alphabet, vocab_size=size, show_progress=False)
    t.train_from_iterator(sentences, trainers.BpeTrainer(special_tokens=special, **more))
    return t


def pairs_with_octets(family, special, sentences, size):
    t = Tokenizer(models.BPE(unk_token='<unk>', byte_fallback=True, fuse_unk=True))
    t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme='first', split=True)
    parts = [decoders.Replace('▁', ' '), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(' ', 1, 0)]
    t.decoder = decoders.Sequence(parts)
    octets = [AddedToken(f'<0x{i:02X}>', special=False, normalized=False) for i in range(256)]
    more = dict(initial_alphabet=letters_of(sentences), vocab_size=size + 256, show_progress=False)
    t.train_from_iterator(sentences, trainers.BpeTrainer(special_tokens=[*special, *octets], **more))
    return _without_added_octets(t)


KINDS = {'wordpiece': word_pieces, 'bytes': byte_pairs, 'fallback': pairs_with_octets, 'unigram': unigrams}


def _counted(words):
    "Words with how often each stands there, the most frequent first."
    return sorted(collections.Counter(words).items(), key=lambda x: (-x[1], x[0]))


def _without_added_octets(tokenizer):
    "The trainer knows bytes as added tokens only; in a real file they are plain entries of the vocabulary."
    told = json.loads(tokenizer.to_str())
    told['added_tokens'] = [a for a in told['added_tokens'] if not a['content'].startswith('<0x')]
    return Tokenizer.from_str(json.dumps(told))


def save_tokenizer(family, folder, limit, words=(), **more):
    "The files of a tokenizer with the class and the flags that the real repository names; the tokenizer."
    tokenizer = make_tokenizer(family, words=words)
    tokenizer.backend_tokenizer.save(str(folder / 'tokenizer.json'))
    f = FAMILIES[family]
    flags = {'add_bos_token': True, 'add_eos_token': False} if f.pieces == 'fallback' else {}
    config = {'tokenizer_class': f.tokenizer_class, 'model_max_length': limit, 'clean_up_tokenization_spaces': False}
    write_json(folder / 'tokenizer_config.json', {**config, **f.names, **flags, **more})
    write_json(folder / 'special_tokens_map.json', f.names)
    return tokenizer


def write_json(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1), encoding='utf-8')


def make_model(family, name, limit, kind='AutoModel', tokenizer=None, **settings):
    "A random model, the same for the same name."
    import transformers

    transformers.utils.logging.disable_progress_bar()
    f, tokenizer = FAMILIES[family], tokenizer or make_tokenizer(family)
    ends = {k: v for k in ('pad_token_id', 'bos_token_id', 'eos_token_id') if (v := getattr(tokenizer, k)) is not None}
    places = {f.positions: limit + f.spare} if f.positions else {}
    told = {'pad_token_id': None, **ends, **f.sizes, **places, **settings}
    config = getattr(transformers, f.config)(vocab_size=len(tokenizer), **told)
    is_t5_encoder = family == 't5' and kind == 'AutoModel'
    made = transformers.T5EncoderModel if is_t5_encoder else getattr(transformers, kind).from_config
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(zlib.crc32(name.encode()))
        model = made(config)
        # a fresh model's padding row is zero; where padding is the end token, a trained one's is not
        with torch.no_grad():
            model.get_input_embeddings().weight.normal_(std=0.3)
    return model.eval()


def old_tables(model):
    "What the transformers of a legacy checkpoint's time saved besides: positions, and the causal masks of GPTs."
    attention = {'gpt_neo': 'attn.attention', 'gptj': 'attn'}.get(model.config.model_type)
    if attention:
        return {f'h.{n}.{attention}.{mask}': torch.ones(1) for n in range(2) for mask in ('bias', 'masked_bias')}
    return {'embeddings.position_ids': torch.arange(8)[None]} if hasattr(model, 'embeddings') else {}


def save_model(model, folder, legacy=False, shard=None):
    if legacy:
        model.config.architectures = [type(model).__name__]
        model.config.save_pretrained(folder)
        torch.save({**model.state_dict(), **old_tables(model)}, folder / 'pytorch_model.bin')
    else:
        model.save_pretrained(folder, **({'max_shard_size': shard} if shard else {}))


# repositories that hold sentence-transformers' files beside the weights
MODULES = ('BAAI/bge', 'intfloat/', 'thenlper/', 'sentence-transformers/', 'Muennighoff/SGPT', 'hkunlp/', 'moka-ai/')
MODULES += ('sensenova/', 'Salesforce/SFR', 'GritLM/', 'Alibaba-NLP/gte-multilingual-base', 'Alibaba-NLP/gte-Qwen2')
MODULES += ('Qwen/Qwen3-Embedding',)
HEADS = ('sentence-transformers/gtr', 'hkunlp/', 'infgrad/', 'TencentBAC/')  # a Dense layer behind the pooling
LEGACY = ('Muennighoff/SGPT', 'GanymedeNil/', 'castorini/', 'OpenMatch/', 'facebook/')  # of before safetensors
CAUSAL = ('meta-llama/', 'GritLM/', 'EleutherAI/', 'BioMistral/', 'Qwen/Qwen3-8B')  # with the head of a language model
# where another architecture's tokenizer stands before the model
TOKENIZERS = {'intfloat/multilingual-e5-small': 'xlm-r'}
OWN_MISTRAL = 'raise RuntimeError("the code of this checkpoint must not run")\n'


def write_modules(folder, pooling, normalize, limit, dense=0):
    "sentence-transformers' files as the Hub's older repositories have them."
    kinds = ['Transformer', 'Pooling', *(['Dense'] if dense else []), *(['Normalize'] if normalize else [])]
    paths = [f'{i}_{kind}' if i else '' for i, kind in enumerate(kinds)]
    where = 'sentence_transformers.models'
    modules = [dict(idx=i, name=str(i), path=paths[i], type=f'{where}.{kind}') for i, kind in enumerate(kinds)]
    write_json(folder / 'modules.json', modules)
    modes = {'cls': 'cls_token', 'mean': 'mean_tokens', 'max': 'max_tokens', 'mean_sqrt_len': 'mean_sqrt_len_tokens'}
    modes |= {'weightedmean': 'weightedmean_tokens', 'lasttoken': 'lasttoken'}
    chosen = {f'pooling_mode_{told}': mode == pooling for mode, told in modes.items()}
    write_json(folder / '1_Pooling' / 'config.json', {'word_embedding_dimension': HIDDEN, **chosen})
    write_json(folder / 'sentence_bert_config.json', {'max_seq_length': limit, 'do_lower_case': False})
    versions = {'sentence_transformers': '2.2.2', 'transformers': '4.28.1', 'pytorch': '1.13.0'}
    write_json(folder / 'config_sentence_transformers.json', {'__version__': versions})
    if dense:
        told = dict(in_features=HIDDEN, out_features=dense, bias=False)
        told['activation_function'] = 'torch.nn.modules.linear.Identity'
        write_json(folder / '2_Dense' / 'config.json', told)
        weight = torch.randn(dense, HIDDEN, generator=torch.Generator().manual_seed(1))
        save_file({'linear.weight': weight}, folder / '2_Dense' / 'model.safetensors')


def sparse_files(row, hub):
    "`build(folder)` of a repository of `SparseEncoder`: a masked language model, its pooling, and a table for queries."

    def build(folder):
        limit, where = limit_of(row), 'sentence_transformers.sparse_encoder.models'
        made = save_tokenizer(row['architecture'], folder, limit)
        save_model(make_model(row['architecture'], hub, limit, 'AutoModelForMaskedLM', made), folder)
        if hub.endswith('ensembledistil'):
            return  # a commit of before the library knew it
        strategy, activation = (row.get('document') or row)['pooling'].split(' of ')
        told = dict(pooling_strategy=strategy, activation_function=activation, word_embedding_dimension=None)
        write_json(folder / 'sentence_bert_config.json', {'max_seq_length': limit, 'do_lower_case': False})
        saved = {'model_type': 'SparseEncoder', 'similarity_fn_name': 'dot', '__version__': {'pytorch': '2.7.1'}}
        write_json(folder / 'config_sentence_transformers.json', saved)
        kinds = {'': f'{where}.MLMTransformer', '1_SpladePooling': f'{where}.SpladePooling'}
        if not row.get('document'):
            write_json(folder / '1_SpladePooling' / 'config.json', told)
            modules = [dict(idx=i, name=str(i), path=path, type=kinds[path]) for i, path in enumerate(kinds)]
            write_json(folder / 'modules.json', modules)
            return
        write_json(folder / 'document_1_SpladePooling' / 'config.json', told)
        router = dict(idx=0, name='0', path='', type='sentence_transformers.models.Router')
        write_json(folder / 'modules.json', [router])
        table = folder / 'query_0_SparseStaticEmbedding'
        write_json(table / 'config.json', {'frozen': False})
        save_tokenizer(row['architecture'], table, limit)
        weight = torch.rand(len(made), generator=torch.Generator().manual_seed(1))
        save_file({'weight': weight}, table / 'model.safetensors')
        types = {'': kinds[''], 'document_1_SpladePooling': kinds['1_SpladePooling']}
        types['query_0_SparseStaticEmbedding'] = f'{where}.SparseStaticEmbedding'
        structure = {'query': ['query_0_SparseStaticEmbedding'], 'document': ['', 'document_1_SpladePooling']}
        more = {'default_route': 'document', 'allow_empty_key': True}
        write_json(folder / 'router_config.json', dict(types=types, structure=structure, parameters=more))

    return build


def limit_of(row):
    return max(int(row.get(f'max_{role}_tokens') or 0) for role in ('query', 'document')) or 512


def encoder_files(row, hub, tokenizer=True):
    def build(folder):
        family, limit = row['architecture'], limit_of(row)
        words = TOKENIZERS.get(hub, family)
        made = save_tokenizer(words, folder, limit) if tokenizer else make_tokenizer(words)
        if family == 'nvembed':
            return _nv_embed(folder, made, limit, hub)
        if family == 'new':
            save_gte(folder, made, limit, hub, f'{GTE_CODE}--')
        else:
            causal = hub.startswith(CAUSAL)
            model = make_model(family, hub, limit, 'AutoModelForCausalLM' if causal else 'AutoModel', made)
            save_model(model, folder, hub.startswith(LEGACY))
        if row.get('bidirectional'):
            _with_code(folder, {'AutoModelForCausalLM': 'modeling_own.OwnForCausalLM'}, 'modeling_own.py', OWN_MISTRAL)
        if row['backend'] == 'sentence-transformers' or hub.startswith(MODULES):
            write_modules(folder, row['pooling'], row['normalize'], limit, HEAD if hub.startswith(HEADS) else 0)

    return build


FLASH = """
from transformers import XLMRobertaConfig, XLMRobertaModel
class OwnConfig(XLMRobertaConfig):
    model_type = 'own'
class OwnModel(XLMRobertaModel):
    config_class = OwnConfig
"""


def marked_tokenizer(family, folder, limit, marks):
    "The files of a tokenizer that knows the marks before a query and a document."
    made = save_tokenizer(family, folder, limit)
    made.add_tokens(list(marks))
    made.backend_tokenizer.save(str(folder / 'tokenizer.json'))
    return made


def token_files(row, hub):
    "`build(folder)` of a late-interaction model: PyLate's layout for ModernBERT, else that of Stanford's ColBERT."
    family, limit = row['architecture'], max(int(row[f'max_{role}_tokens']) for role in ('query', 'document')) + 8
    is_pylates = family == 'modernbert'

    def build(folder):
        own = {'xlm-roberta-flash': ('[QueryMarker]', '[DocumentMarker]')}.get(family, ('[unused0]', '[unused1]'))
        marks = ('[Q] ', '[D] ') if is_pylates else own
        made = marked_tokenizer(family, folder, limit, marks)
        model = make_model(family, hub, limit, tokenizer=made)
        weight = torch.randn(row['dim'], HIDDEN, generator=torch.Generator().manual_seed(1))
        if is_pylates:
            save_model(model, folder)
            return pylate_modules(folder, row, weight, marks)
        told = {**model.config.to_dict(), 'architectures': ['HF_ColBERT']}
        write_json(folder / 'config.json', told)
        inner = model.base_model_prefix
        body = {f'{inner}.{name}': value.contiguous() for name, value in model.state_dict().items()}
        save_file({**body, 'linear.weight': weight}, folder / 'model.safetensors', {'format': 'pt'})
        about = {'query_token_id': marks[0], 'doc_token_id': marks[1], 'dim': row['dim'], 'mask_punctuation': True}
        about |= {'query_maxlen': row['max_query_tokens'], 'doc_maxlen': row['max_document_tokens']}
        write_json(folder / 'artifact.metadata', {**about, 'attend_to_mask_tokens': family == 'xlm-roberta-flash'})
        if row.get('remote_code'):
            classes = {'AutoConfig': 'modeling_own.OwnConfig', 'AutoModel': 'modeling_own.OwnModel'}
            _with_code(folder, classes, 'modeling_own.py', FLASH, model_type='own')

    return build


def pylate_modules(folder, row, weight, marks):
    kinds = {'': 'sentence_transformers.models.Transformer', '1_Dense': 'pylate.models.Dense.Dense'}
    modules = [dict(idx=i, name=str(i), path=path, type=kind) for i, (path, kind) in enumerate(kinds.items())]
    write_json(folder / 'modules.json', modules)
    longest = row['max_document_tokens'] - 1
    write_json(folder / 'sentence_bert_config.json', {'max_seq_length': longest, 'do_lower_case': False})
    told = {'__version__': {'sentence_transformers': '4.0.2'}, 'prompts': {}, 'model_type': 'ColBERT'}
    told |= {'query_prefix': marks[0], 'document_prefix': marks[1], 'similarity_fn_name': 'MaxSim'}
    told |= {f'{role}_length': row[f'max_{role}_tokens'] for role in ('query', 'document')}
    told |= {'attend_to_expansion_tokens': False, 'do_query_expansion': True}
    told['skiplist_words'] = list(string.punctuation)
    write_json(folder / 'config_sentence_transformers.json', told)
    dense = dict(in_features=HIDDEN, out_features=len(weight), bias=False, use_residual=False)
    write_json(folder / '1_Dense' / 'config.json', {**dense, 'activation_function': 'torch.nn.modules.linear.Identity'})
    save_file({'linear.weight': weight}, folder / '1_Dense' / 'model.safetensors')


def adapter_files(base_hub, architecture, limit, hub, scores=False):
    "`build(folder)` of a LoRA around the model of `base_hub`; with `scores` it carries the head of a reranker."

    def build(folder):
        from peft import LoraConfig, get_peft_model

        targets = 'q_proj k_proj v_proj o_proj down_proj up_proj gate_proj'.split()
        told = {'task_type': 'SEQ_CLS' if scores else 'FEATURE_EXTRACTION', 'base_model_name_or_path': base_hub}
        lora = LoraConfig(r=4, lora_alpha=8, init_lora_weights=False, target_modules=targets, **told)
        kind = 'AutoModelForSequenceClassification' if scores else 'AutoModel'
        model = make_model(architecture, base_hub, limit, kind, **({'num_labels': 1} if scores else {}))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(zlib.crc32(hub.encode()))
            get_peft_model(model, lora).save_pretrained(folder, safe_serialization=False, save_embedding_layers=False)
        told = json.loads((folder / 'adapter_config.json').read_text())
        # the published files name no modules_to_save: peft puts the head back for the task type
        told |= {'modules_to_save': None, 'base_model_name_or_path': base_hub}
        write_json(folder / 'adapter_config.json', told)

    return build


def _with_code(folder, auto_map, file, code, **more):
    told = json.loads((folder / 'config.json').read_text())
    write_json(folder / 'config.json', {**told, 'auto_map': auto_map, **more})
    (folder / file).write_text(code)


# GTE-multilingual: BERT with rotary positions, by code that lies in a repository of its own
GTE_CODE = 'Alibaba-NLP/new-impl'
GTE_FILES = [Path(__file__).with_name('new_impl') / f'{name}.py' for name in ('configuration', 'modeling')]


def save_gte(folder, tokenizer, limit, name, where=''):
    "A tiny masked language model of that architecture, the same for a name; `where`: the repository of its code."
    from hub.new_impl.configuration import NewConfig
    from hub.new_impl.modeling import NewForMaskedLM

    sizes = {**ENCODER, 'vocab_size': len(tokenizer), 'pad_token_id': tokenizer.pad_token_id}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(zlib.crc32(name.encode()))
        model = NewForMaskedLM(NewConfig(**sizes, max_position_embeddings=limit))
        with torch.no_grad():
            model.get_input_embeddings().weight.normal_(std=0.3)
    model.save_pretrained(folder)
    classes = {
        'AutoConfig': f'{where}configuration.NewConfig',
        'AutoModel': f'{where}modeling.NewModel',
        'AutoModelForMaskedLM': f'{where}modeling.NewForMaskedLM',
    }
    told = json.loads((folder / 'config.json').read_text())
    write_json(folder / 'config.json', {**told, 'auto_map': classes})
    if not where:
        gte_code(folder)


def gte_code(folder):
    for file in GTE_FILES:
        (folder / file.name).write_text(file.read_text(encoding='utf-8'), encoding='utf-8')


NV_EMBED = '''
"""The face of NV-Embed's own code, tiny: encode(texts, instruction=, max_length=), its tokenizer fetched by name."""
import torch
from transformers import AutoTokenizer, MistralConfig, MistralModel
class NVEmbedConfig(MistralConfig):
    model_type = 'nvembed'
class NVEmbedModel(MistralModel):
    config_class = NVEmbedConfig
    def __init__(self, config):
        super().__init__(config)
        self.tokenizer = AutoTokenizer.from_pretrained(config.tokenizer_of)
        self.tokenizer.padding_side = 'right'
        self.tokenizer.pad_token = self.tokenizer.eos_token
    @torch.no_grad()
    def encode(self, prompts, instruction='', max_length=4096, **kwargs):
        skip = len(self.tokenizer(instruction)['input_ids']) if instruction else 0
        texts = [instruction + p + self.tokenizer.eos_token for p in prompts]
        cut = dict(max_length=max_length, padding=True, truncation=True, return_tensors='pt')
        batch = self.tokenizer(texts, **cut).to(self.device)
        hidden = self(input_ids=batch['input_ids'], attention_mask=batch['attention_mask']).last_hidden_state
        mask = batch['attention_mask'].clone()
        mask[:, :skip] = 0
        return (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True).clamp(min=1)
'''


def _nv_embed(folder, tokenizer, limit, hub):
    save_model(make_model('mistral', hub, limit, tokenizer=tokenizer), folder)
    classes = {'AutoConfig': 'modeling_nvembed.NVEmbedConfig', 'AutoModel': 'modeling_nvembed.NVEmbedModel'}
    told = dict(model_type='nvembed', architectures=['NVEmbedModel'], tokenizer_of=hub)
    _with_code(folder, classes, 'modeling_nvembed.py', NV_EMBED, **told)


TOOLS = (
    '{% if tools %}<|im_start|>system\n# Tools{% for t in tools %}\n{{ t | tojson }}{% endfor %}<|im_end|>\n{% endif %}'
)
TURN = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
QWEN = TOOLS + TURN + '{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}'
SILENT = '{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}'
THINKING = QWEN.replace('assistant\n{% endif %}', 'assistant\n' + SILENT + '{% endif %}')
HEADERS = (
    '{{ bos_token }}{% for m in messages %}'
    "<|start_header_id|>{{ m['role'] }}<|end_header_id|>\n\n{{ m['content'] }}<|eot_id|>{% endfor %}"
    '{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}'
)
DEEPSEEK = (
    "{% for m in messages %}{% if m['role'] == 'system' %}{{ m['content'] }}"
    "{% elif m['role'] == 'user' %}<|User|>{{ m['content'] }}"
    "{% else %}<|Assistant|>{{ m['content'] }}{% endif %}{% endfor %}"
    '{% if add_generation_prompt %}<|Assistant|><think>\n{% endif %}'
)
ZEPHYR = (
    "{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] }}</s>\n{% endfor %}"
    '{% if add_generation_prompt %}<|assistant|>\n{% endif %}'
)
# a part of a Hub id (the first that fits): architecture and chat template
WRITERS = [
    ('chatglm3', 'llama', ''),
    ('rank_zephyr', 'mistral', ZEPHYR),
    ('rank1', 'qwen2', ''),
    ('Llama-2', 'llama', ''),
    ('Distill-Qwen', 'qwen2', DEEPSEEK),
    ('Distill-Llama', 'llama3', DEEPSEEK),
    *((part, 'llama3', HEADERS) for part in ('Llama-3', 'HuatuoGPT-o1')),
    ('Qwen3', 'qwen3', THINKING),
    *((part, 'qwen2', QWEN) for part in ('reasonrank', 'qwen2', 'Qwen2', 'QwQ')),
]
SHARDED = ('-32B', '-70B', '-72B')
CHATGLM = '''
"""A tiny model behind the names of ChatGLM3's own code."""
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
class ChatGLMConfig(LlamaConfig):
    model_type = 'chatglm'
class ChatGLMForConditionalGeneration(LlamaForCausalLM):
    config_class = ChatGLMConfig
class ChatGLMTokenizer(PreTrainedTokenizerFast):
    pass
'''


def writer_of(hub):
    return next((family, template) for part, family, template in WRITERS if part in hub)


def writer_files(row, hub):
    def build(folder):
        family, template = writer_of(hub)
        made = save_tokenizer(family, folder, int(row['context']), **({'chat_template': template} if template else {}))
        model = make_model(family, hub, int(row['context']), 'AutoModelForCausalLM', made)
        save_model(model, folder, shard='100KB' if hub.endswith(SHARDED) else None)
        named = [made.convert_tokens_to_ids(token) for token in ('<|im_end|>', '<|endoftext|>')]
        ends = named if 'qwen' in family else made.eos_token_id
        sampling = {'do_sample': True, 'temperature': 0.7, 'top_p': 0.8, 'repetition_penalty': 1.05}
        write_json(folder / 'generation_config.json', {'eos_token_id': ends, **sampling})
        if row.get('remote_code'):
            own = 'modeling_chatglm.ChatGLM'
            classes = {'AutoConfig': f'{own}Config'}
            classes |= dict.fromkeys(('AutoModel', 'AutoModelForCausalLM'), f'{own}ForConditionalGeneration')
            told = dict(model_type='chatglm', architectures=['ChatGLMForConditionalGeneration'])
            _with_code(folder, classes, 'modeling_chatglm.py', CHATGLM, **told)
            told = json.loads((folder / 'tokenizer_config.json').read_text())
            told |= {'tokenizer_class': 'ChatGLMTokenizer', 'auto_map': {'AutoTokenizer': [f'{own}Tokenizer', None]}}
            write_json(folder / 'tokenizer_config.json', told)

    return build


def reranker_files(row, hub):
    "`build(folder)` of the repository of a cross-encoder, or of a language model that answers."

    def build(folder):
        family, limit = row['architecture'], int(row['max_tokens'])
        if answers := row.get('answers'):
            made = save_tokenizer(family, folder, limit, answers)
            kind, told = 'AutoModelForCausalLM', {}
            if family == 't5':
                kind, told = 'AutoModelForSeq2SeqLM', {'decoder_start_token_id': made.pad_token_id}
            return save_model(make_model(family, hub, limit, kind, made, **told), folder, family == 't5')
        if row.get('adapter'):
            base = {'architecture': family, 'backend': 'transformers', 'max_document_tokens': 4096}
            return encoder_files(base, hub)(folder)
        made = make_tokenizer(family)
        model = make_model(family, hub, limit, 'AutoModelForSequenceClassification', made, num_labels=row['logits'])
        if not hub.startswith('castorini/'):
            save_tokenizer(family, folder, limit)
            return save_model(model, folder)
        # a repository of 2020: no model type, no tokenizer.json, weights in torch's own format
        kept = 'vocab_size hidden_size num_hidden_layers num_attention_heads intermediate_size max_position_embeddings'
        kept = [*kept.split(), 'initializer_range']
        write_json(folder / 'config.json', {name: getattr(model.config, name) for name in kept})
        words = sorted(made.get_vocab(), key=made.get_vocab().get)
        (folder / 'vocab.txt').write_text(''.join(f'{word}\n' for word in words), encoding='utf-8')
        write_json(folder / 'tokenizer_config.json', {'do_lower_case': True, 'max_len': 512, 'init_inputs': []})
        torch.save(model.state_dict(), folder / 'pytorch_model.bin')

    return build


def served(row):
    "Whether a row's weights come from the Hub."
    service = row.get('backend') in ('openai', 'voyage')
    return row.get('hub') not in (None, 'unknown') and not row.get('package') and not row.get('llm') and not service


def model_repositories(models=None, llms=None, rerankers=None):
    "A repository for each Hub id of the rows (those of the registries unless given), at the commits that they name."
    # the libraries are imported before anybody waits for an answer
    make_model('bert', 'warm', 8)
    models = registry('models') if models is None else models
    llms = registry('llms') if llms is None else llms
    rerankers = registry('rerankers') if rerankers is None else rerankers
    found, commits = {}, {}

    def add(named, build):
        hub, revision = named['hub'], named['revision']
        found.setdefault(hub, build)
        if revision not in (None, 'unknown'):
            commits.setdefault(hub, []).append(revision)

    for row in models.values():
        if not served(row) or row.get('kind') != 'encoder':
            continue
        kinds = {'sparse': sparse_files, 'multi_vector': token_files}
        files = kinds.get(row.get('representation'), encoder_files)
        add(row, files(row, row['hub']))
        if (other := row.get('document')) and 'hub' in other:
            add(other, encoder_files(row, other['hub'], other.get('tokenizer') != 'query'))
        if (other := row.get('adapter')) and row['backend'] != 'remote':
            add(other, adapter_files(row['hub'], row['architecture'], limit_of(row), other['hub']))
    if any(row.get('architecture') == 'new' for row in models.values()):
        add({'hub': GTE_CODE, 'revision': 'unknown'}, gte_code)
    # a model that comes in packages where they are installed is the Hub's where they are not
    for row in models.values():
        parts = registry('parts').get(row.get('package'), {})
        if parts.get('kind') == 'zip':
            add(parts, encoder_files(row, parts['hub']))
    for row in filter(served, rerankers.values()):
        add(row, reranker_files(row, row['hub']))
        if other := row.get('adapter'):
            add(other, adapter_files(row['hub'], row['architecture'], 4096, other['hub'], scores=True))
    for row in llms.values():
        if served(row):
            add(row, writer_files(row, row['hub']))
    pinned = {hub: dict.fromkeys(commits.get(hub, ())) for hub in found}
    return [Repository('models', hub, carded(build, hub), pinned[hub]) for hub, build in found.items()]
