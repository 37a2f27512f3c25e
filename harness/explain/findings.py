"""Findings in sentences: which rank loses how much of each step, by what, and what to try."""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis.labels import are_cpus, cause_word, work_word
from harness.analysis.process.steps import by_periodicity
from harness.analysis.summary import KindTime, Summary, TimeLost
from harness.common.format import duration, duration_range, middle, ordinal, percent
from harness.explain.commands import command_of_what_if, line_words, lines_sentence
from harness.explain.messages import excess
from harness.explain.reasons import Reason, reason
from harness.explain.start import largest_first_uses, recorded_words, shows_pytorch, window_words, without_pytorch
from harness.replay.causes import CAUSES
from harness.replay.diagnosis import MOST_ERROR, NOTICEABLE
from harness.traces.vocabulary import OFF_CORE

_MUCH = 0.1  # of the step


def why_no_answer(s: Summary) -> str | None:
    replay = s.replay
    withheld = next((w.reason for w in s.quality.withheld if w.field == "replay.what_ifs"), None)
    if withheld is not None:
        return withheld
    if s.slowdown is not None:
        return "a timeline of operations has no events to change: `report` gives its slowdown by stragglers"
    if replay is None:
        return "no replay is possible: there is no trace, or the traces have no steps with work"
    if replay.error > MOST_ERROR:
        allowed = f"(at most {percent(MOST_ERROR)} is allowed)"
        return f"the replay differs from the run by {percent(replay.error)} of the step: no answer {allowed}"
    return None


def what_is_not_charged(s: Summary) -> str | None:
    """Which waiting has nobody who causes it, in words, where it is much."""
    replay = s.replay
    if replay is None or not replay.steps or replay.unknown_ns < _MUCH * replay.step_ns:
        return None
    share = percent(replay.unknown_ns / replay.step_ns)
    not_known = f"{share} of the step is spent in collectives whose ranks were not all read or are not known."
    return f"{not_known} If one of these ranks was late, no cause shows it."


def has_marked_steps(s: Summary) -> bool:
    """Whether a replayed step is a step; else it is all that was recorded."""
    return s.steps.duration is not None and not by_periodicity(s.steps.source)


MOST_NAMED = 4  # ranks in a sentence
MOST_FURTHER = 2  # findings after the first
_OF_ONE_ACTIVITY = ("host-stall", "pageable")
_OFF_CORE = (
    "In the largest part of that time its thread is on no core: it sleeps, or waits for another thread, a file or the "
    "network."
)


def label_of(found: TimeLost) -> str:
    entry = CAUSES.get(found.cause)
    return entry.label if entry else found.cause.replace("-", " ")


def reason_of(s: Summary, found: TimeLost) -> Reason:
    """Why it costs time, and what to try."""
    own = reason(s, found, _lower(_who(s, found)), _place(s, found))
    return own if shows_pytorch(s) else own._replace(changes=without_pytorch(found.cause, own.changes))


def main_sentences(s: Summary, found: TimeLost) -> str:
    """Who loses how much of a step and by what, and who waits for it. The loss is a mean per step; the share is of the
    mean step, which is not told beside the median step."""
    own = reason_of(s, found)
    if found.basis == "share":
        said = f"The largest avoidable part is {_part(s, found, own)}."
        largest = largest_first_uses(s) if found.cause == "first-use" else ""
        return " ".join(filter(None, (said, own.consists, largest, _in_code(s, found), own.why)))
    one = _is_one(found)
    others = _processes(s) - len(found.ranks)
    waits = f" The other {'rank waits' if others == 1 else 'ranks wait'} for {'it' if one else 'them'}."
    waits = waits if others > 0 else ""
    whole = f"per step, {percent(found.share)} of the time"
    recorded = ""
    if not has_marked_steps(s):
        window_ns = s.replay.step_ns if s.replay else round(found.lost_ns / found.share)
        whole, recorded = f"of the {window_words(s, window_ns)}", recorded_words(s, window_ns)
    if found.low_ns is None:
        certainty = "too few steps for an interval"
    elif duration(found.low_ns) == duration(found.high_ns):
        certainty = "the same in all steps"
    else:
        certainty = f"95 % interval {duration_range(found.low_ns, found.high_ns)}"
    lost = f"{duration(found.lost_ns)} {whole} ({recorded}{certainty})"
    said = f"{_who(s, found)} {'loses' if one else 'lose'} {lost}: {_does(s, found, own)}.{waits}"
    return " ".join(filter(None, (said, _largest(s, found, own), _in_code(s, found), own.why)))


