"""What an edit of a job's graph is, and the commonest one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.replay.scene import Scene
from harness.replay.suspect import Gain, settled
from harness.traces.trace import I64


@dataclass(frozen=True)
class Edited:
    """Every arc's length after the change. counted: the steps to look at, None: all that have settled. per: by how many
    of today's micro-batches the changed step is larger. extra_ns: what a step takes beyond the replayed arcs."""

    lengths: I64
    counted: NDArray[np.bool_] | None = None
    per: int = 1
    extra_ns: float = 0.0


Edit = Callable[[Scene], Edited | None]


def without(scene: Scene, chosen: list[int], left: float = 0.0) -> Edited | None:
    """The job with only a part `left` of the time in these slots; None where there is none."""
    if not scene.time_ns[:, :, chosen].any():
        return None
    factors = scene.job.unchanged()
    factors[:, chosen] = left
    return Edited(scene.job.scaled(factors))


def with_less(scene: Scene, process: int, chosen: list[int], less_ns: NDArray[np.float64]) -> I64:
    """Every arc's length where a process has so much less time in these slots, by step. It is taken from each step's
    longest arcs, since what is more than usual is at one place more often than everywhere."""
    job, amounts = scene.job, scene.job.amounts
    lengths: I64 = job.lengths.copy()
    mine = np.isin(amounts.slot, chosen) & (job.process[amounts.arc] == process)
    arc, which = np.unique(amounts.arc[mine], return_inverse=True)
    ns = np.bincount(which, amounts.ns[mine], len(arc)).astype(np.int64)
    for step in np.flatnonzero(less_ns > 0).tolist():
        here = job.step[arc] == step
        most = longest_of(ns[here], int(less_ns[step]))
        lengths[arc[here]] -= np.maximum(ns[here] - most, 0)
    return lengths


def longest_of(ns: I64, less: int) -> int:
    """The longest that any of these may be for all of them to be shorter by `less` together."""
    ordered = np.sort(ns)[::-1]
    ranks = np.arange(1, len(ordered) + 1)
    saved = np.cumsum(ordered) - ranks * np.append(ordered[1:], 0)  # when the first k are cut to the next one
    k = int(np.searchsorted(saved, less))
    if k >= len(ordered):
        return 0
    return int((ordered[: k + 1].sum() - less) // (k + 1))


def in_pairs(steps: int, k: int, skipped: int) -> NDArray[np.bool_]:
    """The last steps that make whole groups of k, without the first `skipped`."""
    counted = np.zeros(steps, np.bool_)
    counted[steps - (steps - skipped) // k * k :] = True
    return counted


def gains(scene: Scene, edits: list[Edited]) -> list[Gain]:
    """What a step gains by each change, for the micro-batches that it has now."""
    job = scene.job
    replayed = job.replay(np.stack([job.lengths, *(edited.lengths for edited in edits)])).mean(axis=1)
    usual = np.arange(replayed.shape[1]) >= settled(replayed.shape[1])
    found = []
    for edited, changed in zip(edits, replayed[1:], strict=True):
        counted = usual if edited.counted is None else edited.counted
        after = (changed[counted] + edited.extra_ns) / edited.per
        found.append(Gain(replayed[0][counted].astype(np.float64), after))
    return found
