"""The steps of a timeline that does not number them: they end with the optimizer, else with the last backward."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from harness.traces.operations.vocabulary import Role
from harness.traces.trace import I64

_BEFORE_FORWARD = (Role.FORWARD, Role.FORWARD_RECV, Role.GATHER)


def steps_of(rows: dict[str, I64], role: NDArray[np.int64]) -> tuple[I64, str]:
    """Of each row the number of its step on its worker, from 0 on; and where a step ends, in words."""
    step = np.zeros(len(role), np.int64)
    worker = rows["dp_rank"] * (1 << 31) + rows["stage"]
    by_optimizer = bool((role == Role.OPTIMIZER).any())
    order = np.lexsort((rows["start"], worker))
    bounds = np.flatnonzero(np.diff(worker[order], prepend=-1, append=-1))
    for first, last in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        mine = order[first:last]
        cut = _by_optimizer if by_optimizer else _by_passes
        step[mine] = cut(rows, role, mine)
    return step, "with its optimizer" if by_optimizer else "where forward begins again after backward"


def _by_optimizer(rows: dict[str, I64], role: NDArray[np.int64], mine: NDArray[np.intp]) -> I64:
    """How many optimizers had ended when each operation was in its middle."""
    start, length = rows["start"][mine], rows["length"][mine]
    optimizer = role[mine] == Role.OPTIMIZER
    ends = np.sort(start[optimizer] + length[optimizer])
    return np.searchsorted(ends, start + length // 2, side="right").astype(np.int64)


def _by_passes(rows: dict[str, I64], role: NDArray[np.int64], mine: NDArray[np.intp]) -> I64:
    """A micro-batch that begins a second time begins a step; without micro-batches all is one step."""
    forward = mine[(role[mine] == Role.FORWARD) & (rows["micro_batch"][mine] >= 0)]
    if not len(forward):
        return np.zeros(len(mine), np.int64)
    batch, chunk = rows["micro_batch"][forward], rows["chunk"][forward]
    again = (batch == batch[0]) & (chunk == chunk[0])
    begins = rows["start"][forward][again]
    passes = mine[(role[mine] == Role.BACKWARD) | (role[mine] == Role.FORWARD)]
    before = np.searchsorted(rows["start"][passes], begins, side="left")
    ends = (rows["start"] + rows["length"])[passes][before[1:] - 1]
    start = rows["start"][mine]
    of_next = np.isin(role[mine], _BEFORE_FORWARD)
    late = np.searchsorted(begins[1:], start, side="right")
    early = np.searchsorted(ends, start, side="right")
    return np.where(of_next, early, late).astype(np.int64)
