"""The host of one process as segments: its operators or its calls, and what lies between them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from harness.analysis.process.collective_rows import row_events
from harness.analysis.process.host_calls import feeding_threads
from harness.analysis.process.intervals import distinct
from harness.analysis.process.kinds import HOST
from harness.analysis.process.phases import phase_of_moments, phases
from harness.analysis.process.prepared import MeasuredProcess
from harness.replay.graph.builder import HostSegments
from harness.replay.graph.graph import N_PHASES, TimeCategory
from harness.traces.trace import I64, Activity

_HELD_FACTOR = 2  # what takes so many times its usual time was held up, if it is also a stall
STALL_NS = 500_000  # a shorter stretch is no stall
STALL_OF_STEP = 0.002
SENDING_MOSTLY = 0.3  # of the messages: a stall before few of them is not the link's
ISSUED_NS = 400_000  # a message is issued this soon before or after the next operator
_FEWEST_STEPS = 3  # to know what recurs
_ALIKE = 0.5  # of the longest stall of a place: those that are compared with it
_MOST = 0.5  # of these
_BY_CHANCE = 3.0  # times what is expected where a process is stopped at any moment
_PRODUCTS = ("gemm", "attention")
_OPERATOR_HELD = 1.5  # times its usual time, from which an operator was held up, if it is also a stall


def recurring(step: I64, call_kind: I64, moment: I64) -> I64:
    """A number per call, the same for the n-th calls of one kind in their steps, in order of `moment`."""
    if not len(step):
        return np.empty(0, np.int64)
    order = np.lexsort((moment, call_kind, step))
    ordered_kind, ordered_step = call_kind[order], step[order]
    changes = (ordered_kind[1:] != ordered_kind[:-1]) | (ordered_step[1:] != ordered_step[:-1])
    begins = np.flatnonzero(np.append(True, changes))
    nth = np.empty(len(order), np.int64)
    nth[order] = np.arange(len(order)) - np.repeat(begins, np.diff(np.append(begins, len(order))))
    return call_kind * (int(nth.max()) + 1) + nth


def median_of_each(group: I64, values: I64) -> I64:
    """For each of n values the median of its group."""
    order = np.lexsort((values, group))
    begins = np.flatnonzero(np.append(True, np.diff(group[order]) != 0)) if len(order) else np.empty(0, np.int64)
    counts = np.diff(np.append(begins, len(order)))
    ordered = values[order]
    low, high = ordered[begins + (counts - 1) // 2], ordered[begins + counts // 2]
    found = np.empty(len(order), np.int64)
    found[order] = np.repeat((low + high) // 2, counts)
    return found


def held_up(ns: I64, usual: I64 | int, least: int) -> I64:
    """The part of each of n durations beyond the median; 0 if that is less than `least`, or no more than chance."""
    return np.where((ns > _HELD_FACTOR * usual) & (ns - usual > least), ns - usual, 0)


def host_segments(m: MeasuredProcess, window: tuple[int, int]) -> HostSegments:
    """The main thread of a CPU trace; else all threads that call the device's library, as one."""
    if m.view.on_cpu:
        start, end, category, name = _operators(m)
    else:
        calls, rows = m.view.calls, feeding_calls(m)
        start, end, name = calls.start_ns[rows], calls.end_ns[rows], calls.name[rows].astype(np.int64)
        category = np.full(len(rows), TimeCategory.HOST_GAP, np.int64)
    inside = (end > window[0]) & (start < window[1])
    start, end, category, name = _disjoint(*(each[inside] for each in (start, end, category, name)))
    main = m.nesting.main
    borders = () if main is None else (main.start_ns, main.end_ns)
    edge = distinct(np.array(window, np.int64), start, end, *borders)
    edge = edge[(edge >= window[0]) & (edge <= window[1])]
    work = np.searchsorted(start, edge[:-1], side="right") - 1
    inside = (work >= 0) & (edge[:-1] < np.append(end, 0)[work])
    work = np.where(inside, work, -1)
    category = np.append(category, TimeCategory.HOST_GAP)[work]
    phase = _phase_of(m, edge[:-1])
    step = np.searchsorted(m.steps.start_ns, edge[:-1], side="right")
    same = recurring(step, np.append(name, -1)[work] * N_PHASES + phase, edge[:-1])
    gap = category == TimeCategory.HOST_GAP
    usual = _usual(np.diff(edge), gap, phase, same, least_stall(m.steps.durations_ns))
    after = np.maximum.accumulate(np.where(gap, -1, np.arange(len(gap))))  # the operator before each gap
    place = np.append(same, -1)[after] * N_PHASES + phase
    at_places = _at_places(np.diff(edge), usual, gap, place, step)
    excess = np.where(at_places, TimeCategory.HOST_STALL, TimeCategory.HOST_HELD)
    sending = gap & (np.diff(edge) > usual) & _before_message(m, edge[1:])
    started = m.view.events.start_ns[m.view.events.activity == Activity.CPU_COLLECTIVE]
    messages = np.count_nonzero((started >= window[0]) & (started < window[1]))
    if sending.sum() >= SENDING_MOSTLY * messages:
        excess[sending] = TimeCategory.HOST_SENDING
    own, more = ((each * N_PHASES + phase).astype(np.int16) for each in (category, excess))
    return HostSegments(edge, own, usual, more)


