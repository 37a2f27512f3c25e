"""A job's graph with its time by process, step and slot, and what a rule says that it suspects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from harness.analysis.process.part import RankPart, tables_of
from harness.analysis.summary import CodeLocation, RankTraining, Summary, TimeSplit
from harness.replay.graph import BACKWARD, DEVICE_COMPUTES, FORWARD, N_PHASES, OPTIMIZER, SLOTS, TimeCategory
from harness.replay.job import JobGraph
from harness.replay.lines import OwnCode, own_code
from harness.traces.trace import F64, I64
from harness.traces.vocabulary import is_communication

HOST_TIME = (
    TimeCategory.HOST_WORK,
    TimeCategory.HOST_PRODUCT,
    TimeCategory.HOST_GAP,
    TimeCategory.HOST_STALL,
    TimeCategory.HOST_HELD,
    TimeCategory.HOST_SENDING,
)
WORK_TIME = (TimeCategory.HOST_WORK, TimeCategory.HOST_PRODUCT, *DEVICE_COMPUTES)


_DEVICE_TIME = ("window_ns", "compute_ns", "idle_ns", "exposed_communication_ns", "exposed_memory_ns")


@dataclass(frozen=True)
class ReplayContext:
    """One job before any rule has looked at it. summary: its numbers, without findings. training: what its ranks
    recorded about themselves. parts: of its processes, in any order."""

    job: JobGraph
    summary: Summary = field(default_factory=Summary)
    training: Mapping[int, RankTraining] = field(default_factory=dict)
    parts: Sequence[RankPart] = ()

    def recorded(self, process: int) -> RankTraining | None:
        rank = self.job.processes[process].rank
        return None if rank is None else self.training.get(rank)

    def _parts_of(self, process: int) -> list[RankPart]:
        own = self.job.processes[process]
        return [part for part in self.parts if (part.source.path, part.source.pid) == (own.path, own.pid)]

    def kernel_means(self, process: int) -> dict[str, tuple[int, float]]:
        """Of a process's kernels without communication, by name: how many, and their mean time in nanoseconds."""
        kernels = [kernel for part in self._parts_of(process) for kernel in tables_of(part).kernels]
        return {k.name: (k.count, k.total_ns / k.count) for k in kernels if not is_communication(k.name)}

    @cached_property
    def shares_of_passes(self) -> F64:
        """Which part of each process's work grows with the micro-batch: all but the optimizer's; 1 where neither a
        forward nor a backward pass is known."""
        return self._but_the_optimizers(("evaluation",))

    @cached_property
    def shares_of_batches(self) -> F64:
        """The same with evaluation, which grows with it, too: of all the process's work."""
        return self._but_the_optimizers(())

    def _but_the_optimizers(self, without: tuple[str, ...]) -> F64:
        found = np.ones(self.processes)
        for process in range(self.processes):
            for part in self._parts_of(process):
                computed = {name: row[2] or 0 for name, row in part.phases.items() if name not in without}
                if computed.get("forward") or computed.get("backward"):
                    found[process] = 1 - computed.get("optimizer", 0) / sum(computed.values())
        return found

    @cached_property
    def settled(self) -> int:
        """How many first steps not to look at: at the first, ranks are as far apart as they were before the recording.
        None where one process sends nothing to others."""
        return 1 if self.step_count > 3 and (self.processes > 1 or self.job.alone) else 0

    def counted(self, counter: str) -> F64:
        """A counter of each process, per step, mean over steps; 0 where a process did not record it."""
        every = (self.recorded(process) for process in range(self.processes))
        return np.array([getattr(own, counter, None) or 0 for own in every], np.float64)

    @cached_property
    def time_ns(self) -> NDArray[np.int64]:
        """Nanoseconds by process, step and slot, shape (p, s, SLOTS)."""
        job = self.job
        p, s = job.step_begin.shape
        step = job.step[job.amounts.arc]
        again = np.zeros(job.arcs, np.bool_)
        again[job.repeated] = True
        inside = (step >= 0) & ~again[job.amounts.arc]
        of = (job.process[job.amounts.arc] * s + step) * SLOTS + job.amounts.slot
        sums = np.bincount(of[inside], job.amounts.ns[inside].astype(np.float64), p * s * SLOTS)
        return sums.reshape(p, s, SLOTS).astype(np.int64)

    def has(self, categories: tuple[TimeCategory, ...]) -> bool:
        """Whether any arc has time of these categories, also one whose time is that of other arcs."""
        return bool(np.isin(self.job.amounts.slot, slots(categories)).any())

    def stretches(self, categories: tuple[TimeCategory, ...], phase: int) -> NDArray[np.int64]:
        """The number of stretches of these categories in a phase, by process, in all counted steps: on a CPU at least
        the number of its operators."""
        job = self.job
        mine = np.isin(job.amounts.slot, slots(categories, phase)) & (job.step[job.amounts.arc] >= 0)
        return np.bincount(job.process[job.amounts.arc[mine]], minlength=self.processes)

    @cached_property
    def device_time(self) -> dict[str, F64]:
        """What the processes' devices did: nanoseconds by process and step, mean over the process's devices; NaN where
        it is not known. Without marked steps of the window."""
        found = {name: np.full((self.processes, self.step_count), np.nan) for name in _DEVICE_TIME}
        for process, own in enumerate(self.job.processes):
            devices = [d for d in self.summary.devices if (d.source, d.pid) == (own.path, own.pid)]
            splits: list[Sequence[TimeSplit]] = [[device] for device in devices]
            if own.marked:
                splits = [d.steps[: self.step_count] for d in devices if len(d.steps) >= self.step_count]
            for name, rows in found.items():
                values = [[getattr(split, name) for split in of_one] for of_one in splits]
                if known := [of_one for of_one in values if None not in of_one]:
                    rows[process] = np.mean(np.array(known, np.float64), axis=0)
        return found

    @cached_property
    def code_alone(self) -> list[OwnCode]:
        """The code of the user's that one process runs and the others do not, with what it has more of, in each slot,
        than they have of such code, where that is worth a look; none where no lines were sampled. On CPUs only: a host
        with a device may have time for it."""
        processes, kept = self.job.processes, list[OwnCode]()
        if not self.on_cpu:
            return kept
        lines, times = [own.code_lines for own in processes], [own.line_times for own in processes]
        chosen = np.array(slots((*HOST_TIME, *WORK_TIME)))
        if any(call.kind == "send" for call in self.job.calls):  # stages of a pipeline have each their own model
            chosen = chosen[~np.isin(chosen % N_PHASES, (FORWARD, BACKWARD, OPTIMIZER))]
        found = own_code(lines, times, chosen, self.step_count)
        whole = np.zeros((len(processes), SLOTS))
        for own in found:
            whole[own.process] += own.ns.sum(axis=0)
        for own in found:
            usual = np.median(np.delete(whole, own.process, axis=0), axis=0)
            more = own._replace(ns=own.ns * np.maximum(1 - usual / np.maximum(whole[own.process], 1), 0))
            by_step = more.ns.sum(axis=1)
            if by_step.mean() >= LEAST * self.step_ns and np.count_nonzero(runs_in(by_step)) >= FEWEST:
                kept.append(more)
        return kept

    def is_told(self, process: int, of: Sequence[int], ns: float) -> bool:
        """Whether most of what a process loses in some slots per step is in the code that it alone runs."""
        alone = sum(float(own.ns[:, of].sum(axis=1).mean()) for own in self.code_alone if own.process == process)
        return ns > 0 and alone >= _HIT * ns

    @property
    def every_step(self) -> NDArray[np.bool_]:
        """All counted steps, as those that a cause hits."""
        return np.ones(self.step_count, np.bool_)

    @property
    def everyone(self) -> tuple[int, ...]:
        """All processes, as those with a cause."""
        return tuple(range(self.processes))

    @property
    def on_cpu(self) -> bool:
        """Whether operators stand in for kernels."""
        return self.job.processes[0].on_cpu

    @property
    def step_count(self) -> int:
        return int(self.job.step_begin.shape[1])

    @cached_property
    def step_ns(self) -> float:
        """The mean of the counted steps."""
        return float(self.job.measured.mean())

    def of(self, categories: tuple[TimeCategory, ...], phase: int | None = None) -> NDArray[np.int64]:
        """Nanoseconds of these categories, in one phase or in all, by process and step."""
        found: NDArray[np.int64] = self.time_ns[:, :, slots(categories, phase)].sum(axis=2)
        return found

    @property
    def processes(self) -> int:
        return len(self.job.processes)


