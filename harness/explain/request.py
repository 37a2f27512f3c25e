"""What the run asked for and measured, as several rules and advice read it. Knows no rule."""

from __future__ import annotations

from functools import partial

from harness.analysis.expected import resolved
from harness.analysis.summary import RankTraining, Summary
from harness.experiment.advice import Change, MeasuredRun, Sharding
from harness.experiment.base import Experiment
from harness.format.labels import are_cpus
from harness.theory.memory import state_bytes

_UNKNOWN = Experiment(exercise=-1)
_ROOM = 0.9  # of a device's memory that may be filled


def asked_of(s: Summary) -> Experiment:
    """The experiment as it was resolved; for traces from elsewhere an experiment without options."""
    return resolved(s) or _UNKNOWN


def slowest(s: Summary) -> RankTraining | None:
    """The rank with the longest step by the training's own clock."""
    timed = [t for t in s.training if t.median_step_ns]
    return max(timed, key=lambda t: t.median_step_ns or 0, default=None)


def micro_batch(s: Summary) -> int | None:
    return next((t.micro_batch_size for t in s.training if t.micro_batch_size), None)


def measured(s: Summary) -> MeasuredRun:
    """What an exercise's advice needs of the run's numbers."""
    return MeasuredRun(are_cpus(s.devices), micro_batch(s), partial(_has_room, s))


def _has_room(s: Summary, other: Sharding) -> bool:
    """Whether another sharding fits into memory: the measured peak and the states that it holds more. False: not
    known."""
    asked, first = asked_of(s), s.training[0] if s.training else None
    room = min((m.memory_total_bytes for m in s.monitor if m.memory_total_bytes), default=0)
    peak = max((t.peak_memory_bytes or 0 for t in s.training), default=0)
    if asked.sharding is None or first is None or not (first.parameters and peak and room):
        return False
    parameters, ranks = first.parameters, first.world_size or len(s.training)
    held, holds = (
        state_bytes(parameters, ranks, sharding=one, bf16=asked.in_bf16 and one.startswith("zero")).total
        for one in (other, asked.sharding)
    )
    return peak + held - holds < _ROOM * room


def more_work(s: Summary, text: str) -> tuple[Change, ...]:
    """Twice the micro-batch; nothing where the micro-batch is not known."""
    batch = micro_batch(s)
    return (Change(text, asked_of(s).more_work(batch, global_batch(s))),) if batch is not None else ()


def global_batch(s: Summary) -> int | None:
    """Samples per iteration over all ranks: as asked for, else the product of a pipeline's micro-batches."""
    asked, p = asked_of(s), s.pipeline
    if asked.batch_per_iteration:
        return asked.batch_per_iteration
    batch, size = micro_batch(s), s.world_size
    if p is None or p.stages is None or batch is None or size is None:
        return None
    return p.microbatches * batch * max(size // (p.stages * asked.stage_ranks), 1)
