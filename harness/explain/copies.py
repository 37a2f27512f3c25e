"""Why copies cost a job's devices time, and what helps: the classes of copies that run while nothing is computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from harness.analysis.process.copies import HOST_COPIES, SMALL_BYTES, TO_HOST
from harness.analysis.process.kinds import MEMSET
from harness.analysis.summary import Copy, Device
from harness.common.display.format import amount, duration, percent, rate

AT_LIMIT = 0.75  # of a link's nominal bandwidth, of which large copies reach 0.8 to 0.9
FILLING = 0.2  # of the devices' time alone with copies, from which they are what the job is about
_OF_A_MODEL = 1 << 20  # bytes, from which a copy may be a layer's parameters
_OF_ONE_STEP = 4  # large copies to one device: a step's inputs are one or two tensors, a model has many
_MOSTLY = 0.5
_WHY_SLOW = "A slower link has an older PCIe, fewer lanes, or other devices that share it (nvidia-smi topo -m)."


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


def link_sentence(copies: Sequence[Copy], job: CopiedJob) -> str:
    """How near copies are to the limit of their link, as far as it is known."""
    size, ns = sum(c.bytes for c in copies), sum(c.duration_ns for c in copies)
    reached = size / ns if ns else 0.0
    nominal = next((c.link_gb_per_s for c in copies if c.link_gb_per_s), None)
    share = f"{rate(reached)} GB/s is {percent(reached / nominal)} of the link's nominal bandwidth" if nominal else ""
    if nominal and reached >= AT_LIMIT * nominal:
        return f"{share}, {rate(nominal)} GB/s: the link's limit."
    if nominal:
        return f"{share}, {rate(nominal)} GB/s. {_WHY_SLOW}"
    named = any(d.name for d in job.devices)
    known = "has no entry for this device" if named else "needs the device's name, which was not recorded"
    return f"The link's nominal bandwidth is not known: the table {known}."


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