def certain_sentence(s: Summary) -> str:
    """What holds although others disturbed the recording: a loss that recurs and whose interval begins above what is
    told at all; else that no time does."""
    step_ns = s.replay.step_ns if s.replay else 0
    recurs = [f for f in s.findings if f.low_ns is not None and (f.standing or f.every)]
    sure = next((f for f in recurs if f.low_ns and f.low_ns >= NOTICEABLE * step_ns), None)
    alone = next((found for found in s.findings if found.alone and found.lines), None)
    if sure is None and alone is not None:
        runs = "runs" if _is_one(alone) else "run"
        return f"It is certain that only {_lower(_who(s, alone))} {runs} the code at {line_words(s, alone.lines[0])}."
    if sure is None:
        return "Only counts and bytes are certain, and no time."
    lose = "loses" if _is_one(sure) else "lose"
    return f"It is certain that {_lower(_who(s, sure))} {lose} at least {duration(sure.low_ns)} per step on average."


def further_sentence(s: Summary, found: TimeLost) -> str:
    """A smaller cause in one line."""
    own = reason_of(s, found)
    if found.basis == "share":
        return " ".join(filter(None, (f"Also: {_part(s, found, own)}.", own.consists)))
    lose = "loses" if _is_one(found) else "lose"
    interval = "" if found.low_ns is None else f" ({duration_range(found.low_ns, found.high_ns)})"
    lost = f"{duration(found.lost_ns)}{interval}"
    said = f"Also: {_lower(_who(s, found))} {lose} {lost}: {_does(s, found, own)}."
    in_code = lines_sentence(s, found.lines[:1]) if found.lines else ""
    needless = excess(s) if found.cause == "communication" else None  # also where another cause is first
    return " ".join(filter(None, (said, _largest(s, found, own), in_code, needless.what if needless else "")))


def _largest(s: Summary, found: TimeLost, own: Reason) -> str:
    """What most of it is: the host's activity, the class of copies."""
    if found.cause == "first-use" and (said := largest_first_uses(s)):
        return said
    if found.what and found.what.startswith(OFF_CORE):
        inside = found.what.removeprefix(OFF_CORE).strip(", ")
        return f"The host is then {inside}. {_OFF_CORE}" if inside else _OFF_CORE
    if found.what:
        whole = found.cause in _OF_ONE_ACTIVITY
        return f"The host is then in {found.what}." if whole else f"The largest part is in {found.what}."
    return own.consists or (own.largest and f"The largest part is {own.largest}.")


def _part(s: Summary, found: TimeLost, own: Reason) -> str:
    """A part of the devices' time, where no replay was possible."""
    entry = CAUSES.get(found.cause)
    unit = "period" if by_periodicity(s.steps.source) else "step"
    each = f", about {duration(found.lost_ns)} a {unit}" if s.steps.duration else ""
    on_cpu = entry.part_on_cpu if entry and are_cpus(s.devices) else ""
    part = on_cpu or (entry.part if entry else "") or label_of(found)
    return f"{part}{own.more}: {percent(found.share)} of the time{each}"


def _in_code(s: Summary, found: TimeLost) -> str:
    """The lines of the program with most of it, or its place, if it was recorded."""
    if found.lines:
        return lines_sentence(s, found.lines)
    where = found.where
    if where is None:
        return ""
    place = f"{where.file}, line {where.line}" if where.line else where.file
    function = f" (function {where.function})" if where.function != "<module>" else ""
    return f"The place in the code is {place}{function}."


