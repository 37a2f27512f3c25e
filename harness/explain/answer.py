"""The answer that a report begins with: where a step's time goes, the largest loss, what to try next."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from functools import partial

from harness.analysis import device_time
from harness.analysis.labels import accelerator, step_parts
from harness.analysis.metrics import OF_PROFILER, SLOWED
from harness.analysis.peers import of_peers
from harness.analysis.process.steps import WARMUP_FACTOR, by_periodicity
from harness.analysis.summary import LineShare, Problem, RecordingVerdict, Summary, TimeLost, WhatIf
from harness.analysis.summary import problem_texts as texts
from harness.analysis.summary.problem_texts import (
    DEVICE_MISSING,
    GRAPH_CAPTURE,
    KINDS,
    NO_KERNEL,
    NOT_COMPLETED,
    READ_IN_PART,
    SAMPLED,
    STARTED_AGAIN,
    WORK_MISSING,
)
from harness.common.display.format import Scale, duration, percent
from harness.common.paths import COMMAND
from harness.common.run_folder.job_folder import WORD
from harness.common.run_folder.job_parts import STUCK
from harness.compare.summaries import kinds_of_recording, kinds_without_causes
from harness.explain.commands import asked_words, changed_command, command_of_what_if, is_ours, shown_lines
from harness.explain.findings import (
    MOST_FURTHER,
    also,
    certain_sentence,
    explanation,
    further_sentence,
    gain_sentence,
    loss_sentence,
    mean_of,
    reason_of,
    to_gain,
    work_sentences,
)
from harness.explain.job_time import leads, sentence
from harness.explain.location import locations
from harness.explain.memory import (
    growth_sentence,
    keeper_words,
    leaks,
    no_leak_sentences,
    peak_sentences,
    steady_sentences,
    what_to_change,
)
from harness.explain.no_loss import NOTICEABLE, PARTS, TOLD, nothing
from harness.explain.start import (
    before_sentences,
    host_ranges,
    how_to_record_steps,
    is_only_start,
    says_first_use,
    start_leads,
    start_sentence,
)
from harness.replay.attribute.causes import CAUSES
from harness.replay.attribute.device_causes import slowest
from harness.replay.attribute.diagnosis import by_share
from harness.replay.attribute.suspect import Cause
from harness.replay.attribute.what_ifs import OF_ONE_STEP

MOST_DOUBTS = 2  # problems of a recording in the first sentence
_RECORD_INSTEAD = {  # where the kind of recording carries no cause
    GRAPH_CAPTURE: "record later steps, in which the graph is launched: give the profiler more steps to wait",
    SAMPLED: "record every event of a few steps, without a sample and without a filter",
    DEVICE_MISSING: "record the device too: ProfilerActivity.CUDA in torch.profiler, --trace=cuda in nsys, and no "
    "hardware counters in the same recording",
    WORK_MISSING: "record all work of the device: the whole recording, and every process that uses the device",
}
_SAID_FIRST = (NOT_COMPLETED, texts.TRAIN_ALONE, STARTED_AGAIN, texts.DUPLICATES)
_PARTS_ABSENT = (texts.UNREADABLE, texts.TRACE_MISSING, texts.NO_TRACE, texts.NO_STEP)
_ALL_TIMES = (texts.BUSY, texts.CROWDED, texts.EVENTS_DROPPED, texts.WHOLE_GRAPHS)
MEAN_APART = 0.25  # of the median step, from which the mean is given too
_STEPS_ENDED_BY = {
    "backward": "The training calls no optimizer, so a step ends with a backward pass.",
    "forward": "The program calls no optimizer and asks for no gradients, so a step is a forward pass of its model.",
}


@dataclass(frozen=True)
class Attempt:
    """What to try. command: of the run with the change, if an option makes it. predicted: the step then, in words."""

    text: str
    command: str | None = None
    predicted: str = ""


@dataclass(frozen=True)
class Diagnosis:
    """A report's answer. `sentences`: the loss, or what is said instead of one. `doubts`: whether to believe it.
    `where`: the loss in the user's code. `also`: smaller losses. `further`: why, and numbers beside it. `lines`: those
    of the user's code that a sentence is about."""

    sentences: list[str]
    doubts: list[str] = field(default_factory=list)
    where: list[str] = field(default_factory=list)
    attempt: Attempt | None = None
    also: str = ""
    further: list[str] = field(default_factory=list)
    lines: dict[str, list[LineShare]] = field(default_factory=dict)

    @property
    def command(self) -> str | None:
        return self.attempt.command if self.attempt else None

    @property
    def first(self) -> list[str]:
        """What stands before the command, if there is one."""
        tried = [said for said in (self.attempt.text, self.attempt.predicted) if said] if self.attempt else []
        where = [f"Where: {'; '.join(self.where)}."] if self.where else []
        return [*self.doubts, *self.sentences, *where, *([f"Try: {'; '.join(tried)}."] if tried else [])]

    @property
    def rest(self) -> list[str]:
        return [*([f"Also: {self.also}."] if self.also else []), *self.further]


