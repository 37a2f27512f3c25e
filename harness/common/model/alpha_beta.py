"""The line time = α + β·bytes through measured messages (latency, inverse of the bandwidth), and the factors of bus
bandwidth. Knows nothing of who measured them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import log
from statistics import fmean, median
from typing import overload

MOST_BYTES_PER_S = 1 << 43  # of one port, 70 Tb/s: more cannot be true
MIN_SIZES = 3  # two points always lie on a line
MIN_R_SQUARED = 0.9  # below it the time of a message depends too little on its size
_SHARED = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")


@dataclass(frozen=True)
class AlphaBeta:
    """time_ns = alpha_ns + beta_ns_per_byte · bytes, and how well it describes the points.

    `r2_log` is R² of log(time), as a plot with logarithmic axes shows it; an error is |fitted − measured| / measured.
    """

    alpha_ns: float
    beta_ns_per_byte: float
    r2_log: float
    median_relative_error: float
    max_relative_error: float
    points: int

    def time_ns(self, message_bytes: float) -> float:
        return self.alpha_ns + self.beta_ns_per_byte * message_bytes

    def objection(self) -> str:
        """Why the line shows no latency and no bandwidth; empty: it does."""
        if self.beta_ns_per_byte == 0:
            return "its times do not grow with the message size"
        if self.r2_log < MIN_R_SQUARED:
            found = f"R² {self.r2_log:.2f}, at least {MIN_R_SQUARED} is needed"
            return f"its {self.points} message sizes do not lie on a straight line ({found})"
        return ""


def is_line(beta_ns_per_byte: float, r2_log: float) -> bool:
    """Whether a stored fit shows a latency and a bandwidth, as `AlphaBeta.objection` decides."""
    return beta_ns_per_byte > 0 and r2_log >= MIN_R_SQUARED


def fit_alpha_beta(message_bytes: Iterable[float], time_ns: Iterable[float]) -> AlphaBeta | None:
    """Least squares of the relative error, with α, β ≥ 0; None with fewer than three message sizes.

    With a weight of 1/time, 1 KB counts as much as 1 GB. Without weights the largest message alone would decide, and
    the latency would be arbitrary. A time of 0, shorter than the clock can show, is left out.
    """
    points = [(size, time) for size, time in zip(message_bytes, time_ns, strict=True) if time > 0]
    if len({size for size, _ in points}) < MIN_SIZES:
        return None
    alpha, beta = _non_negative(points)
    fitted = [(alpha + beta * size, time) for size, time in points]
    errors = [abs(line - time) / time for line, time in fitted]
    return AlphaBeta(alpha, beta, _r2_log(fitted), median(errors), max(errors), len(points))


def _non_negative(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """α and β of the least Σ((α + β·size − time) / time)²; where the free solution is negative, one of them is 0."""
    latencies = [1 / time for _, time in points]
    slopes = [size / time for size, time in points]
    aa, ab, bb = _dot(latencies, latencies), _dot(latencies, slopes), _dot(slopes, slopes)
    a, b = sum(latencies), sum(slopes)
    determinant = aa * bb - ab * ab
    alpha, beta = (a * bb - b * ab) / determinant, (b * aa - a * ab) / determinant
    if alpha < 0:
        return 0.0, b / bb
    return (alpha, beta) if beta >= 0 else (a / aa, 0.0)


def _dot(left: Sequence[float], right: Sequence[float]) -> float:
    return sum(x * y for x, y in zip(left, right, strict=True))


def _r2_log(fitted: Sequence[tuple[float, float]]) -> float:
    """Share of the variance of log(time) that the line explains, from (time on the line, measured time)."""
    logs = [log(time) for _, time in fitted]
    if min(logs) == max(logs):
        return 1.0
    mean = fmean(logs)
    residual = sum(log(time / line) ** 2 for line, time in fitted)
    return 1 - residual / sum((each - mean) ** 2 for each in logs)


@overload
def bus_factor(kind: str, group_size: int) -> float: ...


@overload
def bus_factor(kind: str, group_size: int | None) -> float | None: ...


def bus_factor(kind: str, group_size: int | None) -> float | None:
    """The share of a message that each rank must move over its link; None if that needs an unknown group size.

    With it a bandwidth can be compared with the link's speed, whatever the collective and the number of ranks. The
    message is the larger of a rank's input and output.

    >>> bus_factor("all_reduce", 4), bus_factor("all_gather", 4), bus_factor("broadcast", 4)
    (1.5, 0.75, 1.0)
    """
    if kind != "all_reduce" and kind not in _SHARED:
        return 1.0
    if group_size is None:
        return None
    return (2 if kind == "all_reduce" else 1) * (group_size - 1) / group_size