def period_words(every: int | None) -> str:
    """In which steps; empty without a period.

    >>> period_words(1), period_words(3), period_words(None)
    ('in every step', 'in every 3rd step', '')
    """
    if every is None:
        return ""
    return "in every step" if every == 1 else f"in every {ordinal(every)} step"


def _when(found: TimeLost) -> str:
    """Its period, else what was seen; nothing of a steady loss, which is in every step."""
    if found.standing:
        return ""
    if found.every:
        return f", {period_words(found.every)}"
    return f" ({found.evidence})" if found.evidence else ""


def _does(s: Summary, found: TimeLost, own: Reason) -> str:
    """What the ranks do, and in which steps."""
    entry = CAUSES.get(found.cause)
    if entry is None:
        return label_of(found) + _when(found)
    said = (entry.one if _is_one(found) else entry.many).format(phase=_place(s, found))
    return f"{said}{own.more}{_when(found)}"


def _place(s: Summary, found: TimeLost) -> str:
    if found.phase == "between steps":
        return " between the steps"
    if found.phase == "other" and found.cause == "tiny-kernels" and are_cpus(s.devices):
        return " outside of forward, backward and optimizer"
    return f" in {found.phase}" if found.phase not in (None, "other") else ""


def _is_one(found: TimeLost) -> bool:
    return len(found.ranks) < 2


def _who(s: Summary, found: TimeLost) -> str:
    """The ranks as a sentence's subject."""
    ranks, every = found.ranks, _processes(s)
    if len(ranks) < 2:
        known = [f"Rank {rank}" for rank in ranks if rank is not None]
        return known[0] if known else "The process" if every < 2 else "One process"
    noun = "processes" if None in ranks else "ranks"
    if len(ranks) >= every:
        return f"Both {noun}" if len(ranks) == 2 else f"All {len(ranks)} {noun}"
    return f"{len(ranks)} of {every} processes" if None in ranks else f"Ranks {_listed(list(map(str, ranks)))}"


def _listed(names: Sequence[str]) -> str:
    """
    >>> _listed(["0", "1", "2"]), _listed(list("abcdefg"))
    ('0, 1 and 2', 'a, b, c, d and 3 more')
    """
    shown, more = names[:MOST_NAMED], len(names) - MOST_NAMED
    last = f"{more} more" if more > 0 else shown[-1]
    return f"{', '.join(shown if more > 0 else shown[:-1])} and {last}"


def _processes(s: Summary) -> int:
    return s.replay.processes if s.replay else max(len(s.ranks), 1)


def _lower(subject: str) -> str:
    return subject[0].lower() + subject[1:]


SMALL = 0.01  # of a time, from which a part of it is told
KNOWN_LEAST = 0.5  # of the idle time, from which its causes are named


def unexplained(s: Summary) -> list[str]:
    """What the part of a step consists of that no finding explains; nothing where it is not known."""
    if s.replay is None or s.replay.unexplained_ns is None or s.replay.remainder is None:
        return []
    rest, left = s.replay.unexplained_ns, s.replay.remainder
    times = (
        (left.work_ns, work_word(s.devices)),
        (left.communication_ns, "exposed communication"),
        (left.copies_ns, "exposed copies"),
        (left.known_idle_ns, "idle with a known cause"),
        (left.unknown_idle_ns, "idle without a known cause"),
        (left.outside_ns, "outside of the devices' windows"),
    )
    parts = ", ".join(f"{duration(ns)} {what}" for ns, what in times if ns > SMALL * rest)
    whole = f"mean step, {duration(s.replay.step_ns)}" if has_marked_steps(s) else window_words(s, s.replay.step_ns)
    return [f"The other {duration(rest)} of the {whole}: {parts}{mean_of(s)}."] if parts else []


def mean_of(s: Summary, partly: str = "") -> str:
    """Of how many devices a number is the mean; empty for one."""
    every, devices = len(s.devices), "processes" if are_cpus(s.devices) else "devices"
    return f" (mean of {every} {devices}{partly})" if every > 1 else ""