def verdict(summary: Summary) -> Diagnosis:
    """Where the time goes and what to do about it. Without devices and metrics a sentence says that it is unknown."""
    doubt, where = doubts(summary), _where(summary)
    if (without := _without_causes(summary)) is not None:
        return replace(without, further=[where] if where else [])
    if not where:
        return Diagnosis(["Nothing that was recorded shows where the time of a step went."], doubt)
    if summary.job_time is not None and any(part.part == STUCK for part in summary.job_time.parts):
        look = f"{COMMAND} status {(summary.run or {}).get('job_id') or 'RUN'}"
        return Diagnosis([where], doubt, attempt=Attempt("look where each rank was, and at what to try", look))
    found, best = summary.findings or ([] if summary.replay else by_share(summary)), to_gain(summary)
    gain = [gain_sentence(summary, best)] if best else []
    if not found:
        attempt = None if summary.devices else _look_inside(summary)
        if best and summary.replay:
            predicted = f"{_predicted(summary.replay.step_ns, best)}, {percent(best.gain)} less"
            attempt = Attempt(best.meaning.removesuffix(OF_ONE_STEP), command_of_what_if(summary, best), predicted)
        said = nothing(summary, best, where)
        more = [] if said.startswith(where) else [where]
        further = [*more, *work_sentences(summary), *gain, *_warm_up(summary), *before_sentences(summary)]
        return Diagnosis([said], doubt, attempt=attempt, further=further)
    first, smaller = found[0], found[1:]
    others = smaller[:MOST_FURTHER]
    why, more = explanation(summary, first), [further_sentence(summary, found) for found in others]
    lines = {why: shown_lines(first.lines)} if why else {}
    lines |= {said: shown_lines(found.lines[:1]) for said, found in zip(more, others, strict=True)}
    return Diagnosis(
        [loss_sentence(summary, first)],
        doubt,
        locations(summary, first),
        _first_change(summary, first),
        also(summary, smaller),
        further=[*filter(None, [why]), *more, where, *before_sentences(summary), *gain, *_warm_up(summary)],
        lines=lines,
    )


def _without_causes(s: Summary) -> Diagnosis | None:
    """What is missing in a recording that carries no cause, and what to record instead; None: causes are known."""
    kinds = {NO_KERNEL} if is_only_start(s) else kinds_without_causes(s) & {*_RECORD_INSTEAD}
    if not kinds:
        return None
    said = [*_kind_sentences(s, lambda kind: kind in kinds), start_sentence(s) if is_only_start(s) else ""]
    instead = [text for kind, text in _RECORD_INSTEAD.items() if kind in kinds] or [how_to_record_steps(s)]
    said += host_ranges(s) if DEVICE_MISSING in kinds else []
    return Diagnosis([*filter(None, said)], doubts(s, but=kinds), attempt=Attempt("; ".join(instead)))


def _warm_up(s: Summary) -> list[str]:
    """The first steps that no number is about, because they are so long."""
    count = s.steps.excluded_warmup
    if not count:
        return []
    ranks = max(len(s.ranks), 1)
    unit = "period" if by_periodicity(s.steps.source) else "step"
    steps = f"The first {unit} is" if count <= ranks else f"The first {count / ranks:.0f} {unit}s are"
    takes = ("it takes" if count <= ranks else "each takes") + " on at least one rank" * (ranks > 1)
    longer = f"more than {WARMUP_FACTOR:.0f} times as long as later {unit}s"
    return [f"{steps} not counted (warm-up), because {takes} {longer}."]


