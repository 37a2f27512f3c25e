"""What a Kineto record means: times to the nanosecond, categories of every era, launches, collectives, memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.traces import open_trace
from harness.traces.trace import Activity, CopyKind, RangeKind, Trace
from tests.synthetic import kineto


def read(tmp_path: Path, records: list[kineto.Record], layout: str = "torch 1.9", **more: Any) -> Trace:
    return open_trace(kineto.kineto(tmp_path / "t.json", records, layout, **more))


def event_names(trace: Trace) -> list[str]:
    return [trace.names[i] for i in trace.events.name]


@pytest.mark.parametrize("base_ns", [4_458_676_988_068_751_123, 1_711_964_646_123_456_789, 999, 0])
def test_times_are_exact_where_float64_is_not(tmp_path: Path, base_ns: int) -> None:
    starts = base_ns + np.arange(0, 3_000, 7)
    trace = read(tmp_path, [kineto.kernel("k", int(t), 3) for t in starts])
    assert trace.events.start_ns.tolist() == starts.tolist()
    assert (trace.events.end_ns - trace.events.start_ns).tolist() == [3] * len(starts)


@pytest.mark.parametrize(
    ("text", "time_ns"),
    [("12", 12_000), ("12.5", 12_500), ("12.05", 12_050), ("12.0054", 12_005), ("1.2e4", 12_000_000),
     ("1694128201427806", 1_694_128_201_427_806_000)],
)  # fmt: skip
def test_a_time_may_be_written_in_any_way_that_json_knows(tmp_path: Path, text: str, time_ns: int) -> None:
    records = [kineto.kernel("a", time_ns + 1_000, 5), kineto.kernel("b", 2_000, 5)]
    records[1]["ts"] = kineto.Number("@")
    path = tmp_path / "t.json"
    path.write_bytes(kineto.kineto_text(records).replace(b'"#@', b"@").replace(b'"\\u0000#@"', text.encode()))
    trace = open_trace(path)
    assert trace.events.start_ns.tolist() == [time_ns, time_ns + 1_000]


def test_times_with_any_number_of_decimals_stand_beside_each_other(tmp_path: Path) -> None:
    texts = [f"16941282014278{end}" for end in ("07", "08.5", "09.25", "10.125", "11.0", "12.001")]
    records = [{**kineto.kernel(text, 0, 5), "ts": kineto.Number(text)} for text in texts]
    trace = read(tmp_path, records)
    base_ns = 1_694_128_201_427_800_000
    assert (trace.events.start_ns - base_ns).tolist() == [7_000, 8_500, 9_250, 10_125, 11_000, 12_001]


@pytest.mark.parametrize(
    ("category", "activity"),
    [("kernel", Activity.KERNEL), ("Kernel", Activity.KERNEL), ("gpu_memcpy", Activity.MEMCPY),
     ("Memcpy", Activity.MEMCPY), ("gpu_memset", Activity.MEMSET), ("Memset", Activity.MEMSET)],
)  # fmt: skip
def test_device_work_of_every_era_is_known(tmp_path: Path, category: str, activity: Activity) -> None:
    trace = read(tmp_path, [kineto.kernel("x", 1_000, 10, cat=category)])
    assert trace.events.activity.tolist() == [activity]


@pytest.mark.parametrize("category", ["cuda_runtime", "cuda_driver", "Runtime"])
def test_calls_of_every_era_launch(tmp_path: Path, category: str) -> None:
    records = [kineto.call("launch", 500, 20, cat=category, correlation=5), kineto.kernel("x", 900, 10, correlation=5)]
    trace = read(tmp_path, records)
    assert trace.events.launch_ns.tolist() == [500]
    assert trace.events.launch_thread.tolist() == [100]


def test_an_operator_with_a_stream_argument_is_no_kernel(tmp_path: Path) -> None:
    records = [kineto.kernel("x", 900, 10), kineto.operator("c10d::allreduce_", 100, 50, stream=7, device=0)]
    assert event_names(read(tmp_path, records)) == ["x"]


def test_the_last_step_is_kept_and_the_gpus_shadow_of_a_range_is_not(tmp_path: Path) -> None:
    records = [
        kineto.kernel("x", 900, 10),
        *(kineto.said(f"ProfilerStep#{i}", 1_000 * i, 900) for i in range(3)),
        kineto.record("gpu_user_annotation", "ProfilerStep#0", 900, 10, pid=0, tid=7),
    ]
    trace = read(tmp_path, records)
    assert trace.ranges.kind.tolist() == [RangeKind.STEP] * 3


def test_a_send_and_a_receive_say_with_whom(tmp_path: Path) -> None:
    kernel = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
    sends = ARGUMENTS | {"Collective name": "send", "Dst Rank": 2}
    receives = ARGUMENTS | {"Collective name": "recv", "Src Rank": "0"}
    records = [kineto.kernel(kernel, 1_000, 10, **sends), kineto.kernel(kernel, 2_000, 10, **receives)]
    trace = read(tmp_path, [*records, kineto.kernel(NCCL, 3_000, 10, **ARGUMENTS)])
    assert [collective(trace, row)[0] for row in range(3)] == ["send", "recv", "all_reduce"]
    assert trace.collectives.peer.tolist() == [2, 0, -1]


@pytest.mark.parametrize("layout", ["torch 1.9", "compact"])
def test_ranges_of_the_first_profilers_are_operators_with_a_number_sign(tmp_path: Path, layout: str) -> None:
    stack = {"Call stack": "train.py(1): <module>; # a comment"}
    records = [
        kineto.kernel("x", 900, 10, cat="Kernel"),
        kineto.operator("ProfilerStep#5", 0, 2_000, cat="Operator"),
        kineto.operator("enumerate(DataLoader)#_Iter.__next__", 10, 20, cat="Operator", **stack),
        kineto.operator("aten::mm", 50, 20, cat="Operator", **stack),
    ]
    trace = read(tmp_path, records, layout)
    assert [trace.names[i] for i in trace.ranges.name] == ["ProfilerStep#5", "enumerate(DataLoader)#_Iter.__next__"]
    assert event_names(trace) == ["x"]


def test_every_device_is_read_and_kept_separate(tmp_path: Path) -> None:
    records = [kineto.kernel(f"on {d}", 1_000 + d, 10, device=d) for d in (2, 0, 1)]
    records[0]["args"].pop("device")  # then the process id is the device's
    trace = read(tmp_path, records)
    assert trace.events.device.tolist() == [0, 1, 2]
    assert event_names(trace) == ["on 0", "on 1", "on 2"]


@pytest.mark.parametrize(
    ("name", "kind", "memory"),
    [("Memcpy HtoD (Pageable -> Device)", CopyKind.H2D, 1), ("Memcpy HtoD (Pinned -> Device)", CopyKind.H2D, 2),
     ("Memcpy DtoH (Device -> Pageable)", CopyKind.D2H, 1), ("Memcpy DtoD (Device -> Device)", CopyKind.D2D, 0),
     ("Memcpy PtoP (Device -> Device)", CopyKind.P2P, 0), ("Memcpy", CopyKind.UNKNOWN, 0),
     ("Memcpy HtoD (Managed -> Device)", CopyKind.H2D, 3), ("Memcpy HtoD (Host -> Device)", CopyKind.H2D, 0)],
)  # fmt: skip
def test_a_copy_has_direction_size_and_host_memory(tmp_path: Path, name: str, kind: CopyKind, memory: int) -> None:
    trace = read(tmp_path, [kineto.kernel(name, 1_000, 10, cat="gpu_memcpy", bytes=4096)])
    assert (trace.events.copy_kind[0], trace.events.host_memory[0], trace.events.bytes[0]) == (kind, memory, 4096)


def test_numbers_may_be_written_as_text(tmp_path: Path) -> None:
    record = kineto.kernel("x", 1_000, 10)
    record["args"] |= {"stream": "stream 7", "correlation": "31", "device": "0"}
    trace = read(tmp_path, [record, kineto.call("launch", 500, 20, correlation=31)])
    assert (trace.events.stream[0], trace.events.correlation[0], trace.events.launch_ns[0]) == (7, 31, 500)


def test_the_file_says_who_it_is(tmp_path: Path) -> None:
    trace = read(tmp_path, kineto.gpu_step())
    who = trace.identity
    assert (who.source, who.rank, who.world_size, who.host, who.backend) == ("kineto", 3, 8, "node7", "nccl")
    assert (who.clock, who.epoch_ns, who.pid) == ("trace", 1_711_964_646_000_000_000, 50)
    assert who.device_names == {0: "NVIDIA A100-SXM4-40GB"}
    assert trace.groups == {"0": list(range(8))}


def test_old_times_count_from_1970(tmp_path: Path) -> None:
    trace = read(tmp_path, [kineto.kernel("x", 1_694_128_201_427_806_000, 10)], header={}, footer={})
    assert (trace.identity.clock, trace.identity.epoch_ns) == ("unix", 0)


def test_a_rank_that_the_file_does_not_contain_is_in_its_name(tmp_path: Path) -> None:
    path = kineto.kineto(tmp_path / "rank-12.json", kineto.gpu_step(), header={})
    assert open_trace(path).identity.rank == 12


NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
ARGUMENTS = {
    "Collective name": "allreduce",
    "In msg nelems": 1000,
    "Out msg nelems": 1000,
    "Group size": 8,
    "dtype": "BFloat16",
    "Process Group Name": "0",
}


def collective(trace: Trace, row: int = 0) -> tuple[str, int, str | None, str | None, int]:
    c = trace.collectives
    text = [None if i < 0 else trace.names[i] for i in (c.dtype[row], c.group[row])]
    return trace.names[c.kind[row]], int(c.bytes[row]), text[0], text[1], int(c.group_size[row])


def test_a_collective_is_what_its_kernels_arguments_say(tmp_path: Path) -> None:
    trace = read(tmp_path, [kineto.kernel("x", 500, 10), kineto.kernel(NCCL, 1_000, 10, **ARGUMENTS)])
    assert collective(trace) == ("all_reduce", 2000, "bfloat16", "0", 8)
    assert trace.collectives.event.tolist() == [1]


@pytest.mark.parametrize("layout", ["torch 1.9", "torch 2.13", "json.dump"])
def test_else_what_the_operator_that_launched_it_says(tmp_path: Path, layout: str) -> None:
    gathers = ARGUMENTS | {"Collective name": "_allgather_base", "Out msg nelems": 8000}
    records = [
        kineto.operator("record_param_comms", 100, 500, **gathers),
        kineto.said("nccl:_all_gather_base", 150, 400),
        kineto.call("cudaLaunchKernelExC", 200, 50, correlation=9),
        kineto.kernel("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 1_000, 10, correlation=9),
    ]  # fmt: skip
    assert collective(read(tmp_path, records, layout)) == ("all_gather", 16000, "bfloat16", "0", 8)


def test_else_what_the_shapes_of_its_span_say(tmp_path: Path) -> None:
    span = kineto.said("nccl:all_reduce", 150, 400)
    span["args"] = {"Input Dims": [[394241]], "Input type": ["float"]}
    records = [span, kineto.call("launch", 200, 50, correlation=9), kineto.kernel(NCCL, 1_000, 10, correlation=9)]
    assert collective(read(tmp_path, records))[:3] == ("all_reduce", 394241 * 4, "float32")


@pytest.mark.parametrize(
    ("kernel", "kind", "dtype"),
    [(NCCL, "all_reduce", "bfloat16"),
     ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)", "all_reduce", "float32"),
     ("ncclAllReduceRingLLKernel_sum_f32(ncclColl)", "all_reduce", None),
     ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "send_recv", None),
     ("ncclDevKernel_ReduceScatter_Sum_f16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "reduce_scatter", "float16"),
     ("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)", "unknown", None)],
)  # fmt: skip
def test_else_what_the_kernels_name_says(tmp_path: Path, kernel: str, kind: str, dtype: str | None) -> None:
    assert collective(read(tmp_path, [kineto.kernel(kernel, 1_000, 10)])) == (kind, -1, dtype, "0", 8)


def test_the_memory_profilers_marks_give_the_peak(tmp_path: Path) -> None:
    marks = [
        {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 50, "tid": 100, "ts": 5,
         "args": {"Total Allocated": total, "Device Type": kind, "Device Id": device}}
        for total, kind, device in [(10, 1, 0), (70, 1, 0), (20, 1, 0), (99, 0, -1), (5, 1, 1)]
    ]  # fmt: skip
    assert read(tmp_path, [*kineto.gpu_step(), *marks]).peak_memory_bytes == {(50, 0): 70, (50, 1): 5}


def test_no_control_character_of_a_file_comes_through(tmp_path: Path) -> None:
    red = "\x1b[31mRED\x1b]0;pwn\x07 gemm\x9b"
    records = [*kineto.gpu_step(), kineto.kernel(red, 10**15, 10), kineto.kernel("[31mRED]0;pwn gemm", 10**15 + 20, 10)]
    header = kineto.HEADER | {"host_name": red, "deviceProperties": [{"id": 0, "name": red}]}
    for layout in ("torch 2.13", "json.dump"):
        trace = read(tmp_path, records, layout, header=header)
        assert all(map(str.isprintable, trace.names))
        assert trace.names.count("[31mRED]0;pwn gemm") == 1
        assert trace.identity.host == trace.identity.device_names[0] == "[31mRED]0;pwn gemm"
