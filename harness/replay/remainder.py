"""What a step still has after a change: device work, which a change must change itself to make shorter, and what the
time consists of that no finding explains."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from harness.analysis.summary import Remainder
from harness.replay.causes import CAUSES
from harness.replay.counterfactuals import Edited
from harness.replay.graph import DEVICE_COMPUTES, TimeCategory
from harness.replay.suspect import HOST_TIME, WORK_TIME, Cause, Gain, ReplayContext, Suspect, slots, without_all
from harness.traces.trace import F64, I64


def work_left(context: ReplayContext, edited: Edited, lengths: I64, *, operators: bool, changes: bool = False) -> float:
    """The device work that a step still has after a change, in nanoseconds: of the device with most, mean over the
    counted steps, for the micro-batches of today. No change makes a step shorter than this. lengths: the change's own,
    or its best. operators: whether it also changes what takes the place of kernels on a CPU. changes: it makes work
    itself shorter, by how much is not known where each kernel follows its own launch and no arc has its time alone."""
    usual = np.arange(context.step_count) >= context.settled
    counted = usual if edited.counted is None else edited.counted
    work: F64 = np.nan_to_num(context.device_time["compute_ns"])[:, counted].mean(axis=1)
    if edited.work is not None:
        work = work * edited.work
    elif operators or not context.on_cpu:
        less, of_ns = (ns[:, counted].mean(axis=1) for ns in _shortened(context, lengths))
        if changes and not of_ns.any():
            return 0.0
        # kernels side by side have a longer sum than their union, and those that run late are of no step
        work = np.minimum(work - less, work * (1 - less / np.maximum(of_ns, 1)))
    return float((max(work.max(), 0.0) + edited.extra_ns) / edited.per)


def _shortened(context: ReplayContext, lengths: I64) -> tuple[F64, F64]:
    """By how much the arcs with work are shorter, and what they have of work, by process and step."""
    job, categories = context.job, HOST_TIME if context.on_cpu else (*DEVICE_COMPUTES, TimeCategory.DEVICE_EVALUATION)
    of_work = np.isin(job.amounts.slot, slots(categories)) & (job.step[job.amounts.arc] >= 0)
    arc = np.setdiff1d(job.amounts.arc[of_work], job.repeated)
    less = np.maximum(job.lengths[arc], 0) - np.maximum(lengths[arc], 0)
    shape = context.processes, context.step_count
    at = job.process[arc] * context.step_count + job.step[arc]
    by_place = np.bincount(at, less.astype(np.float64), context.processes * context.step_count).astype(np.float64)
    return by_place.reshape(shape), context.of(categories).astype(np.float64)


_OF_MESSAGES = (Cause.COMMUNICATION, Cause.SMALL_BUCKETS, Cause.SLOW_LINK, Cause.BUBBLE, Cause.IMBALANCE)
_ROUGH = 0.02  # of a step: the work of a changed step is known up to about this
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
    more = rest - max(idle, without_cause)  # than the devices were idle: a host at its limit, or work that is rough
    if 0 < more < _ROUGH * context.step_ns:
        parts[0], rest = parts[0] + more, rest - more
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
    lengths = without_all(context, [suspect for suspect, _ in told if changes_work(context, suspect)])
    if lengths is None:
        return 0.0
    less, of_ns = (ns.mean() for ns in _shortened(context, lengths))
    return float(less / max(of_ns, 1) * context.device_time["compute_ns"].mean())


def changes_work(context: ReplayContext, suspect: Suspect) -> bool:
    """Whether a cause is more work of the devices, or on a CPU may lie inside of operators, or consists of some."""
    entry = CAUSES[suspect.cause.value]
    if entry.of_host:
        return context.on_cpu and (entry.on_gpus or bool({*suspect.slots} & {*slots(WORK_TIME)}))
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
