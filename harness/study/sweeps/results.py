"""What was measured at each point of a sweep: the metrics of its completed runs, repeats joined; over devices also
throughput, speed-up and efficiency, and what explains them. Prints nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from harness.analysis.metrics import worse_is
from harness.analysis.scaling import scaling
from harness.analysis.summary import RecordingVerdict
from harness.analysis.summary.efficiency import POP_FACTORS, SERIES_FACTORS
from harness.compare.arms import RunFacts
from harness.compare.comparison import Comparison
from harness.compare.groups import facts_of
from harness.compare.points import PointValues, RepeatedMean, Size, over_runs, repeated, with_first
from harness.run import Run
from harness.study.series.runs import MeasuredRun, measured
from harness.study.sweeps.axes import Settings, Sweep
from harness.study.sweeps.expand import value_text

_OF_POP, _OF_SERIES = ([factor.field for factor in each] for each in (POP_FACTORS, SERIES_FACTORS))
RANK_STEPS = "rank steps/s"  # of weak scaling, where each rank does the same in a step


class Results(NamedTuple):
    """Every point that has a measured run, in the series' order, and a sentence per run that could not be measured."""

    points: list[PointValues]
    unmeasured: list[str]

    @property
    def sizes(self) -> list[Size]:
        """The points, if they are those of a sweep over devices."""
        return [point for point in self.points if isinstance(point, Size)]


def results(completed: Sequence[Run], settings: Mapping[str, Settings], sweep: Sweep) -> Results:
    """The table of a sweep. settings: by key."""
    found, lacking = measured(completed)
    by_key = {key: [one for one in found if one.slot.key == key] for key in settings}
    points = {key: runs for key, runs in by_key.items() if runs}
    if sweep.scales:
        return Results([*_sizes(points, settings)], lacking)
    compared = _compared(points, sweep.show)
    return Results([_point(key, runs, settings[key], compared.get(key)) for key, runs in points.items()], lacking)


def _point(key: str, runs: Sequence[MeasuredRun], settings: Settings, comparison: Comparison | None) -> PointValues:
    return PointValues(
        point=key,
        settings={name: value_text(value) for name, value in settings.items()},
        runs=[one.run.job_id for one in runs],
        values=over_runs([one.metrics for one in runs]),
        doubtful=[one.run.job_id for one in runs if one.summary.quality.verdict is not RecordingVerdict.GOOD],
        comparison=comparison,
    )


def _compared(points: Mapping[str, Sequence[MeasuredRun]], show: Sequence[str]) -> dict[str, Comparison]:
    """Each point against the first, in the first metric that is shown and measured; empty: it has no better side."""
    metrics = [one.metrics for runs in points.values() for one in runs]
    metric = next((name for name in show if any(name in one for one in metrics)), "")
    worse = worse_is(metric)
    if worse is None:
        return {}
    having = {key: [one for one in runs if metric in one.metrics] for key, runs in points.items()}
    values = {key: [one.metrics[metric] for one in runs] for key, runs in having.items()}
    return with_first(metric, values, worse == "more", _facts(having))


def _facts(points: Mapping[str, Sequence[MeasuredRun]]) -> dict[str, list[RunFacts]]:
    return {key: facts_of([one.summary for one in runs]) for key, runs in points.items()}


def _sizes(measured: Mapping[str, Sequence[MeasuredRun]], settings: Mapping[str, Settings]) -> Iterator[Size]:
    """Each measured size, the smallest first. measured, settings: by key, in the order of the sizes."""
    unit = _unit([one for runs in measured.values() for one in runs])
    having = {key: [one for one in runs if _speed(one, unit)] for key, runs in measured.items()}
    speeds = {key: [_speed(one, unit) or 0.0 for one in runs] for key, runs in having.items()}
    scaled = _scaled(list(measured.items()))
    counts = {key: runs[0].summary.world_size or 1 for key, runs in measured.items()}
    of_device = {key: [speed / counts[key] for speed in of_size] for key, of_size in speeds.items()}
    smallest = next(iter(measured), "")
    compared = (
        with_first("throughput_of_a_device", of_device, more_is_worse=False, facts=_facts(having))
        if speeds.get(smallest)
        else {}
    )
    for key, runs in measured.items():
        point, throughput = _point(key, runs, settings[key], compared.get(key)), repeated(speeds[key])
        efficiency = _ratio(point.comparison)
        if key == smallest and throughput is not None:
            efficiency = RepeatedMean(mean=1.0, n=throughput.n)  # itself: exact
        more: dict[str, Any] = {
            "devices": counts[key],
            "unit": unit,
            "throughput": throughput,
            "speed_up": None if efficiency is None else _times(efficiency, counts[key] / counts[smallest]),
            "efficiency": efficiency,
            "values": point.values | over_runs([_factors(one) for one in runs]) | scaled.get(key, {}),
        }
        yield Size(**{**dict(point), **more})


def _ratio(comparison: Comparison | None) -> RepeatedMean | None:
    if comparison is None or comparison.ratio is None:
        return None
    return RepeatedMean(
        mean=comparison.ratio, n=min(comparison.a.n, comparison.b.n), low=comparison.low, high=comparison.high
    )


def _times(value: RepeatedMean, factor: float) -> RepeatedMean:
    low, high = (None if end is None else factor * end for end in (value.low, value.high))
    return RepeatedMean(mean=factor * value.mean, n=value.n, low=low, high=high)


def _unit(runs: Sequence[MeasuredRun]) -> str:
    if all("tokens_per_s" in one.metrics for one in runs):
        return "tokens/s"
    samples = all(one.summary.efficiency and one.summary.efficiency.samples_per_s for one in runs)
    are_own = all((one.summary.experiment or {}).get("exercise") == "own" for one in runs)
    return "samples/s" if samples or not are_own else RANK_STEPS


def _speed(one: MeasuredRun, unit: str) -> float | None:
    if unit == "tokens/s":
        return one.metrics.get("tokens_per_s")
    found = one.summary.efficiency
    if unit == RANK_STEPS:
        return (one.summary.world_size or 1) * 1e9 / found.step_ns if found and found.step_ns else None
    return found.samples_per_s if found else None


def _factors(one: MeasuredRun) -> dict[str, float]:
    """The efficiencies that explain a run, of those that are known."""
    return {name: value for name in _OF_POP if (value := getattr(one.summary.pop, name, None)) is not None}


def _scaled(runs_by_size: Sequence[tuple[str, Sequence[MeasuredRun]]]) -> dict[str, dict[str, RepeatedMean]]:
    """Computation scalability and global efficiency of each size: each repeat's against the smallest size's."""
    values: dict[str, dict[str, list[float]]] = {}
    for number in range(min((len(runs) for _, runs in runs_by_size), default=0)):
        rows = scaling([key for key, _ in runs_by_size], [runs[number].summary for _, runs in runs_by_size])
        for row in rows:
            for name in _OF_SERIES:
                if (value := getattr(row, name)) is not None:
                    values.setdefault(row.run, {}).setdefault(name, []).append(value)
    return {
        key: {name: value for name, each in named.items() if (value := repeated(each))} for key, named in values.items()
    }
