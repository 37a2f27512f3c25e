"""What is recorded of the host that is by itself a reason for a device to have no work: data loading, Python's garbage
collector, the profiler, and calls of the device's library that take long. Knows no gap."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.analysis.process.by_name import matching, used
from harness.analysis.process.first_use import LONG_CALL_NS, compiling_spans, first_uses
from harness.analysis.process.intervals import EMPTY, Intervals, RangeTree, complement, contains, merge, overlaps, union
from harness.analysis.process.view import ProcessView
from harness.traces.columns import distinct
from harness.traces.trace import I64, U8, Activity, Calls, HostKind
from harness.traces.vocabulary import launches_work

KNOWN = 0.9  # of the work has a launch: else it is not known which launches have none
_FEEDS = 0.1  # of the events: a thread that launches fewer does not feed the device
_DATA = re.compile(
    r"data[ _]?load|dataload|\[DALI\]|(next|get|load|fetch)[ _]?batch|batch[ _-]?generator|data[ _]?iter", re.IGNORECASE
)
_DATA_CODE = re.compile(
    r"torch/utils/data/|torchdata/|datasets/(?:arrow|iterable)_dataset\.py|DataLoader|IteratorGetNext|tensorflow/python/data/|nvidia/dali|webdataset/|tf[._]data"
)
_WAIT = re.compile(r"^(recv|send|wait|barrier|p2p|batch_isend)", re.IGNORECASE)
_COMMUNICATION_CALL = re.compile(r"c10d|record_param_comms|wait|barrier", re.IGNORECASE)
_OF_BYTES = re.compile(r"Mem(?:set|cpy)")
_NOTHING_NS = 1_000  # a call that sets or copies something takes two microseconds or more
_ITEM = re.compile(r"_local_scalar_dense|aten::(item|is_nonzero|equal|nonzero)\b")
_CAPTURE = re.compile(r"Graph(Instantiate|ExecUpdate|Destroy|ExecDestroy)|Stream(Begin|End)Capture")
_LOADS = re.compile(
    r"Module(Load|GetFunction)|LibraryLoad|LinkAdd|LinkComplete|FuncGetAttributes|FuncSetAttribute|Occupancy|"
    r"FuncLoad|KernelGetFunction|CtxCreate|PrimaryCtxRetain|RegisterFatBinary"
)
_DRIVER_LOADS = re.compile(r"(?:lazy|module|function).*loading|compiler", re.IGNORECASE)  # of CUPTI's overheads


class HostCause(IntEnum):
    """A cause of idle time: its index into CAUSES, its name and its colour; on_cpu: its name on a CPU, if another."""

    label: str
    color: str
    on_cpu: str

    DATA = 0, "data loading", "#cc79a7"
    COLLECTOR = 1, "garbage collection", "#a3578f"
    PROFILER = 2, "profiler", "#d9a8c8"
    SYNCHRONISATION = 3, "synchronisation", "#c9a800"
    COPY = 4, "blocking copy", "#9a8f00"
    ALLOCATION = 5, "allocation", "#e3d26a"
    FIRST_USE = 6, "first use", "#7f6f3a"
    CAPTURE = 7, "graph capture", "#b8a25e"
    LAUNCH = 8, "launch-bound", "#8a6a5c", "between operators"  # a CPU launches nothing: it is Python's time
    HOST = 9, "host work", "#5f6b78"
    NOT_RECORDED = 10, "not recorded", "#a9b1ba"
    COMMUNICATION = 11, "communication", "#f0b469"  # pale orange: the device only waits for it
    OTHER = 12, "other", "#c4c8cc"

    def __new__(cls, number: int, label: str, color: str, on_cpu: str = "") -> HostCause:
        cause = int.__new__(cls, number)
        cause._value_, cause.label, cause.color, cause.on_cpu = number, label, color, on_cpu or label
        return cause


CAUSES = tuple(cause.label for cause in HostCause)
# What a call does to the host, by its name; the first that fits. An asynchronous copy counts if it is long.
_BLOCKING: tuple[tuple[HostCause, re.Pattern[str]], ...] = (
    (HostCause.SYNCHRONISATION, re.compile(r"Synchronize|EventQuery.*wait")),
    (HostCause.ALLOCATION, re.compile(
        r"(cuda|hip)\w*(Free|Malloc)(?!\w*Async)|HostAlloc|Host(Un)?[Rr]egister|"
        r"cuMem(Create|Map|Unmap|Release|SetAccess|Address|Alloc|Free)(?!\w*Async)|hipMem(Create|Map|Unmap|Address)"
    )),
    (HostCause.COPY, re.compile(r"Memcpy(?!\w*Async)")),
)  # fmt: skip
_IF_LONG: tuple[tuple[HostCause, re.Pattern[str]], ...] = (
    (HostCause.COPY, re.compile(r"Memcpy")),
    (HostCause.ALLOCATION, re.compile(r"Malloc|Free|MemPool|MemAlloc")),
    (HostCause.CAPTURE, _CAPTURE),
    (HostCause.FIRST_USE, _LOADS),
)
_HOLDING = (HostCause.SYNCHRONISATION, HostCause.COPY, HostCause.ALLOCATION)  # a device runs dry after them


def blocks(call: str) -> bool:
    """Whether a call of the device's library holds its thread until the device has done something."""
    return any(pattern.search(call) for _, pattern in _BLOCKING)


