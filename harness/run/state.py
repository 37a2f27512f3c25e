"""The state of a run, as the scheduler and the run itself say it."""

from __future__ import annotations

from typing import NamedTuple

from harness.run.record import FINAL, State


class RunState(NamedTuple):
    """What the scheduler and the run itself say. why: a sentence, or the reason of the queue. starts_ns: when it is
    expected to begin, of a run that waits; deadline_ns: when its time limit ends it. None: not known. suspended: its
    processes do not run for a while."""

    state: State = "unknown"
    why: str = ""
    starts_ns: int | None = None
    began_ns: int | None = None
    deadline_ns: int | None = None
    suspended: bool = False

    @property
    def final(self) -> bool:
        return self.state in FINAL
