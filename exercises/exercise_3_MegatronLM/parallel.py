"""How the ranks share the work: the size of each parallel dimension, and whether the sizes fit together.

Plain arithmetic that needs no device, no process group and no megatron: a wrong request is refused before they start.
"""

from __future__ import annotations

from dataclasses import dataclass

from exercises.utils.errors import TrainingRequestError
from harness.common.model_config import ModelConfig


@dataclass(frozen=True)
class Layout:
    """Sizes of the parallel dimensions; data parallelism gets what the others leave of the world."""

    world: int
    tp: int = 1
    pp: int = 1
    cp: int = 1
    vpp: int = 1
    ep: int = 1

    @property
    def dp(self) -> int:
        """Data-parallel replicas of the model."""
        return self.world // (self.tp * self.pp * self.cp)

    @property
    def sequence_parallel(self) -> bool:
        """Megatron shards the norms over the tensor-parallel group whenever there is one."""
        return self.tp > 1


@dataclass(frozen=True)
class Batch:
    """What one iteration trains on: `global_size` samples of `seq_length` tokens, `micro_size` at a time."""

    global_size: int
    micro_size: int
    seq_length: int

    def num_microbatches(self, dp: int) -> int:
        """Micro-batches that each data-parallel replica runs per iteration."""
        return self.global_size // (self.micro_size * dp)

    @property
    def tokens(self) -> int:
        """Tokens of one iteration, over all ranks."""
        return self.global_size * self.seq_length

    def tokens_of_rank(self, rank: int, world: int) -> int:
        """This rank's equal share of the iteration's tokens.

        The TP·PP·CP ranks of a replica work on the same tokens, so counting what each one sees would count every
        token as often. The shares are even and add up to `tokens` exactly.
        """
        return _share(self.tokens, rank, world)

    def samples_of_rank(self, rank: int, world: int) -> int:
        """This rank's equal share of the iteration's samples; adds up as the tokens do."""
        return _share(self.global_size, rank, world)


def _share(total: int, rank: int, world: int) -> int:
    return total // world + (rank < total % world)


@dataclass(frozen=True)
class Shape:
    """The sizes of a model that a parallel layout must divide. `experts` is 1 for a dense model."""

    layers: int
    heads: int
    kv_heads: int
    feed_forward: int
    vocabulary: int
    experts: int = 1


def shape_of(model: ModelConfig) -> Shape:
    """The sizes of a model file that a layout must divide."""
    return Shape(
        layers=model.num_hidden_layers,
        heads=model.num_attention_heads,
        kv_heads=model.num_key_value_heads,
        feed_forward=model.intermediate_size,
        vocabulary=model.vocab_size,
        experts=model.num_local_experts,
    )


def check(layout: Layout, batch: Batch, shape: Shape) -> None:
    """Refuse what cannot be trained. Raises TrainingRequestError with the first rule that is broken."""
    _check_world(layout)
    _check_batch(layout, batch)
    _check_pipeline(layout, batch, shape)
    _check_tensor(layout, shape)
    _check_sequence(layout, batch)
    _check_experts(layout, shape)


def _check_world(layout: Layout) -> None:
    model_parallel = layout.tp * layout.pp * layout.cp
    if layout.world % model_parallel:
        raise TrainingRequestError(
            f"--tp {layout.tp} × --pp {layout.pp} × --cp {layout.cp} = {model_parallel} "
            f"must divide the {layout.world} processes of this run"
        )


def _check_batch(layout: Layout, batch: Batch) -> None:
    together = batch.micro_size * layout.dp
    if batch.global_size % together:
        nearest = max(1, round(batch.global_size / together)) * together
        raise TrainingRequestError(
            f"--global-batch-size {batch.global_size} must be a multiple of {together} "
            f"(--micro-batch-size {batch.micro_size} × data parallel {layout.dp}): try {nearest}"
        )


def _check_pipeline(layout: Layout, batch: Batch, shape: Shape) -> None:
    if layout.vpp > 1 and layout.pp == 1:
        raise TrainingRequestError(f"--vpp {layout.vpp} interleaves pipeline stages, but --pp is 1")
    stages = layout.pp * layout.vpp
    if shape.layers % stages:
        raise TrainingRequestError(
            f"--pp {layout.pp} × --vpp {layout.vpp} = {stages} stages must divide the model's {shape.layers} layers"
        )
    microbatches = batch.num_microbatches(layout.dp)
    if layout.vpp > 1 and microbatches % layout.pp:
        raise TrainingRequestError(
            f"--vpp {layout.vpp} needs a multiple of --pp {layout.pp} micro-batches per iteration, got {microbatches}"
        )


def _check_tensor(layout: Layout, shape: Shape) -> None:
    sizes = {
        "attention heads": shape.heads,
        "feed-forward width": shape.feed_forward,
        "vocabulary": shape.vocabulary,
    }
    for name, size in sizes.items():
        if size % layout.tp:
            raise TrainingRequestError(f"--tp {layout.tp} must divide the model's {name}, which is {size}")
    # With fewer key-value heads than ranks, megatron lets ranks share one.
    if shape.kv_heads % layout.tp and layout.tp % shape.kv_heads:
        raise TrainingRequestError(
            f"--tp {layout.tp} must divide the model's {shape.kv_heads} key-value heads or be a multiple of them"
        )


def _check_sequence(layout: Layout, batch: Batch) -> None:
    # With context parallelism a rank has one early and one late chunk, so that causal attention is even work.
    chunks = layout.tp * (2 * layout.cp if layout.cp > 1 else 1)
    if batch.seq_length % chunks:
        raise TrainingRequestError(
            f"--seq-length {batch.seq_length} must be a multiple of {chunks} with --tp {layout.tp} and --cp {layout.cp}"
        )


def _check_experts(layout: Layout, shape: Shape) -> None:
    if layout.ep == 1:
        return
    if shape.experts == 1:
        raise TrainingRequestError(f"--ep {layout.ep} needs a mixture-of-experts model; this model is dense")
    if shape.experts % layout.ep:
        raise TrainingRequestError(f"--ep {layout.ep} must divide the model's {shape.experts} experts")
    if layout.dp * layout.cp % layout.ep:
        raise TrainingRequestError(
            f"--ep {layout.ep} must divide the {layout.dp * layout.cp} data- and context-parallel ranks"
        )
