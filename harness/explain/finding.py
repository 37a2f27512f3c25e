"""What a rule of the answer finds, and what several rules read of a Summary. Knows no rule."""

from __future__ import annotations

from dataclasses import dataclass

from harness.analysis.expected import resolved
from harness.analysis.summary import RankTraining, Summary
from harness.explain.next_command import Fields
from harness.format import known

DDP, DEEPSPEED, MEGATRON = 1, 2, 3  # exercises


@dataclass(frozen=True)
class Change:
    """Something to try. `fields`: of the experiment; None: the change is in the reader's own program."""

    text: str
    fields: Fields | None = None


@dataclass(frozen=True)
class Avoidable:
    """A part of the time that need not be. `share` is of the devices' window; `changes`, the better first."""

    what: str
    share: float
    why: str
    changes: tuple[Change, ...]


def idle_share(s: Summary, cause: str) -> float | None:
    """Of the window, over the devices whose idle time is known; None where it is of none."""
    total = sum(d.window_ns for d in known.that_know(s.devices, "idle_ns"))
    return sum(c.duration_ns for c in s.idle_causes if c.cause == cause) / total if total else None


def exercise(s: Summary) -> int | None:
    return (s.experiment or {}).get("exercise")


def on_cpu(s: Summary) -> bool:
    return any(d.device_kind == "cpu" for d in s.devices)


def slowest(s: Summary) -> RankTraining | None:
    """The rank with the longest step by the training's own clock."""
    timed = [t for t in s.training if t.median_step_ns]
    return max(timed, key=lambda t: t.median_step_ns or 0, default=None)


def micro_batch(s: Summary) -> int | None:
    return next((t.micro_batch_size for t in s.training if t.micro_batch_size), None)


def more_work(s: Summary, text: str) -> tuple[Change, ...]:
    """Twice the micro-batch, where it is known; with Megatron the batch too, or there were fewer micro-batches."""
    batch = micro_batch(s)
    if batch is None:
        return ()
    fields = {"micro_batch_size": 2 * batch}
    if exercise(s) == MEGATRON:
        whole = resolved(s).get("global_batch_size") or global_batch(s)
        fields |= {"global_batch_size": 2 * whole} if whole else {}
    return (Change(text, fields),)


def global_batch(s: Summary) -> int | None:
    p, batch, size = s.pipeline, micro_batch(s), s.world_size
    if p is None or p.stages is None or batch is None or size is None:
        return None
    said = resolved(s)
    parallel = p.stages * (said.get("tp") or 1) * (said.get("cp") or 1)
    return p.microbatches * batch * max(size // parallel, 1)
