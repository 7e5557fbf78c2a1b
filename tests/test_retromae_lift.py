"""What RetroMAE brings: a tiny BERT that has read nothing, on HPO's definitions, then the same fine-tuning with and without it. Twelve minutes a seed on one core beside other work."""

import json
import pandas as pd, pytest
from conftest import TINY_ROW, seeded, write_lines
from test_training_lift import mined
from medir_nb.core import to_markdown
from medir_nb.data import load_task
from medir_nb.encoder import encoder_spec
from medir_nb.encoder.loading import load_tokenizer
from medir_nb.evaluator import evaluate
from medir_nb.trainer import pretraining_ablation

SEEDS = (0, 1, 2)
ROWS = ('fine-tuning alone', 'masked language model', 'RetroMAE')
ROW = TINY_ROW | {'max_query_tokens': 64, 'max_document_tokens': 64}
VOCABULARY = 4000  # the head is most of the work
RETROMAE = {'max_steps': 800, 'batch_size': 32, 'learning_rate': 1e-3, 'warmup_ratio': 0.05, 'max_tokens': 48}
TUNING = {'max_steps': 150, 'batch_size': 32, 'learning_rate': 5e-4, 'warmup_ratio': 0.1, 'negatives': 0}


@pytest.fixture
def definitions():
    "Those that are searched, and 15,449 others; no wording of a query."
    corpus = load_task('hpo-lay-full').corpus
    return [corpus.text(doc_id) for doc_id in corpus.ids]


@pytest.fixture
def tiny_bert(tmp_path, own_registry, definitions):
    "Two layers of 128, untrained, with a vocabulary of the definitions."
    from transformers import BertConfig, BertForMaskedLM

    tokenizer = load_tokenizer(encoder_spec('minilm')).train_new_from_iterator(definitions, VOCABULARY)
    sizes = {'hidden_size': 128, 'num_hidden_layers': 2, 'num_attention_heads': 4, 'intermediate_size': 512}
    folder = tmp_path / 'tiny-bert'
    with seeded():
        BertForMaskedLM(BertConfig(vocab_size=len(tokenizer), **sizes)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    own_registry(models={'tiny-bert': dict(ROW, hub=str(folder))})


@pytest.fixture
def data(tmp_path, definitions):
    texts = write_lines(tmp_path / 'texts.jsonl', [{'text': text} for text in definitions])
    return {'retromae': str(texts), 'supervised': str(mined('train', tmp_path / 'pairs.jsonl'))}


def scores(data, seed):
    "nDCG@10 of each row of the ablation after the same steps of fine-tuning."
    settings = {'retromae': RETROMAE, 'supervised': {**TUNING, 'max_document_tokens': 48}}
    config = {'backbone': 'tiny-bert', 'name': f'tiny-{seed}', 'data': data, 'settings': settings, 'seed': seed}
    towers = pretraining_ablation(config, ROWS)
    return {row: evaluate('hpo-lay', tower.checkpoint, ['nDCG@10']).mean('nDCG@10') for row, tower in towers.items()}


@pytest.mark.slow
def test_retromae_lifts_what_the_same_fine_tuning_reaches(tiny_bert, data, capsys):
    frame = pd.DataFrame([{'seed': seed, **scores(data, seed)} for seed in SEEDS]).round(4)
    with capsys.disabled():
        print('\n' + to_markdown(frame) + '\n' + json.dumps({'retromae': RETROMAE, 'fine-tuning': TUNING}))
    lift = frame['RetroMAE'] - frame['fine-tuning alone']
    # beside the same steps of a masked language model it is shown, whatever it says
    assert lift.min() > 0 and lift.mean() > 0.02
