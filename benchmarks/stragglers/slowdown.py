"""How much a job is slowed by stragglers: each operation's own time and the ideal one of its kind, and the cause."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.traces.trace import F64, I64
from stragglers.graph import StepGraph
from stragglers.result import Shares
from stragglers.timeline import Operations
from stragglers.vocabulary import BY_MEAN, COMPUTE, SHOWN, Role

_MOST_EARLY_NS = 10_000_000  # a communication that seems to end so long before its last member begins took no time
_EVEN = ("stages", "workers", "micro_batches")
LEAST_SLOWDOWN = 1.03  # below it, no stragglers count; the authors' tool attributes nothing either
_LEAST_SHARE = 0.25
_PASSES = (SHOWN[Role.FORWARD], SHOWN[Role.BACKWARD])
_LEAST_SLOWER = 0.05
_MOST_NAMED = 16


@dataclass(frozen=True)
class Lengths:
    """Of each operation of a timeline (length n): own_ns, its duration, or of a communication the time from the start
    of its last member to its own end; ideal_ns, of its kind over the whole job: the mean of what computes, the median
    of what communicates. used: those of the replayed steps."""

    own_ns: I64
    ideal_ns: I64
    used: NDArray[np.bool_]


def lengths_of(ops: Operations, graphs: Sequence[StepGraph]) -> Lengths:
    """The lengths of a job's operations, over the steps of its graphs."""
    own = ops.end_ns - ops.start_ns
    used = np.zeros(len(ops), bool)
    for graph in graphs:
        used[graph.rows[:, graph.replayed].ravel()] = True
        own[graph.rows] = _transfers(ops, graph)
    ideal = np.zeros(len(ops), np.int64)
    for kind, role in enumerate(ops.roles):
        mine = (ops.kind == kind) & used
        if mine.any():
            ideal[ops.kind == kind] = round(float(np.mean(own[mine]) if role in BY_MEAN else np.median(own[mine])))
    return Lengths(own, ideal, used)


def _transfers(ops: Operations, graph: StepGraph) -> I64:
    """Shape (steps, n): each operation's own time, without the waiting for the other members of its group."""
    start, end = ops.start_ns[graph.rows], ops.end_ns[graph.rows]
    member = np.flatnonzero(graph.group >= 0)
    if not len(member):
        return end - start
    order = member[np.argsort(graph.group[member], kind="stable")]
    begins = np.flatnonzero(np.diff(graph.group[order], prepend=-1))
    last = np.maximum.reduceat(start[:, order], begins, axis=1)
    sizes = np.diff(np.append(begins, len(order)))
    own = end - start
    transfer = end[:, order] - np.repeat(last, sizes, axis=1)
    own[:, order] = np.where(transfer <= -_MOST_EARLY_NS, 0, transfer)
    return own


def by_size(found: dict[str, float]) -> dict[str, float]:
    """The largest first."""
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def means_of(values: I64 | F64, group: NDArray[np.integer]) -> F64:
    """Of each value the mean of its group."""
    total = np.bincount(group, values.astype(np.float64))
    found: F64 = (total / np.maximum(np.bincount(group), 1))[group]
    return found


Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Slowdown:
    """step_ns: of each replayed step, in the order of the timeline. shares: None without a slowdown that counts."""

    steps: list[int]
    step_ns: I64
    ideal_ns: I64
    by_operation: dict[str, float]
    by_stage: dict[int, float]
    by_dp: dict[int, float]
    shares: Shares | None

    @property
    def slowdown(self) -> float:
        """S."""
        return float(self.step_ns.mean() / self.ideal_ns.mean())


