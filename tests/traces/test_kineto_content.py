"""What Kineto's records mean: a few of them, and what the trace has of them, with a GPU and without."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from harness.traces import open_trace
from harness.traces.operators import operators
from harness.traces.trace import SHORTEST_HOST_NS, Activity, CopyKind, HostKind, RangeKind
from tests.synthetic import kineto
from tests.synthetic.kineto import Record, call, gpu_step, kernel, operator, python, said
from tests.traces.test_kineto_devices import ACCELERATED
from tests.traces.told import differing

ALL, TWO = tuple(kineto.LAYOUTS), ("torch 1.9", "compact")
CPU = kineto.HEADER | {"deviceProperties": []}
LONG, SHORT = SHORTEST_HOST_NS, SHORTEST_HOST_NS - 1
NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
ARGUMENTS = {
    "Collective name": "allreduce", "In msg nelems": 1000, "Out msg nelems": 1000, "Group size": 8,
    "dtype": "BFloat16", "Process Group Name": "0",
}  # fmt: skip


class Scene(NamedTuple):
    """Records of a file, and what the trace is to say of them, in each of these layouts."""

    records: Sequence[Record]
    told: dict[str, Any]
    layouts: Sequence[str] = ("torch 1.9",)
    header: Record = kineto.HEADER
    footer: Record = kineto.FOOTER


def without_device(record: Record) -> Record:
    """The process id is the device's, then."""
    return record | {"args": {key: value for key, value in record["args"].items() if key != "device"}}


def allocated(total: int, kind: int, device: int) -> Record:
    """A mark of the memory profiler."""
    held = {"Total Allocated": total, "Device Type": kind, "Device Id": device}
    mark = {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 50, "tid": 100, "ts": 5}
    return mark | {"args": held}


