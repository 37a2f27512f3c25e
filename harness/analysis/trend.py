"""Whether values become larger little by little. Knows arrays only."""

from __future__ import annotations

import numpy as np

from harness.traces.trace import F64


def order(y: F64) -> float:
    """Kendall's tau of the values and their places: 1 if each is larger than those before it.

    >>> order(np.arange(5.0)), order(-np.arange(5.0)), order(np.ones(5))
    (1.0, -1.0, 0.0)
    """
    pairs = len(y) * (len(y) - 1) / 2
    return float(np.triu(np.sign(y[None, :] - y[:, None])).sum() / pairs) if pairs else 0.0


def is_line(y: F64) -> bool:
    """Whether a line explains the values better than one jump, whose place is one number more (by the information
    criterion of Schwarz, The Annals of Statistics, 1978).

    >>> is_line(np.arange(12.0)), is_line(np.repeat([0.0, 9.0], 6))
    (True, False)
    """
    count, places = len(y), np.arange(len(y))
    line = np.polyval(np.polyfit(places, y, 1), places)
    jumps = (y[:at].var() * at + y[at:].var() * (count - at) for at in range(1, count))
    return bool(((y - line) ** 2).sum() < count ** (1 / count) * min(jumps, default=0.0))


def quarters(y: F64) -> list[float]:
    """The median of each quarter of the values."""
    return [float(np.median(part)) for part in np.array_split(y, 4)]
