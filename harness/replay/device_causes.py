"""Causes on the devices: exposed communication, the pipeline's bubble, copies, precision. Each is found as a change of
the graph, and as a share of the devices' time, which limits it, and which is all there is without a replay."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from harness.analysis import device_time
from harness.analysis.metrics import waiting_share
from harness.analysis.process.copies import HOST_COPIES, SMALL_BYTES, TO_HOST
from harness.analysis.process.kinds import LAYOUT, MEMSET
from harness.analysis.summary import Copy, Device, Pipeline, PipelineStage, RankTraining, Summary
from harness.common.format import amount, duration, percent, rate
from harness.replay.counterfactuals import TF32_CAREFUL, ideal, larger_buckets, small_buckets, with_less
from harness.replay.graph import BACKWARD, TimeCategory
from harness.replay.suspect import Cause, ReplayContext, Suspect, slots
from harness.theory.devices import peak_flops_per_s
from harness.traces.trace import F64, I64


def communication(context: ReplayContext) -> Iterator[Suspect]:
    """Messages that take no time; ranks still wait for each other, and that time counts for those who are waited for.
    Where the other ranks of a collective are not known, its waiting cannot be told from its transfer: all counts."""
    exposed = context.device_time["exposed_communication_ns"]
    if not np.nansum(exposed):
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
    yield replace(_steady(context, Cause.SMALL_BUCKETS, edited.lengths, None), phase=BACKWARD, evidence=said)


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
    if context.has(tuple(least)):
        yield replace(_steady(context, Cause.PRECISION, context.job.scaled(factors), None), factor=factors)


def layout(context: ReplayContext) -> Iterator[Suspect]:
    """Conversions between channels first and channels last, which a model in one layout does not need."""
    if context.has((TimeCategory.DEVICE_LAYOUT,)):
        factors = context.job.unchanged()
        factors[:, slots((TimeCategory.DEVICE_LAYOUT,))] = 0
        yield replace(_steady(context, Cause.LAYOUT, context.job.scaled(factors), None), factor=factors)


# What autograd's anomaly mode calls for each gradient, and what these call: isnan(g)._is_any_true().item()
_CHECK = "aten::_is_any_true"
_OF_CHECK = ("aten::isnan", "aten::ne", _CHECK, "aten::any", "aten::item", "aten::_local_scalar_dense")


def anomaly_mode(context: ReplayContext) -> Iterator[Suspect]:
    """Gradients that are looked through for NaN in each backward pass, on CPUs, whose operators are recorded."""
    if not context.on_cpu:
        return
    lengths = context.job.lengths.copy()
    found: list[float] = []
    for process in range(context.processes):
        count, ns = (each / max(context.step_count, 1) for each in _checks(context, process))
        if count < _FEWEST_CHECKS:
            return
        found.append(count)
        less = np.full(context.step_count, ns)
        lengths = np.minimum(lengths, with_less(context, process, slots((TimeCategory.HOST_WORK,), BACKWARD), less))
    each = float(np.mean(found))
    said = f"aten::isnan, {_CHECK} and aten::item, {each:.0f} times in each step"
    yield replace(_steady(context, Cause.ANOMALY_MODE, lengths, None), phase=BACKWARD, what=said)


_FEWEST_CHECKS = 3  # in a step: a program that looks at its loss has one or two


def _checks(context: ReplayContext, process: int) -> tuple[int, float]:
    """How many gradients of a process were looked at in the window, and the time of the operators for it. Of operators
    that others call, too, the part that belongs to as many calls."""
    rows = {name: row for name, row in context.kernel_means(process).items() if name in _OF_CHECK}
    checks = min(rows.get(_CHECK, (0, 0.0))[0], rows.get("aten::isnan", (0, 0.0))[0])
    return checks, sum(min(checks, count) * mean_ns for count, mean_ns in rows.values())


def _steady(context: ReplayContext, cause: Cause, lengths: I64, saved_ns: F64 | None) -> Suspect:
    """A loss of all processes in every step."""
    return Suspect(cause, context.everyone, context.every_step, lengths, standing=True, saved_ns=saved_ns)


def communication_share(s: Summary) -> float | None:
    """Exposed communication and idle time that waits for communication, without what belongs to a pipeline's bubble:
    communication in the bubble, or messages between stages during their work."""
    exposed = device_time.share(s.devices, "exposed_communication_ns")
    if exposed is None:
        return None
    in_schedule = _of_stages(s.pipeline, lambda x: x.bubble_communication_ns + x.work_send_recv_ns)
    return exposed + (idle("communication")(s) or 0.0) - in_schedule


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


def _of_stages(p: Pipeline | None, part: Callable[[PipelineStage], int]) -> float:
    stages: Sequence[PipelineStage] = p.per_stage if p else ()
    return sum(map(part, stages)) / max(sum(x.window_ns for x in stages), 1)


def precision_share(s: Summary) -> float | None:
    """What 16 bits save of the time of products on GPUs: half of those in fp32, a third of those in tf32."""
    devices = [d for d in s.devices if d.device_kind == "gpu"]
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
        return idle("data loading")(s)
    rank = slowest(s)
    return (rank.median_data_ns or 0) / (rank.median_step_ns or 1) if rank else None


def slowest(s: Summary) -> RankTraining | None:
    """The rank with the longest step by the training's own clock."""
    timed = [t for t in s.training if t.median_step_ns]
    return max(timed, key=lambda t: t.median_step_ns or 0, default=None)


