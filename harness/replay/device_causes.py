"""Causes on the devices: exposed communication, the pipeline's bubble, copies, precision.

Each is found as a change of the graph, and as a share of the devices' time, which limits it. Where no replay is
possible the share is all there is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from harness.analysis.metrics import waiting_share
from harness.analysis.summary import Device, Pipeline, PipelineStage, Summary
from harness.format import device_time
from harness.replay.context import ReplayContext, slots
from harness.replay.counterfactuals import ideal, larger_buckets, small_buckets, without
from harness.replay.graph import BACKWARD, TimeCategory
from harness.replay.suspect import Cause, Suspect
from harness.theory.devices import peak_flops_per_s
from harness.traces.trace import F64, I64

_SINGLE = "fp32"


def communication(context: ReplayContext) -> Iterator[Suspect]:
    """Messages that take no time; ranks still wait for each other, and that time counts for those who are waited for.
    Where the other ranks of a collective are not known, its waiting cannot be told from its transfer: all counts."""
    exposed = context.device_time.exposed_communication_ns
    if not exposed.size or not np.nansum(exposed):
        return
    lengths = ideal(context)
    lengths[context.job.unknown] = 0
    waited = waiting_share(context.summary) if context.summary.pipeline is None else None
    yield _steady(context, Cause.COMMUNICATION, lengths, (1 - (waited or 0.0)) * np.nanmean(exposed, axis=0))


def buckets(context: ReplayContext) -> Iterator[Suspect]:
    """Gradients travel in many small messages."""
    edited, small = larger_buckets(context), small_buckets(context)
    if edited is None or small is None:
        return
    each, size = np.count_nonzero(small) / context.job.measured.size, context.job.messages.bytes[small].mean()
    said = f"{each:.0f} messages of {size / 1e3:.0f} kB in each step"
    yield _steady(context, Cause.SMALL_BUCKETS, edited.lengths, None, evidence=said, phase=BACKWARD)


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
    exposed = context.device_time.exposed_memory_ns
    if context.on_cpu or not exposed.size or not np.nansum(exposed):
        return
    factor = context.job.unchanged()
    factor[:, slots((TimeCategory.DEVICE_COPY,))] = 0
    yield _steady(context, Cause.COPIES, context.job.scaled(factor), np.nanmean(exposed, axis=0))


def precision(context: ReplayContext) -> Iterator[Suspect]:
    """Products in fp32 on a GPU: in 16 bits they take half the time or less."""
    found = without(context, slots((TimeCategory.DEVICE_FP32,)), left=0.5)
    if found is not None:
        yield _steady(context, Cause.PRECISION, found.lengths, None)


def _steady(
    context: ReplayContext,
    cause: Cause,
    lengths: I64,
    saved_ns: F64 | None,
    **more: Any,
) -> Suspect:
    """A loss of all processes in every step."""
    everyone, steps = tuple(range(context.processes)), np.ones(context.step_count, np.bool_)
    given: dict[str, Any] = {"phase": None, "evidence": ""} | more
    return Suspect(cause, everyone, steps=steps, lengths=lengths, standing=True, saved_ns=saved_ns, **given)


def communication_share(s: Summary) -> float | None:
    """Exposed communication and idle time that waits for communication, without what belongs to a pipeline's bubble."""
    exposed = device_time.share(s.devices, "exposed_communication_ns")
    return None if exposed is None else exposed + (idle_share(s, "communication") or 0.0) - in_schedule(s)


def idle_share(s: Summary, *causes: str) -> float | None:
    """The share of the window that idle time of these causes has, over the devices whose idle time is known."""
    total = sum(d.window_ns for d in s.devices if d.idle_ns is not None)
    return sum(c.duration_ns for c in s.idle_causes if c.cause in causes) / total if total else None


def copies_share(s: Summary) -> float | None:
    """Copies during which nothing is computed."""
    return device_time.share(s.devices, "exposed_memory_ns")


def bubble_share(s: Summary) -> float | None:
    """The stages' bubble as a share of the window, which is longer than the schedule: it includes the optimizer."""
    return _of_stages(s.pipeline, lambda x: x.schedule_ns - x.schedule_busy_ns) if s.pipeline else None


def in_schedule(s: Summary) -> float:
    """The communication that belongs to the schedule: in the bubble, or messages between stages during their work."""
    return _of_stages(s.pipeline, lambda x: x.bubble_communication_ns + x.work_send_recv_ns)


def bubble_communication(s: Summary) -> float:
    """The part of the bubble that is shown as communication."""
    return _of_stages(s.pipeline, lambda x: x.bubble_communication_ns)


def _of_stages(p: Pipeline | None, part: Callable[[PipelineStage], int]) -> float:
    stages: Sequence[PipelineStage] = p.per_stage if p else ()
    return sum(map(part, stages)) / max(sum(x.window_ns for x in stages), 1)


def precision_share(s: Summary) -> float | None:
    """Half of the time of fp32 products on GPUs."""
    devices = [d for d in s.devices if d.device_kind == "gpu"]
    total = sum(d.window_ns for d in devices)
    return sum(k.duration_ns for k in s.kinds if k.precision == _SINGLE) / 2 / total if total else None


def straggler_share(s: Summary) -> float | None:
    """What the slowest rank's step takes beyond the median rank's."""
    score = s.steps.straggler_score
    return 1 - 1 / score if score is not None and score > 1 else None


def data_share(s: Summary) -> float | None:
    """Idle time for data; without devices the slowest rank's data loading by the training's own clock."""
    if s.devices:
        return idle_share(s, "data loading")
    timed = [t for t in s.training if t.median_step_ns]
    slowest = max(timed, key=lambda t: t.median_step_ns or 0, default=None)
    return (slowest.median_data_ns or 0) / (slowest.median_step_ns or 1) if slowest else None


def has_bf16(devices: Sequence[Device]) -> bool:
    """Whether no device is known to compute in fp16 but not in bf16, as before Ampere."""
    names = {d.name for d in devices if d.name}
    return not any(peak_flops_per_s(n, "fp16") and not peak_flops_per_s(n, "bf16") for n in names)
