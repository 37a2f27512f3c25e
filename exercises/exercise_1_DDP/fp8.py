"""--precision fp8: the layers' matrix products in 8 bits, by torchao."""

from __future__ import annotations

from typing import Any

import torch

from harness.common.errors import RequestError
from harness.common.precision import FP8_BLOCK

OUTPUT = "lm_head"  # stays as it is, since small errors of the logits are large ones of the loss


def converted(model: Any, device: torch.device) -> Any:
    """`model` with torchao's linear layers in the place of its own, in all but the output; before the optimizer.

    Weights keep their type. Inputs, weights and gradients are cast to fp8 for each product, with one scale per tensor,
    and the casts are kernels of their own: nothing here fuses them. Without a GPU the products are emulated: the same
    casts, then a product in full precision.

    Raises:
        RequestError: torchao is not installed.
    """
    try:
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training
    except ImportError:
        raise RequestError(
            "--precision fp8: this Python has no torchao, which computes in fp8: pip install torchao, or use "
            "--precision bf16"
        ) from None
    config = Float8LinearConfig(emulate=device.type == "cpu")
    return convert_to_float8_training(model, module_filter_fn=is_converted, config=config)


def is_converted(layer: torch.nn.Module, name: str) -> bool:
    """Whether torchao takes this linear layer: both its sizes are multiples of the tensor cores' block."""
    sizes = (layer.in_features, layer.out_features) if isinstance(layer, torch.nn.Linear) else (1,)
    return name.rpartition(".")[2] != OUTPUT and all(size % FP8_BLOCK == 0 for size in sizes)
