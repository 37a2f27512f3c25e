"""Means of repeated runs and their intervals: tables of Student's t, cases done by hand, and how often they hold."""

from __future__ import annotations

import math
import random

import pytest

from harness.analysis.statistics import best_point, effect
from harness.compare.arms import Arm
from harness.compare.comparison import Comparison, compare_arms, samples
from harness.compare.points import Optimum, PointValues, optimum, over_runs, repeated, with_first
from harness.report.sweeps import optimum_text


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


def test_a_ratio_by_hand() -> None:
    """Logarithms 0 ± d against ln 2 ± d: each s² = 2 d², Welch's degrees of freedom 2."""
    d = 0.01
    found = ratio_of([2 * math.exp(d), 2 * math.exp(-d)], [math.exp(d), math.exp(-d)])
    assert found.ratio == pytest.approx(2)
    assert math.log(found.high / 2) == pytest.approx(4.30265 * math.sqrt(2 * 2 * d**2 / 2), rel=1e-5)


def test_a_comparison_of_runs_has_the_interval_of_welch() -> None:
    a, b = [100.0, 101.0, 104.0], [106.0, 112.0, 107.0]
    welch = pytest.approx((1.0030228, 1.1316822), abs=1e-6)  # 3.559 degrees of freedom
    seen, compared = effect(samples(a), samples(b)), ratio_of(b, a)
    assert seen is not None and seen.df == pytest.approx(3.55866, abs=1e-4)
    assert (compared.low, compared.high) == welch


@pytest.mark.parametrize("n", [2, 3, 5])
def test_95_of_100_intervals_of_a_mean_hold_the_truth(n: int) -> None:
    draw = random.Random(n)
    sample = [[draw.gauss(100, 5) for _ in range(n)] for _ in range(3000)]
    held = [(found := repeated(values)).low <= 100 <= found.high for values in sample]
    assert sum(held) / len(held) == pytest.approx(0.95, abs=0.015)


@pytest.mark.parametrize(
    ("runs", "deviations"),
    [
        ((3, 3), (0.05, 0.05)),
        *(
            pytest.param(runs, deviations, marks=pytest.mark.long)  # the same of other samples
            for runs, deviations in (((3, 3), (0.02, 0.06)), ((4, 4), (0.02, 0.08)), ((8, 4), (0.02, 0.08)))
        ),
    ],
)
def test_95_of_100_intervals_of_a_ratio_hold_the_truth(runs: tuple[int, int], deviations: tuple[float, float]) -> None:
    """Degrees of freedom that are rounded down hold it in 97 of 100 for three runs each."""
    draw, truth = random.Random(sum(runs)), (1.0, 1.1)
    held = 0
    for _ in range(1500):
        a, b = (
            [mean * math.exp(draw.gauss(0, deviation)) for _ in range(n)]
            for mean, n, deviation in zip(truth, runs, deviations, strict=True)
        )
        found = ratio_of(b, a)
        held += found.low <= 1.1 <= found.high
    assert held / 1500 == pytest.approx(0.95, abs=0.017)


@pytest.mark.parametrize("deviations", [(0.05,), (0.02, 0.1)])
@pytest.mark.parametrize(
    ("points", "runs"), [(2, 2), *(pytest.param(points, 3, marks=pytest.mark.long) for points in (4, 7))]
)
def test_the_best_point_is_among_those_that_are_not_told_apart_in_95_of_100_sweeps(
    points: int, runs: int, deviations: tuple[float, ...]
) -> None:
    """All points are equal, so that each of them is a best one; their runs may differ by unequal amounts."""
    draw = random.Random(points)
    kept = 0
    for _ in range(1500):
        each = [deviations[i % len(deviations)] for i in range(points)]
        values = [[100 * math.exp(draw.gauss(0, deviation)) for _ in range(runs)] for deviation in each]
        kept += 0 in best_point(values, more_is_worse=True).alike
    assert kept / 1500 >= 0.945


def test_points_that_are_far_from_the_best_are_told_apart() -> None:
    values = {"1": [50.0, 52, 49], "5": [98.0, 103, 99], "25": [102.0, 99, 101], "250": [80.0, 82, 78]}
    found = optimum("tokens_per_s", values, more_is_worse=False)
    assert (found.best, found.alike) == ("25", ["5", "25"])
    assert optimum("step_ns", values, more_is_worse=True).alike == ["1"]