def slowdown_of(ops: Operations, graphs: Sequence[StepGraph], lengths: Lengths) -> Slowdown:
    """The slowdown of the replayed steps. One below LEAST_SLOWDOWN has no shares."""

    def replayed(of: I64) -> I64:
        """Each step's time for one length per operation."""
        return np.concatenate([graph.step_ns(of[graph.rows]) for graph in graphs])

    def ratio(kept: Mask) -> float:
        """S of the operations that keep their lengths."""
        return float(replayed(np.where(kept, lengths.own_ns, lengths.ideal_ns)).mean() / ideal.mean())

    own = replayed(lengths.own_ns)
    ideal = np.concatenate(  # steps with the same operations take the same time
        [np.repeat(graph.step_ns(lengths.ideal_ns[graph.rows[:1]]), len(graph.rows)) for graph in graphs]
    )
    shown = [SHOWN.get(role, name) for role, name in zip(ops.roles, ops.names, strict=True)]
    names = list(dict.fromkeys(shown))
    of_kind = np.array([names.index(name) for name in shown])[ops.kind]
    found = Slowdown(
        steps=[ops.steps[step] for graph in graphs for step in graph.steps],
        step_ns=own,
        ideal_ns=ideal,
        by_operation={name: ratio(of_kind == number) for number, name in enumerate(names)},
        by_stage={int(s): ratio(ops.stage == s) for s in np.unique(ops.stage)},
        by_dp={int(d): ratio(ops.dp == d) for d in np.unique(ops.dp)},
        shares=None,
    )
    if found.slowdown < LEAST_SLOWDOWN:
        return found
    changed = _evened(ops, lengths)
    for number, name in enumerate(names):
        changed[name] = np.where(of_kind == number, lengths.ideal_ns, lengths.own_ns)
    lost = float((own - ideal).sum())
    saved = {name: float((own - replayed(of)).sum()) / lost for name, of in changed.items()}
    even = {name: saved.pop(name) for name in _EVEN}
    return replace(found, shares=Shares(**even, operations=by_size(saved)))


def _evened(ops: Operations, lengths: Lengths) -> dict[str, I64]:
    """The operations' lengths, of those that compute as `Shares` says."""
    rows = np.flatnonzero(np.isin(ops.role, COMPUTE) & lengths.used)
    length, kind = lengths.own_ns[rows], ops.kind[rows]
    by_stage = means_of(length, _groups(kind, ops.stage[rows]))
    by_worker = means_of(length, _groups(kind, ops.stage[rows], ops.dp[rows]))
    even_stages = length * means_of(length, kind) / np.maximum(by_stage, 1)
    even_workers = length * by_stage / np.maximum(by_worker, 1)
    found = {}
    for name, values in zip(_EVEN, (even_stages, even_workers, by_worker), strict=True):
        found[name] = lengths.own_ns.copy()
        found[name][rows] = np.rint(values).astype(np.int64)
    return found


def _groups(*columns: I64) -> I64:
    _, found = np.unique(np.stack(columns), axis=1, return_inverse=True)
    return found.ravel()


def in_turn(ops: Operations, lengths: Lengths) -> float | None:
    """How forward and backward of a micro-batch change together: their correlation over all micro-batches, each over
    the mean of its worker and chunk. None of fewer than three pairs, or where one of them does not change."""
    forward, backward = (_passes(ops, lengths, role) for role in COMPUTE)
    shared = sorted(forward.keys() & backward.keys())
    if len(shared) < 3:
        return None
    pairs = np.array([[forward[key], backward[key]] for key in shared])
    where = np.unique([key[1:4] for key in shared], axis=0, return_inverse=True)[1].ravel()
    relative = np.stack([own / np.maximum(means_of(own, where), 1) - 1 for own in pairs.T])
    spread = relative.std(axis=1)
    if spread.min() < 1e-6:
        return None
    return float(np.mean(relative[0] * relative[1]) / spread.prod())


Key = tuple[int, int, int, int, int]


def _passes(ops: Operations, lengths: Lengths, role: int) -> dict[Key, float]:
    """The length of each pass by step, worker, chunk and micro-batch, or its place where that is not known."""
    rows = np.flatnonzero((ops.role == role) & lengths.used)
    group = _groups(ops.step[rows], ops.dp[rows], ops.stage[rows], ops.chunk[rows])
    by_start = np.lexsort((ops.start_ns[rows], group))
    place = np.empty(len(rows), np.int64)
    place[by_start] = np.arange(len(rows)) - np.searchsorted(group[by_start], group[by_start])
    batch = np.where(ops.micro_batch[rows] >= 0, ops.micro_batch[rows], place)
    columns = (column[rows].tolist() for column in (ops.step, ops.dp, ops.stage, ops.chunk))
    keys = zip(*columns, batch.tolist(), strict=True)
    return dict(zip(keys, lengths.own_ns[rows].astype(float).tolist(), strict=True))


