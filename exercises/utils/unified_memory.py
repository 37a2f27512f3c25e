"""--unified-memory: tensors of the GPU in memory that GPU and host share, by RMM. Not tried on a GPU yet.

PyTorch's own counters do not work with another allocator (pytorch/pytorch#133281): RMM counts in their place.
"""

from __future__ import annotations

import torch

from harness.common.errors import RequestError
from harness.observe.metrics import other_allocators


def use(local_rank: int) -> None:
    """Let PyTorch allocate managed memory on this rank's GPU; call it before anything uses CUDA.

    From a pool that grows as needed, since each allocation of managed memory waits for the GPU.

    Raises RequestError: there is no GPU with the host's memory, or RMM is not installed.
    """
    if not torch.cuda.is_available():
        raise RequestError("--unified-memory needs GH200, and this training runs on CPUs: leave it out")
    try:
        import rmm
        from rmm.allocators.torch import rmm_torch_allocator
    except ImportError:
        raise RequestError(
            "--unified-memory: this Python has no RMM, which allocates it: pip install rmm-cu12 (or of your CUDA), or "
            "leave it out"
        ) from None
    rmm.reinitialize(pool_allocator=True, managed_memory=True, devices=local_rank)
    counting = rmm.mr.StatisticsResourceAdaptor(rmm.mr.get_per_device_resource(local_rank))
    rmm.mr.set_per_device_resource(local_rank, counting)
    other_allocators.append(lambda: int(counting.allocation_counts.peak_bytes))
    torch.cuda.memory.change_current_allocator(rmm_torch_allocator)
    name = torch.cuda.get_device_name(local_rank)
    if "GH200" not in name:
        raise RequestError(f"--unified-memory needs GH200, and this is {name}: leave it out")
