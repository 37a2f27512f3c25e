"""--fsdp: PyTorch's FSDP2 in the place of DDP. Each rank keeps a part of every parameter; a layer is gathered for use.

Knows the models of transformers; knows nothing of data or of the loop.
"""

from __future__ import annotations

import os
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

Way = Literal["full", "hybrid"]


def shard(model: Any, way: Way, device: torch.device, bf16: bool) -> None:
    """Shard `model` in place, over all ranks (`full`) or inside each node (`hybrid`); call it before the optimizer.

    A layer at a time comes to `device` and is cut there, so no rank holds the whole model. Each gathered layer is
    dropped after its forward and again after its backward pass. Gradients are reduced in every micro-batch. bf16:
    gathered parameters, and what is computed with them, are bfloat16; the shards and the reduction stay float32.
    """
    if not dist.is_initialized():  # accelerate makes no group of one rank
        dist.init_process_group(rank=0, world_size=1, store=dist.HashStore())  # type: ignore[attr-defined]  # public
    precision = torch.bfloat16 if bf16 else None
    policy = MixedPrecisionPolicy(param_dtype=precision, reduce_dtype=torch.float32 if bf16 else None)
    mesh = _mesh(way, device.type)
    layers = next(part for part in model.modules() if isinstance(part, torch.nn.ModuleList))
    for part in (*layers, model):  # last what is in no layer: embedding, final norm, output
        fully_shard(part, mesh=mesh, mp_policy=policy, reshard_after_forward=True)
    model.to(device)  # its buffers


def _mesh(way: Way, device: str) -> DeviceMesh:
    """All ranks in one group; or a row of them per node."""
    world = dist.get_world_size()
    if way == "full":
        return init_device_mesh(device, (world,))
    inside = int(os.environ.get("LOCAL_WORLD_SIZE", world))
    return init_device_mesh(device, (world // inside, inside), mesh_dim_names=("replicate", "shard"))
