"""What --mixed-precision fp8, --fsdp, --lora and --activation-offload make of a model. Knows no data and no loop."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from harness.common.errors import RequestError
from harness.common.model.model_config import FP8_BLOCK, LORA_MODULES
from harness.observe.ranges import annotate

OUTPUT = "lm_head"  # stays as it is, since small errors of the logits are large ones of the loss
LEAST_BYTES = 1024  # smaller tensors cost more to move than they take


def in_fp8(model: Any, device: torch.device) -> Any:
    """`model` with torchao's linear layers in the place of its own, in all but the output; before the optimizer.

    Weights keep their type. Inputs, weights and gradients are cast to fp8 for each product, with one scale per tensor,
    and the casts are kernels of their own: nothing here fuses them. Without a GPU the products are emulated: the same
    casts, then a product in full precision.

    Raises RequestError: torchao is not installed.
    """
    try:
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training
    except ImportError:
        raise RequestError(
            "--mixed-precision fp8: this Python has no torchao, which computes in fp8: pip install torchao, or use "
            "--mixed-precision bf16"
        ) from None
    config = Float8LinearConfig(emulate=device.type == "cpu")
    return convert_to_float8_training(model, module_filter_fn=is_converted, config=config)


def is_converted(layer: torch.nn.Module, name: str) -> bool:
    """Whether torchao takes this linear layer: both its sizes are multiples of the tensor cores' block."""
    sizes = (layer.in_features, layer.out_features) if isinstance(layer, torch.nn.Linear) else (1,)
    return name.rpartition(".")[2] != OUTPUT and all(size % FP8_BLOCK == 0 for size in sizes)


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


def _mesh(way: Way, device_type: str) -> DeviceMesh:
    """All ranks in one group; or a row of them per node."""
    world = dist.get_world_size()
    if way == "full":
        return init_device_mesh(device_type, (world,))
    inside = int(os.environ.get("LOCAL_WORLD_SIZE", world))
    return init_device_mesh(device_type, (world // inside, inside), mesh_dim_names=("replicate", "shard"))


def with_lora(model: Any, rank: int, recomputes: bool) -> Any:
    """`model` with frozen weights and adapters of this rank (Hu et al., LoRA, 2021) beside every matrix of its layers.

    recomputes: whether activations are computed again in the backward pass.

    Raises RequestError: peft is not installed.
    """
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError:
        raise RequestError("--lora: this Python has no peft, which makes the adapters: pip install peft") from None
    warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)  # peft asks it
    with_adapters = get_peft_model(model, LoraConfig(r=rank, target_modules=list(LORA_MODULES)))
    if recomputes:
        model.enable_input_require_grads()  # else no recomputed layer would have a gradient to pass on
    with_adapters.train()
    return with_adapters


class HostCopy(NamedTuple):
    """A tensor in the host's memory, and the device that it came from."""

    copy: Tensor
    device: torch.device


@contextmanager
def offload_activations(model: Any, enabled: bool) -> Iterator[None]:
    """Inside, activations that autograd saves are copied to pinned host memory, and back when the backward pass asks.

    Weights stay: they are on the device anyway. Autocast's bfloat16 copies of them go, since autograd saves those. Each
    copy is waited for, which shows its cost; it is a range `offload_activation` or `fetch_activation`. Without GPU the
    copies go from memory to memory and save nothing.
    """
    if not enabled:
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
