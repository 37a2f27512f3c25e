"""How long the passes of each worker are, beside those of the others: numbers, no replay."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from harness.replay.stragglers.lengths import Lengths
from harness.traces.operations.timeline import Operations
from harness.traces.operations.vocabulary import COMPUTE, Role
from harness.traces.trace import F64

_LEAST_SLOWER = 0.05
_MOST_NAMED = 16


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
    """The passes of the replayed steps."""
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
