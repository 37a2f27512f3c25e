"""Findings in sentences: which rank loses how much of each step, by what, and what to try."""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis import device_time
from harness.analysis.labels import are_cpus, is_compiled, work_word
from harness.analysis.process.phases import Phase
from harness.analysis.process.steps import by_periodicity
from harness.analysis.summary import KindTime, Summary, TimeLost, WhatIf
from harness.common.display.format import Scale, about, duration, middle, ordinal, percent
from harness.explain.commands import COMPILED, changed_command, lines_sentence
from harness.explain.location import short_location
from harness.explain.messages import excess
from harness.explain.reasons import Reason, reason
from harness.explain.start import largest_first_uses, recorded_words, shows_pytorch, window_words
from harness.replay.attribute.causes import CAUSES
from harness.replay.attribute.diagnosis import MOST_ERROR, NOTICEABLE
from harness.replay.attribute.host_causes import ONE_EACH
from harness.replay.attribute.suspect import Cause
from harness.traces.vocabulary import OFF_CORE

_MUCH = 0.1  # of the step
_OVERLAP = 1.05  # times what is won without all losses, from which their sum is too much
MOST_NAMED = 4  # ranks in a sentence
MOST_FURTHER = 3  # findings after the first
_OFF_CORE = (
    "In the largest part of that time its thread is on no core: it sleeps, or waits for another thread, a file or the "
    "network."
)
SMALL = 0.01  # of a time, from which a part of it is told
_MOST_KINDS = 3
_LARGE = 0.05  # of the work, from which a kind of it is told
_NO_KERNELS = ("communication", "copy", "memset")  # how these kinds begin
_FUSIBLE = ("elementwise", "normalisation")
_MANY_FUSIBLE = 0.25  # of the kernels' time, from which it is worth a try to fuse them
_ANYBODY = ("products-x2", "no-data-stall", "micro-batch-x2", "micro-batches-x2", "one-bucket")
_BESIDE_FINDINGS = ("products-x2", "one-bucket")  # the others avoid losses that are told


def why_no_answer(s: Summary) -> str | None:
    replay = s.replay
    withheld = next((w.reason for w in s.quality.withheld if w.field == "replay.what_ifs"), None)
    if withheld is not None:
        return withheld
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


def label_of(time_lost: TimeLost) -> str:
    entry = CAUSES.get(time_lost.cause)
    return entry.label if entry else time_lost.cause.replace("-", " ")


def reason_of(s: Summary, time_lost: TimeLost) -> Reason:
    return reason(s, time_lost, _who(s, time_lost).lower(), _place(s, time_lost))


def loss_sentence(s: Summary, time_lost: TimeLost) -> str:
    """The loss, once: of what, how much of a mean step with its interval, and on which ranks."""
    own = reason_of(s, time_lost)
    if time_lost.basis == "share":
        return f"The largest avoidable part is {_part(s, time_lost, own)}."
    said = _loss(s, time_lost, own)
    return f"{said[0].upper()}{said[1:]}"


def _loss(s: Summary, time_lost: TimeLost, reason: Reason) -> str:
    entry = CAUSES.get(time_lost.cause)
    doing = entry.doing.format(phase=_place(s, time_lost)) if entry else label_of(time_lost)
    step_ns = s.replay.step_ns if s.replay else round(time_lost.lost_ns / time_lost.share)
    scale, recorded = Scale(step_ns), ""
    lost = f"{scale.of(time_lost.lost_ns)} a step"
    if not has_marked_steps(s):
        lost = f"{scale.text(time_lost.lost_ns)} of the {window_words(s, step_ns)}"
        recorded = recorded_words(s, step_ns)
    certainty = "too few steps for an interval"
    if time_lost.low_ns is not None and time_lost.high_ns is not None:
        alike = scale.text(time_lost.low_ns) == scale.text(time_lost.high_ns)
        certainty = "the same in all steps" if alike else scale.range(time_lost.low_ns, time_lost.high_ns)
    on = "" if _processes(s) < 2 else f", on {_who(s, time_lost).lower()}"
    when = "" if time_lost.standing or not time_lost.every else f", {period_words(time_lost.every)}"
    return f"{doing} costs {lost} ({recorded}{about(time_lost.share)}; {certainty}){on}{when}{reason.more}."