def working_operators(m: MeasuredProcess) -> tuple[I64, I64]:
    """Start and end of the main thread's operators that compute, in order: a host that is in one waits for nothing."""
    start, end, category, _ = _operators(m)
    keep = category != TimeCategory.HOST_GAP
    return start[keep], np.maximum.accumulate(end[keep])


def feeding_calls(m: MeasuredProcess) -> NDArray[np.intp]:
    """The rows of the calls on threads that launch work, and on the main thread if it feeds the device, too."""
    calls, events = m.view.calls, m.view.events
    launching = events.launch_thread[events.launch_thread >= 0]
    threads = np.append(np.unique(launching), feeding_threads(m.view, m.nesting))
    return np.flatnonzero(np.isin(calls.thread, threads))


def main_thread(m: MeasuredProcess) -> int | None:
    """The thread with the steps; without ranges the thread with most operators."""
    if m.nesting.main_thread is not None:
        return m.nesting.main_thread
    operators = m.view.events.stream[m.view.events.activity == Activity.CPU_OP]
    if not len(operators):
        return None
    threads, counts = np.unique(operators, return_counts=True)
    return int(threads[np.argmax(counts)])


def _operators(m: MeasuredProcess) -> tuple[I64, I64, I64, I64]:
    events, labels = m.view.events, m.kinds.labels
    rows = np.flatnonzero((events.activity == Activity.CPU_OP) & (events.stream == main_thread(m)))
    rows = rows[np.argsort(events.start_ns[rows], kind="stable")]
    table = np.array([int(_sort_of(kind)) for kind, _ in labels] or [0], np.int64)
    return (events.start_ns[rows], events.end_ns[rows], table[m.kinds.code[rows]], events.name[rows].astype(np.int64))


def _sort_of(kind: str) -> TimeCategory:
    """An operator that is Python (a node of autograd, a module's hook) is no work of its own."""
    if kind == HOST:
        return TimeCategory.HOST_GAP
    return TimeCategory.HOST_PRODUCT if kind in _PRODUCTS else TimeCategory.HOST_WORK


def _before_message(m: MeasuredProcess, moment: I64) -> NDArray[np.bool_]:
    """Whether a message is issued at about each moment."""
    event = row_events(m.view, m.kinds)
    issued = np.sort(m.view.events.launch_ns[event[event >= 0]])
    if not m.view.on_cpu or not len(issued):
        return np.zeros(len(moment), np.bool_)
    after = np.minimum(np.searchsorted(issued, moment - ISSUED_NS), len(issued) - 1)
    near: NDArray[np.bool_] = np.abs(issued[after] - moment) <= ISSUED_NS
    return near


def _disjoint(start: I64, end: I64, category: I64, name: I64) -> tuple[I64, I64, I64, I64]:
    """Stretches in order, each from where the one before ended; empty ones are left out."""
    if not len(start):
        return start, end, category, name
    reach = np.maximum.accumulate(end)
    start = np.maximum(start, np.concatenate([start[:1], reach[:-1]]))
    keep = end > start
    return start[keep], end[keep], category[keep], name[keep]


def _phase_of(m: MeasuredProcess, moments: I64) -> I64:
    main = m.nesting.main
    if main is None:
        return np.full(len(moments), N_PHASES - 1, np.int64)
    table = phases(m.view.ranges, m.view.names, m.nesting)
    return phase_of_moments(main.of(moments), table, moments, m.steps.between).astype(np.int64)


def least_stall(step_ns: I64) -> int:
    """What is shorter is no stall, where steps take so long."""
    return max(STALL_NS, int(STALL_OF_STEP * np.median(step_ns))) if step_ns.size else STALL_NS


def _usual(length: I64, gap: NDArray[np.bool_], phase: I64, same: I64, least: int) -> I64:
    """The part of each tile that is usual: of a long gap the median gap of its phase, or of all phases if that is less;
    of an operator that was held up the median of the same operator in all steps, else all of it."""
    middle = np.empty_like(length)
    middle[gap] = np.minimum(median_of_each(phase[gap], length[gap]), np.median(length[gap]) if gap.any() else 0)
    middle[~gap] = median_of_each(same[~gap], length[~gap])
    factor = np.where(gap, 1.0, _OPERATOR_HELD)
    return np.where((length > factor * middle) & (length - middle > least), middle, length)


def _at_places(length: I64, usual: I64, gap: NDArray[np.bool_], position: I64, step: I64) -> NDArray[np.bool_]:
    """Which gaps lie where the program is longer than usual in several steps, and more often than by chance. What stops
    a process at any moment finds it at a place by the place's usual share of the time. A trace of few steps cannot
    tell: each of its gaps counts as such a place."""
    if len(np.unique(step)) < _FEWEST_STEPS:
        return gap
    excess = length - usual
    found = np.zeros(len(gap), np.bool_)
    for candidate in np.unique(position[gap & (excess > 0)]).tolist():
        here = gap & (position == candidate)
        alike = excess >= _ALIKE * excess[here].max()
        mine, all_of_them = np.count_nonzero(alike & here), np.count_nonzero(alike)
        by_chance = all_of_them * usual[here].sum() / usual.sum()
        if mine > _MOST * all_of_them or (mine > 1 and mine > _BY_CHANCE * by_chance + 1):
            found |= here
    return found
