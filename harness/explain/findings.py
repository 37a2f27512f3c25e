"""Findings in sentences: which rank loses how much of each step, by what, and what to try."""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis.machine import disturbances
from harness.analysis.process.steps import by_periodicity
from harness.analysis.summary import Summary, TimeLost
from harness.analysis.summary.problem_texts import CROWDED
from harness.experiment.advice import Change
from harness.explain.asked import asked_of, measured, more_work
from harness.explain.causes import CAUSES, FEWER_RANKS, CauseWords
from harness.explain.commands import without_faults
from harness.format.format import duration, duration_range, ordinal, percent
from harness.replay.diagnosis import MOST_ERROR

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


MOST_NAMED = 4  # ranks in a sentence
MOST_FURTHER = 2  # findings after the first


def words_of(found: TimeLost) -> CauseWords:
    """The cause's words; for a cause of a later version its name."""
    unknown = found.cause.replace("-", " ")
    return CAUSES.get(found.cause) or CauseWords(unknown, unknown, unknown, "find it in the timeline")


def main_sentences(s: Summary, found: TimeLost) -> str:
    """Who loses how much of a step and by what, and who waits for it. The loss is a mean per step; the share is of the
    mean step, which is not told beside the median step."""
    who, one = _who(s, found), _is_one(found)
    lose = "loses" if one else "lose"
    waits = f" The other {_others(s, found)} for {'it' if one else 'them'}." if _others(s, found) else ""
    lost = f"{duration(found.lost_ns)} {_whole(s, found)} ({_certainty(found)})"
    return f"{who} {lose} {lost}: {_does(found)}, {_when(found)}.{waits}"


def further_sentence(s: Summary, found: TimeLost) -> str:
    """A smaller cause in one line."""
    lose = "loses" if _is_one(found) else "lose"
    interval = "" if found.low_ns is None else f" ({duration_range(found.low_ns, found.high_ns)})"
    return f"Also: {_lower(_who(s, found))} {lose} {duration(found.lost_ns)}{interval}: {_does(found)}, {_when(found)}."


def changes_for(s: Summary, found: TimeLost) -> tuple[Change, ...]:
    """What to try, the best first: what the run itself made slow, then what its exercise can do, then advice."""
    words, changes = words_of(found), list[Change]()
    if (fields := without_faults(s, (found.cause,), found.phase, found.ranks)) is not None:
        changes.append(Change(f"the same run without the injected fault {found.cause}", fields))
    if words.purpose and (advice := asked_of(s).on_purpose(words.purpose, measured(s))) is not None:
        changes += advice.changes
    if words.more_work:
        changes += more_work(s, "twice the micro-batch, so that each operator has more work")
    if words.own_cores and any(doubt.what == CROWDED for doubt in disturbances(s)):
        return (*changes, Change(FEWER_RANKS))
    who = _lower(_who(s, found))
    return (*changes, Change(words.advice.format(phase=_place(found), who=who)))


def period_words(every: int | None) -> str:
    """In which steps; empty without a period.

    >>> period_words(1), period_words(3), period_words(None)
    ('in every step', 'in every 3rd step', '')
    """
    if every is None:
        return ""
    return "in every step" if every == 1 else f"in every {ordinal(every)} step"


def _when(found: TimeLost) -> str:
    """Its period, else what was seen."""
    return period_words(found.every) or found.evidence


def _certainty(found: TimeLost) -> str:
    if found.low_ns is None:
        return "too few steps for an interval"
    return f"95 % interval {duration_range(found.low_ns, found.high_ns)}"


def _whole(s: Summary, found: TimeLost) -> str:
    if has_marked_steps(s):
        return f"per step, {percent(found.share)} of the time"
    whole = s.replay.step_ns if s.replay else round(found.lost_ns / found.share)
    return f"of the {duration(whole)} recorded"


def _does(found: TimeLost) -> str:
    words = words_of(found)
    return (words.one if _is_one(found) else words.many).format(phase=_place(found))


def _place(found: TimeLost) -> str:
    return f" in {found.phase}" if found.phase not in (None, "other") else ""


def _is_one(found: TimeLost) -> bool:
    return len(found.ranks) < 2


def _who(s: Summary, found: TimeLost) -> str:
    """The ranks as a sentence's subject."""
    ranks = found.ranks
    if None in ranks or not ranks:
        return "The process" if len(ranks) < 2 else f"{len(ranks)} processes"
    if len(ranks) == 1:
        return f"Rank {ranks[0]}"
    if len(ranks) == _processes(s):
        return "Both ranks" if len(ranks) == 2 else f"All {len(ranks)} ranks"
    return f"Ranks {_listed(list(map(str, ranks)))}"


def _listed(names: Sequence[str]) -> str:
    """
    >>> _listed(["0", "1", "2"]), _listed(list("abcdefg"))
    ('0, 1 and 2', 'a, b, c, d and 3 more')
    """
    shown, more = names[:MOST_NAMED], len(names) - MOST_NAMED
    last = f"{more} more" if more > 0 else shown[-1]
    return f"{', '.join(shown if more > 0 else shown[:-1])} and {last}"


def _others(s: Summary, found: TimeLost) -> str:
    """Those that wait, with their verb; empty where nobody does."""
    count = _processes(s) - len(found.ranks)
    return "" if count < 1 else "rank waits" if count == 1 else "ranks wait"


def _processes(s: Summary) -> int:
    return s.replay.processes if s.replay else max(len(s.ranks), 1)


def _lower(subject: str) -> str:
    return subject[0].lower() + subject[1:]
