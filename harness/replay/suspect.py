"""What a rule suspects, and what the job would gain without it. Knows no rule."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from harness.replay.scene import Scene
from harness.traces.trace import I64

RESAMPLES = 400
SEED = 12345
_HIT = 0.5  # a step, or a rank, belongs to a cause from this share of the largest on


class Cause(str, Enum):
    """Why time was lost; the names of the faults that cause it (harness/common/faults.py)."""

    DATA_STALL = "data-stall"
    HOST_STALL = "host-stall"
    PAUSE = "pause"
    CHECKPOINT = "checkpoint"
    EXTRA_COMPUTE = "extra-compute"
    LONG_SEQUENCES = "long-sequences"
    NOISY_NEIGHBOUR = "noisy-neighbour"
    GARBAGE = "gc"
    UNEVEN_STAGES = "uneven-stages"
    SLOW_LINK = "slow-link"
    SMALL_BUCKETS = "small-buckets"
    TINY_KERNELS = "tiny-kernels"


@dataclass(frozen=True)
class Suspect:
    """A cause at its place. processes: indices of those that do it. phase: index into PHASES, None: in no single one.
    steps: which of the counted steps it hits. lengths: every arc's length without it. evidence: numbers in words."""

    cause: Cause
    processes: tuple[int, ...]
    phase: int | None
    steps: NDArray[np.bool_]
    lengths: I64
    evidence: str

    @property
    def every(self) -> int | None:
        """k, where it recurs in every k-th step; None: it has no period."""
        return period(self.steps)


@dataclass(frozen=True)
class Gain:
    """Nanoseconds that a step would take less, mean over the counted steps, with its 95 % interval."""

    mean_ns: float
    low_ns: float
    high_ns: float


def period(hits: NDArray[np.bool_]) -> int | None:
    """The distance between hits, where it is always the same and there are at least three of them."""
    apart = np.diff(np.flatnonzero(hits))
    return int(apart[0]) if len(apart) > 1 and (apart == apart[0]).all() else None


def hit(by_step: NDArray[np.int64] | NDArray[np.float64]) -> NDArray[np.bool_]:
    """The steps with a large part of the largest step's time."""
    largest = by_step.max(initial=0)
    found: NDArray[np.bool_] = (by_step >= _HIT * largest) & (by_step > 0)
    return found


def culprits(by_process: NDArray[np.int64] | NDArray[np.float64]) -> tuple[int, ...]:
    """The processes with a large part of the largest one's time."""
    largest = by_process.max(initial=0)
    return tuple(np.flatnonzero((by_process >= _HIT * largest) & (by_process > 0)).tolist())


def gains(scene: Scene, lengths: list[I64]) -> list[Gain]:
    """What the job gains with each of these lengths of its arcs."""
    if not lengths:
        return []
    replayed = scene.job.replay(np.stack([scene.job.lengths, *lengths])).mean(axis=1)
    saved = replayed[0][None, :] - replayed[1:]
    return [interval(row) for row in saved[:, settled(saved.shape[1]) :]]


def settled(steps: int) -> int:
    """How many first steps not to look at: at the first, ranks are as far apart as they were before the recording."""
    return 1 if steps > 3 else 0


def interval(by_step: NDArray[np.float64]) -> Gain:
    """Mean over steps, with the 95 % interval of its bootstrap. Source: Efron, 1979, percentile method."""
    draw = np.random.default_rng(SEED).integers(0, len(by_step), (RESAMPLES, len(by_step)))
    low, high = np.quantile(by_step[draw].mean(axis=1), (0.025, 0.975))
    return Gain(float(by_step.mean()), float(low), float(high))
