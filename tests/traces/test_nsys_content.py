"""The content of an nsys export: a few rows of its tables, and what the trace has of them; with any of them missing."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from operator import methodcaller as row
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from harness.traces import open_trace
from harness.traces.trace import SHORTEST_HOST_NS, Activity, CopyKind, HostKind, RangeKind
from tests.synthetic import nsys
from tests.synthetic.nsys import Nsys, nsys_step
from tests.traces.told import differing, told

Rows = Sequence[Callable[[Nsys], None]]


class Scene(NamedTuple):
    """Rows of an export, in the order in which they are written, and what the trace is to say of them. begins: what the
    export has before them; sql: what is done to it after them."""

    rows: Rows
    told: dict[str, Any]
    begins: Callable[[], Nsys] = Nsys
    sql: tuple[str, ...] = ()

    def saved(self, path: Path) -> Path:
        made = self.begins()
        for add in self.rows:
            add(made)
        made.saved(path)
        with sqlite3.connect(path) as database:
            for statement in self.sql:
                database.execute(statement)
        database.close()
        return path


LONG, PERIOD_NS = SHORTEST_HOST_NS, 400_000  # of sampling
OS = "OSRT_API"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
PYTHON = ("_PyEval_EvalFrameDefault", "/opt/conda/bin/python3.10")
LIBC = "/lib/x86_64-linux-gnu/libc-2.31.so"


def joins(group: object, size: int, rank: int, *, pid: int = 9, at: int = 0) -> Callable[[Nsys], None]:
    """A process joins a communicator."""
    payload = {"NCCL communicator ID": group, "No. of ranks": size, "Rank": rank}
    return row("range", "ncclCommInitRank", at, 5, pid=pid, tid=pid, payload=payload)


def sends(call: str, at: int, size: int, length: int = 5) -> Callable[[Nsys], None]:
    """A call of NCCL with its payload."""
    return row("range", call, at, length, payload={"NCCL communicator ID": 17, "Message size [bytes]": size})


def launches(kernel: str, at: int, number: int = 1) -> Rows:
    """A kernel, and the call that launches it."""
    call = row("call", "cudaLaunchKernelExC_v11060", at, 2, correlation=number)
    return call, row("kernel", kernel, at + 1_000, 50, stream=20, correlation=number)


EIGHT = joins(17, 8, 5)
GROUP = (row("range", "ncclGroupStart", 100, 2), row("range", "ncclGroupEnd", 130, 30))
TWO_SENT = (sends("ncclAllReduce", 110, 100), sends("ncclAllReduce", 120, 200))
FOUR_SENT = [
    sends(name, 110 + i, size, 1)
    for i, (name, size) in enumerate([("ncclSend", 10), ("ncclRecv", 10), ("ncclSend", 30), ("ncclRecv", 5)])
]
UNNAMED = [
    row("kernel", "void gemm<float>()", 100, 10, short="gemm"), row("kernel", None, 200, 10, short=ALL_REDUCE),
    row("kernel", None, 300, 10, mangled="_Z4gemmv"),
]  # fmt: skip
SIZES_MISSING = "message sizes were not exported (export with --include-json=true)"
NO_JSON = row("add", "META_DATA_EXPORT", name="EXPORT_PARAM_INCLUDE_JSON", value="false")
OF_TWO = [joins("all", 8, rank, pid=pid) for pid, rank in ((50, 4), (51, 5))]
PARTS = {"all_gather": 800, "reduce_scatter": 800, "all_to_all": 800, "all_reduce": 100, "broadcast": 100}
CALLS = {
    "all_gather": ("ncclAllGather", "ncclDevKernel_AllGather_RING_LL"),
    "reduce_scatter": ("ncclReduceScatter", "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL"),
    "all_to_all": ("ncclAlltoAll", "ncclDevKernel_SendRecv"),
    "all_reduce": ("ncclAllReduce", "ncclDevKernel_AllReduce_Sum_f32_RING_LL"),
    "broadcast": ("ncclBroadcast", "ncclDevKernel_Broadcast_RING_LL"),
}
COPIES = [
    (1, 0, 2, (CopyKind.H2D, 1)), (1, 1, 2, (CopyKind.H2D, 2)), (2, 2, 0, (CopyKind.D2H, 1)),
    (2, 2, 1, (CopyKind.D2H, 2)), (8, 2, 2, (CopyKind.D2D, 0)), (10, 2, 2, (CopyKind.P2P, 0)),
    (11, 4, 2, (CopyKind.H2D, 3)), (0, 0, 0, (CopyKind.UNKNOWN, 0)),
]  # fmt: skip
LAUNCHED = {i * 7 % 20 + 1: 100 + i for i in range(20)}
NUMBERED = {
    f"launches are found by correlations {spread} apart": Scene(
        [
            *(row("call", "cudaLaunchKernel_v7000", at, 1, correlation=i * spread) for i, at in LAUNCHED.items()),
            *(row("kernel", "k", 1_000 + 10 * i, 5, correlation=i * spread) for i in range(1, 21)),
        ],
        {"launch": [LAUNCHED[i] for i in range(1, 21)]},
    )
    for spread in (1, 10**8)
}
SAMPLED = [
    row("add", "TARGET_INFO_GPU_METRICS", typeId=(5 << 56 | 1) - (1 << 60), metricId=metric, metricName=name)
    for metric, name in enumerate(("SM Active", "Tensor Active"))
] + [
    row("add", "GPU_METRICS", timestamp=time, typeId=(5 << 56 | 1) - (1 << 60), metricId=metric, value=value)
    for time, metric, value in ((30, 0, 70), (10, 0, 50), (20, 1, 5))
]
OF_CUDA = {
    "a step has each of its rows": Scene((), {
        "spans": [("void gemm<float>(float*)", 10_000, 30_000), ("Memcpy HtoD", 31_000, 35_000),
                  ("Memset", 36_000, 36_500), ("void softmax<float>(float*)", 40_000, 40_001)],
        "activity": [Activity.KERNEL, Activity.MEMCPY, Activity.MEMSET, Activity.KERNEL],
        "launch": [3_000, -1, -1, -1], "bytes": [-1, 64, 32, -1], "calls": ["cudaLaunchKernel", "cudaMemcpyAsync"],
        "ranges": ["batch_0", "forward"], "who": ("nsys", None, None, "lrdn0042", 9, None),
        "version": "2024.6.1.90", "clock": ("trace", 1_700_000_000_000_000_000), "device names": {0: "NVIDIA A100"},
    }, nsys_step),
    "without kernels there are still the ranges": Scene(
        [row("range", "batch_0", 1_000, 90_000)], {"events": [], "ranges": ["batch_0"], "notes": []}
    ),
    "devices are sorted": Scene(
        [row("kernel", "k", start, 10, device=device) for start in (5_000, 1_000, 3_000) for device in (1, 0)],
        {"device": [0, 0, 0, 1, 1, 1], "start": [1_000, 3_000, 5_000] * 2},
    ),
    "two processes have correlations of their own": Scene(
        [
            add
            for pid, at in ((9, 1_000), (10, 2_000))
            for add in (
                row("call", "cudaLaunchKernel_v7000", at, 50, correlation=7, pid=pid, tid=pid),
                row("kernel", f"of {pid}", 5_000 + at, 10, pid=pid, device=pid - 9, correlation=7),
            )
        ],
        {"events": ["of 9", "of 10"], "launch": [1_000, 2_000], "launched on": [9, 10],
         "who": ("nsys", None, None, "lrdn0042", None, None)},
    ),
    "where no process is named there is one": Scene(
        (), {"launch": [3_000, -1, -1, -1]}, nsys_step,
        tuple(f"ALTER TABLE CUPTI_ACTIVITY_KIND_{t} DROP COLUMN globalPid" for t in ("KERNEL", "MEMCPY", "MEMSET")),
    ),
    "a copy has direction and host memory": Scene(
        [row("copy", 1_000 * i, 10, kind=k, source=s, target=t) for i, (k, s, t, _) in enumerate(COPIES, 1)],
        {"copies": [expected for *_, expected in COPIES]},
    ),
    "a whole CUDA graph is one kernel": Scene(
        [row("add", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE", start=5, end=9, deviceId=0, streamId=7,
             globalPid=nsys.global_pid(9), graphId=3)],
        {"events": ["CUDA graph 3"]},
    ),
    "a kernel without its best name has the next": Scene(
        UNNAMED, {"events": ["void gemm<float>()", ALL_REDUCE, "_Z4gemmv"], "messages": [("all_reduce", -1)],
                  "notes": []},
    ),
    "too many kernels without a name are said": Scene(
        [*UNNAMED, row("kernel", None, 400, 1)],
        {"notes": ["1 kernels (3% of kernel time) have no name, so communication among them is not seen"]},
    ),
    "without any strings no kernel has a name": Scene(
        (), {"events": ["[unnamed kernel]", "Memcpy HtoD", "Memset", "[unnamed kernel]"],
             "notes": ["2 kernels (100% of kernel time) have no name, so communication among them is not seen"]},
        nsys_step, ("DROP TABLE StringIds",),
    ),
    "half a character in one name leaves all others": Scene(
        (), {"events": ["gem\ufffd", "Memcpy HtoD", "Memset", "void softmax<float>(float*)"],
             "ranges": ["batch_0", "a\ufffd"]}, nsys_step,
        ("UPDATE StringIds SET value = cast(x'67656de2' AS TEXT) WHERE value LIKE 'void gemm%'",
         "UPDATE NVTX_EVENTS SET text = cast(x'61c3' AS TEXT) WHERE text = 'forward'"),
    ),
    "counters come by device and name": Scene(
        SAMPLED,  # nsys' GPU 1 is CUDA's device 0
        {"counters": [("SM Active", 0, [10, 30], [50.0, 70.0]), ("Tensor Active", 0, [20], [5.0])]}, nsys_step,
    ),
    "events that nsys lost are counted": Scene(
        [row("add", "DIAGNOSTIC_EVENT", text="Number of incomplete CUPTI events dropped: 26. Incomplete events appear"),
         row("add", "DIAGNOSTIC_EVENT", text="Number of CUDA events collected: \t65469.")],
        {"dropped": 26},
    ),
    "a normalised export begins in 1970": Scene(
        [row("add", "META_DATA_EXPORT", name="EXPORT_PARAM_TIME_NORMALIZE", value="true")], {"clock": ("trace", 0)}
    ),
    "the clock's zero moves with the export": Scene(
        [row("add", "META_DATA_EXPORT", name="EXPORT_PARAM_TIME_SHIFT", value="500")],
        {"clock": ("trace", 1_700_000_000_000_000_000 - 500)},
    ),
    "the version is found under its old name too": Scene(
        (), {"version": "2024.6.1.90"}, nsys_step, ("ALTER TABLE META_DATA_EXPORT RENAME TO EXPORT_META_DATA",)
    ),
}  # fmt: skip
OF_RANGES = {
    "ranges have texts, domains, kinds and ends": Scene(
        [row("kernel", "k", 100, 900), row("range", "NCCL", 0, None, kind=75, domain=3),
         row("range", "own text", 10, 50), row("range", None, 20, 5, registered="registered text", domain=3),
         row("range", "start/end", 30, 500, kind=60), row("range", "still open", 40, None),
         row("range", "a mark", 45, None, kind=34)],
        {"range spans": [("own text", 10, 60), ("registered text", 20, 25), ("start/end", 30, 530),
                         ("still open", 40, 1_000)],
         "range kinds": [RangeKind.PUSH_POP, RangeKind.PUSH_POP, RangeKind.START_END, RangeKind.PUSH_POP],
         "open": ["still open"], "domains": [None, "NCCL", None, None],
         "notes": ["1 NVTX ranges never ended; they are cut off at the last event"]},
    ),
    # Seen with nsys 2022.4: at `nsys stop` all open ranges of a thread end in one nanosecond.
    "ranges that nsys ended with its recording are open": Scene(
        [*(row("range", f"batch_{i}", 100 + 20 * i, length) for i, length in enumerate((10, 10, 3))),
         row("range", "epoch_0", 90, 53), row("range", "other thread", 90, 53, tid=10)],
        {"open": ["epoch_0", "batch_2"]},
    ),
    "our own outermost range gives the rank": Scene(
        [row("range", "epoch_0-rank_3", 500, 99_000)], {"rank": 3}, nsys_step
    ),
    "a report of two ranks has no rank": Scene(
        [row("range", f"epoch_0-rank_{rank}", 500, 99_000, pid=pid, tid=pid) for pid, rank in ((9, 3), (10, 2))],
        {"rank": None}, nsys_step,
    ),
}  # fmt: skip
OF_NCCL = {
    "a collective has the payload of the call that launched it": Scene(
        [EIGHT, row("range", None, 100, 20, registered="ncclAllReduce",
                    payload={"NCCL communicator ID": 17, "Message size [bytes]": 1 << 24}), *launches(ALL_REDUCE, 110)],
        {"collectives": [("all_reduce", 1 << 24, "bfloat16", "17", 8)],
         "who": ("nsys", 5, 8, "lrdn0042", 9, "nccl")},
    ),
    "the largest communicator is the world where all are in it": Scene(
        [*OF_TWO, *(joins("pair", 2, rank, pid=50 + rank) for rank in (0, 1))], {"world": (8, {50: 4, 51: 5})}
    ),
    "a second communicator of the same ranks is no doubt": Scene(
        [*OF_TWO, *(joins("again", 8, 4 + i, pid=50 + i) for i in (0, 1))], {"world": (8, {50: 4, 51: 5})}
    ),
    "of two by two ranks no communicator is the world": Scene(
        [joins(f"tensor {rank // 2}", 2, rank % 2, pid=50 + rank) for rank in range(4)]
        + [joins(f"data {rank % 2}", 2, rank // 2, pid=50 + rank) for rank in range(4)],
        {"world": (None, {})},
    ),
    "a communicator is not the world of a process that says another rank": Scene(
        [joins("data", 4, 2, pid=50), row("range", "epoch_0-rank_5", 100, 50, pid=50, tid=50)],
        {"rank": 5, "world": (None, {})},
    ),
    **{
        f"of an {kind} one rank's part is recorded, and of how many": Scene(
            [EIGHT, sends(CALLS[kind][0], 100, 100, 20), *launches(CALLS[kind][1], 110)], {"messages": [(kind, size)]}
        )
        for kind, size in PARTS.items()
    },
    **{
        f"of an {kind} of how many is not known": Scene(
            [sends(CALLS[kind][0], 100, 100, 20), *launches(CALLS[kind][1], 110)],
            {"messages": [(kind, -1 if size == 800 else size)]},
        )
        for kind, size in PARTS.items()
    },
    "parts that travel in one kernel are all ranks' too": Scene(
        [EIGHT, *GROUP, sends("ncclAllGather", 110, 10), sends("ncclAllGather", 120, 20),
         *launches("ncclDevKernel_AllGather_RING_LL", 135)],
        {"messages": [("all_gather", 240)]},
    ),
    "without NCCL there are no sizes to miss": Scene([NO_JSON, row("kernel", "k", 1, 2)], {"notes": []}),
    "an export without NCCL's sizes says how to have them": Scene(
        [NO_JSON, row("range", "ncclAllReduce", 100, 20)], {"notes": [SIZES_MISSING]}
    ),
    "an export with a size has nothing to say": Scene(
        [NO_JSON, row("range", "ncclAllReduce", 100, 20), sends("ncclAllReduce", 200, 10)], {"notes": []}
    ),
    "an older nsys is not told to export sizes": Scene([row("range", "ncclAllReduce", 100, 20)], {"notes": []}),
    "calls of a group launch one kernel at its end": Scene(
        [*GROUP, *TWO_SENT, *launches(ALL_REDUCE, 135)], {"collectives": [("all_reduce", 300, "bfloat16", "17", -1)]}
    ),
    "calls of a group launch a kernel each": Scene(
        [*GROUP, *TWO_SENT, *launches(ALL_REDUCE, 135), *launches(ALL_REDUCE, 145, 2)],
        {"messages": [("all_reduce", 100), ("all_reduce", 200)]},
    ),
    "sends and receives in one kernel count once": Scene(
        [*GROUP, *FOUR_SENT, *launches(SEND_RECV, 135)], {"collectives": [("send_recv", 40, None, "17", -1)]}
    ),
    "sends and receives are what PyTorch calls them": Scene(
        [*GROUP, *FOUR_SENT, *launches(SEND_RECV, 135), row("range", "nccl:all_to_all, op_id = 4", 90, 200)],
        {"messages": [("all_to_all", 40)]},
    ),
    "without payloads the kernel's name must do": Scene(
        [row("kernel", ALL_REDUCE, 100, 5), row("kernel", "void gemm()", 200, 5),
         row("kernel", "ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclDevComm*)", 300, 5)],
        {"collectives": [("all_reduce", -1, "bfloat16", None, -1), ("all_gather", -1, "int8", None, -1)],
         "of events": [0, 2]},
    ),
    "each process has the rank that NCCL gave it": Scene(
        [joins(group, size, rank, pid=pid, at=at)
         for pid, of_world in ((100, 1), (200, 0))
         for group, size, rank, at in ((77, 2, of_world, 0), (78 + of_world, 1, 0, 20))]
        + [row("kernel", "k", 100, 10, pid=pid, device=device) for pid, device in ((100, 1), (200, 0))],
        {"rank": None, "world": (2, {100: 1, 200: 0})},
    ),
}  # fmt: skip


def two_processes(*cuda: int) -> Rows:
    """Processes 100 and 200 on nsys' GPUs 0 and 1, which they call `cuda`; both allocate, both GPUs are sampled."""
    return [
        add
        for gpu, (pid, number) in enumerate(zip((100, 200), cuda, strict=True))
        for add in (
            row("add", "TARGET_INFO_GPU", vmId=1, id=gpu, name=f"GPU {gpu}", cuDevice=gpu),
            row("add", "TARGET_INFO_CUDA_DEVICE", gpuId=gpu, cudaId=number, pid=pid),
            row("call", "cuInit", 10, 5, correlation=0, pid=pid, tid=pid),
            row("memory", 20, 1_000 * (gpu + 1), pid=pid, device=number),
            row("kernel", f"of {pid}", 1_000, 50 * (gpu + 1), pid=pid, device=number),
            row("sampled", gpu, 10 * (gpu + 1)),
        )
    ]


