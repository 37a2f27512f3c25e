"""What is said where no loss is worth a change: what is lost all the same, and what the time is; of a run without a
recording, what the training's own clock says."""

from __future__ import annotations

from harness.analysis import device_time
from harness.analysis.labels import are_cpus, cause_word
from harness.analysis.summary import IdleCause, Summary, WhatIf
from harness.common.display.format import Scale, duration, middle, percent
from harness.common.display.text import how_many
from harness.common.run_folder.job_parts import STEPS
from harness.explain.commands import line_words, share_words
from harness.explain.job_time import LONG_NS, time_words
from harness.replay.attribute.device_causes import slowest

NOTICEABLE = 0.03  # a smaller share is not worth a change
TOLD = 0.01  # of the window: a smaller part is left out of the sentence
KNOWN_LEAST = 0.5  # of the idle time, from which its causes are named
_MOST_OF_IT = 0.5  # of the operators' time, from which a single one is told
_MUCH_OUTSIDE = 0.1  # of a step, from which what is outside of all phases is told
PARTS = (
    ("compute_ns", "computing", "computation"),
    ("exposed_communication_ns", "exposed communication", "communication"),
    ("exposed_memory_ns", "copying", "copying"),
    ("idle_ns", "idle", "idle time"),
)


def nothing(s: Summary, best: WhatIf | None, where: str) -> str:
    """That no loss is worth a change, what is lost all the same, and the operator that takes most of a CPU's time; of a
    run in which no loss could be seen, `where`."""
    if s.devices and not are_cpus(s.devices) and not any(d.compute_ns for d in s.devices):
        last = [f"Rank {late.rank} is {late.evidence}: the others wait for it." for late in s.stragglers[:1]]
        record = "record steps in which the device computes"
        none = f"No kernel that computes is in this recording, so what a step loses cannot be known from it: {record}."
        return " ".join([*last, none])
    if not s.devices:
        return _of_phases(s) or where
    said = [
        f"{'No cause of lost time' if best else 'No part that could be avoided'} is above {percent(NOTICEABLE)} of the "
        "time."
    ]
    shares = [(device_time.share(s.devices, field) or 0.0, doing) for field, doing, _ in PARTS[1:3]]
    parts = [f"{percent(share)} of the time is {doing}." for share, doing in shares if share >= NOTICEABLE]
    idle = device_time.share(s.devices, "idle_ns") or 0.0
    largest = _largest_idle(s, idle)
    if idle > NOTICEABLE:
        said.append(f"{percent(idle)} of the time is idle{_idle_causes(s, idle)}.")
    if parts or (largest is not None and largest.share * idle >= NOTICEABLE):
        parts.append(f"Without one such part a step would be less than {percent(NOTICEABLE)} shorter.")
    said += parts
    unknown = [noun for field, _, noun in PARTS if s.devices and device_time.share(s.devices, field) is None]
    said += [f"Not known: {' and '.join(unknown)}."] if unknown else []
    return " ".join([*said, *_largest_operator(s)])


def _of_phases(s: Summary) -> str:
    """Of a run without a recording: how much of a step no phase of the training's clock has, and in which lines; where
    that is little, how long each phase takes. Empty: no clock is known."""
    rank = slowest(s)
    step_ns = rank.median_step_ns if rank is not None else None
    if rank is None or not step_ns:
        return ""
    phases = (
        ("loading data", rank.median_data_ns),
        ("forward", rank.median_forward_ns),
        ("backward", rank.median_backward_ns),
        ("optimizer", rank.median_optimizer_ns),
    )
    other_ns, scale = step_ns - sum(ns or 0 for _, ns in phases), Scale(step_ns)
    steps_ns = sum(part.duration_ns for part in s.job_time.parts if part.part == STEPS) if s.job_time else 0
    if steps_ns > max(LONG_NS, 2 * rank.steps_total * step_ns):
        return (
            f"{how_many(rank.steps_total, 'step')} take {time_words(steps_ns)}, but the median step "
            f"{duration(step_ns)}: a few steps, or what is between steps, take most of the time."
        )
    if other_ns < _MUCH_OUTSIDE * step_ns:
        said = ", ".join(f"{name} {scale.text(ns)}" for name, ns in phases if ns and ns >= TOLD * step_ns)
        return f"Nothing stands out: {said} of {scale.text(step_ns)} {scale.unit}."
    rest = scale.parts([*(ns or 0 for _, ns in phases), other_ns])[-1]
    said = (
        f"{rest} of {scale.text(step_ns)} {scale.unit} a step ({percent(other_ns / step_ns)}) are outside of loading "
        "data, forward, backward and optimizer"
    )
    lines = s.job_time.lines_by_rank.get(rank.rank, []) if s.job_time else []
    if lines and lines[0].share >= NOTICEABLE:
        return f"{said}: {', '.join(f'{share_words(line)} of them at {line_words(s, line)}' for line in lines[:2])}."
    return f"{said}. What they are cannot be known without a recording."


def _largest_operator(s: Summary) -> list[str]:
    """Of a CPU: the operator that takes most of the operators' time."""
    total = sum(kernel.duration_ns for kernel in s.kernels)
    most = max(s.kernels, key=lambda kernel: kernel.duration_ns, default=None)
    if most is None or not are_cpus(s.devices) or most.duration_ns < _MOST_OF_IT * total:
        return []
    share = percent(most.duration_ns / total)
    return [f"{share} of the operators' time is `{middle(most.name)}`: it is the work itself."]


def _largest_idle(s: Summary, idle: float) -> IdleCause | None:
    """The largest known cause of idle time, which is this share of the window: where most of it is known, or the cause
    is noticeable."""
    known = [one for one in s.idle_causes if one.cause not in ("other", "not recorded")]
    largest = max(known, key=lambda one: one.duration_ns, default=None)
    is_known = sum(one.share for one in known) >= KNOWN_LEAST
    return largest if largest is not None and (is_known or largest.share * idle >= NOTICEABLE) else None


def _idle_causes(s: Summary, idle: float) -> str:
    """What is known of the idle time, which is this share of the window, where nothing of it is a finding."""
    largest = _largest_idle(s, idle)
    if largest is None:
        return " without a known cause"
    if largest.share * idle < NOTICEABLE:
        return f", of several causes, each below {percent(NOTICEABLE)}"
    name = cause_word(largest.cause, are_cpus(s.devices))
    return f", of which the largest known part is {name}: {percent(largest.share * idle)} of the time"
