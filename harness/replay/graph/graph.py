"""The graph of a process and of a job, and its replay: moments, arcs between them, and the time of each arc by slot.

A node is a moment; an arc says how long after one moment the other can be at the earliest. A node's moment is the
latest that its arcs allow. An arc's time is kept by category and phase (a *slot*), so that a change is a factor per
slot. Device time is not split by phases, since a kernel runs when its phase may be over. A replay takes the nodes in
levels, so that a node's sources come before it; a level is one operation on columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.analysis.process.part import RankPart
from harness.analysis.process.phases import Phase
from harness.analysis.summary import HostActivity
from harness.traces.sampled_lines import CodeLine
from harness.traces.trace import F64, I64

N_PHASES = len(Phase)
I16 = NDArray[np.int16]
NEVER = -(10**15)  # an arc of this length makes nothing wait


class TimeCategory(IntEnum):
    """What a stretch of an arc's time was."""

    HOST_WORK = 0  # operators of a CPU trace that are no matrix product
    HOST_PRODUCT = 1  # operators of a CPU trace that are matrix products or attention
    HOST_GAP = 2  # the host between operators, or between the calls of a trace with a GPU: Python and launching
    HOST_STALL = 3  # of a stretch without an operator or call, what is longer than usual; so in several steps
    HOST_HELD = 4  # the same where other steps have none; of an operator, what is longer than in other steps
    HOST_SENDING = 5  # of the stretch right before a message is issued, what is longer than usual
    WAIT_TAIL = 6  # from the end of what the host waited for until it goes on
    DEVICE_WORK = 7
    DEVICE_PRODUCT = 8  # matrix products and attention in 16 bits or fewer, in fp64, or in what the name does not show
    DEVICE_COPY = 9
    DEVICE_GAP = 10  # launch latency, and between kernels of a stream
    START_OF_MESSAGE = 11  # from the issue of a collective until its backend takes part in it
    TRANSFER = 12  # from the last rank's arrival until the collective is done
    TRANSFER_HELD = 13  # of it, what is longer than the same collective takes in other steps
    WAIT_HELD = 14  # of the start of a message and of the tail of a wait, what is longer than usual
    DEVICE_FP32 = 15  # as DEVICE_PRODUCT, where the kernel's name shows fp32
    DEVICE_TF32 = 16
    DEVICE_LAYOUT = 17  # conversions between channels first and channels last
    DEVICE_EVALUATION = 18  # kernels and copies that an evaluation launched


HOST_TIME = (
    TimeCategory.HOST_WORK,
    TimeCategory.HOST_PRODUCT,
    TimeCategory.HOST_GAP,
    TimeCategory.HOST_STALL,
    TimeCategory.HOST_HELD,
    TimeCategory.HOST_SENDING,
)
DEVICE_COMPUTES = (
    TimeCategory.DEVICE_WORK,
    TimeCategory.DEVICE_LAYOUT,
    TimeCategory.DEVICE_PRODUCT,
    TimeCategory.DEVICE_FP32,
    TimeCategory.DEVICE_TF32,
)
WORK_TIME = (TimeCategory.HOST_WORK, TimeCategory.HOST_PRODUCT, *DEVICE_COMPUTES)
SLOTS = len(TimeCategory) * N_PHASES


def slot(category: int, phase: int = N_PHASES - 1) -> int:
    """The slot of a category in a phase; device time is in the last one."""
    return category * N_PHASES + phase


def slots(categories: tuple[TimeCategory, ...], phase: int | None = None) -> list[int]:
    """The slots of some categories, in one phase or in all."""
    chosen = range(N_PHASES) if phase is None else (phase,)
    return [category * N_PHASES + p for category in categories for p in chosen]


class Amounts(NamedTuple):
    """Nanoseconds by arc and slot, as n triples; an arc's length is the sum of its own."""

    arc: I64
    slot: I16
    ns: I64


