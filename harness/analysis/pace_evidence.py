"""What shows who caused a change of pace: the phase that changed, the own times of the ranks, waiting for a core and
page faults. Finds no change itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from harness.analysis.onsets import NEAR
from harness.analysis.pace import DetectedChange, medians
from harness.common.display.format import duration
from harness.common.display.text import ranks_named

F64 = NDArray[np.float64]
CORE_WAIT = "core wait"  # among the phases: a rank's thread was ready to run and had no core
PAGE_FAULTS = "page faults"  # among the phases, but a number, not a time
_MOST_OF_IT = 0.5  # of a change, by which a phase must have changed to be named
_MANY_FAULTS = 200  # more or fewer per step, and twice as many: they have to do with a change


def grown_phase(change: DetectedChange, phases: Mapping[str, F64]) -> str | None:
    """The phase that changed by most of the change, on the ranks that changed; None: none did, or it is not known."""
    times = {name: values for name, values in phases.items() if name not in (CORE_WAIT, PAGE_FAULTS)}
    moved = {name: _moved(change, values) for name, values in times.items()}
    step = change.after - change.before
    shares = {name: each / step for name, each in moved.items() if np.isfinite(each)}
    best = max(shares, key=lambda name: shares[name], default=None)
    return best if best is not None and shares[best] >= _MOST_OF_IT else None


def evidence(
    change: DetectedChange,
    own_time: F64 | None,
    phases: Mapping[str, F64],
    numbers: Sequence[int] | None = None,
    *,
    unit_ns: float = 1.0,
) -> str:
    """What shows who caused a change: the own times of the ranks that changed, waiting for a core, and page faults.

    numbers: the rank of each row, if that is not its index.
    """
    texts = []
    if change.named and own_time is not None and len(change.ranks) < len(own_time):
        ranks = change.ranks if numbers is None else [numbers[row] for row in change.ranks]
        texts.append(_own_times(change, own_time, ranks, unit_ns))
    waited = waited_for_cores(change, phases)
    if waited:
        longer = f"{duration(abs(waited) * unit_ns)} {'longer' if waited > 0 else 'shorter'}"
        texts.append(f"threads waited {longer} per step for a core, which other programs used")
    if PAGE_FAULTS in phases:
        before, after = (float(np.mean(side)) for side in _medians(change, phases[PAGE_FAULTS][list(change.ranks)]))
        slow, fast = (after, before) if change.ratio > 1 else (before, after)
        if slow - fast >= _MANY_FAULTS and slow >= 2 * fast:
            texts.append(
                f"page faults per step: {before:.0f} before, {after:.0f} after, as the C library gives freed memory "
                "back to the kernel; if MALLOC_TRIM_THRESHOLD_ and MALLOC_MMAP_THRESHOLD_ are 1073741824, it keeps the "
                "memory"
            )
    return "; ".join(texts)


def waited_for_cores(change: DetectedChange, phases: Mapping[str, F64]) -> float:
    """By how much longer per step threads waited for a core, if that is most of a change; else 0."""
    waited = _moved(change, phases[CORE_WAIT]) if CORE_WAIT in phases else 0.0
    return waited if waited / (change.after - change.before) > _MOST_OF_IT else 0.0


def _own_times(change: DetectedChange, own_time: F64, ranks: Sequence[int], unit_ns: float) -> str:
    before, after = _medians(change, own_time)
    changed = np.isin(np.arange(len(own_time)), change.ranks)
    others = ~changed & np.isfinite(before) & np.isfinite(after)
    means = [(float(np.mean(before[rows])), float(np.mean(after[rows]))) for rows in (changed, others) if rows.any()]
    texts = [f"{duration(low * unit_ns)} before, {duration(high * unit_ns)} after" for low, high in means]
    return f"time without waiting for other ranks, of {ranks_named(ranks)}: {'; of the others '.join(texts)}"


def _moved(change: DetectedChange, values: F64) -> float:
    """By how much a time of the ranks that changed became longer: its mean over them."""
    before, after = _medians(change, values[list(change.ranks)])
    return float(np.mean(after - before))


def _medians(change: DetectedChange, values: F64) -> tuple[F64, F64]:
    """Of each rank before and after, in the steps near the change."""
    end = values.shape[1] if change.lasts is None else change.lasts + 1
    before = values[:, max(change.step - NEAR, change.since) : change.step]
    return medians(before), medians(values[:, change.step : min(change.step + NEAR, end)])
