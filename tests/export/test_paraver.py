"""A Paraver trace of ours is strictly well-formed and keeps every nanosecond, name, size and node of its sources."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.analysis.process.idle import MEMORY
from harness.analysis.process.kinds import classify, load_rules
from harness.common.errors import WorkError
from harness.export.paraver import write_paraver
from harness.export.prv_blocks import RecordBlock
from harness.export.prv_blocks import lines as lines_of
from harness.export.prv_labels import EventType, ThreadState, clean
from harness.traces import find_traces, open_trace
from harness.traces.trace import Activity, CopyKind, MetricSeries, RangeKind, Trace
from tests.export import strict_prv
from tests.real_traces import EACH_TOOL, real_trace
from tests.synthetic.columns import event, trace
from tests.waiting import limit_s

PTD = shutil.which("ptd", path=str(Path(sys.executable).parent))
KERNEL_TYPES = (EventType.KERNEL, EventType.NCCL)


def time_by_kernel(traces: list[Trace]) -> dict[str, int]:
    """Summed duration of the compute and communication events by name, from the traces."""
    total: dict[str, int] = defaultdict(int)
    for each in traces:
        events = each.events
        chosen = classify(events, each.names, load_rules()).event_class != MEMORY
        spent = np.bincount(events.name[chosen], (events.end_ns - events.start_ns)[chosen], len(each.names))
        for name in np.unique(events.name[chosen]).tolist():
            total[clean(each.names[name])] += int(spent[name])
    return dict(total)


def written(traces: Sequence[Trace], folder: Path, hosts: dict[int, str] | None = None) -> strict_prv.Prv:
    return strict_prv.read(write_paraver(traces, folder / "trace", hosts).prv)


@pytest.mark.parametrize("name", EACH_TOOL)
def test_a_real_trace_keeps_the_time_of_every_kernel(name: str, tmp_path: Path) -> None:
    traces = [open_trace(path) for path in find_traces([real_trace(name)])]
    prv = written(traces, tmp_path)
    both: dict[str, int] = defaultdict(int)
    for kind in KERNEL_TYPES:
        for label, spent in prv.time_by_label(kind).items():
            both[label] += spent
    assert dict(both) == time_by_kernel(traces)
    assert prv.events_by_type[EventType.API] == 2 * sum(len(each.calls.start_ns) for each in traces)
    if PTD is not None:  # the trace tools of BSC, which makes Paraver; there is not a wheel for each machine
        argv = [PTD, "comprovar", "--exhaustive", str(tmp_path / "trace.prv")]
        said = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=limit_s())
        assert (said.stdout, said.stderr) == ("", "")
    ranges = sum(1 for burst in prv.bursts if EventType.NCCL_REGIONS <= burst[2] < EventType.API)
    assert ranges == sum(len(each.ranges.start_ns) for each in traces)


def told(prv: strict_prv.Prv) -> dict[str, Any]:
    """What the three files say, with labels in place of numbers."""
    labels = prv.value_labels
    named = [{kind: labels.get(kind, {}).get(value, value) for kind, value in extra.items()} for extra in prv.extras]
    return {
        "tasks": prv.names["TASK"],
        "nodes": prv.names["NODE"],
        "threads": prv.names["THREAD"],
        "placed": (prv.node_of_task, prv.cpus_per_node),
        "bursts": sorted((task, begin, end) for task, _, _, _, begin, end in prv.bursts),
        "times": {kind: found for kind in prv.type_labels if (found := prv.time_by_label(kind))},
        "lines": [(record[5], record[11], record[13], record[14]) for record in prv.comms],
        "states": [(state, end - begin) for _, _, begin, end, state in prv.states],
        "named": named,
    }


class Drawing(NamedTuple):
    """Traces, and what their files say; hosts: of ranks whose traces do not name them."""

    traces: Sequence[Trace]
    told: dict[str, Any]
    hosts: dict[int, str] | None = None


def piece(name: str, start: int, end: int, number: int) -> dict[str, Any]:
    """A piece of an operator."""
    return event(name, start, end, activity=Activity.CPU_OP, stream=100, correlation=number)


REDUCES = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
SENT = {"event": 0, "kind": "all_reduce", "bytes": 4096, "group": "dp", "group_size": 8}
OF_TWO = [event("gemm", 0, 10, pid=1, device=1), event("gemm", 0, 12, pid=2, device=0)]
COPY = event("x", 30, 50, activity=Activity.MEMCPY, copy_kind=CopyKind.H2D, bytes=123, launch=5, launch_thread=9)
COUNTER = MetricSeries("SM Active [%]", 0, np.array([0, 10, 999], np.int64), np.array([1.4, 60.0, 5.0]))
NESTED = [
    {"name": "outer", "start": 0, "end": 100}, {"name": "first", "start": 0, "end": 40},
    {"name": "point", "start": 40, "end": 40}, {"name": "second", "start": 40, "end": 100},
    {"name": "other domain", "start": 10, "end": 50, "domain": "DALI"},
    {"name": "ncclAllReduce", "start": 12, "end": 17, "domain": "NCCL"},
    {"name": "free", "start": 20, "end": 60, "kind": RangeKind.START_END},
    {"name": "free too", "start": 30, "end": 90, "kind": RangeKind.START_END},
]  # fmt: skip
DRAWINGS = {
    "tasks are ranks on their nodes, and clocks are one": Drawing(
        [trace([event("gemm", 500, 900)], rank=1, host="lrdn0002", epoch_ns=1000, clock="trace", pid=7),
         trace([event("gemm", 2000, 2100)], rank=0, host="lrdn0001", clock="unix", pid=7)],
        {"tasks": ["rank 0 @ lrdn0001", "rank 1 @ lrdn0002"], "nodes": ["lrdn0001", "lrdn0002"],
         "placed": ([1, 2], [1, 1]), "bursts": [(1, 500, 600), (2, 0, 400)]},
    ),
    "equal pids on two nodes stay two tasks": Drawing(
        [trace([event("gemm", 0, 10)], host=host, pid=42) for host in "ab"],
        {"tasks": ["process 42 @ a", "process 42 @ b"]},
    ),
    "hosts are named by rank where the trace does not": Drawing(
        [trace([event("gemm", 0, 10)], rank=rank) for rank in (0, 1)], {"nodes": ["x", "y"]}, {0: "x", 1: "y"}
    ),
    "processes of one report are tasks in the order of the rank in their ranges": Drawing(
        [trace(OF_TWO, [{"name": f"epoch_0-rank_{4 - pid}", "start": 0, "end": 20, "pid": pid} for pid in (1, 2)],
               host="n")],
        {"tasks": ["rank 2 @ n", "rank 3 @ n"],
         "threads": ["THREAD 1.1.1", "CUDA-D0.S7", "THREAD 1.2.1", "CUDA-D1.S7"]},
    ),
    "a process has the rank that its report knows of it": Drawing(
        [trace(OF_TWO, host="n", ranks={1: 5, 2: 4})], {"tasks": ["rank 4 @ n", "rank 5 @ n"]}
    ),
    "a process that helps the only rank of a report is not that rank": Drawing(
        [trace(OF_TWO, host="n", rank=0, ranks={1: 0})], {"tasks": ["rank 0 @ n", "process 2 @ n"]}
    ),
    "a collective carries its size": Drawing(
        [trace([event(REDUCES, 0, 50), event("ncclKernel_Broadcast", 60, 70)], collectives=[SENT])],
        {"named": [
            {EventType.NCCL: REDUCES, EventType.CORRELATION: 0, EventType.COLLECTIVE_BYTES: 4096},
            {EventType.NCCL: "ncclKernel_Broadcast", EventType.CORRELATION: 0}],
         "states": [(ThreadState.GROUP_COMMUNICATION, 50), (ThreadState.GROUP_COMMUNICATION, 10)]},
    ),
    "copies have nsys2prv's names, sizes and a line from their call": Drawing(
        [trace([COPY, event("gemm", 60, 70, launch=20, launch_thread=9, correlation=77)],
               calls=[{"name": "cudaMemcpyAsync", "start": 5, "end": 10, "thread": 9}])],
        {"lines": [(0, 25, 123, 55002), (15, 55, 0, 55001)],
         "named": [
             {EventType.API: "cudaMemcpyAsync", EventType.CORRELATION: 0},
             {EventType.MEMORY: "CUDA memcpy Host-to-Device", EventType.MEMORY_BYTES: 123, EventType.CORRELATION: 0},
             {EventType.KERNEL: "gemm", EventType.CORRELATION: 77}]},
    ),
    "on a CPU operators are kernels and gloo is NCCL, on their own threads": Drawing(
        [trace([event("aten::mm", 0, 100, activity=Activity.CPU_OP, stream=11, launch=0, launch_thread=11),
                event("gloo:all_reduce", 50, 200, activity=Activity.CPU_COLLECTIVE, stream=12, launch=20,
                      launch_thread=11)], [{"name": "forward", "start": 0, "end": 150, "thread": 11}])],
        {"lines": [(20, 50, 0, 55001)],  # an operator launches nothing on its thread
         "threads": ["THREAD 1.1.1", "THREAD 1.1.2"],
         "times": {EventType.KERNEL: {"aten::mm": 100}, EventType.NCCL: {"gloo:all_reduce": 150},
                   EventType.RANGES: {"forward": 150}}},
    ),
    "callers whose time is all their callees' are well-formed": Drawing(
        [trace([piece("aten::zero_", 0, 0, 0), piece("aten::fill_", 0, 40, 1), piece("aten::t", 40, 40, 2),
                piece("aten::mm", 40, 60, 3)])],
        {"bursts": [(1, 0, 0), (1, 0, 40), (1, 40, 40), (1, 40, 60)],
         "states": [(ThreadState.RUNNING, 40), (ThreadState.RUNNING, 20)]},
    ),
    "nested ranges and points keep their durations at equal times": Drawing(
        [trace([event("gemm", 0, 1)], NESTED)],
        {"times": {
            EventType.KERNEL: {"gemm": 1}, EventType.NCCL_REGIONS: {"ncclAllReduce": 5},
            EventType.START_END: {"free": 40, "free too": 60},
            EventType.RANGES: {"outer": 100, "first": 40, "point": 0, "second": 60},
            EventType.RANGES + 100: {"other domain": 40}}},
    ),
    "counters go to a row of their device": Drawing(
        [trace([event("gemm", 0, 20)], metrics=[COUNTER])], {"threads": ["CUDA-D0.S7", "Metrics GPU0"]}
    ),
    "names with line breaks and blanks are one label": Drawing(
        [trace([event("void\n  gemm<float>\t()", 0, 5), event("", 6, 7)])],
        {"times": {EventType.KERNEL: {"void gemm<float> ()": 5, "unnamed": 1}}},
    ),
    "communication is what the analysis calls so": Drawing(
        [trace([event("ncclDevKernel_SendRecv", 0, 5), event("void deep_ep::internode::dispatch", 6, 9)])],
        {"times": {EventType.NCCL: {"ncclDevKernel_SendRecv": 5, "void deep_ep::internode::dispatch": 3}}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DRAWINGS)
def test_a_trace_of_paraver_says(name: str, tmp_path: Path) -> None:
    traces, expected, hosts = DRAWINGS[name]
    found = told(written(traces, tmp_path, hosts))
    assert {part: found[part] for part in expected} == expected


def test_nothing_to_write_is_an_error_and_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(WorkError, match="nothing to write"):
        write_paraver([trace()], tmp_path / "trace")
    assert not list(tmp_path.iterdir())


INTERVALS = st.lists(
    st.tuples(
        st.integers(0, 60), st.integers(0, 20), st.integers(7, 8), st.sampled_from(["gemm", "ncclKernel_AllReduce"])
    ),
    min_size=1,
    max_size=40,
)


@settings(deadline=None, max_examples=60)
@given(INTERVALS)
def test_whatever_overlaps_on_a_stream_no_time_is_lost(
    tmp_path_factory: pytest.TempPathFactory, intervals: list[tuple[int, int, int, str]]
) -> None:
    made = trace([event(name, start, start + length, stream=stream) for start, length, stream, name in intervals])
    prv = written([made], tmp_path_factory.mktemp("prv"))
    spent = {**prv.time_by_label(EventType.KERNEL), **prv.time_by_label(EventType.NCCL)}
    assert spent == time_by_kernel([made])


NUMBERS = st.lists(st.one_of(st.integers(0, 12), st.integers(0, 2**60)), min_size=1, max_size=30)


@settings(deadline=None)  # no timed tests: this machine may be busy
@given(NUMBERS, NUMBERS, st.integers(1, 7))
def test_blocks_of_any_shape_are_merged_in_time_order_with_the_digits_of_str(
    left: list[int], right: list[int], chunk: int
) -> None:
    left, right = [value >> 5 for value in left], [value >> 5 for value in right]
    a, b = np.array(left, np.int64), np.array(right, np.int64)
    blocks = [
        RecordBlock(a, np.full(len(a), 3), [b"2:", a, b"\n"]),
        RecordBlock(b, np.full(len(b), 0), [b"1:", b, b":end:", b * 2, b"\n"]),
    ]
    wanted = sorted(
        [(value, 3, 0, i, f"2:{value}\n") for i, value in enumerate(left)]
        + [(value, 0, 1, i, f"1:{value}:end:{value * 2}\n") for i, value in enumerate(right)]
    )
    got = b"".join(lines_of(blocks, chunk)).decode()
    assert got == "".join(line for *_, line in wanted)
