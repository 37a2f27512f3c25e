"""What the host was doing in each piece of a device's idle time for which it is the reason. Takes whatever was
recorded; knows no reader and no other rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.analysis.process.by_name import matching
from harness.analysis.process.first_use import COLD_LEAST, COMPILED, FirstPass, made_ready, prepares
from harness.analysis.process.host_calls import (
    CAUSES,
    HostCause,
    HostSource,
    HostStretches,
    awaits_communication,
    feeding_threads,
    told_on_cpu,
    told_on_gpu,
)
from harness.analysis.process.host_stacks import HostStacks
from harness.analysis.process.idle import (
    CHUNK,
    COMMUNICATION,
    NOT_WORK,
    LaunchLatency,
    NextEvent,
    pieces_on_cpu,
    pieces_on_gpu,
    usual_latency,
)
from harness.analysis.process.intervals import Intervals, RangeTree, complement, overlaps, union
from harness.analysis.process.kinds import Kinds
from harness.analysis.process.phases import PHASES, phase_of_moments, phases
from harness.analysis.process.ranges import first_labels
from harness.analysis.process.steps import ProcessSteps, counts_steps
from harness.analysis.process.view import ProcessView
from harness.traces.columns import distinct_columns
from harness.traces.trace import I32, I64, U8, Activity, HostKind, RangeKind

NAMED_NS = 100_000  # on a CPU: a shorter piece between operators is the interpreter's
KINDS = ("", "call", "operator", "python", "sample", "os call", "wait", "range", "collector", "profiler")
NOTHING, CALL, OPERATOR, PYTHON, SAMPLE, OS_CALL, WAIT, RANGE, COLLECTOR, PROFILER = range(len(KINDS))
_KIND_OF_SPAN = np.array((OPERATOR, PYTHON, OS_CALL, SAMPLE, COLLECTOR, PROFILER, WAIT))  # by HostKind


@dataclass(frozen=True)
class Activities:
    """n rows: what tells apart the things that a host did. Names are indices into the trace's names, -1: none.

    `function`: the Python function that covers most of the time; `where`: as HostStacks.functions says;
    `range`: the first of the names that share the range's label."""

    cause: I64
    kind: I64
    what: I64
    call: I64
    operator: I64
    function: I64
    where: I64
    range: I64
    phase: I64

    def __len__(self) -> int:
        return len(self.cause)


@dataclass(frozen=True)
class IdleTime:
    """One device's idle time in n disjoint pieces in order, each with its cause and its row of `activities`; the row is
    -1 where the host is not the reason."""

    start_ns: I64
    end_ns: I64
    cause: U8
    row: I32
    activities: Activities

    def of_cause(self, cause: HostCause) -> Intervals:
        """The pieces of one cause, as a set."""
        chosen = self.cause == cause
        return union(self.start_ns[chosen], self.end_ns[chosen])

    def of_host(self) -> tuple[I64, I64, I32]:
        """The pieces for which the host is the reason: start, end, row of `activities`; disjoint and in order."""
        chosen = np.flatnonzero(self.row >= 0)
        return self.start_ns[chosen], self.end_ns[chosen], self.row[chosen]

    def sums(self) -> I64:
        """Nanoseconds by cause."""
        length = (self.end_ns - self.start_ns).astype(np.float64)  # exact below 2**53
        return np.bincount(self.cause, weights=length, minlength=len(CAUSES)).astype(np.int64)

    def within(self, gaps: Intervals) -> tuple[U8, I32]:
        """For each of some stretches the cause and the row with most of its time."""
        own = Intervals(self.start_ns, self.end_ns)
        chunks = (slice(at, at + CHUNK) for at in range(0, len(gaps.start), CHUNK))  # whose columns fit the memory
        some_gaps = (Intervals(gaps.start[some], gaps.end[some]) for some in chunks)
        found = [self._most(*overlaps(some, own), some) for some in some_gaps]
        if not found:
            return np.empty(0, np.uint8), np.empty(0, np.int32)
        causes, rows = (np.concatenate(column) for column in zip(*found, strict=True))
        return causes, rows

    def _most(self, of: I64, by: I64, some: Intervals) -> tuple[U8, I32]:
        length = np.minimum(some.end[of], self.end_ns[by]) - np.maximum(some.start[of], self.start_ns[by])
        count = len(some.start)
        causes = np.zeros((count, len(CAUSES)), np.int64)
        np.add.at(causes, (of, self.cause[by]), length)
        main = causes.argmax(axis=1).astype(np.uint8)
        row = np.full(count, -1, np.int32)
        mine = np.flatnonzero(self.cause[by] == main[of])
        order = mine[np.argsort(length[mine], kind="stable")]
        row[of[order]] = self.row[by[order]]  # the longest is written last
        return main, row