def has_bf16(devices: Sequence[Device]) -> bool:
    """Whether no device is known to compute in fp16 but not in bf16, as before Ampere."""
    names = {d.name for d in devices if d.name}
    return not any(peak_flops_per_s(n, "fp16") and not peak_flops_per_s(n, "bf16") for n in names)


AT_LIMIT = 0.75  # of a link's nominal bandwidth, of which large copies reach 0.8 to 0.9
FILLING = 0.2  # of the devices' time alone with copies, from which they are what the job is about
_WITHOUT_LATENCY = 1 << 24  # bytes, from which latency is no noticeable part of a copy
_OF_A_MODEL = 1 << 20  # bytes, from which a copy may be a layer's parameters
_ALIKE = 0.05  # by which the bandwidths of two classes of sizes may differ to be called the same
_FEW = 0.05  # of the bytes of large copies, below which a class of sizes shows nothing
_OF_ONE_STEP = 4  # large copies to one device: a step's inputs are one or two tensors, a model has many
_MOSTLY = 0.5


class CopyClass(str, Enum):
    """Of copies that run while the device computes nothing."""

    OFFLOAD = "offload"  # parameters or optimizer state in host memory, more than computing can hide
    LARGE = "large"  # few copies a step, or no steps are known: more than computing can hide, inputs perhaps
    PAGEABLE = "pageable"
    SMALL = "small"
    EXPOSED = "could be hidden"
    TO_HOST = "device to host"
    ON_DEVICE = "on the device"


Words = tuple[str, str, str]  # what it is, why it takes time, what helps


@dataclass(frozen=True)
class CopyCause:
    """One class of a job's copies. exposed_ns: of all devices together. hideable_ns: what other work without a copy
    beside it could hide of copies at most, of all devices together."""

    kind: CopyClass
    copies: tuple[Copy, ...]
    exposed_ns: int
    hideable_ns: int
    what: str
    why: str
    advice: str


@dataclass(frozen=True)
class CopiedJob:
    """What the classes are judged by. `steps`: counted steps of all ranks, 0: not known. `unit`: step or period."""

    devices: Sequence[Device]
    steps: int = 0
    unit: str = "step"

    @property
    def window_ns(self) -> int:
        return sum(d.window_ns for d in self.devices) or 1

    @property
    def hideable_ns(self) -> int:
        """Compute and communication without a copy beside it: copies can be hidden behind no more."""
        working = sum(d.compute_ns + (d.exposed_communication_ns or 0) for d in self.devices)
        return max(working - sum(d.memory_ns - d.exposed_memory_ns for d in self.devices), 0)

    def each(self, count: int) -> str:
        """A count of the whole job for one step of one device."""
        per = count / (self.steps or len(self.devices) or 1)
        return f"{per:,.{0 if per >= 9.95 else 1}f} for each device" + f" in a {self.unit}" * (self.steps > 0)


