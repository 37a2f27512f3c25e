"""The causes of lost time by name, and what a rule says that it suspects: a cause at its place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from harness.analysis.summary import CodeLocation
from harness.replay.graph.graph import JobGraph
from harness.replay.measure.hits import is_regular, period
from harness.traces.trace import F64, I64


class Cause(str, Enum):
    """Why time was lost; if a fault causes it, the fault's name (harness/common/faults/fault.py)."""

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
    """A cause at its place. processes: indices of those that do it. phase: None: in no single one.
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
        return None if self.cause is Cause.INTERRUPTED else period(self.steps)

    @property
    def is_regular(self) -> bool:
        """Whether its steps are at a regular distance, or most of them. What comes at any moment is so by chance."""
        return self.cause is not Cause.INTERRUPTED and is_regular(self.steps)


def without_all(job_graph: JobGraph, suspects: Sequence[Suspect]) -> I64 | None:
    """Every arc's length without all that is suspected: an arc may have the time of several, which are then all gone.
    None where no arcs show any of them."""
    factors = [own.factor for own in suspects if own.factor is not None]
    edited = [own.lengths for own in suspects if own.factor is None and own.lengths is not None]
    edited += [job_graph.scaled(np.minimum.reduce(factors))] if factors else []
    return job_graph.least(edited) if edited else None
