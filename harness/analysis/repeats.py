"""Numbers of repeated runs with their intervals, as series and scaling studies show them. Knows no run on disk.

The formulas are those of analysis/statistics.py. One run has no interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import geometric_mean, mean
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict

from harness.analysis.statistics import Sample, effect, mean_interval

if TYPE_CHECKING:
    from harness.analysis.metrics import Metrics


class Repeated(BaseModel):
    """The mean of n runs, and the ends of its 95 % interval; None if n is 1."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    mean: float
    n: int
    low: float | None = None
    high: float | None = None


def repeated(values: Sequence[float]) -> Repeated | None:
    """The mean of the values, which are one per run; None without any."""
    if not values:
        return None
    low, high = mean_interval(values) or (None, None)
    return Repeated(mean=mean(values), n=len(values), low=low, high=high)


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
    """The ratio of two independent samples' geometric means with its 95 % interval (Welch's t of the logarithms); None
    without values, or if one is ≤ 0.

    Without two values on each arm there is no interval. n: of the smaller sample.
    """
    if not values or not base or min(*values, *base) <= 0:
        return None
    n = min(len(values), len(base))
    found = effect([Sample(value) for value in base], [Sample(value) for value in values])
    if found is None:
        return Repeated(mean=geometric_mean(values) / geometric_mean(base), n=n)
    low, high = found.interval
    return Repeated(mean=found.ratio, n=n, low=low, high=high)