_MOST_KINDS = 3
_LARGE = 0.05  # of the work, from which a kind of it is told
_NO_KERNELS = ("communication", "copy", "memset")  # how these kinds begin


def work_sentences(s: Summary) -> list[str]:
    """What most of the computing is: kinds of kernels, or operators of a CPU; shares of their sum."""
    on_cpu = are_cpus(s.devices)
    kinds = [(k.duration_ns, f"{k.kind} {k.precision}" if k.precision else k.kind) for k in computing_kinds(s)]
    rows = [(k.duration_ns, f"`{middle(k.name)}`") for k in s.kernels] if on_cpu else kinds
    total = sum(ns for ns, _ in rows) or 1
    largest = sorted((row for row in rows if row[0] >= _LARGE * total), key=lambda row: -row[0])[:_MOST_KINDS]
    shares = ", ".join(f"{percent(ns / total)} {name}" for ns, name in largest)
    return [f"Of the {work_word(s.devices)}' time: {shares}.", *_fusible(s)] if largest else []


_FUSIBLE = ("elementwise", "normalisation")
_MANY_FUSIBLE = 0.25  # of the kernels' time, from which it is worth a try to fuse them


def _fusible(s: Summary) -> list[str]:
    """How much a compiler could fuse; by how much that is faster, no recording shows."""
    total = sum(kind.duration_ns for kind in computing_kinds(s)) or 1
    share = sum(kind.duration_ns for kind in s.kinds if kind.kind in _FUSIBLE) / total
    is_compiled = any("triton_" in kernel.name for kernel in s.kernels)
    if are_cpus(s.devices) or share < _MANY_FUSIBLE or is_compiled or not shows_pytorch(s):
        return []
    return [
        f"Elementwise kernels and normalisations are {percent(share)} of it: torch.compile fuses such kernels. What it "
        "gains cannot be known from this: a run with it shows it."
    ]


def computing_kinds(s: Summary) -> list[KindTime]:
    """The kinds of work that are no communication, copy or set."""
    return [kind for kind in s.kinds if not kind.kind.startswith(_NO_KERNELS)]


def idle_causes(s: Summary, idle: float) -> str:
    """What is known of the idle time, which is this share of the window, where nothing of it is a finding."""
    known = [one for one in s.idle_causes if one.cause not in ("other", "not recorded")]
    if sum(one.share for one in known) < KNOWN_LEAST:
        return " without a known cause"
    largest = max(known, key=lambda one: one.duration_ns)
    if largest.share * idle < NOTICEABLE:
        return f", of several causes, each below {percent(NOTICEABLE)}"
    name = cause_word(largest.cause, are_cpus(s.devices))
    return f", of which the largest known part is {name}: {percent(largest.share * idle)} of the time"


_ANYBODY = ("products-x2", "no-data-stall", "micro-batch-x2", "micro-batches-x2", "one-bucket")
_BESIDE_FINDINGS = ("products-x2", "one-bucket")  # the others avoid losses that are told


def to_gain(s: Summary) -> tuple[list[str], str | None]:
    """The best change that anybody can make, and its command if it has one, where it gains a noticeable part of a step
    and no finding tells it."""
    if s.replay is None or why_no_answer(s) is not None:
        return [], None
    advice = " ".join(CAUSES[found.cause].advice for found in s.findings if found.cause in CAUSES)
    told = {"products-x2": "bf16" in advice, "one-bucket": "bucket" in advice}
    names = [name for name in (_BESIDE_FINDINGS if s.findings else _ANYBODY) if not told.get(name, False)]
    best = next((w for w in s.replay.what_ifs if w.name in names and w.gain >= NOTICEABLE and not w.bound), None)
    if best is None:
        return [], None
    at_best = f", at best {duration(best.low_ns)}" if best.ranged and best.low_ns is not None else ""
    now = f"{duration(best.step_ns)} instead of {duration(s.replay.step_ns)} ({percent(best.gain)} less{at_best})"
    return [f"To gain: {best.meaning}: {now}."], command_of_what_if(s, best)
