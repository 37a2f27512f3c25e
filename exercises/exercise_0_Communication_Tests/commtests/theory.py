"""Bandwidth as nccl-tests defines it, what the links allow of it, and the line time = α + β·bytes through measured
points. Numpy only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from . import COLLECTIVES

MIN_POINTS = 3


def bus_factor(collective: str, ranks: int) -> float:
    """Bus bandwidth over algorithm bandwidth (nccl-tests, doc/PERFORMANCE.md).

    It is the share of the message that each rank must move over its link, so that the number can be held
    against the link's speed whatever the collective and the number of ranks.
    """
    if collective == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if collective in {"all_gather", "reduce_scatter", "all_to_all"}:
        return (ranks - 1) / ranks
    if collective in {"broadcast", "send_recv"}:
        return 1.0
    raise ValueError(f"no bus bandwidth is defined for {collective!r}; known: {', '.join(COLLECTIVES)}")


@dataclass(frozen=True)
class Links:
    """Nominal rates of one GPU, in one direction: to its node's other GPUs, and its share of the network."""

    intra_gbps: float | None
    inter_gbps: float | None
    gpus_per_node: int


@dataclass(frozen=True)
class Bound:
    """The largest bus bandwidth that the links allow. `reason`: why there is none though the links are known."""

    gbps: float | None
    reason: str | None = None


ANY_RAIL = "only one pair per node crosses the network, and the backend chooses how many rails it gets"


def bus_bound(collective: str, scope: str, ranks: int, links: Links) -> Bound:
    """What bus bandwidth can be at most in groups of `ranks` ranks.

    Over several nodes with several GPUs each (`world`), NCCL's rings enter and leave a node through all of its
    network cards, so a ring's bandwidth is that of the slower of one GPU's link and the whole node's network. In an
    all-to-all each GPU sends a part of its message to its node, and the rest through its own share of the network.
    """
    if scope != "world":
        return Bound(links.intra_gbps if scope == "intra" else links.inter_gbps)
    if collective == "send_recv":
        return Bound(None, ANY_RAIL if links.inter_gbps else None)
    here = links.gpus_per_node
    if collective == "all_to_all":
        inside, across = (ranks - 1) / max(1, here - 1), (ranks - 1) / (ranks - here)
    else:
        inside, across = 1.0, float(here)
    limits = [(links.intra_gbps, inside), (links.inter_gbps, across)]
    return Bound(min((rate * factor for rate, factor in limits if rate), default=None))


def algorithm_gbytes_per_s(message_bytes: int, time_ns: float) -> float:
    """Message size over time; bytes per ns are GB/s. The message: the larger of a rank's input and output."""
    return message_bytes / time_ns


@dataclass(frozen=True)
class Fit:
    """time_ns = alpha_ns + beta_ns_per_byte · bytes, and how well it describes the points.

    `r2_log` is R² of log(time), as the plot shows it; the errors are |fitted − measured| / measured.
    """

    alpha_ns: float
    beta_ns_per_byte: float
    r2_log: float
    median_relative_error: float
    max_relative_error: float
    points: int

    def time_ns(self, message_bytes: float) -> float:
        """Predicted time of a message."""
        return self.alpha_ns + self.beta_ns_per_byte * message_bytes


def fit_alpha_beta(message_bytes: Sequence[int], time_ns: Sequence[float]) -> Fit | None:
    """Least squares of the relative error, with α, β ≥ 0; None with fewer than three points.

    Weighting by 1/time makes 1 KB count as much as 1 GB: unweighted, the largest message alone would decide,
    and the latency would come out as anything.
    """
    sizes = np.asarray(message_bytes, dtype=np.float64)
    times = np.asarray(time_ns, dtype=np.float64)
    if len(sizes) < MIN_POINTS:
        return None
    design = np.stack([1 / times, sizes / times], axis=1)
    alpha, beta = _non_negative(design)
    fitted = alpha + beta * sizes
    error = np.abs(fitted - times) / times
    residual = np.sum((np.log(times) - np.log(fitted)) ** 2)
    spread = np.sum((np.log(times) - np.log(times).mean()) ** 2)
    r2 = 1.0 - float(residual / spread) if spread > 0 else 1.0
    return Fit(alpha, beta, r2, float(np.median(error)), float(error.max()), len(sizes))


def _non_negative(design: np.ndarray[tuple[int, int], np.dtype[np.float64]]) -> tuple[float, float]:
    """Solve design · (α, β) ≈ 1 with both ≥ 0: if the free solution is outside, the best is on an axis."""
    ones = np.ones(len(design))
    alpha, beta = np.linalg.lstsq(design, ones, rcond=None)[0]
    latency, slope = design[:, 0], design[:, 1]
    if alpha < 0:
        return 0.0, float(slope.sum() / (slope @ slope))
    if beta < 0:
        return float(latency.sum() / (latency @ latency)), 0.0
    return float(alpha), float(beta)
