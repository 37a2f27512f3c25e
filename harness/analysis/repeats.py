"""The mean of repeated runs and its interval, by Student's t-distribution. Knows no run.

The interval assumes that the runs' values vary independently and about normally; one run has none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from statistics import mean, stdev
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:
    from harness.analysis.metrics import Metrics

LEVEL = 0.95


class Repeated(BaseModel):
    """The mean of n runs, and the ends of its 95 % interval; None where n is 1."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    mean: float
    n: int
    low: float | None = None
    high: float | None = None


def repeated(values: Sequence[float]) -> Repeated | None:
    """The mean of the values, which are one per run; None without any.

    mean ± t(0.975, n − 1) · s / √n, s the sample's standard deviation (Student 1908).
    """
    if not values:
        return None
    middle, n = mean(values), len(values)
    if n == 1:
        return Repeated(mean=middle, n=1)
    half = t_quantile(n - 1) * stdev(values) / math.sqrt(n)
    return Repeated(mean=middle, n=n, low=middle - half, high=middle + half)


@cache
def t_quantile(degrees: int, level: float = LEVEL) -> float:
    """The t within which a Student t variable of so many degrees of freedom lies with this probability.

    >>> [round(t_quantile(n), 3) for n in (1, 2, 4, 9, 29)]
    [12.706, 4.303, 2.776, 2.262, 2.045]
    """
    low, high = 0.0, 1.0
    while _within(high, degrees) < level:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, degrees) < level else (low, middle)
    return high


def _within(t: float, degrees: int) -> float:
    """P(|T| ≤ t), as Abramowitz and Stegun 26.7.3 and 26.7.4 have it for whole degrees of freedom."""
    angle = math.atan(t / math.sqrt(degrees))
    odd = degrees % 2
    term = math.cos(angle) if odd else 1.0
    total = 0.0
    for k in range(1 + odd, degrees, 2):
        total += term
        term *= math.cos(angle) ** 2 * k / (k + 1)
    if odd:
        return 2 / math.pi * (angle + math.sin(angle) * total)
    return math.sin(angle) * total


class PointValues(BaseModel):
    """One setting of a series: its options' values as text, its measured runs by id, and each metric over them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    point: str
    settings: dict[str, str]
    runs: list[str]
    values: dict[str, Repeated]
    doubtful: list[str] = []  # runs whose recording is in doubt


def over_runs(metrics: Sequence[Metrics]) -> dict[str, Repeated]:
    """Each metric over the runs that have it; n says how many those are."""
    names = dict.fromkeys(name for each in metrics for name in each)
    found = {name: repeated([each[name] for each in metrics if name in each]) for name in names}
    return {name: value for name, value in found.items() if value is not None}


def ratio_of(values: Sequence[float], base: Sequence[float]) -> Repeated | None:
    """The ratio of two independent samples' geometric means with its interval; None without values, or one ≤ 0.

    exp(d ± t · √(s²/n + s²/n)) of the logarithms, t with Welch's degrees of freedom, rounded down (Welch 1947). Without
    two values on each side there is no interval. n: of the smaller sample.
    """
    if not values or not base or min(*values, *base) <= 0:
        return None
    logs, base_logs = [math.log(v) for v in values], [math.log(v) for v in base]
    middle, n = mean(logs) - mean(base_logs), min(len(logs), len(base_logs))
    if n < 2:
        return Repeated(mean=math.exp(middle), n=n)
    parts = [(stdev(each) ** 2 / len(each), len(each) - 1) for each in (logs, base_logs)]
    variance = sum(part for part, _ in parts)
    if variance == 0:
        return Repeated(mean=math.exp(middle), n=n, low=math.exp(middle), high=math.exp(middle))
    degrees = variance**2 / sum(part**2 / free for part, free in parts)
    half = t_quantile(max(1, math.floor(degrees + 1e-9))) * math.sqrt(variance)
    return Repeated(mean=math.exp(middle), n=n, low=math.exp(middle - half), high=math.exp(middle + half))
