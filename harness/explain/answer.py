"""The answer that a report begins with: where a step's time goes, the largest loss, what to try next; for a mystery how
its reader gives an answer."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial

from harness.analysis import device_time
from harness.analysis.compare import kinds_of_recording, kinds_without_causes
from harness.analysis.labels import accelerator, are_cpus, step_parts
from harness.analysis.machine import disturbances
from harness.analysis.metrics import OF_PROFILER, SLOWED, judged_step_ns, metrics_by_name
from harness.analysis.process.steps import WARMUP_FACTOR, by_periodicity
from harness.analysis.summary import LineShare, Problem, RecordingVerdict, Steps, Summary
from harness.analysis.summary import problem_texts as texts
from harness.analysis.summary.problem_texts import (
    DEVICE_MISSING,
    GRAPH_CAPTURE,
    KINDS,
    NOT_COMPLETED,
    READ_IN_PART,
    SAMPLED,
    WORK_MISSING,
)
from harness.common.faults import FAULTS
from harness.common.format import duration, percent
from harness.common.mystery import Secret
from harness.common.paths import PROGRAM
from harness.experiment.base import Change
from harness.experiment.exercises import Training
from harness.explain.commands import changed_command, is_ours, shown_lines
from harness.explain.findings import (
    MOST_FURTHER,
    certain_sentence,
    further_sentence,
    idle_causes,
    main_sentences,
    mean_of,
    reason_of,
    to_gain,
    unexplained,
    work_sentences,
)
from harness.explain.start import before_sentences, only_start_sentences, says_first_use
from harness.explain.stragglers import further_sentences, straggler_sentences
from harness.replay.causes import CAUSES
from harness.replay.device_causes import slowest
from harness.replay.diagnosis import by_share

_SAME = 0.05  # a reference check allows so much
_ABOUT_TWICE = (1.9, 2.1)


def reference_sentence(s: Summary) -> list[str]:
    """How the run's mean step compares with that of the stored reference that asked for the same; else nothing. The
    ratio is that of `reference check`. The two mean steps are not given: the answer has one step time, the median."""
    reference, own_ns = s.reference, judged_step_ns(metrics_by_name(s))
    if reference is None or not reference.mean_step_ns or not own_ns:
        return []
    ratio = own_ns / reference.mean_step_ns
    same, (times, pace) = abs(ratio - 1) <= _SAME, (ratio, "slow") if ratio > 1 else (1 / ratio, "fast")
    words, close = f"{times:.2f} times as {pace}", ""
    if same:
        words, close = "about as fast", f"; {ratio:.2f} times"
    elif _ABOUT_TWICE[0] <= times <= _ABOUT_TWICE[1]:
        words = f"about twice as {pace} ({times:.2f} times)"
    where = f"{reference.variant} of {reference.name}, site {reference.site}, {reference.device_name}"
    said = [f"This run is {words} as the reference by the mean step ({where}{close})."]
    run = (s.run or {}).get("job_id")
    if run and not same:
        said.append(
            "One run does not show the cause, or whether the next run differs as much. Compare hardware, software, "
            f"counts and step times: `bash {PROGRAM} reference check {run}`"
        )
    return said


NOTICEABLE = 0.03  # a smaller share is not worth a change
MOST_DOUBTS = 2  # problems of a recording in the first sentence


@dataclass(frozen=True)
class Diagnosis:
    """`sentences` to read, `command` to paste (None: no command applies), `further` to read after it. `lines`: those of
    the user's code that a sentence is about, by the sentence."""

    sentences: list[str]
    command: str | None = None
    further: list[str] = field(default_factory=list)
    lines: dict[str, list[LineShare]] = field(default_factory=dict)


def verdict(summary: Summary) -> Diagnosis:
    """Where the time goes and what to do about it. Without devices and metrics a sentence says that it is unknown."""
    if (slow := summary.slowdown) is not None:
        return Diagnosis([*doubts(summary), *straggler_sentences(slow)], further=further_sentences(slow))
    doubt, where = doubts(summary), _where(summary)
    no_causes = kinds_without_causes(summary)
    instead = only_start_sentences(summary) or [text for kind, text in _RECORD_INSTEAD.items() if kind in no_causes]
    if instead:
        return Diagnosis([*doubt, *instead], further=[where] if where else [])
    if where is None:
        return Diagnosis([*doubt, "The recording does not show where the time went."])
    found = summary.findings or ([] if summary.replay else by_share(summary))
    more, its_command = to_gain(summary)
    if not found:
        said = [*doubt, where, *_warm_up(summary), *_nothing(summary, more), *more]
        return Diagnosis(said, its_command, before_sentences(summary))
    first, *others = found
    ending, next_command = _try_next(summary, reason_of(summary, first).changes)
    largest, others = main_sentences(summary, first), others[:MOST_FURTHER]
    further = [further_sentence(summary, found) for found in others]
    lines = {largest: shown_lines(first.lines)}
    lines |= {said: shown_lines(found.lines[:1]) for said, found in zip(further, others, strict=True)}
    said = [*doubt, largest, *ending]
    if first.basis == "share":
        return Diagnosis([*doubt, where, *said[len(doubt) :]], next_command, further, lines)
    further = [where, *further, *before_sentences(summary), *more, *unexplained(summary), *_warm_up(summary)]
    return Diagnosis(said, next_command, further, lines)


