"""How much memory a rank's model state needs, as it is sharded: parameters, gradients and the optimizer's; peak.py adds
what else is needed. docs/theory.md compares it with what DDP, DeepSpeed and megatron-core allocate."""

from __future__ import annotations

from dataclasses import dataclass

from harness.common.model.megatron_layout import Layout
from harness.common.model.model_config import ModelConfig, Sharding

ADAM_BYTES = 8  # of one parameter: mean and variance of its gradient, in float32
MASTER_BYTES = 4  # the copy of a parameter that the optimizer updates, in float32


@dataclass(frozen=True, slots=True)
class StateBytes:
    """Bytes on one rank. `secondary`: hpZ's second copy of the parameters."""

    parameters: float
    gradients: float
    optimizer: float
    secondary: float = 0.0

    @property
    def total(self) -> float:
        return self.parameters + self.gradients + self.optimizer + self.secondary


def state_bytes(
    parameters: int,
    ranks: int,
    *,
    sharding: Sharding = "none",
    bf16: bool = False,
    hpz: int = 1,
    trained: int | None = None,
) -> StateBytes:
    """State of a model under AdamW on each of `ranks` data-parallel ranks.

    bf16: parameters and gradients in 2 bytes, as DeepSpeed keeps them. Otherwise, and under autocast, they are float32.
    ZeRO updates a float32 copy of its shard in either precision; DDP and FSDP update the parameters themselves, which
    are float32. hpz: ranks of ZeRO++'s secondary partition, or those of a node, inside which FSDP shards. trained: of
    the parameters, if DDP or FSDP freezes the others. Source:
    Rajbhandari et al., ZeRO, 2020, section 3; for float32, DeepSpeed's `single_partition_of_fp32_groups`.

    >>> mistral = state_bytes(7_000_000_000, 4, sharding="zero3", bf16=True)  # as the workshop's slides count it
    >>> [4 * part / 1e9 for part in (mistral.parameters, mistral.gradients, mistral.optimizer)], mistral.total / 1e9
    ([14.0, 14.0, 84.0], 28.0)
    """
    if sharding == "fsdp":
        shards = hpz if hpz > 1 else ranks
        of_trained = (parameters if trained is None else trained) / shards
        return StateBytes(4 * parameters / shards, gradients=4 * of_trained, optimizer=ADAM_BYTES * of_trained)
    width = 2 if bf16 else 4
    stage = ("none", "zero1", "zero2", "zero3").index(sharding)
    optimizer_width = ADAM_BYTES + (MASTER_BYTES if stage or bf16 else 0)
    shard = parameters / ranks
    if stage == 0 and trained is not None:
        return StateBytes(width * parameters, gradients=width * trained, optimizer=optimizer_width * trained)
    return StateBytes(
        parameters=width * (shard if stage >= 3 else parameters),
        gradients=width * (shard if stage >= 2 else parameters),
        optimizer=optimizer_width * (shard if stage >= 1 else parameters),
        secondary=width * parameters / hpz if stage == 3 and hpz > 1 else 0.0,
    )


def megatron_state_bytes(parameters: int, layout: Layout, *, bf16: bool = False) -> StateBytes:
    """State on a rank that holds so many parameters, under Megatron's distributed optimizer.

    Gradients are summed in float32 in a buffer of all the rank's parameters. In float32 the optimizer updates the
    parameters themselves. Source: Megatron-LM, docs/source/api-guide/dist_optimizer.md (6 + 12/d bytes in bf16, 8 + 8/d
    in fp32).
    """
    ranks = layout.dp * layout.cp
    optimizer_width = ADAM_BYTES + (MASTER_BYTES if bf16 else 0)
    return StateBytes(
        parameters=(2 if bf16 else 4) * parameters,
        gradients=4 * parameters,
        optimizer=optimizer_width * (parameters / ranks),
    )


def megatron_parameters(model: ModelConfig, layout: Layout, stage: int) -> int:
    """The parameters that a rank of a pipeline stage holds. Matrices are split over the tensor-parallel ranks, norms
    are not. The first stage has the embedding, the last one the output and its norm."""
    hidden, tp = model.hidden_size, layout.tp
    heads = model.num_attention_heads * model.head_dim // tp
    groups = model.num_key_value_heads * model.head_dim // tp
    feed_forward = 3 * hidden * model.intermediate_size // tp
    layer = 2 * hidden * heads + 2 * hidden * groups + 2 * hidden + feed_forward
    first, last = stage == 0, stage == layout.pp - 1
    embedding = model.vocab_size * hidden // tp
    copies = first + last if layout.pp > 1 or not model.tie_word_embeddings else 1
    return model.num_hidden_layers // layout.pp * layer + copies * embedding + hidden * last
