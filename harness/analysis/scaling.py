"""A series of runs on unlike numbers of devices: how compute scales, beside each run's own efficiencies.

Source: POP standard metrics, computation scaling and global efficiency (co-design.pop-coe.eu/metrics). The reference is
the run on the fewest devices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import geometric_mean, mean
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict

from harness.analysis.metrics import samples_per_step, tokens_per_step
from harness.analysis.statistics import Sample, best_point, effect, mean_interval
from harness.analysis.summary import PopEfficiency, Summary
from harness.common.paths import PROGRAM

if TYPE_CHECKING:
    from harness.analysis.metrics import Metrics

Unit = Literal["tokens", "samples"]
SAME_WORK = 1e-6  # relative


class Scaling(BaseModel):
    """One run of a series.

    `work_per_step`: tokens or samples of all ranks in a step. `computation_scalability`: the reference's compute time
    per unit of work over this run's, all devices summed. `global_efficiency`: that times parallel efficiency; both may
    exceed 1. `unknown`: why they are not known.
    """

    model_config = ConfigDict(extra="forbid", defer_build=True)

    run: str
    devices: int | None
    unit: Unit | None = None
    work_per_step: float | None = None
    computation_scalability: float | None = None
    global_efficiency: float | None = None
    unknown: str | None = None


def scaling(names: Sequence[str], summaries: Sequence[Summary]) -> list[Scaling]:
    """Each run of a series, in the order given; empty if all runs have as many devices."""
    pops = [s.pop for s in summaries]
    if len({pop.devices for pop in pops if pop is not None}) < 2:
        return []
    unit, works = _works(summaries)
    rows = [
        Scaling(run=name, devices=pop.devices if pop else None, unit=unit, work_per_step=work)
        for name, pop, work in zip(names, pops, works, strict=True)
    ]
    if reason := _obstacle(names, summaries, unit):
        return [row.model_copy(update={"unknown": reason}) for row in rows]
    # Compute time of all devices per unit of work; None if the window is not one of steps.
    costs = [
        pop.useful_ns / pop.steps / work if pop is not None and pop.steps and work else None
        for pop, work in zip(pops, works, strict=True)
    ]
    _, reference = min((pop.devices, i) for i, pop in enumerate(pops) if pop is not None)
    return [_scaled(row, pop, costs[reference], cost) for row, pop, cost in zip(rows, pops, costs, strict=True)]


def how_it_scales(rows: Sequence[Scaling]) -> str:
    """Whether the series is strong or weak scaling, in words; empty if the work is not known."""
    known = [(row.devices, row.work_per_step) for row in rows if row.devices and row.work_per_step]
    if len(known) < len(rows) or not rows:
        return ""
    of_all, of_one = ([work for _, work in known], [work / devices for devices, work in known])
    if _alike(of_all):
        return "strong scaling: a step is the same work in every run"
    if _alike(of_one):
        return "weak scaling: a step is the same work for each device in every run"
    return f"neither strong nor weak scaling: compute is counted per {(rows[0].unit or '').removesuffix('s')}"


def _alike(values: Sequence[float]) -> bool:
    return max(values) - min(values) <= SAME_WORK * max(values)


def _works(summaries: Sequence[Summary]) -> tuple[Unit | None, list[float | None]]:
    """The unit of work that every run recorded, and each run's work per step in it."""
    of_unit: tuple[tuple[Unit, list[float | None]], ...] = (
        ("tokens", list(map(tokens_per_step, summaries))),
        ("samples", list(map(samples_per_step, summaries))),
    )
    nothing: list[float | None] = [None] * len(summaries)
    return next(((unit, works) for unit, works in of_unit if all(works)), (None, nothing))


def _obstacle(names: Sequence[str], summaries: Sequence[Summary], unit: Unit | None) -> str:
    """Why the compute of these runs cannot be compared; empty: it can."""
    models = sorted({t.model for s in summaries for t in s.training[:1] if t.model})
    if len(models) > 1:
        return f"the runs train several models: {', '.join(models)}"
    if unit is None:
        recorded = [bool(tokens_per_step(s) or samples_per_step(s)) for s in summaries]
        if all(recorded):
            return "some runs record tokens, the others samples"
        without = ", ".join(name for name, known in zip(names, recorded, strict=True) if not known)
        return f"the tokens or samples of a step are not recorded for {without}"
    return ""


def _scaled(row: Scaling, pop: PopEfficiency | None, reference: float | None, cost: float | None) -> Scaling:
    if pop is None or reference is None or cost is None:
        reason = "its efficiencies are not known" if pop is None else "the window is not one of counted steps"
        return row.model_copy(update={"unknown": reason})
    found = reference / cost
    return row.model_copy(update={"computation_scalability": found, "global_efficiency": found * pop.parallel})


class Repeated(BaseModel):
    """The mean of n runs, and the ends of its 95 % interval; None if n is 1."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

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

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    point: str
    settings: dict[str, str]
    runs: list[str]
    values: dict[str, Repeated]
    doubtful: list[str] = []  # runs whose recording is in doubt


class Optimum(BaseModel):
    """The point of a series at which a metric is best, by its mean; and all points, itself among them, that the runs do
    not tell from it (None: no point was run twice). Both by `PointValues.point`."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    metric: str
    best: str
    alike: list[str] | None


def optimum(metric: str, values: Mapping[str, Sequence[float]], more_is_worse: bool) -> Optimum | None:
    """The best point. values: those of its runs, by point. None if there are fewer than two points, or a value is not
    above zero."""
    known = {point: runs for point, runs in values.items() if runs}
    if len(known) < 2 or min(value for runs in known.values() for value in runs) <= 0:
        return None
    names, runs = list(known), list(known.values())
    found = best_point(runs, more_is_worse)
    if found is None:
        best = (min if more_is_worse else max)(names, key=lambda name: known[name][0])
        return Optimum(metric=metric, best=best, alike=None)
    return Optimum(metric=metric, best=names[found.best], alike=[names[i] for i in found.alike])


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


FACTORS: dict[str, str] = {
    "parallel": "parallel efficiency (POP)",
    "load_balance": "load balance",
    "communication": "communication efficiency",
    "serialisation": "serialisation",
    "transfer": "transfer",
    "orchestration": "orchestration efficiency",
}
_LIMITS = {
    "computation_scalability": "more computing time for the same work (smaller pieces, or shared cores)",
    "load_balance": "unequal work of the devices",
    "communication": "communication that no computation hides",
    "serialisation": "ranks that wait for each other",
    "transfer": "the time to send the messages",
    "orchestration": "devices that wait for their host (launches, data, Python)",
}
_NOTICEABLE = 0.97
_SUSPECT = 1.1  # caches explain a little more than the ideal


class Size(BaseModel):
    """One size of a study. throughput: in `unit`. values: shares and efficiencies by name."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    point: str
    settings: dict[str, str]
    devices: int
    runs: list[str]
    unit: str
    throughput: Repeated | None = None
    speed_up: Repeated | None = None
    efficiency: Repeated | None = None
    values: dict[str, Repeated] = {}


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
        look = f"look at the smallest size first ({PROGRAM} report {sizes[0].runs[0]})"
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
