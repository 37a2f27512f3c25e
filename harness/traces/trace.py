"""A trace: what one profiled process (or one nsys report) did, as numpy columns.

Every reader returns this and every analysis takes it. It must not know where the numbers came from or what
they are used for. All times are integer nanoseconds on the trace's own clock, none below 0 (see open.py);
`-1` means "not known" in every integer column unless stated otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]
I32 = NDArray[np.int32]
U8 = NDArray[np.uint8]
F64 = NDArray[np.float64]

# A shorter span explains no stretch that counts: it is a few launches long. What many of them take together is in the
# span that holds them, which is long. Nine of ten operators and Python functions are shorter, and they fill a file.
SHORTEST_HOST_NS = 50_000


class Activity(IntEnum):
    """What the tool recorded; the name is not looked at."""

    KERNEL = 0
    MEMCPY = 1
    MEMSET = 2
    CPU_OP = 3  # innermost operator of a trace without a GPU: it stands in for a kernel
    CPU_COLLECTIVE = 4  # a collective's own span on a CPU backend (gloo:all_reduce …)


class CopyKind(IntEnum):
    """Direction of a memory copy (column `copy_kind`)."""

    UNKNOWN = -1
    H2D = 1
    D2H = 2
    D2D = 8
    P2P = 10


class HostMemory(IntEnum):
    """How the host's side of a copy is allocated (column `host_memory`)."""

    UNKNOWN = 0  # not recorded, or no side is on the host
    PAGEABLE = 1
    PINNED = 2
    MANAGED = 3


class RangeKind(IntEnum):
    """Where a range comes from."""

    PUSH_POP = 0  # NVTX push/pop
    START_END = 1  # NVTX start/end: may cross threads, need not nest
    ANNOTATION = 2  # torch.profiler record_function
    STEP = 3  # ProfilerStep#n


class HostKind(IntEnum):
    """What a span of the host was (column `kind` of HostSpans)."""

    OPERATOR = 0  # of the framework, on a trace with a GPU (aten::to)
    PYTHON = 1  # a Python function: "file.py(120): function"
    OS_CALL = 2  # of the C library, the operating system or the driver (read, pthread_cond_wait, lazy loading)
    SAMPLE = 3  # a sampled call chain, until the thread's next sample: the function that matters in it
    COLLECTOR = 4  # Python's garbage collector
    PROFILER = 5  # the profiler's own work
    WAIT = 6  # the thread ran on no core: it waited for something, or another thread had the core


@dataclass(frozen=True, slots=True)
class Spans:
    """Columns of length n of anything with a start and an end."""

    start_ns: I64
    end_ns: I64

    def __len__(self) -> int:
        return len(self.start_ns)


@dataclass(frozen=True, slots=True)
class Events(Spans):
    """Work on devices, sorted by (device, start). All columns have length n."""

    name: I32  # index into Trace.names
    activity: U8  # Activity
    device: I32  # device index within the host; 0 on a CPU trace
    stream: I64  # CUDA or HIP stream (or HSA queue), or thread id on a CPU trace
    correlation: I64
    launch_ns: I64  # start of the API call that launched it; -1 unknown
    launch_thread: I64  # thread of that call; -1 unknown
    bytes: I64  # copies and sets; -1 otherwise
    copy_kind: I32  # CopyKind; -1 otherwise
    host_memory: U8  # HostMemory of a copy; 0 otherwise
    dtype: I32  # index into Trace.names of the input dtype where recorded (CPU ops), else -1
    process: I64  # pid (nsys: one report can hold several processes), else -1


@dataclass(frozen=True, slots=True)
class Calls(Spans):
    """Host API calls that launch, copy or synchronise, sorted by start. Length n."""

    name: I32
    thread: I64
    correlation: I64
    process: I64


