"""Cross-encoders: tiny random ones against the model cards' own way, scores kept through kills and damage, and their place in a system."""

import dataclasses, importlib.resources, json, os, shutil, signal, subprocess, sys
import numpy as np, pandas as pd, pytest, yaml
from conftest import DOCUMENTS, seeded, write_beir
from tiny_models import CAUSAL, SIZES, make_tokenizer
from test_encoder import wait_for
from medir_nb import encoder, retrieval
from medir_nb.core import MedirError
from medir_nb.data import load_task, task_from_frames
from medir_nb.encoder import Encoded
from medir_nb.retrieval import (
    candidate_pool,
    folder_reranker,
    pair_tokens,
    parse,
    pending,
    rerank,
    Reranker,
    reranker_spec,
    rerankers_table,
    ScoreStore,
    search,
    sort_run,
)

LONG = ' '.join(f'{t} {b}' for _, t, b in DOCUMENTS) * 3
PAIRS = [
    ('statins', 'Atorvastatin lowers LDL cholesterol.'),
    ('drugs after a heart attack', 'Metoprolol'),
    ('why am I tired', ''),
    ('', 'a [bracket] and {braces}'),
    ('drugs', LONG),
    (LONG, 'short'),
    (LONG, LONG[::-1]),
]

# ---------------------------------------------------------------- tiny checkpoints in the layouts of the real ones


def _save(model, tokenizer, folder):
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope='module')
@seeded()
def folders(tmp_path_factory):
    "XLM-R with one logit; BERT with two as monoBERT's repository has it; Llama without a head, and a LoRA that carries one."
    import torch, transformers as t
    from peft import LoraConfig, get_peft_model
    from tokenizers.processors import TemplateProcessing

    base, out = tmp_path_factory.mktemp('rerankers'), {}
    words = make_tokenizer('xlm-r')
    words.backend_tokenizer.post_processor = TemplateProcessing(
        single='<s> $A </s>',
        pair='<s> $A </s> </s> $B </s>',
        special_tokens=[(s, words.convert_tokens_to_ids(s)) for s in ('<s>', '</s>')],
    )
    out['xlm-r'] = _save(
        t.XLMRobertaForSequenceClassification(
            t.XLMRobertaConfig(vocab_size=len(words), num_labels=1, pad_token_id=words.pad_token_id, **SIZES)
        ),
        words,
        base / 'xlm-r',
    )
    bert, own = make_tokenizer('bert'), base / 'bert'
    own.mkdir()
    config = dict(
        vocab_size=len(bert), **SIZES
    )  # no model type, no tokenizer.json, weights as a .bin: the repository is of 2020
    (own / 'config.json').write_text(json.dumps(config))
    (own / 'vocab.txt').write_text(''.join(f'{w}\n' for w, _ in sorted(bert.get_vocab().items(), key=lambda x: x[1])))
    (own / 'tokenizer_config.json').write_text('{"do_lower_case": true, "max_len": 512, "init_inputs": []}')
    torch.save(
        t.BertForSequenceClassification(t.BertConfig(num_labels=2, **config)).state_dict(), own / 'pytorch_model.bin'
    )
    out['bert'] = str(own)
    llama = make_tokenizer('llama')
    out['llama'] = _save(
        t.LlamaForCausalLM(t.LlamaConfig(vocab_size=len(llama), pad_token_id=None, **CAUSAL)), llama, base / 'llama'
    )
    lora = LoraConfig(
        r=4,
        lora_alpha=8,
        task_type='SEQ_CLS',
        init_lora_weights=False,
        target_modules='q_proj k_proj v_proj o_proj down_proj up_proj gate_proj'.split(),
    )
    tuned = get_peft_model(t.AutoModelForSequenceClassification.from_pretrained(out['llama'], num_labels=1), lora)
    tuned.save_pretrained(base / 'lora')
    out['lora'] = str(base / 'lora')
    # the published file names no modules_to_save; peft puts the head back for the task type
    saved = json.loads((base / 'lora' / 'adapter_config.json').read_text())
    assert saved['modules_to_save'] == ['classifier', 'score']
    (base / 'lora' / 'adapter_config.json').write_text(json.dumps({**saved, 'modules_to_save': None}))
    headless = get_peft_model(
        t.AutoModel.from_pretrained(out['llama']),
        dataclasses.replace(lora, task_type='FEATURE_EXTRACTION', modules_to_save=None),
    )
    headless.save_pretrained(base / 'headless')
    out['headless'] = str(base / 'headless')
    return out


ROWS = {'bge-reranker-v2-m3': 'xlm-r', 'monobert': 'bert', 'rankllama': 'llama'}


