"""The events of the devices, as columns for a data frame. Knows no library of data frames."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from harness.analysis.process.kinds import load_rules
from harness.analysis.process.prepared import prepare_process, range_of_events
from harness.analysis.process.ranges import without_arguments
from harness.analysis.process.view import ProcessView, views
from harness.analysis.summary import Window
from harness.common.errors import HarnessError, RequestError, WorkError
from harness.measure.jobs import NO_TRACE, rank_by_training
from harness.measure.paths import run_of, trace_files
from harness.measure.run_files import read_training
from harness.run import Run
from harness.traces import map_traces
from harness.traces.trace import I32, I64, Trace

EventColumn = NDArray[np.int64] | list[str | None]


@dataclass(frozen=True)
class _Process:
    """One process's n events. Texts are indices into a table, -1 without a text: less data between processes."""

    rank: int | None
    pid: int | None
    host: str | None
    numbers: dict[str, I64]
    texts: dict[str, tuple[I32, list[str]]]


def events(paths: Iterable[Path | str]) -> dict[str, EventColumn]:
    """Every event of the devices in the traces of one job, equally long columns in the files' order.

    `start_ns` is unix time where the trace knows it, else on the trace's own clock; `duration_ns`; `rank`, `device`,
    `stream`, `correlation`: -1 where not recorded; `name`, `kind`; `range`: the innermost range that launched it, None
    without a range. On a CPU the events are operators: an interrupted operator is several rows of one correlation.

    Raises:
        RequestError: the files belong to several jobs.
        WorkError: there is no trace, or one cannot be read.
    """
    files = trace_files([Path(path) for path in paths])
    if not files:
        raise WorkError(NO_TRACE)
    found: list[tuple[Path, _Process]] = []
    for file, read in zip(files, map_traces(files, _processes), strict=True):
        if isinstance(read, HarnessError):
            raise read
        run = run_of(file)
        training = read_training(Run(Path(run)).metrics())[0] if run else []
        for process in read:
            rank = rank_by_training(process.pid, process.host, training) if process.rank is None else process.rank
            found.append((file, replace(process, rank=rank)))
    if len({run_of(file) for file in files}) > 1 or run_of(files[0]) is None:
        _check_one_job(found)
    return _joined([process for _, process in found])


def _processes(trace: Trace) -> list[_Process]:
    return [_process(view) for view in views(trace)]


def _process(view: ProcessView) -> _Process:
    e, names, m = view.events, view.names, prepare_process(view, Window.STEPS, load_rules())
    row = range_of_events(m)
    around = np.where(row >= 0, view.ranges.name[row], -1) if len(view.ranges) else row
    return _Process(
        rank=view.rank,
        pid=view.pid,
        host=view.trace.identity.host,
        numbers={
            "start_ns": e.start_ns + (view.epoch_ns or 0),
            "duration_ns": e.end_ns - e.start_ns,
            "device": e.device.astype(np.int64),
            "stream": e.stream,
            "correlation": e.correlation,
        },
        texts={
            "name": (e.name, names),
            "kind": (m.kinds.code, [kind for kind, _ in m.kinds.labels]),
            "range": (around.astype(np.int32), [without_arguments(name) for name in names]),
        },
    )


def _check_one_job(read: Sequence[tuple[Path, _Process]]) -> None:
    """In one job each rank has one file. Two files without ranks may be of two jobs; helpers of a rank have no rank."""
    with_ranks = {file for file, process in read if process.rank is not None}
    first: dict[int | None, Path] = {}
    for file, process in read:
        if process.rank is None and file in with_ranks:
            continue
        if (other := first.setdefault(process.rank, file)) != file:
            both = "do not say their rank" if process.rank is None else f"are both of rank {process.rank}"
            raise RequestError(f"{other} and {file} {both}: give the traces of one job")


def _joined(processes: Sequence[_Process]) -> dict[str, EventColumn]:
    lengths = [len(p.numbers["start_ns"]) for p in processes]
    ranks = [-1 if p.rank is None else p.rank for p in processes]
    columns: dict[str, EventColumn] = {"rank": np.repeat(np.array(ranks, np.int64), lengths)}
    columns |= {name: np.concatenate([p.numbers[name] for p in processes]) for name in processes[0].numbers}
    columns |= {name: _texts([p.texts[name] for p in processes]) for name in processes[0].texts}
    return columns


def _texts(parts: Sequence[tuple[I32, list[str]]]) -> list[str | None]:
    """The texts of the indices, as a list that shares them: a column of numpy would repeat each text in full width."""
    texts: list[str | None] = []
    for codes, table in parts:
        texts += np.array([*table, None], object)[codes].tolist()
    return texts
