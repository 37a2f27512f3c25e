"""A job's slowdown by stragglers, and how much of it belongs to a kind of operation, a stage, a worker.

S = T / T_ideal: the mean step replayed with the operations' own lengths, and with ideal ones. S of a part: with the
lengths of the part, and ideal ones elsewhere (Lin et al., OSDI 2025, equations 1, 2 and 4).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from harness.replay.stragglers.graph import StepGraph
from harness.replay.stragglers.lengths import Lengths, means_of
from harness.traces.operations.timeline import Operations
from harness.traces.operations.vocabulary import COMPUTE, SHOWN
from harness.traces.trace import F64, I64

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Shares:
    """How much of the lost time a step would save, as a share of all that stragglers cost: with every stage as fast as
    the mean of stages; with every worker as fast as the mean of its stage; with every pass of a worker as long as its
    mean; and by operation, with each of its kind ideal."""

    even_stages: float
    even_workers: float
    even_passes: float
    operations: dict[str, float]


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


def slowdown_of(ops: Operations, graphs: Sequence[StepGraph], lengths: Lengths, least: float) -> Slowdown:
    """The slowdown of the replayed steps. least: a smaller one has no shares."""
    replay = _Replay(ops, graphs, lengths)
    own, ideal = replay.own(), replay.ideal()
    shown = [SHOWN.get(role, name) for role, name in zip(ops.roles, ops.names, strict=True)]
    names = list(dict.fromkeys(shown))
    of_kind = np.array([names.index(name) for name in shown])[ops.kind]
    found = Slowdown(
        steps=[ops.steps[step] for graph in graphs for step in graph.steps],
        step_ns=own,
        ideal_ns=ideal,
        by_operation={name: replay.ratio(of_kind == number, ideal) for number, name in enumerate(names)},
        by_stage={int(s): replay.ratio(ops.stage == s, ideal) for s in np.unique(ops.stage)},
        by_dp={int(d): replay.ratio(ops.dp == d, ideal) for d in np.unique(ops.dp)},
        shares=None,
    )
    if found.slowdown < least:
        return found
    lost = float((own - ideal).sum())
    shares = Shares(
        **_evened(replay, own, lost),
        operations={
            name: float((own - replay.without(of_kind == number)).sum()) / lost
            for number, name in enumerate(names)
        },
    )
    return replace(found, shares=shares)


def _evened(replay: _Replay, own: I64, lost: float) -> dict[str, float]:
    ops = replay.ops
    computes = np.isin(ops.role, COMPUTE) & replay.lengths.used
    rows = np.flatnonzero(computes)
    length, kind = replay.lengths.own_ns[rows], ops.kind[rows]
    by_stage = means_of(length, _groups(kind, ops.stage[rows]))
    by_worker = means_of(length, _groups(kind, ops.stage[rows], ops.dp[rows]))
    overall = means_of(length, kind)
    changed = {
        "even_stages": length * overall / np.maximum(by_stage, 1),
        "even_workers": length * by_stage / np.maximum(by_worker, 1),
        "even_passes": by_worker,
    }
    found = {}
    for name, values in changed.items():
        lengths = replay.lengths.own_ns.copy()
        lengths[rows] = np.rint(values).astype(np.int64)
        found[name] = float((own - replay.of(lengths)).sum()) / lost
    return found


def _groups(*columns: I64) -> I64:
    _, found = np.unique(np.stack(columns), axis=1, return_inverse=True)
    return found.ravel()


class _Replay:
    """The steps of all graphs, replayed with any lengths of the operations."""

    def __init__(self, ops: Operations, graphs: Sequence[StepGraph], lengths: Lengths) -> None:
        self.ops = ops
        self.lengths = lengths
        self._graphs = graphs

    def of(self, lengths: I64) -> I64:
        """Each step's time for one length per operation."""
        return np.concatenate([graph.step_ns(lengths[graph.rows]) for graph in self._graphs])

    def own(self) -> I64:
        """As they were."""
        return self.of(self.lengths.own_ns)

    def ideal(self) -> I64:
        """All ideal: steps with the same operations take the same time."""
        return np.concatenate(
            [
                np.repeat(graph.step_ns(self.lengths.ideal_ns[graph.rows[:1]]), len(graph.rows))
                for graph in self._graphs
            ]
        )

    def ratio(self, kept: Mask, ideal: I64) -> float:
        """S of the operations that keep their lengths."""
        mixed = self.of(np.where(kept, self.lengths.own_ns, self.lengths.ideal_ns))
        return float(mixed.mean() / ideal.mean())

    def without(self, made_ideal: Mask) -> I64:
        """Each step's time with some operations ideal."""
        return self.of(np.where(made_ideal, self.lengths.ideal_ns, self.lengths.own_ns))


def in_turn(ops: Operations, lengths: Lengths) -> float | None:
    """How forward and backward of a micro-batch change together: their correlation over all micro-batches, each over
    the mean of its worker and chunk. None of fewer than three pairs, or where one of them does not change."""
    forward, backward = (_passes(ops, lengths, role) for role in COMPUTE)
    shared = sorted(forward.keys() & backward.keys())
    if len(shared) < 3:
        return None
    pairs = np.array([[forward[key], backward[key]] for key in shared])
    where = np.unique([key[1:4] for key in shared], axis=0, return_inverse=True)[1].ravel()
    relative = np.stack([_relative(pairs[:, i], where) for i in (0, 1)])
    spread = relative.std(axis=1)
    if spread.min() < 1e-6:
        return None
    return float(np.mean(relative[0] * relative[1]) / spread.prod())


def _relative(values: F64, group: NDArray[np.intp]) -> F64:
    total = np.bincount(group, values)
    found: F64 = values / np.maximum((total / np.bincount(group))[group], 1) - 1
    return found


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
