"""What so many queries can show: the formula against scipy's and statsmodels' values, against the test itself, and in words."""

import json
import numpy as np, pandas as pd, pytest
from conftest import seeded
from medir_nb.core import MedirError
from medir_nb.data import task_from_frames
from medir_nb.evaluator import (
    Power,
    compare,
    difference_spread,
    paired_power,
    queries_needed,
    score_run,
    simulated_power,
    smallest_difference,
)
from medir_nb.retrieval import RUN_COLUMNS


@pytest.mark.parametrize(
    ('effect', 'n', 'power'),
    [(0.5, 34, 0.8077775), (0.2, 199, 0.8016930), (0.8, 15, 0.8213105)],  # G*Power 3.1: t test, two dependent means
)
def test_the_formula_gives_the_textbooks_values(effect, n, power):
    assert paired_power(effect, 1.0, n) == pytest.approx(power, abs=5e-6)
    assert queries_needed(effect, 1.0) == n


@pytest.mark.parametrize('seed', range(3))
def test_formula_and_simulation_agree(seed):
    with seeded(seed):
        rng = np.random.default_rng(seed)
        n = int(rng.integers(25, 80))
        # most queries do not change, as with nDCG
        observed = np.where(rng.random(400) < 0.5, 0, rng.normal(0, 0.35, 400))
        spread = difference_spread(observed)
        difference = smallest_difference(spread, n)
        simulated = simulated_power(observed, difference, n, draws=150, flips=499, seed=seed)
        assert abs(simulated - 0.8) < 0.12  # 3.5 standard errors of 150 draws


def test_without_a_true_difference_the_test_shows_one_as_often_as_alpha():
    observed = np.random.default_rng(5).normal(0, 0.3, 200)
    assert paired_power(0.0, 0.3, 50) == pytest.approx(0.05, abs=1e-9)
    assert simulated_power(observed, 0.0, 30, draws=200, flips=499) < 0.12


@pytest.mark.parametrize('seed', range(20))
def test_smallest_difference_and_queries_needed_undo_each_other(seed):
    rng = np.random.default_rng(seed)
    n, spread = int(rng.integers(6, 3000)), float(rng.uniform(0.01, 0.6))
    difference = smallest_difference(spread, n)
    assert paired_power(difference, spread, n) == pytest.approx(0.8, abs=1e-6)
    assert queries_needed(difference * (1 + 1e-6), spread) == n
    assert smallest_difference(spread, n + 1) < difference < smallest_difference(2 * spread, n)


def test_fewer_than_six_pairs_show_nothing():
    assert paired_power(1.0, 0.001, 5) == 0 and smallest_difference(0.001, 5) == float('inf')
    assert queries_needed(1.0, 0.001) == 6 and 'too few' in repr(Power(5, 0.2))


def test_a_spread_of_zero_and_far_out_values_are_numbers():
    assert paired_power(0.1, 0.0, 10) == 1.0 and smallest_difference(0.0, 10) == 0.0
    assert paired_power(1.0, 0.001, 5000) == 1.0 and np.isnan(difference_spread([0.1]))
    assert queries_needed(0.001, 0.3) > 100_000


def test_the_spread_of_groups_is_that_of_the_mean():
    rng = np.random.default_rng(2)
    group = np.sort(rng.integers(0, 40, 200))
    group = np.unique(group, return_inverse=True)[1]
    effect = rng.normal(0, 0.3, 40)[group] + rng.normal(0, 0.1, 200)
    spread = difference_spread(effect, group)
    from medir_nb.evaluator.statistics import resampled_means

    error = resampled_means(effect, group, n=4000).std()
    assert spread / np.sqrt(group.max() + 1) == pytest.approx(error, rel=0.1)
    assert spread > difference_spread(effect) * np.sqrt((group.max() + 1) / 200) * 1.5  # kin are no evidence


@pytest.mark.parametrize('wrong', [{'difference': 0}, {'difference': -0.1}, {'difference': 0.1, 'power': 1.0}])
def test_odd_questions_are_one_line(wrong):
    with pytest.raises(MedirError, match='power'):
        queries_needed(**{'spread': 0.3, **wrong})


def two_runs(n, better, worse=0):
    "Scores of two systems on `n` queries: the second is right on `better` more, and wrong on `worse` others."
    qrels = pd.DataFrame([(f'q{i:03}', f'd{i:03}', 1) for i in range(n)], columns=['query_id', 'doc_id', 'relevance'])
    documents = pd.DataFrame({'id': [*qrels.doc_id, 'z'], 'text': 'a disease'})
    task = task_from_frames(documents, pd.DataFrame({'id': qrels.query_id, 'text': 'what is it'}), qrels)

    def score(right):
        found = [(q, d if right(i) else 'z', 1.0) for i, (q, d) in enumerate(zip(qrels.query_id, qrels.doc_id))]
        return score_run(task, pd.DataFrame(found, columns=RUN_COLUMNS), ['nDCG@10'])

    return score(lambda i: i >= better), score(lambda i: not better <= i < better + worse)


def test_compare_ends_in_words():
    shown, unsure, same = (compare(*two_runs(60, *case)) for case in ((20, 0), (5, 4), (0, 0)))
    first = lambda comparison: repr(comparison).splitlines()[0]
    assert first(shown).endswith('0 ties; a difference is shown'.replace('0 ties', '40 ties'))
    needed = queries_needed(0.03, unsure.spread) - 60
    words = first(unsure).rpartition('; ')[2], first(unsure).rpartition('; ')[0]
    assert words[1].endswith('no difference shown') and words[0].startswith('about ')
    said = int(words[0].split()[1].replace(',', ''))
    assert needed <= said < 1.1 * needed and 'more queries would show one of 0.03' in words[0]
    unknown = 'none of these 60 queries tells the two apart, so what they would show is unknown'
    assert first(same).endswith(f'no difference shown; {unknown}')


def test_a_spread_of_zero_promises_nothing_and_queries_to_come_are_called_so():
    assert 'unknown' in repr(Power(10, 0.0)) and '0.000' not in repr(Power(10, 0.0))
    ahead = Power(10, 0.25, 'other collections', 'labelled queries', ahead=True)
    assert repr(ahead).startswith(
        '10 labelled queries would show a difference of 0.249; about 540 more labelled queries'
    )
    assert Power(900, 0.25, ahead=True).words() == '900 queries would show one of 0.03'


def test_a_comparison_of_one_group_has_no_spread_and_goes_into_json():
    a, b = two_runs(4, 1)
    a.task.groups = dict.fromkeys(a.task.queries.ids, 'one term')
    c = compare(a, b)
    assert c.spread is None and repr(c).splitlines()[0].endswith('no difference shown')
    assert json.loads(json.dumps(c.as_dict(), allow_nan=False))['spread'] is None
