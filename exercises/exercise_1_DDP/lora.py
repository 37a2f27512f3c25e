"""--lora: train two small matrices beside each weight matrix, and not the weights."""

from __future__ import annotations

import warnings
from typing import Any

from harness.common.errors import RequestError
from harness.common.model_config import LORA_MODULES


def adapted(model: Any, rank: int, recomputes: bool) -> Any:
    """`model` with frozen weights and adapters of this rank (Hu et al., LoRA, 2021) beside every matrix of its layers.

    recomputes: whether activations are computed again in the backward pass.

    Raises:
        RequestError: peft is not installed.
    """
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError:
        raise RequestError(
            "--lora: this Python has no peft, which makes the adapters: pip install peft"
        ) from None
    warnings.filterwarnings(
        "ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning
    )  # peft asks it
    with_adapters = get_peft_model(model, LoraConfig(r=rank, target_modules=list(LORA_MODULES)))
    if recomputes:
        model.enable_input_require_grads()  # else no recomputed layer would have a gradient to pass on
    with_adapters.train()
    return with_adapters
