"""The advice of an exercise for a run that loses time, and the numbers it needs. Knows no exercise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

Fields = Mapping[str, Any]
"""Field of an experiment -> its new value."""
Sharding = Literal["none", "zero1", "zero2", "zero3", "fsdp"]
"""What data parallelism shards: nothing, what ZeRO's stage of this number does, or what FSDP2 does: as stage 3, with
float32 parameters for a master copy."""


class Change(NamedTuple):
    """Something to try. fields: of the experiment; None: the change is in the reader's own program."""

    text: str
    fields: Fields | None = None


class Advice(NamedTuple):
    """Why time is lost, and what to do, the best first."""

    why: str
    changes: tuple[Change, ...]


class MeasuredRun(NamedTuple):
    """The numbers of a run that an exercise's advice needs.

    fits: whether the state under another sharding would fit beside the measured peak of memory.
    """

    on_cpu: bool
    micro_batch: int | None
    fits: Callable[[Sharding], bool]


FEWER_MESSAGES = Change("fewer, larger messages, or more work to hide them behind (micro-batch, overlap)")
IDLE_FOR_DATA = "The devices are idle while the training process fetches the next batch."
IDLE_LINKS = Advice("Devices wait for messages while they have nothing else to do.", (FEWER_MESSAGES,))
