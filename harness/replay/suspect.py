"""What a rule suspects, and what the job would gain without it. Knows no rule."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from harness.analysis.summary import CodeLocation
from harness.replay.context import ReplayContext
from harness.traces.trace import F64, I64

RESAMPLES = 400
SEED = 12345
MOSTLY = 0.6  # of the steps
FEW = 12  # steps of which two hits may be a period
FEWEST = 3  # steps of which an interval is given
NORMAL = 1.96
_HIT = 0.5  # a step, or a rank, belongs to a cause from this share of the largest on


class Cause(str, Enum):
    """Why time was lost; if a fault causes it, the fault's name (harness/common/faults.py)."""

    DATA_STALL = "data-stall"
    HOST_STALL = "host-stall"
    PAUSE = "pause"
    INTERRUPTED = "interrupted"
    CHECKPOINT = "checkpoint"
    EXTRA_COMPUTE = "extra-compute"
    LONG_SEQUENCES = "long-sequences"
    NOISY_NEIGHBOUR = "noisy-neighbour"
    GARBAGE = "gc"
    UNEVEN_STAGES = "uneven-stages"
    SLOW_LINK = "slow-link"
    SMALL_BUCKETS = "small-buckets"
    PINNED_TOGETHER = "pinned-together"
    TINY_KERNELS = "tiny-kernels"
    COMMUNICATION = "communication"
    BUBBLE = "bubble"
    COPIES = "copies"
    PRECISION = "fp32"
    SYNCHRONISATION = "sync"
    BLOCKING_COPY = "pageable"
    ALLOCATION = "allocation"
    FIRST_USE = "first-use"
    BETWEEN_STEPS = "between-steps"
    LATE_RANK = "late-rank"
    SLOW_DEVICE = "slow-device"
    IMBALANCE = "imbalance"


@dataclass(frozen=True)
class Suspect:
    """A cause at its place. processes: indices of those that do it. phase: index into PHASES, None: in no single one.
    steps: which of the counted steps it hits. lengths: every arc's length without it; None: no arcs show it.
    saved_ns: what each of the steps saves at most, as the devices' time shows; None: it has no such limit.
    evidence: numbers in words. standing: a steady loss, present in every step, which a change of the experiment
    improves. counted: its process counted how often it came, so that this is no chance. what, where: the activity.
    slots: the slots of its processes' time in which the loss is; activities: the processes and rows of the host's
    activities that it is."""

    cause: Cause
    processes: tuple[int, ...]
    phase: int | None
    steps: NDArray[np.bool_]
    lengths: I64 | None
    evidence: str
    standing: bool = False
    counted: bool = False
    saved_ns: F64 | None = None
    what: str | None = None
    where: CodeLocation | None = None
    slots: tuple[int, ...] = ()
    activities: tuple[tuple[int, int], ...] = ()

    @property
    def every(self) -> int | None:
        """k, where it recurs in every k-th step; None: it has no period."""
        return None if self.cause is Cause.INTERRUPTED else period(self.steps)

    @property
    def is_regular(self) -> bool:
        """Whether its steps are at a regular distance, or most of them. What comes at any moment is so by chance."""
        return self.cause is not Cause.INTERRUPTED and is_regular(self.steps)


@dataclass(frozen=True)
class Gain:
    """The step before and after a change, each of n counted steps, in nanoseconds. best: after the change at its best;
    None: it has no range."""

    before: F64
    after: F64
    best: F64 | None = None

    @property
    def mean_ns(self) -> float:
        """The mean over the counted steps."""
        return float((self.before - self.after).mean())

    def at_most(self, limit_ns: float) -> Gain:
        """The same gain, with a mean of at most `limit_ns`."""
        if self.mean_ns <= limit_ns:
            return self
        kept = max(limit_ns, 0.0) / self.mean_ns
        return Gain(self.before, self.before - kept * (self.before - self.after))

    def interval(self, hits: NDArray[np.bool_] | None = None) -> tuple[float, float] | None:
        """The 95 % interval of the mean gain; None with fewer than three steps.

        Percentile bootstrap over steps. hits: of all steps, those at a regular distance that have the gain; they are
        drawn apart from the others, since how many they are is no chance. Source: Efron, Bootstrap methods, 1979."""
        saved = self.before - self.after
        if len(saved) < FEWEST:
            return None
        apart = np.zeros(len(saved), np.bool_) if hits is None else hits[-len(saved) :]
        means = sum(_means(saved[of]) * of.mean() for of in (apart, ~apart) if of.any())
        low, high = np.quantile(means, (0.025, 0.975))
        return float(low), float(high)

    def margin(self) -> float | None:
        """How far from `after` the mean step of another run may lie, 95 %; None with fewer than three steps.

        Both this run and the other one have steps that differ: the variances of the two means add up."""
        if len(self.before) < FEWEST:
            return None
        return float(NORMAL * np.hypot(_means(self.before).std(), _means(self.after).std()))


def _means(by_step: F64) -> F64:
    draw = np.random.default_rng(SEED).integers(0, len(by_step), (RESAMPLES, len(by_step)))
    means: F64 = by_step[draw].mean(axis=1)
    return means


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
    """The steps with a large part of the largest step's time."""
    largest = by_step.max(initial=0)
    found: NDArray[np.bool_] = (by_step >= _HIT * largest) & (by_step > 0)
    return found


def culprits(by_process: NDArray[np.int64] | NDArray[np.float64]) -> tuple[int, ...]:
    """The processes with a large part of the largest one's time."""
    largest = by_process.max(initial=0)
    return tuple(np.flatnonzero((by_process >= _HIT * largest) & (by_process > 0)).tolist())


def settled(steps: int) -> int:
    """How many first steps not to look at: at the first, ranks are as far apart as they were before the recording."""
    return 1 if steps > 3 else 0


LEAST = 0.02  # of a step: less is not looked at


def without_time(
    context: ReplayContext, cause: Cause, chosen: list[int], phase: int | None
) -> Iterator[Suspect]:
    """The suspicion that the time in these slots is lost, where there is enough of it."""
    time = context.time_ns[:, :, chosen].sum(axis=2)
    culprit = culprits(time.sum(axis=1))
    if culprit and time[list(culprit)].mean() >= LEAST * context.step_ns:
        yield counterfactual(context, cause, phase, dict.fromkeys(culprit, chosen))


def counterfactual(
    context: ReplayContext, cause: Cause, phase: int | None, chosen: dict[int, list[int]]
) -> Suspect:
    """The job without the time in some slots of some processes."""
    factor = context.job.unchanged()
    for process, of in chosen.items():
        factor[process, of] = 0
    by_step = np.stack([context.time_ns[p][:, of].sum(axis=1) for p, of in chosen.items()]).max(axis=0)
    steps = hit(by_step)
    lengths = context.job.scaled(factor)
    every = tuple(sorted({s for of in chosen.values() for s in of}))
    return Suspect(cause, tuple(chosen), phase, steps, lengths, in_steps(by_step, steps), slots=every)


def in_steps(by_step: NDArray[np.int64] | NDArray[np.float64], steps: NDArray[np.bool_]) -> str:
    """How much it is in which steps, in words; nothing of a single step."""
    each = float(by_step[steps].mean()) / 1e6
    return f"{each:.1f} ms in {int(steps.sum())} of {len(steps)} steps" if len(steps) > 1 else ""
