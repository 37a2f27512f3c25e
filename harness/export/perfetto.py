"""Traces to one Perfetto file: Chrome's JSON, compressed as it is written, all ranks on one clock.

Tracks are named by node, rank and stream; arrows lead from a launch to its kernel; counters come from the traces and
from the monitor. It opens in ui.perfetto.dev and chrome://tracing. Memory does not grow with the number of events.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from isal import igzip

from harness.analysis.process.idle import COMMUNICATION, COMPUTE, MEMORY, NOT_WORK
from harness.common.display.printable import printable
from harness.common.errors import WorkError
from harness.common.system.bounded_read import why_unread
from harness.common.system.files import write_whole
from harness.export.objects import ObjectModel, ParaverTask, RowKind, TimelineRow, build_object_model
from harness.monitor.samples import NodeSamples
from harness.traces.operators import operators
from harness.traces.trace import I32, I64, U8, Activity, Calls, Events, Ranges, Trace

CHUNK = 1 << 14
_CATEGORIES = {COMPUTE: "kernel", COMMUNICATION: "communication", MEMORY: "memory", NOT_WORK: "host"}
_API, _RANGE = len(_CATEGORIES), len(_CATEGORIES) + 1
_CATEGORY_NAMES = [*(_CATEGORIES[c] for c in sorted(_CATEGORIES)), "api", "range"]
_MONITOR_PID = 1_000_000  # above any task's number


@dataclass(frozen=True)
class PerfettoFile:
    """The file and how much is in it."""

    path: Path
    tasks: int
    events: int
    notes: list[str]


def write_perfetto(
    traces: Sequence[Trace], out: Path, hosts: Mapping[int, str] | None = None, recordings: Sequence[NodeSamples] = ()
) -> PerfettoFile:
    """Write `out` (.json.gz), whole or not at all. `hosts`: node by rank; `recordings`: the monitor's, per node. Raises
    WorkError: there is nothing to write, or the folder cannot be written."""
    model = build_object_model(traces, hosts)
    notes = list(model.notes)
    if recordings and model.epoch_ns is None:
        notes.append("the monitor's counters are left out: the traces do not say when they were recorded")
    count = 0

    def write(draft: Path) -> None:
        nonlocal count
        with _compressed(draft) as file:
            separator = b'{"displayTimeUnit":"ns","traceEvents":[\n'
            for piece in _pieces(model, recordings):
                file.write(separator + ",\n".join(piece).encode())
                separator = b",\n"
                count += len(piece)
            file.write(b"\n]}\n")

    try:
        write_whole(out, write)
    except OSError as error:
        raise WorkError(f"{out} cannot be written: {why_unread(error)}; --out PREFIX writes elsewhere") from error
    return PerfettoFile(out, len(model.tasks), count, notes)


def _compressed(path: Path) -> BinaryIO:
    return cast(BinaryIO, igzip.IGzipFile(path, "wb", compresslevel=1))  # type: ignore[no-untyped-call]


def _pieces(model: ObjectModel, recordings: Sequence[NodeSamples]) -> Iterator[list[str]]:
    """JSON objects as text, in small lists."""
    flow = 0
    for index, task in enumerate(model.tasks):
        pid = index + 1
        yield _named(task, pid)
        for slices in _slices(task):
            yield from _drawn(task, pid, slices.ordered())
        yield from _flows(task, pid, flow)
        flow += len(task.launched)
        yield from _metrics(task, pid)
    if model.epoch_ns is not None:
        for index, recording in enumerate(recordings):
            yield from _monitor(recording, _MONITOR_PID + index, model)


def _named(task: ParaverTask, pid: int) -> list[str]:
    """Names and order of a task's process and tracks."""
    devices = ", ".join(f"GPU {device}" for device in task.devices) or "CPU"
    labels: list[tuple[str, int, dict[str, Any]]] = [
        ("process_name", 0, {"name": f"{task.label} · {task.node} · {devices}"}),
        ("process_sort_index", 0, {"sort_index": pid}),
    ]
    for tid, row in enumerate(task.rows, start=1):
        labels += [("thread_name", tid, {"name": track_name(row)})]
        labels += [("thread_sort_index", tid, {"sort_index": tid})]
    return [_meta(pid, tid, name, arguments) for name, tid, arguments in labels]


def track_name(row: TimelineRow) -> str:
    """The text beside the track."""
    lane = f" (lane {row.lane + 1})" if row.lane else ""
    if row.kind is RowKind.STREAM:
        return f"GPU {row.a} stream {row.b}{lane}"
    if row.kind is RowKind.START_END:
        return f"NVTX start/end{lane}"
    if row.kind is RowKind.METRICS:
        return f"GPU {row.a} counters"
    return f"thread {row.a % 2**32 if row.a < 0 else row.a}{lane}"  # CUPTI cuts a thread's number to 32 bits, signed