def _first_change(s: Summary, time_lost: TimeLost) -> Attempt | None:
    """The first change that a run of ours can make; for traces from elsewhere the first change. Its step is that of the
    what-if with the same command; else the step without the loss, at best. A better recording makes no step shorter."""
    for change in reason_of(s, time_lost).changes:
        if change.fields is None or not is_ours(s):
            return Attempt(change.text, None, "" if change.text.startswith("record ") else _without(s, time_lost))
        if (command := changed_command(s, change.fields)) is not None:
            return Attempt(change.text, command, _step_of(s, command) or _without(s, time_lost))
    return None


def _step_of(s: Summary, command: str) -> str:
    """The step that the what-if with this command predicts; empty without one."""
    if s.replay is None:
        return ""
    same = (w for w in s.replay.what_ifs if not w.bound and command_of_what_if(s, w) == command)
    return next((_predicted(s.replay.step_ns, w) for w in same), "")


def _predicted(step_ns: int, w: WhatIf) -> str:
    """The step that a run with the change will show: of twice the micro-batch it does the work of two."""
    scale = Scale(step_ns * w.per)
    known = w.low_ns is not None and w.high_ns is not None and not w.ranged
    interval = f" ({scale.range((w.low_ns or 0) * w.per, (w.high_ns or 0) * w.per)})" if known else ""
    work = f" for the work of {w.per} steps of today" if w.per > 1 else ""
    return f"{'at most' if w.at_most else 'predicted'} {scale.text(w.step_ns * w.per)} {scale.unit}{interval}{work}"


def _without(s: Summary, time_lost: TimeLost) -> str:
    if s.replay is None or time_lost.basis != "replay":
        return ""
    scale = Scale(s.replay.step_ns)
    faster = next((w for w in s.replay.what_ifs if w.name == "products-x2" and w.ranged), None)
    if time_lost.cause == Cause.PRECISION and faster is not None and faster.low_ns is not None:
        return scale.range(faster.low_ns, faster.step_ns)  # the loss is its careful end
    return f"at best {scale.text(s.replay.step_ns - time_lost.lost_ns)} {scale.unit}"


def doubts(s: Summary, but: Collection[str] = ()) -> list[str]:
    """Sentences about a recording's problems: whether it ended, which files are the same, its kind, what makes its
    numbers doubtful. but: kinds that another sentence has."""
    said = [f"{_capital(p.what)}: {p.evidence}." for p in s.quality.problems if p.what in _SAID_FIRST]
    said += _kind_sentences(s, lambda kind: kind not in but)
    grave = [p for p in s.quality.problems if p.severity is not RecordingVerdict.GOOD and p.what not in KINDS]
    worst = next((p for p in grave if p.severity is s.quality.verdict), None)
    if s.quality.verdict is RecordingVerdict.UNUSABLE and worst is not None:
        return [*said, f"Do not build on these numbers: {worst.what} ({worst.evidence})."]
    if s.quality.verdict is RecordingVerdict.GOOD or not grave:
        return said
    reasons = list(dict.fromkeys(map(_reason, sorted(grave, key=partial(_weight, s)))))
    more = f"; and {len(reasons) - MOST_DOUBTS} more" if len(reasons) > MOST_DOUBTS else ""
    certain = [certain_sentence(s)] if s.quality.disturbances else []
    return [*said, f"These numbers are doubtful: {'; '.join(reasons[:MOST_DOUBTS])}{more}.", *certain]


def _kind_sentences(s: Summary, is_told: Callable[[str], bool]) -> list[str]:
    """What kind of recording it is, and the evidence for it."""
    seen: dict[str, list[str]] = {}
    for problem in kinds_of_recording(s):
        if is_told(problem.what) and not says_first_use(s, problem, 1 + MOST_FURTHER):
            seen.setdefault(problem.what, []).append(problem.evidence)
    return [
        f"{_capital(what)} ({first}{f'; {len(others)} more like it' if others else ''})."
        for what, (first, *others) in seen.items()
    ]


