"""Which steps, or processes, have much of a time, at what distance these steps are, and how that is said."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from harness.traces.trace import F64

MOSTLY = 0.6  # of the steps
FEW = 12  # steps of which two hits may be a period
FEWEST = 3  # steps of which an interval is given
LEAST = 0.02  # of a step: less is not looked at
LARGE = 0.5  # a step, or a rank, belongs to a cause from this share of the largest on


def period(hits: NDArray[np.bool_]) -> int | None:
    """The distance between hits, where it is always the same and there are at least three of them; of few steps, two
    are enough where no third one fits."""
    at = np.flatnonzero(hits)
    apart = np.diff(at)
    if not len(apart) or (apart != apart[0]).any():
        return None
    k = int(apart[0])
    whole = at[0] < k and at[-1] + k >= len(hits)
    return k if len(apart) > 1 or (len(hits) <= FEW and k > 1 and whole) else None


def is_regular(hits: NDArray[np.bool_]) -> bool:
    """Whether steps are hit at a regular distance, or most of them."""
    return period(hits) is not None or float(hits.mean()) >= MOSTLY


def hit(by_step: NDArray[np.int64] | NDArray[np.float64]) -> NDArray[np.bool_]:
    """The steps, or processes, with a large part of the largest one's time."""
    largest = by_step.max(initial=0)
    found: NDArray[np.bool_] = (by_step >= LARGE * largest) & (by_step > 0)
    return found


def runs_in(by_step: NDArray[np.int64] | F64) -> NDArray[np.bool_]:
    """The steps in which code runs: what takes long in some of them, as without a core, is not more of it."""
    seen = by_step[by_step > 0]
    found: NDArray[np.bool_] = by_step > (LARGE * np.median(seen) if len(seen) else 0)
    return found


def in_steps(by_step: NDArray[np.int64] | NDArray[np.float64], steps: NDArray[np.bool_], more: str = "") -> str:
    """How much it is in which steps, in words; nothing of a single step, or if another has half as much. Of what is in
    most steps, too, not only one that is far longer."""
    if by_step[steps].sum() < MOSTLY * by_step.sum():
        steps = runs_in(by_step)
    each = float(by_step[steps].mean())
    alike = len(steps) < 2 or (not steps.all() and by_step[~steps].max() >= each / 2)
    return "" if alike else f"{each / 1e6:.1f} ms{more} in {int(steps.sum())} of {len(steps)} steps"