@pytest.fixture
def rows(folders, own_registry):
    "The packaged rows with nothing but their checkpoints replaced."
    packaged = yaml.safe_load(
        (importlib.resources.files('medir_nb') / 'registry' / 'rerankers.yaml').read_text(encoding='utf-8')
    )
    out = {
        n: {
            **packaged[n],
            'hub': folders[f],
            'revision': 'tiny',
            **({'adapter': {'hub': folders['lora'], 'revision': 'tiny'}} if 'adapter' in packaged[n] else {}),
        }
        for n, f in ROWS.items()
    }
    own_registry(rerankers=out)
    return out


def by_card(name, folders, pairs, limit):
    "Pairs in batches of one as the model cards do it: the tokenizer's own pair, the plain sequence classifier, no padding."
    import torch, transformers as t

    folder = folders[ROWS[name]]
    if name == 'monobert':
        tokenizer, model = (
            t.BertTokenizer.from_pretrained(folder),
            t.BertForSequenceClassification.from_pretrained(folder),
        )
        score = lambda logits: logits[:, 1]
    elif name == 'rankllama':
        from peft import PeftModel

        tokenizer, model = (
            t.AutoTokenizer.from_pretrained(folder),
            PeftModel.from_pretrained(
                t.AutoModelForSequenceClassification.from_pretrained(folder, num_labels=1), folders['lora']
            ),
        )  # not merged
        pairs, score = [(f'query: {q}', f'document: {d}') for q, d in pairs], lambda logits: logits[0]
    else:
        tokenizer, model = (
            t.AutoTokenizer.from_pretrained(folder),
            t.AutoModelForSequenceClassification.from_pretrained(folder),
        )
        score = lambda logits: logits.view(-1)
    model.eval()
    with torch.no_grad():
        return np.array(
            [
                float(
                    score(model(**tokenizer([q], [d], return_tensors='pt', truncation=True, max_length=limit)).logits)
                )
                for q, d in pairs
            ]
        )


def rendered(model, pairs):
    return [(model.spec.query_template.format(text=q), model.spec.document_template.format(text=d)) for q, d in pairs]


@pytest.mark.parametrize('name', ROWS)
def test_scores_equal_the_model_cards_own(rows, folders, name):
    model = Reranker(reranker_spec(name, dtype='fp32', max_tokens=300))
    got = model.backend().encode(rendered(model, PAIRS))
    wanted = by_card(name, folders, PAIRS, 300)
    assert (
        got.vectors.shape == (len(PAIRS), 1)
        and np.ptp(wanted) > 0.05
        and np.allclose(got.vectors[:, 0], wanted, atol=1e-5 * max(1, abs(wanted).max()), rtol=0)
    )
    assert got.truncated.tolist() == [False] * 4 + [True] * 3 and (got.tokens[4:] == 300).all()


@pytest.mark.parametrize('name', ROWS)
def test_scores_do_not_depend_on_the_batch(rows, name):
    model = Reranker(reranker_spec(name, dtype='fp32', max_tokens=300))
    backend = model.backend()
    pairs = rendered(model, PAIRS)
    together = backend.encode(pairs).vectors
    backend.batches.budget = 10**6  # everything in one batch
    one = backend.encode(pairs[::-1]).vectors[::-1]
    alone = np.concatenate([backend.encode([p]).vectors for p in pairs])
    assert np.allclose(together, one, atol=1e-5) and np.allclose(together, alone, atol=1e-5)


def test_a_decoder_is_read_at_its_last_token(folders, tmp_path):
    "With a padding id of its own, also where a text ends in it; without one, in batches that transformers itself refuses."
    import torch, transformers as t

    tokenizer = t.AutoTokenizer.from_pretrained(folders['llama'])
    pairs = [
        ('statins', 'LDL ☃'),
        ('statins', 'Atorvastatin lowers LDL'),
        ('', 'a ☃ b'),
    ]  # no snowman in the vocabulary: <unk>, the padding id
    tokenizer.pad_token = '<unk>'
    assert tokenizer(['statins'], ['LDL ☃'])['input_ids'][0][-1] == tokenizer.pad_token_id
    with seeded(1):
        model = t.LlamaForSequenceClassification(
            t.LlamaConfig(vocab_size=len(tokenizer), num_labels=1, pad_token_id=tokenizer.pad_token_id, **CAUSAL)
        ).eval()
    _save(model, tokenizer, tmp_path / 'own')
    got = Reranker(str(tmp_path / 'own')).backend().encode(pairs).vectors[:, 0]
    with torch.no_grad():
        wanted = [float(model(**tokenizer([q], [d], return_tensors='pt')).logits) for q, d in pairs]
    assert np.allclose(got, wanted, atol=1e-5) and len({round(w, 4) for w in wanted}) == 3


