"""Traces that were recorded now, without a GPU: operators stand in for kernels, gloo's spans are the communication."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from harness.traces import open_trace
from harness.traces.trace import Activity, RangeKind, Trace
from tests.traces.recorded import COLLECTIVES, ELEMENTS, STEPS, WORLD_SIZE


def spans(trace: Trace) -> list[tuple[str, int, int]]:
    e = trace.events
    return [
        (trace.names[n], s, t) for n, s, t in zip(e.name.tolist(), e.start_ns.tolist(), e.end_ns.tolist(), strict=True)
    ]


def innermost_ns(start: NDArray[np.int64], end: NDArray[np.int64], computes: NDArray[np.bool_]) -> int:
    """Time in which the innermost span computes, by brute force: instant after instant."""
    instants = np.unique(np.concatenate([start, end]))
    total = 0
    for begins, ends in zip(instants[:-1].tolist(), instants[1:].tolist(), strict=True):
        running = np.flatnonzero((start <= begins) & (end >= ends))
        if len(running) and computes[running[np.lexsort((end[running], -start[running]))[0]]]:
            total += ends - begins
    return total


def test_a_recorded_rank_says_who_it_is(recorded: list[Path]) -> None:
    for rank, path in enumerate(recorded):
        trace = open_trace(path)
        who = trace.identity
        assert (who.rank, who.world_size, who.backend, who.source) == (rank, WORLD_SIZE, "gloo", "kineto")
        assert who.epoch_ns is not None and trace.notes == []
        assert list(trace.groups.values()) == [list(range(WORLD_SIZE))]


def test_recorded_collectives_have_kind_size_and_group(recorded: list[Path]) -> None:
    trace = open_trace(recorded[0])
    c = trace.collectives
    kinds = [trace.names[i] for i in c.kind]
    assert Counter(kinds) == dict.fromkeys(COLLECTIVES, STEPS)
    size = {kind: set(c.bytes[np.array(kinds) == kind].tolist()) for kind in COLLECTIVES}
    one = 4 * ELEMENTS
    assert size["all_gather"] == size["reduce_scatter"] == {one * WORLD_SIZE}
    assert size["broadcast"] == size["all_to_all"] == {one}
    assert size["barrier"] == {0}
    assert size["all_reduce"] == {4 * (ELEMENTS * ELEMENTS + ELEMENTS)}
    assert c.group_size.tolist() == [WORLD_SIZE] * len(c)
    assert (trace.events.activity[c.event] == Activity.CPU_COLLECTIVE).all()
    assert (trace.events.launch_ns[c.event] > 0).all(), "each was issued by an operator"


def test_recorded_steps_and_ranges_are_there(recorded: list[Path]) -> None:
    trace = open_trace(recorded[1])
    names = Counter(trace.names[i] for i in trace.ranges.name)
    assert names["forward"] == names["backward"] == STEPS
    assert (trace.ranges.kind == RangeKind.STEP).sum() == STEPS
    assert not any(name.startswith("gloo:") for name in names)


def test_recorded_operators_cover_the_time_in_operators_once(recorded: list[Path]) -> None:
    """Against the JSON itself, thread by thread: no overlap, nothing lost, dtypes known."""
    trace = open_trace(recorded[0])
    e = trace.events
    records = json.loads(recorded[0].read_text())["traceEvents"]
    issues = ("c10d::", "record_param_comms")
    main = max(e.stream.tolist(), key=e.stream.tolist().count)
    own = (e.activity == Activity.CPU_OP) & (e.stream == main)
    assert own.sum() > 100
    assert (e.start_ns[own][1:] >= e.end_ns[own][:-1]).all(), "two operators at once on one thread"
    rows = [r for r in records if r.get("cat") == "cpu_op" and r["tid"] == main]
    start = np.array([round(r["ts"] * 1000) for r in rows])
    end = start + np.array([round(r["dur"] * 1000) for r in rows])
    computes = np.array([not r["name"].startswith(issues) for r in rows])
    measured = int((e.end_ns[own] - e.start_ns[own]).sum())
    expected = innermost_ns(start, end, computes)
    assert measured == pytest.approx(expected, abs=3 * len(rows)), "a few ns for each float"
    assert {trace.names[i] for i in e.dtype[own] if i >= 0} >= {"float32"}


def test_a_recorded_trace_packed_or_dumped_anew_is_the_same(recorded: list[Path], tmp_path: Path) -> None:
    first = open_trace(recorded[0])
    packed = tmp_path / "rank0.json.gz"
    packed.write_bytes(gzip.compress(recorded[0].read_bytes()))
    dumped = tmp_path / "rank0.json"
    dumped.write_text(json.dumps(json.loads(recorded[0].read_text())))
    for other in (open_trace(packed), open_trace(dumped)):
        assert spans(other) == spans(first)
        assert other.peak_memory_bytes == first.peak_memory_bytes != {}
