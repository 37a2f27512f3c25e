"""The page's data besides the Summary: the run's records, and the page data of its traces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.common.errors import WorkError
from harness.common.run_folder.run_store import UnreadFileError
from harness.heartbeats.bad_loss import BadLoss, first_bad_loss
from harness.heartbeats.hang import Hang, read_hang
from harness.heartbeats.read import stuck_to_its_end
from harness.measure.run_files import read_events
from harness.monitor.samples import NodeSamples, read
from harness.monitor.source import MonitorError
from harness.report.elements import Figure
from harness.report.exercise_0.results import LinkVerdict, MeasuredCollective
from harness.run import Run
from harness.run.record import NodeStatus, RunRecord, Status


@dataclass(frozen=True)
class StepRecord:
    """One step as the training wrote it down."""

    step: int
    phase: str
    unix_ns: int
    step_ns: int


@dataclass(frozen=True)
class Inputs:
    """All fields are optional: a Summary alone makes a page. `steps` by rank."""

    run: Run | None = None
    record: RunRecord | None = None
    status: Status | None = None
    nodes: Sequence[NodeStatus] = ()  # that have ended
    hang: Hang | None = None  # who was stuck where, also for a time
    stuck: Hang | None = None  # to the end
    bad_loss: BadLoss | None = None
    steps: Mapping[int, Sequence[StepRecord]] = field(default_factory=dict)
    monitors: Sequence[NodeSamples] = ()
    tested: Sequence[MeasuredCollective] = ()  # of this run, when it is exercise 0
    verdict: LinkVerdict | None = None  # of this run, when it is exercise 0
    left_out: Sequence[str] = ()  # a sentence for every damaged file that no finding names
    gantt: Figure | None = None
    timeline: bytes = b""  # what report/timeline/encode.py packs; empty: no trace to draw


def gather(run: Run | None) -> Inputs:
    """The data in a run's directory, without missing and damaged files: the Summary's findings name them."""
    if run is None:
        return Inputs()
    record, left_out = None, list[str]()
    try:
        record = run.record if run.is_run else None
    except WorkError as error:
        left_out.append(str(error))
    return Inputs(
        run=run,
        record=record,
        status=run.status(),
        nodes=run.nodes(),
        hang=read_hang(run.path),
        stuck=stuck_to_its_end(run.path),
        bad_loss=first_bad_loss(run.path),
        steps=dict(_steps(run.metrics())),
        monitors=list(_monitors(run.monitors())),
        left_out=left_out,
    )


def _steps(files: Sequence[Path]) -> Iterator[tuple[int, list[StepRecord]]]:
    for file in files:
        try:
            events = [e for e in read_events(file)[0] if e.get("event") == "step" and _is_whole(e)]
        except UnreadFileError:
            continue
        rank = events[0].get("rank", 0) if events else None
        if isinstance(rank, int):
            yield rank, list(map(_step, events))


def _is_whole(event: dict[str, Any]) -> bool:
    return all(isinstance(event.get(name), int) for name in ("step", "unix_ns", "step_ns"))


def _step(event: dict[str, Any]) -> StepRecord:
    return StepRecord(event["step"], str(event.get("phase", "")), event["unix_ns"], event["step_ns"])


def _monitors(folders: Sequence[Path]) -> Iterator[NodeSamples]:
    for folder in folders:
        try:
            yield read(folder)
        except MonitorError:
            continue