def _meta(pid: int, tid: int, name: str, arguments: Mapping[str, Any]) -> str:
    return f'{{"ph":"M","pid":{pid},"tid":{tid},"name":"{name}","args":{json.dumps(arguments)}}}'


@dataclass(frozen=True)
class _Slices:
    """n boxes of the timeline. `category` indexes _CATEGORY_NAMES; `event` is -1 for API calls and ranges."""

    start_ns: I64
    end_ns: I64
    name: I32
    row: I64
    category: U8
    event: I64

    def __len__(self) -> int:
        return len(self.start_ns)

    def ordered(self) -> _Slices:
        """Row by row, a caller before the calls in it; a slice without duration gets 1 ns, else viewers do not draw it.

        Of two slices with one start a viewer takes the first for the outer one. So slices without duration come after
        all others of their instant, and equal spans stay in the order in which they were joined.
        """
        order = np.lexsort((-self.end_ns, self.start_ns, self.row))
        done = _Slices(*(getattr(self, each.name)[order] for each in fields(self)))
        return replace(done, end_ns=np.maximum(done.end_ns, done.start_ns + 1))


def _joined(slices: Sequence[_Slices]) -> _Slices:
    return _Slices(*(np.concatenate([getattr(p, each.name) for p in slices]) for each in fields(_Slices)))


def _slices(task: ParaverTask) -> list[_Slices]:
    """The slices of devices, then those of host threads: the two never share a row."""
    on_host = np.isin(task.trace.events.activity[task.events], (Activity.CPU_OP, Activity.CPU_COLLECTIVE))
    calls, ranges = task.trace.calls, task.trace.ranges
    of_host = [
        _of_spans(ranges, _RANGE, task.ranges, task.range_row),
        _host_events(task, np.flatnonzero(on_host)),
        _of_spans(calls, _API, task.calls, task.call_row),
    ]
    return [_of_events(task, np.flatnonzero(~on_host)), _joined(of_host)]


def _of_events(task: ParaverTask, which: I64) -> _Slices:
    """The slices of the task's events at the positions `which`."""
    events, index = task.trace.events, task.events[which]
    return _Slices(
        events.start_ns[index], events.end_ns[index], events.name[index], task.event_row[which],
        task.event_class[which], index,
    )  # fmt: skip


def _host_events(task: ParaverTask, which: I64) -> _Slices:
    """Each operator as one slice that includes the operators it called; collectives unchanged."""
    index = task.events[which]
    whole = operators(task.trace.events, index)
    others = which[task.trace.events.activity[index] != Activity.CPU_OP]
    drawn = _of_events(task, np.searchsorted(task.events, whole.first))
    return _joined([replace(drawn, end_ns=whole.end_ns), _of_events(task, others)])


def _of_spans(spans: Calls | Ranges, category: int, chosen: I64, row: I64) -> _Slices:
    n = len(chosen)
    return _Slices(
        spans.start_ns[chosen], spans.end_ns[chosen], spans.name[chosen], row,
        np.full(n, category, np.uint8), np.full(n, -1, np.int64),
    )  # fmt: skip


def _drawn(task: ParaverTask, pid: int, slices: _Slices) -> Iterator[list[str]]:
    names = [json.dumps(name) for name in task.trace.names]
    collectives = _collective_arguments(task.trace)
    for low in range(0, len(slices), CHUNK):
        part = slice(low, low + CHUNK)
        columns = zip(
            _times(slices.start_ns[part] + task.offset_ns),
            _times(slices.end_ns[part] - slices.start_ns[part]),
            slices.name[part].tolist(),
            slices.category[part].tolist(),
            (slices.row[part] + 1).tolist(),
            _arguments(task.trace.events, slices.event[part], collectives),
            strict=True,
        )
        yield [
            f'{{"ph":"X","pid":{pid},"tid":{tid},"ts":{ts},"dur":{dur},"name":{names[name]},'
            f'"cat":"{_CATEGORY_NAMES[category]}"{arguments}}}'
            for ts, dur, name, category, tid, arguments in columns
        ]


