"""One process's columns to its graph: nodes, arcs, its steps, and its part in collectives."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.analysis.process.before_steps import END, first_step
from harness.analysis.process.by_name import matching
from harness.analysis.process.host_activities import IdleActivities, of_device
from harness.analysis.process.host_calls import HostCause as IdleTime
from harness.analysis.process.host_calls import blocks
from harness.analysis.process.idle import NOT_WORK
from harness.analysis.process.intervals import Intervals, lengths_within, union
from harness.analysis.process.phases import Phase
from harness.analysis.process.prepared import MeasuredProcess, extent_of, inside
from harness.analysis.process.steps import AHEAD
from harness.replay.graph import cpu_collectives, device
from harness.replay.graph.builder import Builder, HostSegments, HostThread
from harness.replay.graph.graph import N_PHASES, ProcessGraph, TimeCategory, slot
from harness.replay.graph.host import host_segments
from harness.replay.graph.lines import HostSteps, line_times
from harness.traces.sampled_lines import SampledLines
from harness.traces.trace import I32, I64

BATCH_NS = 3_000_000  # a batch that takes less may have been there: to take one needs up to 1.4 ms in real recordings
_OF_WORKERS = re.compile(r"_MultiProcessingDataLoaderIter\.__next__")
LEAST_BEFORE = 0.1  # of the devices' windows before the first step, from which it is left out where no step is marked
# Causes of idle time that are no work of the host's own.
_LAUNCHING = (IdleTime.LAUNCH.label, IdleTime.SYNCHRONISATION.label)
# Causes of idle time: the host could have gone on.
_BLOCKING = (IdleTime.SYNCHRONISATION.label, IdleTime.ALLOCATION.label)


def process_graph(m: MeasuredProcess, lines: SampledLines | None = None) -> ProcessGraph | None:
    """The graph of the counted steps; without marked steps of what is recorded, as one step. None without work.
    lines: where its main thread was, on its clock."""
    if not m.windows or first_step(m)[1] == END:
        return None
    span = ReplaySpan.of(m)
    idle = of_device(m, _main_device(m))
    which = np.where(_after_calls(m, idle), idle.which + np.int32(len(idle.rows)), idle.which)
    segments = _activity_segments(_begun_ns(m, idle), idle.end_ns, which, span.window)
    builder, thread = Builder(), HostThread(host_segments(m, span.window), segments)
    begin = thread.mark(builder, span.mark_ns)
    on_host = (span.marked or m.view.on_cpu) and not span.on_device  # a step ends with the host's work
    end = thread.mark(builder, span.end_ns) if on_host else builder.add_nodes(span.end_ns[-1:])
    if m.view.on_cpu:
        arrive, done, last = cpu_collectives.on_cpu(m, span.window, builder, thread)
        computed = np.empty(0, np.int64)
    else:
        nodes = device.on_gpu(m, span.window, builder, thread, (span.first_event, span.last_event))
        arrive, done, last, computed = nodes.arrive, nodes.done, nodes.last, nodes.last_computed
        if span.on_device:
            begin, end = nodes.starts, np.append(nodes.starts[1:], nodes.ends)
        _add_batches(m, span.window, builder, thread)
    thread.close(builder)
    if not on_host and not span.on_device:  # the last moment is as late as the last of these nodes
        ends = np.append(last, thread.ordered()[0][-1:])
        rest = builder.time_ns[end[0]] - builder.time_ns[ends]
        arcs = builder.add_arcs(ends, np.repeat(end, len(ends)))
        builder.give_slot(arcs, slot(TimeCategory.DEVICE_GAP), np.where(rest == rest.min(), rest, 0))
    view = m.view
    marked = m.steps.marked_window
    steps = HostSteps(span.mark_ns, marked[1] if marked and span.on_device else int(span.end_ns[-1]))
    code_lines, times = line_times(m, lines, thread, steps)
    return ProcessGraph(
        rank=view.rank,
        path=view.trace.identity.path,
        pid=view.pid,
        clock=view.clock,
        epoch_ns=view.epoch_ns,
        on_cpu=view.on_cpu,
        marked=span.marked,
        last=computed,
        step_begin=begin,
        step_end=end,
        arrive=arrive,
        done=done,
        activities=idle.rows,
        activity_ns=_by_step(idle, span),
        called=_called(thread.segments, steps) if view.on_cpu else np.zeros(N_PHASES, np.int64),
        code_lines=code_lines,
        line_times=times,
        **builder.columns(),
    )


def _activity_segments(start_ns: I64, end_ns: I64, which: I32, window: tuple[int, int]) -> HostSegments:
    """Disjoint activities in order of time as segments of slot 1 + `which`; between them lie segments of slot 0."""
    inside = (end_ns > window[0]) & (start_ns < window[1])
    start = np.maximum(start_ns[inside], window[0])
    end = np.minimum(end_ns[inside], window[1])
    edge = np.concatenate([[window[0]], np.stack([start, end], axis=1).reshape(-1), [window[1]]]).astype(np.int64)
    slots = np.zeros(len(edge) - 1, np.int16)
    slots[1::2] = which[inside] + 1
    keep = np.diff(edge) > 0
    edge = np.append(edge[:-1][keep], edge[-1])
    return HostSegments(edge, slots[keep], np.diff(edge), slots[keep])


def _begun_ns(m: MeasuredProcess, idle: IdleActivities) -> I64:
    """When the host began what it did in each stretch: it may have done so while the device still had work. After the
    last call before, or with the call in which the stretch lies; if launches follow one another, with the stretch."""
    calls = m.view.calls
    order = np.argsort(calls.start_ns, kind="stable")
    begins, ends = calls.start_ns[order], np.maximum.accumulate(calls.end_ns[order])
    if m.view.on_cpu or not len(begins):
        return idle.start_ns
    at = np.searchsorted(begins, idle.start_ns, side="right") - 1
    inside = (at >= 0) & (calls.end_ns[order][at] > idle.start_ns)
    since = np.where(inside, begins[at], np.minimum(ends[at], idle.start_ns))
    longer = np.array([row.cause not in _LAUNCHING for row in idle.rows] or [False])[idle.which]
    begun = np.where(longer & (at >= 0), np.minimum(since, idle.start_ns), idle.start_ns)
    found: I64 = np.maximum(begun, np.append(0, idle.end_ns[:-1])[: len(begun)])
    return found


def _after_calls(m: MeasuredProcess, idle: IdleActivities) -> NDArray[np.bool_]:
    """Which stretches follow a call that blocked, while the host launched again."""
    calls, names = m.view.calls, m.view.names
    called = np.array([row.kind == "call" and row.cause in _BLOCKING for row in idle.rows] or [False])
    of = called[idle.which] if len(idle.which) else np.empty(0, np.bool_)
    blocking = np.flatnonzero(matching(calls.name, names, blocks))
    ends = np.sort(calls.end_ns[blocking])
    begins = np.sort(calls.start_ns[blocking])
    open_ = np.searchsorted(begins, idle.start_ns, side="right") > np.searchsorted(ends, idle.start_ns, side="right")
    return of & ~open_


def _add_batches(m: MeasuredProcess, window: tuple[int, int], builder: Builder, thread: HostThread) -> None:
    """Where the program, and its device, wait for batches of its workers again and again, these come at their own pace:
    a program with less to do would wait longer."""
    ranges = m.view.ranges
    rows = np.flatnonzero(matching(ranges.name, m.view.names, _OF_WORKERS.search))
    rows = rows[(ranges.start_ns[rows] >= window[0]) & (ranges.end_ns[rows] <= window[1])]
    rows = rows[np.argsort(ranges.start_ns[rows], kind="stable")]
    idle = m.idle[_main_device(m)]
    without = lengths_within(union(idle.start_ns, idle.end_ns), ranges.start_ns[rows], ranges.end_ns[rows])
    waits = without >= BATCH_NS
    again = np.flatnonzero(waits[1:] & waits[:-1]) + 1
    if not len(again):
        return
    came = ranges.end_ns[rows]
    since = came.copy()
    since[again] = ranges.start_ns[rows[again]]
    nodes = thread.mark(builder, came, since)
    arcs = builder.add_arcs(nodes[again - 1], nodes[again])
    builder.give_slot(arcs, slot(TimeCategory.HOST_STALL, Phase.DATA), came[again] - came[again - 1])
    builder.repeated.append(arcs)
    builder.give_activities(thread.activities.between(since[again], came[again], arcs))
    builder.waits.append(arcs)


def _main_device(m: MeasuredProcess) -> int:
    """The device with most events: a process that drives several gives them the same."""
    return max(m.rows, key=lambda device: m.rows[device].stop - m.rows[device].start)


def _called(segments: HostSegments, steps: HostSteps) -> I64:
    """How many operators no other one called that computes, by phase. Before each there is a gap. Nodes of autograd
    compute nothing: their own pieces, before, between and after what they call, are gaps as well. With n nodes and w
    operators that compute there are w + 2 n gaps, and w of them end with one of these."""
    of = segments.slot.astype(np.int64)
    gap = of // N_PHASES == TimeCategory.HOST_GAP
    inside = gap & (steps.of(segments.edge[:-1]) >= 0)
    before = inside & np.append(~gap[1:], False)
    return (
        np.bincount(of[inside] % N_PHASES, minlength=N_PHASES) + np.bincount(of[before] % N_PHASES, minlength=N_PHASES)
    ) // 2


def _by_step(idle: IdleActivities, span: ReplaySpan) -> I64:
    """Nanoseconds of each activity in each step."""
    rows = [np.flatnonzero(idle.which == row) for row in range(len(idle.rows))]
    sets = (Intervals(idle.start_ns[own], idle.end_ns[own]) for own in rows)
    found = [lengths_within(own, span.begin_ns, span.end_ns) for own in sets]
    return np.stack(found) if found else np.empty((0, len(span.begin_ns)), np.int64)


@dataclass(frozen=True)
class ReplaySpan:
    """The stretch to replay: n counted steps, or the devices' windows from the first step on as one (not `marked`).
    mark_ns: where the steps begin on the host. first_event: if they are on the device, the rows of the events that they
    begin with; last_event: the row with which the last one ends."""

    window: tuple[int, int]
    begin_ns: I64
    end_ns: I64
    marked: bool
    mark_ns: I64
    first_event: I64
    last_event: I64

    @property
    def on_device(self) -> bool:
        """Whether steps begin and end with events of the device."""
        return bool(len(self.last_event))

    @staticmethod
    def of(m: MeasuredProcess) -> ReplaySpan:
        steps, none = m.steps, np.empty(0, np.int64)
        if steps.window is None or steps.thread is None:
            first, last = extent_of(m.windows)
            work, _ = first_step(m)  # what comes before it is no part of a step
            first = work if first + LEAST_BEFORE * (last - first) <= work < last else first
            begin, end = np.array([first]), np.array([last])
            events, rows = m.view.events, np.flatnonzero(inside(m))
            launched = events.launch_ns[rows]
            if launched.min() < 0 or launched.max() > first + AHEAD * (last - first):
                return ReplaySpan((first, last), begin, end, False, begin, none, none)
            # the host had launched all before: it holds nothing up, and the time is the devices' alone
            of_work = rows[m.kinds.event_class[rows] != NOT_WORK]
            first_event = of_work[[np.argmin(events.start_ns[of_work])]]
            last_event = of_work[[np.argmax(events.end_ns[of_work])]]
            mark = launched[[np.argmin(launched)]]
            return ReplaySpan((int(mark[0]), last), begin, end, False, mark, first_event, last_event)
        rows = np.flatnonzero(steps.counted)
        begin, end = steps.start_ns[rows], steps.end_ns[rows]
        if not steps.on_device:
            return ReplaySpan(steps.window, begin, end, True, begin, none, none)
        window = min(steps.window[0], int(steps.mark_start_ns[rows[0]])), steps.window[1]
        ends = np.array([steps.last_event])
        return ReplaySpan(window, begin, end, True, steps.mark_start_ns[rows], steps.first_event[rows], ends)
