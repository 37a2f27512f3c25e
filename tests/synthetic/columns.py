"""Traces made as columns from a few rows, without a file, with answers known by construction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from harness.traces.trace import (
    Activity,
    Calls,
    Collectives,
    CopyKind,
    Events,
    HostKind,
    HostSpans,
    Identity,
    MetricSeries,
    RangeKind,
    Ranges,
    Trace,
)

MAIN = 1  # the main thread of every made trace

GEMM = "ampere_sgemm_128x64_nn"
NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"


class Made:
    """Collects rows; `trace()` gives them in the contract's order."""

    def __init__(self, **identity: Any) -> None:
        self.names: list[str] = []
        self.identity = {"source": "kineto", "path": "made.json", **identity}
        self.events: list[dict[str, int]] = []
        self.calls: list[dict[str, int]] = []
        self.ranges: list[dict[str, int]] = []
        self.collectives: list[dict[str, int]] = []
        self.spans: list[dict[str, int]] = []
        self.extra: dict[str, Any] = {}

    def name(self, text: str) -> int:
        if text not in self.names:
            self.names.append(text)
        return self.names.index(text)

    def event(self, start: int, end: int, name: str = GEMM, **columns: int) -> Made:
        row = {
            "start_ns": start,
            "end_ns": end,
            "name": self.name(name),
            "activity": Activity.KERNEL,
            "device": 0,
            "stream": 7,
            "correlation": len(self.events),
            "launch_ns": -1,
            "launch_thread": MAIN if columns.get("launch_ns", -1) >= 0 else -1,
            "bytes": -1,
            "copy_kind": -1,
            "host_memory": 0,
            "dtype": -1,
            "process": -1,
        }
        self.events.append(row | columns)
        return self

    def copy(self, start: int, end: int, size: int, kind: CopyKind = CopyKind.H2D, **columns: int) -> Made:
        facts = {"activity": Activity.MEMCPY, "bytes": size, "copy_kind": kind}
        return self.event(start, end, "Memcpy HtoD", **(facts | columns))

    def memset(self, start: int, end: int, **columns: int) -> Made:
        return self.event(start, end, "Memset (Device)", activity=Activity.MEMSET, **columns)

    def call(self, start: int, end: int, name: str, thread: int = MAIN, process: int = -1) -> Made:
        row = {"start_ns": start, "end_ns": end, "name": self.name(name), "thread": thread}
        self.calls.append(row | {"correlation": -1, "process": process})
        return self

    def range(
        self,
        start: int,
        end: int,
        name: str,
        *,
        kind: RangeKind = RangeKind.PUSH_POP,
        thread: int = MAIN,
        process: int = -1,
        is_open: bool = False,
    ) -> Made:
        row = {"start_ns": start, "end_ns": end, "name": self.name(name), "thread": thread, "kind": kind}
        self.ranges.append(row | {"process": process, "domain": -1, "is_open": is_open})
        return self

    def step(self, start: int, end: int, number: int) -> Made:
        return self.range(start, end, f"ProfilerStep#{number}", kind=RangeKind.STEP)

    def host(self, start: int, end: int, name: str, kind: HostKind, thread: int = MAIN) -> Made:
        """What a thread of the host did."""
        row = {"start_ns": start, "end_ns": end, "name": self.name(name), "thread": thread, "kind": kind}
        self.spans.append(row | {"process": -1})
        return self

    def collective(
        self,
        start: int,
        end: int,
        kind: str = "all_reduce",
        *,
        size: int = -1,
        group: str = "0",
        members: int = -1,
        peer: int = -1,
        launch_ns: int = -1,
    ) -> Made:
        """An NCCL kernel with its arguments."""
        self.event(start, end, NCCL, launch_ns=launch_ns)
        self.collectives.append(
            {
                "event": len(self.events) - 1,
                "kind": self.name(kind),
                "bytes": size,
                "dtype": self.name("bfloat16"),
                "group": self.name(group),
                "group_size": members,
                "peer": peer,
                "start_ns": start,
                "end_ns": end,
            }
        )
        return self

    def trace(self) -> Trace:
        order = sorted(range(len(self.events)), key=lambda i: (self.events[i]["device"], self.events[i]["start_ns"]))
        place = {old: new for new, old in enumerate(order)}
        for row in self.collectives:
            row["event"] = place.get(row["event"], -1)
        self.ranges.sort(key=lambda r: (r["thread"], r["start_ns"], -r["end_ns"]))
        self.spans.sort(key=lambda r: (r["thread"], r["start_ns"], -r["end_ns"]))
        self.calls.sort(key=lambda r: r["start_ns"])
        self.collectives.sort(key=lambda r: r["start_ns"])
        return Trace(
            identity=Identity(**self.identity),
            names=self.names,
            events=_columns(Events, [self.events[i] for i in order]),
            calls=_columns(Calls, self.calls),
            ranges=_columns(Ranges, self.ranges),
            collectives=_columns(Collectives, self.collectives),
            host=_columns(HostSpans, self.spans),
            **self.extra,
        )


_DTYPES = {"I64": np.int64, "I32": np.int32, "U8": np.uint8}


def _columns(part: Any, rows: list[dict[str, int]]) -> Any:
    """Rows as one of the trace's column sets, each column with the type the contract gives it."""
    return part(**{f.name: np.array([r[f.name] for r in rows], _DTYPES[str(f.type)]) for f in fields(part)})


def event(name: str, start: int, end: int, **more: Any) -> dict[str, Any]:
    """A row for `trace`: a kernel on device 0, stream 7, unless it says otherwise."""
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
    """A Trace from rows that name only what matters to a test. `collectives` refer to events by their position."""
    made = Made(**{"path": "made", "clock": "unix", "pid": pid, **identity})
    for row in events:
        columns = {"launch": -1, "launch_thread": -1, "correlation": -1, "pid": pid} | row
        start, end, name, launch_ns, process = (columns.pop(c) for c in ("start", "end", "name", "launch", "pid"))
        made.event(start, end, name, launch_ns=launch_ns, process=process, **columns)
    for row in calls:
        made.call(row["start"], row["end"], row["name"], row.get("thread", MAIN), row.get("pid", pid))
        made.calls[-1]["correlation"] = row.get("correlation", -1)
    for row in ranges:
        columns = {"pid": pid, "domain": None} | row
        start, end, name, process, domain = (columns.pop(c) for c in ("start", "end", "name", "pid", "domain"))
        made.range(start, end, name, process=process, **columns)
        made.ranges[-1]["domain"] = -1 if domain is None else made.name(domain)
    for row in collectives:
        named = {c: made.name(row[c]) if c in row else -1 for c in ("kind", "dtype", "group")}
        span = {c: made.events[row["event"]][c] for c in ("start_ns", "end_ns")}
        made.collectives.append({"bytes": -1, "group_size": -1, "peer": -1} | row | named | span)
    made.extra["metrics"] = list(metrics)
    return made.trace()
