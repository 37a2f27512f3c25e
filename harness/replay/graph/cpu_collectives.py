"""Collectives of a CPU trace in its graph: issued by the host, carried out by a thread of the backend, and waited for.

The trace does not record the waiting. It is a stretch without an operator that ends when the collective does. Where in
the program it is, is learned from the instances that were waited for; a collective that was done by then was waited for
at the same place all the same."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.analysis.process.collective_rows import CollectiveRows, row_events, rows
from harness.analysis.process.intervals import distinct
from harness.analysis.process.prepared import MeasuredProcess
from harness.replay.graph.builder import Builder, HostThread
from harness.replay.graph.graph import TimeCategory, slot
from harness.replay.graph.host import held_up, least_stall, main_thread, recurring, working_operators
from harness.traces.trace import I64
from harness.traces.vocabulary import POINT_TO_POINT

WAITED_NS = 20_000  # a shorter stretch before the end of a collective may be chance
NEXT_NS = 300_000  # a thread begins its next collective this soon
TAIL_NS = 3_000_000  # the host goes on this soon after the end of what it waited for


@dataclass(frozen=True)
class _Host:
    """Operators of the host that compute (it waits in none of them), and the borders of its segments and of messages on
    its own thread."""

    start_ns: I64
    end_ns: I64
    edge: I64

    def place(self, time_ns: I64) -> I64:
        """How many operators began before each moment."""
        return np.searchsorted(self.start_ns, time_ns, side="right")

    def free(self, slot: I64) -> tuple[I64, I64]:
        """The stretch before the operator at each place in which no operator runs."""
        last = np.iinfo(np.int64).max // 4
        start = np.concatenate([[0], self.end_ns])[slot]
        return start, np.append(self.start_ns, last)[slot]

    def next_edge(self, time_ns: I64) -> I64:
        """The first border at or after each moment."""
        return self.edge[np.minimum(np.searchsorted(self.edge, time_ns, side="left"), len(self.edge) - 1)]

    def longest_tile(self, start_ns: int, end_ns: int) -> tuple[int, int]:
        """The longest of the segments between two moments."""
        edges = self.edge[(self.edge >= start_ns) & (self.edge <= end_ns)]
        if len(edges) < 2:
            return start_ns, end_ns
        longest = int(np.argmax(np.diff(edges)))
        return int(edges[longest]), int(edges[longest + 1])

    def edge_before(self, time_ns: I64) -> I64:
        """The last border before each moment."""
        return self.edge[np.maximum(np.searchsorted(self.edge, time_ns, side="left") - 1, 0)]


def on_cpu(m: MeasuredProcess, window: tuple[int, int], builder: Builder, thread: HostThread) -> tuple[I64, I64, I64]:
    """Adds issue, arrival, end and waiting of each collective in the window; returns the nodes of arrival and end per
    row of the process's collectives, -1 outside, and the nodes of all ends."""
    table, event = rows(m.view, m.kinds), row_events(m.view, m.kinds)
    inside = np.flatnonzero((table.start_ns >= window[0]) & (table.end_ns <= window[1]))
    arrive, done = np.full((2, len(event)), -1, np.int64)
    if not len(inside):
        return arrive, done, np.empty(0, np.int64)
    table, event = table.at(inside), event[inside]
    issued = np.where(event >= 0, m.view.events.launch_ns[event], -1)
    stream = np.where(event >= 0, m.view.events.stream[event], -1)
    thread_number = main_thread(m)
    main = -2 if thread_number is None else thread_number
    sends = np.array([key.kind in POINT_TO_POINT for key in table.keys])[table.key]
    blocking = (stream == main) & sends
    # when the main thread issued a collective it waited for none, also if no operator shows it
    by_host = (event >= 0) & (issued >= 0) & (m.view.events.launch_thread[event] == main)
    calls = np.concatenate([table.start_ns[blocking], table.end_ns[blocking], issued[by_host]])
    host = _Host(*working_operators(m), distinct(thread.segments.edge, calls))
    issued = np.where(blocking | (issued < window[0]), table.start_ns, np.minimum(issued, table.start_ns))
    nodes = thread.mark(builder, issued)
    arrive[inside] = builder.add_nodes(table.start_ns)
    waits = _waits(m, host, table, issued, blocking)
    done[inside] = builder.add_nodes(waits.end_ns)
    queued = _queued(stream, table.start_ns, issued, waits.end_ns)
    delay = table.start_ns - issued
    usual = int(np.median(delay[queued < 0])) if (queued < 0).any() else 0
    arcs = builder.add_arcs(nodes, arrive[inside])
    least = least_stall(m.steps.durations_ns)
    _give(builder, arcs, TimeCategory.START_OF_MESSAGE, np.where(queued < 0, delay, np.minimum(delay, usual)), least)
    behind = np.flatnonzero(queued >= 0)
    arcs = builder.add_arcs(done[inside][queued[behind]], arrive[inside][behind])
    ns = table.start_ns[behind] - waits.end_ns[queued[behind]]
    builder.give_slot(arcs, slot(TimeCategory.START_OF_MESSAGE), ns)
    _add_waits(builder, thread, done[inside], waits, least)
    return arrive, done, done[inside]


