"""A plan of a large corpus: arithmetic that can be done by hand, and a simulation at its ends."""

import numpy as np
import pytest
from medir_nb.core.errors import MedirError
from medir_nb.core.engines import SHARD
from medir_nb.workbook.scale_plans import Conditions, best_shard, parse_machines, scale_plan
from medir_nb.workbook.scale_plans import shard_overheads, simulated_hours

FOUR = parse_machines('h100x8:4')


def test_a_7b_takes_a_hundred_hours_of_an_h100():
    plan = scale_plan('pubmed', FOUR).set_index('work')
    row = plan.loc['encode with bmretriever-7b']
    operations = 2 * 7e9 * 300 * 36e6  # 1.5e20
    assert row['by FLOP'] == pytest.approx(operations / (0.4 * 989e12) / 3600) == pytest.approx(106, abs=1)
    assert row['GPU hours'] == pytest.approx(36e6 / 51.8 / 3600) and row['hours'] == row['GPU hours'] / 32
    assert row['GB'] == pytest.approx(36e6 * 4096 * 2 / 1e9)
    assert plan.loc['encode with bmretriever-410m', 'GPU hours'] == pytest.approx(36e6 / 471.2 / 3600)
    assert plan.loc['bmretriever-7b: ann=ivfpq, on a processor', 'GB'] == pytest.approx(2.592)


@pytest.mark.parametrize('text', ['h100x8', 'h100x8:0', 'h100x9:4', ':4'])
def test_machines_that_nobody_knows_are_refused(text):
    with pytest.raises(MedirError):
        parse_machines(text)


def test_a_calm_day_takes_what_encoding_takes_and_a_stormy_one_more():
    calm = Conditions(100, fixed=0, start=0, restart=0, losses=0)
    assert simulated_hours(320_000, 1000, FOUR, calm) == pytest.approx(10_000 / 100 / 3600)
    fixed = Conditions(100, fixed=5, start=7, restart=0, losses=0)
    assert simulated_hours(320_000, 1000, FOUR, fixed) == pytest.approx((7 + 10 * (10 + 5)) / 3600)
    hours = {}
    for keeps in (True, False):
        stormy = Conditions(10, 0, 10, 60, losses=6, keeps_blocks=keeps)
        hours[keeps] = np.mean([simulated_hours(640_000, 10_000, FOUR, stormy, seed) for seed in range(5)])
    assert 640_000 / 10 / 32 / 3600 < hours[True] < hours[False]


def test_the_default_is_what_the_simulation_chooses():
    assert best_shard(shard_overheads('pubmed', FOUR, runs=3)) == SHARD