def slots(categories: tuple[TimeCategory, ...], phase: int | None = None) -> list[int]:
    """The slots of some categories, in one phase or in all."""
    chosen = range(N_PHASES) if phase is None else (phase,)
    return [category * N_PHASES + p for category in categories for p in chosen]


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
    GROWING = "growing-work"
    LONG_SEQUENCES = "long-sequences"
    NOISY_NEIGHBOUR = "noisy-neighbour"
    GARBAGE = "gc"
    UNEVEN_STAGES = "uneven-stages"
    SLOW_LINK = "slow-link"
    SMALL_BUCKETS = "small-buckets"
    PINNED_TOGETHER = "pinned-together"
    TINY_KERNELS = "tiny-kernels"
    ANOMALY_MODE = "anomaly-mode"
    COMMUNICATION = "communication"
    BUBBLE = "bubble"
    COPIES = "copies"
    PRECISION = "fp32"
    LAYOUT = "layout"
    EVALUATION = "evaluation"
    SYNCHRONISATION = "sync"
    BLOCKING_COPY = "pageable"
    ALLOCATION = "allocation"
    FIRST_USE = "first-use"
    BETWEEN_STEPS = "between-steps"
    LATE_RANK = "late-rank"
    SLOW_DEVICE = "slow-device"
    IMBALANCE = "imbalance"