def copy_causes(copies: Sequence[Copy], job: CopiedJob) -> list[CopyCause]:
    """The classes of copies that cost a job's devices time, the most exposed first; none without exposed copies."""
    groups: dict[CopyClass, list[Copy]] = {}
    for copy in copies:
        if copy.exposed_ns:
            groups.setdefault(_class_of(copy, job), []).append(copy)
    causes = [
        CopyCause(kind, tuple(rows), _exposed(rows), job.hideable_ns, *_WORDS[kind](rows, job))
        for kind, rows in groups.items()
    ]
    return sorted(causes, key=lambda cause: -cause.exposed_ns)


def _class_of(copy: Copy, job: CopiedJob) -> CopyClass:
    if copy.direction not in HOST_COPIES:
        return CopyClass.ON_DEVICE
    fills = copy.exposed_ns > FILLING * job.window_ns
    offloads = fills and 0 < _OF_ONE_STEP * job.steps <= _large(copy)
    if copy.direction == TO_HOST and not offloads:
        return CopyClass.TO_HOST
    if copy.small_ns >= _MOSTLY * copy.duration_ns:
        return CopyClass.SMALL
    if copy.memory == "pageable":
        return CopyClass.PAGEABLE
    if fills and copy.exposed_ns > job.hideable_ns:
        return CopyClass.OFFLOAD if offloads else CopyClass.LARGE
    return CopyClass.EXPOSED


def _large(*copies: Copy) -> int:
    return sum(s.count for copy in copies for s in copy.sizes if s.at_least_bytes >= _OF_A_MODEL)


def _exposed(copies: Sequence[Copy]) -> int:
    return sum(copy.exposed_ns for copy in copies)


def _moved(copies: Sequence[Copy]) -> str:
    """All of them: "51.0 GB at 27.7 GB/s"."""
    size, ns = sum(c.bytes for c in copies), sum(c.duration_ns for c in copies)
    return f"{amount(size)} at {rate(size / ns)} GB/s" if size and ns else f"{sum(c.count for c in copies):,} copies"


def _memory(copies: Sequence[Copy]) -> str:
    kinds = {copy.memory for copy in copies}
    return f"{kinds.pop()} host memory" if len(kinds) == 1 and None not in kinds else "host memory"


_WHY_SLOW = "A slower link has an older PCIe, fewer lanes, or other devices that share it (nvidia-smi topo -m)."


def link_sentence(copies: Sequence[Copy], job: CopiedJob) -> str:
    """How near copies are to the limit of their link, as far as it is known."""
    size, ns = sum(c.bytes for c in copies), sum(c.duration_ns for c in copies)
    reached = size / ns if ns else 0.0
    nominal = next((c.link_gb_per_s for c in copies if c.link_gb_per_s), None)
    share = f"{rate(reached)} GB/s is {percent(reached / nominal)} of the link's nominal bandwidth" if nominal else ""
    if nominal and reached >= AT_LIMIT * nominal:
        return f"{share}, {rate(nominal)} GB/s: the link's limit."
    steady = steady_bandwidth(copies)
    most = f"Copies of all large sizes reach {rate(steady)} GB/s, so this is the link's limit. " if steady else ""
    if nominal:
        return f"{share}, {rate(nominal)} GB/s. {most}{_WHY_SLOW}"
    named = any(d.name for d in job.devices)
    known = "has no entry for this device" if named else "needs the device's name, which was not recorded"
    return f"{most}The link's nominal bandwidth is not known: the table {known}."


def steady_bandwidth(copies: Sequence[Copy]) -> float | None:
    """The bandwidth in GB/s of large copies, if it does not grow with their size; None: it does, or one size only."""
    large = [s for copy in copies for s in copy.sizes if s.at_least_bytes >= _WITHOUT_LATENCY and s.duration_ns]
    enough = _FEW * sum(s.bytes for s in large)
    reached = [s.bytes / s.duration_ns for s in large if s.bytes > enough]
    return max(reached) if len(reached) > 1 and min(reached) >= (1 - _ALIKE) * max(reached) else None


def _bound(copies: Sequence[Copy], job: CopiedJob) -> str:
    """What prefetching can hide at most; nothing where it can hide all."""
    left = _exposed(copies) - job.hideable_ns
    if left <= 0:
        return ""
    return (
        f" Copies can be hidden only behind other work, which takes {percent(job.hideable_ns / job.window_ns)} of the "
        f"time: with any prefetching, copies alone still take {percent(left / job.window_ns)}."
    )