def only_waits(call: str) -> bool:
    """Whether a call does nothing but wait for the device."""
    return _by_name(call, _BLOCKING, -1) == HostCause.SYNCHRONISATION


def loads_data(name: str) -> object:
    """Whether a range, function or operator loads data."""
    return _DATA.search(name) or _DATA_CODE.search(name)


def awaits_communication(name: str) -> bool:
    """Whether an operator of a CPU trace only starts or awaits a collective."""
    return _COMMUNICATION_CALL.search(name) is not None


class HostSource(IntEnum):
    """What tells of a stretch: the columns that `row` points into."""

    NOTHING = 0
    CALL = 1
    RANGE = 2
    SPAN = 3  # of View.host


@dataclass(frozen=True)
class HostStretches:
    """n disjoint stretches in order in which something recorded tells what the host did.

    long_start_ns, long_end_ns: the long calls that launch work, in order; an event cannot start before they end."""

    start_ns: I64
    end_ns: I64
    cause: U8
    source: U8
    row: I64
    long_start_ns: I64
    long_end_ns: I64

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def blocks(self) -> NDArray[np.bool_]:
        """Which stretches hold the host until the device has done something."""
        return np.isin(self.cause, _HOLDING)

    def launched_until(self, launch_ns: I64) -> I64:
        """The end of the call behind each launch, where that call is long; else -1."""
        if not len(self.long_start_ns):
            return np.full(len(launch_ns), -1)
        at = np.searchsorted(self.long_start_ns, launch_ns, side="right") - 1
        found = (at >= 0) & (self.long_start_ns[np.maximum(at, 0)] == launch_ns)
        return np.where(found, self.long_end_ns[np.maximum(at, 0)], -1)

    def around(self, moment: I64) -> tuple[I64, I64]:
        """The last stretch that starts at or before each moment (-1: none) and the next one (n: none)."""
        after = np.searchsorted(self.start_ns, moment, side="right")
        return after - 1, after


class _Layer(NamedTuple):
    """Stretches of one source, which may overlap. A later layer counts only outside of those before it."""

    start_ns: I64
    end_ns: I64
    cause: U8
    source: HostSource
    row: I64


def feeding_threads(view: ProcessView, nesting: RangeTree) -> I64:
    """The threads that launch a tenth of the work or more, the one with most first, and the main thread, unless it
    launches nothing beside others of which more than calls is recorded; empty where neither is known."""
    known = view.events.launch_thread[view.events.launch_thread >= 0]
    threads = np.array(distinct(known), np.int64)
    counts = np.array([np.count_nonzero(known == thread) for thread in threads.tolist()], np.int64)
    order = np.argsort(-counts, kind="stable")
    fed = threads[order][counts[order] >= _FEEDS * max(len(known), 1)]
    main = nesting.main_thread
    if main is None or main in fed or (main not in threads and np.isin(fed, view.host.thread).any()):
        return fed
    return np.append(fed, main)


def told_on_gpu(view: ProcessView, nesting: RangeTree, feeding: I64, operators: Callable[[I64], I64]) -> HostStretches:
    """What is told of the host beside a GPU. `operators`: the outermost operator's name around the middle of each of
    some rows of calls, -1: none. A copy that blocks inside data loading is a copy, not waiting for data."""
    first = first_uses(view, feeding)
    calls = _calls(view, feeding, operators, first)
    of = calls.cause == HostCause.COPY
    copies = _Layer(calls.start_ns[of], calls.end_ns[of], calls.cause[of], calls.source, calls.row[of])
    begin, end = captures(view.calls, view.names)
    captured = _layer(view.calls.start_ns[begin], view.calls.end_ns[end], HostCause.CAPTURE, HostSource.CALL, begin)
    layers = [copies, *_spans(view, nesting, feeding), captured, calls, *_compiling(view, feeding)]
    long = np.flatnonzero(view.calls.end_ns - view.calls.start_ns >= LONG_CALL_NS)
    return _layered(layers, view.calls.start_ns[long], view.calls.end_ns[long])


