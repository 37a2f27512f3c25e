"""Comparisons of several arms: the points of a sweep, also of one over devices, each with the means of its runs and its
comparison with the first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict

from harness.analysis.statistics import mean_interval
from harness.analysis.summary.efficiency import POP_FACTORS, SERIES_FACTORS
from harness.common.paths import COMMAND
from harness.compare.arms import Arm, RunFacts
from harness.compare.comparison import Comparison, compare_arms, samples

if TYPE_CHECKING:
    from harness.analysis.metric_values import Metrics

EXPLAINING = ("exposed_communication_share",)  # metrics that explain a size, beside its efficiencies
_LIMITS = {factor.field: factor.limit for factor in (*POP_FACTORS, *SERIES_FACTORS)}
_NOTICEABLE = 0.97
_SUSPECT = 1.1  # caches explain a little more than the ideal


class RepeatedMean(BaseModel):
    """The mean of n runs, and the ends of its 95 % interval; None if n is 1."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    mean: float
    n: int
    low: float | None = None
    high: float | None = None


def repeated(values: Sequence[float]) -> RepeatedMean | None:
    """The mean of the values, which are one per run; None without any."""
    if not values:
        return None
    low, high = mean_interval(values) or (None, None)
    return RepeatedMean(mean=mean(values), n=len(values), low=low, high=high)


def with_first(
    metric: str,
    values: Mapping[str, Sequence[float]],
    more_is_worse: bool,
    facts: Mapping[str, Sequence[RunFacts]] | None = None,
) -> dict[str, Comparison]:
    """Every point with values but the first, against the first. values, facts: those of its runs, by point."""
    known = {point: runs for point, runs in values.items() if runs}
    arms = [Arm(point, samples(runs), facts=(facts or {}).get(point, ())) for point, runs in known.items()]
    first, *others = arms or [Arm("", [])]
    return {arm.name: compare_arms(metric, first, arm, more_is_worse=more_is_worse) for arm in others}


class PointValues(BaseModel):
    """One setting of a series: its options' values as text, its measured runs by id, and each metric over them.
    comparison: with the first point, in the first metric of which more or less is better; None of the first itself."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    point: str
    settings: dict[str, str]
    runs: list[str]
    values: dict[str, RepeatedMean]
    doubtful: list[str] = []  # runs whose recording is in doubt
    comparison: Comparison | None = None


def over_runs(metrics: Sequence[Metrics]) -> dict[str, RepeatedMean]:
    """Each metric over the runs that have it; n says how many those are."""
    names = dict.fromkeys(name for each in metrics for name in each)
    found = {name: repeated([each[name] for each in metrics if name in each]) for name in names}
    return {name: value for name, value in found.items() if value is not None}


class Size(PointValues):
    """A point of a sweep over devices. throughput: in `unit`. Its values have shares and efficiencies, too. Its
    comparison is that of the throughput of one device with that in the smallest size; the smallest has none."""

    devices: int
    unit: str
    throughput: RepeatedMean | None = None
    speed_up: RepeatedMean | None = None
    efficiency: RepeatedMean | None = None


def limits(sizes: Sequence[Size]) -> dict[str, float]:
    """The factors that multiply to the loss between the smallest and the largest of at least two sizes: the value at
    the largest over that at the smallest, by name. Communication counts by its two factors if both sizes know them."""
    first, last = sizes[0].values, sizes[-1].values
    split = all(name in values for name in ("serialisation", "transfer") for values in (first, last))
    names = ["load_balance", "orchestration", *(("serialisation", "transfer") if split else ("communication",))]
    known = [name for name in names if name in first and name in last and first[name].mean > 0]
    found = {name: last[name].mean / first[name].mean for name in known}
    scaled = last.get("computation_scalability")
    return found | ({"computation_scalability": scaled.mean} if scaled else {})


def what_limits(sizes: Sequence[Size]) -> str:
    """One sentence: how efficient the largest size is, and the factor that costs most."""
    if len(sizes) < 2 or sizes[-1].efficiency is None:
        return "fewer than two sizes were measured, so there is no result about scaling"
    last, known = sizes[-1], sizes[-1].efficiency
    begin = f"on {last.devices} devices each does {100 * known.mean:.0f} % of what one of {sizes[0].devices} does"
    if known.mean > _SUSPECT:
        look = f"look at the smallest size first ({COMMAND} report {sizes[0].runs[0]})"
        return f"{begin}, more than the ideal: {look}"
    if known.low is not None and known.high is not None and known.low <= 1 <= known.high:
        begin += f" (95 % interval {100 * known.low:.0f} to {100 * known.high:.0f} %: it contains 100 %)"
    found = limits(sizes)
    if not found:
        return f"{begin}; the runs' traces do not show the cause of the loss"
    worst, ratio = min(found.items(), key=lambda factor: factor[1])
    if ratio >= _NOTICEABLE:
        return f"{begin}; no factor of its efficiency lost more than {100 * (1 - _NOTICEABLE):.0f} %"
    told = f"{worst.replace('_', ' ')} is {ratio:.2f} times that of the smallest size"
    return f"{begin}; the largest loss is {_LIMITS[worst]}: {told}"
