"""Means of repeated runs and their intervals: tables of Student's t, cases done by hand, and how often they hold."""

from __future__ import annotations

import math
import random

import pytest

from harness.analysis.repeats import over_runs, ratio_of, repeated, t_quantile


# Fisher and Yates, Statistical Tables, table III, two-sided 5 %.
@pytest.mark.parametrize(
    ("degrees", "t"),
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (7, 2.365), (12, 2.179), (30, 2.042), (120, 1.980)],
)
def test_the_quantiles_are_those_of_the_tables(degrees: int, t: float) -> None:
    assert t_quantile(degrees) == pytest.approx(t, abs=5e-4)


def test_a_mean_of_three_by_hand() -> None:
    """s = 1, so the half-width is 4.3027 / √3."""
    found = repeated([9.0, 10.0, 11.0])
    assert (found.mean, found.n) == (10, 3)
    assert found.high - 10 == pytest.approx(4.30265 / math.sqrt(3), rel=1e-5)
    assert found.low == pytest.approx(20 - found.high)


def test_one_run_has_no_interval_and_none_no_mean() -> None:
    assert repeated([5.0]).model_dump() == {"mean": 5.0, "n": 1, "low": None, "high": None}
    assert repeated([]) is None
    assert ratio_of([], [1.0]) is None
    assert ratio_of([2.0], [1.0, 1.0]).model_dump() == {"mean": 2.0, "n": 1, "low": None, "high": None}
    assert ratio_of([0.0, 1.0], [1.0, 1.0]) is None


def test_a_metric_that_some_runs_lack_is_the_mean_of_the_others() -> None:
    found = over_runs([{"step_ns": 1.0, "mfu": 0.5}, {"step_ns": 3.0}])
    assert {name: (value.mean, value.n) for name, value in found.items()} == {
        "step_ns": (2, 2),
        "mfu": (0.5, 1),
    }


def test_a_ratio_by_hand() -> None:
    """Logarithms 0 ± d against ln 2 ± d: each s² = 2 d², Welch's degrees of freedom 2."""
    d = 0.01
    found = ratio_of([2 * math.exp(d), 2 * math.exp(-d)], [math.exp(d), math.exp(-d)])
    assert found.mean == pytest.approx(2)
    assert math.log(found.high / 2) == pytest.approx(4.30265 * math.sqrt(2 * 2 * d**2 / 2), rel=1e-5)


@pytest.mark.parametrize("n", [2, 3, 5])
def test_95_of_100_intervals_hold_the_truth(n: int) -> None:
    draw = random.Random(n)
    sample = [[draw.gauss(100, 5) for _ in range(n)] for _ in range(3000)]
    held = [(found := repeated(values)).low <= 100 <= found.high for values in sample]
    assert sum(held) / len(held) == pytest.approx(0.95, abs=0.015)
    pairs = zip(sample[::2], sample[1::2], strict=True)
    ratios = [(found := ratio_of(a, b)).low <= 1 <= found.high for a, b in pairs]
    assert sum(ratios) / len(ratios) > 0.94, "degrees of freedom are rounded down: rather too wide"
