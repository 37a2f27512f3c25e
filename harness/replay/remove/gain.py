"""What a step gains by a change of its arcs, and the device work that it still has, which no change makes shorter."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.replay.graph.graph import DEVICE_COMPUTES, HOST_TIME, TimeCategory, slots
from harness.replay.measure.context import ReplayContext
from harness.replay.measure.hits import FEWEST
from harness.replay.remove.edits import EditedLengths
from harness.traces.trace import F64, I64

RESAMPLES = 400
SEED = 12345
NORMAL = 1.96


@dataclass(frozen=True)
class Gain:
    """The step before and after a change, each of n counted steps, in nanoseconds. best: after the change at its best;
    None: it has no range."""

    before: F64
    after: F64
    best: F64 | None = None

    @property
    def mean_ns(self) -> float:
        return float((self.before - self.after).mean())

    def at_most(self, limit_ns: float) -> Gain:
        """The same gain, with a mean of at most `limit_ns`."""
        if self.mean_ns <= max(limit_ns, 0.0):
            return self
        kept = max(limit_ns, 0.0) / self.mean_ns
        return Gain(self.before, self.before - kept * (self.before - self.after), self.best)

    def interval(self, hits: NDArray[np.bool_] | None = None) -> tuple[float, float] | None:
        """The 95 % interval of the mean gain; None with fewer than three steps. Percentile bootstrap over steps. hits:
        of all steps, those at a regular distance that have the gain; they are drawn apart from the others, since how
        many they are is no chance. Source: Efron, Bootstrap methods, 1979."""
        saved = self.before - self.after
        if len(saved) < FEWEST:
            return None
        apart = np.zeros(len(saved), np.bool_) if hits is None else hits[-len(saved) :]
        means = sum(_means(saved[of]) * of.mean() for of in (apart, ~apart) if of.any())
        low, high = np.quantile(means, (0.025, 0.975))
        return float(low), float(high)

    def margin(self) -> float | None:
        """How far from `after` the mean step of another run may lie, 95 %; None with fewer than three steps. Both this
        run and the other one have steps that differ: the variances of the two means add up."""
        if len(self.before) < FEWEST:
            return None
        return float(NORMAL * np.hypot(_means(self.before).std(), _means(self.after).std()))


def _means(by_step: F64) -> F64:
    draw = np.random.default_rng(SEED).integers(0, len(by_step), (RESAMPLES, len(by_step)))
    means: F64 = by_step[draw].mean(axis=1)
    return means


def gains(context: ReplayContext, edits: list[EditedLengths]) -> list[Gain]:
    """What a step gains by each change, for the micro-batches that it has now."""
    job = context.job
    bests = [edited.best for edited in edits if edited.best is not None]
    lengths = [job.lengths, *(edited.lengths for edited in edits)]
    replayed = job.replay(np.stack([*lengths, *bests])).mean(axis=1)
    at_best = iter(replayed[len(lengths) :])
    usual = np.arange(replayed.shape[1]) >= context.settled
    found = []
    for edited, changed in zip(edits, replayed[1 : len(lengths)], strict=True):
        counted = usual if edited.counted is None else edited.counted
        after = (changed[counted] + edited.extra_ns) / edited.per
        best = None if edited.best is None else next(at_best)[counted].astype(np.float64)
        found.append(Gain(replayed[0][counted].astype(np.float64), after, best))
    return found


def work_left(
    context: ReplayContext, edited: EditedLengths, lengths: I64, *, operators: bool, moves_work: bool = False
) -> float:
    """The device work that a step still has after a change, in nanoseconds: of the device with most, mean over the
    counted steps, for the micro-batches of today. No change makes a step shorter than this. lengths: the change's own,
    or its best. operators: whether it also changes what takes the place of kernels on a CPU. moves_work: it makes work
    itself shorter, by how much is not known where each kernel follows its own launch and no arc has its time alone."""
    usual = np.arange(context.step_count) >= context.settled
    counted = usual if edited.counted is None else edited.counted
    work: F64 = np.nan_to_num(context.device_time["compute_ns"])[:, counted].mean(axis=1)
    if edited.work is not None:
        work = work * edited.work
    elif operators or not context.on_cpu:
        less, of_ns = (ns[:, counted].mean(axis=1) for ns in shortened(context, lengths))
        if moves_work and not of_ns.any():
            return 0.0
        # kernels side by side have a longer sum than their union, and those that run late are of no step
        work = np.minimum(work - less, work * (1 - less / np.maximum(of_ns, 1)))
    return float((max(work.max(), 0.0) + edited.extra_ns) / edited.per)


def shortened(context: ReplayContext, lengths: I64) -> tuple[F64, F64]:
    """By how much the arcs with work are shorter, and what they have of work, by process and step."""
    job, categories = context.job, HOST_TIME if context.on_cpu else (*DEVICE_COMPUTES, TimeCategory.DEVICE_EVALUATION)
    of_work = np.isin(job.amounts.slot, slots(categories)) & (job.step[job.amounts.arc] >= 0)
    arc = np.setdiff1d(job.amounts.arc[of_work], job.repeated)
    less = np.maximum(job.lengths[arc], 0) - np.maximum(lengths[arc], 0)
    shape = context.processes, context.step_count
    at = job.process[arc] * context.step_count + job.step[arc]
    by_place = np.bincount(at, less.astype(np.float64), context.processes * context.step_count).astype(np.float64)
    return by_place.reshape(shape), context.of(categories).astype(np.float64)
