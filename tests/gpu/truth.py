"""The time split of the GPUs in a Kineto trace, by brute force from the decimals in the file.

It shares no line with the product: it reads JSON with the standard library and counts, boundary by boundary, what
runs. Communication is a kernel with `nccl` in its name; copies and sets are memory; every other kernel computes.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterable
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

COMPUTE, COMMUNICATION, MEMORY = "compute", "communication", "memory"
MEMORY_CATEGORIES = ("gpu_memcpy", "gpu_memset")


class Span(NamedTuple):
    """An event on one device, in integer nanoseconds."""

    start_ns: int
    end_ns: int
    of: str
    name: str
    device: int


def read(path: Path) -> dict[str, Any]:
    """The trace, its times as exact decimals."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        content: dict[str, Any] = json.load(file, parse_float=Decimal)
    return content


def spans(trace: dict[str, Any]) -> list[Span]:
    """All events on devices."""
    return [
        Span(ns(e["ts"]), ns(e["ts"]) + ns(e["dur"]), _class(e), e["name"], int(e["args"]["device"]))
        for e in trace["traceEvents"]
        if e.get("ph") == "X" and e.get("cat") in ("kernel", *MEMORY_CATEGORIES)
    ]


def steps(trace: dict[str, Any]) -> list[tuple[int, int]]:
    """Start and end of each ProfilerStep on the host."""
    found = [
        (ns(e["ts"]), ns(e["ts"]) + ns(e["dur"]))
        for e in trace["traceEvents"]
        if e.get("ph") == "X" and e.get("cat") == "user_annotation" and e["name"].startswith("ProfilerStep#")
    ]
    return sorted(found)


def truth(trace: dict[str, Any]) -> dict[str, Any]:
    """All numbers that can be compared with the product's report of this file; one device per key."""
    work = spans(trace)
    return {
        "devices": {str(d): of_device([s for s in work if s.device == d]) for d in sorted({s.device for s in work})},
        "kernels": _kernels(work),
        "steps_ns": [end - start for start, end in steps(trace)],
    }


def of_device(work: list[Span]) -> dict[str, int]:
    """The split of one device from the start of its first event to the end of its last one."""
    begin, end = min(s.start_ns for s in work), max(s.end_ns for s in work)
    return {"gpu_events": len(work), **split(work, begin, end)}


def split(work: Iterable[Span], begin_ns: int, end_ns: int) -> dict[str, int]:
    """The split of the window [begin, end): between neighbouring boundaries nothing changes."""
    changes: dict[int, Counter[str]] = {begin_ns: Counter(), end_ns: Counter()}
    for span in work:
        start, end = max(span.start_ns, begin_ns), min(span.end_ns, end_ns)
        if start < end:
            changes.setdefault(start, Counter())[span.of] += 1
            changes.setdefault(end, Counter())[span.of] -= 1
    lengths: Counter[frozenset[str]] = Counter()
    running: Counter[str] = Counter()
    moments = sorted(changes)
    for moment, following in pairwise(moments):
        running.update(changes[moment])
        lengths[frozenset(of for of, count in running.items() if count > 0)] += following - moment
    return _named(lengths, end_ns - begin_ns)


def _named(lengths: Counter[frozenset[str]], window_ns: int) -> dict[str, int]:
    def total(wanted: set[str], without: set[str]) -> int:
        return sum(ns for running, ns in lengths.items() if wanted <= running and not without & running)

    return {
        "window_ns": window_ns,
        "idle_ns": lengths[frozenset()],
        "compute_ns": total({COMPUTE}, set()),
        "communication_ns": total({COMMUNICATION}, set()),
        "exposed_communication_ns": total({COMMUNICATION}, {COMPUTE}),
        "overlapped_communication_ns": total({COMMUNICATION, COMPUTE}, set()),
        "memory_ns": total({MEMORY}, set()),
        "exposed_memory_ns": total({MEMORY}, {COMPUTE, COMMUNICATION}),
    }


def _kernels(work: list[Span]) -> dict[str, int]:
    kernels = [s for s in work if s.of != MEMORY]
    return {"count": len(kernels), "duration_ns": sum(s.end_ns - s.start_ns for s in kernels)}


def _class(event: dict[str, Any]) -> str:
    if event["cat"] in MEMORY_CATEGORIES:
        return MEMORY
    return COMMUNICATION if "nccl" in event["name"].lower() else COMPUTE


def ns(microseconds: Decimal | int) -> int:
    """Nanoseconds of a time in microseconds, exactly; a float64 would be inexact."""
    return int(Decimal(microseconds) * 1000)
