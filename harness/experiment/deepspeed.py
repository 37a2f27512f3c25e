"""Exercise 2: sharded data parallelism with DeepSpeed ZeRO. Knows no other exercise."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from harness.common.errors import divisors
from harness.common.model_config import Sharding
from harness.experiment.base import FEWER_MESSAGES, Advice, Change, Count, MeasuredRun
from harness.experiment.options import Broken, switch, value
from harness.experiment.training import FineTuning


class DeepSpeed(FineTuning):
    """Exercise 2: sharded data parallelism with DeepSpeed ZeRO through accelerate."""

    title: ClassVar[str] = "DeepSpeed ZeRO"
    folder: ClassVar[str] = "exercise_2_DeepSpeed"
    default_model: ClassVar[str] = "mistral-7b"
    gpus_only: ClassVar[tuple[str, str] | None] = (
        "only GPUs show whether computation hides communication",
        "on a CPU the same messages are sent, but they compete with the computation for the cores",
    )

    exercise: Annotated[Literal[2], value("-e", "--exercise", group="where")] = 2
    overlap_comm: bool = switch(
        "--ds-no-overlap", sets=False, help="do not overlap communication with computation", tag="commoverlap"
    ).option(True, "overlap communication with computation")
    heavy_comm: bool = switch("--ds-heavy-comm", tag="heavycomm", tag_if_on=True).option(
        False, "fewer, later messages; needs --mixed-precision, excludes --activation-checkpointing"
    )
    hpz_partition: Count | None = value("--ds-hpz-partition", tag="hpz").option(
        None, "ZeRO++ secondary partition size in ranks (default: the GPUs per node)"
    )
    zero_stage: Literal[2, 3] = switch(
        "--ds-stage2", sets=2, help="ZeRO stage 2 (default: stage 3)", tag="ZeRO"
    ).option(3, "ZeRO stage: 2 shards gradients and optimizer states, 3 the parameters too")

    @property
    def sharding(self) -> Sharding:
        return "zero2" if self.zero_stage == 2 else "zero3"

    @property
    def copy_ranks(self) -> int:
        return self.hpz_partition or 1

    def on_purpose(self, cause: Literal["communication", "data"], seen: MeasuredRun) -> Advice | None:
        if cause != "communication":
            return None
        if not self.overlap_comm and not seen.on_cpu:
            return Advice("Overlap is switched off.", (Change("let ZeRO overlap it", {"overlap_comm": True}),))
        if self.heavy_comm:
            why = "The buckets are large on purpose: messages are few and late."
            return Advice(why, (Change("the normal buckets", {"heavy_comm": False}),))
        return None

    def send_less(self, seen: MeasuredRun) -> Advice:
        """Larger or nearer messages; accumulation saves nothing, as no rank keeps whole gradients."""
        whole = self.zero_stage == 2
        what = "Gradients are reduced" if whole else "Parameters are gathered and gradients reduced"
        changes: list[Change] = []
        hpz, per_node = self.hpz_partition, self.gpus_per_node
        if not whole and self.nodes > 1 and hpz and per_node and hpz > per_node:
            text = "keep a copy of the parameters inside each node"
            changes.append(Change(text, {"hpz_partition": per_node}))
        if not whole and seen.fits("zero2"):
            text = "ZeRO-2, since whole parameters fit into this memory and need not be gathered then"
            changes.append(Change(text, {"zero_stage": 2, "hpz_partition": None}))
        if seen.micro_batch is not None:
            text = "twice the micro-batch, so that the same messages serve more computation"
            changes.append(Change(text, self.more_work(seen.micro_batch, None)))
        return Advice(f"{what} in every micro-batch, also with gradient accumulation.", (*changes, FEWER_MESSAGES))

    def broken_rules(self) -> Iterator[Broken]:
        yield from super().broken_rules()
        if self.heavy_comm and not self.in_bf16:
            yield Broken(
                {"heavy_comm", "mixed_precision"}, f"--ds-heavy-comm needs --mixed-precision: {self._how_bf16}"
            )
        if self.heavy_comm and self.activation_checkpointing:
            yield Broken(
                {"heavy_comm", "activation_checkpointing"},
                "--ds-heavy-comm and --activation-checkpointing exclude each other: drop one",
            )
        if self.heavy_comm and not self.overlap_comm:
            yield Broken(
                {"heavy_comm", "overlap_comm"}, "--ds-heavy-comm and --ds-no-overlap both set the buckets: drop one"
            )
        if self.zero_stage == 2 and self.hpz_partition is not None:
            yield Broken(
                {"zero_stage", "hpz_partition"},
                "--ds-hpz-partition partitions parameters, which stage 2 does not shard: drop it or --ds-stage2",
            )
        if self.world_size and self.hpz_partition and self.world_size % self.hpz_partition:
            yield Broken(
                {"hpz_partition", "nodes", "gpus_per_node"},
                f"--ds-hpz-partition {self.hpz_partition} does not divide the world size {self.world_size} "
                f"(-n {self.nodes} × -g {self.gpus_per_node}): use one of {divisors(self.world_size)}",
            )