BEGAN = row("call", "cuInit", 0, 1, correlation=0)
ALLOCATED = [
    row("memory", at, size, freed=freed)
    for at, size, freed in ((1, 100, False), (2, 50, False), (3, 100, True), (4, 20, False))
] + [row("memory", 5, 999, kind=1)]
OF_DEVICES = {
    **{
        f"ranks that each see {what} do not share it": Scene(
            two_processes(*cuda),
            {"device": [0, 1], "process": [100, 200], "device names": {0: "GPU 0", 1: "GPU 1"},
             "counters": [("SM Active", 0, [10], [10.0]), ("SM Active", 1, [10], [20.0])],
             "peak": {(100, 0): 1_000, (200, 1): 2_000}},
        )
        for what, cuda in (("one GPU", (0, 0)), ("both", (0, 1)))
    },
    "a process that sees the last GPU alone is not given the first's counters": Scene(
        [add for gpu in range(4) for add in (
            row("add", "TARGET_INFO_GPU", vmId=1, id=gpu, name=f"GPU {gpu}", cuDevice=gpu), row("sampled", gpu, gpu))]
        + [row("add", "TARGET_INFO_CUDA_DEVICE", gpuId=3, cudaId=0, pid=9), row("kernel", "k", 100, 10)],
        {"device": [3], "counters": [("SM Active", gpu, [10], [float(gpu)]) for gpu in range(4)]},
    ),
    "allocations give the peak of a device recorded from the start": Scene(
        [BEGAN, *ALLOCATED], {"peak": {(9, 0): 150}}, nsys_step
    ),
    "what a process held before the recording is not known": Scene(ALLOCATED, {"peak": {}}, nsys_step),
    "more was freed than was seen to be allocated": Scene(
        [BEGAN, *ALLOCATED, row("memory", 6, 500, freed=True)], {"peak": {}}, nsys_step
    ),
}  # fmt: skip
CHAINS = [
    ([("0x7f1", "/usr/lib/libcuda.so.535"), ("0x7f2", "libcudart.so.12"), ("cudaMemcpyAsync", "libcudart.so.12"),
      ("at::native::copy_impl(at::Tensor&)", "libtorch_cpu.so"), PYTHON],
     "cudaMemcpyAsync (libcudart.so.12)", HostKind.SAMPLE),
    ([("__memmove_avx_unaligned", LIBC), ("inflate_fast", "/lib/libz.so.1"), PYTHON],
     "inflate_fast (libz.so.1)", HostKind.SAMPLE),
    ([("__read", LIBC), ("_io_FileIO_readinto", PYTHON[1]), PYTHON], "read (libc-2.31.so)", HostKind.SAMPLE),
    ([("0x7f3", "/usr/lib/libhdf5.so.103"), PYTHON], "libhdf5.so.103", HostKind.SAMPLE),
    ([("0x7f4", "[vdso]"), ("__clock_gettime", LIBC), PYTHON], "Python code (python3.10)", HostKind.SAMPLE),
    ([("visit_decref", PYTHON[1]), ("gc_collect_main", PYTHON[1]), PYTHON],
     "Python's garbage collector", HostKind.COLLECTOR),
    ([("void c10::function_ref<void (char**)>::callback_fn<at::native>(long)", "libtorch_cpu.so"),
      ("at::native::(anonymous namespace)::copy_same_dtype(at::TensorIteratorBase&)", "libtorch_cpu.so")],
     "at::native::copy_same_dtype (libtorch_cpu.so)", HostKind.SAMPLE),
    ([("__read", LIBC), PYTHON, ("load", "/home/me/data.py"), ("main", "/home/me/train.py")],
     "/home/me/data.py(0): load", HostKind.PYTHON),
]  # fmt: skip
INFLATES = (("inflate", "libz.so.1"), PYTHON)
OF_HOST = {
    "long calls of the system are kept on threads that launch or have ranges": Scene(
        [row("range", "loader", 0, LONG, tid=11), row("host", OS, "read", 5, LONG),
         row("host", OS, "poll", 5, LONG - 1), row("host", "OSRT_API", "pthread_cond_wait", 7, 2 * LONG, tid=11),
         row("host", OS, "sem_wait", 7, 2 * LONG, tid=12), row("host", OS, "read", 7, 2 * LONG, pid=10)],
        {"host": [("read", HostKind.OS_CALL, 9, 5, 5 + LONG),
                  ("pthread_cond_wait", HostKind.OS_CALL, 11, 7, 7 + 2 * LONG)]}, nsys_step,
    ),
    "long calls of libraries are operators": Scene(
        [row("host", "CUDNN_EVENTS", "cudnnConvolutionForward", 5, LONG),
         row("host", "CUBLAS_EVENTS", "cublasCreate_v2", 2 * LONG, LONG), row("host", "CUBLAS_EVENTS", "short", 7, 9),
         row("host", "MPI_COLLECTIVES_EVENTS", "MPI_Allreduce", 4 * LONG, LONG),
         row("host", "MPI_P2P_EVENTS", "MPI_Send", 6 * LONG, LONG, tid=12)],
        {"host": [("cudnnConvolutionForward", HostKind.OPERATOR, 9, 5, 5 + LONG),
                  ("cublasCreate_v2", HostKind.OPERATOR, 9, 2 * LONG, 3 * LONG),
                  ("MPI_Allreduce", HostKind.OPERATOR, 9, 4 * LONG, 5 * LONG)]}, nsys_step,
    ),
    "the profiler's work is kept on all threads, and the driver's told from it": Scene(
        [row("host", "PROFILER_OVERHEAD", "CUPTI: Buffer flush", 5, LONG, tid=33),
         row("host", "PROFILER_OVERHEAD", "CUPTI: Buffer flush", 5, LONG, pid=10),
         row("host", "CUPTI_ACTIVITY_KIND_OVERHEAD", "Lazy Function Loading", 9, LONG),
         row("host", "CUPTI_ACTIVITY_KIND_OVERHEAD", "Command Buffer Full", 10, 2 * LONG)],
        {"host kinds": [("Lazy Function Loading", HostKind.OS_CALL), ("Command Buffer Full", HostKind.OS_CALL),
                        ("CUPTI: Buffer flush", HostKind.PROFILER)]}, nsys_step,
    ),
    **{
        f"a sample is named {name}": Scene(
            [row("sample", 1_000, *chain), row("sample", 1_000 + PERIOD_NS, ("[Broken backtraces]",) * 2)],
            {"host kinds": [(name, kind)]}, nsys_step,
        )
        for chain, name, kind in CHAINS
    },
    "a sample lasts until the next one and no longer than two periods": Scene(
        [*(row("sample", at * PERIOD_NS, *INFLATES) for at in (0, 1, 2, 9)),
         row("sample", 10 * PERIOD_NS, ("read", LIBC), PYTHON),
         row("sample", 5, *INFLATES, tid=12)],  # of a thread that launches nothing
        {"host": [("inflate (libz.so.1)", HostKind.SAMPLE, 9, 0, 4 * PERIOD_NS),
                  ("inflate (libz.so.1)", HostKind.SAMPLE, 9, 9 * PERIOD_NS, 10 * PERIOD_NS),
                  ("read (libc-2.31.so)", HostKind.SAMPLE, 9, 10 * PERIOD_NS, 11 * PERIOD_NS)]}, nsys_step,
    ),
    "a thread that ran on no core waited": Scene(
        [*(row("scheduled", at, on) for at, on in
           ((0, True), (100, False), (100 + LONG, True), (2 * LONG, False), (2 * LONG + 9, True))),
         row("scheduled", 0, False, tid=12), row("scheduled", 9 * LONG, True, tid=12)],
        {"host": [("not on a core", HostKind.WAIT, 9, 100, 100 + LONG)]}, nsys_step,
    ),
    **{
        f"a range or a domain {name} is a collection": Scene(
            [row("range", name, 2_000, 3 * LONG), row("range", name, 0, None, kind=75, domain=4),
             row("range", "generation 2", 9 * LONG, LONG, domain=4), row("range", "gcn layer", 20 * LONG, LONG)],
            {"host kinds": [(name, HostKind.COLLECTOR), ("generation 2", HostKind.COLLECTOR)]}, nsys_step,
        )
        for name in ("GC", "gc.collect", "Python GC", "garbage collection")
    },
    "without any of these tables there are no spans of the host": Scene(
        [row("call", "cudaLaunchKernel", 1, 2, correlation=1), row("kernel", "k", 5, 5, correlation=1)], {"host": []},
        sql=tuple(f"DROP TABLE {table}" for table in (
            "OSRT_API", "PROFILER_OVERHEAD", "SCHED_EVENTS", "COMPOSITE_EVENTS", "SAMPLING_CALLCHAINS")),
    ),
}  # fmt: skip
SCENES = OF_CUDA | NUMBERED | OF_RANGES | OF_NCCL | OF_DEVICES | OF_HOST


