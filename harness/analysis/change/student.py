"""Student's t distribution: how many standard errors an interval reaches. Knows numbers only."""

from __future__ import annotations

from functools import cache
from math import exp, inf, lgamma, log, log1p, sqrt

_PRECISION = 1e-13
_MOST_TERMS = 1000
_TINY = 1e-300
_LARGEST = 1e9


@cache
def t_quantile(probability: float, df: float) -> float:
    """The value below which a t of `df` degrees of freedom (> 0, need not be whole) lies with `probability` (≥ ½)."""
    low, high = 0.0, 1.0
    while t_below(high, df) < probability and high < _LARGEST:
        low, high = high, 2 * high
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if t_below(middle, df) < probability else (low, middle)
    return high


def t_below(t: float, df: float) -> float:
    """The probability that a t of `df` degrees of freedom lies below `t`.

    Source: Abramowitz & Stegun 26.7.1, by the incomplete beta function.
    """
    beyond = 0.5 * _incomplete_beta(df / 2, 0.5, df / (df + t * t))
    return 1 - beyond if t > 0 else beyond


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised I_x(a, b), by its continued fraction (DLMF 8.17.22) on the side where that converges fast."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(b, a, 1 - x)
    front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log1p(-x)) / a
    return front / _fraction(a, b, x)


def _fraction(a: float, b: float, x: float) -> float:
    """1 + d₁/(1 + d₂/(1 + …)), by Lentz's method."""
    value, numerator, denominator = 1.0, 1.0, 0.0
    for n in range(1, _MOST_TERMS):
        m = n // 2
        if n % 2:
            d = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            d = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        denominator = 1 / (1 + d * denominator or _TINY)
        numerator = 1 + d / numerator or _TINY
        value *= numerator * denominator
        if abs(numerator * denominator - 1) < _PRECISION:
            break
    return value


def standard_error_factor(runs_a: int, runs_b: int) -> float:
    """Of a difference of two means, times the standard deviation of one run."""
    return sqrt(1 / runs_a + 1 / runs_b) if runs_a and runs_b else inf
