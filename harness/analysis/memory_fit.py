"""What a larger batch would need, from two batch sizes of which the peak was measured. Knows numbers only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

MOST_FILLED = 0.95  # of the memory that there is: an allocator needs some for itself


class MemoryFit(NamedTuple):
    """peak = fixed + per_sample · batch, in bytes: the activations, inputs and temporaries of a sample, and all that
    does not depend on the batch."""

    fixed: float
    per_sample: float
    largest: int  # batch that was measured

    def needs(self, batch: int) -> float:
        return self.fixed + self.per_sample * batch

    def most(self, limit_bytes: int) -> int:
        """The largest batch that fits."""
        return int((MOST_FILLED * limit_bytes - self.fixed) / self.per_sample)


def fit(points: Sequence[tuple[int, int]]) -> MemoryFit | None:
    """The line through the smallest and the largest batch. points: (batch in samples, peak in bytes). None: all batches
    are alike, or the larger one does not need more.

    >>> fit([(8, 24 * 10**9), (16, 43 * 10**9)])
    MemoryFit(fixed=5000000000.0, per_sample=2375000000.0, largest=16)
    """
    points = sorted(points)
    if len(points) < 2:
        return None
    (small, low), (large, high) = points[0], points[-1]
    if small == large or high <= low:
        return None
    per_sample = (high - low) / (large - small)
    fixed = low - per_sample * small
    return MemoryFit(fixed, per_sample, large) if fixed > 0 else None
