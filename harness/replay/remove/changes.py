"""Changes of a job that somebody could make, as edits of its arcs: loading, micro-batches, messages, precision."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from harness.analysis.process.copies import TO_DEVICE
from harness.analysis.process.host_calls import HostCause as IdleTime
from harness.analysis.process.phases import Phase
from harness.analysis.summary import Summary
from harness.replay.graph.graph import DEVICE_COMPUTES, HOST_TIME, N_PHASES, NEVER, WORK_TIME, TimeCategory, slots
from harness.replay.measure.context import ReplayContext
from harness.replay.remove.edits import TF32_CAREFUL, EditedLengths, ideal
from harness.theory.devices import half_precision, rates_in_16_bits

_DEVICE = (*DEVICE_COMPUTES, TimeCategory.DEVICE_COPY)
_ONCE = 0.03  # of the window: as the report calls a recording one of first use (harness/analysis)
READY_NS = 1_500_000  # to take a batch that a worker has loaded: 1.4 to 2.4 ms in six of ten measurements on two cores
# A worker's batch lies in shared memory, which the training maps and reads for the first time: 19.3 MB took 8 ms longer
# than a second time (2.4 GB/s), and 5 ms longer than without workers in a public recording of a V100.
FIRST_READ_GB_PER_S = 4
_16_BITS = ("bf16", "fp16", "fp8", "fp4", "int8")
_FULL = ("fp32", "tf32")
Edit = Callable[[ReplayContext], EditedLengths | None]


def without(context: ReplayContext, chosen: list[int]) -> EditedLengths | None:
    """The job without the time in these slots; None where there is none."""
    if not context.time_ns[:, :, chosen].any():
        return None
    factors = context.job.unchanged()
    factors[:, chosen] = 0
    return EditedLengths(context.job.scaled(factors))


def accumulated(k: int) -> Edit:
    """Gradients reduced, and parameters updated, in every k-th step only. For all-reduces of the backward pass alone:
    what sharded parameters and optimizers send does not depend on it in the same way."""

    def edit(context: ReplayContext) -> EditedLengths | None:
        job = context.job
        steps = job.step_begin.shape[1]
        reduces = {(call.kind, call.phase) for call in job.calls}
        if reduces != {("all_reduce", Phase.BACKWARD)} or steps - context.settled < k or job.alone:
            return None
        counted = np.arange(steps) >= steps - (steps - context.settled) // k * k  # the last whole groups of k
        quiet = np.arange(steps) % k != (steps - 1) % k
        factors = job.unchanged()
        factors[:, slots((*HOST_TIME,), Phase.OPTIMIZER)] = 0
        factors[:, slots(_DEVICE)] = context.shares_of_passes[:, None]
        lengths = job.scaled(factors, quiet)
        unsent = np.append(quiet, False)[job.step[job.messages.arc]]
        lengths[job.messages.arc[unsent]], lengths[job.messages.process_rows[unsent]] = NEVER, 0
        of_batches = context.shares_of_batches
        return EditedLengths(lengths, counted, work=of_batches + (1 - of_batches) / k)

    return edit


def larger(context: ReplayContext) -> EditedLengths | None:
    """All work but the optimizer's twice, between the same gaps; one optimizer step and its messages for both. As much
    is evaluated for the same samples. Twice the data is loaded: what the host waits for it, in data loading and between
    the marked steps, doubles, too. For marked steps with work alone: what happens once, as the first use of kernels,
    has no micro-batch.
    """
    devices, causes = context.summary.devices, context.summary.idle_causes
    once_ns = sum(c.duration_ns for c in causes if c.cause == IdleTime.FIRST_USE.label)
    if once_ns > _ONCE * sum(d.window_ns for d in devices):
        return None
    if not all(own.marked for own in context.job.processes) or not context.of(WORK_TIME).any():
        return None
    factors = context.job.unchanged()
    for phase in (phase for phase in range(N_PHASES) if phase != Phase.OPTIMIZER):
        factors[:, slots((TimeCategory.HOST_WORK, TimeCategory.HOST_PRODUCT), phase)] = 2
    factors[:, [s for phase in (Phase.DATA, Phase.BETWEEN, Phase.EVALUATION) for s in slots(HOST_TIME, phase)]] = 2
    factors[:, slots(_DEVICE)] = 1 + context.shares_of_passes[:, None]
    factors[:, slots((TimeCategory.DEVICE_EVALUATION,))] = 2
    return EditedLengths(context.job.scaled(factors), per=2, work=1 + context.shares_of_batches)


def loaded_ahead(context: ReplayContext) -> EditedLengths | None:
    """Batches that workers have loaded before they are needed: what is left is to take and to read each of them."""
    chosen = slots((TimeCategory.HOST_GAP, TimeCategory.HOST_STALL, TimeCategory.HOST_HELD), Phase.DATA)
    waits = context.time_ns[:, :, chosen].sum(axis=2).mean(axis=1)
    copied = sum(copy.bytes for copy in context.summary.copies if copy.direction == TO_DEVICE)
    left_ns = READY_NS + copied / max(context.summary.steps.counted, 1) / FIRST_READ_GB_PER_S
    if not (waits > left_ns).any():
        return None
    factors = context.job.unchanged()
    factors[:, chosen] = np.minimum(left_ns / np.maximum(waits, 1), 1)[:, None]
    return EditedLengths(context.job.scaled(factors))


def in_16_bits(context: ReplayContext) -> EditedLengths | None:
    """Products and attention in bf16 (fp16, where a device has no bf16), by the precision that they have now. Careful:
    fp32 twice as fast, tf32 1.5 times. At best: by the device's peaks (configs/devices.yaml), since no kernel exceeds
    them; and everything else twice as fast, which is limited by bytes, of which there are half. Not for a job that
    computes in 16 bits, nor for a CPU: few multiply faster in bf16, and a recording does not show whether this one
    does."""
    fp32, tf32 = slots((TimeCategory.DEVICE_FP32,)), slots((TimeCategory.DEVICE_TF32,))
    job = context.job
    present = {c: context.has((c,)) for c in (TimeCategory.DEVICE_FP32, TimeCategory.DEVICE_TF32)}
    device = next((d.name for d in context.summary.devices if d.name), None)
    if not any(present.values()) or computes_in_16_bits(context.summary) or half_precision(device) is None:
        return None
    careful, best = job.unchanged(), job.unchanged()
    careful[:, fp32], careful[:, tf32] = 0.5, TF32_CAREFUL
    lengths = job.scaled(careful)
    half, times = rates_in_16_bits(device)
    best[:, fp32], best[:, tf32] = 1 / times["fp32"], 1 / times["tf32"]
    best[:, slots((TimeCategory.DEVICE_WORK, TimeCategory.DEVICE_LAYOUT, TimeCategory.DEVICE_PRODUCT))] = 0.5
    said = ", ".join(
        f"{name} {low:g} to {times[name]:.3g}"
        for name, low, there in zip(("fp32", "tf32"), (2, 1.5), present.values(), strict=True)
        if there
    )
    return EditedLengths(lengths, best=job.scaled(best), meaning=f"products in {half} ({said} times as fast)")


def computes_in_16_bits(s: Summary) -> bool:
    """Whether the products of a job are in 16 bits or fewer: most of their time is."""
    half, full = (sum(k.duration_ns for k in s.kinds if k.precision in of) for of in (_16_BITS, _FULL))
    return half > full


def more_in_pipeline(context: ReplayContext) -> EditedLengths | None:
    """As many micro-batches again, each for as long as the busiest stage takes for one. Source of the schedule:
    Narayanan et al., Efficient large-scale language model training on GPU clusters using Megatron-LM, 2021, section
    2.2."""
    if not any(call.kind == "send" for call in context.job.calls):
        return None
    if context.on_cpu:
        busy = sum(
            context.of(HOST_TIME, phase).mean(axis=1) for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.SEND_RECV)
        )
    else:
        busy = context.of(WORK_TIME).mean(axis=1) * context.shares_of_passes
    return EditedLengths(context.job.lengths, per=2, extra_ns=float(np.max(busy)))


def free(context: ReplayContext) -> EditedLengths | None:
    return EditedLengths(ideal(context.job)) if len(context.job.messages.arc) else None