def explanation(s: Summary, time_lost: TimeLost) -> str:
    """What is known of the largest loss beside its size: who waits, when it was seen, what most of it is, and why."""
    own = reason_of(s, time_lost)
    if time_lost.basis == "share":
        largest = largest_first_uses(s) if time_lost.cause == Cause.FIRST_USE else ""
        return " ".join(filter(None, (own.consists, largest, _in_code(s, time_lost), own.why)))
    others, seen = (
        _processes(s) - len(time_lost.ranks),
        "" if time_lost.standing or time_lost.every else time_lost.evidence,
    )
    waits = (
        f"The other {'rank waits' if others == 1 else 'ranks wait'} for {'it' if len(time_lost.ranks) < 2 else 'them'}."
    )
    said = (
        f"It was seen {seen}." if seen.startswith("in ") else f"Seen: {seen}." if seen else "",
        waits if others > 0 else "",
        *(_largest(s, time_lost, own), _in_code(s, time_lost), own.why),
    )
    return " ".join(filter(None, said))


def certain_sentence(s: Summary) -> str:
    """What holds although others disturbed the recording: at best a loss that recurs and is surely noticeable."""
    step_ns = s.replay.step_ns if s.replay else 0
    recurs = [f for f in s.findings if f.low_ns is not None and (f.standing or f.every)]
    sure = next((f for f in recurs if f.low_ns and f.low_ns >= NOTICEABLE * step_ns), None)
    if sure is None:
        return "Only counts and bytes are certain, and no time."
    lose = "loses" if len(sure.ranks) < 2 else "lose"
    return f"It is certain that {_who(s, sure).lower()} {lose} at least {duration(sure.low_ns)} per step on average."


def further_sentence(s: Summary, time_lost: TimeLost) -> str:
    """A smaller cause: its loss, what most of it is, and its first line."""
    own = reason_of(s, time_lost)
    if time_lost.basis == "share":
        return " ".join(filter(None, (f"Also: {_part(s, time_lost, own)}.", own.consists)))
    in_code = lines_sentence(s, time_lost.lines[:1]) if time_lost.lines else ""
    needless = excess(s) if time_lost.cause == Cause.COMMUNICATION else None  # also where another cause is first
    said = f"Also: {_loss(s, time_lost, own)}"
    return " ".join(filter(None, (said, _largest(s, time_lost, own), in_code, needless.what if needless else "")))


def also(s: Summary, others: Sequence[TimeLost]) -> str:
    """The smaller losses in a few words each, the largest first; of a cause of which there are several also its place;
    of a part of the devices' time, how much it is."""
    scale, said = Scale(s.replay.step_ns) if s.replay else None, list[str]()
    for found in others:
        is_one_of_many = found.cause in ONE_EACH or sum(found.cause == each.cause for each in s.findings) > 1
        at = (short_location(s, found) or _place(s, found)) if is_one_of_many else ""
        whole_ns = _whole_ns(s, found)
        whole = f" of {scale.text(whole_ns)}" if scale and found.lost_ns < whole_ns else ""
        size = f"{scale.text(found.lost_ns)}{whole} {scale.unit}" if scale else about(found.share)
        said.append(f"{label_of(found)}{at} {size}")
    left_ns = s.replay.unexplained_ns if s.replay and all(each.basis == "replay" for each in s.findings) else None
    if said and scale and left_ns is not None:
        together_ns = scale.whole_ns - left_ns
        if sum(each.lost_ns for each in s.findings) > _OVERLAP * together_ns:
            said.append(f"all together {scale.of(together_ns)}")
    return " · ".join(said)


def _whole_ns(s: Summary, time_lost: TimeLost) -> float:
    """Of a step, the part of the devices' time that has the name of this loss; 0: none."""
    field = {Cause.COMMUNICATION.value: "exposed_communication_ns", Cause.COPIES.value: "exposed_memory_ns"}.get(
        time_lost.cause
    )
    return (device_time.share(s.devices, field) or 0.0) * s.replay.step_ns if field and s.replay else 0.0


def _largest(s: Summary, time_lost: TimeLost, reason: Reason) -> str:
    """What most of it is: the host's activity, the class of copies."""
    if time_lost.cause == Cause.FIRST_USE and (said := largest_first_uses(s)):
        return said
    if time_lost.what and time_lost.what.startswith(OFF_CORE):
        inside = time_lost.what.removeprefix(OFF_CORE).strip(", ")
        return f"The host is then {inside}. {_OFF_CORE}" if inside else _OFF_CORE
    if time_lost.what:
        whole = time_lost.cause in ONE_EACH
        return f"The host is then in {time_lost.what}." if whole else f"The largest part is in {time_lost.what}."
    return reason.consists or (reason.largest and f"The largest part is {reason.largest}.")