def _queued(thread: I64, start: I64, issued: I64, end: I64) -> I64:
    """For each collective the one before it on its thread, if it was issued while that one ran; -1: it did not wait for
    the thread."""
    order = np.lexsort((start, thread))
    before = np.concatenate([[-1], order[:-1]])
    same = (before >= 0) & (thread[before] == thread[order]) & (thread[order] >= 0)
    waited = same & (issued[order] < end[before]) & (start[order] >= end[before])
    waited &= start[order] - end[before] <= NEXT_NS
    found = np.full(len(order), -1, np.int64)
    found[order[waited]] = before[waited]
    return found


@dataclass(frozen=True)
class _Waits:
    """When the host went on after each of n collectives (-1: not known), from when it waited, and the end. since_ns:
    the same moment as resumed_ns where it did not wait. end_ns: when the collective was done; its own record may be
    late, on a thread that has to wait for a core."""

    resumed_ns: I64
    since_ns: I64
    end_ns: I64


def _waits(m: MeasuredProcess, host: _Host, table: CollectiveRows, issued: I64, blocking: NDArray[np.bool_]) -> _Waits:
    """Seen waiting counts as seen; other instances of the same place in a step are waited for where the longest waiting
    of that place was seen."""
    end = table.end_ns
    at = host.place(end)
    free_from, free_to = host.free(at)
    resumed = host.next_edge(end)
    since = np.maximum(host.edge_before(end), issued)
    free = (free_from <= end) & (end <= free_to)
    seen = free & (end - since >= WAITED_NS) & (resumed - end <= TAIL_NS) | blocking
    place = at - host.place(issued)
    usual = _usual_place(_recurring(m, table, issued), place, np.where(seen, end - since, 0))
    there = np.minimum(host.place(issued) + np.maximum(usual, 0), len(host.start_ns))
    begins, ends = host.free(there)
    begins = np.maximum(begins, issued)
    passed = (usual >= 0) & ~seen & (end <= ends)
    resumed = np.where(seen, resumed, np.where(passed, host.next_edge(np.maximum(begins, end)), -1))
    since = np.where(seen, since, np.where(end <= begins, resumed, np.maximum(begins, host.edge_before(end))))
    late = np.flatnonzero((usual >= 0) & ~seen & (end > ends))
    for i in late.tolist():
        since[i], resumed[i] = host.longest_tile(int(begins[i]), int(ends[i]))
    done = end.copy()
    done[late] = np.maximum(np.minimum(end, resumed)[late], table.start_ns[late])
    return _Waits(resumed, since, done)


def _recurring(m: MeasuredProcess, table: CollectiveRows, issued: I64) -> I64:
    """A number per collective, the same for those that are the same call of the program in every step: of one kind and
    size, and in a step the same one of them."""
    alike = np.unique(np.stack([table.key.astype(np.int64), table.bytes]), axis=1, return_inverse=True)[1].reshape(-1)
    return recurring(np.searchsorted(m.steps.start_ns, issued, side="right"), alike, issued)


def _usual_place(call: I64, slot: I64, waited: I64) -> I64:
    """The place of the longest waiting of each call; -1 for calls that were never waited for."""
    usual = np.full(int(call.max(initial=0)) + 1, -1, np.int64)
    order = np.argsort(waited, kind="stable")
    order = order[waited[order] > 0]
    usual[call[order]] = slot[order]  # the last one written is the longest
    return usual[call]


def _give(builder: Builder, arcs: I64, category: TimeCategory, ns: I64, least: int) -> None:
    """Lengthen arcs of one category; what is more than usual is time in which something held it up."""
    usual = int(np.median(ns)) if len(ns) else 0
    held = held_up(ns, usual, least)
    builder.give_slot(arcs, slot(category), ns - held)
    builder.give_slot(arcs, slot(TimeCategory.WAIT_HELD), held)


def _add_waits(builder: Builder, thread: HostThread, done: I64, waits: _Waits, least: int) -> None:
    known = np.flatnonzero(waits.resumed_ns >= np.maximum(waits.end_ns, 0))
    resumed, end = waits.resumed_ns[known], waits.end_ns[known]
    since = np.minimum(waits.since_ns[known], resumed)
    nodes = thread.mark(builder, resumed, since)
    waited, tail = since < end, resumed - end
    usual = int(np.median(tail[waited])) if waited.any() else 0
    arcs = builder.add_arcs(done[known], nodes)
    _give(builder, arcs, TimeCategory.WAIT_TAIL, np.where(waited, tail, np.minimum(tail, usual)), least)
