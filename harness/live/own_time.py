"""Which ranks' own time changed, without the time in which they waited for other ranks. Knows arrays only."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
WAITING = ("backward",)  # DDP: the phase in which a rank waits for the others' gradients
_COUNTS = 0.35  # of the job's change, which a rank's own time must have changed by
_BESIDE = 0.5  # of the change of the rank that changed most
_CERTAIN = 4.0  # standard errors
_ALL = 0.9  # of the ranks


def own_from_phases(
    step: F64, phases: Mapping[str, F64], waiting: Collection[str] = WAITING, *, on_host: bool = True
) -> F64:
    """Time of each step in which a rank did not wait for other ranks, as far as phases tell.

    step, phases: (ranks, steps), NaN where not known. phases: "data", "forward", "backward", "optimizer". waiting: the
    phases in which collectives run: in them computing cannot be told from waiting, so they are left out entirely.
    on_host: the steps are computed by the host; on a GPU the time outside of all phases is waiting for the device, and
    with it for other ranks, so it is left out too.
    """
    if on_host:
        return np.asarray(step - sum(np.nan_to_num(phases[name]) for name in waiting if name in phases))
    return np.asarray(sum((phases[name] for name in phases if name not in waiting), np.zeros_like(step)))


def culprits(before: F64, after: F64, change: float) -> tuple[int, ...]:
    """The ranks whose own time changed as the job's step did; empty: nobody can be named.

    before, after: own times of the steps on both sides, (ranks, steps), NaN where not known. change: of the job's step.
    """
    grew = np.full(len(before), -np.inf)
    there = ~(np.isnan(before).any(axis=1) | np.isnan(after).any(axis=1))
    if not there.any():
        return ()
    before, after = before[there], after[there]
    low, high = np.median(before, axis=1), np.median(after, axis=1)
    noise = np.hstack([before - low[:, None], after - high[:, None]])
    error = _rows_spread(noise) * 2.5 * np.sqrt(1 / before.shape[1] + 1 / after.shape[1])
    moved = np.sign(change) * (high - low)
    grew[there] = np.where(moved > _CERTAIN * error, moved, -np.inf)
    ranks = np.flatnonzero(grew >= max(_COUNTS * abs(change), _BESIDE * float(grew.max())))
    return tuple(range(len(grew))) if len(ranks) >= _ALL * int(there.sum()) else tuple(map(int, ranks))


def _rows_spread(noise: F64) -> F64:
    middle = np.median(noise, axis=1, keepdims=True)
    return np.asarray(1.4826 * np.median(np.abs(noise - middle), axis=1))
