"""The highest memory of a rank: activations, buffers of communication, and when they are there together."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Literal

from harness.common.model.megatron_layout import Layout
from harness.common.model.model_config import ModelConfig
from harness.theory.memory import StateBytes

Arithmetic = Literal["fp32", "bf16", "autocast"]
"""What a layer computes in: its own type, or autocast's bf16 between float32 weights and residuals."""

SUB_GROUP = 1_000_000_000  # DeepSpeed's `sub_group_size`: so many parameters of a shard are updated at once


@dataclass(frozen=True, slots=True)
class Activations:
    """Bytes of one micro-batch on one rank.

    layer: what one layer keeps for its backward pass. kept: its input, all that stays of it if it is computed again.
    layers: of them. head: final norm and output layer. loss_forward, loss_backward: logits and what is made of them,
    while the loss is computed and when its gradient is. copies: autocast's copies of the weights.
    """

    layer: float
    kept: float
    layers: int
    head: float
    loss_forward: float
    loss_backward: float
    copies: float = 0.0

    def peak(self, checkpointing: bool) -> float:
        """The most at one time: when the loss or its gradient is computed, with all of the forward pass; or when the
        backward pass computes a layer again."""
        if not checkpointing:
            return self.layers * self.layer + self.head + max(self.loss_forward, self.loss_backward) + self.copies
        # A layer that is computed again takes its copies of the weights anew.
        at_loss = self.layers * self.kept + self.head + max(self.loss_forward + self.copies, self.loss_backward)
        return max(at_loss, self.layers * self.kept + self.layer + self.copies / max(1, self.layers))


def of_transformers(
    model: ModelConfig, tokens: int, *, arithmetic: Arithmetic, parameters: int | None = None
) -> Activations:
    """Activations of `tokens` (micro-batch × sequence) in transformers' Llama or Mistral.

    A norm keeps its input and the normalised input in float32 or, in bf16, the input in float32 and the normalised one
    in bf16; and its output once, or under autocast as one copy for each matrix that reads it. The rotated queries and
    keys, the values and the result of attention are kept; of the feed-forward layer gate, SiLU, up and their product.
    The loss takes float32 logits: as they are, their log-softmax, and two gradients. parameters: those that autocast
    copies.
    """
    h, f = model.hidden_size, model.intermediate_size
    attention = 2 * (model.num_attention_heads + model.num_key_value_heads) * model.head_dim
    width = 4 if arithmetic == "fp32" else 2
    norm = {"fp32": 12 * h, "bf16": 8 * h, "autocast": 8 * h}[arithmetic]
    casts = 2 * h * 5 if arithmetic == "autocast" else 0  # three matrices read the first norm, two the second
    statistics = 4 * model.num_attention_heads + 8
    layer = 2 * norm + casts + width * (attention + 4 * f) + statistics
    residual = 2 if arithmetic == "bf16" else 4
    vocabulary = model.vocab_size
    return Activations(
        layer=float(layer * tokens),
        kept=float(residual * h * tokens),
        layers=model.num_hidden_layers,
        head=float((norm + (2 * h if arithmetic == "autocast" else 0)) * tokens),
        loss_forward=float((8 if arithmetic == "fp32" else 10) * vocabulary * tokens),
        loss_backward=12.0 * vocabulary * tokens,
        copies=2.0 * (parameters or 0) if arithmetic == "autocast" else 0.0,
    )


def of_megatron(
    model: ModelConfig, micro_batch: int, seq_length: int, layout: Layout, *, bf16: bool, stage: int = 0
) -> Activations:
    """Activations of one micro-batch in one model chunk (a stage, or with interleaving a part of one) of exercise 3.

    Sequence parallelism splits norms and residuals over the tensor-parallel ranks, which split heads and columns too. A
    norm keeps its input, the normalised input and its output, in bf16 the first two in float32. Attention keeps the
    projection, rotated queries and keys, and its result; with context parallelism the keys and values of the whole
    sequence and a mask instead. Each layer makes sines and cosines for the positions, twice. The feed-forward layer
    keeps the projection of gate and up, SiLU, a copy of up, the product. Cross entropy makes a float32 copy of logits.
    """
    tp, cp = layout.tp, layout.cp
    tokens = micro_batch * seq_length / cp
    width = 2 if bf16 else 4
    h, f = model.hidden_size, model.intermediate_size
    norm = (10 if bf16 else 12) * h / tp
    q = model.num_attention_heads * model.head_dim
    k = max(model.num_key_value_heads, tp) * model.head_dim
    keys = 2 * k * cp if cp > 1 else k
    attention = (q + 2 * k) + 2 * q + keys
    layer = 2 * norm + width * (attention + 5 * f) / tp + 4 * model.num_attention_heads / tp
    mask = width * seq_length * seq_length / cp if cp > 1 else 0.0
    rotary = 4 * width * model.head_dim * seq_length / cp
    last = stage == layout.pp - 1
    logits = model.vocab_size / tp * tokens
    loss = (6 if bf16 else 4) * logits if last else 0.0
    return Activations(
        layer=layer * tokens + mask + rotary,
        kept=width * h / tp * tokens,
        layers=model.num_hidden_layers // (layout.pp * layout.vpp),
        head=(norm + width * h) * tokens if last else 0.0,
        loss_forward=loss,
        loss_backward=loss,
    )