def _reason(problem: Problem) -> str:
    """What a problem is; of a file read in part, which part; of one that cannot be read, which file, and why."""
    if problem.what == texts.UNREADABLE:
        file, _, why = problem.evidence.partition(": ")
        return f"{file.rpartition('/')[2]}: {why}"
    return problem.evidence.partition(": ")[2] if problem.what == READ_IN_PART else problem.what


def _weight(s: Summary, problem: Problem) -> int:
    """How much a problem changes the answer, the most first: absent parts, all times, the told cause, others."""
    if problem.what in _PARTS_ABSENT:
        return 0
    if problem.what in _ALL_TIMES:
        return 1
    cause = CAUSES.get(s.findings[0].cause) if s.findings else None
    of_host = cause is not None and cause.of_host
    exposed = device_time.share(s.devices, "exposed_communication_ns") or 0.0
    if problem.what == texts.RANKS_MISSING:
        return 2 if exposed >= NOTICEABLE else 3
    if problem.what == texts.LAUNCHES_MISSING:
        return 2 if of_host else 4
    return 4 if problem.what == READ_IN_PART else 3


def _capital(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}"


def _where(s: Summary) -> str | None:
    total = sum(d.window_ns for d in s.devices)
    if not total:
        return _where_by_metrics(s)
    shares = [text for part in PARTS if (text := _part(s, *part))]
    step = s.steps.duration
    start = f"The window is {duration(total / len(s.devices))}"
    if step and by_periodicity(s.steps.source):
        start = f"A period takes {duration(step.median_ns)}"
        start += " (median; the steps are not marked, and a period of a kernel may be a layer)"
    elif step:
        start = f"A step takes {_step_time(s, step.median_ns)}"
    kind = accelerator(s.devices)  # a reader expects a GPU
    return f"{start}{f', on {kind}' if kind else ''}: {', '.join(shares)}{_of_how_many(s)}."


def _step_time(s: Summary, median_ns: int) -> str:
    """The mean, of which every loss is a part; the median too, if it differs or a part is between the marks."""
    steps = s.steps
    mean_ns = (s.replay.step_ns if s.replay else None) or steps.mean_ns or median_ns
    device, ahead = (" on the device", "; the host is ahead of it") if steps.on_device else ("", "")
    parts = step_parts(steps)
    apart = f"median {duration(median_ns)}" if parts or abs(mean_ns - median_ns) > MEAN_APART * median_ns else ""
    more = f"{apart}{ahead}".removeprefix("; ")
    return f"{duration(mean_ns)}{device} on average{f' ({more})' if more else ''}{f', {parts}' if parts else ''}"


def _part(s: Summary, field: str, doing: str, noun: str) -> str:
    """One part of the window in words; empty for a very small part."""
    share = device_time.share(s.devices, field)
    if share is None:
        return f"{noun} not known"
    return f"{percent(share)} {doing}" if share >= TOLD else ""


def _of_how_many(s: Summary) -> str:
    """The number of devices whose mean the shares are; empty for one device."""
    every = len(s.devices)
    of_each = {noun: len(device_time.with_known(s.devices, field)) for field, _, noun in PARTS}
    return mean_of(s, "".join(f"; {noun} known of {count}" for noun, count in of_each.items() if 0 < count < every))


def _where_by_metrics(s: Summary) -> str | None:
    rank = slowest(s)
    if rank is None:
        return None
    names = {"data": "loading data", "forward": "forward", "backward": "backward", "optimizer": "optimizer"}
    parts = ((getattr(rank, f"median_{part}_ns"), name) for part, name in names.items())
    times = ", ".join(f"{duration(ns)} {name}" for ns, name in parts if ns)
    return times and f"A step takes {duration(rank.median_step_ns)} (median) by the training's own clock: {times}."


def _look_inside(s: Summary) -> Attempt | None:
    """How to record what is inside of the steps; None: the training says nothing of its steps, or it was tried."""
    asked, torch = asked_words(s), "--profiler torch"
    if slowest(s) is None or torch in asked:
        return None
    observed = f"{COMMAND} {WORD} {torch} {asked.removeprefix(WORD).strip()}" if asked.startswith(f"{WORD} ") else None
    text = f"record some steps ({torch}), which shows what is inside of them"
    return Attempt(text, observed or changed_command(s, {"profiler": "torch"}))


