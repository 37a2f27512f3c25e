"""What a step takes: a job's time by process, step and slot, what its ranks counted, its devices did, and the code in
which its time was."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.analysis.process.part import RankPart, tables_of
from harness.analysis.process.phases import Phase
from harness.analysis.summary import RankTraining, Summary, TimeSplit
from harness.replay.graph.graph import HOST_TIME, N_PHASES, SLOTS, WORK_TIME, JobGraph, LineTimes, TimeCategory, slots
from harness.replay.measure.hits import FEWEST, LARGE, LEAST, runs_in
from harness.traces.sampled_lines import CodeLine
from harness.traces.trace import F64
from harness.traces.vocabulary import is_communication

_DEVICE_TIME = ("window_ns", "compute_ns", "idle_ns", "exposed_communication_ns", "exposed_memory_ns")
NOT_THERE = 0.1  # of a process's time in some code: another process with at most so much of it does not run it
SEEN_NS = 25_000_000  # in a recording: code with less of it than five looks may be missing on the others by chance
Frame = tuple[str, int, str]  # file, line and function
_Function = tuple[str, str]  # file and function


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
        return self._but_the_optimizers((Phase.EVALUATION.label,))

    @cached_property
    def shares_of_batches(self) -> F64:
        """The same with evaluation, which grows with it, too: of all the process's work."""
        return self._but_the_optimizers(())

    def _but_the_optimizers(self, without: tuple[str, ...]) -> F64:
        found = np.ones(self.processes)
        for process in range(self.processes):
            for part in self._parts_of(process):
                computed = {name: row[2] or 0 for name, row in part.phases.items() if name not in without}
                if computed.get(Phase.FORWARD.label) or computed.get(Phase.BACKWARD.label):
                    found[process] = 1 - computed.get(Phase.OPTIMIZER.label, 0) / sum(computed.values())
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
            chosen = chosen[~np.isin(chosen % N_PHASES, (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER))]
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
        return ns > 0 and alone >= LARGE * ns

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


class OwnCode(NamedTuple):
    """Code that one process runs and most others do not: the lines of one function with what they call. where: the
    line with most of its time. ns: by step and slot, shape (steps, SLOTS)."""

    process: int
    where: Frame
    ns: F64

    @property
    def function(self) -> _Function:
        """Its file and function."""
        return self.where[0], self.where[2]


def frames_of(line: CodeLine) -> tuple[Frame, ...]:
    """A line and those that called it, the innermost first."""
    return ((line.file, line.line, line.function), *line.callers)


def own_code(
    lines: Sequence[Sequence[CodeLine]], times: Sequence[LineTimes], chosen: NDArray[np.int64], steps: int
) -> list[OwnCode]:
    """The code that each of several processes has for itself. lines, times: of each process. chosen: the slots that
    count."""
    found: list[OwnCode] = []
    if len(lines) < 2 or not all(lines):  # of a process without lines it is not known what it runs
        return found
    sums = [_at_frames(own, _kept(t, chosen, steps)) for own, t in zip(lines, times, strict=True)]
    for process, (own, t) in enumerate(zip(lines, times, strict=True)):
        others = [each for other, each in enumerate(sums) if other != process]
        alone = {key for key, ns in sums[process].items() if ns >= SEEN_NS and _is_alone(key, ns, others)}
        first = [next((frame for frame in reversed(frames_of(line)) if _keys(frame) & alone), None) for line in own]
        kept = _kept(t, chosen, steps)
        found += _by_function(process, first, kept, steps)
    return found


def _kept(times: LineTimes, chosen: NDArray[np.int64], steps: int) -> LineTimes:
    kept = np.isin(times.slot, chosen) & (times.step < steps) & (times.line_number >= 0)
    return LineTimes(*(column[kept] for column in times))


def _keys(frame: Frame) -> set[Frame | _Function]:
    return {frame, (frame[0], frame[2])}


def _is_alone(frame: Frame | _Function, ns: float, other_counts: Sequence[Counter[Frame | _Function]]) -> bool:
    return bool(np.median([other[frame] for other in other_counts]) <= NOT_THERE * ns)


def _at_frames(lines: Sequence[CodeLine], times: LineTimes) -> Counter[Frame | _Function]:
    """The time in each line and in each function, with what they call."""
    ns = np.bincount(times.line_number, times.ns, len(lines))
    found: Counter[Frame | _Function] = Counter()
    for line, own in zip(lines, ns.tolist(), strict=True):
        for key in {key for frame in frames_of(line) for key in _keys(frame)}:
            found[key] += own
    return found


def _by_function(process: int, first: Sequence[Frame | None], times: LineTimes, steps: int) -> Iterator[OwnCode]:
    """The code of one process, one for each function. first: of each place the outermost line that is the process's
    own; None: it is in no such code."""
    functions = dict.fromkeys((frame[0], frame[2]) for frame in first if frame is not None)
    for function in functions:
        mine = [i for i, frame in enumerate(first) if frame is not None and (frame[0], frame[2]) == function]
        by_line: Counter[Frame] = Counter()
        by_place = np.bincount(times.line_number, times.ns, len(first)).tolist()
        for i in mine:
            by_line[first[i]] += by_place[i]  # type: ignore[index]
        yield OwnCode(process, by_line.most_common(1)[0][0], _by_slot(times, mine, steps))


def _by_slot(times: LineTimes, places: Sequence[int], steps: int) -> F64:
    """The time at some places by step and slot, shape (steps, SLOTS)."""
    rows = np.isin(times.line_number, places)
    at = times.step[rows] * SLOTS + times.slot[rows]
    found: F64 = np.bincount(at, times.ns[rows], steps * SLOTS).reshape(steps, SLOTS).astype(np.float64)
    return found
