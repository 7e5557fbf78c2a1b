"""Parts of trainings by themselves: settings, records, losses on drawn vectors, rows of a printed table."""

import json, os
from collections import Counter
import numpy as np, pytest, torch
from conftest import refuses, write_lines
from medir_nb.core import MedirError
from medir_nb.encoder import encoder_spec
from medir_nb.generator.llm_rows import llm_spec
from medir_nb.trainer import Alignment, InfoNCE, LateContrast, loop, losses, pair, progress, training_config
from medir_nb.trainer.alignment import AlignmentSettings, TowerRows, plain_spec
from medir_nb.trainer.pair import ABLATIONS, APPROACHES, PRINTED, PRINTED_AS, STAGE_DATA, STAGES_OF_PAIR
from medir_nb.trainer.pair import TOWER_STAGES, pair_settings, stage_settings, tower_settings
from medir_nb.trainer.pairs import document_labels, read_pair, row_texts
from medir_nb.trainer.sft import check_tunable
from medir_nb.trainer.training_settings import Settings, is_first, is_in_world, raw_settings, world_size

HERE = {'model': 'minilm', 'data': 'pairs.jsonl', 'output': 'minilm-lay'}
MINE = {'name': 'mine', 'query': 'minilm', 'document': 'mpnet', 'align': {'learning_rate': 1e-3}}


def at(*degrees):
    return torch.stack([torch.tensor([d, 90.0 - d]).deg2rad().cos() for d in degrees])


def test_what_a_place_or_a_panel_changes_decides_nothing():
    here = Settings(**HERE)
    moved = here.model_copy(update={'data': 'elsewhere/pairs.jsonl', 'save_steps': 10, 'output': 'other'})
    assert here.decisive() == moved.decisive() != here.model_copy(update={'learning_rate': 5e-6}).decisive()
    assert here.decisive() != here.model_copy(update={'seed': 7}).decisive()
    with pytest.raises(ValueError, match='Instance is frozen'):
        here.seed = 7
    panels = (AlignmentSettings(data='d', output='o', **more).decisive() for more in ({}, {'panel': {'every': 1}}))
    assert next(panels) == next(panels)


def test_settings_are_merged_and_slips_answered_with_the_nearest(monkeypatch):
    assert raw_settings({'model': 'minilm', 'seed': 1}, {'seed': 2})[0] == {'model': 'minilm', 'seed': 2}
    config = training_config({**HERE, 'task': 'sft'}, lora={'r': 4})
    assert (config.lora.r, config.lora.alpha, config.warmup_steps) == (4, 16, 200)
    refuses(lambda: training_config(config, 'contrastive'), "configuration of 'sft'")
    refuses(lambda: training_config({**HERE, 'task': 'contrastive', 'temprature': 1}), "did you mean 'temperature'")
    assert (is_in_world(), world_size(), is_first()) == (False, 1, True)
    monkeypatch.setitem(os.environ, 'WORLD_SIZE', '8')
    monkeypatch.setitem(os.environ, 'RANK', '3')
    assert (is_in_world(), world_size(), is_first()) == (True, 8, False)


def test_a_log_goes_on_where_it_was_left(tmp_path):
    file, seen = tmp_path / 'metrics.jsonl', []
    log = progress.MetricsLog(file, view=lambda lines, now=False: seen.append(lines[-1]['step']))
    for step, loss in enumerate((1.31, 0.94, 0.71), 1):
        log.seen += Counter(rows=4)
        log.write({'step': step, 'loss': loss})
    assert seen == [1, 2, 3] and progress.read_metrics(file) == log.lines
    again = progress.MetricsLog(file)
    again.resume(2, {'rows': 8, 'seconds': 3600.0})
    assert [line['step'] for line in progress.read_metrics(file)] == [1, 2] and again.seconds() >= 3600
    progress.MetricsLog(file, writes=False).write({'step': 3, 'loss': 0.7})
    assert len(progress.read_metrics(file)) == 2 and progress.read_metrics(tmp_path / 'none.jsonl') == []
    file.write_text(json.dumps({'step': 1, 'loss': 2.0}) + '\n{"step": 2, "lo')
    assert progress.read_metrics(file) == [{'step': 1, 'loss': 2.0}]


