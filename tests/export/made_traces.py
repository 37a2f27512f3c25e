"""Small traces by hand: only the columns that matter to a test are named, the rest are "not known"."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from harness.traces.trace import (
    Activity,
    Calls,
    Collectives,
    Events,
    Identity,
    MetricSeries,
    RangeKind,
    Ranges,
    Trace,
)


class Names(list[str]):
    """Names with an index for each, as a Trace has them."""

    def of(self, name: str | None) -> int:
        if name is None:
            return -1
        if name not in self:
            self.append(name)
        return self.index(name)


def event(name: str, start: int, end: int, **more: Any) -> dict[str, Any]:
    """A kernel on device 0, stream 7, unless told otherwise."""
    return {"name": name, "start": start, "end": end, **more}


def trace(
    events: Sequence[dict[str, Any]] = (),
    ranges: Sequence[dict[str, Any]] = (),
    *,
    calls: Sequence[dict[str, Any]] = (),
    collectives: Sequence[dict[str, Any]] = (),
    metrics: Sequence[MetricSeries] = (),
    pid: int = 100,
    **identity: Any,
) -> Trace:
    """A Trace from rows. `collectives` refer to events by their position in `events`."""
    names = Names()
    order = sorted(range(len(events)), key=lambda i: (events[i].get("device", 0), events[i]["start"]))
    place = {old: new for new, old in enumerate(order)}
    rows = [events[i] for i in order]
    ranges = sorted(ranges, key=lambda r: (r.get("thread", 1), r["start"], -r["end"]))
    told = sorted(collectives, key=lambda c: events[c["event"]]["start"])
    return Trace(
        identity=Identity(**{"source": "kineto", "path": "made", "clock": "unix", "pid": pid, **identity}),
        names=names,
        events=Events(
            start_ns=_ints(rows, "start"),
            end_ns=_ints(rows, "end"),
            name=_names(rows, "name", names),
            activity=_ints(rows, "activity", Activity.KERNEL).astype(np.uint8),
            device=_ints(rows, "device", 0).astype(np.int32),
            stream=_ints(rows, "stream", 7),
            correlation=_ints(rows, "correlation", -1),
            launch_ns=_ints(rows, "launch", -1),
            launch_thread=_ints(rows, "launch_thread", -1),
            bytes=_ints(rows, "bytes", -1),
            copy_kind=_ints(rows, "copy_kind", -1).astype(np.int32),
            pageable=_ints(rows, "pageable", 0).astype(np.uint8),
            dtype=_names(rows, "dtype", names),
            process=_ints(rows, "pid", pid),
        ),
        calls=Calls(
            start_ns=_ints(calls, "start"),
            end_ns=_ints(calls, "end"),
            name=_names(calls, "name", names),
            thread=_ints(calls, "thread", 1),
            correlation=_ints(calls, "correlation", -1),
            process=_ints(calls, "pid", pid),
        ),
        ranges=Ranges(
            start_ns=_ints(ranges, "start"),
            end_ns=_ints(ranges, "end"),
            name=_names(ranges, "name", names),
            thread=_ints(ranges, "thread", 1),
            kind=_ints(ranges, "kind", RangeKind.PUSH_POP).astype(np.uint8),
            process=_ints(ranges, "pid", pid),
            domain=_names(ranges, "domain", names),
            is_open=_ints(ranges, "open", 0).astype(np.uint8),
        ),
        collectives=Collectives(
            event=np.array([place[c["event"]] for c in told], np.int64),
            kind=_names(told, "kind", names),
            bytes=_ints(told, "bytes", -1),
            dtype=_names(told, "dtype", names),
            group=_names(told, "group", names),
            group_size=_ints(told, "group_size", -1).astype(np.int32),
            start_ns=np.array([events[c["event"]]["start"] for c in told], np.int64),
            end_ns=np.array([events[c["event"]]["end"] for c in told], np.int64),
        ),
        metrics=list(metrics),
    )


def _ints(rows: Sequence[dict[str, Any]], column: str, default: int = 0) -> np.ndarray[Any, Any]:
    return np.array([row.get(column, default) for row in rows], np.int64)


def _names(rows: Sequence[dict[str, Any]], column: str, names: Names) -> np.ndarray[Any, Any]:
    return np.array([names.of(row.get(column)) for row in rows], np.int32)
