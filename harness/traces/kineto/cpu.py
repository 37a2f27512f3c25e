"""Events of a trace without a GPU: each instant of a thread belongs to the innermost operator that runs then.

An operator's own time, between and around the operators it calls, becomes events of its own, its pieces; so the
union of all events is the time in operators and nothing is counted twice. One operator's pieces share `correlation`;
the first begins and the last ends with it, even where these take no time (see traces/operators.py).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.traces.columns import constant, unknown
from harness.traces.kineto.gather import Gathered, HostMessage
from harness.traces.kineto.pick import MESSAGE_OPERATOR
from harness.traces.trace import I32, I64, Activity, Events

SPAN_PREFIX = "gloo:"
_ROWS_AT_ONCE = 8192
_Running = tuple[int, int, int]  # an operator that has begun: its number, start and end
_ISSUES = (
    MESSAGE_OPERATOR,
    "c10d::",
    "_c10d_functional::",
)  # operators that enqueue or wait and do not compute


def host_events(gathered: Gathered, spans: list[HostMessage], issued: list[tuple[int, int]]) -> Events:
    """Operators' own time, then the collectives' spans in their order, as events.

    `issued` is the start and thread of the operator behind each span, -1 where it is not known.
    """
    columns = gathered.operators.joined()
    name, thread = columns["name"], columns["thread"]
    segments = _own_time(columns["start_ns"], columns["end_ns"], thread)
    start, end, owner = np.array(segments, np.int64).reshape(-1, 3).T
    serving = _message_threads(columns["start_ns"], columns["end_ns"], thread, spans)
    keep = _computes(gathered.names.texts, name)[owner] & ~np.isin(thread[owner], serving)
    start, owner, stream = start[keep], owner[keep], thread[owner[keep]]
    n, m = len(owner), len(spans)
    return Events(
        start_ns=_followed(start, [s.start_ns for s in spans]),
        end_ns=_followed(end[keep], [s.end_ns for s in spans]),
        name=_followed(name[owner], gathered.names.indices(s.name for s in spans)),
        activity=np.repeat(np.array([Activity.CPU_OP, Activity.CPU_COLLECTIVE], np.uint8), [n, m]),
        device=np.zeros(n + m, np.int32),
        stream=_followed(stream, [s.thread for s in spans]),
        correlation=_followed(owner, unknown(m)),
        launch_ns=_followed(start, [issued_ns for issued_ns, _ in issued]),
        launch_thread=_followed(stream, [issued_on for _, issued_on in issued]),
        bytes=unknown(n + m),
        copy_kind=constant(-1, n + m, np.int32),
        host_memory=np.zeros(n + m, np.uint8),
        dtype=_followed(columns["dtype"][owner], unknown(m)),
        process=constant(gathered.pid, n + m),
    )


def _followed(column: NDArray[Any], more: Sequence[int] | NDArray[Any]) -> NDArray[Any]:
    return np.concatenate([column, np.asarray(more, column.dtype)])


def _own_time(start: I64, end: I64, thread: I64) -> array[int]:
    """Start, end and operator of each stretch in which an operator runs and no operator that it called."""
    segments = array("q")
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
                segments.extend((now, begins, caller))
        # Clocks round, but a call never outlives its caller.
        stack.append((operator, begins, min(ends, stack[-1][2]) if stack else ends))
        now = begins
    _unwind(stack, segments, now, None)
    return segments


def _rows(order: NDArray[np.intp], *columns: I64) -> Iterator[tuple[int, ...]]:
    """Rows in `order`, each with its own number first; a block at a time is converted to Python's numbers."""
    for first in range(0, len(order), _ROWS_AT_ONCE):
        some = order[first : first + _ROWS_AT_ONCE]
        yield from zip(some.tolist(), *(column[some].tolist() for column in columns), strict=True)


def _unwind(stack: list[_Running], segments: array[int], now: int, until: int | None) -> int:
    """Close the operators that end before `until` (None: all); returns the time up to which segments are given."""
    while stack and (until is None or stack[-1][2] <= until):
        operator, _, ends = stack.pop()
        ends = max(now, ends)  # a damaged duration may be negative
        segments.extend((now, ends, operator))
        now = ends
    return now


def _computes(texts: list[str], name: I32) -> NDArray[np.bool_]:
    verdicts = np.array([not text.startswith(_ISSUES) for text in texts], bool)
    return verdicts[name] if len(name) else np.empty(0, bool)


def _message_threads(start: I64, end: I64, thread: I64, spans: list[HostMessage]) -> list[int]:
    """Threads that only serve collectives: their computation is part of a collective."""
    serving = []
    for candidate in sorted({s.thread for s in spans}):
        mine = thread == candidate
        own = sorted((s.start_ns, s.end_ns) for s in spans if s.thread == candidate)
        starts, ends = np.array([a for a, _ in own]), np.array([b for _, b in own])
        covering = np.searchsorted(starts, start[mine], side="right") - 1
        if bool(((covering >= 0) & (ends[covering] >= end[mine])).all()):
            serving.append(candidate)
    return serving