def test_a_query_stays_whole_up_to_half_of_the_room(rows):
    backend = Reranker(reranker_spec('monobert', max_tokens=103)).backend()  # [CLS] and twice [SEP] leave 100
    word = backend.tokenizer('drugs', add_special_tokens=False)['input_ids']
    n = len(word)
    first = lambda q, d: pair_tokens(
        backend.tokenizer, [(' '.join(['drugs'] * q), ' '.join(['drugs'] * d))], backend.limit
    )
    for q, d in ((10 // n, 400), (400, 10 // n), (400, 400), (50 // n, 400)):
        (ids,), (segments,), (cut,) = first(q, d)
        query, document = segments.count(0) - 2, segments.count(1) - 1
        assert (
            cut
            and query + document == 100
            and (query == q * n if q * n <= 50 else query == (100 - d * n if d * n < 50 else 50))
        )
    assert not first(3, 3)[2][0]


def test_a_folder_of_sentence_transformers_and_a_checkpoint_by_name(folders, home, tmp_path):
    from sentence_transformers import CrossEncoder
    import torch

    CrossEncoder(folders['xlm-r'], device='cpu').save_pretrained(str(tmp_path / 'own'))
    model = Reranker(f'{tmp_path}/own')
    wanted = CrossEncoder(str(tmp_path / 'own'), device='cpu').predict(PAIRS[:4], activation_fn=torch.nn.Identity())
    assert np.allclose(model.backend().encode(PAIRS[:4]).vectors[:, 0], wanted, atol=1e-5) and model.spec.logits == 1
    shutil.copytree(tmp_path / 'own', home / 'checkpoints' / 'mine')
    named = reranker_spec('mine')
    with pytest.raises(MedirError, match="did you mean 'mine'"):
        reranker_spec('mines')
    assert (named.name, named.revision, named.tried) == ('mine', model.spec.revision, 'loaded here') and str(
        parse('bm25>mine@5(max_tokens=64)')
    ) == 'bm25>mine@5(max_tokens=64)'


def test_a_head_that_was_never_trained_is_refused(folders, rows, own_registry, tmp_path):
    from transformers import AutoModel, AutoTokenizer

    _save(
        AutoModel.from_pretrained(folders['xlm-r']),
        AutoTokenizer.from_pretrained(folders['xlm-r']),
        tmp_path / 'encoder',
    )
    bare = {
        'headless': {**rows['rankllama'], 'adapter': {'hub': folders['headless'], 'revision': 'tiny'}},
        'none': {k: v for k, v in rows['rankllama'].items() if k != 'adapter'},
        'encoder': {**rows['bge-reranker-v2-m3'], 'hub': str(tmp_path / 'encoder')},
    }
    own_registry(rerankers=bare)
    for name, head in (('headless', 'score.weight'), ('none', 'score.weight'), ('encoder', 'classifier')):
        with pytest.raises(MedirError, match=rf'missing \({head}'):
            Reranker(name).backend()


def test_what_is_no_reranker_says_so(folders, home, tmp_path, own_registry):
    with pytest.raises(MedirError, match="unknown reranker 'monobrt'; did you mean 'monobert'"):
        reranker_spec('monobrt')
    with pytest.raises(MedirError, match='config.json is missing'):
        reranker_spec(str(tmp_path))
    with pytest.raises(MedirError, match='LlamaForCausalLM scores no pairs'):
        reranker_spec(folders['llama'])
    own = tmp_path / 'own'
    shutil.copytree(folders['xlm-r'], own)
    config = json.loads((own / 'config.json').read_text())

    def change(**more):
        (own / 'config.json').write_text(json.dumps(config | more))

    change(id2label={str(i): 'x' for i in range(3)})
    with pytest.raises(MedirError, match='3 logits'):
        reranker_spec(str(own))
    change(auto_map={'AutoModel': 'code.Model'})
    with pytest.raises(MedirError, match='run code that comes with the weights'):
        Reranker(str(own)).backend()
    change()
    (own / 'config_sentence_transformers.json').write_text('{"default_prompt_name": "query"}')
    with pytest.raises(MedirError, match='behind a prompt'):
        reranker_spec(str(own))
    (own / 'config_sentence_transformers.json').unlink()
    (own / 'model.safetensors').write_bytes(b'torn')
    with pytest.raises(MedirError, match='do not load'):
        Reranker(str(own)).backend()
    own_registry(
        rerankers={
            'nowhere': {'hub': 'some/where', 'revision': 'unknown', 'max_tokens': 512},
            'away': {'hub': 'some/where', 'revision': 'a' * 40, 'max_tokens': 512},
        }
    )
    with pytest.raises(MedirError, match='no commit of some/where is on record'):
        Reranker('nowhere').backend()
    with pytest.raises(MedirError, match='neither in the Hub cache nor reachable'):
        Reranker('away').backend()
    with pytest.raises(MedirError, match='no device'):
        retrieval.PairBackend(folder_reranker(folders['xlm-r']), device='cuda:7')


def test_rows_are_pinned():
    packaged = yaml.safe_load(
        (importlib.resources.files('medir_nb') / 'registry' / 'rerankers.yaml').read_text(encoding='utf-8')
    )
    pins = [p['revision'] for r in packaged.values() for p in (r, r.get('adapter')) if p]
    assert all(len(p) == 40 and int(p, 16) for p in pins) and len(set(pins)) == len(pins) == 5
    assert {
        n: (r['logits'], r['logit'], r['max_tokens'], r['dtype']) for n, r in packaged.items() if r['published_as']
    } == {
        'bge-reranker-v2-m3': (1, 0, 512, 'float32'),
        'monobert': (2, 1, 512, 'float32'),
        'rankllama': (1, 0, 1024, 'float16'),
    }
    assert len(rerankers_table()) == len(packaged)


def test_a_full_gpu_memory_halves_the_batches(rows, monkeypatch, capfd):
    import torch

    backend = retrieval.PairBackend(reranker_spec('monobert', max_tokens=64))
    whole, forward = backend.encode(PAIRS).vectors, backend._forward

    def full(ids, segments):
        if len(ids) > 2:
            raise torch.OutOfMemoryError('CUDA out of memory')
        return forward(ids, segments)

    monkeypatch.setattr(backend, '_forward', full)
    backend.batches.budget = 4096
    assert (
        np.allclose(backend.encode(PAIRS).vectors, whole, atol=1e-5)
        and backend.batches.budget < 4096
        and 'halved' in capfd.readouterr().err
    )
    monkeypatch.setattr(
        backend, '_forward', lambda ids, segments: (_ for _ in ()).throw(torch.OutOfMemoryError('CUDA out of memory'))
    )
    with pytest.raises(MedirError, match='not even one'):
        backend.encode(PAIRS)


# ---------------------------------------------------------------- reranking, with the weights replaced by a count of shared words


class SharedWords:
    "A stand-in that loads in no time: the number of words that query and document share; it keeps what it was given."

    device, given = 'cpu', []

    def __init__(self, spec, role, device=None, home_folder=None):
        self.spec = spec

    def encode(self, pairs):
        self.given.extend(pairs)
        words = [[set(t.lower().strip('.').split()) for t in p] for p in pairs]
        return Encoded(
            np.array([[len(q & d)] for q, d in words], np.float32),
            np.array([len(q) + len(d) for q, d in words], np.int32),
            np.array([len(d) > 12 for _, d in words]),
        )


@pytest.fixture
def shared_words(monkeypatch):
    encoder.model._recent.clear()
    SharedWords.given.clear()
    monkeypatch.setattr(retrieval.reranker_model, 'PairBackend', SharedWords)
    monkeypatch.setattr('medir_nb.retrieval.rerank_stage.check_reranker', lambda *a: None)  # it needs no weights
    yield SharedWords.given
    encoder.model._recent.clear()


def run_of(**lists):
    return pd.DataFrame(
        [(q, d, float(s)) for q, ds in lists.items() for d, s in ds.items()], columns=['query_id', 'doc_id', 'score']
    )


def test_the_head_is_reordered_and_the_rest_dropped_or_kept_below(beir, shared_words):
    task = load_task(str(beir))
    run = run_of(q2=dict(d06=9, d03=8, d04=7, d01=6, d12=5), q1=dict(d09=3, d02=2))
    short = rerank('monobert', task, run, depth=3)
    assert short.run[short.run.query_id == 'q2'].values.tolist() == [
        ['q2', 'd04', 3.0],
        ['q2', 'd03', 3.0],
        ['q2', 'd06', 0.0],
    ]  # type, 2 and a third word
    assert (
        short.run.query_id.tolist() == ['q2'] * 3 + ['q1'] * 2 and short.stats['scored_pairs'] == 5
    )  # fewer candidates than the depth: reranked as they are
    whole = rerank('monobert', task, run, depth=3, complete=True)
    assert whole.run.doc_id.tolist() == ['d04', 'd03', 'd06', 'd01', 'd12', *short.run.doc_id[3:]] and whole.stats == {
        'scored_pairs': 0,
        'cached_pairs': 5,
        'truncated_pairs': short.stats['truncated_pairs'],
    }
    pd.testing.assert_frame_equal(
        sort_run(whole.run.sample(frac=1, random_state=0)).sort_values('query_id', kind='stable', ignore_index=True),
        whole.run.sort_values('query_id', kind='stable', ignore_index=True),
    )
    assert rerank('monobert', task, run, depth=None).stats['scored_pairs'] == 2 and len(shared_words) == 7


def test_an_empty_run_and_a_run_of_another_task(beir, shared_words):
    task = load_task(str(beir))
    empty = rerank('monobert', task, run_of(), 10, complete=True)
    assert (
        len(empty.run) == 0
        and list(empty.run) == ['query_id', 'doc_id', 'score']
        and empty.stats == {'scored_pairs': 0, 'cached_pairs': 0, 'truncated_pairs': 0}
        and not shared_words
    )
    with pytest.raises(MedirError, match="doc_id 'd99' of the run is not in the corpus"):
        rerank('monobert', task, run_of(q1=dict(d99=1)))
    with pytest.raises(MedirError, match="query_id 'q9' of the run is not in the queries"):
        rerank('monobert', task, run_of(q9=dict(d01=1)))
    with pytest.raises(MedirError, match='depth is 0'):
        rerank('monobert', task, run_of(q1=dict(d01=1)), 0)


@pytest.mark.parametrize(
    'other, same',
    [
        ('monobert(max_tokens=64)', False),
        ('monobert(dtype=bf16)', False),
        ('monobert(logit=0)', False),
        ('ms-marco-minilm', False),
        ('monobert(complete=true)', True),
    ],
)
def test_what_changes_a_score_changes_its_key(beir, shared_words, other, same):
    task = load_task(str(beir))
    n = search('bm25>monobert@5', task).stats['scored_pairs']
    name, _, settings = other.partition('(')
    again = search(f'bm25>{name}@5' + (f'({settings}' if settings else ''), task).stats
    assert n > 0 and (again['scored_pairs'], again['cached_pairs']) == ((0, n) if same else (n, 0))


def test_a_score_belongs_to_its_two_texts(tmp_path, shared_words):
    "Titles count, repeated texts are read once, and a text moved from query to document is another pair."
    task = load_task(
        str(
            write_beir(
                tmp_path / 't',
                [('d1', 'Fever', 'is hot'), ('d2', '', 'Fever is hot'), ('d3', '', 'hot')],
                [('q1', 'fever is'), ('q2', 'fever is'), ('q3', 'fever')],
                [('q1', 'd1', 1), ('q2', 'd1', 1), ('q3', 'd1', 1)],
            )
        )
    )
    got = rerank('monobert', task, run_of(q1=dict(d1=1, d2=1), q2=dict(d1=1), q3=dict(d1=1, d3=1)))
    assert sorted(shared_words) == [
        ('fever', 'Fever is hot'),
        ('fever', 'hot'),
        ('fever is', 'Fever is hot'),
    ] and got.stats == {'scored_pairs': 3, 'cached_pairs': 2, 'truncated_pairs': 0}
    assert got.run[got.run.query_id == 'q1'].values.tolist() == [['q1', 'd2', 2.0], ['q1', 'd1', 2.0]]


def test_scores_that_are_no_numbers_are_refused_with_their_pair(beir, shared_words, monkeypatch):
    task, run = load_task(str(beir)), run_of(q1=dict(d01=9, d02=8, d03=7, d04=6))
    monkeypatch.setattr(retrieval.reranker_scores, '_BLOCK', 2)
    plain = SharedWords.encode

    def nan(self, pairs):
        out = plain(self, pairs)
        out.vectors[[('Metformin' in d) for _, d in pairs]] = np.nan
        return out

    monkeypatch.setattr(SharedWords, 'encode', nan)
    with pytest.raises(MedirError, match="score of query 'q1' and document 'd03' is not a number .*check the weights"):
        rerank('monobert', task, run)
    monkeypatch.setattr(SharedWords, 'encode', plain)
    assert rerank('monobert', task, run).stats == {'scored_pairs': 2, 'cached_pairs': 2, 'truncated_pairs': 4}


def test_torn_and_foreign_blocks_are_named_and_read_again(beir, shared_words, monkeypatch, capfd, home):
    task = load_task(str(beir))
    monkeypatch.setattr(retrieval.reranker_scores, '_BLOCK', 4)
    first = search('bm25>monobert@5', task)
    blocks = sorted((home / 'scores').rglob('block-*.safetensors'))
    assert len(blocks) >= 3
    blocks[0].write_bytes(blocks[0].read_bytes()[:-3])
    other = search('bm25>monobert@5(max_tokens=64)', task)
    theirs = sorted({*(home / 'scores').rglob('block-*.safetensors')} - {*blocks})
    shutil.copy(theirs[1], blocks[1])
    blocks[2].write_bytes(b'\x05\0\0\0\0\0\0\0hello')
    capfd.readouterr()
    again = search('bm25>monobert@5', task)
    said = capfd.readouterr().err
    assert (
        f'{blocks[0]}: torn, or no vector file' in said
        and f'it is set aside as {blocks[0].name}.bad and its pairs are read again' in said
        and f'{blocks[1]}: written under another contract' in said
        and f'{blocks[2]}: torn, or no vector file' in said
    )
    assert (
        again.stats['scored_pairs'] == first.stats['scored_pairs'] - again.stats['cached_pairs']
        and 0 < again.stats['scored_pairs'] <= 12
    )
    pd.testing.assert_frame_equal(again.run, first.run)
    assert (
        search('bm25>monobert@5', task).stats['scored_pairs'] == 0 and len(list((home / 'scores').rglob('*.bad'))) == 3
    )


# ---------------------------------------------------------------- its place in a system


def test_a_reranked_system_is_its_first_stage_reranked(beir, shared_words, fake_minilm):
    task = load_task(str(beir))
    for first in ('bm25', 'minilm', 'rrf(bm25,minilm)'):
        base = search(first, task, 5)
        got, whole = search(f'{first}>monobert@5', task, 100), search(f'{first}>monobert@5(complete=true)', task, 8)
        pd.testing.assert_frame_equal(got.run, rerank('monobert', task, base.run, 5).run)
        pd.testing.assert_frame_equal(
            whole.run, rerank('monobert', task, search(first, task, 8).run, 5, complete=True).run
        )
        assert (
            (got.run.groupby('query_id').size() <= 5).all()
            and got.stats['dtype'] == ('float32' if first == 'bm25' else 'float32>float32')
            and got.stats['encoded_docs'] == 0
        )
        pd.testing.assert_frame_equal(
            search(f'{first}>monobert@5', task, 2).run,
            got.run[got.run.groupby('query_id', sort=False).cumcount() < 2].reset_index(drop=True),
        )
    fused = search('rrf(bm25>monobert@5,minilm>monobert@5)', task)
    assert (
        fused.stats['scored_pairs'] == 0
        and fused.stats['cached_pairs'] > 0
        and fused.stats['dtype'] == 'float32+float32>float32'
    )
    thrice = search('rrf(bm25>monobert@5,minilm>monobert@5)>monobert@3', task)
    behind = thrice.stats['scored_pairs'] + thrice.stats['cached_pairs'] - fused.stats['cached_pairs']
    assert 0 < behind <= 3 * len(task.queries)  # what the lists before it read is not forgotten
    assert search('minilm>monobert@5', task, dtype='bf16').stats['dtype'] == 'bfloat16>bfloat16'


def test_a_reranking_task_brings_its_candidates(beir, shared_words):
    task = dataclasses.replace(load_task(str(beir)), kind='reranking')  # its judged documents
    got = search('bm25>monobert@100', task)
    assert got.stats['scored_pairs'] == len(candidate_pool(task)) == len(got.run) and set(
        map(tuple, got.run[['query_id', 'doc_id']].values)
    ) == set(map(tuple, candidate_pool(task).values))
    assert (search('bm25>monobert@2', task).run.groupby('query_id').size() <= 2).all() and len(
        search('bm25>monobert@2(complete=true)', task).run
    ) == len(got.run)
    alone = rerank('monobert', task, candidate_pool(task).assign(score=0.0), depth=None)
    assert alone.stats['scored_pairs'] == 0 and sorted(alone.run.values.tolist()) == sorted(got.run.values.tolist())


def test_self_matches_are_dropped_before_the_depth_counts(shared_words):
    both = pd.DataFrame(
        {
            'id': [f'd{i}' for i in range(6)],
            'text': [f'fever case number {w}' for w in 'one two three four five six'.split()],
        }
    )
    task = task_from_frames(
        both, both, pd.DataFrame([('d0', 'd1', 1), ('d3', 'd2', 1)], columns=['query_id', 'doc_id', 'relevance'])
    )
    got, kept = search('bm25>monobert@3', task), search('bm25>monobert@3', task, keep_self=True)
    assert (
        not (got.run.query_id == got.run.doc_id).any()
        and (got.run.groupby('query_id').size() == 3).all()
        and got.stats['self_matches'] > 0
    )
    assert (kept.run.drop_duplicates('query_id').doc_id == kept.run.drop_duplicates('query_id').query_id).all()


def test_pending_counts_the_pairs(beir, shared_words, fake_minilm):
    task = load_task(str(beir))
    before = pending('minilm>monobert@5', task)
    assert (before['to_encode'], before['to_score'], before['at_most']) == (16, 4 * 5, True)
    done = search('minilm>monobert@5', task).stats
    assert {k: pending('minilm>monobert@5', task)[k] for k in ('to_encode', 'to_score', 'stored_pairs', 'at_most')} == {
        'to_encode': 0,
        'to_score': 0,
        'stored_pairs': 20,
        'at_most': False,
    } and done['scored_pairs'] == 20
    deeper = pending('minilm>monobert@8', task)
    assert (deeper['to_score'], deeper['stored_pairs']) == (4 * 3, 20) and pending('rrf(bm25,minilm>monobert@5)', task)[
        'to_score'
    ] == 0
    assert (
        pending('bm25>rankllama@2', dataclasses.replace(task, kind='reranking'))['to_score'] == 2 + 2 + 2 + 1
        and len(shared_words) == 20
    )


def test_sentence_pairs_are_not_reranked():
    from medir_nb.data import Task
    from medir_nb.retrieval import score_pairs

    task = Task('sts', 'pairs', pairs=pd.DataFrame({'sentence1': ['a'], 'sentence2': ['b'], 'score': [1.0]}))
    for call in (pending, score_pairs):
        with pytest.raises(MedirError, match='neither expanded nor reranked'):
            call('minilm>monobert@5', task)


@pytest.mark.parametrize('dtype', ['bf16', 'fp16'])
def test_lower_precisions(rows, dtype):
    model, exact = (Reranker(reranker_spec('rankllama', dtype=d)) for d in (dtype, 'fp32'))
    low, high = (m.backend().encode(rendered(m, PAIRS)).vectors for m in (model, exact))
    assert (
        str(model.backend().model.dtype) == f'torch.{model.spec.dtype}'
        and low.dtype == np.float32
        and model.spec.key != exact.spec.key
    )
    assert (
        0 < np.abs(low - high).max() < 0.3 * np.abs(high).max()
    )  # random weights of this size are not kind to bfloat16


def test_plans_tables_and_commands(beir, shared_words, fake_minilm, medir):
    from medir_nb.workbook import plan_grid

    frame = plan_grid([str(beir), 'r2med-biology'], ['minilm>monobert@5', 'bm25', 'bm25>nothing@5'])
    assert (
        frame.system.tolist()[:4] == ['minilm', 'minilm>monobert@5', 'bm25', 'bm25>nothing@5']
        and frame['pairs to score'].tolist()[:3] == [0, '≤20', 0]
        and frame['texts to encode'].tolist()[:3] == [16, 0, 0]
    )
    assert (
        'unknown reranker' in frame.note[3]
        and frame['pairs to score'][5] == f'≤{103 * 5:,}'
        and frame['texts to encode'][5] == 0
    )
    out = medir('evaluate', beir, '--system', 'bm25', '--system', 'bm25>monobert@5', '--measures', 'nDCG@10')
    assert out.code == 0 and '| pairs' in out.out and 'scored, 0 stored' in out.out and '| bm25>monobert@5' in out.out
    assert (
        'did you mean' in medir('evaluate', beir, '--system', 'bm25>monobrt@5').err and 'scores' in medir('status').out
    )
    from medir_nb.evaluator import evaluate
    from medir_nb.evaluator import table_apart

    assert 'pairs scored' in table_apart([evaluate(str(beir), 'bm25>monobert@5', ['nDCG@10'])]).vectors[0]


def test_printed_reranker_rows_find_their_systems(own_registry, shared_words):
    from medir_nb.evaluator import score_run
    from medir_nb.papers import Ledger, published

    own_registry(
        models={
            'first-stage': {
                'kind': 'encoder',
                'load': 'remote',
                'environment': 'another',
                'hub': 'some/where',
                'size': '7B',
                'dtype': 'float16',
                'published_as': ['nv'],
                'revision': 'a' * 40,
                'pooling': 'own',
                'max_document_tokens': 1,
                'query_template': '{text}',
            }
        },
        systems={'r2med': {'first-stage': ['nv', 'NV-Embed-v2']}},
    )
    cells = published('r2med', 'reranker', measure='nDCG@10')
    ledger = Ledger(cells)
    names = {(r.system, r.variant): str(r.systems[0]) for r in ledger.rows}
    assert names == {
        (f'nv>{p}', f'rerank:{p}@{k}'): f'first-stage>{n}@{k}'
        for p, n in (('bge-reranker', 'bge-reranker-v2-m3'), ('monobert', 'monobert'), ('rankllama', 'rankllama'))
        for k in (10, 100)
    }
    assert (
        len(ledger.frame) == 6 * 8
        and ledger.frame.verdict.str.contains('not run: some/where .* and .*reranker|monobert|Llama-2').all()
    )
    task = task_from_frames(
        pd.DataFrame({'id': ['d1'], 'text': ['x']}),
        pd.DataFrame({'id': ['q1'], 'text': ['x']}),
        pd.DataFrame([('q1', 'd1', 1)], columns=['query_id', 'doc_id', 'relevance']),
        name='r2med-biology',
    )

    def verdicts(system, dtype):
        found = Ledger(
            cells, [score_run(task, run_of(q1=dict(d1=1)), ['nDCG@10'], system, stats={'dtype': dtype})]
        ).frame
        return found[found.measured.notna()].iloc[0]

    # the system of a row stands in its row (its data here are no registry's, which the verdict says alone)
    own_registry(
        models={
            'first-stage': {
                **yaml.safe_load((importlib.resources.files('medir_nb') / 'registry' / 'models.yaml').read_text())[
                    'minilm'
                ],
                'published_as': ['nv'],
                'dtype': 'float16',
            }
        },
        systems={'r2med': {'first-stage': ['nv', 'NV-Embed-v2']}},
    )
    same, other = (
        verdicts('first-stage>rankllama@10', 'float16>float16'),
        verdicts('first-stage>rankllama@10(max_tokens=512)', 'float16>float16'),
    )
    assert (
        same.label.startswith('first-stage>rankllama')
        and 'other settings' not in same.verdict
        and "registry's" in same.verdict
        and 'other settings than the row' in other.verdict
    )
    assert (
        'float32>float16 instead of float16>float16' in verdicts('first-stage>rankllama@10', 'float32>float16').verdict
    )


# ---------------------------------------------------------------- kept through kills; nothing loaded twice

SCORE = """
import sys
from medir_nb import retrieval
from medir_nb.data import load_task
from medir_nb.retrieval import search
retrieval.reranker_scores._BLOCK = int(sys.argv[3])
answer = search(f"bm25>{sys.argv[1]}@30", load_task(sys.argv[2]))
print(answer.stats["scored_pairs"], answer.stats["cached_pairs"], sorted({"torch", "transformers", "sentence_transformers", "peft"} & set(sys.modules)))
"""


def stored(home):
    return sorted((home / 'scores').rglob('block-*.safetensors'))


@pytest.fixture
def many(tmp_path):
    words = 'fever cough rash pain nausea fatigue oedema anaemia'.split()
    documents = [
        (f'd{i:03d}', '', f'case {i} ' + ' '.join(words[(i * k + k) % 8] for k in range(1, 20))) for i in range(60)
    ]
    return write_beir(
        tmp_path / 'many',
        documents,
        [(f'q{i:02d}', f'{words[i % 8]} and {words[(i + 3) % 8]} {i}') for i in range(24)],
        [(f'q{i:02d}', f'd{i:03d}', 1) for i in range(24)],
    )


@pytest.mark.medium
def test_kill_9_in_the_middle_resumes_and_reads_each_pair_once(folders, many, home, tmp_path, monkeypatch):
    run = lambda block, **kwargs: subprocess.run(
        [sys.executable, '-c', SCORE, folders['xlm-r'], str(many), str(block)],
        capture_output=True,
        text=True,
        timeout=120,
        **kwargs,
    )
    process = subprocess.Popen(
        [sys.executable, '-c', SCORE, folders['xlm-r'], str(many), '4'],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_for(lambda: len(stored(home)) >= 3, process)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    kept = sum(len(s['keys']) for s in ScoreStore(reranker_spec(folders['xlm-r'])).small)
    task = load_task(str(many))
    total = len(search('bm25', task, 30).run)
    assert 12 <= kept < total == 24 * 30
    resumed = search(f'bm25>{folders["xlm-r"]}@30', task)
    keys = np.concatenate([s['keys'] for s in ScoreStore(reranker_spec(folders['xlm-r'])).small])
    assert (resumed.stats['scored_pairs'], resumed.stats['cached_pairs']) == (total - kept, kept) and len(
        np.unique(keys, axis=0)
    ) == len(keys) == total  # each pair once
    monkeypatch.setenv('MEDIR_HOME', str(tmp_path / 'unkilled'))
    # other batches round otherwise, which may turn two equal scores about
    by_id = lambda run: run.sort_values(['query_id', 'doc_id'], ignore_index=True)
    unkilled = search(f'bm25>{folders["xlm-r"]}@30', task)
    pd.testing.assert_frame_equal(by_id(resumed.run), by_id(unkilled.run), rtol=1e-4, atol=1e-5)
    monkeypatch.setenv('MEDIR_HOME', str(home))
    again = run(4)
    assert again.stdout.split(' ', 2) == ['0', str(total), '[]\n'], (
        again.stderr
    )  # nothing read, neither torch nor transformers loaded