@dataclass(frozen=True, slots=True)
class Ranges(Spans):
    """The program's own named intervals, sorted by (thread, start, -end). Length n."""

    name: I32
    thread: I64
    kind: U8  # RangeKind
    process: I64
    domain: I32  # index into Trace.names of the NVTX domain; -1 default domain
    is_open: U8  # 1: it did not end in the recording, and end_ns is the recording's end


@dataclass(frozen=True, slots=True)
class HostSpans(Spans):
    """What threads of the host did, where it was recorded, sorted by (thread, start, -end). Length n.

    Only what may explain a stretch in which a device has no work: the readers leave out spans that are shorter than
    SHORTEST_HOST_NS. Thread -1: the tool does not say which thread it was.
    """

    name: I32
    thread: I64
    kind: U8  # HostKind
    process: I64


def no_host_spans() -> HostSpans:
    """Nothing was recorded of the host."""
    none = np.empty(0, np.int64)
    return HostSpans(none, none, none.astype(np.int32), none, none.astype(np.uint8), none)


@dataclass(frozen=True, slots=True)
class Collectives(Spans):
    """Communication calls with their arguments, one row per device-side span, sorted by start. Length n.

    `event` points into Events (the NCCL kernel, or the gloo span), `-1`: the device side was not recorded.
    """

    event: I64
    # index into Trace.names: all_reduce, all_gather, reduce_scatter, broadcast, all_to_all, send … or unknown
    kind: I32
    bytes: I64  # bytes of the message as nccl-tests counts it (the larger of input and output)
    dtype: I32  # index into Trace.names
    group: I32  # index into Trace.names: the communicator's name or id
    group_size: I32
    peer: I32  # the other rank of a send or receive, in its group (gloo) or in the job (NCCL); -1: not recorded


@dataclass(frozen=True, slots=True)
class MetricSeries:
    """One sampled hardware counter of one device (nsys GPU metrics)."""

    name: str
    device: int
    time_ns: I64
    value: F64


@dataclass(frozen=True, slots=True)
class NicSamples:
    """One direction of one network port of the node, sampled (nsys NIC metrics). Length n, in order of time.

    `bytes_per_s` is the mean rate from `start_ns` to `end_ns`, of all programs of the node together.
    """

    port: str
    sent: bool
    start_ns: I64
    end_ns: I64
    bytes_per_s: F64


@dataclass(frozen=True, slots=True)
class Identity:
    """Which process of which job this is. None: not recorded."""

    source: str  # "nsys" | "kineto" | "rocpd"
    path: str
    rank: int | None = None
    world_size: int | None = None
    host: str | None = None
    pid: int | None = None
    device_names: dict[int, str] = field(default_factory=dict)
    tool_version: str | None = None
    clock: str = "trace"  # "unix": ns since 1970; "trace": an origin of the tool's own
    epoch_ns: int | None = None  # unix time of clock zero, where recorded
    backend: str | None = None  # nccl, gloo …
    ranks: dict[int, int] = field(default_factory=dict)  # rank by pid, of the processes that record it


@dataclass(frozen=True, slots=True)
class Trace:
    """Everything read from one file."""

    identity: Identity
    names: list[str]
    events: Events
    calls: Calls
    ranges: Ranges
    collectives: Collectives
    host: HostSpans = field(default_factory=no_host_spans)
    metrics: list[MetricSeries] = field(default_factory=list)
    nics: list[NicSamples] = field(default_factory=list)
    peak_memory_bytes: dict[tuple[int, int], int] = field(default_factory=dict)  # by process and device
    dropped_events: int = 0
    complete_until_ns: int | None = None  # of a cut file: later events may be missing
    # By how much the devices' clock was ahead of the host's, and was moved; None: they are apart by changing times.
    device_clock_ns: int | None = 0
    notes: list[str] = field(default_factory=list)  # what was salvaged or is missing, one sentence each
    # Global ranks by the communicator's name, where recorded.
    groups: dict[str, list[int]] = field(default_factory=dict)
