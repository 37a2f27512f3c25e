"""What a rule of the answer finds, and what several rules read of a Summary. Knows no rule."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from harness.analysis.expected import resolved
from harness.analysis.summary import RankTraining, Summary
from harness.experiment.advice import Change, MeasuredRun, Sharding
from harness.experiment.base import Experiment
from harness.format import device_time
from harness.theory.memory import state_bytes

_STRANGERS = Experiment(exercise=-1)
_ROOM = 0.9  # of a device's memory that may be filled


@dataclass(frozen=True)
class Avoidable:
    """A part of the time that need not be. `share` is of the devices' window; `changes`, the better first."""

    what: str
    share: float
    why: str
    changes: tuple[Change, ...]


def asked_of(s: Summary) -> Experiment:
    """The experiment as it was resolved; of a stranger's traces one that says nothing."""
    return resolved(s) or _STRANGERS


def idle_share(s: Summary, cause: str) -> float | None:
    """Of the window, over the devices whose idle time is known; None where it is of none."""
    total = sum(d.window_ns for d in device_time.with_known(s.devices, "idle_ns"))
    return sum(c.duration_ns for c in s.idle_causes if c.cause == cause) / total if total else None


def on_cpu(s: Summary) -> bool:
    return any(d.device_kind == "cpu" for d in s.devices)


def slowest(s: Summary) -> RankTraining | None:
    """The rank with the longest step by the training's own clock."""
    timed = [t for t in s.training if t.median_step_ns]
    return max(timed, key=lambda t: t.median_step_ns or 0, default=None)


def micro_batch(s: Summary) -> int | None:
    return next((t.micro_batch_size for t in s.training if t.micro_batch_size), None)


def measured(s: Summary) -> MeasuredRun:
    """What an exercise's advice needs of the run's numbers."""
    return MeasuredRun(on_cpu(s), micro_batch(s), partial(_fits, s))


def _fits(s: Summary, other: Sharding) -> bool:
    """Whether what another sharding holds beyond this one would fit beside the measured peak. False: not known."""
    asked, first = asked_of(s), s.training[0] if s.training else None
    room = min((m.memory_total_bytes for m in s.monitor if m.memory_total_bytes), default=0)
    peak = max((t.peak_memory_bytes or 0 for t in s.training), default=0)
    if asked.sharding is None or first is None or not (first.parameters and peak and room):
        return False
    parameters, ranks = first.parameters, first.world_size or len(s.training)
    both = (other, asked.sharding)
    held = [state_bytes(parameters, ranks, sharding=one, bf16=asked.in_bf16).total for one in both]
    return peak + held[0] - held[1] < _ROOM * room


def more_work(s: Summary, text: str) -> tuple[Change, ...]:
    """Twice the micro-batch, where it is known."""
    batch = micro_batch(s)
    if batch is None:
        return ()
    return (Change(text, asked_of(s).more_work(batch, global_batch(s))),)


def global_batch(s: Summary) -> int | None:
    """Samples per iteration over all ranks: as asked for, else what a pipeline's micro-batches make."""
    asked, p = asked_of(s), s.pipeline
    if asked.batch_per_iteration:
        return asked.batch_per_iteration
    batch, size = micro_batch(s), s.world_size
    if p is None or p.stages is None or batch is None or size is None:
        return None
    return p.microbatches * batch * max(size // (p.stages * asked.stage_ranks), 1)
