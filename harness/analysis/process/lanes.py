"""Lanes without overlaps: each interval goes to the first free lane of its group. Knows only numbers."""

from __future__ import annotations

import heapq

import numpy as np

from harness.traces.trace import I64


def lanes(start_ns: I64, end_ns: I64, group: I64) -> I64:
    """For each interval the lowest lane of its group in which nothing else runs at that time.

    Kernels of one stream may overlap (programmatic dependent launch, graphs); intervals of one lane may not.
    """
    lane = np.zeros(len(start_ns), np.int64)
    order = np.lexsort((end_ns, start_ns, group))
    bounds = np.flatnonzero(np.diff(group[order], prepend=-1, append=-1))
    for low, high in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        part = order[low:high]
        latest = np.maximum.accumulate(end_ns[part])
        if np.any(start_ns[part][1:] < latest[:-1]):
            lane[part] = _first_free(start_ns[part].tolist(), end_ns[part].tolist())
    return lane


def _first_free(starts: list[int], ends: list[int]) -> list[int]:
    busy: list[tuple[int, int]] = []
    free: list[int] = []
    taken = 0
    found = []
    for start, end in zip(starts, ends, strict=True):
        while busy and busy[0][0] <= start:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if free:
            lane = heapq.heappop(free)
        else:
            lane, taken = taken, taken + 1
        heapq.heappush(busy, (end, lane))
        found.append(lane)
    return found
