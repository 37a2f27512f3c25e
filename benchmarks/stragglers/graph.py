"""What each operation of one pipeline waits for, and the time that follows from it.

The model is that of Lin et al., *Understanding Stragglers in Large Model Training Using What-if Analysis* (OSDI 2025),
section 3.2: compute is repeated, communication waits for its peers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from harness.replay.graph.graph import NoOrderError, Schedule, schedule, solve
from harness.traces.trace import I64
from stragglers.timeline import Operations
from stragglers.vocabulary import BETWEEN_STAGES, COMPUTE, SENDS, Role

_CLOCK_NS = 50_000  # by which clocks of two streams may differ
_PEER = {
    Role.FORWARD_SEND: (Role.FORWARD_RECV, 1),
    Role.FORWARD_RECV: (Role.FORWARD_SEND, -1),
    Role.BACKWARD_SEND: (Role.BACKWARD_RECV, -1),
    Role.BACKWARD_RECV: (Role.BACKWARD_SEND, 1),
}
_OF_FORWARD = (Role.FORWARD_SEND, Role.FORWARD_RECV)
_SYNCED = (Role.GATHER, Role.REDUCE, Role.SEPARATE, Role.CLIP)  # over the data-parallel ranks
_AFTER = (Role.GC, Role.LAYERNORM, Role.EMBEDDING)  # follow the last pass in this order, on every worker
_AT_ONCE_NUMBERS = 16 << 20  # of arcs' lengths in memory


class IncompleteError(ValueError):
    """Operations are missing, in words."""


class Dependencies:
    """The dependencies of one pipeline: the operations of one data-parallel rank in one step, sorted by stage, kind and
    start, which are n rows of a timeline. Raises IncompleteError: sends and receives do not fit together.

    arcs: an operation (second) begins after another one (first) has ended. group: of each operation the communication
    that it is a member of, -1 for what only its own worker does; of other data-parallel ranks those are members too
    whose group is `synced`. replayed: all but sends and receives whose other half is missing in the whole file.
    only_launched: without sends and receives that seem not to be launched."""

    def __init__(self, ops: Operations, rows: slice, only_launched: bool = True) -> None:
        self.role, self.stage, self.chunk = ops.role[rows], ops.stage[rows], ops.chunk[rows]
        self.start_ns, self.end_ns, self.micro_batch = ops.start_ns[rows], ops.end_ns[rows], ops.micro_batch[rows]
        self.only_launched = only_launched
        self.stages, self.chunks = int(self.stage.max()) + 1, int(self.chunk.max()) + 1
        # whether gradients are reduced during backward: the job then reduces some of them separately
        self.overlaps = bool((self.role == Role.SEPARATE).any())
        self.arcs: list[tuple[int, int]] = []
        self.group = np.full(len(self.role), -1, np.int64)
        self.groups = 0
        self.synced: set[int] = set()
        self.replayed = np.ones(len(self.role), bool)
        self._rows = self._by_stage_and_role()
        self.valid: dict[tuple[int, Role], list[int]] = {}  # sends and receives with a partner
        self._passes()
        for stage in range(self.stages):
            self.chain(self.rows(stage, *COMPUTE))
            self._streams(stage)
            self._data_parallel(stage)
            self._after_the_passes(stage)
        self._pair_stages()
        self._whole_job()

    def _by_stage_and_role(self) -> dict[tuple[int, Role], list[int]]:
        found: dict[tuple[int, Role], list[int]] = {}
        order = np.argsort(self.start_ns, kind="stable").tolist()
        stage, role = self.stage.tolist(), self.role.tolist()
        for row in order:
            found.setdefault((stage[row], Role(role[row])), []).append(row)
        return found

    def rows(self, stage: int, *roles: Role) -> list[int]:
        """The operations of some roles on a stage, in the order of their start."""
        if len(roles) == 1:
            return self._rows.get((stage, roles[0]), [])
        mine = [row for role in roles for row in self._rows.get((stage, role), [])]
        return sorted(mine, key=lambda row: (int(self.start_ns[row]), -int(self.role[row])))

    def chain(self, rows: Sequence[int]) -> None:
        """Each operation begins after the one before it."""
        self.arcs += pairwise(rows)

    def join(self, rows: Sequence[int], synced: bool = False) -> None:
        """The operations as one communication."""
        self.group[list(rows)] = self.groups
        if synced:
            self.synced.add(self.groups)
        self.groups += 1

    # --- sends and receives

    def _passes(self) -> None:
        """The passes of both directions; where one half of the sends and receives is missing, a pass follows that of
        the stage before it."""
        directions = ((True, Role.FORWARD_SEND, Role.FORWARD_RECV), (False, Role.BACKWARD_SEND, Role.BACKWARD_RECV))
        for forward, *roles in directions:
            if all((self.role == role).any() for role in roles):
                for stage in range(self.stages):
                    for role in roles:
                        self._match(stage, role)
            else:
                self._directly(forward)
                self.replayed[np.isin(self.role, roles)] = False

    def _match(self, stage: int, role: Role) -> None:
        """Each send follows its pass; each receive goes before its pass, and follows the pass before that one."""
        is_send = role in SENDS
        passes = self.rows(stage, Role.FORWARD if role in _OF_FORWARD else Role.BACKWARD)
        mine = self.rows(stage, role)
        launched = self._launched(mine, passes, is_send)
        self.valid[stage, role] = []
        if not launched or not passes:
            return
        needed = self._needed(stage, role, passes, len(launched))
        for row, number in zip(launched, needed, strict=False):
            its_pass = passes[number]
            if is_send:
                self.arcs.append((its_pass, row))
            else:
                self.arcs.append((row, its_pass))
                self.arcs += [(passes[number - 1], row)] if number else []
            if self._has_partner(role, its_pass, stage):
                self.valid[stage, role].append(row)

    def _needed(self, stage: int, role: Role, passes: list[int], count: int) -> Sequence[int]:
        """Which passes so many sends or receives belong to: all of them, also where the model ends and nothing is sent;
        or only those where it goes on. Of the first stage the first receive may not be recorded."""
        partners = [i for i, row in enumerate(passes) if self._has_partner(role, row, stage)]
        if count == len(partners):
            return partners
        missing = len(passes) - count
        if missing not in (0, 1):
            raise IncompleteError(f"stage {stage} has {count} {_word(role)} for {len(partners)} passes")
        return range(0 if role in SENDS else missing, len(passes))

    def _launched(self, mine: list[int], passes: list[int], is_send: bool) -> list[int]:
        """Without those that a profiler records and no pass uses: receives after the last pass, sends before any."""
        if not passes or not self.only_launched:
            return mine
        if is_send:
            least = int(self.end_ns[passes].min()) - _CLOCK_NS
            return [row for row in mine if self.end_ns[row] >= least]
        most = int(self.start_ns[passes].max()) + _CLOCK_NS
        return [row for row in mine if self.start_ns[row] <= most]

    def _has_partner(self, role: Role, its_pass: int, stage: int) -> bool:
        """Whether the model goes on in that direction: its first chunk receives no forward, its last sends none."""
        model_chunk = int(self.chunk[its_pass]) * self.stages + stage
        return 0 <= model_chunk + _PEER[role][1] < self.chunks * self.stages

    def _pair_stages(self) -> None:
        """The n-th send to a stage is the n-th receive there; the others are alone."""
        for (stage, role), rows in self.valid.items():
            if role not in SENDS:
                continue
            other, step = _PEER[role]
            peer = (stage + step) % self.stages
            theirs = self.valid.get((peer, other), [])
            if len(rows) != len(theirs):
                has = f"stage {stage} has {len(rows)} {_word(role)}"
                raise IncompleteError(f"{has}, and stage {peer} has {len(theirs)} {_word(other)}")
            for pair in zip(rows, theirs, strict=True):
                self.join(pair)
        between = np.isin(self.role, BETWEEN_STAGES) & self.replayed
        for row in np.flatnonzero(between & (self.group < 0)).tolist():
            self.join([row])

    def _directly(self, forward: bool) -> None:
        """Each pass follows that of the same micro-batch on the chunk before it."""
        role = Role.FORWARD if forward else Role.BACKWARD
        chunks: dict[int, dict[int, int]] = {}
        for stage in range(self.stages):
            counts: dict[int, int] = {}
            for row in self.rows(stage, role):
                chunk = int(self.chunk[row])
                number = counts[chunk] = counts.get(chunk, -1) + 1
                batch = int(self.micro_batch[row])
                chunks.setdefault(chunk * self.stages + stage, {})[batch if batch >= 0 else number] = row
        for place, passes in chunks.items():
            before = chunks.get(place - 1 if forward else place + 1, {})
            self.arcs += [(before[batch], row) for batch, row in passes.items() if batch in before]

    # --- the streams of one worker

    def _streams(self, stage: int) -> None:
        for role in BETWEEN_STAGES:
            self.chain([row for row in self.rows(stage, role) if self.replayed[row]])
        passes = self.rows(stage, *COMPUTE)
        backward = next((i for i, row in enumerate(passes) if self.role[row] == Role.BACKWARD), 0)
        if backward < 2:
            return
        for role in (Role.BACKWARD_RECV, Role.BACKWARD_SEND):  # they are posted before the last forward
            for row in self.rows(stage, role)[:1]:
                self.arcs += [(passes[backward - 2], row)] if self.replayed[row] else []

    def _data_parallel(self, stage: int) -> None:
        """Parameters of a chunk are gathered before its first forward; overlapped gradients are reduced after its last
        backward."""
        self.chain(self.rows(stage, Role.GATHER, Role.REDUCE))
        last: dict[int, int] = {int(self.chunk[row]): row for row in self.rows(stage, Role.GATHER)}
        for chunk, row in last.items():
            first = next((p for p in self.rows(stage, Role.FORWARD) if self.chunk[p] == chunk), None)
            self.arcs += [(row, first)] if first is not None else []
        reduced = {int(self.chunk[row]): row for row in reversed(self.rows(stage, Role.REDUCE))}  # the first of each
        for chunk, row in reduced.items() if self.overlaps else ():
            mine = [p for p in self.rows(stage, Role.BACKWARD) if self.chunk[p] == chunk]
            self.arcs += [(max(mine, key=lambda p: int(self.end_ns[p])), row)] if mine else []

    def _after_the_passes(self, stage: int) -> None:
        passes = self.rows(stage, *COMPUTE)
        reduced = self.rows(stage, Role.REDUCE)
        chain = [max(passes, key=lambda row: int(self.end_ns[row]))] if passes else []
        gc, *others = (self.rows(stage, role) for role in _AFTER)
        chain += gc
        rest = [row for rows in others for row in rows]
        rest += self.rows(stage, Role.SEPARATE) if self.overlaps else reduced
        rest += [*self.rows(stage, Role.CLIP), *self.rows(stage, Role.OPTIMIZER)]
        self.chain([*chain, *rest])
        if self.overlaps and reduced and rest:
            self.arcs.append((reduced[-1], rest[0]))

    def _whole_job(self) -> None:
        """Communication of all stages, or of all data-parallel ranks."""
        for role in (Role.GATHER, Role.REDUCE, Role.SEPARATE):
            for stage in range(self.stages):
                for row in self.rows(stage, role):
                    self.join([row], synced=True)
        for role in (Role.EMBEDDING, Role.CLIP):
            every = [self.rows(stage, role) for stage in range(self.stages)]
            for number in range(max(map(len, every), default=0)):
                members = [rows[number] for rows in every if len(rows) > number]
                self.join(members, synced=role in _SYNCED)


def _word(role: Role) -> str:
    return role.name.lower().replace("_", "-")


@dataclass(frozen=True)
class StepGraph:
    """A graph of n operations, and the steps that have them. rows: shape (steps, n), of each step its operations.
    group: of each operation its communication, or -1; of all ranks. replayed: the others take no time. plan: the
    graph's arcs, of which the first n are the operations' own."""

    steps: list[int]
    rows: I64
    group: I64
    replayed: NDArray[np.bool_]
    plan: Schedule
    nodes: int

    def step_ns(self, lengths: NDArray[np.int64]) -> I64:
        """The time of a step for each row of operations' lengths, shape (v, n)."""
        found, arcs = np.empty(len(lengths), np.int64), len(self.plan.arcs)
        at_once = max(_AT_ONCE_NUMBERS // arcs, 1)
        for first in range(0, len(lengths), at_once):
            some = lengths[first : first + at_once]
            whole = np.zeros((len(some), arcs), np.int64)
            whole[:, : some.shape[1]] = some * self.replayed
            found[first : first + at_once] = solve(self.plan, np.zeros(self.nodes, np.int64), whole).max(axis=1)
        return found


@dataclass(frozen=True)
class Graphs:
    """The graphs of a job. left_out: by step, why it is not replayed."""

    graphs: list[StepGraph]
    left_out: dict[int, str]


def graphs_of(ops: Operations) -> Graphs:
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


Found = list[tuple[int, int, int, bytes]]  # data-parallel rank, its first and last row in the step, what it consists of


def _without_workers(ops: Operations) -> dict[int, str]:
    """The steps without a worker that other steps have."""
    key = np.unique(np.stack([ops.step, ops.dp, ops.stage]), axis=1)
    count = np.bincount(key[0], minlength=len(ops.steps))
    whole = int(count.max())
    return {int(step): f"{count[step]} of {whole} workers have operations" for step in np.flatnonzero(count < whole)}


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


def _graph(ops: Operations, found: Sequence[Found], steps: list[int], known: dict[bytes, Dependencies]) -> StepGraph:
    """The graph of steps with the same operations, by the order in the first of them."""
    arcs: list[tuple[int, int]] = []
    group: list[I64] = []
    replayed: list[NDArray[np.bool_]] = []
    groups: dict[tuple[int, ...], int] = {}
    at = 0
    for _, first, last, key in found[0]:
        if key not in known:
            try:
                known[key] = Dependencies(ops, slice(first, last))
            except IncompleteError:  # by clocks that differ, what was launched may seem not to be
                known[key] = Dependencies(ops, slice(first, last), only_launched=False)
        one = known[key]
        arcs += [(source + at, target + at) for source, target in one.arcs]
        group.append(_numbered(one, ops, first, groups, len(group)))
        replayed.append(one.replayed)
        at += last - first
    joined = np.concatenate(group)
    source, target = np.array(arcs or np.empty((0, 2)), np.int64).T
    rows = np.stack([np.concatenate([np.arange(f, e) for _, f, e, _ in each]) for each in found])
    return StepGraph(steps, rows, joined, np.concatenate(replayed), *_plan(source, target, joined))


def _numbered(one: Dependencies, ops: Operations, first: int, groups: dict[tuple[int, ...], int], pipeline: int) -> I64:
    """The groups of one pipeline, numbered over all: those over all data-parallel ranks by what they are."""
    numbers = np.full(one.groups + 1, -1, np.int64)  # the last one is that of no group
    begins = np.full(one.groups, len(one.group))
    np.minimum.at(begins, one.group[one.group >= 0], np.flatnonzero(one.group >= 0))
    counts: dict[tuple[int, int], int] = {}
    for number, row in enumerate(begins.tolist()):
        key: tuple[int, ...] = (-1, pipeline, number)
        if number in one.synced:  # other pipelines know it by kind, stage and place
            what = int(ops.kind[first + row]), int(ops.stage[first + row])
            counts[what] = counts.get(what, -1) + 1
            key = (*what, counts[what])
        numbers[number] = groups.setdefault(key, len(groups))
    return numbers[one.group]


def _plan(source: I64, target: I64, group: I64) -> tuple[Schedule, int]:
    """Each operation's own arc from its start to its end, then the dependencies, and the number of nodes. A group's
    members share a start."""
    n = len(group)
    is_member = group >= 0
    starts = np.cumsum(~is_member) - 1 + int(group.max(initial=-1)) + 1
    begin = n + np.where(is_member, group, starts)
    nodes = n + int(group.max(initial=-1)) + 1 + int((~is_member).sum())
    arc_source = np.concatenate([begin, source])
    arc_target = np.concatenate([np.arange(n), begin[target]])
    return schedule(nodes, arc_source, arc_target), nodes
