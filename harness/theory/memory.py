"""How much memory a rank needs: the model's state as it is sharded, and the activations of one micro-batch.

Peak memory is about their sum. What it leaves out: gathered layers under ZeRO-3, communication buckets, the
allocator's fragmentation and the framework itself. A comparison shows the state beside the measured peak; activations
are here to plan a run by, before there is one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from harness.model import Model

Sharding = Literal["none", "zero1", "zero2", "zero3"]


@dataclass(frozen=True, slots=True)
class StateBytes:
    """Bytes on one rank. `secondary`: hpZ's second copy of the parameters."""

    parameters: float
    gradients: float
    optimizer: float
    secondary: float = 0.0

    @property
    def total(self) -> float:
        """All of it."""
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


def activation_bytes(
    model: Model, tokens: int, *, checkpointing: bool = False, element_bytes: int = 2
) -> float:
    """Activations that the backward pass of `tokens` tokens needs, for a dense Llama-like model.

    Per token and layer: two norms with their inputs, the query, the attention's output, keys and values, and four
    intermediates of the gated feed-forward network; attention's scores are not kept (fused kernels). With
    checkpointing only each layer's input, and one layer in full. The logits are counted twice in float32.
    The method is Korthikanti et al., Reducing Activation Recomputation, 2022, section 4, for these layers.
    """
    query = model.num_attention_heads * model.head_dim
    key = model.num_key_value_heads * model.head_dim
    layer = element_bytes * (4 * model.hidden_size + 2 * query + 2 * key + 4 * model.intermediate_size)
    kept = model.num_hidden_layers * (element_bytes * model.hidden_size if checkpointing else layer)
    recomputed = layer if checkpointing else 0
    logits = 2 * 4 * model.vocab_size
    return float(tokens * (kept + recomputed + logits))
