"""Who did something, and on which row it is drawn: traces to tasks (one per process), rows and one common clock.

Both Paraver and Perfetto are written from this. It knows neither format.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np

from harness.analysis.process.kinds import classify, load_rules
from harness.analysis.process.lanes import lanes
from harness.export.clocks import offsets_ns
from harness.traces.trace import I64, U8, Activity, RangeKind, Trace

UNKNOWN_NODE = "node0"
_RANK = re.compile(r"\brank_?(\d+)\b")


class RowKind(IntEnum):
    """What a row shows. Host threads come first in a task, then streams: nsys2prv's order."""

    HOST = 0
    STREAM = 1
    START_END = 2  # NVTX ranges that need not nest
    METRICS = 3


@dataclass(frozen=True)
class Row:
    """One line of a timeline. `a`, `b`: thread, or device and stream. `lane`: where things overlap, they part."""

    kind: RowKind
    a: int
    b: int
    lane: int


@dataclass(frozen=True)
class Task:
    """One process. Index arrays point into its trace's columns; row arrays, of the same length, into `rows`.

    `launched` are the events that another call or operator launched: an operator's piece is nobody's work but its own.
    """

    trace: Trace
    rank: int | None
    node: str
    offset_ns: int
    rows: list[Row]
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
        """ "rank 3", or the process where no rank is known."""
        if self.rank is not None:
            return f"rank {self.rank}"
        process = self.trace.events.process[self.events[:1]].tolist() or [self.trace.identity.pid]
        return f"process {process[0]}"


@dataclass(frozen=True)
class Model:
    """All tasks on one clock that starts at 0 and ends at `end_ns`; `epoch_ns` is unix time of 0, if known."""

    tasks: list[Task]
    nodes: list[str]
    end_ns: int
    epoch_ns: int | None
    notes: list[str]


def build(traces: Sequence[Trace], hosts: Mapping[int, str] | None = None) -> Model:
    """Tasks of all traces, by rank where known. `hosts`: node name by rank, for traces that do not name theirs."""
    offsets, absolute, notes = offsets_ns(traces, [_host(trace, hosts or {}) for trace in traces])
    found = [
        (_order(trace, process, index), trace, process, offset)
        for index, (trace, offset) in enumerate(zip(traces, offsets, strict=True))
        for process in _processes(trace)
    ]
    found.sort(key=lambda item: item[0])
    tasks = [_task(trace, process, offset, hosts or {}) for _, trace, process, offset in found]
    first = min((_first_ns(task) for task in tasks), default=0)
    tasks = [replace(task, offset_ns=task.offset_ns - first) for task in tasks]
    end = max((_last_ns(task) for task in tasks), default=0)
    nodes = list(dict.fromkeys(task.node for task in tasks))
    return Model(tasks, nodes, end, first if absolute else None, notes)


def _processes(trace: Trace) -> list[int]:
    """Processes with work or ranges of their own. A launcher that only made API calls is no task."""
    seen = {*np.unique(trace.events.process).tolist(), *np.unique(trace.ranges.process).tolist()}
    return sorted(seen)


def _order(trace: Trace, process: int, index: int) -> tuple[int, int, int, int]:
    rank = _rank(trace, process)
    devices = trace.events.device[trace.events.process == process]
    unknown = 2**31 - 1
    return (unknown if rank is None else rank, index, int(devices.min(initial=unknown)), process)


def _rank(trace: Trace, process: int) -> int | None:
    """What the trace knows of this process or its own rank, else what the ranges name (`epoch_0-rank_3`).

    The rank that a trace has of one process is no other's that works too.
    """
    known = trace.identity.ranks
    if process in known:
        return known[process]
    if trace.identity.rank is not None and not (known and bool((trace.events.process == process).any())):
        return trace.identity.rank
    named = {
        int(m[1]) for name in _range_names(trace, process) if (m := _RANK.search(name.replace("-", " ")))
    }
    return named.pop() if len(named) == 1 else None


def _host(trace: Trace, hosts: Mapping[int, str]) -> str:
    rank = trace.identity.rank
    return trace.identity.host or hosts.get(-1 if rank is None else rank, UNKNOWN_NODE)


def _range_names(trace: Trace, process: int) -> list[str]:
    used = np.unique(trace.ranges.name[trace.ranges.process == process]).tolist()
    return [trace.names[index] for index in used]


def _task(trace: Trace, process: int, offset_ns: int, hosts: Mapping[int, str]) -> Task:
    events, calls, ranges = trace.events, trace.calls, trace.ranges
    mine = np.flatnonzero(events.process == process)
    called = np.flatnonzero(calls.process == process)
    ranged = np.flatnonzero(ranges.process == process)
    launched = mine[
        (events.launch_ns[mine] >= 0)
        & (events.launch_thread[mine] >= 0)
        & (events.activity[mine] != Activity.CPU_OP)
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
    rows = [Row(RowKind(kind), a, b, lane) for kind, a, b, lane in distinct.tolist()]
    devices = sorted({r.a for r in rows if r.kind is RowKind.STREAM})
    metrics = [m.device for m in trace.metrics if m.device in devices]
    rows += [Row(RowKind.METRICS, device, 0, 0) for device in sorted(set(metrics))]
    return Task(
        trace, _rank(trace, process), _host(trace, hosts), offset_ns, rows, devices,
        mine, row[0], event_class, called, row[1], ranged, row[2], launched, row[3],
    )  # fmt: skip


def _event_keys(trace: Trace, process: int, mine: I64) -> I64:
    """(kind, device, stream, lane), or (kind, thread, 0, lane) for what a CPU did."""
    events = trace.events
    collective = events.activity[mine] == Activity.CPU_COLLECTIVE
    on_host = collective | (events.activity[mine] == Activity.CPU_OP)
    a = np.where(on_host, events.stream[mine], events.device[mine])
    b = np.where(on_host, 0, events.stream[mine])
    _, group = np.unique(np.stack([on_host, a, b]), axis=1, return_inverse=True)
    # A collective may outlive the operator or the range in which it began: on their thread it gets lanes of its own.
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


def _first_ns(task: Task) -> int:
    trace = task.trace
    starts = (
        trace.events.start_ns[task.events],
        trace.ranges.start_ns[task.ranges],
        trace.calls.start_ns[task.calls],
        trace.events.launch_ns[task.launched],
    )
    return min(int(column.min()) for column in starts if len(column)) + task.offset_ns


def _last_ns(task: Task) -> int:
    trace = task.trace
    ends = (
        trace.events.end_ns[task.events],
        trace.ranges.end_ns[task.ranges],
        trace.calls.end_ns[task.calls],
    )
    return max(int(column.max()) for column in ends if len(column)) + task.offset_ns
