"""The learning rate over time."""

from __future__ import annotations

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR


def linear_warmup(optimizer: Optimizer, warmup_steps: int) -> LambdaLR:
    """The learning rate grows linearly over the first `warmup_steps` optimizer steps, then stays."""
    return LambdaLR(optimizer, lambda done: min(1.0, (done + 1) / max(1, warmup_steps)))
