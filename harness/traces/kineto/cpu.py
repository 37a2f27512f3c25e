"""Events of a trace without a GPU: each instant of a thread belongs to the innermost operator that runs then.

An operator's own time, between and around the operators it calls, becomes events of its own, its pieces; so the
union of all events is the time in operators and nothing is counted twice. One operator's pieces share `correlation`;
the first begins and the last ends with it, even where these take no time (see traces/operators.py).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from harness.traces.columns import constant, unknown
from harness.traces.kineto.gather import Gathered, HostMessage
from harness.traces.kineto.pick import MESSAGE_OPERATOR
from harness.traces.trace import I64, Activity, Events

SPAN_PREFIX = "gloo:"
_ROWS_AT_ONCE = 8192
_Running = tuple[int, int, int]  # an operator that has begun: its number, start and end
_ISSUES = (MESSAGE_OPERATOR, "c10d::", "_c10d_functional::")  # they enqueue or wait; they do not compute


def _numbers() -> array[int]:
    return array("q")


@dataclass(slots=True)
class _Segments:
    start: array[int] = field(default_factory=_numbers)
    end: array[int] = field(default_factory=_numbers)
    owner: array[int] = field(default_factory=_numbers)

    def add(self, start: int, end: int, owner: int) -> None:
        self.start.append(start)
        self.end.append(end)
        self.owner.append(owner)


def host_events(gathered: Gathered, spans: list[HostMessage], issued: list[tuple[int, int]]) -> Events:
    """Operators' own time, then the collectives' spans in their order, as events.

    `issued` is the start and thread of the operator behind each span, -1 where it is not known.
    """
    operators = gathered.operators
    start, end, name = operators.column("start"), operators.column("end"), operators.column("name")
    thread, dtype = operators.column("thread"), operators.column("dtype")
    segments = _own_time(start, end, thread)
    owner = np.array(segments.owner, np.int64)
    serving = _message_threads(start, end, thread, spans)
    keep = _computes(gathered.names.texts, name)[owner] & ~np.isin(thread[owner], serving)
    owner = owner[keep]
    span_start = np.array([s.start_ns for s in spans], np.int64)
    span_end = np.array([s.end_ns for s in spans], np.int64)
    n, m = len(owner), len(spans)
    own_start = np.array(segments.start, np.int64)[keep]
    streams = np.concatenate([thread[owner], np.array([s.thread for s in spans], np.int64)])
    starts = np.concatenate([own_start, span_start])
    return Events(
        start_ns=starts,
        end_ns=np.concatenate([np.array(segments.end, np.int64)[keep], span_end]),
        name=np.concatenate([name[owner], gathered.names.indices(s.name for s in spans)]).astype(np.int32),
        activity=np.repeat(np.array([Activity.CPU_OP, Activity.CPU_COLLECTIVE], np.uint8), [n, m]),
        device=np.zeros(n + m, np.int32),
        stream=streams,
        correlation=np.concatenate([owner, np.full(m, -1, np.int64)]),
        launch_ns=np.concatenate([own_start, np.array([ns for ns, _ in issued], np.int64)]),
        launch_thread=np.concatenate([thread[owner], np.array([who for _, who in issued], np.int64)]),
        bytes=unknown(n + m),
        copy_kind=constant(-1, n + m, np.int32),
        pageable=np.zeros(n + m, np.uint8),
        dtype=np.concatenate([dtype[owner], np.full(m, -1, np.int64)]).astype(np.int32),
        process=constant(gathered.pid, n + m),
    )


def _own_time(start: I64, end: I64, thread: I64) -> _Segments:
    """Of each operator, the stretches in which none that it called runs."""
    segments = _Segments()
    order = np.lexsort((-end, start, thread))
    stack: list[_Running] = []  # outermost first
    now, on_thread = 0, None
    for operator, begins, ends, runs_on in _rows(order, start, end, thread):
        if runs_on != on_thread:
            now = _unwind(stack, segments, now, None)
            on_thread = runs_on
        now = _unwind(stack, segments, now, begins)
        if stack:
            caller, caller_begins, _ = stack[-1]
            if begins > now or begins == caller_begins:
                segments.add(now, begins, caller)
        # Clocks round, but a call never outlives its caller.
        stack.append((operator, begins, min(ends, stack[-1][2]) if stack else ends))
        now = begins
    _unwind(stack, segments, now, None)
    return segments


def _rows(order: NDArray[np.intp], *columns: I64) -> Iterator[tuple[int, ...]]:
    """Rows in `order`, each with its own number first; few at a time are Python's numbers."""
    for first in range(0, len(order), _ROWS_AT_ONCE):
        some = order[first : first + _ROWS_AT_ONCE]
        yield from zip(some.tolist(), *(column[some].tolist() for column in columns), strict=True)


def _unwind(stack: list[_Running], segments: _Segments, now: int, until: int | None) -> int:
    """Close what ends before `until` (None: everything); returns up to when time is given away."""
    while stack and (until is None or stack[-1][2] <= until):
        operator, _, ends = stack.pop()
        ends = max(now, ends)  # a damaged duration may be negative
        segments.add(now, ends, operator)
        now = ends
    return now


def _computes(texts: list[str], name: I64) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    verdicts = np.array([not text.startswith(_ISSUES) for text in texts], bool)
    return verdicts[name] if len(name) else np.empty(0, bool)


def _message_threads(start: I64, end: I64, thread: I64, spans: list[HostMessage]) -> list[int]:
    """Threads that only serve collectives: what they compute is part of these."""
    serving = []
    for candidate in sorted({s.thread for s in spans}):
        mine = thread == candidate
        own = sorted((s.start_ns, s.end_ns) for s in spans if s.thread == candidate)
        starts, ends = np.array([a for a, _ in own]), np.array([b for _, b in own])
        covering = np.searchsorted(starts, start[mine], side="right") - 1
        if bool(((covering >= 0) & (ends[covering] >= end[mine])).all()):
            serving.append(candidate)
    return serving
