"""Who is behind the others: a rule that names nobody in 99 of 100 jobs whose places differ by chance only.

A place is named when all of this holds:
- its median step is at least LEAST of the median place's step behind it;
- it is among the slowest in so many steps that chance does not explain it. Under chance the place's standing in a step
  (the share of places at least as slow) is uniform whatever the distribution of times; with q the k-th smallest of its
  n standings, k = ceil(PERSISTENT n), chance gives P(Binomial(n, q) >= k), and this times the number of places is at
  most CHANCE (Bonferroni);
- of at least FEWEST_FOR_SPREAD places it is FAR times the usual spread (1.4826 median absolute deviations) behind.
"""

from __future__ import annotations

from math import ceil, exp, lgamma, log

import numpy as np

from harness.traces.trace import F64, I64

LEAST = 0.05
PERSISTENT = 0.8
CHANCE = 0.01
FAR = 4.0
FEWEST_FOR_SPREAD = 8
_SIGMA = 1.4826  # of a normal distribution, in median absolute deviations


def outlying(behind: F64) -> I64:
    """The lines of (places, steps) that are behind the others, the farthest first. behind: shares of the median place,
    NaN where not known."""
    known = behind[:, ~np.isnan(behind).any(axis=0)]
    places, steps = known.shape
    if places < 2 or steps < 1:
        return np.empty(0, np.int64)
    usual = np.median(known, axis=1)
    candidates = np.flatnonzero(usual >= LEAST)
    if places >= FEWEST_FOR_SPREAD:
        spread = _SIGMA * float(np.median(np.abs(usual - np.median(usual))))
        candidates = candidates[usual[candidates] - np.median(usual) >= FAR * spread]
    k = ceil(PERSISTENT * steps)
    ordered = np.sort(known, axis=0)
    named = [i for i in candidates if places * _by_chance(_standing(known[i], ordered), k) <= CHANCE]
    return np.array(sorted(named, key=lambda i: -usual[i]), np.int64)


def _standing(line: F64, ordered: F64) -> F64:
    """Per step the share of places at least as slow as this one."""
    faster = np.array([np.searchsorted(ordered[:, i], value) for i, value in enumerate(line)])
    found: F64 = 1 - faster / len(ordered)
    return found


def _by_chance(standing: F64, k: int) -> float:
    """The probability that the k-th smallest of as many uniform numbers is no larger than here."""
    return at_least(k, len(standing), float(np.sort(standing)[k - 1]))


def at_least(k: int, n: int, q: float) -> float:
    """P(Binomial(n, q) >= k).

    >>> at_least(5, 5, 0.5), round(at_least(4, 5, 0.5), 4), at_least(3, 5, 1.0)
    (0.03125, 0.1875, 1.0)
    """
    if q >= 1:
        return 1.0
    if q <= 0:
        return 0.0
    return min(1.0, sum(exp(_log_choose(n, i) + i * log(q) + (n - i) * log(1 - q)) for i in range(k, n + 1)))


def _log_choose(n: int, i: int) -> float:
    return lgamma(n + 1) - lgamma(i + 1) - lgamma(n - i + 1)