def test_a_line_becomes_a_pair():
    assert row_texts({'pos': ['Urticaria ', ' ']}, 'neg', 'pairs.jsonl:1', optional=True) == []
    found = read_pair({'query': 'hives', 'pos': 'Urticaria', 'neg': ['Eczema', 'Eczema']}, 'pairs.jsonl:1')
    assert found.pos == ['Urticaria'] and found.neg == ['Eczema']
    labels = document_labels([['Urticaria', 'Eczema'], ['Pruritus', 'Urticaria']], [{'Urticaria', 'W'}, {'Pruritus'}])
    assert labels.shape == (2, 4) and labels[0, 0] == labels[1, 1]


def test_a_base_says_its_document_tower_where_it_has_one():
    assert 'base_document' not in loop.base_of(encoder_spec('minilm')) and loop.hub_id(os.getcwd()) == ''
    towers = TowerRows(encoder_spec('minilm'), encoder_spec('minilm'))
    assert (
        towers.name == 'minilm' and set(towers.key()) == {'query', 'document'} and 'folder' not in towers.key()['query']
    )
    asked, config = encoder_spec('e5-mistral'), AlignmentSettings(data='d', output='o')
    assert plain_spec(config, asked).query_template == '{text}'


def test_a_service_cannot_be_tuned():
    assert check_tunable(llm_spec('smollm2')) is None
    with pytest.raises(MedirError):
        check_tunable(llm_spec('gpt-4o'))


def test_distances_and_parts_of_a_loss_by_hand():
    near = [at(0, 40)], [at(10, 50)]
    found = {
        name: float(losses.distance_of(name, *near, temperature=0.05)) for name in ('mse', 'euclidean', 'mse+cosine')
    }
    assert abs(found['mse'] - found['euclidean'] ** 2) < 1e-4 and found['mse+cosine'] > found['mse']
    first, second = torch.nn.functional.normalize(
        torch.randn(2, 384, generator=torch.Generator().manual_seed(1)), dim=1
    )
    p, q = (second / 0.05).softmax(0), (first / 0.05).softmax(0)
    sharp = float(losses.softmax_divergence(first[None], second[None], 0.05))
    assert abs(sharp - float((p * (p / q).log()).sum())) < 1e-5
    # scores say nothing of a plane that is turned by 30 degrees
    turned = at(35, 75) @ at(40, 80).T
    assert abs(losses.softmax_divergence(at(5, 45) @ at(10, 50).T, turned, 0.1)) < 1e-6
    query, document = at(0, 40, 80), at(5, 65, 45)
    weighed, whole = Alignment(None, distance_weight=0.5), Alignment(None, temperature=0.1)
    distance = losses.squared_distance(query, document)
    assert torch.isclose(weighed.weighted([query, document], None)['mse'], 0.5 * distance)
    contrast = losses.info_nce(query, [document], 0.1)
    assert torch.isclose(whole.calculate_loss([[query], [document]]), contrast + distance)
    assert list(whole.parts) == ['contrastive', 'mse']
    assert losses.both_sides(['text (Q)', 'text (D)'], mirrored=False) == (['text (Q)'], ['text (D)'])
    documents = torch.randn(100, 768, generator=torch.Generator().manual_seed(0))
    papers, codes = (losses.shortened_vectors(documents, 384, f'{a}-{b}') for a, b in CUTS)
    assert 0.05 < float(((papers - codes) ** 2).sum(1).mean()) < 0.12


CUTS = [('truncate', 'normalise'), ('normalise', 'truncate')]


def test_contrasts_by_hand():
    alone = InfoNCE(None, 0.1, cross_device=False).calculate_loss([[at(5, 45)], [at(10, 50)]])
    averaged = InfoNCE(None, 0.1, cross_device=False, hypothetical=True)
    assert torch.isclose(alone, averaged.calculate_loss([[at(5, 45)]] * 2 + [[at(10, 50)]]))
    late = LateContrast(None, temperature=0.5)
    tokens = torch.nn.functional.normalize(torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0)), dim=-1)
    late.labels = torch.tensor([[7, 7], [7, 7]])  # the same document is right for both rows
    scores = late.compared(tokens, tokens[:, None])
    assert torch.isinf(scores[0, 1]) and torch.allclose(scores.diagonal(), torch.full((2,), 3.0))
    temperature = losses.LearnedTemperature(0.02, least=0.01)
    temperature.log.data.fill_(-9)
    temperature.bound()
    assert round(float(temperature), 6) == 0.01