def _warm_up(s: Summary) -> list[str]:
    """The first steps that no number is about, because they are so long."""
    count = s.steps.excluded_warmup
    if not count:
        return []
    ranks = max(len(s.ranks), 1)
    unit = "period" if by_periodicity(s.steps.source) else "step"
    steps = f"The first {unit} is" if count <= ranks else f"The first {count / ranks:.0f} {unit}s are"
    takes = "it takes" if count <= ranks else "each takes"
    longer = f"more than {WARMUP_FACTOR:.0f} times as long as later {unit}s"
    return [f"{steps} not counted (warm-up), because {takes} {longer}."]


def _try_next(summary: Summary, changes: tuple[Change, ...]) -> tuple[list[str], str | None]:
    """The sentence that says what to try, if anything, and its command: the first change that a run of ours can make;
    for traces from elsewhere the first change."""
    for change in changes:
        if change.fields is None or not is_ours(summary):
            return [f"Try next: {change.text}."], None
        if (command := changed_command(summary, change.fields)) is not None:
            return [f"Try next: {change.text}:"], command
    return [], None


_RECORD_INSTEAD = {  # where the kind of recording carries no cause
    GRAPH_CAPTURE: "Record later steps, in which the graph is launched: give the profiler more steps to wait.",
    SAMPLED: "Record every event of a few steps, without a sample and without a filter.",
    DEVICE_MISSING: "Record the device too: ProfilerActivity.CUDA in torch.profiler, --trace=cuda in nsys, and no "
    "hardware counters in the same recording.",
    WORK_MISSING: "Record all work of the device: the whole recording, and every process that uses the device.",
}


def doubts(s: Summary) -> list[str]:
    """The first sentences about a recording with problems: whether it ended, what kind of recording it is, where it is
    not simply of running steps, and what makes its numbers doubtful; empty for a good one."""
    said = [f"{_capital(p.what)}: {p.evidence}." for p in s.quality.problems if p.what == NOT_COMPLETED]
    seen: dict[str, list[str]] = {}
    for problem in kinds_of_recording(s):
        if says_first_use(s, problem, 1 + MOST_FURTHER):
            continue
        seen.setdefault(problem.what, []).append(problem.evidence)
    for what, (first, *others) in seen.items():
        said.append(f"{_capital(what)} ({first}{f'; {len(others)} more like it' if others else ''}).")
    grave = [p for p in s.quality.problems if p.severity is not RecordingVerdict.GOOD and p.what not in KINDS]
    worst = next((p for p in grave if p.severity is s.quality.verdict), None)
    if s.quality.verdict is RecordingVerdict.UNUSABLE and worst is not None:
        return [*said, f"Do not build on these numbers: {worst.what} ({worst.evidence})."]
    if s.quality.verdict is RecordingVerdict.GOOD or not grave:
        return said
    reasons = list(dict.fromkeys(map(_reason, sorted(grave, key=partial(_weight, s)))))
    more = f"; and {len(reasons) - MOST_DOUBTS} more" if len(reasons) > MOST_DOUBTS else ""
    certain = [certain_sentence(s)] if disturbances(s) else []
    return [*said, f"These numbers are doubtful: {'; '.join(reasons[:MOST_DOUBTS])}{more}.", *certain]


def _reason(problem: Problem) -> str:
    """What a problem is; of a file that was read in part, which part."""
    return problem.evidence.partition(": ")[2] if problem.what == READ_IN_PART else problem.what


_PARTS_ABSENT = (texts.UNREADABLE, texts.NOT_MEASURED, texts.TRACE_MISSING, texts.NO_TRACE, texts.NO_STEP)
_ALL_TIMES = (texts.BUSY, texts.CROWDED, texts.LAYERS, texts.EVENTS_DROPPED, texts.WHOLE_GRAPHS)


def _weight(s: Summary, problem: Problem) -> int:
    """How much a problem changes the answer, the most first: parts that are absent, what every time depends on, what
    the told cause depends on, and the others."""
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
    shares = [text for part in _PARTS if (text := _part(s, *part))]
    step = s.steps.duration
    start = f"The window is {duration(total / len(s.devices))}"
    if step and by_periodicity(s.steps.source):
        start = f"A period takes {duration(step.median_ns)}"
        start += " (median; the steps are not marked, and a period of a kernel may be a layer)"
    elif step:
        start = f"A step takes {_step_time(s.steps, step.median_ns)}"
    kind = accelerator(s.devices)  # a reader expects a GPU
    return f"{start}{f', on {kind}' if kind else ''}: {', '.join(shares)}{_of_how_many(s)}."


_PARTS = (
    ("compute_ns", "computing", "computation"),
    ("exposed_communication_ns", "exposed communication", "communication"),
    ("exposed_memory_ns", "copying", "copying"),
    ("idle_ns", "idle", "idle time"),
)