@dataclass(frozen=True, kw_only=True)
class Graph:
    """n nodes, k arcs. repeated: arcs whose time is also that of other arcs, so that it must not be added up. waits:
    arcs in which the host waits for something else (the device, a batch), without which they would not be there; syncs:
    of these, calls that do nothing else. activity_amounts: the parts of arcs that are activities of their process's
    host, by arc and activity."""

    time_ns: I64
    source: I64
    target: I64
    amounts: Amounts
    activity_amounts: Amounts
    repeated: I64
    waits: I64
    syncs: I64


class LineTimes(NamedTuple):
    """n rows: in a step, in a slot of the graph or (SLOTS + i) in activity i of the host, at a place, so many
    nanoseconds. line_number: an index into the process's lines, -1: in no line of the user's code. Waiting for other
    ranks is in the slots of TRANSFER, waiting for the device in those of WAIT_TAIL."""

    step: I64
    slot: I64
    line_number: I64
    ns: I64


@dataclass(frozen=True, kw_only=True)
class ProcessGraph(Graph):
    """The graph of a process. Times are on the process's own clock; `epoch_ns` as in View.

    step_begin, step_end: the nodes of the counted steps. arrive,
    done: the nodes of each row of the process's collectives (collective_rows.py) where it arrives and where it has its
    result, -1 where they lie outside the window; the arc between them is the job's, which knows the other ranks.

    activities: n things that the host did while a device had no work because of it; activity_ns: how long in each
    counted step, shape (n, steps). What follows a call that let the device run dry, until it has work again, is
    activity n + i: it is the call's only if nothing but its waiting is known. last: the node after which nothing is
    left to compute. called: how many operators were called from Python, or by a node of autograd, in the counted steps,
    by phase, shape (N_PHASES,); 0 with a device. code_lines: the lines of the user's code in which its time was, as far
    as they were sampled; line_times: when.
    """

    rank: int | None
    path: str
    pid: int | None
    clock: str
    epoch_ns: int | None
    on_cpu: bool
    marked: bool  # its steps were marked; else all of it is one
    last: I64
    step_begin: I64
    step_end: I64
    arrive: I64
    done: I64
    activities: list[HostActivity]
    activity_ns: I64
    called: I64
    code_lines: list[CodeLine]
    line_times: LineTimes


def graph_of(part: RankPart) -> ProcessGraph | None:
    """A part's graph; None: it has no work."""
    return part.graph.get(ProcessGraph)


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


class Messages(NamedTuple):
    """One row per rank's part in a collective that was joined: its arc of transfer, its size and time, and its call,
    an index into `CollectiveSync.calls`. process_rows: the arc from its own arrival to its end, for a replay in which
    ranks do not wait for each other; it has no length else (graph.NEVER)."""

    arc: I64
    process_rows: I64
    bytes: I64
    ns: I64
    call: I64


class Call(NamedTuple):
    """A kind of collective, and the phase of training that issues it."""

    kind: str
    phase: int


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
        total[self.messages.process_rows] = NEVER
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
        lengths[self.messages.process_rows] = NEVER
        return lengths

    def least(self, edited: Sequence[I64]) -> I64:
        """Several edits of the arcs' lengths as one: what any of them makes shorter is shorter."""
        own = self.messages.process_rows
        found: I64 = np.minimum.reduce(edited)
        found[own] = np.maximum.reduce([lengths[own] for lengths in edited])
        return found

    def apart(self, lengths: I64, chosen: NDArray[np.bool_]) -> I64:
        """The same lengths, but at the chosen messages no process waits for another one."""
        ready = np.unique(self.source[self.messages.arc[chosen]])  # the moments at which all have come
        changed: I64 = lengths.copy()
        changed[np.isin(self.target, ready)] = NEVER
        changed[self.messages.process_rows[chosen]] = 0
        return changed

    def unchanged(self) -> F64:
        """Factors of 1, for `scaled`."""
        return np.ones((len(self.processes), SLOTS))
