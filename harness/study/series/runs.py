"""The runs of a series as they lie on disk: which there are, for which of its places, how each stands, and its numbers.
Every command of several runs reads them here; none of them keeps a list."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from harness.common.errors import HarnessError, RequestError, WorkError, nearest
from harness.common.run_folder.run_files import RECORD
from harness.launch.poll import state_of
from harness.run import Run, all_runs, part_of
from harness.run.record import FINAL, State

if TYPE_CHECKING:
    from harness.analysis.metric_values import Metrics
    from harness.analysis.summary import Summary

# Of a run that may still be running; `unknown` is a scheduler that does not answer.
OPEN: frozenset[State] = frozenset({"queued", "running", "unknown"})
_SHOWN_POINTS = 4


class Slot(NamedTuple):
    """A place in a series that one completed run fills."""

    key: str
    repeat: int

    def __str__(self) -> str:
        return f"{self.key} (repeat {self.repeat + 1})" if self.repeat else self.key


def runs_of(series: str) -> list[Run]:
    """The series' runs, oldest first. A run whose record cannot be read belongs to none."""
    return [run for run in all_runs() if _is_part(run, series)]


def _is_part(run: Run, series: str) -> bool:
    """A quick look comes first: a thousand records take seconds to validate."""
    if json.dumps(series) not in (run.known(RECORD) or ""):
        return False
    part = part_of(run)
    return part is not None and part.series == series


def named_runs(word: str) -> list[Run]:
    """The runs of a series, oldest first: of `NAME`, or of one setting, `NAME:POINT`; empty if there is none.
    Raises RequestError: the series has several settings, so its runs are not of one command."""
    name, _, point = word.partition(":")
    runs = runs_of(name)
    points = sorted({slot_of(run).key for run in runs})
    if not point and len(points) > 1:
        named = ", ".join(f"{name}:{each}" for each in points[:_SHOWN_POINTS])
        raise RequestError(f"check: {name} has {len(points)} settings: name one of them, as in {named}")
    return [run for run in runs if point in ("", slot_of(run).key)]


def known_series(name: str) -> str:
    """The name, if there are runs of it. Raises RequestError: there are none."""
    if runs_of(name):
        return name
    near = nearest(name, {part.series for run in all_runs() if (part := part_of(run)) is not None})
    hint = f": did you mean {near}?" if near else ""
    raise RequestError(f"--resume {name}: there is no run of such a check{hint}")


def slot_of(run: Run) -> Slot:
    """The place that the run was made for."""
    part = run.record.part
    return Slot(part.point, part.repeat) if part else Slot("", 0)


class ObservedRun(NamedTuple):
    """A run of the series and its state. began: its script started."""

    run: Run
    state: State
    began: bool


def began(run: Run) -> bool:
    """Whether the run's script ever started: its first act is to open its log."""
    own = run.status()
    return (own is not None and own.started_ns is not None) or run.out.exists()


def observed(run: Run) -> ObservedRun:
    own = run.status() or run.record.status
    if own is not None and own.state in FINAL:
        return ObservedRun(run, own.state, own.told_by is None or began(run))
    try:
        state = state_of(run)
    except WorkError:  # the backend of another installation
        state = "unknown"
    return ObservedRun(run, state, began(run))


def completed_runs(series: str) -> dict[Slot, Run]:
    """The completed run of each place, by setting and repeat; of a place that was filled twice the first."""
    found: dict[Slot, Run] = {}
    for run in runs_of(series):
        status = run.status()
        if status is not None and status.state == "completed":
            found.setdefault(slot_of(run), run)
    return dict(sorted(found.items()))


class MeasuredRun(NamedTuple):
    """A completed run of a series with its numbers."""

    slot: Slot
    run: Run
    summary: Summary
    metrics: Metrics


def measured(runs: Iterable[Run]) -> tuple[list[MeasuredRun], list[str]]:
    """The numbers of completed runs, and a sentence for each run that has none."""
    from harness.analysis.metrics import metrics_by_name
    from harness.measure.request import load_summary

    found: list[MeasuredRun] = []
    lacking: list[str] = []
    for run in runs:
        try:
            _, summary = load_summary(str(run.path))
        except HarnessError as error:
            lacking.append(f"{slot_of(run)}: {run.job_id} has no numbers: {error}")
        else:
            found.append(MeasuredRun(slot_of(run), run, summary, metrics_by_name(summary)))
    return found, lacking
