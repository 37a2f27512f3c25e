"""What to try against a loss: the advice of its cause, as far as the recording allows it. Each condition looks at what
was recorded; where that says nothing, the advice stays."""

from __future__ import annotations

from collections.abc import Callable

from harness.analysis.labels import are_cpus, is_compiled
from harness.analysis.process.copies import HOST_COPIES, TO_DEVICE
from harness.analysis.summary import HostActivity, Summary, TimeLost
from harness.explain.messages import if_transfer
from harness.explain.start import shows_pytorch
from harness.replay.attribute.causes import CAUSES
from harness.replay.attribute.suspect import Cause
from harness.theory.devices import half_precision

_EACH_TENSOR = 0.1  # frees for each kernel: an allocator that keeps memory frees whole segments, and few of them
_WAITS = ("os call", "wait")  # kinds of activities in which a thread does nothing


def advice(s: Summary, time_lost: TimeLost) -> str:
    """For any program where this one does not show to be PyTorch. It may have `{phase}` and `{who}`."""
    entry = CAUSES[time_lost.cause]
    if entry.any_program and not shows_pytorch(s):
        return entry.any_program
    fitted = _FITTED.get(entry.cause)
    return (fitted(s, time_lost) if fitted else "") or entry.advice


def _pinned(s: Summary, *directions: str) -> bool:
    """Whether such copies were recorded, and the host's memory of all of them is pinned."""
    return {copy.memory for copy in s.copies if copy.direction in directions} == {"pinned"}


def _data(s: Summary, _: TimeLost) -> str:
    pinned = "more DataLoader workers and prefetching (num_workers, prefetch_factor): the copies are from pinned memory"
    return pinned if _pinned(s, TO_DEVICE) else ""


def _copies(s: Summary, _: TimeLost) -> str:
    return "copy with non_blocking=True: the host's buffers are pinned already" if _pinned(s, *HOST_COPIES) else ""


def _allocation(s: Summary, time_lost: TimeLost) -> str:
    """Where each tensor is freed on the device, no allocator keeps memory."""
    freed = sum(own.count for own in _of(s, time_lost) if own.call and "Free" in own.call)
    if freed < _EACH_TENSOR * sum(device.kernels for device in s.devices):
        return ""
    return (
        f"let PyTorch's allocator keep freed memory: at least {freed:,} calls free tensors one by one, so it is off "
        "(unset PYTORCH_NO_CUDA_MEMORY_CACHING and PYTORCH_NO_HIP_MEMORY_CACHING)"
    )


def _communication(s: Summary, time_lost: TimeLost) -> str:
    return CAUSES[time_lost.cause].advice + if_transfer(s)


def _small_operators(s: Summary, _: TimeLost) -> str:
    """A compiled program has fused operators; what is left are CUDA graphs."""
    graphs = "" if are_cpus(s.devices) else ", or CUDA graphs (torch.compile's mode='reduce-overhead')"
    return f"larger batches{graphs}" if is_compiled(s.kernels) else ""


def _precision(s: Summary, _: TimeLost) -> str:
    half = next((half_precision(device.name) for device in s.devices if device.name), "bf16")
    return "mixed precision: fp16, with loss scaling" if half == "fp16" else ""


def _host(s: Summary, time_lost: TimeLost) -> str:
    """A host that waits for something else, in no range that says for what, does no work that could be moved."""
    most = max(_of(s, time_lost), key=lambda activity: activity.idle_ns, default=None)
    if most is None or most.kind not in _WAITS or most.range or most.operator:
        return ""
    called = f" in {most.what}" if most.kind == "os call" else ""
    return (
        f"see what the host waits for{called}: the DataLoader's processes (then more of them, num_workers, or less "
        "work for each sample), a file, another thread or the network"
    )


def _of(s: Summary, time_lost: TimeLost) -> list[HostActivity]:
    """What the host of the loss's ranks did for its cause."""
    from_host = ("host work", "not recorded")
    wanted = {Cause.ALLOCATION.value: ("allocation",)}.get(time_lost.cause, from_host)
    return [own for own in s.host_activities if own.rank in time_lost.ranks and own.cause in wanted]


_FITTED: dict[Cause, Callable[[Summary, TimeLost], str]] = {
    Cause.DATA_STALL: _data,
    Cause.BLOCKING_COPY: _copies,
    Cause.ALLOCATION: _allocation,
    Cause.COMMUNICATION: _communication,
    Cause.SMALL_BUCKETS: _communication,
    Cause.TINY_KERNELS: _small_operators,
    Cause.PRECISION: _precision,
    Cause.HOST_STALL: _host,
}
