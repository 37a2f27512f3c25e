"""What the time of a step consists of that no finding explains."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from harness.analysis.process.host_calls import HostCause as IdleTime
from harness.analysis.summary import Remainder
from harness.replay.attribute.causes import CAUSES
from harness.replay.attribute.suspect import Cause, Suspect, without_all
from harness.replay.graph.graph import WORK_TIME, slots
from harness.replay.measure.context import ReplayContext
from harness.replay.remove.gain import Gain, shortened

_ROUGH = 0.02  # of a step: the work of a changed step is known up to about this
_UNKNOWN = (IdleTime.OTHER.label, IdleTime.NOT_RECORDED.label)  # causes of idle time that say nothing


def remainder(context: ReplayContext, explained: Sequence[tuple[Suspect, Gain]], left_ns: float) -> Remainder | None:
    """What `left_ns` of a step consists of, the step without all that is told: means over the processes' devices that
    add up to it. None where a part of the devices' time is not known."""
    known = ("window_ns", "compute_ns", "exposed_communication_ns", "exposed_memory_ns", "idle_ns")
    window, work, messages, copies, idle = (float(context.device_time[name].mean()) for name in known)
    if not np.isfinite([window, work, messages, copies, idle]).all():
        return None
    outside = max(context.step_ns - window, 0.0)
    work -= _less_work(context, explained)
    copies = max(copies - sum(gain.mean_ns for suspect, gain in explained if suspect.cause is Cause.COPIES), 0.0)
    saved = context.step_ns - left_ns - (float(context.device_time["compute_ns"].mean()) - work)
    saved -= float(context.device_time["exposed_memory_ns"].mean()) - copies
    messages -= _of_messages(context, explained, max(saved, 0.0), messages, idle)
    parts, rest = [], left_ns
    for ns in (work, messages, copies, outside):
        parts.append(min(max(ns, 0.0), rest))
        rest -= parts[-1]
    without_cause = min(max(_unknown_ns(context, explained, idle), 0.0), rest)
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


def _less_work(context: ReplayContext, explained: Sequence[tuple[Suspect, Gain]]) -> float:
    """By how much the devices' work is less without what is told, mean over processes and steps."""
    lengths = without_all(context.job, [suspect for suspect, _ in explained if changes_work(context, suspect)])
    if lengths is None:
        return 0.0
    less, of_ns = (ns.mean() for ns in shortened(context, lengths))
    return float(less / max(of_ns, 1) * context.device_time["compute_ns"].mean())


def changes_work(context: ReplayContext, suspect: Suspect) -> bool:
    """Whether a cause is more work of the devices, or on a CPU may lie inside of operators, or consists of some."""
    entry = CAUSES[suspect.cause]
    if entry.of_host:
        return context.on_cpu and (entry.on_gpus or bool({*suspect.slots} & {*slots(WORK_TIME)}))
    return not entry.of_messages and suspect.cause is not Cause.COPIES


def _of_messages(
    context: ReplayContext, explained: Sequence[tuple[Suspect, Gain]], saved: float, left_ns: float, idle: float
) -> float:
    """The part of what is saved that is exposed communication: messages that are told, and the waiting of the other
    ranks in theirs. The rest is idle time of the ranks that are named."""
    of_messages = of_idle = 0.0
    for suspect, gain in explained:
        own = len(suspect.processes) / context.processes
        of_messages += gain.mean_ns * (1.0 if CAUSES[suspect.cause].of_messages else 1 - own)
        of_idle += gain.mean_ns * own * CAUSES[suspect.cause].of_host
    part = saved * of_messages / max(of_messages + of_idle, 1.0)
    return min(max(part, saved - idle), left_ns)


def _unknown_ns(context: ReplayContext, explained: Sequence[tuple[Suspect, Gain]], idle: float) -> float:
    """Idle time without a known cause that is not told as a stall without a name either."""
    share = sum(cause.share for cause in context.summary.idle_causes if cause.cause in _UNKNOWN)
    nameless = [(s, g) for s, g in explained if s.cause is Cause.HOST_STALL and s.what is None]
    return idle * share - sum(g.mean_ns * len(s.processes) / context.processes for s, g in nameless)
