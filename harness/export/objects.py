"""Traces to tasks (one per process), the rows on which their events are drawn, and one common clock.

Both Paraver and Perfetto are written from this. It knows neither format.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np

from harness.analysis.job.grouping import clocks_of
from harness.analysis.process.intervals import lanes
from harness.analysis.process.kinds import classify, load_rules
from harness.analysis.process.view import process_rank, processes
from harness.analysis.summary import Clock
from harness.common.errors import WorkError
from harness.traces.trace import I64, U8, Activity, RangeKind, Trace

UNKNOWN_NODE = "node0"
MIN_COLLECTIVES = 3  # matched collectives that the comparison of two clocks needs


class RowKind(IntEnum):
    """What a row shows. Host threads come first in a task, then streams: nsys2prv's order."""

    HOST = 0
    STREAM = 1
    START_END = 2  # NVTX ranges that need not nest
    METRICS = 3


@dataclass(frozen=True)
class TimelineRow:
    """One line of a timeline. `a`, `b`: thread, or device and stream. `lane`: events that overlap get their own."""

    kind: RowKind
    a: int
    b: int
    lane: int


@dataclass(frozen=True)
class ParaverTask:
    """One process. Index arrays point into its trace's columns; row arrays, of the same length, into `rows`.

    `launched` are the events that a call or another operator launched, so without the pieces of operators.
    """

    trace: Trace
    rank: int | None
    node: str
    offset_ns: int
    rows: list[TimelineRow]
    devices: list[int]
    events: I64
    event_row: I64
    event_class: U8
    calls: I64
    call_row: I64
    ranges: I64
    range_row: I64
    launched: I64
    launch_row: I64

    @property
    def label(self) -> str:
        """ "rank 3", or the process where the rank is not known."""
        if self.rank is not None:
            return f"rank {self.rank}"
        process = self.trace.events.process[self.events[:1]].tolist() or [self.trace.identity.pid]
        return f"process {process[0]}"


@dataclass(frozen=True)
class ObjectModel:
    """All tasks on one clock from 0 to `end_ns`; `epoch_ns` is the unix time of 0, if known."""

    tasks: list[ParaverTask]
    nodes: list[str]
    end_ns: int
    epoch_ns: int | None
    notes: list[str]


def build_object_model(traces: Sequence[Trace], hosts: Mapping[int, str] | None = None) -> ObjectModel:
    """Tasks of all traces, sorted by rank. `hosts`: node name by rank, for traces that do not name their node. Raises
    WorkError: the traces hold nothing."""
    traces = [_with_host(trace, hosts or {}) for trace in traces]
    offsets, absolute, notes = offsets_ns(traces)
    found = [
        (_order(trace, process, index), trace, process, offset)
        for index, (trace, offset) in enumerate(zip(traces, offsets, strict=True))
        for process in processes(trace)
    ]
    found.sort(key=lambda item: item[0])
    if not found:
        raise WorkError("there is nothing to write: the traces hold no events and no ranges")
    tasks = [_task(trace, process, offset) for _, trace, process, offset in found]
    first = min(map(_first_ns, tasks))
    tasks = [replace(task, offset_ns=task.offset_ns - first) for task in tasks]
    nodes = list(dict.fromkeys(task.node for task in tasks))
    notes += [note for trace in traces for note in trace.notes]
    return ObjectModel(tasks, nodes, max(map(_last_ns, tasks)), first if absolute else None, notes)


def offsets_ns(traces: Sequence[Trace]) -> tuple[list[int], bool, list[str]]:
    """(the offset to add to each trace's times, whether the sum is unix time, notes).

    The clocks of nodes differ by up to milliseconds, also with a time service. Where the ends of matched collectives
    show a difference larger than their own spread, the offset removes it.
    """
    if any(trace.identity.clock != "unix" and trace.identity.epoch_ns is None for trace in traces):
        spans = [_span(trace) for trace in traces]
        if len(traces) < 2 or max(low for low, _ in spans) < min(high for _, high in spans):
            return [0] * len(traces), False, []
        note = "the traces do not record when their clocks started: each begins at its first event"
        return [-low for low, _ in spans], False, [note]
    clocks = clocks_of(traces)
    reference = next(iter(clocks), "")
    usable = {c.host: c for c in clocks.values() if c.host == reference or c.collectives >= MIN_COLLECTIVES}
    shifted = {c.host: c.offset_ns for c in usable.values() if abs(c.offset_ns) > 4 * c.residual_ns}
    notes = [_shifted(usable[host], reference) for host in shifted]
    lacking = [host for host in dict.fromkeys(map(_host, traces)) if host not in usable]
    if lacking:
        names = f"{', '.join(lacking[:4])}{' …' if lacking[4:] else ''} and {reference}"
        notes.append(
            f"the clocks of {names} cannot be compared, because none of their collectives match: events that are "
            "drawn at one time may have different times"
        )
    return [(t.identity.epoch_ns or 0) - shifted.get(_host(t), 0) for t in traces], True, notes


def _shifted(clock: Clock, reference: str) -> str:
    return (
        f"the clock of {clock.host} is {abs(clock.offset_ns) / 1e3:.1f} µs "
        f"{'ahead of' if clock.offset_ns > 0 else 'behind'} that of {reference}, by the ends of {clock.collectives} "
        "collectives: its events are shifted by that"
    )


