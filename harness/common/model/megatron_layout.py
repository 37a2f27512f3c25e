"""How Megatron's ranks share a model and a batch, and whether the sizes fit together.

Arithmetic only, without a device or a process group: a wrong request is refused before they start.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from harness.common.errors import divisors
from harness.common.model.model_config import ModelConfig

GLOBAL_BATCH_SIZE = 128  # samples per iteration on GPUs, as in the workshop
CPU_MICRO_BATCHES = 8  # per replica and iteration


class Misfit(NamedTuple):
    """A broken rule: the sizes that it joins, by the names of their flags or `world`, and the sentence for the user."""

    sizes: tuple[str, ...]
    sentence: str


@dataclass(frozen=True)
class Layout:
    """Sizes of the parallel dimensions. Data parallelism gets the rest of the world."""

    world: int
    tp: int = 1
    pp: int = 1
    cp: int = 1
    vpp: int = 1

    @property
    def model_ranks(self) -> int:
        """Ranks that share one replica of the model."""
        return self.tp * self.pp * self.cp

    @property
    def dp(self) -> int:
        """Data-parallel replicas of the model."""
        return self.world // self.model_ranks

    @property
    def sequence_parallel(self) -> bool:
        """Megatron shards the norms over the tensor-parallel group whenever there is one."""
        return self.tp > 1


@dataclass(frozen=True)
class BatchSizes:
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

        The TP·PP·CP ranks of a replica work on the same tokens: their sum would count each token TP·PP·CP times.
        The shares add up to `tokens` exactly.
        """
        return _share(self.tokens, rank, world)

    def samples_of_rank(self, rank: int, world: int) -> int:
        """This rank's equal share of the iteration's samples; adds up as the tokens do."""
        return _share(self.global_size, rank, world)


def _share(total: int, rank: int, world: int) -> int:
    return total // world + (rank < total % world)


def usual_global_batch(micro_size: int, dp: int, *, on_cpu: bool) -> int:
    """The default number of samples per iteration, in whole micro-batches."""
    together = micro_size * max(1, dp)
    return together * (CPU_MICRO_BATCHES if on_cpu else -(-GLOBAL_BATCH_SIZE // together))


def layout_misfits(layout: Layout, batch: BatchSizes | None, origin: str = "") -> Iterator[Misfit]:
    """Every broken rule that needs no model. `origin`: where the world comes from, for the sentence."""
    if layout.vpp > 1 and layout.pp == 1:
        yield Misfit(("vpp", "pp"), f"--vpp {layout.vpp} interleaves pipeline stages and --pp is 1: raise --pp")
    if layout.world % layout.model_ranks:
        yield Misfit(
            ("tp", "pp", "cp", "world"),
            f"--tp {layout.tp} × --pp {layout.pp} × --cp {layout.cp} = {layout.model_ranks} does not divide the world "
            f"size {layout.world}{origin}: make it one of {divisors(layout.world)}",
        )
        return  # without whole replicas there is nothing to divide a batch over
    together = batch.micro_size * layout.dp if batch else 1
    if batch and batch.global_size % together:
        yield Misfit(
            ("global_batch_size", "micro_batch_size", "tp", "pp", "cp", "world"),
            f"--global-batch-size {batch.global_size} is not a multiple of micro-batch size × data parallel "
            f"size = {batch.micro_size} × {layout.dp} = {together}: "
            f"try {max(together, round(batch.global_size / together) * together)}",
        )


def model_misfits(
    layout: Layout, batch: BatchSizes, model: ModelConfig, *, pads_vocabulary: bool = False
) -> Iterator[str]:
    """A sentence for every rule between a model, its batch and a layout that fits its world.

    pads_vocabulary: the script makes the vocabulary larger where its size is not a multiple of --tp.
    """
    yield from _stage_misfits(layout, batch, model)
    yield from _tensor_misfits(layout, model, pads_vocabulary)
    # With context parallelism a rank has one early and one late chunk, so that causal attention is even work.
    chunks = layout.tp * (2 * layout.cp if layout.cp > 1 else 1)
    if batch.seq_length % chunks:
        yield f"--seq-length {batch.seq_length} is not a multiple of {chunks} (--cp {layout.cp}, --tp {layout.tp})"


def _stage_misfits(layout: Layout, batch: BatchSizes, model: ModelConfig) -> Iterator[str]:
    stages = layout.pp * layout.vpp
    if model.num_hidden_layers % stages:
        yield (
            f"--pp {layout.pp} × --vpp {layout.vpp} = {stages} does not divide the {model.num_hidden_layers} layers of "
            f"{model.name}"
        )
    microbatches = batch.num_microbatches(layout.dp)
    if layout.vpp > 1 and microbatches % layout.pp:
        yield (
            f"--vpp {layout.vpp} needs a multiple of --pp {layout.pp} micro-batches per iteration and has "
            f"{microbatches}: change --global-batch-size"
        )


def _tensor_misfits(layout: Layout, model: ModelConfig, pads_vocabulary: bool) -> Iterator[str]:
    sizes = {
        "attention heads": model.num_attention_heads,
        "columns of the feed-forward layers": model.intermediate_size,
        "tokens in the vocabulary": layout.tp if pads_vocabulary else model.vocab_size,
    }
    for name, size in sizes.items():
        if size % layout.tp:
            yield f"--tp {layout.tp} does not divide the {size} {name} of {model.name}"
    heads = model.num_key_value_heads
    if heads % layout.tp and layout.tp % heads:  # where there are fewer heads than ranks, ranks share one
        yield (
            f"--tp {layout.tp} neither divides the {heads} key-value heads of {model.name} nor is a multiple of them"
        )
