"""What-ifs held against runs: which runs to make, and whether the prediction held. Launches and prints nothing."""

from __future__ import annotations

from typing import NamedTuple

from harness.analysis.summary import Replay, Summary, WhatIf
from harness.common.errors import RequestError, WorkError
from harness.experiment.base import Experiment
from harness.explain.next_command import changed_experiment
from harness.explain.what_if_commands import command_of_what_if, fields_of


class Trial(NamedTuple):
    """A what-if that an option of the run makes: the changed experiment and its command."""

    what_if: WhatIf
    changed: Experiment
    command: str


class Verified(NamedTuple):
    """A prediction beside its two runs. Nanoseconds per step, means; predicted: for a run as the unchanged one, whose
    operators take `slower` times as long as the unchanged one's."""

    unchanged_ns: float
    predicted_ns: float
    low_ns: float | None
    high_ns: float | None
    measured_ns: float
    slower: float

    @property
    def held(self) -> bool | None:
        """Whether the interval has the measured step; None: there is no interval."""
        if self.low_ns is None or self.high_ns is None:
            return None
        return self.low_ns <= self.measured_ns <= self.high_ns


def trials(s: Summary, most: int) -> list[Trial]:
    """The best what-ifs that an option of the run makes, at most so many.

    Raises:
        RequestError: no option of the run makes any of them.
    """
    found = [trial for what_if in (s.replay.what_ifs if s.replay else []) if (trial := _trial(s, what_if))]
    if not found:
        raise RequestError(
            "--verify: no option of this run makes one of these changes, so there is no run to make"
        )
    return found[:most]


def _trial(s: Summary, what_if: WhatIf) -> Trial | None:
    fields, command = fields_of(s, what_if), command_of_what_if(s, what_if)
    changed = changed_experiment(s, fields) if fields is not None else None
    return Trial(what_if, changed, command) if changed is not None and command is not None else None


def verify(s: Summary, what_if: WhatIf, unchanged: Summary, changed: Summary) -> Verified:
    """The prediction scaled to the unchanged run, beside the changed one's step for the same work.

    Where the change leaves the model's operators as they are, what they take in both runs tells how far the machine was
    slower in one of them, and the prediction is scaled by that, too.

    Raises:
        WorkError: a run has no steps that could be replayed.
    """
    replay, now, then = _replay(s), _replay(unchanged), _replay(changed)
    slower = _slower(what_if, now, then)
    scale = slower * now.step_ns / replay.step_ns
    return Verified(
        unchanged_ns=now.step_ns,
        predicted_ns=scale * what_if.step_ns,
        low_ns=None if what_if.low_ns is None else scale * what_if.low_ns,
        high_ns=None if what_if.high_ns is None else scale * what_if.high_ns,
        measured_ns=then.step_ns / what_if.per,
        slower=slower,
    )


def _slower(what_if: WhatIf, unchanged: Replay, changed: Replay) -> float:
    """How much longer the same operators took in the changed run; 1 where they are not the same."""
    if not what_if.same_work or not unchanged.model_work_ns or not changed.model_work_ns:
        return 1.0
    return changed.model_work_ns / what_if.per / unchanged.model_work_ns


def _replay(s: Summary) -> Replay:
    if s.replay is None:
        raise WorkError("a run left no trace with steps, so its step is not known")
    return s.replay