def chunks_in_flight(stages: int, stage: int, microbatches: int, virtual_stages: int = 1) -> int:
    """Micro-batches, or with interleaving pairs of a micro-batch and a chunk, whose activations a stage holds at once.

    1F1B: the p − s micro-batches that a stage runs ahead. Interleaved: 2(p − s − 1) + (v − 1)·p, and the one it is in.
    Source: Narayanan et al., SC 2021, section 2.2; megatron-core's `get_pp_rank_microbatches`.

    >>> chunks_in_flight(4, 0, 8), chunks_in_flight(4, 3, 8), chunks_in_flight(4, 0, 2), chunks_in_flight(2, 0, 8, 2)
    (4, 1, 2, 5)
    """
    if virtual_stages == 1:
        return min(stages - stage, microbatches)
    ahead = 2 * (stages - stage - 1) + (virtual_stages - 1) * stages
    return min(ahead + 1, microbatches * virtual_stages)


@dataclass(frozen=True, slots=True)
class PeakBuffers:
    """Bytes on one rank: always there; only in the forward and backward pass; only in the optimizer's step."""

    always: float = 0.0
    in_pass: float = 0.0
    in_step: float = 0.0


@dataclass(frozen=True, slots=True)
class ZeroBuckets:
    """DeepSpeed's thresholds, in parameters. `live`: of gathered ones, the most at once under stage 3."""

    reduce: int
    live: int = 0
    overlap: bool = True


def of_ddp(parameters: int, ranks: int, largest: int, *, on_gpu: bool) -> PeakBuffers:
    """DDP's buckets hold a copy of all gradients, as `gradient_as_bucket_view` is off. A single rank has none. largest:
    parameters of the largest tensor: PyTorch's AdamW makes two temporaries of it, if it is not fused."""
    return PeakBuffers(always=4.0 * parameters if ranks > 1 else 0.0, in_step=0.0 if on_gpu else 8.0 * largest)


def of_zero2(parameters: int, ranks: int, buckets: ZeroBuckets, *, bf16: bool, on_gpu: bool) -> PeakBuffers:
    """Stages 1 and 2: one reduction buffer, with overlap two. The step flattens the shard's gradients into float32."""
    width, shard = 2 if bf16 else 4, parameters / ranks
    gradients = (width + 4 if bf16 else width) * shard  # beside those of the state
    update = gradients if on_gpu else max(gradients, (4 + 8 - width) * shard)
    return PeakBuffers(in_pass=float((2 if buckets.overlap else 1) * width * buckets.reduce), in_step=update)


def of_zero3(
    parameters: int, ranks: int, largest: int, buckets: ZeroBuckets, *, bf16: bool, on_gpu: bool
) -> PeakBuffers:
    """Stage 3: a reduction buffer, gathered layers up to `stage3_max_live_parameters` and one more matrix, and the
    reduction of a full buffer; the step copies the gradients of a sub-group into float32."""
    width = 2 if bf16 else 4
    group = min(parameters / ranks, SUB_GROUP)
    live = min(parameters, max(buckets.live, largest))
    update = (width + 4 if bf16 else width) * group
    in_step = update if on_gpu else max(update, 12 * group)
    return PeakBuffers(always=float(width * buckets.reduce), in_pass=float(width * live), in_step=in_step)


def of_fsdp(unit: int, largest_shard: float, *, bf16: bool, on_gpu: bool) -> PeakBuffers:
    """FSDP2: two gathered units at most, that which computes and the next, and the float32 gradients of one. unit:
    parameters of the largest unit, a layer or all that is in no layer. largest_shard: of a rank's largest tensor."""
    return PeakBuffers(
        in_pass=float((2 * (2 if bf16 else 4) + 4) * unit), in_step=0.0 if on_gpu else 8.0 * largest_shard
    )


def buffers_of_megatron(parameters: int, shard: float, largest: int, *, on_gpu: bool) -> PeakBuffers:
    """The buckets are the gradients themselves. PyTorch's AdamW takes a float32 temporary of the whole shard on a GPU
    (`foreach`), elsewhere two of its largest tensor."""
    return PeakBuffers(in_step=4.0 * shard if on_gpu else 8.0 * min(largest, shard))


@dataclass(frozen=True, slots=True)
class Parts:
    """Bytes on one rank at one moment, by what they are for."""

    weights: float
    gradients: float
    optimizer: float
    activations: float
    buffers: float
    framework: float

    @property
    def total(self) -> float:
        return float(sum(getattr(self, field.name) for field in fields(self)))


@dataclass(frozen=True, slots=True)
class Peak:
    """turn: the end of the forward pass, where all activations are there. step: the optimizer's, with all gradients."""

    turn: Parts
    step: Parts

    @property
    def highest(self) -> Parts:
        return max(self.turn, self.step, key=lambda parts: parts.total)


def peak_of(
    state: StateBytes,
    activations: Activations,
    buffers: PeakBuffers,
    *,
    checkpointing: bool = False,
    in_flight: int = 1,
    gradients_stay: bool = False,
    framework: float = 0.0,
) -> Peak:
    """The peak of a rank. in_flight: micro-batches whose activations are held at once. gradients_stay: they are there
    in the forward pass too: in a buffer of their own, or summed over micro-batches. framework: what the process needs
    without a model."""
    one = activations.kept if checkpointing else activations.layer
    held = (in_flight - 1) * activations.layers * one + activations.peak(checkpointing)
    turn = Parts(
        weights=state.parameters + state.secondary,
        gradients=state.gradients if gradients_stay else 0.0,
        optimizer=state.optimizer,
        activations=held,
        buffers=buffers.always + buffers.in_pass,
        framework=framework,
    )
    of_step = buffers.always + buffers.in_step
    return Peak(turn, replace(turn, gradients=state.gradients, activations=0.0, buffers=of_step))
