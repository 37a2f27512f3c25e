"""Causes on the devices: exposed communication, the pipeline's bubble, copies, precision. Each is found as a change of
the graph, and as a share of the devices' time, which limits it, and which is all there is without a replay."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from harness.analysis import device_time
from harness.analysis.metric_values import waiting_share
from harness.analysis.process.host_calls import HostCause as IdleTime
from harness.analysis.process.kinds import LAYOUT
from harness.analysis.process.phases import Phase
from harness.analysis.summary import Pipeline, PipelineStage, RankTraining, Summary
from harness.replay.attribute.suspect import Cause, Suspect
from harness.replay.graph.graph import TimeCategory, slots
from harness.replay.measure.context import ReplayContext
from harness.replay.remove.edits import TF32_CAREFUL, ideal, larger_buckets, small_buckets
from harness.theory.devices import half_precision
from harness.traces.trace import F64, I64


def communication(context: ReplayContext) -> Iterator[Suspect]:
    """Messages that take no time; ranks still wait for each other, and that time counts for those who are waited for.
    Where the other ranks of a collective are not known, its waiting cannot be told from its transfer: all counts."""
    exposed = context.device_time["exposed_communication_ns"]
    if not np.nansum(exposed) or not np.nansum(context.device_time["compute_ns"]):
        return  # in a recording of messages alone it is not known what they are exposed to
    lengths = ideal(context.job)
    lengths[context.job.unknown] = 0
    waited = waiting_share(context.summary) if context.summary.pipeline is None else None
    yield _steady(context, Cause.COMMUNICATION, lengths, (1 - (waited or 0.0)) * np.nanmean(exposed, axis=0))


def buckets(context: ReplayContext) -> Iterator[Suspect]:
    """Gradients travel in many small messages."""
    edited, small = larger_buckets(context.job), small_buckets(context.job)
    if edited is None or small is None:
        return
    each, size = np.count_nonzero(small) / context.job.measured.size, context.job.messages.bytes[small].mean()
    said = f"{each:.0f} messages of {size / 1e3:.0f} kB in each step"
    yield replace(_steady(context, Cause.SMALL_BUCKETS, edited.lengths, None), phase=Phase.BACKWARD, evidence=said)


def bubble(context: ReplayContext) -> Iterator[Suspect]:
    """Stages that do not wait for each other's messages: all of them as busy as the busiest one."""
    share = bubble_share(context.summary)
    if share is None:
        return
    job = context.job
    sent = np.array([call.kind == "send" for call in job.calls] or [False])[job.messages.call]
    lengths = job.apart(job.lengths, sent)
    yield _steady(context, Cause.BUBBLE, lengths, np.full(context.step_count, share * context.step_ns))


def copies(context: ReplayContext) -> Iterator[Suspect]:
    """Copies that take no time."""
    exposed = context.device_time["exposed_memory_ns"]
    if context.on_cpu or not np.nansum(exposed):
        return
    factor = context.job.unchanged()
    factor[:, slots((TimeCategory.DEVICE_COPY,))] = 0
    found = _steady(context, Cause.COPIES, context.job.scaled(factor), np.nanmean(exposed, axis=0))
    yield replace(found, factor=factor)


def precision(context: ReplayContext) -> Iterator[Suspect]:
    """Products in fp32 and tf32 on a GPU: in 16 bits they take half the time or less, two thirds of it or less."""
    factors, least = context.job.unchanged(), {TimeCategory.DEVICE_FP32: 0.5, TimeCategory.DEVICE_TF32: TF32_CAREFUL}
    for category, left in least.items():
        factors[:, slots((category,))] = left
    names = [device.name for device in context.summary.devices]
    if context.has(tuple(least)) and all(map(half_precision, names)):
        yield replace(_steady(context, Cause.PRECISION, context.job.scaled(factors), None), factor=factors)


