"""Exercise 2: sharded data parallelism with DeepSpeed ZeRO. Knows no other exercise."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from harness.common.errors import divisors
from harness.common.model.model_config import Sharding
from harness.experiment.base import FEWER_MESSAGES, Advice, AdviceNumbers, Count, Suggestion
from harness.experiment.options import BrokenRule, Flag, switch, value
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
    zero_stage: Literal[1, 2, 3] = Flag(
        {"--ds-stage1": 1, "--ds-stage2": 2}, help="ZeRO stage 1 or 2 (default: stage 3)", tag="ZeRO"
    ).option(3, "ZeRO stage: 1 shards optimizer states, 2 the gradients too, 3 the parameters too")

    @property
    def sharding(self) -> Sharding:
        stages: dict[int, Sharding] = {1: "zero1", 2: "zero2", 3: "zero3"}
        return stages[self.zero_stage]

    @property
    def copy_ranks(self) -> int:
        return self.hpz_partition or 1

    def on_purpose(self, cause: Literal["communication", "data"], seen: AdviceNumbers) -> Advice | None:
        if cause != "communication":
            return None
        if not self.overlap_comm and not seen.on_cpu:
            return Advice("Overlap is switched off.", (Suggestion("let ZeRO overlap it", {"overlap_comm": True}),))
        if self.heavy_comm:
            why = "The buckets are large on purpose: messages are few and late."
            return Advice(why, (Suggestion("the normal buckets", {"heavy_comm": False}),))
        return None

    def send_less(self, seen: AdviceNumbers) -> Advice:
        """Larger or nearer messages; accumulation saves messages in stage 1 only, whose ranks keep whole gradients."""
        accumulated, whole = self.gradient_accumulation_steps, self.zero_stage < 3
        if self.zero_stage == 1:
            text = "exchange them less often, by accumulating gradients"
            fewer = Suggestion(text, {"gradient_accumulation_steps": 4 * accumulated})
            return Advice("Gradients are reduced once per optimizer step.", (fewer, FEWER_MESSAGES))
        what = "Gradients are reduced" if whole else "Parameters are gathered and gradients reduced"
        changes: list[Suggestion] = []
        hpz, per_node = self.hpz_partition, self.gpus_per_node
        if not whole and self.nodes > 1 and hpz and per_node and hpz > per_node:
            text = "keep a copy of the parameters inside each node"
            changes.append(Suggestion(text, {"hpz_partition": per_node}))
        if not whole and seen.fits("zero2"):
            text = "ZeRO-2, since whole parameters fit into this memory and need not be gathered then"
            changes.append(Suggestion(text, {"zero_stage": 2, "hpz_partition": None}))
        if whole and accumulated > 1 and seen.fits("zero1"):
            text = "ZeRO-1, since whole gradients fit into this memory and are then reduced once per optimizer step"
            changes.append(Suggestion(text, {"zero_stage": 1}))
        if seen.micro_batch is not None:
            text = "twice the micro-batch, so that the same messages serve more computation"
            changes.append(Suggestion(text, self.more_work(seen.micro_batch, None)))
        return Advice(f"{what} in every micro-batch, also with gradient accumulation.", (*changes, FEWER_MESSAGES))

    def broken_rules(self) -> Iterator[BrokenRule]:
        yield from super().broken_rules()
        if self.heavy_comm and not self.in_bf16:
            yield BrokenRule(
                {"heavy_comm", "mixed_precision"}, f"--ds-heavy-comm needs --mixed-precision: {self._how_bf16}"
            )
        if self.heavy_comm and self.activation_checkpointing:
            yield BrokenRule(
                {"heavy_comm", "activation_checkpointing"},
                "--ds-heavy-comm and --activation-checkpointing exclude each other: drop one",
            )
        if self.heavy_comm and not self.overlap_comm:
            yield BrokenRule(
                {"heavy_comm", "overlap_comm"}, "--ds-heavy-comm and --ds-no-overlap both set the buckets: drop one"
            )
        if self.zero_stage < 3 and self.hpz_partition is not None:
            yield BrokenRule(
                {"zero_stage", "hpz_partition"},
                f"--ds-hpz-partition partitions parameters, which stage {self.zero_stage} does not shard: drop it or "
                f"--ds-stage{self.zero_stage}",
            )
        if self.world_size and self.hpz_partition and self.world_size % self.hpz_partition:
            yield BrokenRule(
                {"hpz_partition", "nodes", "gpus_per_node"},
                f"--ds-hpz-partition {self.hpz_partition} does not divide the world size {self.world_size} "
                f"(-n {self.nodes} × -g {self.gpus_per_node}): use one of {divisors(self.world_size)}",
            )