def test_words_are_masked_whole_and_noise_has_the_shares_of_bert():
    words, rng = np.array([-1, 0, 0, 1, 2, 3, 4, 5, 6, 7, 7, -1]), np.random.default_rng(0)
    masks = losses.word_masks(words, 0.5, rng, masks=4)
    assert (masks[:, 1] == masks[:, 2]).all() and (masks[:, 9] == masks[:, 10]).all()
    assert not masks[:, [0, -1]].any() and (masks.sum(1) <= 5).all()
    many = np.arange(1000, 11_000)
    seen = losses.with_noise(many, np.ones(len(many), bool), mask_id=103, vocabulary=30_522, rng=rng)
    assert abs((seen == 103).mean() - 0.8) < 0.02 and abs((seen == many).mean() - 0.1) < 0.02
    near = losses.sinusoids(64, 32) @ losses.sinusoids(64, 32).T
    assert near[9].argmax() == 9


def test_printed_settings_follow_the_size_and_what_a_reader_writes():
    assert PRINTED['query-init'] == {name: PRINTED['document-init'][name] for name in PRINTED['query-init']}
    assert pair.printed_precision('gte-multilingual-mlm-base', 'qwen3-8b') == 'bf16'
    assert pair.matryoshka_lengths('qwen3-4b', 768)[-1] == 2560
    printed = pair.printed_stages('query')
    rows_a_step = [stage['batch_size'] * stage.get('accumulation', 1) for stage in printed.values()]
    assert rows_a_step == [384, 19_200, 640]
    files = dict.fromkeys(TOWER_STAGES, 'texts.jsonl')
    asked = tower_settings(
        backbone='minilm', name='own', data=files, printed='query', settings={'supervised': {'epochs': 1.5}}
    )
    assert stage_settings(asked, 'supervised')['epochs'] == 1.5
    assert stage_settings(asked, 'retromae')['learning_rate'] == 2e-4
    takes_one = tower_settings(backbone='e5-mistral', name='own', data=files)
    read = {stage: stage_settings(takes_one, stage)['reading'].get('query_template', '') for stage in TOWER_STAGES}
    assert read['unsupervised'] == '{text}' and '{instruction}' in read['supervised']


def test_rows_of_a_pair_change_what_they_name():
    everything = ABLATIONS | STAGE_DATA | APPROACHES
    assert all(everything[row] == everything[rows[0]] for rows in PRINTED_AS.values() for row in rows)
    for change in everything.values():
        pair_settings(pair.changed_pair(MINE, change))
    assert pair.changed_pair(MINE, APPROACHES['KALE'])['align'] == {
        'learning_rate': 1e-3,
        **APPROACHES['KALE']['align'],
    }
    mine = pair_settings(MINE)
    assert mine.stages == list(STAGES_OF_PAIR) and mine.align_on == 'alignment'
    assert ABLATIONS['w/o MSE'].get('stages') == ABLATIONS['Full Model'].get('stages')
    distances = [APPROACHES[row].get('align', {}).get('distance', 'mse') for row in ('MAR', 'KALE')]
    assert distances == ['mse', 'kl']
    of_stage = pair.trainings_of_rows({row: ABLATIONS[row] for row in ('Full Model', 'w/o query align', JOINT)})
    assert of_stage['query-init'] == of_stage['align'] == ['Full Model'] and len(of_stage['joint']) == 2
    assert pair.alignment_key(ABLATIONS[JOINT]) == pair.alignment_key({})
    assert pair.document_lengths(mine) == [64, 128, 256, 384, 512, 768]
    own = pair_settings(mine, printed=True, common={'epochs': 2}, joint={'batch_size': 64})
    assert [pair.pair_stage_settings(own, stage)['batch_size'] for stage in ('align', 'joint')] == [2560, 64]


JOINT = 'w/o joint fine-tuning'


def test_a_foreign_folder_is_no_checkpoint(tmp_path):
    write_lines(tmp_path / 'thesis' / 'chapter1.tex', ['x'])
    refuses(lambda: loop.checkpoint_place(Settings(**HERE | {'output': str(tmp_path / 'thesis')})), 'no training wrote')
    refuses(lambda: loop.checkpoint_place(Settings(**HERE | {'output': 'minilm'})), 'its own base')
    arguments = loop.training_arguments(Settings(**HERE, warmup_ratio=0.05, precision='bf16'), tmp_path)
    assert arguments['warmup_steps'] == 0.05 and arguments['bf16'] and arguments['report_to'] == 'none'
