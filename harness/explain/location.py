"""Where in the program a loss is: at the user's lines that were sampled, else in what the trace itself recorded of the
host, which is a Python function, a call, an operator or a range; of communication, which messages it is. Knows only
the Summary."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from harness.analysis.process.phases import INFERRED
from harness.analysis.summary import HostActivity, Summary, TimeLost
from harness.common.display.format import middle
from harness.explain.commands import line_words, share_words, short_file
from harness.explain.messages import LargestMessage, largest, message_words
from harness.replay.attribute.host_causes import OF_IDLE_TIME, ONE_EACH, activity_place, activity_words, short_name
from harness.replay.attribute.suspect import Cause
from harness.traces.vocabulary import OFF_CORE

_MUCH_OF_IT = 0.25  # of a loss, from which a line or a function is on the first screen
_MOST_OF_IT = 0.5  # of a loss, from which no function around is better
_MOST_CHARACTERS = 72  # of a name


class RecordedLocation(NamedTuple):
    """share: of the loss. names: what the host was in, the innermost first."""

    share: float
    names: tuple[str, ...]


def locations(s: Summary, time_lost: TimeLost) -> list[str]:
    """The lines with at least a quarter of a loss, as "31 % at train.py:42 in train"; without any, the recorded place
    that has as much, as "51 % in cudaFree, inside aten::conv2d"; of exposed communication the messages with most of it.
    Empty: not known, or spread over the program."""
    if most := [line for line in time_lost.lines if line.share >= _MUCH_OF_IT]:
        return [f"{share_words(line)} at {line_words(s, line, '')}" for line in most]
    if time_lost.cause == Cause.COMMUNICATION:
        message = largest(s)
        return [_of_message(s, message)] if message and message.share >= _MUCH_OF_IT else []
    recorded = recorded_location(s, time_lost)
    return [f"{100 * recorded.share:.0f} % in {', inside '.join(recorded.names)}"] if recorded else []


def _of_message(s: Summary, message: LargestMessage) -> str:
    return f"{100 * message.share:.0f} % in {message_words(s, message)}"


def short_location(s: Summary, time_lost: TimeLost) -> str:
    """The same in a few words, as " at train.py:42" or " in aten::item"; empty as above."""
    if time_lost.lines and time_lost.lines[0].share >= _MUCH_OF_IT:
        where = time_lost.lines[0].where
        return f" at {short_file(s, where.file)}:{where.line}"
    recorded = recorded_location(s, time_lost)
    return f" in {recorded.names[0]}" if recorded else ""


def recorded_location(s: Summary, time_lost: TimeLost) -> RecordedLocation | None:
    """The innermost function, call, operator or range with half of a loss, or else with a quarter of it. None: none has
    as much, or nothing was recorded of the host."""
    activities = _activities(s, time_lost)
    times: dict[tuple[str, ...], int] = defaultdict(int)
    for activity in activities:
        inner, *_ = names = _names(s, activity, time_lost.phase)
        if inner:
            times[tuple(filter(None, names))] += activity.innermost_ns or 0
        for at in range(1, len(names)):
            times[tuple(names[at:])] += activity.idle_ns
    windows_ns = sum(device.window_ns for device in s.devices if device.rank in time_lost.ranks)
    lost_ns = max(time_lost.share * windows_ns, sum(activity.idle_ns for activity in activities), 1.0)
    for least in (_MOST_OF_IT, _MUCH_OF_IT):
        found = [RecordedLocation(ns / lost_ns, names) for names, ns in times.items() if ns >= least * lost_ns]
        if found:
            return max(found, key=lambda one: (len(one.names), one.share))
    return None


def _activities(s: Summary, time_lost: TimeLost) -> list[HostActivity]:
    """What the host did in a loss. Where each place has a finding of its own, that place's."""
    of_ranks = [activity for activity in s.host_activities if activity.rank in time_lost.ranks]
    if time_lost.cause in OF_IDLE_TIME.values() and time_lost.cause not in ONE_EACH:
        return [activity for activity in of_ranks if OF_IDLE_TIME.get(activity.cause) == time_lost.cause]
    if time_lost.what is None:
        return []
    phases = (time_lost.phase, None) if time_lost.phase else tuple(activity.phase for activity in of_ranks)
    of_phase = [activity for activity in of_ranks if activity.phase in phases]
    named = next((activity for activity in of_phase if activity_words(activity) == time_lost.what), None)
    return [a for a in of_phase if activity_place(a) == activity_place(named)] if named else []


def _names(s: Summary, activity: HostActivity, phase: str | None) -> list[str]:
    """First the function with most of it, empty if that has not half; then what is around it: each name once, none that
    only repeats the phase or the state of the thread."""
    inner, where = activity.innermost, activity.where
    code = f"{where.function} ({short_file(s, where.file)}:{where.line})" if where and where.line else ""
    if where and (activity.what or "").startswith(f"{where.function} ("):
        code = ""
    around = (activity.what, activity.operator, code, activity.range)
    # a sign that begins a command in a sentence is none here
    plain = [short_name(name).replace("`", "'") for name in around if name and not name.endswith(INFERRED)]
    kept = [middle(name, _MOST_CHARACTERS) for name in plain if name not in (OFF_CORE, phase)]
    is_inside = inner is not None and not any(name.startswith(inner.function) for name in kept)
    first = f"{inner.function} ({inner.file})".removesuffix(" ()") if inner and is_inside else ""
    return [middle(first.replace("`", "'"), _MOST_CHARACTERS), *dict.fromkeys(kept)]
