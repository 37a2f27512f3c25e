"""The graphs of a job's processes as one, and its replay: the earliest moments that the arcs allow.

Nodes are taken in levels, so that a node's sources come before it; a level is one operation on columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from harness.analysis.job.grouping import align_clocks
from harness.analysis.job.matching import match_collectives
from harness.analysis.process.part import RankPart
from harness.replay.collectives import EARLY, Call, CollectiveSync, Messages, Nodes, join_messages
from harness.replay.graph import NEVER, SLOTS, Graph, column
from harness.replay.host import least_stall
from harness.replay.process import ProcessGraph
from harness.traces.trace import F64, I64


class NoOrderError(ValueError):
    """The arcs run in a circle."""


@dataclass(frozen=True)
class Schedule:
    """Arcs sorted by the level of their target, then by target. `levels[i]`: first and last arc of a level; `first`: of
    each target's arcs the first one, counted from the level's first arc."""

    arcs: NDArray[np.intp]
    source: I64
    levels: list[tuple[int, int, NDArray[np.intp], I64]]  # from, to, first arc of each target, the targets


def schedule(nodes: int, source: I64, target: I64) -> Schedule:
    """The order in which to solve. Raises NoOrderError: the arcs run in a circle."""
    level = _levels(nodes, source, target)
    arcs = np.lexsort((target, level[target]))
    sorted_target, of_level = target[arcs], level[target][arcs]
    borders = np.flatnonzero(np.diff(of_level, prepend=-1, append=int(of_level.max(initial=0)) + 1)).tolist()
    levels = []
    for first, last in pairwise(borders):
        targets = sorted_target[first:last]
        begins = np.flatnonzero(np.diff(targets, prepend=-1))
        levels.append((first, last, begins, targets[begins]))
    return Schedule(arcs, source[arcs], levels)


def solve(plan: Schedule, roots: I64, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Moments of shape (v, n) for arc lengths of shape (v, k). roots: the moments of the n nodes, kept by nodes without
    arcs."""
    moments = np.repeat(roots[None, :], len(lengths), axis=0)
    sorted_lengths = lengths[:, plan.arcs]
    for first, last, begins, targets in plan.levels:
        reached = moments[:, plan.source[first:last]] + sorted_lengths[:, first:last]
        moments[:, targets] = np.maximum.reduceat(reached, begins, axis=1)
    return moments


def _levels(nodes: int, source: I64, target: I64) -> I64:
    """The length of the longest path to each node, in arcs."""
    by_source = np.argsort(source, kind="stable")
    first = np.searchsorted(source[by_source], np.arange(nodes + 1)).tolist()
    targets = target[by_source].tolist()
    missing = np.bincount(target, minlength=nodes).tolist()
    level = [0] * nodes
    ready = [node for node in range(nodes) if not missing[node]]
    done = 0
    while ready:
        node = ready.pop()
        done += 1
        above = level[node] + 1
        for other in targets[first[node] : first[node + 1]]:
            level[other] = max(level[other], above)
            missing[other] -= 1
            if not missing[other]:
                ready.append(other)
    if done < nodes:
        raise NoOrderError(f"{nodes - done} of {nodes} moments wait for each other")
    return np.array(level, np.int64)


