"""What may be changed in a replay: `WHAT_IFS` has each change with its edit of the arcs' lengths, which is None where
it does not apply. Where a rule looks for a cause, the change takes out what the rule found. And what a step still has
after a change: device work, which bounds what it gains, and what the time consists of that no finding explains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from harness.analysis.process.phases import PHASES
from harness.analysis.summary import Remainder
from harness.replay import counterfactuals
from harness.replay.causes import CAUSES, Rule
from harness.replay.counterfactuals import Edit, Edited, without
from harness.replay.graph import BACKWARD, BETWEEN, DEVICE_PRODUCTS, FORWARD, OPTIMIZER, OTHER, TimeCategory
from harness.replay.host_causes import STALLED, STALLS, rows_of, sending, stopped, without_activities, without_core
from harness.replay.rank_causes import heavier, uneven
from harness.replay.suspect import HOST_TIME, WORK_TIME, Cause, Gain, ReplayContext, Suspect, settled, slots
from harness.traces.trace import F64, I64


@dataclass(frozen=True)
class WhatIfKind:
    """One change. `bound`: no run reaches it; it says how much there is to gain at most. same_work: it leaves the
    model's operators as they are. more_on_cpus: where messages are sent by the cores that compute, a run gains more,
    since they then compute faster, too. operators: on a CPU it changes the time of operators; any other change gains at
    most what is not in an operator."""

    name: str
    meaning: str
    edit: Edit
    bound: bool = False
    same_work: bool = True
    more_on_cpus: bool = False
    operators: bool = False


def _without_stalls(*phases: int) -> Edit:
    """On a GPU what the host did while the devices had no work; else what is longer than usual."""

    def edit(context: ReplayContext) -> Edited | None:
        if context.on_cpu:
            return without(context, [each for phase in phases for each in slots(STALLED, phase)])
        rows = rows_of(context, STALLS, phases)
        return Edited(without_activities(context, rows)) if rows else None

    return edit


def _without_found(rule: Rule) -> Edit:
    """The job without any of what a rule suspects."""

    def edit(context: ReplayContext) -> Edited | None:
        found = [own.lengths for own in rule(context) if own.lengths is not None]
        return Edited(context.job.least(found)) if found else None

    return edit


def _no_gaps(context: ReplayContext) -> Edited | None:
    if not context.on_cpu:
        return without(context, slots((TimeCategory.HOST_GAP, TimeCategory.HOST_WORK)))
    gaps = (TimeCategory.HOST_GAP, TimeCategory.HOST_STALL)
    return without(context, [s for phase in (FORWARD, BACKWARD, OPTIMIZER) for s in slots(gaps, phase)])


WHAT_IFS: tuple[WhatIfKind, ...] = (
    WhatIfKind("no-data-stall", "data loaded ahead, by workers", counterfactuals.loaded_ahead),
    *(
        WhatIfKind(
            f"no-stall-{PHASES[phase]}",
            f"no stall longer than the median gap in {PHASES[phase]}",
            _without_stalls(phase),
        )
        for phase in (FORWARD, BACKWARD, OPTIMIZER)
    ),
    WhatIfKind("no-stall-between", "no stall between the phases", _without_stalls(OTHER, BETWEEN)),
    WhatIfKind("no-pause", "no process that is stopped or falls behind", _without_found(stopped), operators=True),
    WhatIfKind(
        "own-cores",
        "a core for every process that is ready to run",
        _without_found(without_core),
        bound=True,
        same_work=False,
        operators=True,
    ),
    WhatIfKind("no-late-messages", "messages sent at once", _without_found(sending)),
    WhatIfKind("no-extra-compute", "no step with more work than the others", _without_found(heavier), operators=True),
    WhatIfKind(
        "rank-like-others",
        "every rank's work as small as the others'",
        _without_found(uneven),
        same_work=False,
        operators=True,
    ),
    WhatIfKind("no-host-gaps", "no time between operators, for example with CUDA graphs", _no_gaps, bound=True),
    WhatIfKind("gas-x2", "gradients reduced half as often (accumulation × 2)", counterfactuals.accumulated(2)),
    WhatIfKind("gas-x4", "gradients reduced a quarter as often (accumulation × 4)", counterfactuals.accumulated(4)),
    WhatIfKind(
        "micro-batch-x2",
        "twice the micro-batch, for the work of one step of today",
        counterfactuals.larger,
        same_work=False,
    ),
    WhatIfKind(
        "micro-batches-x2",
        "twice the micro-batches through the pipeline, for the work of one step of today",
        counterfactuals.more_in_pipeline,
    ),
    WhatIfKind("one-bucket", "gradients in buckets of 25 MB", counterfactuals.larger_buckets, more_on_cpus=True),
    WhatIfKind(
        "free-communication",
        "messages that take no time; ranks still wait for each other",
        counterfactuals.free,
        bound=True,
    ),
    WhatIfKind("bandwidth-x2", "twice the bandwidth, by the job's own α and β", counterfactuals.changed(1, 0.5)),
    WhatIfKind("latency-half", "half the latency, by the job's own α and β", counterfactuals.changed(0.5, 1)),
    WhatIfKind(
        "products-x2",
        "matrix products twice as fast, as bf16 may make them",
        counterfactuals.in_16_bits,
        same_work=False,
    ),
)


def work_left(context: ReplayContext, edited: Edited, lengths: I64, *, operators: bool) -> float:
    """The device work that a step still has after a change, in nanoseconds: of the device with most, mean over the
    counted steps, for the micro-batches of today. No change makes a step shorter than this. lengths: the change's own,
    or its best. operators: whether it also changes what takes the place of kernels on a CPU."""
    usual = np.arange(context.step_count) >= settled(context.step_count)
    counted = usual if edited.counted is None else edited.counted
    work: F64 = np.nan_to_num(context.device_time["compute_ns"])[:, counted].mean(axis=1)
    if edited.work is not None:
        work = work * edited.work
    elif operators or not context.on_cpu:
        less, of_ns = (ns[:, counted].mean(axis=1) for ns in _shortened(context, lengths))
        # kernels side by side have a longer sum than their union, and those that run late are of no step
        work = np.minimum(work - less, work * (1 - less / np.maximum(of_ns, 1)))
    return float((max(work.max(), 0.0) + edited.extra_ns) / edited.per)


def _shortened(context: ReplayContext, lengths: I64) -> tuple[F64, F64]:
    """By how much the arcs with work are shorter, and what they have of work, by process and step."""
    job, categories = context.job, HOST_TIME if context.on_cpu else (TimeCategory.DEVICE_WORK, *DEVICE_PRODUCTS)
    of_work = np.isin(job.amounts.slot, slots(categories)) & (job.step[job.amounts.arc] >= 0)
    arc = np.setdiff1d(job.amounts.arc[of_work], job.repeated)
    less = np.maximum(job.lengths[arc], 0) - np.maximum(lengths[arc], 0)
    shape = context.processes, context.step_count
    at = job.process[arc] * context.step_count + job.step[arc]
    by_place = np.bincount(at, less.astype(np.float64), context.processes * context.step_count).astype(np.float64)
    return by_place.reshape(shape), context.of(categories).astype(np.float64)


_OF_MESSAGES = (Cause.COMMUNICATION, Cause.SMALL_BUCKETS, Cause.SLOW_LINK, Cause.BUBBLE, Cause.IMBALANCE)
_UNKNOWN = ("other", "not recorded")  # causes of idle time that say nothing


def remainder(context: ReplayContext, told: Sequence[tuple[Suspect, Gain]], left_ns: float) -> Remainder | None:
    """What `left_ns` of a step consists of, the step without all that is told: means over the processes' devices that
    add up to it. None where a part of the devices' time is not known."""
    known = ("window_ns", "compute_ns", "exposed_communication_ns", "exposed_memory_ns", "idle_ns")
    window, work, messages, copies, idle = (float(context.device_time[name].mean()) for name in known)
    if not np.isfinite([window, work, messages, copies, idle]).all():
        return None
    outside = max(context.step_ns - window, 0.0)
    work -= _less_work(context, told)
    copies = max(copies - sum(gain.mean_ns for suspect, gain in told if suspect.cause is Cause.COPIES), 0.0)
    saved = context.step_ns - left_ns - (float(context.device_time["compute_ns"].mean()) - work)
    saved -= float(context.device_time["exposed_memory_ns"].mean()) - copies
    messages -= _of_messages(context, told, max(saved, 0.0), messages, idle)
    parts, rest = [], left_ns
    for ns in (work, messages, copies, outside):
        parts.append(min(max(ns, 0.0), rest))
        rest -= parts[-1]
    without_cause = min(max(_unknown_ns(context, told, idle), 0.0), rest)
    work, messages, copies, outside = map(round, parts)
    return Remainder(
        work_ns=work,
        communication_ns=messages,
        copies_ns=copies,
        outside_ns=outside,
        known_idle_ns=round(rest - without_cause),
        unknown_idle_ns=round(without_cause),
    )


