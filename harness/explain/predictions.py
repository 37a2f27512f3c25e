"""What-ifs compared with runs: which runs to make, and whether the prediction holds. Launches and prints nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from harness.analysis.summary import RecordingVerdict, Replay, Summary, WhatIf
from harness.common.errors import RequestError, WorkError
from harness.compare.arms import Arm
from harness.compare.comparison import Comparison, compare_arms, samples, without_verdict
from harness.compare.verdict import ChangeVerdict
from harness.experiment.base import Experiment
from harness.explain.commands import changed_experiment, command_of_what_if, fields_of


class Trial(NamedTuple):
    """A what-if that an option of the run makes: the changed experiment and its command."""

    what_if: WhatIf
    changed: Experiment
    command: str


class VerifiedPrediction(NamedTuple):
    """A prediction beside its runs, without and with the change. unchanged_ns: mean step without it. step: the measured
    step (b) against the predicted one (a) of a run as the unchanged one, whose operators take `slower` times as long as
    the unchanged one's. doubt: which recording is not good, and why; None: all are."""

    unchanged_ns: float
    slower: float
    step: Comparison
    doubt: str | None = None

    @property
    def held(self) -> bool | None:
        """Whether the interval, which may have one end, has the measured step; None: there is no interval, or a
        recording is doubtful."""
        return None if self.step.verdict is ChangeVerdict.UNKNOWN else self.step.verdict is ChangeVerdict.SAME

    @property
    def error(self) -> float:
        """By how much the measured step differs from the predicted one, as a share of it."""
        return (self.step.ratio or 0.0) - 1


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


def verify(s: Summary, what_if: WhatIf, unchanged: Summary, changed: Summary) -> VerifiedPrediction:
    """The prediction scaled to the unchanged run, beside the changed one's step for the same work.

    Where the change leaves the model's operators as they are, what they take in both tells how far the machine was
    slower in one of them, and the prediction is scaled by that, too.

    Raises WorkError: a run has no steps that could be replayed.
    """
    replay, now, then = map(_replay, (s, unchanged, changed))
    slower = 1.0
    if what_if.same_work and now.model_work_ns and then.model_work_ns:
        slower = then.model_work_ns / what_if.per / now.model_work_ns
    scale = slower * now.step_ns / replay.step_ns
    low, high = (None if end is None else scale * end for end in (what_if.low_ns, what_if.high_ns))
    predicted = Arm("the prediction", samples([scale * what_if.step_ns]), predicted=(low, high))
    step = compare_arms("step_ns", predicted, Arm("the run with the change", samples([then.step_ns / what_if.per])))
    named = (
        ("the run that predicts", s),
        ("the run without the change", unchanged),
        ("the run with the change", changed),
    )
    doubt = doubt_of(named)
    return VerifiedPrediction(
        unchanged_ns=now.step_ns,
        slower=slower,
        step=without_verdict(step, ChangeVerdict.UNKNOWN, doubt) if doubt else step,
        doubt=doubt,
    )


def doubt_of(named_runs: Sequence[tuple[str, Summary]]) -> str | None:
    """The first of these recordings that is not good, and the worst of its problems; None: all are good."""
    for who, s in named_runs:
        if s.quality.verdict is not RecordingVerdict.GOOD:
            verdict = s.quality.verdict
            worst = next((f" ({p.what})" for p in s.quality.problems if p.severity is verdict), "")
            return f"{who} has a recording that is {verdict.value}{worst}"
    return None


def _replay(s: Summary) -> Replay:
    if s.replay is None:
        raise WorkError("a run left no trace with steps, so its step time is not known")
    return s.replay
