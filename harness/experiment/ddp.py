"""Exercise 1: data parallelism with DDP. Knows no other exercise."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from harness.common.faults.fault import Setup
from harness.common.model.model_config import FP8_BLOCK, Precision, Sharding
from harness.experiment.base import FEWER_MESSAGES, IDLE_FOR_DATA, Advice, AdviceNumbers, Suggestion
from harness.experiment.options import VALUE, BrokenRule, Flag, switch, value
from harness.experiment.training import FineTuning

LoraRank = Annotated[int, Field(ge=1, le=65_536)]
BucketSize = Annotated[float, Field(gt=0, le=100_000, allow_inf_nan=False)]


class DDP(FineTuning):
    """Exercise 1: data parallelism with PyTorch's DDP through accelerate."""

    title: ClassVar[str] = "DDP"
    folder: ClassVar[str] = "exercise_1_DDP"
    default_model: ClassVar[str] = "llama-3.2-1b"
    precisions: ClassVar[tuple[Precision, ...]] = ("fp32", "tf32", "bf16", "fp8")

    exercise: Annotated[Literal[1], value("-e", "--exercise", group="where")] = 1
    bucket_cap_mb: BucketSize | None = value(
        "--bucket-cap-mb", metavar="MIB", tag="bucket", train="--bucket-cap-mb", rare=True
    ).option(None, "size of DDP's gradient buckets in MiB (default of DDP: 25, and 1 for the first bucket)")
    fsdp: Literal["full", "hybrid"] | None = Flag(
        {"--fsdp": "full", "--fsdp-hybrid": "hybrid"}, tag="fsdp", train="--fsdp", rare=True
    ).option(None, "shard the parameters with FSDP2; hybrid: inside each node, with a copy per node")
    lora: LoraRank | None = Flag(
        {"--lora": 16, "--lora-rank": VALUE}, metavar="R", tag="lora", train="--lora", rare=True
    ).option(None, "train LoRA adapters of this rank (16) beside frozen weights")
    activation_offload: bool = switch(
        "--activation-offload", tag="offload", tag_if_on=True, train="--activation-offload", rare=True
    ).option(False, "keep activations for the backward pass in the host's memory")
    unified_memory: bool = switch(
        "--unified-memory", tag="unified", tag_if_on=True, train="--unified-memory", gpus_only=True, rare=True
    ).option(False, "let tensors use the memory of both GPU and host, as a GH200 can")
    slow_dataloading: bool = switch(
        "--slow-dataloading", tag="slowdl", tag_if_on=True, train="--slow-dataloading"
    ).option(False, "tokenise on the fly in the main process, without workers or pinned memory")
    script: str | None = value("--script", metavar="FILE", tag="script").option(
        None, "train with this script: a file of the exercise's folder, or a path", min_length=1
    )

    @property
    def sharding(self) -> Sharding:
        return "none" if self.fsdp is None else "fsdp"

    @property
    def copy_ranks(self) -> int:
        return (self.gpus_per_node or 1) if self.fsdp == "hybrid" else 1

    @property
    def fault_setup(self) -> Setup:
        return super().fault_setup._replace(buckets=self.fsdp is None)

    def broken_rules(self) -> Iterator[BrokenRule]:
        yield from super().broken_rules()
        if self.slow_dataloading and self.dataloader_workers:
            yield BrokenRule(
                {"slow_dataloading", "dataloader_workers"},
                "--slow-dataloading loads without workers, and --dataloader-workers asks for some: drop one",
            )
        if self.fsdp and self.bucket_cap_mb is not None:
            yield BrokenRule(
                {"fsdp", "bucket_cap_mb"},
                "--bucket-cap-mb sizes DDP's buckets, and FSDP communicates layer by layer: drop one",
            )
        if self.fsdp and self.activation_offload:
            yield BrokenRule(
                {"fsdp", "activation_offload"},
                "--activation-offload would copy the parameters that FSDP has gathered, too: drop one",
            )
        if self.unified_memory and self.memory_snapshot:
            yield BrokenRule(
                {"unified_memory", "memory_snapshot"},
                "--memory-snapshot reads PyTorch's allocator, and with --unified-memory RMM allocates: drop one",
            )
        if self.precision == "fp8":
            yield from self._fp8_rules()
        if self.fsdp == "hybrid" and self.nodes == 1:
            yield BrokenRule(
                {"fsdp", "nodes"},
                "--fsdp-hybrid shards inside a node and copies between nodes, and -n/--nodes is 1: use --fsdp",
            )
        if self.slow_dataloading and self.pin_memory:
            yield BrokenRule(
                {"slow_dataloading", "pin_memory"},
                "--slow-dataloading loads into pageable memory, and --pin-memory asks for pinned: drop one",
            )

    def _fp8_rules(self) -> Iterator[BrokenRule]:
        if self.lora is not None:
            yield BrokenRule(
                {"mixed_precision", "lora"},
                "--mixed-precision fp8 converts the matrices that are trained, and --lora freezes them: drop one",
            )
        samples, length = self.micro_batch_size, self.seq_length
        if samples and length and samples * length % FP8_BLOCK:
            whole = -(-length // FP8_BLOCK) * FP8_BLOCK
            yield BrokenRule(
                {"mixed_precision", "micro_batch_size", "seq_length"},
                f"--mixed-precision fp8 multiplies in blocks of {FP8_BLOCK}, and {samples} × {length} tokens per micro-"
                f"batch are no multiple of that: the nearest is --seq-length {whole}",
            )

    def on_purpose(self, cause: Literal["communication", "data"], seen: AdviceNumbers) -> Advice | None:
        if cause != "data" or not self.slow_dataloading:
            return None
        text = "let worker processes prepare the batches (the default)"
        return Advice(IDLE_FOR_DATA, (Suggestion(text, {"slow_dataloading": False}),))

    def send_less(self, seen: AdviceNumbers) -> Advice:
        """More micro-batches per exchange of gradients; sharded, nearer or fewer messages."""
        if self.fsdp:
            return self._gather_less(seen)
        now = self.gradient_accumulation_steps
        how_often = "after every micro-batch" if now == 1 else "often"
        text = "exchange them less often, by accumulating gradients"
        return Advice(
            f"Gradients are exchanged {how_often}.", (Suggestion(text, {"gradient_accumulation_steps": 4 * now}),)
        )

    def _gather_less(self, seen: AdviceNumbers) -> Advice:
        changes: list[Suggestion] = []
        if seen.fits("none"):
            text = "DDP, since whole parameters and gradients fit into this memory"
            changes.append(Suggestion(text, {"fsdp": None}))
        if self.fsdp == "full" and self.nodes > 1:
            changes.append(Suggestion("shard inside each node only", {"fsdp": "hybrid"}))
        if seen.micro_batch is not None:
            text = "twice the micro-batch, so that the same messages serve more computation"
            changes.append(Suggestion(text, self.more_work(seen.micro_batch, None)))
        why = "Parameters are gathered twice and gradients reduced in every micro-batch."
        return Advice(why, (*changes, FEWER_MESSAGES))
