"""Changes of a job's arcs, and what a step gains by each: less time, batches, messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.analysis.process.copies import TO_DEVICE
from harness.analysis.process.phases import PHASES
from harness.analysis.summary import Summary
from harness.common.alpha_beta import fit_alpha_beta
from harness.experiment.base import Experiment
from harness.replay.graph import (
    BACKWARD,
    BETWEEN,
    DATA,
    DEVICE_COMPUTES,
    EVALUATION,
    FORWARD,
    N_PHASES,
    NEVER,
    OPTIMIZER,
    SENDING,
    TimeCategory,
)
from harness.replay.suspect import HOST_TIME, WORK_TIME, Gain, ReplayContext, slots
from harness.theory.devices import rates_in_16_bits
from harness.traces.trace import F64, I64


@dataclass(frozen=True)
class Edited:
    """Every arc's length after the change. counted: the steps to look at, None: all that have settled. per: by how many
    of today's micro-batches the changed step is larger. extra_ns: what a step takes beyond the replayed arcs. best: the
    lengths at best, where `lengths` are careful; meaning: the change in words, where it depends on the job. work: by
    what each process's device work is multiplied, where the arcs do not say it; shape (processes,)."""

    lengths: I64
    counted: NDArray[np.bool_] | None = None
    per: int = 1
    extra_ns: float = 0.0
    best: I64 | None = None
    meaning: str | None = None
    work: F64 | None = None


Edit = Callable[[ReplayContext], Edited | None]


def without(context: ReplayContext, chosen: list[int]) -> Edited | None:
    """The job without the time in these slots; None where there is none."""
    if not context.time_ns[:, :, chosen].any():
        return None
    factors = context.job.unchanged()
    factors[:, chosen] = 0
    return Edited(context.job.scaled(factors))


def with_less(context: ReplayContext, process: int, chosen: list[int], less_ns: NDArray[np.float64]) -> I64:
    """Every arc's length where a process has so much less time in these slots, by step. It is taken from each step's
    longest arcs, since what is more than usual is at one place more often than everywhere."""
    job, amounts = context.job, context.job.amounts
    lengths: I64 = job.lengths.copy()
    mine = np.isin(amounts.slot, chosen) & (job.process[amounts.arc] == process)
    arc, which = np.unique(amounts.arc[mine], return_inverse=True)
    ns = np.bincount(which, amounts.ns[mine], len(arc)).astype(np.int64)
    for step in np.flatnonzero(less_ns > 0).tolist():
        here = job.step[arc] == step
        most = longest_of(ns[here], int(less_ns[step]))
        lengths[arc[here]] -= np.maximum(ns[here] - most, 0)
    return lengths


