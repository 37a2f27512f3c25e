"""The step times of all ranks as two matrices whose columns are steps, for an analysis of all ranks together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from harness.live.history import History
from harness.live.model import Rank

Matrix = npt.NDArray[np.float64]


class Aligned(NamedTuple):
    """ranks: their numbers, one for each row. first: the number of the first column's step. us, own_us: microseconds of
    a step, in all and without waiting for other ranks; NaN: not known."""

    ranks: tuple[int, ...]
    first: int
    us: Matrix
    own_us: Matrix


def aligned(ranks: Sequence[Rank], most: int = 1024) -> Aligned | None:
    """The last `most` steps of these ranks; None: no step is known. A mean of several steps stands for each of them."""
    known = [rank for rank in ranks if rank.history.count]
    if not known:
        return None
    last = max(int(rank.history.steps[-1]) for rank in known)
    first = max(0, last - most + 1)
    us, own_us = (np.full((len(known), last - first + 1), np.nan) for _ in range(2))
    for row, rank in enumerate(known):
        entries, columns = _columns(rank.history, first, last)
        us[row, columns] = rank.history.us[entries]
        own_us[row, columns] = rank.history.own_us[entries]
    return Aligned(tuple(rank.rank for rank in known), first, us, own_us)


def _columns(history: History, first: int, last: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.int64]]:
    """Entries, each as often as it has steps in these columns, and the columns."""
    steps = history.steps.astype(np.int64)
    back = np.flatnonzero(np.diff(steps) <= 0)  # steps were counted anew
    begins = int(back[-1]) + 1 if len(back) else 0
    begins = max(begins, int(np.searchsorted(steps[begins:], first, "right")) + begins - 1)
    widths = np.diff(steps[begins:])
    usual = int(np.median(widths)) if len(widths) else 1
    counts = np.append(np.minimum(widths, max(1, usual)), max(1, usual))  # a wider gap was not recorded
    entries = np.repeat(np.arange(begins, len(steps)), counts)
    inside = np.arange(len(entries)) - np.repeat(np.cumsum(counts) - counts, counts)
    columns = steps[entries] + inside - first
    there = (columns >= 0) & (columns <= last - first)
    return entries[there], columns[there]