def _span(trace: Trace) -> tuple[int, int]:
    columns = [column for column in (trace.events, trace.ranges, trace.calls) if len(column.start_ns)]
    if not columns:
        return 0, 0
    return min(int(c.start_ns.min()) for c in columns), max(int(c.end_ns.max()) for c in columns)


def _with_host(trace: Trace, hosts: Mapping[int, str]) -> Trace:
    """The trace with its node's name."""
    rank = trace.identity.rank
    host = trace.identity.host or hosts.get(-1 if rank is None else rank, UNKNOWN_NODE)
    return replace(trace, identity=replace(trace.identity, host=host))


def _host(trace: Trace) -> str:
    return trace.identity.host or UNKNOWN_NODE


def _order(trace: Trace, process: int, index: int) -> tuple[int, int, int, int]:
    rank = process_rank(trace, process)
    devices = trace.events.device[trace.events.process == process]
    unknown = 2**31 - 1
    return (unknown if rank is None else rank, index, int(devices.min(initial=unknown)), process)


def _task(trace: Trace, process: int, offset_ns: int) -> ParaverTask:
    events, calls, ranges = trace.events, trace.calls, trace.ranges
    mine = np.flatnonzero(events.process == process)
    called = np.flatnonzero(calls.process == process)
    ranged = np.flatnonzero(ranges.process == process)
    launched = mine[
        (events.launch_ns[mine] >= 0) & (events.launch_thread[mine] >= 0) & (events.activity[mine] != Activity.CPU_OP)
    ]
    event_class = classify(events, trace.names, load_rules()).event_class[mine]
    keys = [
        _event_keys(trace, process, mine),
        _host_keys(calls.thread[called]),
        _range_keys(trace, ranged),
        _host_keys(events.launch_thread[launched]),
    ]
    distinct, inverse = np.unique(np.concatenate(keys), axis=0, return_inverse=True)
    row = np.split(inverse.reshape(-1).astype(np.int64), np.cumsum([len(key) for key in keys])[:-1])
    rows = [TimelineRow(RowKind(kind), a, b, lane) for kind, a, b, lane in distinct.tolist()]
    devices = sorted({r.a for r in rows if r.kind is RowKind.STREAM})
    metrics = [m.device for m in trace.metrics if m.device in devices]
    rows += [TimelineRow(RowKind.METRICS, device, 0, 0) for device in sorted(set(metrics))]
    return ParaverTask(
        trace, process_rank(trace, process), _host(trace), offset_ns, rows, devices,
        mine, row[0], event_class, called, row[1], ranged, row[2], launched, row[3],
    )  # fmt: skip


def _event_keys(trace: Trace, process: int, mine: I64) -> I64:
    """(kind, device, stream, lane), or (kind, thread, 0, lane) for events of a CPU."""
    events = trace.events
    collective = events.activity[mine] == Activity.CPU_COLLECTIVE
    on_host = collective | (events.activity[mine] == Activity.CPU_OP)
    a = np.where(on_host, events.stream[mine], events.device[mine])
    b = np.where(on_host, 0, events.stream[mine])
    _, group = np.unique(np.stack([on_host, a, b]), axis=1, return_inverse=True)
    # A collective may end after the operator or range in which it began: on their thread it gets its own lanes.
    lane = lanes(events.start_ns[mine], events.end_ns[mine], group.reshape(-1) * 2 + collective)
    others = np.concatenate([a[on_host & ~collective], trace.ranges.thread[trace.ranges.process == process]])
    lane[collective & np.isin(a, others)] += 1
    return np.stack([np.where(on_host, RowKind.HOST, RowKind.STREAM), a, b, lane], axis=1)


def _host_keys(thread: I64) -> I64:
    zero = np.zeros(len(thread), np.int64)
    return np.stack([zero, thread, zero, zero], axis=1)


def _range_keys(trace: Trace, ranged: I64) -> I64:
    ranges = trace.ranges
    keys = _host_keys(ranges.thread[ranged])
    free = np.flatnonzero(ranges.kind[ranged] == RangeKind.START_END)
    chosen = ranged[free]
    lane = lanes(ranges.start_ns[chosen], ranges.end_ns[chosen], np.zeros(len(chosen), np.int64))
    keys[free] = np.stack([np.full(len(free), RowKind.START_END), 0 * lane, 0 * lane, lane], axis=1)
    return keys


def _first_ns(task: ParaverTask) -> int:
    events, ranges, calls = task.trace.events, task.trace.ranges, task.trace.calls
    starts = (events.start_ns[task.events], ranges.start_ns[task.ranges], calls.start_ns[task.calls])
    launches = events.launch_ns[task.launched]
    return min(int(column.min()) for column in (*starts, launches) if len(column)) + task.offset_ns


def _last_ns(task: ParaverTask) -> int:
    events, ranges, calls = task.trace.events, task.trace.ranges, task.trace.calls
    ends = (events.end_ns[task.events], ranges.end_ns[task.ranges], calls.end_ns[task.calls])
    return max(int(column.max()) for column in ends if len(column)) + task.offset_ns
