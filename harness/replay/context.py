"""A job's graph with its time by process, step and slot: what rules look at to suspect a cause."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from harness.analysis.summary import RankTraining
from harness.replay.graph import N_PHASES, SLOTS, TimeCategory
from harness.replay.job import JobGraph
from harness.traces.trace import F64

HOST_SORTS = (
    TimeCategory.HOST_WORK,
    TimeCategory.HOST_PRODUCT,
    TimeCategory.HOST_GAP,
    TimeCategory.HOST_STALL,
    TimeCategory.HOST_HELD,
    TimeCategory.HOST_SENDING,
)
WORK_SORTS = (
    TimeCategory.HOST_WORK,
    TimeCategory.HOST_PRODUCT,
    TimeCategory.DEVICE_WORK,
    TimeCategory.DEVICE_PRODUCT,
)


@dataclass(frozen=True)
class ReplayContext:
    """One job before any rule has looked at it. training: what its ranks recorded about themselves."""

    job: JobGraph
    training: Mapping[int, RankTraining] = field(default_factory=dict)

    def recorded(self, process: int) -> RankTraining | None:
        """What a process recorded about itself."""
        rank = self.job.processes[process].rank
        return None if rank is None else self.training.get(rank)

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

    @cached_property
    def step_ns(self) -> float:
        """The mean of the counted steps."""
        return float(self.job.measured.mean())

    def of(self, sorts: tuple[TimeCategory, ...], phase: int | None = None) -> NDArray[np.int64]:
        """Nanoseconds of these sorts, in one phase or in all, by process and step."""
        found: NDArray[np.int64] = self.time_ns[:, :, slots(sorts, phase)].sum(axis=2)
        return found

    @property
    def processes(self) -> int:
        return len(self.job.processes)


def slots(sorts: tuple[TimeCategory, ...], phase: int | None = None) -> list[int]:
    """The slots of some sorts, in one phase or in all."""
    chosen = range(N_PHASES) if phase is None else (phase,)
    return [sort * N_PHASES + p for sort in sorts for p in chosen]
