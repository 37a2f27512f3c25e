"""One device of one measured process as the summary shows it: split, steps, kinds, idle, counters."""

from __future__ import annotations

import numpy as np

from harness.analysis.process import counters
from harness.analysis.process.host_activities import what_of, where_of
from harness.analysis.process.host_calls import CAUSES, HostCause
from harness.analysis.process.idle import Busy, cause_table, split_window, split_windows
from harness.analysis.process.intervals import Intervals, clip, complement, difference, length, merge, union
from harness.analysis.process.prepared import MeasuredProcess
from harness.analysis.summary import Device, Gap, IdleCause, KindTime, StepSplit
from harness.traces.operators import counted
from harness.traces.trace import Activity

LONGEST_GAPS = 10


def measure_device(m: MeasuredProcess, device: int) -> Device:
    """Everything about one device inside its window."""
    view, rows, sets = m.view, m.rows[device], m.busy[device]
    start, end = m.windows[device]
    parts = split_window(sets, start, end)
    activity = view.events.activity[rows]
    overlapped = parts.overlapped_communication_ns or 0
    causes, gaps = _idle(m, device)
    identity = view.trace.identity
    return Device(
        **parts.model_dump(),
        rank=view.rank,
        device=device,
        host=identity.host,
        name=identity.device_names.get(device),
        source=identity.path,
        pid=view.pid,
        device_kind="cpu" if view.on_cpu else "gpu",
        gpu_events=len(activity),
        kernels=_kernels(m, device),
        overlap_fraction=overlapped / parts.communication_ns if parts.communication_ns else None,
        busy_fraction=1 - (parts.idle_ns or 0) / parts.window_ns if parts.window_ns else None,
        work_after_window_ns=0 if m.steps.on_device else _after(m, device, end),
        steps=_steps(m, sets),
        kinds=_kinds(m, device),
        idle_causes=causes,
        longest_gaps=gaps,
        metric_averages=counters.averages(m, device),
        counters=counters.over_time(m, device),
        peak_memory_bytes=view.trace.peak_memory_bytes.get((-1 if view.pid is None else view.pid, device)),
    )


def idle_of(m: MeasuredProcess, device: int) -> Intervals:
    """The device's idle stretches inside its window."""
    return complement(m.busy[device].any, *m.windows[device])


def communicating_alone(m: MeasuredProcess, device: int) -> Intervals:
    """When the device communicates or awaits communication inside its window, and computes nothing: its exposed
    communication, and the idle time whose cause is communication."""
    sets = m.busy[device]
    exposed = clip(difference(sets.communication, sets.compute), *m.windows[device])
    return merge(exposed, m.idle[device].of_cause(HostCause.COMMUNICATION))


def _kernels(m: MeasuredProcess, device: int) -> int:
    rows = np.arange(m.rows[device].start, m.rows[device].stop)
    activity = m.view.events.activity[rows]
    kernels = rows[(activity == Activity.KERNEL) | (activity == Activity.CPU_OP)]
    return len(counted(m.view.events, kernels)[0])


def _after(m: MeasuredProcess, device: int, end: int) -> int:
    """Work that was launched inside the window and ran after it."""
    events, rows = m.view.events, m.rows[device]
    launched, ends = events.launch_ns[rows], events.end_ns[rows]
    late = (launched >= 0) & (launched < end) & (ends > end)
    return length(union(np.maximum(events.start_ns[rows][late], end), ends[late]))


def _steps(m: MeasuredProcess, sets: Busy) -> list[StepSplit]:
    chosen = np.flatnonzero(m.steps.counted)
    parts = split_windows(sets, m.steps.start_ns[chosen], m.steps.end_ns[chosen])
    labels = m.steps.labels
    return [StepSplit(step=labels[i], **part.model_dump()) for i, part in zip(chosen, parts, strict=True)]


def _kinds(m: MeasuredProcess, device: int) -> list[KindTime]:
    rows, (start, end) = m.rows[device], m.windows[device]
    starts = m.view.events.start_ns[rows]
    inside = (starts >= start) & (starts < end)
    counts, duration = counted(m.view.events, np.arange(rows.start, rows.stop)[inside])
    labels, code = m.kinds.labels, m.kinds.code[counts]
    count = np.bincount(code, minlength=len(labels))
    total = np.bincount(code, weights=duration.astype(np.float64), minlength=len(labels))
    return kind_table([(*labels[i], int(count[i]), int(total[i])) for i in np.flatnonzero(count)])


def kind_table(sums: list[tuple[str, str | None, int, int]]) -> list[KindTime]:
    """Rows of (kind, precision, count, nanoseconds) as a table, largest first, with shares of the total."""
    total = max(sum(row[3] for row in sums), 1)
    table = [
        KindTime(kind=kind, precision=precision, count=count, duration_ns=ns, share=ns / total)
        for kind, precision, count, ns in sums
    ]
    return sorted(table, key=lambda k: (-k.duration_ns, k.kind, k.precision or ""))


def _idle(m: MeasuredProcess, device: int) -> tuple[list[IdleCause], list[Gap]]:
    gaps, idle = idle_of(m, device), m.idle[device]
    longest = np.argsort(gaps.start - gaps.end, kind="stable")[:LONGEST_GAPS]
    chosen = Intervals(gaps.start[longest], gaps.end[longest])
    causes, rows = idle.within(chosen)
    each = zip(chosen.start.tolist(), chosen.end.tolist(), causes.tolist(), rows.tolist(), strict=True)
    return (
        cause_table(dict(zip(CAUSES, idle.sums().tolist(), strict=True))),
        [_gap(m, device, (start, end), CAUSES[cause], row) for start, end, cause, row in each],
    )


def _gap(m: MeasuredProcess, device: int, span: tuple[int, int], cause: str, row: int) -> Gap:
    """A gap with what the host did, the range that it lies in and the names of its neighbours."""
    start_ns, end_ns = span
    events, rows, names = m.view.events, m.rows[device], m.view.names
    starts, ends, name = events.start_ns[rows], events.end_ns[rows], events.name[rows]
    after = int(np.searchsorted(starts, end_ns, side="left"))
    before = np.flatnonzero(ends[:after] <= start_ns)
    return Gap(
        start_ns=start_ns,
        duration_ns=end_ns - start_ns,
        cause=cause,
        what=what_of(m, device, row),
        where=where_of(m, device, row),
        range=_range_at(m, (start_ns + end_ns) // 2),
        before=names[name[before[np.argmax(ends[before])]]] if len(before) else None,
        after=names[name[after]] if after < len(starts) else None,
    )


def _range_at(m: MeasuredProcess, moment_ns: int) -> str | None:
    """The innermost range of the main thread that covers a moment; a step's mark by the step's number."""
    if m.nesting.main is None:
        return None
    row = int(m.nesting.main.of(np.array([moment_ns]))[0])
    name = m.view.names[m.view.ranges.name[row]] if row >= 0 else None
    return None if name is None else dict(zip(m.steps.names, m.steps.labels, strict=True)).get(name, name)
