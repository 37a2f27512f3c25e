"""A Paraver trace of ours is strictly well-formed and keeps every nanosecond, name, size and node of its sources."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.analysis.process.idle import COMMUNICATION, MEMORY
from harness.analysis.process.intervals import lanes
from harness.analysis.process.kinds import classify, load_rules
from harness.common.errors import WorkError
from harness.export.objects import build_object_model
from harness.export.paraver import write_paraver
from harness.export.prv_labels import EventType, ThreadState, clean
from harness.measure.paths import measure_one as measure
from harness.traces import find_traces, open_trace
from harness.traces.trace import Activity, CopyKind, MetricSeries, RangeKind, Trace
from tests.export import strict_prv
from tests.real_traces import EACH_TOOL, real_trace
from tests.synthetic import kineto
from tests.synthetic.columns import event, trace

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


def written(traces: list[Trace], folder: Path, **more: object) -> strict_prv.Prv:
    return strict_prv.read(write_paraver(traces, folder / "trace", **more).prv)  # type: ignore[arg-type]


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
    ranges = sum(1 for burst in prv.bursts if EventType.NCCL_REGIONS <= burst[2] < EventType.API)
    assert ranges == sum(len(each.ranges.start_ns) for each in traces)


@pytest.mark.parametrize("name", ["kineto_a100_collective_args", "nsys_h100_2gpu_ab/before.sqlite"])
def test_the_time_of_each_kernel_is_the_summarys(name: str, tmp_path: Path) -> None:
    path = real_trace(name)
    prv = written([open_trace(found) for found in find_traces([path])], tmp_path)
    spent: dict[str, int] = defaultdict(int)
    for kind in (*KERNEL_TYPES, EventType.MEMORY):
        for label, time_ns in prv.time_by_label(kind).items():
            spent[label] += time_ns
    kernels = [
        kernel for kernel in measure([path], window="gpu").kernels if not kernel.kind.startswith(("copy", "memset"))
    ]
    assert len(kernels) > 5
    assert {clean(k.name): k.duration_ns for k in kernels} == {clean(k.name): spent[clean(k.name)] for k in kernels}


def test_all_reduce_time_of_the_a100_trace_is_what_nsys_says(tmp_path: Path) -> None:
    prv = written([open_trace(real_trace("nsys_a100_ddp_4gpu/rank0.sqlite.gz"))], tmp_path)
    spent = prv.time_by_label(EventType.NCCL)
    assert sum(value for label, value in spent.items() if "AllReduce" in label) == 292_789_300


def test_tasks_are_ranks_on_their_nodes_and_clocks_are_one(tmp_path: Path) -> None:
    late = trace([event("gemm", 500, 900)], rank=1, host="lrdn0002", epoch_ns=1000, clock="trace", pid=7)
    early = trace([event("gemm", 2000, 2100)], rank=0, host="lrdn0001", clock="unix", pid=7)
    prv = written([late, early], tmp_path)
    assert prv.names["TASK"] == ["rank 0 @ lrdn0001", "rank 1 @ lrdn0002"]
    assert prv.names["NODE"] == ["lrdn0001", "lrdn0002"] and prv.node_of_task == [1, 2]
    assert prv.cpus_per_node == [1, 1]
    assert sorted((task, begin, end) for task, _, _, _, begin, end in prv.bursts) == [(1, 500, 600), (2, 0, 400)]
    header = (tmp_path / "trace.prv").read_text().splitlines()[0]
    assert header == "#Paraver (02/01/2026 at 03:04):600_ns:2(1,1):1:2(1:1,1:2)"


def test_equal_pids_on_two_nodes_stay_two_tasks(tmp_path: Path) -> None:
    pair = [trace([event("gemm", 0, 10)], host=host, pid=4242) for host in ("a", "b")]
    assert len(written(pair, tmp_path).threads_of_task) == 2


def test_hosts_are_named_by_rank_where_the_trace_does_not(tmp_path: Path) -> None:
    pair = [trace([event("gemm", 0, 10)], rank=rank) for rank in (0, 1)]
    assert written(pair, tmp_path, hosts={0: "x", 1: "y"}).names["NODE"] == ["x", "y"]


def test_processes_of_one_report_are_tasks_ordered_by_the_rank_in_their_ranges(tmp_path: Path) -> None:
    events = [event("gemm", 0, 10, pid=1, device=1), event("gemm", 0, 12, pid=2, device=0)]
    ranges = [
        {"name": "epoch_0-rank_3", "start": 0, "end": 20, "pid": 1},
        {"name": "epoch_0-rank_2", "start": 0, "end": 20, "pid": 2},
    ]
    prv = written([trace(events, ranges, host="n")], tmp_path)
    assert prv.names["TASK"] == ["rank 2 @ n", "rank 3 @ n"]
    assert "CUDA-D0.S7" in prv.names["THREAD"][: prv.threads_of_task[0]]


def test_a_process_has_the_rank_that_its_report_knows_of_it(tmp_path: Path) -> None:
    events = [event("gemm", 0, 10, pid=1), event("gemm", 0, 12, pid=2, device=1)]
    prv = written([trace(events, host="n", ranks={1: 5, 2: 4})], tmp_path)
    assert prv.names["TASK"] == ["rank 4 @ n", "rank 5 @ n"]


def test_a_process_that_helps_the_only_rank_of_a_report_is_not_that_rank() -> None:
    events = [event("k", 1_000, 2_000, pid=1), event("decode", 1_500, 1_600, pid=2)]
    model = build_object_model([trace(events, host="n", rank=0, ranks={1: 0})])
    assert [task.label for task in model.tasks] == ["rank 0", "process 2"]


def test_a_collective_carries_its_kind_size_and_group(tmp_path: Path) -> None:
    events = [event("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 0, 50), event("ncclKernel_Broadcast", 60, 70)]
    calls = [{"event": 0, "kind": "all_reduce", "bytes": 4096, "group": "dp", "group_size": 8}]
    prv = written([trace(events, collectives=calls)], tmp_path)
    first, second = prv.extras
    assert prv.value_labels[EventType.COLLECTIVE][first[EventType.COLLECTIVE]] == "all_reduce"
    assert prv.value_labels[EventType.COLLECTIVE_GROUP][first[EventType.COLLECTIVE_GROUP]] == "dp"
    assert (first[EventType.COLLECTIVE_BYTES], first[EventType.COLLECTIVE_RANKS]) == (4096, 8)
    assert EventType.COLLECTIVE not in second
    assert [state for *_, state in prv.states] == [ThreadState.GROUP_COMMUNICATION] * 2


def test_copies_have_nsys2prvs_names_sizes_and_a_line_from_their_call(tmp_path: Path) -> None:
    copy = event("x", 30, 50, activity=Activity.MEMCPY, copy_kind=CopyKind.H2D, bytes=123, launch=5, launch_thread=9)
    kernel = event("gemm", 60, 70, launch=20, launch_thread=9, correlation=77)
    call = {"name": "cudaMemcpyAsync", "start": 5, "end": 10, "thread": 9}
    prv = written([trace([copy, kernel], calls=[call])], tmp_path)
    assert prv.time_by_label(EventType.MEMORY) == {"CUDA memcpy Host-to-Device": 20}
    lines = [(record[5], record[11], record[13], record[14]) for record in prv.comms]
    assert lines == [(0, 25, 123, 55002), (15, 55, 0, 55001)]
    assert {extra.get(EventType.MEMORY_BYTES) for extra in prv.extras} >= {123}
    assert {extra.get(EventType.CORRELATION) for extra in prv.extras} >= {77}


def test_on_a_cpu_trace_operators_are_kernels_and_gloo_is_nccl_on_their_own_threads(tmp_path: Path) -> None:
    events = [
        event("aten::mm", 0, 100, activity=Activity.CPU_OP, stream=11),
        event("gloo:all_reduce", 50, 200, activity=Activity.CPU_COLLECTIVE, stream=12),
    ]
    events[0] |= {"launch": 0, "launch_thread": 11}
    events[1] |= {"launch": 20, "launch_thread": 11}
    prv = written([trace(events, [{"name": "forward", "start": 0, "end": 150, "thread": 11}])], tmp_path)
    assert [(line[5], line[11]) for line in prv.comms] == [(20, 50)], "an operator launches nothing on its thread"
    assert prv.names["THREAD"] == ["THREAD 1.1.1", "THREAD 1.1.2"]
    assert prv.time_by_label(EventType.KERNEL) == {"aten::mm": 100}
    assert prv.time_by_label(EventType.NCCL) == {"gloo:all_reduce": 150}
    assert prv.time_by_label(EventType.RANGES) == {"forward": 150}


def test_callers_whose_time_is_all_their_callees_stay_well_formed(tmp_path: Path) -> None:
    records = [
        kineto.operator("aten::zero_", 0, 40),
        kineto.operator("aten::fill_", 0, 40),
        kineto.operator("aten::t", 40, 0),
        kineto.operator("aten::mm", 40, 20),
    ]
    header = kineto.HEADER | {"deviceProperties": []}
    prv = written([open_trace(kineto.kineto(tmp_path / "cpu.json", records, header=header))], tmp_path)
    assert prv.time_by_label(EventType.KERNEL) == {
        "aten::zero_": 0, "aten::fill_": 40, "aten::t": 0, "aten::mm": 20,
    }  # fmt: skip
    assert [end - begin for _, _, begin, end, _ in prv.states] == [40, 20]


def test_nested_ranges_and_points_keep_their_durations_at_equal_times(tmp_path: Path) -> None:
    ranges = [
        {"name": "outer", "start": 0, "end": 100},
        {"name": "first", "start": 0, "end": 40},
        {"name": "point", "start": 40, "end": 40},
        {"name": "second", "start": 40, "end": 100},
        {"name": "other domain", "start": 10, "end": 50, "domain": "DALI"},
        {"name": "ncclAllReduce", "start": 12, "end": 17, "domain": "NCCL"},
        {"name": "free", "start": 20, "end": 60, "kind": RangeKind.START_END},
        {"name": "free too", "start": 30, "end": 90, "kind": RangeKind.START_END},
    ]
    prv = written([trace([event("gemm", 0, 1)], ranges)], tmp_path)
    assert prv.time_by_label(EventType.RANGES) == {"outer": 100, "first": 40, "point": 0, "second": 60}
    assert prv.time_by_label(EventType.RANGES + 100) == {"other domain": 40}
    assert prv.type_labels[EventType.RANGES + 100] == "NVTX pushpop ranges DALI domain"
    assert prv.time_by_label(EventType.NCCL_REGIONS) == {"ncclAllReduce": 5}
    assert prv.time_by_label(EventType.START_END) == {"free": 40, "free too": 60}


def test_counters_go_to_a_row_of_their_device(tmp_path: Path) -> None:
    counter = MetricSeries("SM Active [%]", 0, np.array([0, 10, 999], np.int64), np.array([1.4, 60.0, 5.0]))
    prv = written([trace([event("gemm", 0, 20)], metrics=[counter])], tmp_path)
    assert prv.names["THREAD"][-1] == "Metrics GPU0"
    assert prv.events_by_type[EventType.METRICS] == 2


def test_names_with_line_breaks_and_blanks_are_one_label(tmp_path: Path) -> None:
    prv = written([trace([event("void\n  gemm<float>\t()", 0, 5), event("", 6, 7)])], tmp_path)
    assert prv.time_by_label(EventType.KERNEL) == {"void gemm<float> ()": 5, "unnamed": 1}


def test_nothing_to_write_is_an_error_and_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(WorkError, match="nothing to write"):
        write_paraver([trace()], tmp_path / "trace")
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(WorkError, match="cannot be written: No such file or directory"):
        write_paraver([trace([event("gemm", 0, 5)])], tmp_path / "no" / "trace")


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


@settings(deadline=None)
@given(INTERVALS)
def test_in_a_lane_nothing_overlaps_and_no_lane_is_needless(intervals: list[tuple[int, int, int, str]]) -> None:
    start = np.array([s for s, *_ in intervals], np.int64)
    end = start + np.array([length for _, length, *_ in intervals], np.int64)
    group = np.array([stream for *_, stream, _ in intervals], np.int64)
    lane = lanes(start, end, group)
    for key in {*zip(group.tolist(), lane.tolist(), strict=True)}:
        here = np.flatnonzero((group == key[0]) & (lane == key[1]))
        here = here[np.lexsort((end[here], start[here]))]
        assert np.all(start[here][1:] >= end[here][:-1])
    for stream in set(group.tolist()):
        of = group == stream
        at_once = max(int(np.sum((start[of] <= t) & (t < end[of]))) for t in range(0, 81))
        assert lane[of].max() + 1 <= max(at_once, 1) + int(np.any(start[of] == end[of]))


def test_communication_is_what_the_analysis_calls_so(tmp_path: Path) -> None:
    made = trace([event("ncclDevKernel_SendRecv", 0, 5), event("void deep_ep::internode::dispatch", 6, 9)])
    classes = classify(made.events, made.names, load_rules()).event_class
    assert set(classes.tolist()) == {COMMUNICATION}
    assert sum(written([made], tmp_path).time_by_label(EventType.NCCL).values()) == 8
