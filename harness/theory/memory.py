"""How much memory a rank's model state needs, as it is sharded: parameters, gradients and the optimizer's.

A measured peak exceeds it by activations, gathered layers under ZeRO-3, communication buckets, the allocator's
fragmentation and the framework itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.experiment.advice import Sharding


@dataclass(frozen=True, slots=True)
class StateBytes:
    """Bytes on one rank. `secondary`: hpZ's second copy of the parameters."""

    parameters: float
    gradients: float
    optimizer: float
    secondary: float = 0.0

    @property
    def total(self) -> float:
        """The sum of all four."""
        return self.parameters + self.gradients + self.optimizer + self.secondary


def state_bytes(
    parameters: int, ranks: int, *, sharding: Sharding = "none", bf16: bool = False, hpz: int = 1
) -> StateBytes:
    """State of a model under AdamW on each of `ranks` data-parallel ranks.

    bf16: parameters and gradients in 2 bytes and a float32 master copy with the optimizer, as DeepSpeed keeps them.
    Otherwise, and under autocast, everything is float32. Source: Rajbhandari et al., ZeRO, 2020, section 3.

    >>> state_bytes(7_500_000_000, 64, sharding="zero3", bf16=True).total / 1e9
    1.875
    """
    width, optimizer_width = (2, 12) if bf16 else (4, 8)
    stage = ("none", "zero1", "zero2", "zero3").index(sharding)
    shard = parameters / ranks
    return StateBytes(
        parameters=width * (shard if stage >= 3 else parameters),
        gradients=width * (shard if stage >= 2 else parameters),
        optimizer=optimizer_width * (shard if stage >= 1 else parameters),
        secondary=width * parameters / hpz if stage == 3 and hpz > 1 else 0.0,
    )