def _compiling(view: ProcessView, feeding: I64) -> list[_Layer]:
    """What belongs to a first use and is no call: compilers."""
    host, ranges = view.host, view.ranges
    spans = compiling_spans(view, host.name, host.start_ns, host.end_ns, host.thread)
    rows = np.flatnonzero(np.isin(host.thread, feeding) & spans)
    named = np.flatnonzero(compiling_spans(view, ranges.name, ranges.start_ns, ranges.end_ns, ranges.thread))
    return [
        _layer(host.start_ns[rows], host.end_ns[rows], HostCause.FIRST_USE, HostSource.SPAN, rows),
        _layer(ranges.start_ns[named], ranges.end_ns[named], HostCause.FIRST_USE, HostSource.RANGE, named),
    ]


def told_on_cpu(view: ProcessView, nesting: RangeTree, feeding: I64, dispatch: Intervals) -> HostStretches:
    """What is told of the host where operators are the work. `dispatch`: those that start or await communication."""
    ranges = view.ranges
    layers = _spans(view, nesting, feeding)
    waiting = matching(ranges.name, view.names, _WAIT.search) & _on_main(ranges.thread, nesting)
    held = np.flatnonzero(waiting)
    layers.insert(1, _layer(dispatch.start, dispatch.end, HostCause.COMMUNICATION))
    layers.insert(
        1, _layer(ranges.start_ns[held], ranges.end_ns[held], HostCause.COMMUNICATION, HostSource.RANGE, held)
    )
    annotated = union(ranges.start_ns, ranges.end_ns)
    return _layered([*layers, _layer(annotated.start, annotated.end, HostCause.LAUNCH)])


def _on_main(thread: I64, nesting: RangeTree) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = thread == (-2 if nesting.main_thread is None else nesting.main_thread)
    return found


def _layer(
    start: I64, end: I64, cause: HostCause | U8, host_source: HostSource = HostSource.NOTHING, row: I64 | None = None
) -> _Layer:
    causes = np.broadcast_to(np.asarray(cause, np.uint8), start.shape)
    return _Layer(start, end, causes, host_source, np.full(len(start), -1) if row is None else row)


def _spans(view: ProcessView, nesting: RangeTree, feeding: I64) -> list[_Layer]:
    """Data loading of the main thread, without workers that prefetch; the collector, which holds every thread of
    Python; the profiler; the driver, which loads code."""
    ranges, host, names = view.ranges, view.host, view.names
    loads = matching(ranges.name, names, loads_data)
    data = np.flatnonzero(loads & _on_main(ranges.thread, nesting))
    layers = [_layer(ranges.start_ns[data], ranges.end_ns[data], HostCause.DATA, HostSource.RANGE, data)]
    if not len(host):
        return layers
    mine = np.isin(host.thread, feeding)
    code = np.isin(host.kind, (HostKind.OPERATOR, HostKind.PYTHON))
    for cause, chosen in (
        (HostCause.DATA, mine & code & matching(host.name, names, _DATA_CODE.search)),
        (HostCause.COLLECTOR, (mine | (host.thread < 0)) & (host.kind == HostKind.COLLECTOR)),
        (HostCause.PROFILER, host.kind == HostKind.PROFILER),
        (HostCause.FIRST_USE, (host.kind == HostKind.OS_CALL) & matching(host.name, names, _DRIVER_LOADS.search)),
    ):
        rows = np.flatnonzero(chosen)
        layers.append(_layer(host.start_ns[rows], host.end_ns[rows], cause, HostSource.SPAN, rows))
    return layers


def captures(calls: Calls, names: list[str]) -> tuple[I64, I64]:
    """The calls with which each capture of a graph begins and ends: the next end on the same thread."""
    begins = matching(calls.name, names, re.compile("StreamBeginCapture").search)
    ends = matching(calls.name, names, re.compile("StreamEndCapture").search)
    rows = np.flatnonzero(begins | ends)
    rows = rows[np.lexsort((calls.start_ns[rows], calls.thread[rows]))]
    end = np.where(ends[rows], np.arange(len(rows)), len(rows))
    next_end = np.minimum.accumulate(end[::-1])[::-1]
    first = np.flatnonzero(begins[rows] & (next_end < len(rows)))
    first, last = rows[first], rows[next_end[first]]
    same = calls.thread[first] == calls.thread[last]
    return first[same], last[same]