def _arguments(events: Events, index: I64, collectives: Mapping[int, str]) -> Iterator[str]:
    """The arguments of each slice; `index`: its event, or -1. Operators' numbers are left out: they mean nothing."""
    if len(events) == 0:
        yield from ("" for _ in index)
        return
    shown = (index >= 0) & (events.activity[index] != Activity.CPU_OP)
    rows = zip(
        np.where(shown, events.correlation[index], -1).tolist(),
        np.where(shown, events.bytes[index], -1).tolist(),
        index.tolist(),
        strict=True,
    )
    yield from (_argument(correlation, size, collectives.get(event)) for correlation, size, event in rows)


def _argument(correlation: int, size: int, collective: str | None) -> str:
    known = [collective] if collective else []
    if correlation >= 0:
        known.append(f'"correlation":{correlation}')
    if size >= 0:
        known.append(f'"bytes":{size}')
    return f',"args":{{{",".join(known)}}}' if known else ""


def _collective_arguments(trace: Trace) -> dict[int, str]:
    """The members of a JSON object that describe a collective, by the index of its event."""
    known = trace.collectives
    names = [json.dumps(name) for name in trace.names]
    rows = zip(
        known.event.tolist(), known.kind.tolist(), known.bytes.tolist(), known.group.tolist(),
        known.group_size.tolist(), strict=True,
    )  # fmt: skip
    found = {}
    for event, kind, size, group, ranks in rows:
        members = [f'"collective":{names[kind]}'] if kind >= 0 else []
        members += [f'"message bytes":{size}'] if size >= 0 else []
        members += [f'"group":{names[group]}'] if group >= 0 else []
        members += [f'"ranks":{ranks}'] if ranks >= 0 else []
        if event >= 0 and members:
            found[event] = ",".join(members)
    return found


def _flows(task: ParaverTask, pid: int, first_id: int) -> Iterator[list[str]]:
    """An arrow per launch: `s` inside the call, `f` bound to the slice that starts there."""
    events = task.trace.events
    target = task.event_row[np.searchsorted(task.events, task.launched)]
    for low in range(0, len(task.launched), CHUNK):
        part = slice(low, low + CHUNK)
        index = task.launched[part]
        arrows = zip(
            _times(events.launch_ns[index] + task.offset_ns),
            _times(events.start_ns[index] + task.offset_ns),
            (task.launch_row[part] + 1).tolist(),
            (target[part] + 1).tolist(),
            strict=True,
        )
        yield [
            f'{{"ph":"s","id":{number},"pid":{pid},"tid":{call},"ts":{sent},"name":"launch","cat":"launch"}},\n'
            f'{{"ph":"f","bp":"e","id":{number},"pid":{pid},"tid":{kernel},"ts":{got},"name":"launch","cat":"launch"}}'
            for number, (sent, got, call, kernel) in enumerate(arrows, start=first_id + low)
        ]


def _metrics(task: ParaverTask, pid: int) -> Iterator[list[str]]:
    shown = {row.a for row in task.rows if row.kind is RowKind.METRICS}
    for metric in task.trace.metrics:
        if metric.device in shown:
            name = json.dumps(f"GPU {metric.device} {metric.name}")
            yield from _counter(pid, name, metric.time_ns + task.offset_ns, metric.value.tolist())


def _monitor(recording: NodeSamples, pid: int, model: ObjectModel) -> Iterator[list[str]]:
    """The monitor's samples of one node while the traces ran: one counter per device and column."""
    yield [
        _meta(pid, 0, "process_name", {"name": printable(f"monitor · {recording.host}")}),
        _meta(pid, 0, "process_sort_index", {"sort_index": pid}),
    ]
    for device in recording.devices:
        for column in device.columns:
            points = [(at - (model.epoch_ns or 0), value) for at, value in device.points(column)]
            points = [(at, value) for at, value in points if 0 <= at <= model.end_ns + recording.period_ns]
            times = np.array([at for at, _ in points], np.int64)
            name = json.dumps(printable(f"{device.index} {column}"))
            yield from _counter(pid, name, times, [value for _, value in points])


def _counter(pid: int, name: str, time_ns: I64, values: Sequence[float]) -> Iterator[list[str]]:
    keep = ((time_ns >= 0) & np.isfinite(np.asarray(values, np.float64))).tolist()
    samples = [
        f'{{"ph":"C","pid":{pid},"ts":{ts},"name":{name},"args":{{"value":{value:.10g}}}}}'
        for ts, value, here in zip(_times(np.maximum(time_ns, 0)), values, keep, strict=True)
        if here
    ]
    if samples:
        yield samples


def _times(time_ns: I64) -> list[str]:
    """Microseconds with three decimals as text: a float64 would not hold them exactly."""
    whole, rest = np.divmod(time_ns, 1000)
    return [f"{us}.{ns:03d}" for us, ns in zip(whole.tolist(), rest.tolist(), strict=True)]
