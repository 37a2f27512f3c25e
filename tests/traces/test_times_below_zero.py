"""A clock that began after the recording: times are below zero, and -1 must not mean "not known"."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from harness.traces import open_trace
from harness.traces.trace import Trace
from tests.synthetic import kineto, nsys

BASE = 1_700_000_000_000_000_000


def kineto_from(path: Path, first_ns: int, layout: str) -> Trace:
    return open_trace(kineto.kineto(path, kineto.gpu_step(first_ns), layout, footer={"baseTimeNanoseconds": BASE}))


def nsys_from(path: Path, first_ns: int) -> Trace:
    """Two steps, a launch a nanosecond before zero if `first_ns` is -5,001, and a range that never ends."""
    made = nsys.Nsys()
    for step in range(2):
        made.range(f"batch_{step}", first_ns + step * 10_000, 10_000)
    made.range("open", first_ns + 4_000, None, kind=60)
    made.call("cudaLaunchKernel_v7000", first_ns + 5_000, 500, correlation=21)
    made.kernel("void gemm<float>(float*)", first_ns + 6_000, 3_000, correlation=21)
    made.sampled(0, 50, first_ns + 7_000)
    return open_trace(made.saved(path))


def columns(trace: Trace) -> dict[str, Any]:
    """Every column; times are relative to the first time of the trace."""
    parts: dict[str, Any] = {
        "events": trace.events,
        "calls": trace.calls,
        "ranges": trace.ranges,
        "sent": trace.collectives,
    }
    first = min(int(part.start_ns.min()) for part in (trace.events, trace.calls, trace.ranges) if len(part))
    found = {}
    for name, part in parts.items():
        for column in fields(part):
            values = getattr(part, column.name)
            is_time = column.name.endswith("_ns")
            unknown = (values == -1) & is_time
            found[f"{name}.{column.name}"] = (values - first * (is_time & ~unknown)).tolist()
    return found


@pytest.mark.parametrize("first_ns", [-1_000_000, -2_002])
@pytest.mark.parametrize("layout", sorted(kineto.LAYOUTS))
def test_a_kineto_file_says_the_same_below_zero(tmp_path: Path, first_ns: int, layout: str) -> None:
    plain, below = (kineto_from(tmp_path / "t.json", first, layout) for first in (7_000, first_ns))
    assert columns(below) == columns(plain)
    assert below.ranges.start_ns.min() == 0 and below.identity.epoch_ns == BASE + first_ns


@pytest.mark.parametrize("first_ns", [-1_000_000, -5_001])
def test_an_nsys_export_says_the_same_below_zero(tmp_path: Path, first_ns: int) -> None:
    plain, below = (nsys_from(tmp_path / "t.sqlite", first) for first in (7_000, first_ns))
    assert (below.events.launch_ns.tolist(), below.metrics[0].time_ns.tolist()) == ([5_000], [7_000])
    assert below.ranges.is_open.tolist() == plain.ranges.is_open.tolist()
    assert below.ranges.start_ns.tolist() == [start - 7_000 for start in plain.ranges.start_ns.tolist()]
    assert below.identity.epoch_ns == BASE + first_ns


def test_times_from_zero_on_are_left_as_they_are(tmp_path: Path) -> None:
    trace = kineto_from(tmp_path / "t.json", 0, "torch 1.9")
    assert trace.ranges.start_ns.min() == 0 and trace.identity.epoch_ns == BASE