class HostWatch:
    """What a process's host did, asked for the gaps of one device at a time."""

    def __init__(self, view: ProcessView, kinds: Kinds, nesting: RangeTree, owner: I64, steps: ProcessSteps) -> None:
        self._view, self._kinds, self._nesting, self._owner = view, kinds, nesting, owner
        self._between = steps.between
        feeding = feeding_threads(view, nesting)
        self.stacks = HostStacks(view, nesting, feeding)
        self._host_stretches = self._told_of_host(feeding)
        self._is_cold = bool((self._host_stretches.cause == HostCause.FIRST_USE).any())
        self._settled_ns = FirstPass.of(view).settled_ns if self._is_cold else 0
        self._phase = phases(view.ranges, view.names, nesting)
        self._hidden = matching(view.ranges.name, view.names, set(steps.names).__contains__)
        self._hidden |= view.ranges.kind == RangeKind.STEP
        self._hidden |= matching(view.ranges.name, view.names, counts_steps)
        self._label = first_labels(view.ranges, view.names)
        main = nesting.main_thread
        if main not in feeding and len(feeding):  # it launches nothing: who does is asked
            main = int(feeding[0])
        self._main = -1 if main is None else main
        self._threads = [self._main, *(int(t) for t in feeding if t != self._main)]

    def idle_time(self, gaps: Intervals, rows: slice) -> IdleTime:
        """The gaps of the device whose events are `rows`, cut by cause and activity."""
        following = self._following(gaps, rows)
        launching = LaunchLatency(self._view.events, usual_latency(gaps, following))
        parts = [self._pieces(gaps, following, at, launching) for at in range(0, len(gaps.start), CHUNK)]
        if not parts:
            none = np.empty(0, np.int64)
            parts = [_Rows(none, none, none.astype(np.uint8), none.astype(np.int32), none)]
        return self._named(_joined(parts))

    def _told_of_host(self, feeding: I64) -> HostStretches:
        view = self._view
        if not view.on_cpu:
            return told_on_gpu(view, self._nesting, feeding, self._operators_of_calls)
        events = view.events
        waits = self._kinds.event_class == NOT_WORK
        waits &= matching(events.name, view.names, awaits_communication)
        dispatch = union(events.start_ns[waits], events.end_ns[waits])
        return told_on_cpu(view, self._nesting, feeding, dispatch)

    def _operators_of_calls(self, rows: I64) -> I64:
        calls = self._view.calls
        at = Intervals(calls.start_ns[rows], calls.end_ns[rows])
        return self.stacks.mostly(HostKind.OPERATOR, calls.thread[rows], at)

    def _following(self, gaps: Intervals, rows: slice) -> NextEvent:
        """What ended each gap."""
        events = self._view.events
        following = np.searchsorted(events.start_ns[rows], gaps.end, side="left")
        exists = following < rows.stop - rows.start
        at = rows.start + np.minimum(following, rows.stop - rows.start - 1)
        kernels = np.arange(rows.start, rows.stop)[events.activity[rows] == Activity.KERNEL]
        ready = exists & made_ready(events.name, kernels, gaps, at)
        compiled = matching(events.name[at[ready]], self._view.names, COMPILED.search).any()
        if not (self._is_cold or compiled or (ready.sum() >= COLD_LEAST and FirstPass.of(self._view).goes_on)):
            ready[:] = False
        return NextEvent(
            np.where(exists, events.launch_ns[at], -1),
            exists & (self._kinds.event_class[at] == COMMUNICATION),
            np.where(exists, at, -1),
            ready,
        )

    def _pieces(self, gaps: Intervals, following: NextEvent, begin: int, launching: LaunchLatency) -> _Rows:
        some = slice(begin, begin + CHUNK)
        gaps = Intervals(gaps.start[some], gaps.end[some])
        if self._view.on_cpu:
            pieces = pieces_on_cpu(gaps, self._host_stretches)
        else:
            pieces = pieces_on_gpu(gaps, following.at(some), self._host_stretches, launching)
        return _Rows(pieces.start_ns, pieces.end_ns, pieces.cause, pieces.stretch, following.row[some][pieces.gap])

    def _named(self, rows: _Rows) -> IdleTime:
        """The pieces with their activities; host work is cut where operators begin and end."""
        on_cpu = self._view.on_cpu
        if not on_cpu:
            rows = self._cut_by_operators(rows)
        named = rows.cause < HostCause.COMMUNICATION
        if on_cpu:
            between = (rows.cause == HostCause.LAUNCH) | (rows.cause == HostCause.OTHER)
            named = np.where(between, rows.end - rows.start >= NAMED_NS, named)
        else:
            named &= rows.cause != HostCause.LAUNCH
        at, plain = np.flatnonzero(named), np.flatnonzero((rows.cause == HostCause.LAUNCH) & ~named)
        columns = self._names_of(rows.at(at))
        if not on_cpu:
            rows.cause[at] = columns[0]
        distinct, code = distinct_columns(columns)
        phase = self._phases_of_launches(rows, plain)
        occurring = np.flatnonzero(np.bincount(phase, minlength=len(PHASES)))
        row = np.full(len(rows.start), -1, np.int32)
        row[at] = code
        row[plain] = (distinct.shape[1] + np.searchsorted(occurring, np.arange(len(PHASES))))[phase]
        launches = np.full((len(columns), len(occurring)), -1)
        launches[0], launches[1], launches[-1] = HostCause.LAUNCH, NOTHING, occurring
        distinct = np.concatenate([distinct, launches], axis=1)
        return IdleTime(rows.start, rows.end, rows.cause, row, Activities(*distinct))

    def _cut_by_operators(self, rows: _Rows) -> _Rows:
        """Host work of threads without Python functions, cut at the outermost operators."""
        operators = self.stacks.operators
        if not len(operators.start_ns):
            return rows
        host = np.flatnonzero((rows.cause == HostCause.HOST) & (rows.stretch < 0))
        with_python = [thread for thread in self._threads if self.stacks.has_python(thread)]
        host = host[~np.isin(self._threads_of(rows.at(host)), with_python)]
        if not len(host):
            return rows
        apart = Intervals(rows.start[host], rows.end[host])
        own = Intervals(operators.start_ns, operators.end_ns)
        free = complement(own, int(apart.start[0]), int(apart.end[-1]))
        others = rows.at(np.flatnonzero(~np.isin(np.arange(len(rows.start)), host)))
        parts = [others]
        for by in (own, free):
            i, j = overlaps(apart, by)
            start, end = np.maximum(apart.start[i], by.start[j]), np.minimum(apart.end[i], by.end[j])
            parts.append(rows.at(host[i])._replace(start=start, end=end))
        joined = _joined(parts)
        return joined.at(np.argsort(joined.start, kind="stable"))

    def _threads_of(self, rows: _Rows) -> I64:
        """The thread whose activity counts: of the call, or of the launch of the gap's next event."""
        thread = np.append(self._view.events.launch_thread, -1)[rows.following]
        calls = np.flatnonzero(rows.stretch >= 0)
        calls = calls[self._host_stretches.source[rows.stretch[calls]] == HostSource.CALL]
        thread[calls] = self._view.calls.thread[self._host_stretches.row[rows.stretch[calls]]]
        return np.where(thread < 0, self._main, thread)

    def _phases_of_launches(self, rows: _Rows, at: I64) -> NDArray[np.int8]:
        """The phase of pieces in which launches follow one another: all that is told of them."""
        start = rows.start[at]
        owner = np.append(self._owner, -1)[rows.following[at]]
        main = self._nesting.main
        if main is not None and len(missing := np.flatnonzero(owner < 0)):
            owner[missing] = main.of(start[missing])
        return self._phase_of(owner, start, rows.end[at])

    def _phase_of(self, ranges: I64, start: I64, end: I64) -> NDArray[np.int8]:
        return phase_of_moments(ranges, self._phase, (start + end) // 2, self._between)

    def _names_of(self, rows: _Rows) -> list[I64]:
        """The columns of Activities for pieces in which more is known, or could be."""
        at, stacks = self._stretches(rows), self.stacks
        kind, what, call = self._told_names(rows)
        thread = self._threads_of(rows)
        main = np.full(len(thread), self._main)
        operator = stacks.mostly(HostKind.OPERATOR, thread, at)
        operator = np.where(operator >= 0, operator, stacks.operators.half(at))
        function, where = self._functions(thread, at)
        ranges = self._ranges(thread, at)
        label = np.append(self._label, -1)[ranges]
        phase = self._phase_of(ranges, *at)
        unnamed = kind == NOTHING
        for code, name in (
            (OPERATOR, operator),
            (PYTHON, function),
            (SAMPLE, stacks.mostly(HostKind.SAMPLE, thread, at)),
            (SAMPLE, stacks.mostly(HostKind.SAMPLE, main, at)),
            (OS_CALL, stacks.mostly(HostKind.OS_CALL, main, at)),
            (OS_CALL, stacks.mostly(HostKind.OS_CALL, thread, at)),
            (WAIT, stacks.mostly(HostKind.WAIT, main, at)),
            (WAIT, stacks.mostly(HostKind.WAIT, thread, at)),
            (RANGE, label),
        ):
            now = unnamed & (name >= 0)
            kind[now], what[now] = code, name[now]
            unnamed &= ~now
        cause = rows.cause.astype(np.int64)
        cause[unnamed & (cause == HostCause.HOST)] = HostCause.NOT_RECORDED
        if self._is_cold:
            inside = (cause == HostCause.HOST) & (kind == OPERATOR)
            early = rows.start < self._settled_ns
            cause[prepares(what, rows.end - rows.start, inside & early, inside & ~early)] = HostCause.FIRST_USE
        return [cause, kind, what, call, operator, function, where, label, phase.astype(np.int64)]

    def _stretches(self, rows: _Rows) -> Intervals:
        """Each piece; of a call, also for what follows it, the call."""
        start, end = rows.start.copy(), rows.end.copy()
        called = np.flatnonzero(rows.stretch >= 0)
        called = called[self._host_stretches.source[rows.stretch[called]] == HostSource.CALL]
        start[called] = self._host_stretches.start_ns[rows.stretch[called]]
        end[called] = self._host_stretches.end_ns[rows.stretch[called]]
        return Intervals(start, end)

    def _told_names(self, rows: _Rows) -> tuple[I64, I64, I64]:
        """Kind, name and call of the pieces of which something recorded tells."""
        view, told = self._view, self._host_stretches
        kind, what = np.zeros(len(rows.start), np.int64), np.full(len(rows.start), -1)
        call = what.copy()
        known = np.flatnonzero(rows.stretch >= 0)
        source, row = told.source[rows.stretch[known]], told.row[rows.stretch[known]]
        for of, name, code in (
            (HostSource.CALL, view.calls.name, CALL),
            (HostSource.RANGE, self._label, RANGE),
            (HostSource.SPAN, view.host.name, -1),
        ):
            mine = np.flatnonzero(source == of)
            what[known[mine]], kind[known[mine]] = name[row[mine]], code
            if of is HostSource.SPAN:
                kind[known[mine]] = _KIND_OF_SPAN[view.host.kind[row[mine]]]
            if of is HostSource.CALL:
                call[known[mine]] = name[row[mine]]
        return kind, what, call

    def _functions(self, thread: I64, at: Intervals) -> tuple[I64, I64]:
        """As HostStacks.functions, of each piece's own thread; where that has none or only waits, of another one."""
        count = len(at.start)
        function, where, open_ = np.full(count, -1), np.full(count, -1), np.ones(count, np.bool_)
        for which in (thread, *map(np.asarray, self._threads)):
            for each in np.unique(which).tolist():
                mine = np.flatnonzero(open_ & (which == each))
                if not len(mine) or not self.stacks.has_python(each):
                    continue
                found, place, waits = self.stacks.functions(each, Intervals(at.start[mine], at.end[mine]))
                use = (found >= 0) & ((function[mine] < 0) | ~waits)
                function[mine[use]], where[mine[use]] = found[use], place[use]
                open_[mine] = (function[mine] < 0) | waits
        return function, where

    def _ranges(self, thread: I64, at: Intervals) -> I64:
        """The row of the range around each piece, of its own thread, else of the main thread."""
        found = np.full(len(at.start), -1)
        for which in (thread, np.asarray(self._main)):
            for each in np.unique(which).tolist():
                mine = np.flatnonzero((found < 0) & (which == each))
                some = Intervals(at.start[mine], at.end[mine])
                found[mine] = self.stacks.range_rows(each, some, self._hidden)
        return found


class _Rows(NamedTuple):
    """Pieces on the way to their names: as `Pieces`, with the event that ended the gap (-1: none)."""

    start: I64
    end: I64
    cause: U8
    stretch: I32
    following: I64

    def at(self, chosen: I64) -> _Rows:
        columns: list[Any] = [column[chosen] for column in self]
        return _Rows(*columns)


def _joined(parts: list[_Rows]) -> _Rows:
    columns: list[Any] = [np.concatenate(column) for column in zip(*parts, strict=True)]
    return _Rows(*columns)