def _part(s: Summary, time_lost: TimeLost, reason: Reason) -> str:
    """A part of the devices' time, where no replay was possible."""
    entry = CAUSES.get(time_lost.cause)
    unit = "period" if by_periodicity(s.steps.source) else "step"
    each = f", about {duration(time_lost.lost_ns)} a {unit}" if s.steps.duration else ""
    on_cpu = entry.part_on_cpu if entry and are_cpus(s.devices) else ""
    part = on_cpu or (entry.part if entry else "") or label_of(time_lost)
    return f"{part}{reason.more}: {percent(time_lost.share)} of the time{each}"


def _in_code(s: Summary, time_lost: TimeLost) -> str:
    """The lines of the program with most of it, or its place, if it was recorded."""
    if time_lost.lines:
        return lines_sentence(s, time_lost.lines)
    where = time_lost.where
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


def _place(s: Summary, time_lost: TimeLost) -> str:
    if time_lost.phase == Phase.BETWEEN.label:
        return " between the steps"
    if time_lost.phase == Phase.OTHER.label and time_lost.cause == Cause.TINY_KERNELS and are_cpus(s.devices):
        return " outside of forward, backward and optimizer"
    return f" in {time_lost.phase}" if time_lost.phase not in (None, Phase.OTHER.label) else ""


def _who(s: Summary, time_lost: TimeLost) -> str:
    """The ranks as a sentence's subject."""
    ranks, every = time_lost.ranks, _processes(s)
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


def mean_of(s: Summary, partly: str = "") -> str:
    """Of how many devices a number is the mean; empty for one."""
    every, devices = len(s.devices), "processes" if are_cpus(s.devices) else "devices"
    return f" (mean of {every} {devices}{partly})" if every > 1 else ""


def work_sentences(s: Summary) -> list[str]:
    """What most of the computing is: kinds of kernels, or operators of a CPU; shares of their sum."""
    on_cpu = are_cpus(s.devices)
    kinds = [(k.duration_ns, f"{k.kind} {k.precision}" if k.precision else k.kind) for k in computing_kinds(s)]
    rows = [(k.duration_ns, f"`{middle(k.name)}`") for k in s.kernels] if on_cpu else kinds
    total = sum(ns for ns, _ in rows) or 1
    largest = sorted((row for row in rows if row[0] >= _LARGE * total), key=lambda row: -row[0])[:_MOST_KINDS]
    shares = ", ".join(f"{percent(ns / total)} {name}" for ns, name in largest)
    return [f"Of the {work_word(s.devices)}' time: {shares}.", *_fusible(s)] if largest else []


def _fusible(s: Summary) -> list[str]:
    """How much a compiler could fuse; by how much that is faster, no recording shows."""
    total = sum(kind.duration_ns for kind in computing_kinds(s)) or 1
    share = sum(kind.duration_ns for kind in s.kinds if kind.kind in _FUSIBLE) / total
    if are_cpus(s.devices) or share < _MANY_FUSIBLE or is_compiled(s.kernels) or not shows_pytorch(s):
        return []
    command = changed_command(s, COMPILED)
    return [
        f"Elementwise kernels and normalisations are {percent(share)} of it: torch.compile fuses such kernels. What it "
        f"gains cannot be known from this: a run with it shows it{f': `{command}`' if command else ''}."
    ]


def computing_kinds(s: Summary) -> list[KindTime]:
    return [kind for kind in s.kinds if not kind.kind.startswith(_NO_KERNELS)]


def to_gain(s: Summary) -> WhatIf | None:
    """The best change that anybody can make, where it gains a noticeable part of a step and no finding tells it."""
    if s.replay is None or why_no_answer(s) is not None:
        return None
    advice = " ".join(CAUSES[found.cause].advice for found in s.findings if found.cause in CAUSES)
    told = {"products-x2": "bf16" in advice, "one-bucket": "bucket" in advice}
    names = [name for name in (_BESIDE_FINDINGS if s.findings else _ANYBODY) if not told.get(name, False)]
    return next((w for w in s.replay.what_ifs if w.name in names and w.gain >= NOTICEABLE and not w.bound), None)


def gain_sentence(s: Summary, best: WhatIf) -> str:
    now_ns = s.replay.step_ns if s.replay else 0
    at_best = f", at best {duration(best.low_ns)}" if best.ranged and best.low_ns is not None else ""
    now = f"{duration(best.step_ns)} instead of {duration(now_ns)} ({percent(best.gain)} less{at_best})"
    return f"To gain: {best.meaning}: {now}."
