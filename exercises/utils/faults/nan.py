"""nan: the loss of a rank, or its gradient, is NaN. With data parallelism all ranks get it with the gradients."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import torch

from exercises.utils.faults.target import Target
from harness.common.faults import Fault

Change = Callable[[torch.Tensor], torch.Tensor]


def inject(fault: Fault, target: Target) -> None:
    """Multiply by NaN what the model returns, or the gradient that comes back to it."""
    first, change = fault.count("step"), _IN[fault.values["in"]]

    def after_forward(_module: object, _inputs: object, output: Any) -> Any:
        return changed(output, change) if target.moments.step >= first else output

    def record() -> None:
        if target.moments.step >= first:
            target.record(fault, target.moments.step, 0, time.time_ns())

    for model in target.models:
        target.until.callback(model.register_forward_hook(after_forward).remove)
    target.moments.at("forward", record)


def changed(output: Any, change: Change) -> Any:
    """What a model returns, with its loss changed; if it returns no loss, with all floats changed."""
    if isinstance(output, torch.Tensor):
        return change(output) if output.is_floating_point() else output
    if isinstance(getattr(output, "loss", None), torch.Tensor):
        output.loss = change(output.loss)
    elif isinstance(output, dict):
        for name, value in output.items():
            output[name] = changed(value, change)
    elif type(output) in (tuple, list):
        return type(output)(changed(value, change) for value in output)
    return output


def _times_nan(tensor: torch.Tensor) -> torch.Tensor:
    return tensor * math.nan


def _nan_gradient(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.requires_grad:
        tensor.register_hook(_times_nan)  # type: ignore[no-untyped-call]
    return tensor


_IN: dict[str, Change] = {"loss": _times_nan, "gradient": _nan_gradient}
