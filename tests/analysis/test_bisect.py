"""The decisions of a bisect: how often they are wrong on runs that are known, and how many runs they ask for."""

from __future__ import annotations

import random

import pytest
from bench_bisect import FOUND, OPEN, WRONG, simulated

from harness.analysis.bisect import Regression, has_it, next_runs, runs_to_tell, size
from harness.analysis.statistics import MeasuredEffect

BISECTS = 100


def an_effect(log_ratio: float, error: float, each: int = 4) -> MeasuredEffect:
    return MeasuredEffect(
        log_ratio, error, 2 * each - each // 2 - 1, error * (each / 2) ** 0.5, (each, each), in_blocks=True
    )


@pytest.mark.parametrize("disturbed", [0.0, 0.05])
def test_of_equal_ends_none_is_blamed_and_of_a_guilty_commit_95_in_100_are_found(disturbed: float) -> None:
    chance = random.Random(7)
    innocent = [simulated(chance, 0.02, 0.0, disturbed)[0] for _ in range(BISECTS)]
    assert set(innocent) == {OPEN}
    guilty = [simulated(chance, 0.02, 0.15, disturbed)[0] for _ in range(BISECTS)]
    assert guilty.count(FOUND) >= 95 and guilty.count(WRONG) <= 2


def test_more_noise_asks_for_more_runs_and_a_lower_error_too() -> None:
    asked = [runs_to_tell(Regression(0.1, noise / 4, noise, 5), 0.005, 32) for noise in (0.01, 0.03, 0.06, 0.5)]
    assert asked[0] == 2 and asked == sorted(asked) and asked[-1] == 32
    regression = Regression(0.1, 0.01, 0.03, 5)
    assert runs_to_tell(regression, 1e-6, 32) > runs_to_tell(regression, 0.05, 32)
    assert [next_runs(each, 9) for each in (2, 4, 8, 9)] == [4, 6, 9, 9]


def test_halfway_between_good_and_bad_nothing_is_told() -> None:
    regression = Regression(0.10, 0.005, 0.01, 5)
    answers = [has_it(an_effect(log_ratio, 0.005), regression, 0.005) for log_ratio in (-0.02, 0.0, 0.05, 0.1, 0.2)]
    assert answers == [False, False, None, True, True]


def test_a_noisy_step_counts_its_own_noise() -> None:
    regression = Regression(0.10, 0.005, 0.01, 5)
    assert has_it(an_effect(0.1, 0.005), regression, 0.005) is True
    assert has_it(an_effect(0.1, 0.05), regression, 0.005) is None


def test_runs_that_agree_to_the_last_digit_decide_at_once() -> None:
    found = size(an_effect(0.1, 0.0), 0.05, 4)
    assert isinstance(found, Regression)
    assert has_it(an_effect(0.0, 0.0, 2), found, 0.005) is False and has_it(an_effect(0.1, 0.0, 2), found, 0.005)


def test_the_size_is_certain_or_it_is_below_the_limit_or_more_runs_are_needed() -> None:
    assert isinstance(size(an_effect(0.1, 0.01), 0.05, 4), Regression)
    assert size(an_effect(0.01, 0.005), 0.05, 4) == "none"
    assert size(an_effect(0.04, 0.01), 0.05, 4) == "more runs"
    assert size(an_effect(-0.1, 0.01), 0.05, 4) == "none", "a bad end that is faster has no regression"
