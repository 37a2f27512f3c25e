"""Why a device did nothing: every idle nanosecond goes to exactly one cause. Knows one device at a time.

A gap ends when the next event starts. Until that event was launched, the host is the reason: it was loading data,
waiting in a synchronising call, or had not come to the launch yet (launch-bound). From the launch on, the event waited
for another stream: for communication if it is a communication kernel, else for something that the trace does not show.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.analysis.process.by_name import matching
from harness.analysis.process.intervals import EMPTY, Intervals, difference, lengths_within, merge, union
from harness.analysis.process.nesting import Nesting
from harness.analysis.process.view import View
from harness.analysis.summary import IdleCause
from harness.traces.trace import I64, Calls, Events

DATA, SYNCHRONISATION, LAUNCH, COMMUNICATION, OTHER = range(5)
CAUSES = ("data loading", "synchronisation", "launch-bound", "communication", "other")
_DATA = re.compile(
    r"data[ _]?load|DataLoader|dataload|(next|get|load|fetch)[ _]?batch|batch[ _-]?generator|data[ _]?iter",
    re.IGNORECASE,
)
_WAIT = re.compile(r"^(recv|send|wait|barrier|p2p|batch_isend)", re.IGNORECASE)
_COMMUNICATION_CALL = re.compile(r"c10d|record_param_comms|wait|barrier", re.IGNORECASE)
_SYNC = re.compile(r"Synchronize|Memcpy(?!\w*Async)|(cuda|hip)(Free|Malloc)(?!Async)|EventQuery.*wait")


@dataclass(frozen=True)
class HostTime:
    """What the host was doing, as sets: loading data, blocked in a call, waiting in a send or receive."""

    data: Intervals
    blocked: Intervals
    waiting: Intervals


def blocks(call: str) -> bool:
    """Whether a call of the device's library holds its thread until the device has done something."""
    return _SYNC.search(call) is not None


def awaits_communication(name: str) -> bool:
    """Whether an operator of a CPU trace only starts or awaits a collective."""
    return _COMMUNICATION_CALL.search(name) is not None


def host_time(view: View, nesting: Nesting) -> HostTime:
    """The host's sets of one process. Data loading counts on the main thread only, without workers that prefetch.
    Blocking calls count on the main thread and on threads that launch: a watchdog that waits for an event holds up no
    thread that works."""
    ranges, calls, names = view.ranges, view.calls, view.names
    on_main = ranges.thread == (-2 if nesting.main_thread is None else nesting.main_thread)
    data = matching(ranges.name, names, _DATA.search) & on_main
    waiting = matching(ranges.name, names, _WAIT.search) & on_main
    blocking = matching(calls.name, names, _SYNC.search) & _feeding(calls, view.events, nesting)
    loading = union(ranges.start_ns[data], ranges.end_ns[data])
    blocked = union(calls.start_ns[blocking], calls.end_ns[blocking])
    held = union(ranges.start_ns[waiting], ranges.end_ns[waiting])
    return HostTime(loading, difference(blocked, loading), difference(difference(held, loading), blocked))


def _feeding(calls: Calls, events: Events, nesting: Nesting) -> NDArray[np.bool_]:
    """Calls of the main thread and of threads that launch work; every call where neither is known."""
    launching = np.unique(events.launch_thread[events.launch_thread >= 0])
    threads = launching if nesting.main_thread is None else np.append(launching, nesting.main_thread)
    feeding: NDArray[np.bool_] = np.isin(calls.thread, threads) | (len(threads) == 0)
    return feeding


@dataclass(frozen=True)
class NextEvent:
    """What ended each of n gaps: when it was launched (-1 unknown) and whether it is communication."""

    launch_ns: I64
    is_communication: NDArray[np.bool_]


def causes_on_gpu(idle: Intervals, following: NextEvent, host: HostTime) -> I64:
    """Nanoseconds per gap and cause, shape (n, 5); each row sums to its gap exactly."""
    known = following.launch_ns >= 0
    launched = np.where(known, np.clip(following.launch_ns, idle.start, idle.end), idle.end)
    result = np.zeros((len(idle.start), len(CAUSES)), np.int64)
    result[:, DATA] = lengths_within(host.data, idle.start, launched)
    result[:, SYNCHRONISATION] = lengths_within(host.blocked, idle.start, launched)
    rest = launched - idle.start - result[:, DATA] - result[:, SYNCHRONISATION]
    result[:, LAUNCH] = np.where(known, rest, 0)
    queued = idle.end - launched
    result[:, COMMUNICATION] = np.where(following.is_communication, queued, 0)
    result[:, OTHER] = np.where(following.is_communication, 0, queued) + np.where(known, 0, rest)
    return result


def causes_on_cpu(idle: Intervals, host: HostTime, dispatch: Intervals, annotated: Intervals) -> I64:
    """As `causes_on_gpu` for a trace whose operators are the work: nothing is launched, the host runs it.

    `dispatch`: operators that only start or await communication. `annotated`: under any range of the program;
    idle time there is the interpreter between operators, called launch-bound as its GPU counterpart is.
    """
    result = np.zeros((len(idle.start), len(CAUSES)), np.int64)
    taken = EMPTY
    for cause, stretch in (
        (DATA, host.data),
        (COMMUNICATION, awaited_on_cpu(host, dispatch)),
        (LAUNCH, annotated),
    ):
        result[:, cause] = lengths_within(difference(stretch, taken), idle.start, idle.end)
        taken = merge(taken, stretch)
    result[:, OTHER] = idle.end - idle.start - result.sum(axis=1)
    return result


def awaited_on_cpu(host: HostTime, dispatch: Intervals) -> Intervals:
    """When the host is inside a send, a receive or a call that starts or awaits a collective."""
    return difference(merge(host.waiting, dispatch), host.data)


def awaited_on_gpu(idle: Intervals, following: NextEvent) -> Intervals:
    """Of each gap that a communication kernel ends, the part from that kernel's launch on."""
    queued = following.is_communication & (following.launch_ns >= 0) & (following.launch_ns < idle.end)
    start = np.maximum(following.launch_ns, idle.start)[queued]
    return Intervals(start, idle.end[queued])


def cause_table(sums: Mapping[str, int]) -> list[IdleCause]:
    """Nanoseconds by cause as a table of the causes that occur, largest first, with shares of the total."""
    total = max(sum(sums.values()), 1)
    rows = [IdleCause(cause=cause, duration_ns=ns, share=ns / total) for cause, ns in sums.items() if ns]
    return sorted(rows, key=lambda c: (-c.duration_ns, c.cause))
