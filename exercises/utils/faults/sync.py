"""sync: the host waits for the GPU after every layer, so that nothing is launched ahead."""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch
from torch import nn

from exercises.utils.faults.per_step import PerStep
from exercises.utils.faults.target import Target
from harness.common.faults import Fault


def inject(fault: Fault, target: Target) -> None:
    """Synchronise after the forward of each layer."""
    waiting = PerStep(fault, target)

    def synchronise(*_: object) -> None:
        begin_ns = time.perf_counter_ns()
        torch.cuda.synchronize()
        waiting.add(time.perf_counter_ns() - begin_ns)

    for model in target.models:
        for layer in layers_of(model):
            target.until.callback(layer.register_forward_hook(synchronise).remove)


def layers_of(model: nn.Module) -> Iterator[nn.Module]:
    """The model's layers: transformers and megatron-core both keep them in a list called `layers`."""
    for name, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and name.rpartition(".")[2] == "layers":
            yield from module