BASES = (4_458_676_988_068_751_123, 1_711_964_646_123_456_789, 999, 0)
ERAS = {
    "kernel": Activity.KERNEL, "Kernel": Activity.KERNEL, "gpu_memcpy": Activity.MEMCPY, "Memcpy": Activity.MEMCPY,
    "gpu_memset": Activity.MEMSET, "Memset": Activity.MEMSET,
}  # fmt: skip
COPIES = {
    "Memcpy HtoD (Pageable -> Device)": (CopyKind.H2D, 1), "Memcpy HtoD (Pinned -> Device)": (CopyKind.H2D, 2),
    "Memcpy DtoH (Device -> Pageable)": (CopyKind.D2H, 1), "Memcpy DtoD (Device -> Device)": (CopyKind.D2D, 0),
    "Memcpy PtoP (Device -> Device)": (CopyKind.P2P, 0), "Memcpy": (CopyKind.UNKNOWN, 0),
    "Memcpy HtoD (Managed -> Device)": (CopyKind.H2D, 3), "Memcpy HtoD (Host -> Device)": (CopyKind.H2D, 0),
}  # fmt: skip
DECIMALS = {"07": 7_000, "08.5": 8_500, "09.25": 9_250, "10.125": 10_125, "11.0": 11_000, "12.001": 12_001}
STACK = {"Call stack": "train.py(1): <module>; # a comment"}
LOADS = "enumerate(DataLoader)#_Iter.__next__"
RED, CLEAN = "\x1b[31mRED\x1b]0;pwn\x07 gemm\x9b", "[31mRED]0;pwn gemm"
OF_TIMES = {
    **{
        f"times from {base} on are exact where float64 is not": Scene(
            [kernel("k", base + at, 3) for at in range(0, 3_000, 7)],
            {"start": [base + at for at in range(0, 3_000, 7)], "length": [3] * 429},
        )
        for base in BASES
    },
    "times may have any number of decimals": Scene(
        [kernel(end, 0, 5) | {"ts": kineto.Number(f"16941282014278{end}")} for end in DECIMALS],
        {"start": [1_694_128_201_427_800_000 + ns for ns in DECIMALS.values()]},
    ),
    "old times count from 1970": Scene(
        [kernel("x", 1_694_128_201_427_806_000, 10)], {"clock": ("unix", 0)}, header={}, footer={}
    ),
}
OF_DEVICES = {
    "device work of every era": Scene(
        [kernel(name, 1_000 * i, 10, cat=name) for i, name in enumerate(ERAS)], {"activity": list(ERAS.values())}
    ),
    **{
        f"a call of the category {category} launches": Scene(
            [call("launch", 500, 20, cat=category, correlation=5), kernel("x", 900, 10, correlation=5)],
            {"launch": [500], "launched on": [100]},
        )
        for category in ("cuda_runtime", "cuda_driver", "Runtime")
    },
    "an operator with a stream argument is no kernel": Scene(
        [kernel("x", 900, 10), operator("c10d::allreduce_", 100, 50, stream=7, device=0)], {"events": ["x"]}
    ),
    "every device is kept apart": Scene(
        [without_device(kernel("on 2", 1_002, 10, device=2)), kernel("on 0", 9, 10), kernel("on 1", 1, 10, device=1)],
        {"device": [0, 1, 2], "events": ["on 0", "on 1", "on 2"]},
    ),
    "a copy has direction, size and host memory": Scene(
        [kernel(name, 1_000 * i, 10, cat="gpu_memcpy", bytes=4096) for i, name in enumerate(COPIES)],
        {"copies": list(COPIES.values()), "bytes": [4096] * 8},
    ),
    "numbers may be written as text": Scene(
        [kernel("x", 1_000, 10, stream="stream 7", correlation="31", device="0"), call("x", 500, 20, correlation=31)],
        {"stream": [7], "correlation": [31], "launch": [500]},
    ),
    "an accelerator's work is the device's, and its waits are none": Scene(
        ACCELERATED,
        {"spans": [("fc-dtype_Float", 20, 50), ("Memcpy HtoD", 80, 100)], "launch": [5, -1], "stream": [3, 801],
         "activity": [Activity.KERNEL, Activity.MEMCPY], "bytes": [-1, 4096],
         "copies": [(-1, 0), (CopyKind.H2D, 0)]}, header=CPU,
    ),
    "the file says who it is": Scene(gpu_step(), {
        "who": ("kineto", 3, 8, "node7", 50, "nccl"), "clock": ("trace", 1_711_964_646_000_000_000),
        "device names": {0: "NVIDIA A100-SXM4-40GB"}, "groups": {"0": list(range(8))},
    }),
    "the memory profiler's marks give the peak": Scene(
        [*gpu_step(), allocated(10, 1, 0), allocated(70, 1, 0), allocated(20, 1, 0), allocated(99, 0, -1),
         allocated(5, 1, 1)],
        {"peak": {(50, 0): 70, (50, 1): 5}},
    ),
    "no control character of a file comes through": Scene(
        [kernel(RED, 10**15, 10), kernel(CLEAN, 10**15 + 20, 10)],
        {"events": [CLEAN, CLEAN], "who": ("kineto", 3, 8, CLEAN, None, "nccl"), "device names": {0: CLEAN}},
        ("torch 2.13", "json.dump"), kineto.HEADER | {"host_name": RED, "deviceProperties": [{"id": 0, "name": RED}]},
    ),
}  # fmt: skip
OF_RANGES = {
    "the last step is kept, and a range's shadow beside the GPU is not": Scene(
        [kernel("x", 900, 10), *(said(f"ProfilerStep#{i}", 1_000 * i, 900) for i in range(3)),
         kineto.record("gpu_user_annotation", "ProfilerStep#0", 900, 10, pid=0, tid=7)],
        {"range kinds": [RangeKind.STEP] * 3},
    ),
    "ranges of the first profilers are operators with a number sign": Scene(
        [kernel("x", 900, 10, cat="Kernel"), operator("ProfilerStep#5", 0, 2_000, cat="Operator"),
         operator(LOADS, 10, 20, cat="Operator", **STACK), operator("aten::mm", 50, 20, cat="Operator", **STACK)],
        {"ranges": ["ProfilerStep#5", LOADS], "events": ["x"]}, TWO,
    ),
}  # fmt: skip
NAMES = {
    NCCL: ("all_reduce", "bfloat16"),
    SEND_RECV: ("send_recv", None),
    "ncclDevKernel_Generic_4()": ("unknown", None),
    "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)": ("all_reduce", "float32"),
    "ncclAllReduceRingLLKernel_sum_f32(ncclColl)": ("all_reduce", None),
    "ncclDevKernel_ReduceScatter_Sum_f16_RING_LL()": ("reduce_scatter", "float16"),
}
FLOATS = {"Input Dims": [[394241]], "Input type": ["float"]}
PEERS: list[tuple[object, int]] = [
    (["", "", "1", "0"], 1), (["", "", "?", "0"], -1), ([], -1), ("none", -1), ([""] * 3, -1),
]  # fmt: skip
LISTED = {"Input Dims": [[[8]], [], [], []], "Input type": ["TensorList", "", "Scalar", "Scalar"]}
NORM = {"Input Dims": [[[]], [], []], "Input type": ["TensorList", "", "Scalar"]}
GROUPS = [{"pg_name": "0", "ranks": [0, 1, 2, 3]}, {"pg_name": "tp", "ranks": [0, 1]}]
OF_COLLECTIVES = {
    "a collective is what its kernel's arguments say": Scene(
        [kernel("x", 500, 10), kernel(NCCL, 1_000, 10, **ARGUMENTS)],
        {"collectives": [("all_reduce", 2000, "bfloat16", "0", 8)], "of events": [1]},
    ),
    "else what the operator that launched it says": Scene(
        [operator("record_param_comms", 100, 500,
                  **(ARGUMENTS | {"Collective name": "_allgather_base", "Out msg nelems": 8000})),
         said("nccl:_all_gather_base", 150, 400), call("cudaLaunchKernelExC", 200, 50, correlation=9),
         kernel("ncclDevKernel_AllGather_RING_LL()", 1_000, 10, correlation=9)],
        {"collectives": [("all_gather", 16000, "bfloat16", "0", 8)]}, ("torch 1.9", "torch 2.13", "json.dump"),
    ),
    "else what the shapes of its span say": Scene(
        [said("nccl:all_reduce", 150, 400) | {"args": FLOATS}, call("launch", 200, 50, correlation=9),
         kernel(NCCL, 1_000, 10, correlation=9)],
        {"collectives": [("all_reduce", 394241 * 4, "float32", "0", 8)]},
    ),
    "else what the kernel's name says": Scene(
        [kernel(name, 1_000 * i, 10) for i, name in enumerate(NAMES)],
        {"collectives": [(kind, -1, dtype, "0", 8) for kind, dtype in NAMES.values()]},
    ),
    "a send and a receive say with whom": Scene(
        [kernel(SEND_RECV, 1_000, 10, **(ARGUMENTS | {"Collective name": "send", "Dst Rank": 2})),
         kernel(SEND_RECV, 2_000, 10, **(ARGUMENTS | {"Collective name": "recv", "Src Rank": "0"})),
         kernel(NCCL, 3_000, 10, **ARGUMENTS)],
        {"messages": [("send", 2000), ("recv", 2000), ("all_reduce", 2000)], "peers": [2, 0, -1]},
    ),
    "on a CPU the group is that of the collective's size": Scene(
        [operator("c10d::_allgather_base_", 0, 10,
                  **{"Input Dims": [[64], [32], [], []], "Input type": ["float", "float", "", ""]}),
         said("gloo:all_gather", 20, 30, tid=2) | {"args": {"Input Dims": [[32]], "Input type": ["float"]}},
         said("gloo:broadcast", 60, 10, tid=2)],
        {"collectives": [("all_gather", 256, "float32", "tp", 2), ("broadcast", -1, None, None, -1)]},
        header=CPU | {"distributedInfo": {"rank": 0, "world_size": 4, "pg_config": GROUPS}},
    ),
    **{
        f"on a CPU a send whose values are {values} is to {peer}": Scene(
            [operator("c10d::send", 0, 10, **LISTED, **{"Concrete Inputs": values}),
             operator("gloo:send", 20, 30, cat="user_annotation", **{"Input Dims": [[8]], "Input type": ["float"]})],
            {"messages": [("send", 32)], "peers": [peer]}, header=CPU,
        )
        for values, peer in PEERS
    },
    # As DeepSpeed reduces the norm of its gradients; without types a number and a tensor cannot be separated.
    **{
        f"a tensor without dimensions has {size} bytes": Scene(
            [operator("c10d::allreduce_", 0, 10, **(NORM | changed)),
             said("gloo:all_reduce", 20, 30, tid=2)
             | {"args": {"Input Dims": [[]], "Input type": ["float"]} | changed}],
            {"messages": [("all_reduce", size)]}, header=CPU,
        )
        for changed, size in (({}, 4), ({"Input type": None}, -1))
    },
}  # fmt: skip
STANDS_IN = (
    "the file names GPUs and holds neither work of a GPU nor a launch, so the operators of the host are its events"
)
OF_OPERATORS = {
    "each instant belongs to the innermost operator": Scene(
        [operator("aten::linear", 0, 100), operator("aten::addmm", 10, 60), operator("aten::copy_", 20, 5),
         operator("aten::relu", 100, 20)],
        {"spans": [("aten::linear", 0, 10), ("aten::addmm", 10, 20), ("aten::copy_", 20, 25), ("aten::addmm", 25, 70),
                   ("aten::linear", 70, 100), ("aten::relu", 100, 120)],
         "correlation": [0, 1, 2, 1, 0, 3], "activity": [Activity.CPU_OP] * 6, "notes": []}, header=CPU,
    ),
    "an operator that outlives its caller by rounding is cut to it": Scene(
        [operator("outer", 0, 100), operator("inner", 50, 51), operator("next", 100, 10)],
        {"spans": [("outer", 0, 50), ("inner", 50, 100), ("outer", 100, 100), ("next", 100, 110)]}, header=CPU,
    ),
    "threads do not nest in each other": Scene(
        [operator("a", 0, 100, tid=1), operator("b", 20, 30, tid=2)], {"spans": [("a", 0, 100), ("b", 20, 50)]},
        header=CPU,
    ),
    "the collectives' own thread computes nothing": Scene(
        [operator("aten::mm", 0, 100, tid=1), said("gloo:all_reduce", 10, 50, tid=2),
         operator("aten::copy_", 20, 5, tid=2), said("gloo:send", 200, 100, tid=1),
         operator("aten::add", 220, 10, tid=1)],
        {"spans": [("aten::mm", 0, 100), ("gloo:all_reduce", 10, 60), ("gloo:send", 200, 300),
                   ("aten::add", 220, 230)]}, header=CPU,
    ),
    "a GPU's file without its work says that operators stand in": Scene(
        [operator("aten::mm", 0, 100)], {"spans": [("aten::mm", 0, 100)], "notes": [STANDS_IN]}
    ),
    "a call that launches nothing is no use of a device": Scene(
        [operator("aten::mm", 0, 100), call("cudaGetDeviceCount", 5, 5)], {"spans": [("aten::mm", 0, 100)]}, header=CPU
    ),
}  # fmt: skip
LENGTHS = [0, 9_999, SHORT, LONG, LONG + 1, 99_999, 1_000_000, 123_456_789_000]
BLOCKING = [
    "cudaMalloc", "cudaFree", "cudaHostAlloc", "cuModuleLoadData", "cudaStreamBeginCapture", "hipModuleLoad",
    "cudaMemcpyAsync", "hipLaunchKernel", "cuLaunchKernelEx", "cudaStreamSynchronize",
]  # fmt: skip
OF_HOST = {
    "long operators, functions and the profiler's work are kept": Scene(
        gpu_step(0),
        {"host": [("Activity Buffer Request", HostKind.PROFILER, -1, 2_000, 54_000),  # Kineto does not say where
                  ("train.py(12): step", HostKind.PYTHON, 100, 0, 90_000),
                  ("aten::to", HostKind.OPERATOR, 100, 12_000, 72_000)], "host processes": [50]}, ALL,
    ),
    "a span that explains no idle stretch is left out": Scene(
        [kernel("k", 0, 5), *(python(f"f.py(1): {length}", 10**12 * i, length) for i, length in enumerate(LENGTHS))],
        {"host kinds": [(f"f.py(1): {length}", HostKind.PYTHON) for length in LENGTHS[3:]]}, ALL,
    ),
    "Python's collector is told from functions": Scene(
        [kernel("k", 0, 5), python("Python GC", 10, 9 * LONG), python("gc", 20, LONG),
         python("<built-in function collect>", 20 * LONG, LONG)],
        {"host kinds": [("Python GC", HostKind.COLLECTOR), ("gc", HostKind.PYTHON),
                        ("<built-in function collect>", HostKind.COLLECTOR)]},
    ),
    "without device work operators are the events and functions stay": Scene(
        [operator("aten::mm", 0, 9 * LONG), python("train.py(3): f", 0, 10 * LONG)],
        {"events": ["aten::mm"], "host kinds": [("train.py(3): f", HostKind.PYTHON)]},
    ),
    "a range of an old torch is no operator, and its operators are": Scene(
        [call("cudaLaunchKernel", 1, 1, cat="Runtime"), kernel("k", 0, 5, cat="Kernel"),
         operator("ProfilerStep#3", 0, 9 * LONG, cat="Operator"), operator("aten::to", 5, 2 * LONG, cat="Operator"),
         operator("record_param_comms", 7, LONG, cat="Operator")],
        {"ranges": ["ProfilerStep#3"],
         "host kinds": [("aten::to", HostKind.OPERATOR), ("record_param_comms", HostKind.OPERATOR)]}, ALL,
    ),
    "no call that can block is left out": Scene(
        [*(call(name, 10 * i, 5, cat=("cuda_runtime", "cuda_driver")[i % 2]) for i, name in enumerate(BLOCKING)),
         kernel("k", 0, 5)],
        {"calls": BLOCKING}, ALL,
    ),
}  # fmt: skip
SCENES = OF_TIMES | OF_DEVICES | OF_RANGES | OF_COLLECTIVES | OF_OPERATORS | OF_HOST


