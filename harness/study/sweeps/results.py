"""What was measured at each point of a series: the metrics of its completed runs, repeats joined. Prints nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from harness.analysis.metrics import Metrics, Number, metrics_by_name
from harness.analysis.scaling import PointValues, over_runs
from harness.analysis.summary import RecordingVerdict, Summary
from harness.common.errors import HarnessError, RequestError, nearest_or_list
from harness.measure.request import load_summary
from harness.run import Run
from harness.study.campaign.points import TaskStatus
from harness.study.sweeps.axes import Settings
from harness.study.sweeps.expand import value_text


class Measured(NamedTuple):
    """A completed run with its numbers."""

    run: Run
    summary: Summary
    metrics: Metrics


class Results(NamedTuple):
    """Every point that has a measured run, in the series' order; and a sentence per run that could not be measured."""

    points: list[PointValues]
    unmeasured: list[str]


def measured_runs(
    places: Sequence[TaskStatus], more: Sequence[Number] = ()
) -> tuple[dict[str, list[Measured]], list[str]]:
    """The measured runs of each key, and a sentence for each completed run without numbers."""
    found: dict[str, list[Measured]] = {}
    lacking: list[str] = []
    for place in places:
        if place.status != "done" or place.run is None:
            continue
        try:
            _, summary = load_summary(str(place.run.path))
        except HarnessError as error:
            lacking.append(f"{place.task.point.slot}: {place.run.job_id} has no numbers: {error}")
            continue
        one = Measured(place.run, summary, metrics_by_name(summary, more))
        found.setdefault(place.task.point.key, []).append(one)
    return found, lacking


def results(places: Sequence[TaskStatus], settings: Mapping[str, Settings], more: Sequence[Number] = ()) -> Results:
    """The table of a sweep. settings: by key. more: metrics that tables add."""
    found, lacking = measured_runs(places, more)
    points = [
        PointValues(
            point=key,
            settings={name: value_text(value) for name, value in settings[key].items()},
            runs=[one.run.job_id for one in found[key]],
            values=over_runs([one.metrics for one in found[key]]),
            doubtful=[one.run.job_id for one in found[key] if one.summary.quality.verdict is not RecordingVerdict.GOOD],
        )
        for key in settings
        if key in found
    ]
    return Results(points, lacking)


def known_metric(name: str, points: Sequence[PointValues], source: str) -> str:
    """The metric's name. Raises RequestError: no run of the series measured it."""
    names = dict.fromkeys(metric for point in points for metric in point.values)
    if name in names:
        return name
    hint = nearest_or_list(name, names, "--json lists all")
    raise RequestError(f"{source}: no run of this series measured {name!r}{hint}")