@dataclass(frozen=True, kw_only=True)
class JobGraph(Graph):
    """The graph of all processes; times are aligned. process: of each arc, the process of its target. last: of each
    process the node after which it has nothing left to compute, -1: none.

    step: of each arc, the step in which its target lies, -1 outside. step_begin, step_end: shape (processes, steps),
    the nodes of the steps that all processes counted. alone: collectives with no other rank that is known. unknown: the
    arcs of these, and of collectives with some rank that is not known."""

    processes: list[ProcessGraph]
    process: I64
    last: I64
    step: I64
    step_begin: I64
    step_end: I64
    messages: Messages
    calls: list[Call]
    alone: int
    unknown: I64

    @property
    def arcs(self) -> int:
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
        total[self.messages.own] = NEVER
        return total

    @property
    def measured(self) -> I64:
        """Each step's measured time, shape (processes, steps)."""
        return self.time_ns[self.step_end] - self.time_ns[self.step_begin]

    def replay(self, lengths: I64) -> I64:
        """The steps' times, shape (v, processes, steps), for arc lengths of shape (v, arcs). A host that no longer
        waits ends its steps before the work that they launched: what is left to compute at the end belongs to all
        steps."""
        moments = solve(self.plan, self.time_ns, lengths)
        found: I64 = moments[:, self.step_end] - moments[:, self.step_begin]
        more = self._left_ns(moments) - self._left_ns(self.time_ns[None, :])
        found += np.maximum(more, 0)[:, :, None] // self.step_begin.shape[1]
        return found

    def _left_ns(self, moments: I64) -> I64:
        """How long each process still computes after its last step, shape (v, processes)."""
        ends = moments[:, self.step_end[:, -1]]
        return np.where(self.last >= 0, np.maximum(moments[:, self.last] - ends, 0), 0)

    def scaled(self, factor: F64, steps: NDArray[np.bool_] | None = None) -> I64:
        """Every arc's length with each slot's time multiplied; factor of shape (processes, SLOTS). steps: only in these
        of the counted steps."""
        a = self.amounts
        by = factor[self.process[a.arc], a.slot]
        if steps is not None:
            by = np.where(np.append(steps, False)[self.step[a.arc]], by, 1)
        lengths = np.rint(np.bincount(a.arc, a.ns * by, self.arcs)).astype(np.int64)
        lengths[self.messages.own] = NEVER
        return lengths

    def least(self, edited: Sequence[I64]) -> I64:
        """Several edits of the arcs' lengths as one: what any of them makes shorter is shorter."""
        own = self.messages.own
        found: I64 = np.minimum.reduce(edited)
        found[own] = np.maximum.reduce([lengths[own] for lengths in edited])
        return found

    def apart(self, lengths: I64, chosen: NDArray[np.bool_]) -> I64:
        """The same lengths, but at the chosen messages no process waits for another one."""
        ready = np.unique(self.source[self.messages.arc[chosen]])  # the moments at which all have come
        changed: I64 = lengths.copy()
        changed[np.isin(self.target, ready)] = NEVER
        changed[self.messages.own[chosen]] = 0
        return changed

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
    sync, nodes = CollectiveSync(early=early), []
    begin, end, last = [], [], []
    for place, (own, time) in enumerate(zip(graphs, times, strict=True)):
        node = sync.nodes
        nodes.append(Nodes((own.path, own.pid), _moved(own.arrive, node), _moved(own.done, node)))
        begin.append(own.step_begin[:steps] + node)
        end.append(own.step_end[:steps] + node)
        last.append(own.last[0] + node if len(own.last) else -1)
        sync.add_nodes(time - origin)
        _add_process(sync, place, own, node)
    step_begin, step_end, own_time = np.stack(begin), np.stack(end), sync.time
    join_messages(sync, nodes, matched, parts)
    sync.amounts.append(sync.held_up(least_stall(own_time[step_end] - own_time[step_begin])))
    process, columns = column(sync.process), sync.columns()
    return JobGraph(
        processes=graphs,
        process=process,
        last=np.array(last),
        step=_steps_of(columns["time_ns"][columns["target"]], process, own_time[step_end]),
        step_begin=step_begin,
        step_end=step_end,
        messages=sync.messages(),
        calls=sync.calls,
        alone=sync.alone_count,
        unknown=column(sync.unknown),
        **columns,
    )


def _add_process(sync: CollectiveSync, place: int, own: ProcessGraph, node: int) -> None:
    """A process's own arcs, whose nodes are numbered from `node` on."""
    arc = sync.arcs
    sync.add(place, own.source + node, own.target + node)
    for columns, amounts in ((sync.amounts, own.amounts), (sync.activities, own.activity_amounts)):
        columns.append(amounts._replace(arc=amounts.arc + arc))
    for rows, mine in ((sync.repeated, own.repeated), (sync.waits, own.waits), (sync.syncs, own.syncs)):
        rows.append(mine + arc)


def _moved(rows: I64, by: int) -> I64:
    return np.where(rows >= 0, rows + by, -1)


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