def test_points_whose_runs_differ_much_hide_no_difference_of_others() -> None:
    """As a sweep of bucket sizes measured it while other programs came and went."""
    values = {
        "0.02": [15.0, 15.9, 15.2],
        "0.25": [12.0, 20.0, 19.0],
        "0.5": [20.0, 21.9, 21.4],
        "1": [21.0, 22.8, 21.9],
    }
    assert optimum("tokens_per_s", values, more_is_worse=False).alike == ["0.25", "0.5", "1"]


def test_one_run_per_point_tells_no_difference_and_no_number_no_best() -> None:
    single = {"a": [1.0], "b": [3.0], "c": []}
    assert optimum("tokens_per_s", single, more_is_worse=False) == Optimum(metric="tokens_per_s", best="b", alike=None)
    assert optimum("step_ns", single, more_is_worse=True).best == "a"
    assert optimum("idle_share", {"a": [0.0, 0.1], "b": [0.2]}, more_is_worse=True) is None
    assert optimum("step_ns", {"a": [1.0, 2.0]}, more_is_worse=True) is None


def series(settings: list[dict[str, str]], values: list[list[float]], name: str = "tokens_per_s") -> str:
    points = [
        PointValues(point=str(i), settings=setting, runs=[], values={name: repeated(of)})
        for i, (setting, of) in enumerate(zip(settings, values, strict=True))
    ]
    found = optimum(name, {point.point: of for point, of in zip(points, values, strict=True)}, more_is_worse=False)
    return optimum_text(found, points)


def sizes(*values: str) -> list[dict[str, str]]:
    return [{"bucket_cap_mb": value} for value in values]


def test_the_sentence_names_the_range_without_a_difference() -> None:
    values = [[50.0, 51, 52], [99.0, 101, 100], [102.0, 99, 101], [100.0, 98, 101], [80.0, 82, 78]]
    said = series(sizes("250", "1", "10", "5", "100"), values[:1] + values[1:4] + values[4:])
    assert said.startswith("The best tokens/s: bucket_cap_mb 10 (")
    assert said.endswith("; from bucket_cap_mb 1 to 10 no difference can be told (95 %), and all others are worse.")


def test_the_sentence_lists_what_lies_apart_and_says_if_the_axis_ends_at_the_best() -> None:
    apart = series(sizes("1", "2", "4", "8"), [[100.0, 99, 101], [50.0, 51, 49], [98.0, 101, 99], [60.0, 61, 59]])
    assert "no difference to bucket_cap_mb 4 can be told (95 %)" in apart
    assert series(sizes("1", "2"), [[50.0, 51], [100.0, 99]]).endswith(
        "; all others are worse. Larger values were not tried."
    )
    words = series([{"tp": "1", "pp": "2"}, {"tp": "2", "pp": "1"}], [[50.0, 51], [100.0, 99]])
    assert words.endswith("tp 2 pp 1 (99.5 tokens/s ± 6.35 tokens/s); all others are worse.")


def test_the_sentence_cannot_tell_where_runs_differ_as_much_as_points_or_are_too_few() -> None:
    noise = series(sizes("1", "2", "4"), [[80.0, 120], [85.0, 110], [90.0, 118]])
    assert noise.startswith("Cannot tell which setting is best for tokens/s: from bucket_cap_mb 1 to 4 no difference")
    few = series(sizes("1", "2"), [[80.0], [85.0]])
    assert "one run per point" in few and few.endswith("The best value is at bucket_cap_mb 2 (85 tokens/s).")


def test_every_point_is_compared_with_the_first() -> None:
    runs = {"1": [100.0, 101.0, 99.0], "2": [80.0, 81.0, 79.0], "4": [], "8": [100.5, 99.5, 100.0]}
    compared = with_first("tokens_per_s", runs, more_is_worse=False)
    assert {point: found.verdict.value for point, found in compared.items()} == {"2": "worse", "8": "same"}
    assert with_first("tokens_per_s", {}, more_is_worse=False) == {}