def longest_of(ns: I64, less: int) -> int:
    """The longest that any of these may be for all of them to be shorter by `less` together."""
    ordered = np.sort(ns)[::-1]
    ranks = np.arange(1, len(ordered) + 1)
    saved = np.cumsum(ordered) - ranks * np.append(ordered[1:], 0)  # when the first k are cut to the next one
    k = int(np.searchsorted(saved, less))
    if k >= len(ordered):
        return 0
    return int((ordered[: k + 1].sum() - less) // (k + 1))


def gains(context: ReplayContext, edits: list[Edited]) -> list[Gain]:
    """What a step gains by each change, for the micro-batches that it has now."""
    job = context.job
    bests = [edited.best for edited in edits if edited.best is not None]
    lengths = [job.lengths, *(edited.lengths for edited in edits)]
    replayed = job.replay(np.stack([*lengths, *bests])).mean(axis=1)
    at_best = iter(replayed[len(lengths) :])
    usual = np.arange(replayed.shape[1]) >= context.settled
    found = []
    for edited, changed in zip(edits, replayed[1 : len(lengths)], strict=True):
        counted = usual if edited.counted is None else edited.counted
        after = (changed[counted] + edited.extra_ns) / edited.per
        best = None if edited.best is None else next(at_best)[counted].astype(np.float64)
        found.append(Gain(replayed[0][counted].astype(np.float64), after, best))
    return found


_DEVICE = (*DEVICE_COMPUTES, TimeCategory.DEVICE_COPY)


def accumulated(k: int) -> Edit:
    """Gradients reduced, and parameters updated, in every k-th step only. For all-reduces of the backward pass alone:
    what sharded parameters and optimizers send does not depend on it in the same way."""

    def edit(context: ReplayContext) -> Edited | None:
        job = context.job
        steps = job.step_begin.shape[1]
        reduces = {(call.kind, PHASES[call.phase]) for call in job.calls}
        if reduces != {("all_reduce", "backward")} or steps - context.settled < k or job.alone:
            return None
        counted = np.arange(steps) >= steps - (steps - context.settled) // k * k  # the last whole groups of k
        quiet = np.arange(steps) % k != (steps - 1) % k
        factors = job.unchanged()
        factors[:, slots((*HOST_TIME,), OPTIMIZER)] = 0
        factors[:, slots(_DEVICE)] = context.shares_of_passes[:, None]
        lengths = job.scaled(factors, quiet)
        unsent = np.append(quiet, False)[job.step[job.messages.arc]]
        lengths[job.messages.arc[unsent]], lengths[job.messages.own[unsent]] = NEVER, 0
        of_batches = context.shares_of_batches
        return Edited(lengths, counted, work=of_batches + (1 - of_batches) / k)

    return edit


_ONCE = 0.03  # of the window: as the report calls a recording one of first use (harness/analysis)


def larger(context: ReplayContext) -> Edited | None:
    """All work but the optimizer's twice, between the same gaps; one optimizer step and its messages for both. As much
    is evaluated for the same samples. Twice the data is loaded: what the host waits for it, in data loading and between
    the marked steps, doubles, too. For marked steps with work alone: what happens once, as the first use of kernels,
    has no micro-batch.
    """
    devices, causes = context.summary.devices, context.summary.idle_causes
    once = sum(c.duration_ns for c in causes if c.cause == "first use") > _ONCE * sum(d.window_ns for d in devices)
    if once or not all(own.marked for own in context.job.processes) or not context.of(WORK_TIME).any():
        return None
    factors = context.job.unchanged()
    for phase in (phase for phase in range(N_PHASES) if phase != OPTIMIZER):
        factors[:, slots((TimeCategory.HOST_WORK, TimeCategory.HOST_PRODUCT), phase)] = 2
    factors[:, [s for phase in (DATA, BETWEEN, EVALUATION) for s in slots(HOST_TIME, phase)]] = 2
    factors[:, slots(_DEVICE)] = 1 + context.shares_of_passes[:, None]
    factors[:, slots((TimeCategory.DEVICE_EVALUATION,))] = 2
    return Edited(context.job.scaled(factors), per=2, work=1 + context.shares_of_batches)


READY_NS = 1_500_000  # to take a batch that a worker has loaded: 1.4 to 2.4 ms in six of ten measurements on two cores
# A worker's batch lies in shared memory, which the training maps and reads for the first time: 19.3 MB took 8 ms longer
# than a second time (2.4 GB/s), and 5 ms longer than without workers in a public recording of a V100.
FIRST_READ_GB_PER_S = 4


def loaded_ahead(context: ReplayContext) -> Edited | None:
    """Batches that workers have loaded before they are needed: what is left is to take and to read each of them."""
    chosen = slots((TimeCategory.HOST_GAP, TimeCategory.HOST_STALL, TimeCategory.HOST_HELD), DATA)
    waits = context.time_ns[:, :, chosen].sum(axis=2).mean(axis=1)
    copied = sum(copy.bytes for copy in context.summary.copies if copy.direction == TO_DEVICE)
    left_ns = READY_NS + copied / max(context.summary.steps.counted, 1) / FIRST_READ_GB_PER_S
    if not (waits > left_ns).any():
        return None
    factors = context.job.unchanged()
    factors[:, chosen] = np.minimum(left_ns / np.maximum(waits, 1), 1)[:, None]
    return Edited(context.job.scaled(factors))


TF32_CAREFUL = 1 / 1.5  # half of the bytes and twice the rate make 2; converting to 16 bits takes some of it


def in_16_bits(context: ReplayContext) -> Edited | None:
    """Products and attention in bf16 (fp16, where a device has no bf16), by the precision that they have now. Careful:
    fp32 twice as fast, tf32 1.5 times. At best: by the device's peaks (configs/devices.yaml), since no kernel exceeds
    them; and everything else twice as fast, which is limited by bytes, of which there are half. Not for a job that
    computes in 16 bits, nor for a CPU: few multiply faster in bf16, and a recording does not show whether this one
    does."""
    fp32, tf32 = slots((TimeCategory.DEVICE_FP32,)), slots((TimeCategory.DEVICE_TF32,))
    job = context.job
    present = {c: context.has((c,)) for c in (TimeCategory.DEVICE_FP32, TimeCategory.DEVICE_TF32)}
    if not any(present.values()) or computes_in_16_bits(context.summary):
        return None
    careful, best = job.unchanged(), job.unchanged()
    careful[:, fp32], careful[:, tf32] = 0.5, TF32_CAREFUL
    lengths = job.scaled(careful)
    half, times = rates_in_16_bits(next((d.name for d in context.summary.devices if d.name), None))
    best[:, fp32], best[:, tf32] = 1 / times["fp32"], 1 / times["tf32"]
    best[:, slots((TimeCategory.DEVICE_WORK, TimeCategory.DEVICE_LAYOUT, TimeCategory.DEVICE_PRODUCT))] = 0.5
    said = ", ".join(
        f"{name} {low:g} to {times[name]:.3g}"
        for name, low, there in zip(("fp32", "tf32"), (2, 1.5), present.values(), strict=True)
        if there
    )
    return Edited(lengths, best=job.scaled(best), meaning=f"products in {half} ({said} times as fast)")


_16_BITS = ("bf16", "fp16", "fp8", "fp4", "int8")
_FULL = ("fp32", "tf32")


def computes_in_16_bits(s: Summary) -> bool:
    """Whether the products of a job are in 16 bits or fewer: it asked for it, or most of their time is."""
    if isinstance(s.experiment, Experiment) and s.experiment.in_bf16:
        return True
    half, full = (sum(k.duration_ns for k in s.kinds if k.precision in of) for of in (_16_BITS, _FULL))
    return half > full


def more_in_pipeline(context: ReplayContext) -> Edited | None:
    """As many micro-batches again, each for as long as the busiest stage takes for one. Source of the schedule:
    Narayanan et al., Efficient large-scale language model training on GPU clusters using Megatron-LM, 2021, section
    2.2."""
    if not any(call.kind == "send" for call in context.job.calls):
        return None
    if context.on_cpu:
        busy = sum(context.of(HOST_TIME, phase).mean(axis=1) for phase in (FORWARD, BACKWARD, SENDING))
    else:
        busy = context.of(WORK_TIME).mean(axis=1) * context.shares_of_passes
    return Edited(context.job.lengths, per=2, extra_ns=float(np.max(busy)))


BUCKET = 25 * 2**20  # bytes, PyTorch's own
SMALL = 2**16  # bytes: a message of less takes about as long as an empty one
MANY = 8  # messages of a step
_REDUCES = ("all_reduce", "reduce_scatter")


def ideal(context: ReplayContext) -> I64:
    """Every arc's length where messages take no time: ranks still wait for each other."""
    factors = context.job.unchanged()
    factors[:, slots((TimeCategory.TRANSFER, TimeCategory.TRANSFER_HELD))] = 0
    return context.job.scaled(factors)


def free(context: ReplayContext) -> Edited | None:
    return Edited(ideal(context)) if len(context.job.messages.arc) else None


def changed(latency: float, inverse_bandwidth: float) -> Edit:
    """Messages by the job's own α and β, with each multiplied."""

    def edit(context: ReplayContext) -> Edited | None:
        messages = context.job.messages
        sizes = np.unique(messages.bytes[messages.bytes > 0])
        times = [float(np.median(messages.ns[messages.bytes == size])) for size in sizes]
        line = fit_alpha_beta(sizes.tolist(), times)
        if line is None:
            return None
        alpha, beta = line.alpha_ns, line.beta_ns_per_byte * messages.bytes
        ratio = (latency * alpha + inverse_bandwidth * beta) / np.maximum(alpha + beta, 1)
        return Edited(_with_transfers(context, np.where(messages.bytes > 0, ratio, 1)))

    return edit


def small_buckets(context: ReplayContext) -> NDArray[np.bool_] | None:
    """Which messages are gradients in buckets so small that the latency counts; None: they are not."""
    job, messages = context.job, context.job.messages
    phases = {PHASES[call.phase] for call in job.calls}
    of_gradients = "backward" if phases & {"forward", "backward"} else "other"  # where no phase is known
    gradient = [call.kind in _REDUCES and PHASES[call.phase] == of_gradients for call in job.calls]
    reduces = np.array([*gradient, False])[messages.call]
    each = np.count_nonzero(reduces) / job.measured.size
    if each < MANY or (messages.bytes[reduces] < 0).any() or messages.bytes[reduces].mean() > SMALL:
        return None
    return reduces


def larger_buckets(context: ReplayContext) -> Edited | None:
    """Gradients in as few messages as buckets of 25 MB need, each with the latency of one of today's."""
    reduces = small_buckets(context)
    if reduces is None:
        return None
    job, messages = context.job, context.job.messages
    now = np.count_nonzero(reduces) / job.measured.size
    then = max(-(-int(messages.bytes[reduces].sum() / job.measured.size) // BUCKET), 1)
    return Edited(_with_transfers(context, np.where(reduces, then / now, 1.0)))


def _with_transfers(context: ReplayContext, ratio: NDArray[np.float64]) -> I64:
    messages = context.job.messages
    lengths: I64 = context.job.lengths.copy()
    lengths[messages.arc] = np.rint(messages.ns * ratio).astype(np.int64)
    return lengths