class Cause(NamedTuple):
    """what: `none`, `stages`, `workers`, `micro-batches`, `operation` or `several`. share: of the lost time."""

    what: str
    share: float | None = None
    operation: str | None = None


def cause_of(shares: Shares | None) -> Cause:
    """The largest share, if it is large enough. Without shares there is no slowdown that counts."""
    if shares is None:
        return Cause("none")
    found = [Cause("stages", shares.stages), Cause("workers", shares.workers)]
    found.append(Cause("micro-batches", shares.micro_batches))
    found += [Cause("operation", share, name) for name, share in shares.operations.items() if name not in _PASSES]
    largest = max(found, key=lambda cause: cause.share or 0.0)
    return largest if (largest.share or 0.0) >= _LEAST_SHARE else Cause("several", largest.share)


@dataclass(frozen=True)
class Work:
    """passes: the mean pass in nanoseconds, shape (data-parallel ranks, stages, 2): forward and backward, NaN where
    there is none."""

    dps: list[int]
    stages: list[int]
    passes: F64

    def of_stage(self, role: Role) -> F64:
        """The mean pass of each stage."""
        return _mean(self.passes[:, :, int(role)], 0)

    def beside_stages(self) -> F64:
        """Of each stage its passes over the mean of the other stages, minus one; NaN of a single one."""
        return _beside(_mean(self.passes.sum(axis=2), 0))

    def beside_workers(self) -> F64:
        """Shape (data-parallel ranks, stages): of each worker the same beside the others of its stage."""
        whole = self.passes.sum(axis=2)
        return np.stack([_beside(whole[:, stage]) for stage in range(whole.shape[1])], axis=1)


def work_of(ops: Operations, lengths: Lengths) -> Work:
    dps, dp = np.unique(ops.dp, return_inverse=True)
    stages, stage = np.unique(ops.stage, return_inverse=True)
    role = ops.role
    used = lengths.used & np.isin(role, COMPUTE)
    cell = (dp.ravel() * len(stages) + stage.ravel()) * 2 + role
    size = len(dps) * len(stages) * 2
    total = np.bincount(cell[used], lengths.own_ns[used], size)
    count = np.bincount(cell[used], minlength=size)
    with np.errstate(invalid="ignore", divide="ignore"):
        passes = (total / count).reshape(len(dps), len(stages), 2)
    return Work(dps.tolist(), stages.tolist(), passes)


def slowest(work: Work) -> list[tuple[int, int]]:
    """The workers, by the positions of their data-parallel rank and stage, that are slower than the others of their
    stage: the slowest first."""
    slower = np.nan_to_num(work.beside_workers(), nan=0.0)
    least = max(_LEAST_SLOWER, float(slower.max()) / 2)
    order = np.argsort(-slower, axis=None)[:_MOST_NAMED]
    places = [(int(i), int(j)) for i, j in zip(*np.unravel_index(order, slower.shape), strict=True)]
    return [place for place in places if slower[place] >= least]


def _mean(values: F64, axis: int) -> F64:
    known = ~np.isnan(values)
    total = np.where(known, values, 0.0).sum(axis=axis)
    found: F64 = total / np.maximum(known.sum(axis=axis), 1)
    return found


def _beside(values: F64) -> F64:
    """Of each value how much it is above the mean of the others, relative to that."""
    known = ~np.isnan(values) & (values > 0)
    others = known.sum() - known
    with np.errstate(invalid="ignore", divide="ignore"):
        found: F64 = values / ((np.where(known, values, 0.0).sum() - values) / others) - 1
    return np.where(known & (others > 0), found, np.nan)
