"""slow-link: each message of a rank starts late, by a latency and by what its bytes take on a narrow link."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.distributed import ProcessGroup
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from exercises.utils.faults.moments import wrap
from exercises.utils.faults.per_step import PerStep
from exercises.utils.faults.target import Target
from harness.common.faults import Fault

# The calls of a process group by which Python sends, and the place of the tensors that this rank gives.
SENDING = {
    "allreduce": 0,
    "allreduce_coalesced": 0,
    "broadcast": 0,
    "reduce": 0,
    "send": 0,
    "allgather": 1,
    "_allgather_base": 1,
    "all_gather_single": 1,
    "allgather_into_tensor_coalesced": 1,
    "reduce_scatter": 1,
    "_reduce_scatter_base": 1,
    "reduce_scatter_single": 1,
    "reduce_scatter_tensor_coalesced": 1,
    "alltoall": 1,
    "alltoall_base": 1,
    "all_to_all_single": 1,
}


def inject(fault: Fault, target: Target) -> None:
    """Sleep before each message, in the thread that sends it: of another thread a trace shows no operators."""
    link = _Link(fault, target)
    for name, place in SENDING.items():
        if hasattr(ProcessGroup, name):
            wrap(ProcessGroup, name, link.late(place), target.until)
    for model in target.models:
        if isinstance(model, DistributedDataParallel):
            # DDP sends from C++. With this hook, which computes the same, it sends from Python.
            model.register_comm_hook(None, allreduce_hook)


class _Link:
    """Delays messages."""

    def __init__(self, fault: Fault, target: Target) -> None:
        self._fault = fault
        self._delayed = PerStep(fault, target)

    def late(self, place: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Wraps a call whose argument `place` has the tensors to send."""

        def wrapper(call: Callable[..., Any]) -> Callable[..., Any]:
            def delayed(group: ProcessGroup, *args: Any, **kwargs: Any) -> Any:
                self._delay(bytes_of(args[place]) if len(args) > place else 0)
                return call(group, *args, **kwargs)

            return delayed

        return wrapper

    def _delay(self, size_bytes: int) -> None:
        begin_ns = time.perf_counter_ns()
        time.sleep(delay_ns(self._fault, size_bytes) / 1e9)
        self._delayed.add(time.perf_counter_ns() - begin_ns)


def delay_ns(fault: Fault, size_bytes: int) -> int:
    """Latency + size / bandwidth of the link, in nanoseconds."""
    megabits = fault.values["mbps"]
    return fault.ns() + (0 if megabits == "unlimited" else round(8e3 * size_bytes / float(megabits)))


def bytes_of(tensors: torch.Tensor | Iterable[Any]) -> int:
    """Size of a tensor, or of all tensors in nested lists."""
    if isinstance(tensors, torch.Tensor):
        return tensors.numel() * tensors.element_size()
    return sum(map(bytes_of, tensors))