def _offload(copies: Sequence[Copy], job: CopiedJob) -> Words:
    return (
        f"parameters or optimizer state in {_memory(copies)} (offload), {_moved(copies)}",
        f"There are {_large(*copies):,} large copies, {job.each(_large(*copies))}: more than inputs need. "
        f"{link_sentence(copies, job)}{_bound(copies, job)}",
        "keep more of the model on the devices (no offload, or of the optimizer alone; more devices to shard it over), "
        "copy fewer bytes (parameters in bf16), or compute more with each copy (a larger micro-batch)",
    )


def _too_large(copies: Sequence[Copy], job: CopiedJob) -> Words:
    return (
        f"large copies from {_memory(copies)} to the device, {_moved(copies)}",
        f"{link_sentence(copies, job)}{_bound(copies, job)}",
        "copy fewer bytes: integers or 16 bits in place of fp32, selecting on the host, decoding on the device; if "
        "they are parameters or optimizer state (offload), keep more of them on the device",
    )


def _pageable(copies: Sequence[Copy], job: CopiedJob) -> Words:
    nominal = next((c.link_gb_per_s for c in copies if c.link_gb_per_s), None)
    beside = f", where the link's nominal bandwidth is {rate(nominal)} GB/s" if nominal else ""
    return (
        f"copies from pageable host memory to the device, {_moved(copies)}{beside}",
        "The driver copies pageable memory through a pinned buffer, and the host waits for it: such a copy is slow, "
        "and the host launches nothing meanwhile.",
        "pin the host buffers (pin_memory=True) and copy with non_blocking=True",
    )


def _small(copies: Sequence[Copy], job: CopiedJob) -> Words:
    count, ns = sum(c.small_count for c in copies), sum(c.small_ns for c in copies)
    return (
        f"{count:,} copies of less than {SMALL_BYTES >> 10} KiB to the device, {job.each(count)}",
        f"Such a copy takes {duration(ns / max(count, 1))}. That is latency, which does not depend on its bytes.",
        "join small tensors on the host and copy them at once, or create them on the device",
    )


def _hideable(copies: Sequence[Copy], job: CopiedJob) -> Words:
    fast = any(c.link_gb_per_s and (c.bandwidth_gb_per_s or 0) >= AT_LIMIT * c.link_gb_per_s for c in copies)
    pinned = fast or all(copy.memory == "pinned" for copy in copies)
    prefetch = "copy the next batch on a separate stream while kernels run (non_blocking=True, prefetching)"
    return (
        f"copies from {_memory(copies)} to the device, {_moved(copies)}",
        "Nothing is computed beside them, and there is enough other work to hide them: "
        f"{percent(job.hideable_ns / job.window_ns)} of the time.",
        prefetch if pinned else f"pin the host buffers if they are not pinned, and {prefetch}",
    )


def _to_host(copies: Sequence[Copy], job: CopiedJob) -> Words:
    count = sum(c.count for c in copies)
    what = f"copies from the device to {_memory(copies)}, {_moved(copies)}"
    if sum(c.small_ns for c in copies) >= _MOSTLY * sum(c.duration_ns for c in copies):
        return (
            f"{what}, {job.each(count)}",
            "They carry single values (.item(), a logged loss, a condition on a tensor), and the host waits for each.",
            "read values less often, several at once, or some steps later",
        )
    return (
        what,
        "They carry whole tensors: a checkpoint, collected outputs, or offload.",
        "copy into pinned memory with non_blocking=True, less often, or reduce on the device first; write checkpoints "
        "in the background (torch.distributed.checkpoint.async_save)",
    )


def _on_device(copies: Sequence[Copy], job: CopiedJob) -> Words:
    del job
    moved = [c for c in copies if c.direction != MEMSET]
    return (
        f"copies within the device or between devices, {_moved(moved)}" if moved else "memory sets",
        "They move bytes and compute nothing.",
        "find the operators that copy (contiguous, clone, cat, zero_) and leave them out, or fuse them (torch.compile)",
    )


_WORDS: dict[CopyClass, Callable[[Sequence[Copy], CopiedJob], Words]] = {
    CopyClass.OFFLOAD: _offload,
    CopyClass.LARGE: _too_large,
    CopyClass.PAGEABLE: _pageable,
    CopyClass.SMALL: _small,
    CopyClass.EXPOSED: _hideable,
    CopyClass.TO_HOST: _to_host,
    CopyClass.ON_DEVICE: _on_device,
}