@pytest.mark.parametrize(("name", "layout"), [(name, one) for name, scene in SCENES.items() for one in scene.layouts])
def test_records_become(tmp_path: Path, name: str, layout: str) -> None:
    scene = SCENES[name]
    path = kineto.kineto(tmp_path / "t.json", scene.records, layout, header=scene.header, footer=scene.footer)
    assert differing(open_trace(path), scene.told) == {}


WRITTEN = [
    ("12", 12_000), ("12.5", 12_500), ("12.05", 12_050), ("12.0054", 12_005), ("1.2e4", 12_000_000),
    ("1694128201427806", 1_694_128_201_427_806_000),
]  # fmt: skip


@pytest.mark.parametrize(("text", "time_ns"), WRITTEN)
def test_a_time_may_be_written_in_any_way_that_json_knows(tmp_path: Path, text: str, time_ns: int) -> None:
    records = [kernel("a", time_ns + 1_000, 5), kernel("b", 2_000, 5) | {"ts": "@"}]
    (path := tmp_path / "t.json").write_bytes(kineto.kineto_text(records).replace(b'"@"', text.encode()))
    assert differing(open_trace(path), {"start": [time_ns, time_ns + 1_000]}) == {}


def test_an_operators_whole_span_is_known_even_where_callees_take_its_first_and_last_instant(tmp_path: Path) -> None:
    records = [operator("outer", 5, 20), operator("inner", 5, 20), operator("point", 25, 0)]
    trace = open_trace(kineto.kineto(tmp_path / "t.json", records, header=CPU))
    whole = operators(trace.events, np.arange(len(trace.events)))
    names = [trace.names[i] for i in trace.events.name[whole.first]]
    spans_of = zip(names, whole.start_ns.tolist(), whole.end_ns.tolist(), whole.own_ns.tolist(), strict=True)
    assert sorted(spans_of) == [("inner", 5, 25, 20), ("outer", 5, 25, 0), ("point", 25, 25, 0)]