def answer(summary: Summary) -> Diagnosis:
    """The diagnosis; if it is withheld, how to give one's own."""
    summary, aside = of_peers(summary)
    slowed = profiler_sentences(summary)
    if all(w.field != "findings" or w.reason in KINDS for w in summary.quality.withheld):
        found = verdict(summary)
        if summary.job_time is not None and leads(summary):
            found = replace(found, sentences=[sentence(summary.job_time, 1), *found.sentences])
        elif summary.job_time is None and start_leads(summary) and (start := before_sentences(summary)):
            rest = [said for said in found.further if said not in start]
            found = replace(found, sentences=[*start, *(found.sentences if summary.findings else [])], further=rest)
        sentences = [*found.sentences, aside] if aside else found.sentences
        further = [*found.further, *no_leak_sentences(summary), *peak_sentences(summary), *slowed, *_observed(summary)]
        return _with_leaks(summary, replace(found, sentences=sentences, further=further))
    run = str((summary.run or {}).get("job_id") or "RUN")
    said = (
        f"This run is a mystery: something makes it slow. `{COMMAND} report {run} --full` and the page show where "
        f"the time of a step goes. Find the cause and its ranks (`{COMMAND} help faults` lists all causes). Then give "
        "your answer:"
    )
    attempt = Attempt("", f"{COMMAND} lesson mystery answer {run} --cause CAUSE --rank all")
    return Diagnosis([said], doubts(summary), attempt=attempt, further=slowed)


def _with_leaks(s: Summary, found: Diagnosis) -> Diagnosis:
    """Growing memory comes first: it ends the training, and a loss only makes it longer."""
    growing = leaks(s)
    if not growing:
        asked = steady_sentences(s)
        further = [said for said in found.further if said not in asked]
        return replace(found, sentences=[*asked, *found.sentences], further=further)
    text, command = what_to_change(s, growing[0])
    kept = [f"memory: {keeper_words(s, keeper)}" for growth in growing for keeper in growth.keepers]
    return replace(
        found,
        sentences=[*map(growth_sentence, growing), *found.sentences],
        where=[*kept, *found.where],
        attempt=Attempt(text, command),
    )


def _observed(s: Summary) -> list[str]:
    """How the steps of a training that is not ours were found, if not by its optimizer, and what was left out."""
    ways = {own.steps_ended_by: _STEPS_ENDED_BY.get(own.steps_ended_by or "", "") for own in s.training}
    notes = dict.fromkeys(f"{_capital(note)}." for own in s.training for note in own.notes if note)
    return [*filter(None, ways.values()), *notes]


def profiler_sentences(s: Summary) -> list[str]:
    """How much the profiler itself slows the steps, and what is corrected; empty if it is little or not known."""
    cost, is_corrected = s.profiler_cost, any((one.recorded_lost_ns or 0) > one.lost_ns for one in s.findings)
    if cost is None or (cost.ratio <= SLOWED and not is_corrected):
        return _own_work(s)
    done = "Times on the host are therefore too long. No number is corrected."
    if is_corrected:
        done = "What it adds to a step is subtracted from the loss to small operators."
        if any(one.profiler_fraction is not None for one in s.findings):
            done = "The loss to small operators is told without its part of what the profiler adds to a step."
    elif any(one.field == OF_PROFILER for one in s.quality.withheld):
        least = percent(NOTICEABLE)
        done = (
            f"A loss to small operators is not told: without what the profiler adds, it may be below {least} of a step."
        )
    ratio = f"{cost.ratio:.2f} times as long as without it"
    slower = f"With the profiler the median step, without waits for a core, is {ratio}."
    return [f"{slower} {done}", *_own_work(s)]


def _own_work(s: Summary) -> list[str]:
    """The rank beside which the profiler worked longest, where that is noticeable."""
    most = max(s.profiler_overhead, key=lambda one: one.overhead_ns / max(one.window_ns, 1), default=None)
    if most is None or most.overhead_ns < NOTICEABLE * most.window_ns:
        return []
    beside = "" if most.rank is None else f" beside rank {most.rank}"
    own, share = duration(most.overhead_ns), percent(most.overhead_ns / most.window_ns)
    return [f"The profiler recorded {own} of its own work{beside}, {share} of the window."]
