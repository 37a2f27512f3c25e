"""Whether a replay answers, in words, and what its step is."""

from __future__ import annotations

from harness.analysis.process.steps import by_periodicity
from harness.analysis.summary import Summary
from harness.format.format import percent
from harness.replay.answer import MOST_ERROR

_MUCH = 0.1  # of the step


def why_no_answer(s: Summary) -> str | None:
    """Why there is no answer; None: there is one."""
    replay = s.replay
    withheld = next((w.reason for w in s.quality.withheld if w.field == "replay.what_ifs"), None)
    if withheld is not None:
        return withheld
    if replay is None:
        return "no replay is possible: there is no trace, or the traces have no steps with work"
    if replay.error > MOST_ERROR:
        return (
            f"the replay differs from the run by {percent(replay.error)} of the step: no answer "
            f"(at most {percent(MOST_ERROR)} is allowed)"
        )
    return None


def what_is_not_charged(s: Summary) -> str | None:
    """Which waiting has nobody who causes it, in words, where it is much."""
    replay = s.replay
    if replay is None or not replay.steps or replay.unknown_ns < _MUCH * replay.step_ns:
        return None
    return (
        f"{percent(replay.unknown_ns / replay.step_ns)} of the step is spent in collectives whose ranks were not "
        "all read or are not known. If one of these ranks was late, no cause shows it."
    )


def has_marked_steps(s: Summary) -> bool:
    """Whether a replayed step is a step; else it is all that was recorded."""
    return s.steps.duration is not None and not by_periodicity(s.steps.source)
