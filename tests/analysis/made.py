"""Traces made from a few lists, with answers known by construction."""

from __future__ import annotations

from typing import Any

import numpy as np

from harness.traces.trace import (
    Activity,
    Calls,
    Collectives,
    CopyKind,
    Events,
    Identity,
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
            "pageable": 0,
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

    def collective(
        self,
        start: int,
        end: int,
        kind: str = "all_reduce",
        *,
        size: int = -1,
        group: str = "0",
        members: int = -1,
    ) -> Made:
        """An NCCL kernel with its arguments."""
        self.event(start, end, NCCL)
        self.collectives.append(
            {
                "event": len(self.events) - 1,
                "kind": self.name(kind),
                "bytes": size,
                "dtype": self.name("bfloat16"),
                "group": self.name(group),
                "group_size": members,
                "start_ns": start,
                "end_ns": end,
            }
        )
        return self

    def trace(self) -> Trace:
        order = sorted(
            range(len(self.events)), key=lambda i: (self.events[i]["device"], self.events[i]["start_ns"])
        )
        place = {old: new for new, old in enumerate(order)}
        for row in self.collectives:
            row["event"] = place.get(row["event"], -1)
        self.ranges.sort(key=lambda r: (r["thread"], r["start_ns"], -r["end_ns"]))
        self.calls.sort(key=lambda r: r["start_ns"])
        self.collectives.sort(key=lambda r: r["start_ns"])
        return Trace(
            identity=Identity(**self.identity),
            names=self.names,
            events=_columns(Events, [self.events[i] for i in order]),
            calls=_columns(Calls, self.calls),
            ranges=_columns(Ranges, self.ranges),
            collectives=_columns(Collectives, self.collectives),
            **self.extra,
        )


_DTYPES = {"I64": np.int64, "I32": np.int32, "U8": np.uint8}


def _columns(part: Any, rows: list[dict[str, int]]) -> Any:
    """Rows as one of the trace's column sets, each column with the type the contract gives it."""
    types = part.__annotations__
    return part(**{c: np.array([r[c] for r in rows], _DTYPES[str(t)]) for c, t in types.items()})
