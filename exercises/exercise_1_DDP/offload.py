"""--activation-offload: what the backward pass needs waits in the host's memory meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from harness.observe.ranges import annotate

LEAST_BYTES = 1024  # smaller tensors cost more to move than they take


class HostCopy(NamedTuple):
    """A tensor in the host's memory, and the device that it came from."""

    copy: Tensor
    device: torch.device


@contextmanager
def in_host_memory(model: Any, wanted: bool) -> Iterator[None]:
    """Inside, activations that autograd saves are copied to pinned host memory, and back when the backward pass asks.

    Weights stay: they are on the device anyway. Autocast's bfloat16 copies of them go, since autograd saves those. Each
    copy is waited for, which shows its cost; it is a range `offload_activation` or `fetch_activation`. Without GPU the
    copies go from memory to memory and save nothing.
    """
    if not wanted:
        yield
        return
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}

    def pack(tensor: Tensor) -> Tensor | HostCopy:
        small = tensor.numel() * tensor.element_size() < LEAST_BYTES
        if small or tensor.untyped_storage().data_ptr() in weights:
            return tensor
        with annotate("offload_activation"):
            copy = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
            return HostCopy(copy.copy_(tensor), tensor.device)

    def unpack(kept: Tensor | HostCopy) -> Tensor:
        if isinstance(kept, Tensor):
            return kept
        with annotate("fetch_activation"):
            return kept.copy.to(kept.device)

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        yield