def _less_work(context: ReplayContext, told: Sequence[tuple[Suspect, Gain]]) -> float:
    """By how much the devices' work is less without what is told, mean over processes and steps."""
    changed = [s.lengths for s, _ in told if s.lengths is not None and _changes_work(context, s)]
    if not changed:
        return 0.0
    less, of_ns = (ns.mean() for ns in _shortened(context, context.job.least(changed)))
    return float(less / max(of_ns, 1) * context.device_time["compute_ns"].mean())


def _changes_work(context: ReplayContext, suspect: Suspect) -> bool:
    """Whether a cause is more work of the devices, or on a CPU lies inside of operators."""
    entry = CAUSES[suspect.cause.value]
    if entry.of_host:
        return context.on_cpu and (entry.on_gpus or not {*slots(WORK_TIME)}.isdisjoint(suspect.slots))
    return suspect.cause not in (*_OF_MESSAGES, Cause.COPIES)


def _of_messages(
    context: ReplayContext, told: Sequence[tuple[Suspect, Gain]], saved: float, messages: float, idle: float
) -> float:
    """The part of what is saved that is exposed communication: messages that are told, and the waiting of the other
    ranks in theirs. The rest is idle time of the ranks that are named."""
    of_messages = of_idle = 0.0
    for suspect, gain in told:
        own = len(suspect.processes) / context.processes
        of_messages += gain.mean_ns * (1.0 if suspect.cause in _OF_MESSAGES else 1 - own)
        of_idle += gain.mean_ns * own * CAUSES[suspect.cause.value].of_host
    part = saved * of_messages / max(of_messages + of_idle, 1.0)
    return min(max(part, saved - idle), messages)


def _unknown_ns(context: ReplayContext, told: Sequence[tuple[Suspect, Gain]], idle: float) -> float:
    """Idle time without a known cause that is not told as a stall without a name either."""
    share = sum(cause.share for cause in context.summary.idle_causes if cause.cause in _UNKNOWN)
    nameless = [(s, g) for s, g in told if s.cause is Cause.HOST_STALL and s.what is None]
    return idle * share - sum(g.mean_ns * len(s.processes) / context.processes for s, g in nameless)
