"""The graphs of a job's processes as one, and its replay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from harness.analysis.job.clocks import align_clocks
from harness.analysis.job.matching import match_collectives
from harness.analysis.process.part import RankPart
from harness.replay.host import least_stall
from harness.replay.meetings import EARLY, Call, Meetings, Messages, Nodes, join_messages
from harness.replay.process import ProcessGraph
from harness.replay.solve import Schedule, schedule, solve
from harness.replay.sorts import SLOTS
from harness.replay.timeline import Amounts, joined
from harness.traces.trace import F64, I64


@dataclass(frozen=True)
class JobGraph:
    """All processes' nodes and arcs; times are aligned. process: of each arc, the process of its target.
    repeated: arcs whose time is also that of others.

    step: of each arc, the step in which its target lies, -1 outside. step_begin, step_end: shape (processes, steps),
    the nodes of the steps that all processes counted. alone: collectives with no
    other rank that is known. unknown: the arcs of these, and of collectives with some rank that is not known."""

    processes: list[ProcessGraph]
    time_ns: I64
    source: I64
    target: I64
    amounts: Amounts
    process: I64
    repeated: I64
    step: I64
    step_begin: I64
    step_end: I64
    messages: Messages
    calls: list[Call]
    alone: int
    unknown: I64

    @property
    def arcs(self) -> int:
        """How many arcs there are."""
        return len(self.source)

    @cached_property
    def plan(self) -> Schedule:
        """The order in which to solve. Raises NoOrderError."""
        return schedule(len(self.time_ns), self.source, self.target)

    @cached_property
    def lengths(self) -> I64:
        """Every arc's measured length."""
        total = np.zeros(self.arcs, np.int64)
        np.add.at(total, self.amounts.arc, self.amounts.ns)
        return total

    @property
    def measured(self) -> I64:
        """Each step's measured time, shape (processes, steps)."""
        found: I64 = self.time_ns[self.step_end] - self.time_ns[self.step_begin]
        return found

    def replay(self, lengths: I64) -> I64:
        """The steps' times, shape (v, processes, steps), for arc lengths of shape (v, arcs)."""
        moments = solve(self.plan, self.time_ns, lengths)
        found: I64 = moments[:, self.step_end] - moments[:, self.step_begin]
        return found

    def scaled(self, factor: F64, steps: NDArray[np.bool_] | None = None) -> I64:
        """Every arc's length with each slot's time multiplied; factor of shape (processes, SLOTS).

        steps: only in these of the counted steps."""
        a = self.amounts
        by = factor[self.process[a.arc], a.slot]
        if steps is not None:
            by = np.where(np.append(steps, False)[self.step[a.arc]], by, 1)
        kept = a.ns * by
        return np.rint(np.bincount(a.arc, kept, self.arcs)).astype(np.int64)

    def unchanged(self) -> F64:
        """Factors of 1, for `scaled`."""
        return np.ones((len(self.processes), SLOTS))


def join_job(
    graphs: Sequence[ProcessGraph], parts: Sequence[RankPart], world_size: int | None, early: float = EARLY
) -> JobGraph | None:
    """One graph of a job's processes; None without a step. `parts`: of the same processes. early: by how much of its
    waiting a process may seem to go on before the last one arrived."""
    graphs = sorted(graphs, key=lambda g: (-1 if g.rank is None else g.rank, g.path, g.pid or -1))
    steps = min((len(g.step_begin) for g in graphs), default=0)
    if not steps:
        return None
    matched = match_collectives(parts, world_size).matched
    offsets = {c: clock.offset_ns for c, clock in align_clocks(parts, matched).items()}
    times = [g.time_ns + (g.epoch_ns or 0) - offsets.get(g.clock, 0) for g in graphs]
    origin = min(int(time[0]) for time in times)
    time = np.concatenate(times) - origin
    first = np.cumsum([0, *(len(t) for t in times)]).tolist()
    nodes = [
        Nodes((g.path, g.pid), _moved(g.arrive, n), _moved(g.done, n))
        for g, n in zip(graphs, first, strict=False)
    ]
    arcs = _arcs_of(graphs, first)
    meetings = join_messages(Meetings(time, len(time), arcs.count, early), nodes, matched, parts)
    begin, end = (
        np.stack([getattr(g, name)[:steps] + n for g, n in zip(graphs, first, strict=False)])
        for name in ("step_begin", "step_end")
    )
    least = least_stall(time[end] - time[begin])
    time = np.concatenate([time, *meetings.times])
    process = np.concatenate([*arcs.process, *meetings.process])
    target = np.concatenate([*arcs.target, *meetings.target])
    return JobGraph(
        processes=list(graphs),
        time_ns=time,
        source=np.concatenate([*arcs.source, *meetings.source]),
        target=target,
        amounts=joined([*arcs.amounts, *meetings.amounts, meetings.held_up(least)]),
        process=process,
        repeated=np.concatenate(arcs.repeated),
        step=_steps_of(time[target], process, time[end]),
        step_begin=begin,
        step_end=end,
        messages=meetings.messages(),
        calls=meetings.calls,
        alone=meetings.alone_count,
        unknown=np.concatenate([np.empty(0, np.int64), *meetings.unknown]),
    )


def _moved(rows: I64, by: int) -> I64:
    return np.where(rows >= 0, rows + by, -1)


@dataclass(frozen=True)
class _Arcs:
    """The processes' own arcs, one column per process."""

    source: list[I64]
    target: list[I64]
    amounts: list[Amounts]
    process: list[I64]
    repeated: list[I64]
    count: int


def _arcs_of(graphs: Sequence[ProcessGraph], first: list[int]) -> _Arcs:
    before = np.cumsum([0, *(len(g.source) for g in graphs)]).tolist()
    return _Arcs(
        [g.source + n for g, n in zip(graphs, first, strict=False)],
        [g.target + n for g, n in zip(graphs, first, strict=False)],
        [
            Amounts(g.amounts.arc + n, g.amounts.slot, g.amounts.ns)
            for g, n in zip(graphs, before, strict=False)
        ],
        [np.full(len(g.source), i) for i, g in enumerate(graphs)],
        [g.repeated + n for g, n in zip(graphs, before, strict=False)],
        before[-1],
    )


def _steps_of(moment: I64, process: I64, step_end: NDArray[np.int64]) -> I64:
    """The step of each arc, by its process's ends of steps (processes, steps)."""
    step = np.empty(len(moment), np.int64)
    order = np.argsort(process, kind="stable")
    bounds = np.searchsorted(process[order], np.arange(len(step_end) + 1))
    for i, ends in enumerate(step_end):
        mine = order[bounds[i] : bounds[i + 1]]
        step[mine] = np.searchsorted(ends, moment[mine], side="left")
    step[step >= step_end.shape[1]] = -1
    return step
