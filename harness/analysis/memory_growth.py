"""Whether memory grows with the steps: by how much a step, since when, and until when there is room.

Knows numbers only. A number grows if it rises from each to the next of six equal parts of the last 60 % of the steps,
as fast at the end as before: what fills up and stops, a first batch larger than all before, and a level that wanders
are no growth. It grows with the batch if the batches grow, too, and nothing is left of it without their part.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.analysis.statistics import CONFIDENCE, t_quantile

F64 = NDArray[np.float64]
Numbers = Sequence[float] | F64
FEWEST = 24  # values
FEWEST_LOOKS = 8  # of what is not counted in each step
PARTS = 6
TAIL = 0.6
STILL = 0.5  # of the whole rate, that it must have in the last parts
BURST = 4.0  # times the median part's rate: a level that changes once is no growth
SURE = 0.2  # of the rate, that its interval's lower end must be
LEAST_SHARE = 0.005  # of the level, by which it rises in the tail
LEAST = {"device": 1 << 20, "host": 2 << 20, "workers": 4 << 20, "files": 12.0, "threads": 12.0}
KEPT_FREE = 64 << 20  # bytes that glibc may keep of what was freed before it gives any back: mallopt(3)
_ALIKE = 0.98  # correlation of steps and largest batch, from which no part can be told from the other


class Rate(NamedTuple):
    """per_step with its 95 % interval; since: the first step from which the numbers lie on that line. by_batch: it is
    the batch's growth. is_free: it is of what the program has freed."""

    per_step: float
    low: float
    high: float
    since: int
    by_batch: bool = False
    is_free: bool = False


def growth(
    steps: Numbers,
    values: Numbers,
    of: str,
    batches: Numbers = (),
    *,
    fewest: int | None = None,
    least: float | None = None,
) -> Rate | None:
    """The growth of one number; None: it does not grow, or too few values are known. of: a key of `LEAST`. batches: how
    large each step's batch was; NaN where that is not known. fewest: values that must be known. least: by how much they
    must rise in the tail.

    >>> growth(range(100), [1e9 + 5e6 * step for step in range(100)], "host")
    Rate(per_step=5000000.0, low=5000000.0, high=5000000.0, since=0, by_batch=False, is_free=False)
    >>> growth(range(100), [1e9 + 5e6 * min(step, 50) for step in range(100)], "host")
    """
    x, y = np.asarray(steps, float), np.asarray(values, float)
    sizes = np.asarray(batches, float) if len(batches) else np.full(len(x), np.nan)
    known = np.isfinite(y)
    x, y, sizes = x[known], y[known], sizes[known]
    if len(x) < (fewest or (FEWEST if of in ("device", "host") else FEWEST_LOOKS)):
        return None
    start = min(int(len(x) * (1 - TAIL)), len(x) - PARTS)
    least = LEAST[of] if least is None else least
    if not _rises(x[start:], y[start:], least):
        return None
    found = _rate(x, y, start)
    if found.low < SURE * found.per_step:
        return None
    largest = np.fmax.accumulate(sizes)[start:]
    if not np.isfinite(largest).all() or np.ptp(largest) == 0 or of not in ("device", "host"):
        return found
    return found._replace(by_batch=_is_of_batch(x[start:], y[start:], largest, least))


def _rises(x: F64, y: F64, least: float) -> bool:
    levels = _levels(y)
    rates = np.diff(levels) / np.diff(_levels(x))
    whole = (levels[-1] - levels[0]) / np.mean(np.diff(_levels(x))) / (PARTS - 1)
    rise = (levels[-1] - levels[0]) * PARTS / (PARTS - 1)
    return bool(
        (rates > 0).all()
        and rise >= max(least, LEAST_SHARE * levels[0])
        and np.mean(rates[-2:]) >= STILL * whole
        and rates.max() <= BURST * np.median(rates)
    )


def _levels(values: F64) -> F64:
    """The median of each part."""
    return np.array([np.median(part) for part in np.array_split(values, PARTS)])


def _rate(x: F64, y: F64, start: int) -> Rate:
    """The line through all values that lie on that of the tail."""
    slope, offset = np.polyfit(x[start:], y[start:], 1)
    apart = np.abs(y - (slope * x + offset))
    allowed = max(2 * float(apart[start:].max()), 3 * slope)
    outside = np.flatnonzero(apart[:start] > allowed)
    since = int(outside[-1]) + 1 if len(outside) else 0
    levels, places = _levels(y[since:]), _levels(x[since:])
    rates = np.diff(levels) / np.diff(places)
    per_step = float(np.polyfit(x[since:], y[since:], 1)[0])
    half = float(t_quantile((1 + CONFIDENCE) / 2, PARTS - 2) * rates.std(ddof=1) / np.sqrt(PARTS - 1))
    return Rate(round(per_step, 1), round(per_step - half, 1), round(per_step + half, 1), int(x[since]))


def _is_of_batch(x: F64, y: F64, largest: F64, least: float) -> bool:
    """Whether nothing grows once the part of the largest batch so far is taken away."""
    if np.corrcoef(x, largest)[0, 1] > _ALIKE:
        return True
    design = np.column_stack([x, largest, np.ones(len(x))])
    (_, of_batch, _), *_ = np.linalg.lstsq(design, y, rcond=None)
    return of_batch > 0 and not _rises(x, y - of_batch * largest, least)