@dataclass(frozen=True, eq=False)
class Suspect:
    """A cause at its place. processes: indices of those that do it. phase: index into PHASES, None: in no single one.
    steps: which of the counted steps it hits. lengths: every arc's length without it; None: no arcs show it. saved_ns:
    what each of the steps saves at most, as the devices' time shows; None: it has no such limit. evidence: numbers in
    words. standing: a steady loss, present in every step, which a change of the experiment improves. counted: its
    process counted how often it came, so that this is no chance. what, where: the activity. slots: the slots of its
    processes' time in which the loss is; activities: the processes and rows of the host's activities that it is. alone:
    the file and the function whose code only its processes run; own_ns: how long what only they do takes per step.
    profiler_fraction: how much of what a profiler adds to a step is in the loss; None: not known.
    factor: by which `lengths` scale each process's slots, where they do nothing else."""

    cause: Cause
    processes: tuple[int, ...]
    steps: NDArray[np.bool_]
    lengths: I64 | None
    evidence: str = ""
    phase: int | None = None
    standing: bool = False
    counted: bool = False
    saved_ns: F64 | None = None
    what: str | None = None
    where: CodeLocation | None = None
    slots: tuple[int, ...] = ()
    activities: tuple[tuple[int, int], ...] = ()
    alone: tuple[str, str] | None = None
    own_ns: float = 0.0
    profiler_fraction: float | None = None
    factor: F64 | None = None

    @property
    def every(self) -> int | None:
        """k, where it recurs in every k-th step; None: it has no period, or is never the same."""
        return None if self.cause in (Cause.INTERRUPTED, Cause.GROWING) else period(self.steps)

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
    """The steps, or processes, with a large part of the largest one's time."""
    largest = by_step.max(initial=0)
    found: NDArray[np.bool_] = (by_step >= _HIT * largest) & (by_step > 0)
    return found


def runs_in(by_step: F64) -> NDArray[np.bool_]:
    """The steps in which code runs: what takes long in some of them, as without a core, is not more of it."""
    seen = by_step[by_step > 0]
    found: NDArray[np.bool_] = by_step > (_HIT * np.median(seen) if len(seen) else 0)
    return found


def culprits(by_process: NDArray[np.int64] | NDArray[np.float64]) -> tuple[int, ...]:
    """The processes with a large part of the largest one's time."""
    return tuple(np.flatnonzero(hit(by_process)).tolist())


LEAST = 0.02  # of a step: less is not looked at


def without_time(context: ReplayContext, cause: Cause, chosen: list[int], phase: int | None) -> Iterator[Suspect]:
    """The suspicion that the time in these slots is lost, where there is enough of it."""
    time = context.time_ns[:, :, chosen].sum(axis=2)
    culprit = culprits(time.sum(axis=1))
    if culprit and time[list(culprit)].mean() >= LEAST * context.step_ns:
        yield counterfactual(context, cause, phase, culprit, chosen)


def counterfactual(
    context: ReplayContext, cause: Cause, phase: int | None, processes: tuple[int, ...], chosen: list[int]
) -> Suspect:
    """The job without the time in some slots of some processes."""
    factor = context.job.unchanged()
    factor[np.ix_(processes, chosen)] = 0
    by_step = context.time_ns[list(processes)][:, :, chosen].sum(axis=2).max(axis=0)
    steps = hit(by_step)
    every = tuple(sorted(chosen))
    said = in_steps(by_step, steps)
    return Suspect(cause, processes, steps, context.job.scaled(factor), said, phase, slots=every, factor=factor)


def without_all(context: ReplayContext, suspects: Sequence[Suspect]) -> I64 | None:
    """Every arc's length without all that is suspected: an arc may have the time of several, which are then all gone.
    None where no arcs show any of them."""
    factors = [own.factor for own in suspects if own.factor is not None]
    edited = [own.lengths for own in suspects if own.factor is None and own.lengths is not None]
    edited += [context.job.scaled(np.minimum.reduce(factors))] if factors else []
    return context.job.least(edited) if edited else None


def in_steps(by_step: NDArray[np.int64] | NDArray[np.float64], steps: NDArray[np.bool_], more: str = "") -> str:
    """How much it is in which steps, in words; nothing of a single step, or if another has half as much."""
    each = float(by_step[steps].mean())
    alike = len(steps) < 2 or (not steps.all() and by_step[~steps].max() >= each / 2)
    return "" if alike else f"{each / 1e6:.1f} ms{more} in {int(steps.sum())} of {len(steps)} steps"
