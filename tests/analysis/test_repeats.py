"""Means of repeated runs and their intervals: tables of Student's t, cases done by hand, and how often they hold."""

from __future__ import annotations

import math
import random

import pytest

from harness.compare.arms import Arm
from harness.compare.comparison import Comparison, compare_arms, samples
from harness.compare.points import over_runs, repeated, with_first


def ratio_of(values: list[float], base: list[float]) -> Comparison:
    return compare_arms("step_ns", Arm("a", samples(base)), Arm("b", samples(values)))


def test_a_mean_of_three_by_hand() -> None:
    """s = 1, so the half-width is 4.3027 / √3."""
    found = repeated([9.0, 10.0, 11.0])
    assert (found.mean, found.n) == (10, 3)
    assert found.high - 10 == pytest.approx(4.30265 / math.sqrt(3), rel=1e-5)
    assert found.low == pytest.approx(20 - found.high)


def test_one_run_has_no_interval_and_none_no_mean() -> None:
    assert repeated([5.0]).model_dump() == {"mean": 5.0, "n": 1, "low": None, "high": None}
    assert repeated([]) is None
    assert ratio_of([], [1.0]).ratio is None
    one = ratio_of([2.0], [1.0])
    assert (one.ratio, one.low, one.high, one.b.n) == (2.0, None, None, 1)
    assert ratio_of([0.0, 1.0], [1.0, 1.0]).ratio is None


def test_a_metric_that_some_runs_lack_is_the_mean_of_the_others() -> None:
    found = over_runs([{"step_ns": 1.0, "mfu": 0.5}, {"step_ns": 3.0}])
    assert {name: (value.mean, value.n) for name, value in found.items()} == {"step_ns": (2, 2), "mfu": (0.5, 1)}


@pytest.mark.parametrize("n", [2, 3, 5])
def test_95_of_100_intervals_of_a_mean_hold_the_truth(n: int) -> None:
    draw = random.Random(n)
    sample = [[draw.gauss(100, 5) for _ in range(n)] for _ in range(3000)]
    held = [(found := repeated(values)).low <= 100 <= found.high for values in sample]
    assert sum(held) / len(held) == pytest.approx(0.95, abs=0.015)


def test_every_point_is_compared_with_the_first() -> None:
    runs = {"1": [100.0, 101.0, 99.0], "2": [80.0, 81.0, 79.0], "4": [], "8": [100.5, 99.5, 100.0]}
    compared = with_first("tokens_per_s", runs, more_is_worse=False)
    assert {point: found.verdict.value for point, found in compared.items()} == {"2": "worse", "8": "same"}
    assert with_first("tokens_per_s", {}, more_is_worse=False) == {}
