"""What a strategy allocates beside the model's state and the activations: buckets, gathered layers, copies for a step.

From the code of PyTorch's DDP, DeepSpeed and megatron-core, and compared with what they allocate (docs/theory.md).
"""

from __future__ import annotations

from dataclasses import dataclass

SUB_GROUP = 1_000_000_000  # DeepSpeed's `sub_group_size`: so many parameters of a shard are updated at once


@dataclass(frozen=True, slots=True)
class Buffers:
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


def of_ddp(parameters: int, ranks: int, largest: int, *, on_gpu: bool) -> Buffers:
    """DDP's buckets hold a copy of all gradients, as `gradient_as_bucket_view` is off. A single rank has none.

    largest: parameters of the largest tensor: PyTorch's AdamW makes two temporaries of it, if it is not fused.
    """
    return Buffers(always=4.0 * parameters if ranks > 1 else 0.0, in_step=0.0 if on_gpu else 8.0 * largest)


def of_zero2(parameters: int, ranks: int, buckets: ZeroBuckets, *, bf16: bool, on_gpu: bool) -> Buffers:
    """Stages 1 and 2: one reduction buffer, with overlap two. The step flattens the shard's gradients into float32."""
    width, shard = 2 if bf16 else 4, parameters / ranks
    gradients = (width + 4 if bf16 else width) * shard  # beside those of the state
    update = gradients if on_gpu else max(gradients, (4 + 8 - width) * shard)
    return Buffers(in_pass=float((2 if buckets.overlap else 1) * width * buckets.reduce), in_step=update)


def of_zero3(
    parameters: int, ranks: int, largest: int, buckets: ZeroBuckets, *, bf16: bool, on_gpu: bool
) -> Buffers:
    """Stage 3: a reduction buffer, gathered layers up to `stage3_max_live_parameters` and one more matrix, and the
    reduction of a full buffer; the step copies the gradients of a sub-group into float32."""
    width = 2 if bf16 else 4
    group = min(parameters / ranks, SUB_GROUP)
    live = min(parameters, max(buckets.live, largest))
    update = (width + 4 if bf16 else width) * group
    return Buffers(
        always=float(width * buckets.reduce),
        in_pass=float(width * live),
        in_step=update if on_gpu else max(update, 12 * group),
    )


def of_fsdp(unit: int, largest_shard: float, *, bf16: bool, on_gpu: bool) -> Buffers:
    """FSDP2: two gathered units at most, that which computes and the next, and the float32 gradients of one.

    unit: parameters of the largest unit, a layer or all that is in no layer. largest_shard: of a rank's largest tensor.
    """
    return Buffers(
        in_pass=float((2 * (2 if bf16 else 4) + 4) * unit), in_step=0.0 if on_gpu else 8.0 * largest_shard
    )


def of_megatron(parameters: int, shard: float, largest: int, *, on_gpu: bool) -> Buffers:
    """The buckets are the gradients themselves. PyTorch's AdamW takes a float32 temporary of the whole shard on a GPU
    (`foreach`), elsewhere two of its largest tensor."""
    return Buffers(in_step=4.0 * shard if on_gpu else 8.0 * min(largest, shard))
