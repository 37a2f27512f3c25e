"""The content of an nsys export: kernels, launches, ranges, collectives, counters; with any table or column missing."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from harness.traces import open_trace
from harness.traces.trace import Activity, CopyKind, RangeKind, Trace
from tests.synthetic import nsys
from tests.synthetic.nsys import Nsys


def read(tmp_path: Path, made: Nsys) -> Trace:
    return open_trace(made.saved(tmp_path / "t.sqlite"))


def event_names(trace: Trace) -> list[str]:
    return [trace.names[i] for i in trace.events.name]


def range_names(trace: Trace) -> list[str]:
    return [trace.names[i] for i in trace.ranges.name]


def test_a_step_reads_as_it_was_made(tmp_path: Path) -> None:
    trace = read(tmp_path, nsys.nsys_step())
    events = trace.events
    assert event_names(trace) == ["void gemm<float>(float*)", "Memcpy HtoD", "Memset", "void softmax<float>(float*)"]
    assert events.start_ns.tolist() == [10_000, 31_000, 36_000, 40_000]
    assert events.end_ns.tolist() == [30_000, 35_000, 36_500, 40_001]
    assert events.activity.tolist() == [Activity.KERNEL, Activity.MEMCPY, Activity.MEMSET, Activity.KERNEL]
    assert events.launch_ns.tolist() == [3_000, -1, -1, -1]
    assert events.bytes.tolist() == [-1, 64, 32, -1]
    assert events.host_memory.tolist() == [0, 1, 0, 0]
    assert [trace.names[i] for i in trace.calls.name] == ["cudaLaunchKernel", "cudaMemcpyAsync"]
    assert range_names(trace) == ["batch_0", "forward"]
    who = trace.identity
    assert (who.source, who.host, who.pid, who.tool_version) == ("nsys", "lrdn0042", 9, "2024.6.1.90")
    assert (who.epoch_ns, who.device_names) == (1_700_000_000_000_000_000, {0: "NVIDIA A100"})


@pytest.mark.parametrize("table", [t for t in nsys.SCHEMA if t != "StringIds"])
def test_every_table_is_optional(tmp_path: Path, table: str) -> None:
    made = nsys.nsys_step()
    made._without_tables = (table,)
    trace = read(tmp_path, made)
    assert ("void gemm<float>(float*)" in event_names(trace)) == (table != "CUPTI_ACTIVITY_KIND_KERNEL")
    assert ("forward" in range_names(trace)) == (table != "NVTX_EVENTS")


COLUMNS = sorted(
    {c.split()[0] for columns in nsys.SCHEMA.values() for c in columns.split(", ")} - {"start", "end", "id"}
)


@pytest.mark.parametrize("column", COLUMNS)
def test_every_other_column_is_optional(tmp_path: Path, column: str) -> None:
    made = nsys.nsys_step()
    made._without_columns = (column,)
    trace = read(tmp_path, made)
    assert trace.events.start_ns.tolist() == [10_000, 31_000, 36_000, 40_000]


def test_without_kernels_there_are_still_the_ranges(tmp_path: Path) -> None:
    made = Nsys()
    made.range("batch_0", 1_000, 90_000)
    trace = read(tmp_path, made)
    assert len(trace.events) == 0 and range_names(trace) == ["batch_0"]
    assert trace.notes == []


def test_devices_are_sorted_and_every_one_is_there(tmp_path: Path) -> None:
    made = Nsys()
    for start in (5_000, 1_000, 3_000):
        for device in (1, 0):
            made.kernel(f"k{start} on {device}", start, 10, device=device)
    trace = read(tmp_path, made)
    assert trace.events.device.tolist() == [0, 0, 0, 1, 1, 1]
    assert trace.events.start_ns.tolist() == [1_000, 3_000, 5_000] * 2


def test_two_processes_have_correlations_of_their_own(tmp_path: Path) -> None:
    made = Nsys()
    for pid, start in ((9, 1_000), (10, 2_000)):
        made.call("cudaLaunchKernel_v7000", start, 50, correlation=7, pid=pid, tid=pid)
        made.kernel(f"of {pid}", 5_000 + start, 10, pid=pid, device=pid - 9, correlation=7)
    trace = read(tmp_path, made)
    assert event_names(trace) == ["of 9", "of 10"]
    assert trace.events.launch_ns.tolist() == [1_000, 2_000]
    assert trace.events.launch_thread.tolist() == [9, 10]
    assert trace.identity.pid is None


def test_where_no_process_is_named_there_is_one(tmp_path: Path) -> None:
    made = nsys.nsys_step()
    made._without_columns = ("globalPid",)
    assert read(tmp_path, made).events.launch_ns.tolist() == [3_000, -1, -1, -1]


@pytest.mark.parametrize("spread", [1, 10**8])
def test_launches_are_found_however_sparse_the_correlations(tmp_path: Path, spread: int) -> None:
    made = Nsys()
    for i in range(20):
        made.call("cudaLaunchKernel_v7000", 100 + i, 1, correlation=(i * 7 % 20 + 1) * spread)
        made.kernel("k", 1_000 + 10 * i, 5, correlation=(i + 1) * spread)
    launch_of = {(i * 7 % 20) + 1: 100 + i for i in range(20)}
    assert read(tmp_path, made).events.launch_ns.tolist() == [launch_of[i + 1] for i in range(20)]


@pytest.mark.parametrize(
    ("kind", "source", "target", "expected"),
    [(1, 0, 2, (CopyKind.H2D, 1)), (1, 1, 2, (CopyKind.H2D, 2)), (2, 2, 0, (CopyKind.D2H, 1)),
     (2, 2, 1, (CopyKind.D2H, 2)), (8, 2, 2, (CopyKind.D2D, 0)), (10, 2, 2, (CopyKind.P2P, 0)),
     (11, 4, 2, (CopyKind.H2D, 3)), (0, 0, 0, (CopyKind.UNKNOWN, 0))],
)  # fmt: skip
def test_a_copy_has_direction_and_host_memory(
    tmp_path: Path, kind: int, source: int, target: int, expected: tuple[int, int]
) -> None:
    made = Nsys()
    made.copy(1_000, 10, kind=kind, source=source, target=target)
    events = read(tmp_path, made).events
    assert (events.copy_kind[0], events.host_memory[0]) == expected


def test_a_whole_cuda_graph_is_one_kernel(tmp_path: Path) -> None:
    made = Nsys()
    made.add(
        "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
        start=5,
        end=9,
        deviceId=0,
        streamId=7,
        globalPid=nsys.global_pid(9),
        graphId=3,
    )
    assert event_names(read(tmp_path, made)) == ["CUDA graph 3"]


def test_ranges_have_texts_domains_kinds_and_ends(tmp_path: Path) -> None:
    made = Nsys()
    made.kernel("k", 100, 900)
    made.range("NCCL", 0, None, kind=75, domain=3)
    made.range("own text", 10, 50)
    made.range(None, 20, 5, registered="registered text", domain=3)
    made.range("start/end", 30, 500, kind=60)
    made.range("still open", 40, None)
    made.range("a mark", 45, None, kind=34)
    trace = read(tmp_path, made)
    assert range_names(trace) == ["own text", "registered text", "start/end", "still open"]
    assert trace.ranges.kind.tolist() == [
        RangeKind.PUSH_POP,
        RangeKind.PUSH_POP,
        RangeKind.START_END,
        RangeKind.PUSH_POP,
    ]
    assert trace.ranges.end_ns.tolist() == [60, 25, 530, 1_000]
    assert trace.ranges.is_open.tolist() == [0, 0, 0, 1]
    assert [trace.names[i] if i >= 0 else None for i in trace.ranges.domain] == [None, "NCCL", None, None]
    assert trace.notes == ["1 NVTX ranges never ended; they are cut off at the last event"]


ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"


def collectives(trace: Trace) -> list[tuple[str, int, str | None, str | None, int]]:
    c = trace.collectives
    text = [[trace.names[i] if i >= 0 else None for i in column] for column in (c.dtype, c.group)]
    kinds = [trace.names[i] for i in c.kind]
    return list(zip(kinds, c.bytes.tolist(), *text, c.group_size.tolist(), strict=True))


def launched(made: Nsys, name: str, at: int, correlation: int) -> None:
    made.call("cudaLaunchKernelExC_v11060", at, 2, correlation=correlation)
    made.kernel(name, at + 1_000, 50, stream=20, correlation=correlation)


def payload(size: int, group: int = 17) -> dict[str, int]:
    return {"NCCL communicator ID": group, "Message size [bytes]": size}


def test_a_collective_has_the_payload_of_the_call_that_launched_it(tmp_path: Path) -> None:
    made = Nsys()
    made.range("ncclCommInitRank", 0, 5, payload={"NCCL communicator ID": 17, "No. of ranks": 8, "Rank": 5})
    made.range(None, 100, 20, registered="ncclAllReduce", payload=payload(1 << 24))
    launched(made, ALL_REDUCE, 110, 1)
    trace = read(tmp_path, made)
    assert collectives(trace) == [("all_reduce", 1 << 24, "bfloat16", "17", 8)]
    assert (trace.identity.rank, trace.identity.world_size, trace.identity.backend) == (5, 8, "nccl")


def joined(made: Nsys, pid: int, group: str, size: int, rank: int) -> None:
    communicator = {"NCCL communicator ID": group, "No. of ranks": size, "Rank": rank}
    made.range("ncclCommInitRank", 1, 1, pid=pid, tid=pid, payload=communicator)


def world(tmp_path: Path, made: Nsys) -> tuple[int | None, dict[int, int]]:
    identity = read(tmp_path, made).identity
    return identity.world_size, identity.ranks


def test_the_largest_communicator_is_the_world_where_all_are_in_it(tmp_path: Path) -> None:
    made = Nsys()
    for pid, rank in ((50, 4), (51, 5)):
        joined(made, pid, "all", 8, rank)
        joined(made, pid, "pair", 2, rank - 4)
    assert world(tmp_path, made) == (8, {50: 4, 51: 5})
    for pid, rank in ((50, 4), (51, 5)):
        joined(made, pid, "all again", 8, rank)
    assert world(tmp_path, made) == (8, {50: 4, 51: 5}), "a second communicator of the same ranks is no doubt"


def test_without_a_communicator_of_all_no_other_is_taken_for_it(tmp_path: Path) -> None:
    """Tensor by data parallelism, 2 × 2."""
    made = Nsys()
    for rank in range(4):
        joined(made, 50 + rank, f"tensor {rank // 2}", 2, rank % 2)
        joined(made, 50 + rank, f"data {rank % 2}", 2, rank // 2)
    assert world(tmp_path, made) == (None, {})


def test_a_communicator_is_not_the_world_of_a_process_that_says_another_rank(tmp_path: Path) -> None:
    made = Nsys()
    joined(made, 50, "data", 4, 2)
    made.range("epoch_0-rank_5", 100, 50, pid=50, tid=50)
    trace = read(tmp_path, made)
    assert (trace.identity.rank, trace.identity.world_size) == (5, None)


@pytest.mark.parametrize(
    ("call", "kernel", "kind", "size"),
    [
        ("ncclAllGather", "ncclDevKernel_AllGather_RING_LL", "all_gather", 800),
        ("ncclReduceScatter", "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL", "reduce_scatter", 800),
        ("ncclAlltoAll", "ncclDevKernel_SendRecv", "all_to_all", 800),
        ("ncclAllReduce", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "all_reduce", 100),
        ("ncclBroadcast", "ncclDevKernel_Broadcast_RING_LL", "broadcast", 100),
    ],
)
def test_where_nccl_records_one_ranks_part_the_message_is_all_parts(
    tmp_path: Path, call: str, kernel: str, kind: str, size: int
) -> None:
    made = Nsys()
    made.range(call, 100, 20, payload=payload(100))
    launched(made, kernel, 110, 1)
    unknown = -1 if size == 800 else size
    assert [c[:2] for c in collectives(read(tmp_path, made))] == [(kind, unknown)], "of how many is not known"
    made.range("ncclCommInitRank", 0, 5, payload={"NCCL communicator ID": 17, "No. of ranks": 8, "Rank": 5})
    assert [c[:2] for c in collectives(read(tmp_path, made))] == [(kind, size)]


def test_parts_that_travel_in_one_kernel_are_all_ranks_too(tmp_path: Path) -> None:
    made = Nsys()
    made.range("ncclCommInitRank", 0, 5, payload={"NCCL communicator ID": 17, "No. of ranks": 8, "Rank": 5})
    made.range("ncclGroupStart", 100, 2)
    made.range("ncclAllGather", 110, 5, payload=payload(10))
    made.range("ncclAllGather", 120, 5, payload=payload(20))
    made.range("ncclGroupEnd", 130, 30)
    launched(made, "ncclDevKernel_AllGather_RING_LL", 135, 1)
    assert [c[:2] for c in collectives(read(tmp_path, made))] == [("all_gather", 240)]


@pytest.mark.parametrize(("included", "says"), [("false", 1), ("true", 0), (None, 0)])
def test_an_export_without_nccls_sizes_says_how_to_have_them(tmp_path: Path, included: str | None, says: int) -> None:
    made = Nsys()
    if included is not None:
        made.add("META_DATA_EXPORT", name="EXPORT_PARAM_INCLUDE_JSON", value=included)
    made.kernel("k", 1, 2)
    assert read(tmp_path, made).notes == [], "without NCCL there is nothing to miss"
    made.range("ncclAllReduce", 100, 20)
    notes = read(tmp_path, made).notes
    assert notes == ["message sizes were not exported (export with --include-json=true)"] * says
    made.range("ncclAllReduce", 200, 20, payload=payload(10))
    assert read(tmp_path, made).notes == []


def test_calls_of_a_group_launch_at_its_end(tmp_path: Path) -> None:
    made = Nsys()
    made.range("ncclGroupStart", 100, 2)
    made.range("ncclAllReduce", 110, 5, payload=payload(100))
    made.range("ncclAllReduce", 120, 5, payload=payload(200))
    made.range("ncclGroupEnd", 130, 30)
    launched(made, ALL_REDUCE, 135, 1)
    assert collectives(read(tmp_path, made)) == [("all_reduce", 300, "bfloat16", "17", -1)]
    launched(made, ALL_REDUCE, 145, 2)
    assert [c[1] for c in collectives(read(tmp_path, made))] == [100, 200]


def test_sends_and_receives_in_one_kernel_count_once(tmp_path: Path) -> None:
    made = Nsys()
    made.range("ncclGroupStart", 100, 2)
    for i, (name, size) in enumerate([("ncclSend", 10), ("ncclRecv", 10), ("ncclSend", 30), ("ncclRecv", 5)]):
        made.range(name, 110 + i, 1, payload=payload(size))
    made.range("ncclGroupEnd", 130, 30)
    launched(made, SEND_RECV, 135, 1)
    assert collectives(read(tmp_path, made)) == [("send_recv", 40, None, "17", -1)]
    made.range("nccl:all_to_all, op_id = 4", 90, 200)
    assert collectives(read(tmp_path, made))[0][0] == "all_to_all"


def test_a_kernel_without_its_best_name_has_the_next(tmp_path: Path) -> None:
    made = Nsys()
    made.kernel("void gemm<float>()", 100, 10, short="gemm")
    made.kernel(None, 200, 10, short=ALL_REDUCE)
    made.kernel(None, 300, 10, mangled="_Z4gemmv")
    trace = read(tmp_path, made)
    assert event_names(trace) == ["void gemm<float>()", ALL_REDUCE, "_Z4gemmv"]
    assert [c[0] for c in collectives(trace)] == ["all_reduce"]
    assert trace.notes == []
    made.kernel(None, 400, 1)
    assert read(tmp_path, made).notes == ["1 kernels (3% of kernel time) have no name, "
        "so communication among them is not seen"]  # fmt: skip


def test_without_any_strings_no_kernel_has_a_name_and_the_trace_says_so(tmp_path: Path) -> None:
    made = nsys.nsys_step()
    made._without_tables = ("StringIds",)
    trace = read(tmp_path, made)
    assert set(event_names(trace)) == {"[unnamed kernel]", "Memcpy HtoD", "Memset"}
    assert "2 kernels (100% of kernel time) have no name" in trace.notes[0]


def test_half_a_character_in_one_name_leaves_all_others(tmp_path: Path) -> None:
    path = nsys.nsys_step().saved(tmp_path / "t.sqlite")
    with sqlite3.connect(path) as database:
        database.execute("UPDATE StringIds SET value = cast(x'67656d6de2' AS TEXT) WHERE value LIKE 'void gemm%'")
        database.execute("UPDATE NVTX_EVENTS SET text = cast(x'61c3' AS TEXT) WHERE text = 'forward'")
    database.close()
    trace = open_trace(path)
    assert event_names(trace)[0] == "gemm\ufffd"
    assert range_names(trace) == ["batch_0", "a\ufffd"]


def test_without_payloads_the_kernels_name_must_do(tmp_path: Path) -> None:
    made = Nsys()
    made.kernel(ALL_REDUCE, 100, 5)
    made.kernel("void gemm()", 200, 5)
    made.kernel("ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclDevComm*)", 300, 5)
    trace = read(tmp_path, made)
    assert [c[:3] for c in collectives(trace)] == [("all_reduce", -1, "bfloat16"), ("all_gather", -1, "int8")]
    assert trace.collectives.event.tolist() == [0, 2]


def test_sampled_counters_come_by_device_and_name(tmp_path: Path) -> None:
    made = nsys.nsys_step()
    for gpu, metric, name in ((1, 0, "SM Active"), (1, 1, "Tensor Active")):
        made.add("TARGET_INFO_GPU_METRICS", typeId=(5 << 56 | gpu) - (1 << 60), metricId=metric, metricName=name)
    for time, metric, value in ((30, 0, 70), (10, 0, 50), (20, 1, 5)):
        made.add("GPU_METRICS", timestamp=time, typeId=(5 << 56 | 1) - (1 << 60), metricId=metric, value=value)
    series = read(tmp_path, made).metrics
    assert [(m.name, m.device, m.time_ns.tolist(), m.value.tolist()) for m in series] == [
        ("SM Active", 0, [10, 30], [50.0, 70.0]),  # nsys' GPU 1 is CUDA's device 0
        ("Tensor Active", 0, [20], [5.0]),
    ]


def test_events_that_nsys_lost_are_counted(tmp_path: Path) -> None:
    made = nsys.nsys_step()
    made.add("DIAGNOSTIC_EVENT", text="Number of incomplete CUPTI events dropped: 26. Incomplete events appear when")
    made.add("DIAGNOSTIC_EVENT", text="Number of CUDA events collected: \t65469.")
    assert read(tmp_path, made).dropped_events == 26


@pytest.mark.parametrize(("option", "value", "epoch_ns"), [
    ("EXPORT_PARAM_TIME_NORMALIZE", "true", 0), ("EXPORT_PARAM_TIME_SHIFT", "500", 1_700_000_000_000_000_000 - 500),
])  # fmt: skip
def test_the_clocks_zero_moves_with_the_export(tmp_path: Path, option: str, value: str, epoch_ns: int) -> None:
    made = nsys.nsys_step()
    made.add("META_DATA_EXPORT", name=option, value=value)
    assert read(tmp_path, made).identity.epoch_ns == epoch_ns


def test_our_own_outermost_range_gives_the_rank(tmp_path: Path) -> None:
    made = nsys.nsys_step()
    made.range("epoch_0-rank_3", 500, 99_000)
    assert read(tmp_path, made).identity.rank == 3
    made.range("epoch_0-rank_2", 500, 99_000, pid=10, tid=10)
    assert read(tmp_path, made).identity.rank is None, "a report of two ranks has no rank"


def test_the_version_is_found_under_its_old_name_too(tmp_path: Path) -> None:
    path = nsys.nsys_step().saved(tmp_path / "t.sqlite")
    with sqlite3.connect(path) as database:
        database.execute("ALTER TABLE META_DATA_EXPORT RENAME TO EXPORT_META_DATA")
    database.close()
    assert open_trace(path).identity.tool_version == "2024.6.1.90"


def test_ranges_that_nsys_ended_with_its_recording_are_cut_off(tmp_path: Path) -> None:
    """Seen with nsys 2022.4: at `nsys stop` all open ranges of a thread end in one nanosecond."""
    made = Nsys()
    for number, length in enumerate((10, 10, 3)):
        made.range(f"batch_{number}", 100 + 20 * number, length)
    made.range("epoch_0", 90, 53)
    made.range("other thread", 90, 53, tid=10)
    trace = read(tmp_path, made)
    cut_off = {name for name, is_open in zip(range_names(trace), trace.ranges.is_open, strict=True) if is_open}
    assert cut_off == {"epoch_0", "batch_2"}
