"""tiny-kernels: a micro-batch is computed sample by sample: the same result by many small operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from exercises.utils.data import IGNORED
from exercises.utils.faults.moments import wrap
from exercises.utils.faults.target import Target
from harness.common.faults import Fault


def inject(fault: Fault, target: Target) -> None:
    """Let the model's forward, inside of what data parallelism puts around it, go through the samples."""
    for model in target.models:
        wrap(getattr(model, "module", model), "forward", _by_sample, target.until)


def _by_sample(forward: Callable[..., Any]) -> Callable[..., Any]:
    def by_sample(*, input_ids: Tensor, labels: Tensor) -> Any:
        counted = (labels[:, 1:] != IGNORED).sum(
            dim=1
        )  # the mean over these is the loss: each predicts the next one
        loss: Any = 0.0
        output: Any = None
        for sample, weight in enumerate(counted / counted.sum()):
            output = forward(input_ids=input_ids[sample : sample + 1], labels=labels[sample : sample + 1])
            loss = loss + weight * output.loss
        output.loss = loss
        return output

    return by_sample
