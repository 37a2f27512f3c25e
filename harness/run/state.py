"""The state of a run, as the scheduler and the run itself say it."""

from __future__ import annotations

from typing import NamedTuple

from harness.common.format import ordinal
from harness.run.record import FINAL, State


class RunState(NamedTuple):
    """What the scheduler and the run itself say. why: a sentence, or the reason of the queue. starts_ns: when it is
    expected to begin, of a run that waits; deadline_ns: when its time limit ends it. queue_place: of a run that waits
    for its turn, its place from 1 among the queue_length jobs of its partition that do. None, empty: not known.
    suspended: its processes do not run for a while."""

    state: State = "unknown"
    why: str = ""
    starts_ns: int | None = None
    began_ns: int | None = None
    deadline_ns: int | None = None
    partition: str = ""
    queue_place: int | None = None
    queue_length: int | None = None
    suspended: bool = False

    @property
    def final(self) -> bool:
        return self.state in FINAL

    @property
    def place(self) -> str:
        """Its place, as "7th of 23 in the queue of partition boost"; empty: not known."""
        if self.queue_place is None or self.queue_length is None:
            return ""
        return f"{ordinal(self.queue_place)} of {self.queue_length:,} in the queue of partition {self.partition}"