@pytest.mark.parametrize("name", SCENES)
def test_rows_of_an_export_become(tmp_path: Path, name: str) -> None:
    scene = SCENES[name]
    assert differing(open_trace(scene.saved(tmp_path / "t.sqlite")), scene.told) == {}


@pytest.mark.parametrize("table", [table for table in nsys.SCHEMA if table != "StringIds"])
def test_every_table_is_optional(tmp_path: Path, table: str) -> None:
    found = told(open_trace(Scene((), {}, nsys_step, (f"DROP TABLE {table}",)).saved(tmp_path / "t.sqlite")))
    assert ("void gemm<float>(float*)" in found["events"]) == (table != "CUPTI_ACTIVITY_KIND_KERNEL")
    assert ("forward" in found["ranges"]) == (table != "NVTX_EVENTS")


COLUMNS = {column.split()[0] for columns in nsys.SCHEMA.values() for column in columns.split(", ")}


@pytest.mark.parametrize("column", sorted(COLUMNS - {"start", "end", "id"}))
def test_every_other_column_is_optional(tmp_path: Path, column: str) -> None:
    made = nsys_step()
    made._without_columns = (column,)
    trace = open_trace(made.saved(tmp_path / "t.sqlite"))
    assert differing(trace, {"start": [10_000, 31_000, 36_000, 40_000]}) == {}
