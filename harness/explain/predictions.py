"""What-ifs compared with runs: which runs to make, and whether the prediction holds. Launches and prints nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import mean
from typing import NamedTuple

from harness.analysis.summary import RecordingVerdict, Replay, Summary, WhatIf
from harness.common.errors import RequestError, WorkError
from harness.experiment.base import Experiment
from harness.explain.commands import changed_experiment, command_of_what_if, fields_of


class Trial(NamedTuple):
    """A what-if that an option of the run makes: the changed experiment and its command."""

    what_if: WhatIf
    changed: Experiment
    command: str


class Verified(NamedTuple):
    """A prediction beside its runs, without and with the change. Nanoseconds per step, means; predicted: for a run as
    the unchanged one, whose operators take `slower` times as long as the unchanged one's. doubt: which recording is not
    good, and why; None: all are."""

    unchanged_ns: float
    predicted_ns: float
    low_ns: float | None
    high_ns: float | None
    measured_ns: float
    slower: float
    doubt: str | None = None

    @property
    def held(self) -> bool | None:
        """Whether the interval, which may have one end, has the measured step; None: there is no interval, or a
        recording is doubtful."""
        if (self.low_ns is None and self.high_ns is None) or self.doubt is not None:
            return None
        low, high = self.low_ns or 0, math.inf if self.high_ns is None else self.high_ns
        return low <= self.measured_ns <= high


def trials(s: Summary, most: int) -> list[Trial]:
    """The best what-ifs that an option of the run makes, at most so many.
    Raises RequestError: no option of the run makes any of them."""
    found = []
    for what_if in s.replay.what_ifs if s.replay else []:
        fields, command = fields_of(s, what_if), command_of_what_if(s, what_if)
        changed = changed_experiment(s, fields) if fields is not None else None
        if changed is not None and command is not None:
            found.append(Trial(what_if, changed, command))
    if not found:
        raise RequestError("--verify: no option of this run makes one of these changes")
    return found[:most]


def verify(s: Summary, what_if: WhatIf, unchanged: Sequence[Summary], changed: Sequence[Summary]) -> Verified:
    """The prediction scaled to the unchanged runs, beside the changed ones' step for the same work; means of the runs.

    Where the change leaves the model's operators as they are, what they take in both tells how far the machine was
    slower in one of them, and the prediction is scaled by that, too.

    Raises WorkError: a run has no steps that could be replayed.
    """
    replay, now, then = _replay(s), _mean(unchanged), _mean(changed)
    slower = 1.0
    if what_if.same_work and now.work_ns and then.work_ns:
        slower = then.work_ns / what_if.per / now.work_ns
    scale = slower * now.step_ns / replay.step_ns
    return Verified(
        unchanged_ns=now.step_ns,
        predicted_ns=scale * what_if.step_ns,
        low_ns=None if what_if.low_ns is None else scale * what_if.low_ns,
        high_ns=None if what_if.high_ns is None else scale * what_if.high_ns,
        measured_ns=then.step_ns / what_if.per,
        slower=slower,
        doubt=doubt_of([("the run that predicts", s), *_named("without", unchanged), *_named("with", changed)]),
    )


def doubt_of(runs: Sequence[tuple[str, Summary]]) -> str | None:
    """The first of these recordings that is not good, and the worst of its problems; None: all are good."""
    for who, s in runs:
        if s.quality.verdict is not RecordingVerdict.GOOD:
            verdict = s.quality.verdict
            worst = next((f" ({p.what})" for p in s.quality.problems if p.severity is verdict), "")
            return f"{who} has a recording that is {verdict.value}{worst}"
    return None


def _named(change: str, runs: Sequence[Summary]) -> list[tuple[str, Summary]]:
    return [(f"a run {change} the change", s) for s in runs]


def error_of(found: Verified) -> float:
    """By how much the measured step differs from the predicted one, as a share of it."""
    return found.measured_ns / found.predicted_ns - 1


class _Runs(NamedTuple):
    """Means of runs, nanoseconds per step. work_ns: of the model's operators, None if a run does not know it."""

    step_ns: float
    work_ns: float | None


def _mean(runs: Sequence[Summary]) -> _Runs:
    replays = [_replay(s) for s in runs]
    work = [found.model_work_ns for found in replays if found.model_work_ns]
    return _Runs(mean(found.step_ns for found in replays), mean(work) if len(work) == len(runs) else None)


def _replay(s: Summary) -> Replay:
    if s.replay is None:
        raise WorkError("a run left no trace with steps, so its step time is not known")
    return s.replay
