"""Whether a replay answers, in words, and what its step is."""

from __future__ import annotations

from harness.analysis.process.steps import by_periodicity
from harness.analysis.summary import Summary
from harness.format.format import percent
from harness.replay.answer import MOST_ERROR


def why_no_answer(s: Summary) -> str | None:
    """Why there is no answer; None: there is one."""
    replay = s.replay
    withheld = next((w.reason for w in s.quality.withheld if w.field == "replay.what_ifs"), None)
    if withheld is not None:
        return withheld
    if replay is None:
        return "nothing can be replayed: the traces have no steps with work, or there is no trace"
    if replay.error > MOST_ERROR:
        return (
            f"the replay differs from the run by {percent(replay.error)} of the step: no answer "
            f"(at most {percent(MOST_ERROR)} is allowed)"
        )
    return None


def has_marked_steps(s: Summary) -> bool:
    """Whether a replayed step is a step; else it is all that was recorded."""
    return s.steps.duration is not None and not by_periodicity(s.steps.source)
