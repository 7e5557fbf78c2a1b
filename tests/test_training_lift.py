"""Trainings that have to help, on HPO: MiniLM on mined pairs, with and without a loss on short vectors, and a tiny BERT
that has read nothing, with and without RetroMAE. Minutes a training on one core; RetroMAE twelve a seed."""

import json

import pandas as pd, pytest
from conftest import seeded, TINY_ROW, write_lines

from medir_nb.core import to_markdown
from medir_nb.data import load_task, read_obo
from medir_nb.data.ontology import hpo_file
from medir_nb.encoder import encoder_spec
from medir_nb.encoder.loading import load_tokenizer
from medir_nb.evaluator import evaluate
from medir_nb.trainer import pretraining_ablation, train_encoder

pytestmark = pytest.mark.slow
SEEDS = (0, 1, 2)
MINED = {'model': 'minilm', 'negatives': 0, 'max_steps': 60, 'batch_size': 32, 'learning_rate': 2e-4}
MINED |= {'warmup_ratio': 0.1}


def mined(split, path):
    "Pairs (name or layperson synonym → definition) of the terms of a training split, as JSON lines."
    terms, _ = read_obo(hpo_file('hp.obo'))
    chosen = [terms[i] for i in load_task('hpo-lay', split).corpus.ids]
    return write_lines(path, [{'query': word, 'pos': [t.definition]} for t in chosen for word in (t.name, *t.lay)])


def score(system):
    return evaluate('hpo-lay', system, ['nDCG@10']).mean('nDCG@10')


@pytest.fixture
def show(capsys):
    def show(text):
        with capsys.disabled():
            print('\n' + text)

    return show


def test_training_lifts_held_out_queries(tmp_path, show):
    scores = {'minilm': score('minilm')}
    for split in ('train', 'train-kin'):
        data = mined(split, tmp_path / f'{split}.jsonl')
        for seed in SEEDS:
            done = train_encoder({**MINED, 'data': data, 'output': f'{split}-{seed}', 'seed': seed})
            scores[done.folder.name] = score(done.folder.name)
    show(to_markdown(pd.Series(scores, name='nDCG@10').reset_index()))
    lift = [scores[f'train-{seed}'] - scores['minilm'] for seed in SEEDS]
    # terms of the test split are in neither training
    # the second has none of their kin (parents, children, siblings): it is shown, whatever it says
    assert sum(lift) / len(lift) >= 0.05 and min(lift) > 0


def test_short_vectors_lose_less_than_those_of_an_untrained_tower(tmp_path, show):
    "With and without the loss on the first 16 and 48 numbers."
    settings = {**MINED, 'data': mined('train', tmp_path / 'train.jsonl'), 'max_document_tokens': 64}
    train_encoder({**settings, 'output': 'nested', 'matryoshka': [16, 48, 384]})
    train_encoder({**settings, 'output': 'plain'})
    lost = {}
    for name in ('minilm', 'plain', 'nested'):
        whole = score(name)
        lost[name] = {size: round(whole - score(f'{name}(dimensions={size})'), 4) for size in (16, 48)} | {384: whole}
    show(json.dumps(lost))
    for size in (16, 48):
        assert lost['nested'][size] < min(lost['minilm'][size], lost['plain'][size])
    assert lost['nested'][384] > lost['minilm'][384]


ROWS = ('fine-tuning alone', 'masked language model', 'RetroMAE')
ROW = TINY_ROW | {'max_query_tokens': 64, 'max_document_tokens': 64}
VOCABULARY = 4000  # the head is most of the work
RETROMAE = {'max_steps': 800, 'batch_size': 32, 'learning_rate': 1e-3, 'warmup_ratio': 0.05, 'max_tokens': 48}
TUNING = {'max_steps': 150, 'batch_size': 32, 'learning_rate': 5e-4, 'warmup_ratio': 0.1, 'negatives': 0}
TUNING |= {'max_document_tokens': 48}


@pytest.fixture
def data(tmp_path, own_registry):
    "Definitions that are searched, 15,449 others and no wording of a query; two layers of 128 with their vocabulary."
    from transformers import BertConfig, BertForMaskedLM

    corpus = load_task('hpo-lay-full').corpus
    definitions = [corpus.text(doc_id) for doc_id in corpus.ids]
    tokenizer = load_tokenizer(encoder_spec('minilm')).train_new_from_iterator(definitions, VOCABULARY)
    sizes = {'hidden_size': 128, 'num_hidden_layers': 2, 'num_attention_heads': 4, 'intermediate_size': 512}
    with seeded():
        BertForMaskedLM(BertConfig(vocab_size=len(tokenizer), **sizes)).save_pretrained(tmp_path / 'tiny-bert')
    tokenizer.save_pretrained(tmp_path / 'tiny-bert')
    own_registry(models={'tiny-bert': dict(ROW, hub=str(tmp_path / 'tiny-bert'))})
    texts = write_lines(tmp_path / 'texts.jsonl', [{'text': text} for text in definitions])
    return {'retromae': str(texts), 'supervised': str(mined('train', tmp_path / 'pairs.jsonl'))}


def test_retromae_lifts_what_the_same_fine_tuning_reaches(data, show):
    config = {'backbone': 'tiny-bert', 'data': data, 'settings': {'retromae': RETROMAE, 'supervised': TUNING}}
    rows = []
    for seed in SEEDS:
        towers = pretraining_ablation({**config, 'name': f'tiny-{seed}', 'seed': seed}, ROWS)
        rows.append({'seed': seed, **{row: score(tower.checkpoint) for row, tower in towers.items()}})
    frame = pd.DataFrame(rows).round(4)
    show(to_markdown(frame) + '\n' + json.dumps({'retromae': RETROMAE, 'fine-tuning': TUNING}))
    lift = frame['RetroMAE'] - frame['fine-tuning alone']
    # beside the same steps of a masked language model it is shown, whatever it says
    assert lift.min() > 0 and lift.mean() > 0.02
