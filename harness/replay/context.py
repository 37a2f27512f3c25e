"""A job's graph with its time by process, step and slot: what rules look at to suspect a cause."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.analysis.process.copies import TO_DEVICE
from harness.analysis.process.part import RankPart, unpack_tables
from harness.analysis.summary import RankTraining, Summary, TimeSplit
from harness.replay.graph import DEVICE_PRODUCTS, N_PHASES, SLOTS, TimeCategory
from harness.replay.job import JobGraph
from harness.traces.trace import F64
from harness.traces.vocabulary import is_communication

HOST_TIME = (
    TimeCategory.HOST_WORK,
    TimeCategory.HOST_PRODUCT,
    TimeCategory.HOST_GAP,
    TimeCategory.HOST_STALL,
    TimeCategory.HOST_HELD,
    TimeCategory.HOST_SENDING,
)
WORK_TIME = (
    TimeCategory.HOST_WORK,
    TimeCategory.HOST_PRODUCT,
    TimeCategory.DEVICE_WORK,
    *DEVICE_PRODUCTS,
)


class DeviceTime(NamedTuple):
    """Nanoseconds by process and step, mean over the process's devices; NaN where it is not known."""

    window_ns: F64
    idle_ns: F64
    exposed_communication_ns: F64
    exposed_memory_ns: F64


@dataclass(frozen=True)
class ReplayContext:
    """One job before any rule has looked at it. summary: its numbers, without findings. training: what its ranks
    recorded about themselves. parts: of its processes, in any order."""

    job: JobGraph
    summary: Summary = field(default_factory=Summary)
    training: Mapping[int, RankTraining] = field(default_factory=dict)
    parts: Sequence[RankPart] = ()

    @property
    def device_name(self) -> str | None:
        """Of a device, if it was recorded."""
        return next((device.name for device in self.summary.devices if device.name), None)

    @property
    def batch_bytes(self) -> float:
        """What a step of one rank copies from the host to its device."""
        copied = sum(copy.bytes for copy in self.summary.copies if copy.direction == TO_DEVICE)
        return copied / max(self.summary.steps.counted, 1)

    def recorded(self, process: int) -> RankTraining | None:
        """What a process recorded about itself."""
        rank = self.job.processes[process].rank
        return None if rank is None else self.training.get(rank)

    def kernel_means(self, process: int) -> dict[str, tuple[int, float]]:
        """Of a process's kernels without communication, by name: how many, and their mean time in nanoseconds."""
        own = self.job.processes[process]
        found = (p for p in self.parts if (p.source.path, p.source.pid) == (own.path, own.pid))
        rows = [row for part in found for row in unpack_tables(part.tables)[0]]
        return {
            name: (count, total / count)
            for name, _, _, count, total, *_ in rows
            if not is_communication(name)
        }

    @cached_property
    def shares_of_passes(self) -> F64:
        """Which part of each process's computing kernels its forward and backward passes launched; 1 where no phase of
        them is known."""
        found = np.ones(self.processes)
        for process, own in enumerate(self.job.processes):
            for part in self.parts:
                if (part.source.path, part.source.pid) == (own.path, own.pid):
                    computed = {name: row[2] or 0 for name, row in part.phases.items()}
                    others = sum(computed.get(name, 0) for name in ("optimizer", "data loading"))
                    found[process] = 1 - others / max(sum(computed.values()), 1)
        return found

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

    def stretches(self, categories: tuple[TimeCategory, ...], phase: int) -> NDArray[np.int64]:
        """The number of stretches of these categories in a phase, by process, in all counted steps: on a CPU at least
        the number of its operators."""
        job = self.job
        mine = np.isin(job.amounts.slot, slots(categories, phase)) & (job.step[job.amounts.arc] >= 0)
        return np.bincount(job.process[job.amounts.arc[mine]], minlength=self.processes)

    @cached_property
    def device_time(self) -> DeviceTime:
        """What the processes' devices did in each step."""
        splits = [self._splits(process) for process in range(self.processes)]
        return DeviceTime(*(_of_devices(splits, name) for name in DeviceTime._fields))

    def _splits(self, process: int) -> list[list[TimeSplit]]:
        """Of each device of a process the split of each counted step; without marked steps of the window."""
        own = self.job.processes[process]
        devices = [d for d in self.summary.devices if (d.source, d.pid) == (own.path, own.pid)]
        if not own.marked:
            return [[device] for device in devices]
        return [list(d.steps[: self.step_count]) for d in devices if len(d.steps) >= self.step_count]

    @property
    def on_cpu(self) -> bool:
        """Whether operators stand in for kernels."""
        return self.job.processes[0].on_cpu

    @property
    def step_count(self) -> int:
        """How many steps are counted."""
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


def _of_devices(splits: list[list[list[TimeSplit]]], name: str) -> F64:
    """One part of the devices' time by process and step."""
    steps = max((len(of_one) for devices in splits for of_one in devices), default=0)
    found = np.full((len(splits), steps), np.nan)
    for row, devices in zip(found, splits, strict=True):
        values = [[getattr(split, name) for split in of_one] for of_one in devices if len(of_one) == steps]
        known = [own for own in values if None not in own]
        if known:
            row[:] = np.mean(np.array(known, np.float64), axis=0)
    return found