class LaunchTimes(NamedTuple):
    """When each launch was made, up to the last one with work and outside of a graph's capture, and whether its work is
    missing; nothing where launches and work cannot be told to belong together. captured: the captures of graphs."""

    start_ns: I64
    lost: NDArray[np.bool_]
    captured: Intervals


def launches_of(view: ProcessView) -> LaunchTimes:
    """Whole recordings have up to three launches without work, none of them before the first launch with work; those
    after the last one may run after the recording's end. A set or copy of zero bytes has no work to lose."""
    events, calls = view.events, view.calls
    begin, end = captures(calls, view.names)
    captured = union(calls.start_ns[begin], calls.end_ns[end])
    launched = events.launch_ns[events.launch_ns >= 0]
    if len(launched) < max(KNOWN * np.count_nonzero(events.activity <= Activity.MEMSET), 1):
        return LaunchTimes(EMPTY.start, np.empty(0, np.bool_), captured)
    rows = np.flatnonzero(matching(calls.name, view.names, launches_work))
    start = calls.start_ns[rows]
    rows = rows[(start <= launched.max()) & (calls.correlation[rows] >= 0) & ~contains(captured, start)]
    lost = ~np.isin(calls.correlation[rows], events.correlation)
    of_no_bytes = matching(calls.name[rows], view.names, _OF_BYTES.search)
    of_no_bytes &= calls.end_ns[rows] - calls.start_ns[rows] <= _NOTHING_NS
    return LaunchTimes(calls.start_ns[rows], lost & ~of_no_bytes, captured)


def _calls(view: ProcessView, feeding: I64, operators: Callable[[I64], I64], first: NDArray[np.bool_]) -> _Layer:
    """Blocking calls, and long ones, of the main thread and of threads that launch: a watchdog that waits for an event
    holds up no thread that works. first: the calls that are a first use."""
    calls, names = view.calls, view.names
    cause = np.full(len(names) + 1, len(CAUSES), np.uint8)
    if_long = cause.copy()
    for i in used(calls.name):
        cause[i] = _by_name(names[i], _BLOCKING, len(CAUSES))
        if_long[i] = _by_name(names[i], _IF_LONG, HostCause.HOST)
    long = calls.end_ns - calls.start_ns >= LONG_CALL_NS
    rows = np.flatnonzero((cause[calls.name] < len(CAUSES)) | long)
    rows = rows[np.isin(calls.thread[rows], feeding)] if len(feeding) else rows
    of = np.where(cause[calls.name[rows]] < len(CAUSES), cause[calls.name[rows]], if_long[calls.name[rows]])
    of[first[rows]] = HostCause.FIRST_USE
    copies = np.flatnonzero(of == HostCause.COPY)
    operator = operators(rows[copies])
    item = (operator >= 0) & matching(np.maximum(operator, 0).astype(np.int32), names, _ITEM.search)
    of[copies[item]] = HostCause.SYNCHRONISATION
    return _layer(calls.start_ns[rows], calls.end_ns[rows], of.astype(np.uint8), HostSource.CALL, rows)


def _by_name(name: str, patterns: tuple[tuple[HostCause, re.Pattern[str]], ...], default: int) -> int:
    return next((cause for cause, pattern in patterns if pattern.search(name)), default)


def _layered(layers: list[_Layer], long_start: I64 = EMPTY.start, long_end: I64 = EMPTY.end) -> HostStretches:
    """The layers as disjoint stretches."""
    taken = EMPTY
    parts = []
    for layer in layers:
        order = np.argsort(layer.start_ns, kind="stable")
        start, end = layer.start_ns[order], layer.end_ns[order]
        start = np.maximum(start, np.concatenate([start[:1], np.maximum.accumulate(end)[:-1]]))
        order, start, end = (c[end > start] for c in (order, start, end))
        apart = Intervals(start, end)
        free = complement(taken, int(start[0]), int(end[-1])) if len(start) else EMPTY
        i, j = overlaps(apart, free)
        begin, stop = np.maximum(start[i], free.start[j]), np.minimum(end[i], free.end[j])
        source = np.full(len(i), layer.source, np.uint8)
        parts.append((begin, stop, layer.cause[order[i]], source, layer.row[order[i]]))
        taken = merge(taken, union(start, end))
    columns: list[Any] = [np.concatenate(c) for c in zip(*parts, strict=True)]
    order = np.argsort(columns[0], kind="stable")
    start, end, cause, source, row = (c[order] for c in columns)
    return HostStretches(start, end, cause, source, row, long_start, long_end)