def _step_time(steps: Steps, median_ns: int) -> str:
    """The median; where that is not the usual step, or part of the step is between the marks, the mean comes first."""
    mean_ns = steps.mean_ns or median_ns
    device, ahead = (" on the device", "; the host is ahead of it") if steps.on_device else ("", "")
    if (parts := step_parts(steps)) or abs(mean_ns - median_ns) > MEAN_APART * median_ns:
        where = f", {parts}" if parts else ""
        return f"{duration(mean_ns)}{device} on average (median {duration(median_ns)}{ahead}){where}"
    return f"{duration(median_ns)}{device} (median{ahead})"


_TOLD = 0.01  # of the window: a smaller part is left out of the sentence


def _part(s: Summary, field: str, doing: str, noun: str) -> str:
    """One part of the window in words; empty for a very small part."""
    share = device_time.share(s.devices, field)
    if share is None:
        return f"{noun} not known"
    return f"{percent(share)} {doing}" if share >= _TOLD else ""


def _of_how_many(s: Summary) -> str:
    """The number of devices whose mean the shares are; empty for one device."""
    every = len(s.devices)
    of_each = {noun: len(device_time.with_known(s.devices, field)) for field, _, noun in _PARTS}
    return mean_of(s, "".join(f"; {noun} known of {count}" for noun, count in of_each.items() if 0 < count < every))


def _where_by_metrics(s: Summary) -> str | None:
    rank = slowest(s)
    if rank is None:
        return None
    names = {"data": "loading data", "forward": "forward", "backward": "backward", "optimizer": "optimizer"}
    parts = ((getattr(rank, f"median_{part}_ns"), name) for part, name in names.items())
    times = ", ".join(f"{duration(ns)} {name}" for ns, name in parts if ns)
    return f"A step takes {duration(rank.median_step_ns)} (median) by the training's own clock: {times}."


def _nothing(s: Summary, more: list[str]) -> list[str]:
    """That no loss is worth a change, and what the time consists of then."""
    if not are_cpus(s.devices) and s.devices and not any(d.compute_ns for d in s.devices):
        record = "record steps in which the device computes"
        return [f"No kernel ran in this recording, so what a step loses cannot be known from this: {record}."]
    least = percent(NOTICEABLE)
    none = f"No part that could be avoided is above {least} of the time."
    said = [f"No cause of lost time is above {least} of the time." if more else none, *work_sentences(s)]
    idle = device_time.share(s.devices, "idle_ns") or 0.0
    if idle > NOTICEABLE:
        said.append(f"{percent(idle)} of the time is idle{idle_causes(s, idle)}.")
    unknown = [noun for field, _, noun in _PARTS if s.devices and device_time.share(s.devices, field) is None]
    return [" ".join([*said, *([f"Not known: {' and '.join(unknown)}."] if unknown else [])])]


MEAN_APART = 0.25  # of the median step, from which the mean is given too


def answer(summary: Summary) -> Diagnosis:
    """The diagnosis; if it is withheld, how to give one's own."""
    slowed = profiler_sentences(summary)
    if all(w.field != "findings" or w.reason in KINDS for w in summary.quality.withheld):
        found = verdict(summary)
        further = [*slowed, *found.further, *_observed(summary), *reference_sentence(summary)]
        return replace(found, further=further)
    run = str((summary.run or {}).get("job_id") or "RUN")
    if ends := _ending_of(summary):
        what = {"hang": "its ranks make no progress any more", "crash": "one of its ranks dies"}[ends]
        said = (
            f"This run is a mystery: {what}. `{PROGRAM} status {run}` and `{PROGRAM} logs {run}` show where each rank "
            f"was. Find what the rank does (`{PROGRAM} faults {ends}` lists all kinds), which rank it is, and in which "
            "step. Then give your answer:"
        )
        given = "--cause KIND --rank RANK --step STEP"
    else:
        said = (
            "This run is a mystery: something makes it slow. The table below and the page show where the time of a "
            "step goes. Find the cause, its ranks, its steps and its time per step "
            f"(`{PROGRAM} faults` lists all causes). Then give your answer:"
        )
        given = "--cause CAUSE --rank all --ms MS"
    return Diagnosis([*doubts(summary), said], f"bash slurm.sh mystery answer {run} {given}", slowed)


def _ending_of(summary: Summary) -> str:
    """Which fault ends a mystery's training: hang or crash; empty: it is only slow, or its record was changed."""
    asked = summary.experiment
    if not isinstance(asked, Training) or asked.mystery is None:
        return ""
    try:
        names = [text.split(",")[0] for text in Secret.open(asked.mystery.sealed).faults]
    except ValueError:
        return ""
    return next((name for name in names if FAULTS[name].ends), "")


_STEPS_ENDED_BY = {
    "backward": "The training calls no optimizer, so a step ends with a backward pass.",
    "forward": "The program calls no optimizer and asks for no gradients, so a step is a forward pass of its model.",
    "clock": "The program shows no steps (no optimizer, no backward pass, no module), so a step here is a second.",
}


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
