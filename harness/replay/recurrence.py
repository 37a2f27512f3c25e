"""The same call of a program in every step: the n-th of its kind in its step, and its time beyond the median."""

from __future__ import annotations

import numpy as np

from harness.traces.trace import I64

_HELD_FACTOR = 2  # what takes so many times its usual time was held up, if it is also a stall


def recurring(step: I64, kind: I64, moment: I64) -> I64:
    """A number per call, the same for the n-th calls of one kind in their steps, in order of `moment`."""
    if not len(step):
        return np.empty(0, np.int64)
    order = np.lexsort((moment, kind, step))
    ordered_kind, ordered_step = kind[order], step[order]
    changes = (ordered_kind[1:] != ordered_kind[:-1]) | (ordered_step[1:] != ordered_step[:-1])
    begins = np.flatnonzero(np.append(True, changes))
    nth = np.empty(len(order), np.int64)
    nth[order] = np.arange(len(order)) - np.repeat(begins, np.diff(np.append(begins, len(order))))
    return kind * (int(nth.max()) + 1) + nth


def median_of_each(group: I64, values: I64) -> I64:
    """For each of n values the median of its group."""
    order = np.lexsort((values, group))
    begins = (
        np.flatnonzero(np.append(True, np.diff(group[order]) != 0)) if len(order) else np.empty(0, np.int64)
    )
    counts = np.diff(np.append(begins, len(order)))
    ordered = values[order]
    low, high = ordered[begins + (counts - 1) // 2], ordered[begins + counts // 2]
    found = np.empty(len(order), np.int64)
    found[order] = np.repeat((low + high) // 2, counts)
    return found


def held_up(ns: I64, usual: I64 | int, least: int) -> I64:
    """The part of each of n durations beyond the median; 0 if that is less than `least`, or no more than chance."""
    return np.where((ns > _HELD_FACTOR * usual) & (ns - usual > least), ns - usual, 0)