def layout(context: ReplayContext) -> Iterator[Suspect]:
    """Conversions between channels first and channels last, which a model in one layout does not need."""
    if context.has((TimeCategory.DEVICE_LAYOUT,)):
        factors = context.job.unchanged()
        factors[:, slots((TimeCategory.DEVICE_LAYOUT,))] = 0
        yield replace(_steady(context, Cause.LAYOUT, context.job.scaled(factors), None), factor=factors)


def _steady(context: ReplayContext, cause: Cause, lengths: I64, saved_ns: F64 | None) -> Suspect:
    """A loss of all processes in every step."""
    return Suspect(cause, context.everyone, context.every_step, lengths, standing=True, saved_ns=saved_ns)


def communication_share(s: Summary) -> float | None:
    """Exposed communication and idle time that waits for communication, without what belongs to a pipeline's bubble:
    communication in the bubble, or messages between stages during their work."""
    exposed = device_time.share(s.devices, "exposed_communication_ns")
    if exposed is None or not any(d.compute_ns for d in s.devices):
        return None
    in_schedule = _of_stages(s.pipeline, lambda x: x.bubble_communication_ns + x.work_send_recv_ns)
    return exposed + (idle(IdleTime.COMMUNICATION.label)(s) or 0.0) - in_schedule


def idle(*causes: str) -> Callable[[Summary], float | None]:
    """The share of the window that idle time of these causes has, over the devices whose idle time is known."""

    def share(s: Summary) -> float | None:
        total = sum(d.window_ns for d in s.devices if d.idle_ns is not None)
        return sum(c.duration_ns for c in s.idle_causes if c.cause in causes) / total if total else None

    return share


def bubble_share(s: Summary) -> float | None:
    """The stages' bubble as a share of the window, which is longer than the schedule: it includes the optimizer."""
    return _of_stages(s.pipeline, lambda x: x.schedule_ns - x.schedule_busy_ns) if s.pipeline else None


def bubble_communication(s: Summary) -> float:
    """The part of the bubble that is shown as communication."""
    return _of_stages(s.pipeline, lambda x: x.bubble_communication_ns)


def _of_stages(p: Pipeline | None, ns_of: Callable[[PipelineStage], int]) -> float:
    stages: Sequence[PipelineStage] = p.per_stage if p else ()
    return sum(map(ns_of, stages)) / max(sum(x.window_ns for x in stages), 1)


def precision_share(s: Summary) -> float | None:
    """What 16 bits save of the time of products on GPUs: half of those in fp32, a third of those in tf32."""
    devices = [d for d in s.devices if d.device_kind == "gpu" and half_precision(d.name)]
    total = sum(d.window_ns for d in devices)
    saved = {"fp32": 0.5, "tf32": 1 - TF32_CAREFUL}
    return sum(k.duration_ns * saved.get(k.precision or "", 0.0) for k in s.kinds) / total if total else None


def layout_share(s: Summary) -> float | None:
    """The time of layout conversions on GPUs."""
    total = sum(d.window_ns for d in s.devices if d.device_kind == "gpu")
    return sum(k.duration_ns for k in s.kinds if k.kind == LAYOUT) / total if total else None


def straggler_share(s: Summary) -> float | None:
    """What the slowest rank's step takes beyond the median rank's."""
    score = s.steps.straggler_score
    return 1 - 1 / score if score is not None and score > 1 else None


def data_share(s: Summary) -> float | None:
    """Idle time for data; without devices the slowest rank's data loading by the training's own clock."""
    if s.devices:
        return idle(IdleTime.DATA.label)(s)
    rank = slowest(s)
    return (rank.median_data_ns or 0) / (rank.median_step_ns or 1) if rank else None


def slowest(s: Summary) -> RankTraining | None:
    """The rank with the longest step by the training's own clock."""
    timed = [t for t in s.training if t.median_step_ns]
    return max(timed, key=lambda t: t.median_step_ns or 0, default=None)
