"""The operations of all data-parallel ranks of a step as one graph. Steps with the same operations share it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.replay.job import NoOrderError, Schedule, schedule, solve
from harness.replay.stragglers.dependencies import Dependencies, IncompleteError, Pipeline, dependencies
from harness.traces.operations.timeline import Operations
from harness.traces.trace import I64

_AT_ONCE_NUMBERS = 16 << 20  # of arcs' lengths in memory


@dataclass(frozen=True)
class StepGraph:
    """A graph of n operations, and the steps that have them. rows: shape (steps, n), of each step its operations.

    group: of each operation its communication, or -1; of all ranks. replayed: the others take no time. plan: the
    graph's arcs, of which the first n are the operations' own.
    """

    steps: list[int]
    rows: I64
    group: I64
    replayed: NDArray[np.bool_]
    plan: Schedule
    nodes: int
    arcs: int

    def step_ns(self, lengths: NDArray[np.int64]) -> I64:
        """The time of a step for each row of operations' lengths, shape (v, n)."""
        found = np.empty(len(lengths), np.int64)
        at_once = max(_AT_ONCE_NUMBERS // self.arcs, 1)
        for first in range(0, len(lengths), at_once):
            some = lengths[first : first + at_once]
            whole = np.zeros((len(some), self.arcs), np.int64)
            whole[:, : some.shape[1]] = some * self.replayed
            found[first : first + at_once] = solve(self.plan, np.zeros(self.nodes, np.int64), whole).max(
                axis=1
            )
        return found


@dataclass(frozen=True)
class Graphs:
    """The graphs of a job. left_out: by step, why it is not replayed."""

    graphs: list[StepGraph]
    left_out: dict[int, str]


def graphs_of(ops: Operations) -> Graphs:
    """One graph for each kind of step."""
    left_out = _without_workers(ops)
    pipelines = _pipelines(ops)
    kinds: dict[tuple[tuple[int, bytes], ...], list[int]] = {}
    for step, found in pipelines.items():
        if step not in left_out:
            kinds.setdefault(tuple((dp, key) for dp, _, _, key in found), []).append(step)
    known: dict[bytes, Dependencies] = {}
    graphs = []
    for steps in kinds.values():
        try:
            graphs.append(_graph(ops, [pipelines[step] for step in steps], steps, known))
        except (IncompleteError, NoOrderError) as error:
            left_out |= dict.fromkeys(steps, str(error))
    return Graphs(graphs, left_out)


Found = list[
    tuple[int, int, int, bytes]
]  # data-parallel rank, its first and last row in the step, what it consists of


def _without_workers(ops: Operations) -> dict[int, str]:
    """The steps without a worker that other steps have."""
    key = np.unique(np.stack([ops.step, ops.dp, ops.stage]), axis=1)
    count = np.bincount(key[0], minlength=len(ops.steps))
    whole = int(count.max())
    return {
        int(step): f"{count[step]} of {whole} workers have operations"
        for step in np.flatnonzero(count < whole)
    }


def _pipelines(ops: Operations) -> dict[int, Found]:
    """By step its pipelines, one per data-parallel rank."""
    border = np.flatnonzero(np.diff(ops.step, prepend=-1) | np.diff(ops.dp, prepend=-1))
    ends = np.append(border[1:], len(ops))
    content = np.stack([ops.stage, ops.kind, ops.chunk]).astype(np.int32)
    found: dict[int, Found] = {}
    for first, last in zip(border.tolist(), ends.tolist(), strict=True):
        key = content[:, first:last].tobytes()
        found.setdefault(int(ops.step[first]), []).append((int(ops.dp[first]), first, last, key))
    return found


def _graph(
    ops: Operations, found: Sequence[Found], steps: list[int], known: dict[bytes, Dependencies]
) -> StepGraph:
    """The graph of steps with the same operations, by the order in the first of them."""
    source: list[I64] = []
    target: list[I64] = []
    group: list[I64] = []
    replayed: list[NDArray[np.bool_]] = []
    groups: dict[tuple[int, ...], int] = {}
    at = 0
    for _, first, last, key in found[0]:
        if key not in known:
            known[key] = dependencies(_pipeline(ops, slice(first, last)))
        one = known[key]
        source.append(one.source + at)
        target.append(one.target + at)
        group.append(_numbered(one, ops, first, groups, len(group)))
        replayed.append(one.replayed)
        at += last - first
    joined = np.concatenate(group)
    plan, nodes, arcs = _plan(np.concatenate(source), np.concatenate(target), joined)
    rows = np.stack([np.concatenate([np.arange(f, e) for _, f, e, _ in each]) for each in found])
    return StepGraph(steps, rows, joined, np.concatenate(replayed), plan, nodes, arcs)


def _pipeline(ops: Operations, rows: slice) -> Pipeline:
    return Pipeline(
        ops.role[rows],
        ops.stage[rows],
        ops.chunk[rows],
        ops.start_ns[rows],
        ops.end_ns[rows],
        ops.micro_batch[rows],
    )


def _numbered(
    one: Dependencies, ops: Operations, first: int, groups: dict[tuple[int, ...], int], pipeline: int
) -> I64:
    """The groups of one pipeline, numbered over all: those over all data-parallel ranks by what they are."""
    if not len(one.group):
        return one.group
    numbers = np.full(int(one.group.max(initial=-1)) + 2, -1, np.int64)
    for number, key in _keys(one, ops, first, pipeline):
        numbers[number] = groups.setdefault(key, len(groups))
    found: I64 = numbers[one.group]
    return found


def _keys(
    one: Dependencies, ops: Operations, first: int, pipeline: int
) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Of each group what other pipelines know it by: kind, stage and place; of one of this pipeline its number."""
    synced = set(one.synced)
    begins = np.full(int(one.group.max(initial=-1)) + 1, len(one.group))
    np.minimum.at(begins, one.group[one.group >= 0], np.flatnonzero(one.group >= 0))
    counts: dict[tuple[int, int], int] = {}
    for number, row in enumerate(begins.tolist()):
        if number not in synced:
            yield number, (-1, pipeline, number)
            continue
        what = int(ops.kind[first + row]), int(ops.stage[first + row])
        counts[what] = counts.get(what, -1) + 1
        yield number, (*what, counts[what])


def _plan(source: I64, target: I64, group: I64) -> tuple[Schedule, int, int]:
    """Each operation's own arc from its start to its end, then the dependencies. A group's members share a start."""
    n = len(group)
    is_member = group >= 0
    starts = np.cumsum(~is_member) - 1 + int(group.max(initial=-1)) + 1
    begin = n + np.where(is_member, group, starts)
    nodes = n + int(group.max(initial=-1)) + 1 + int((~is_member).sum())
    arc_source = np.concatenate([begin, source])
    arc_target = np.concatenate([np.arange(n), begin[target]])
    return schedule(nodes, arc_source, arc_target), nodes, len(arc_source)
