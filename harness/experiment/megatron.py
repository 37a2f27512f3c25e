"""Exercise 3: tensor and pipeline parallelism with Megatron. Knows no other exercise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

from harness.common.faults.fault import Setup
from harness.common.model.megatron_layout import BatchSizes, Layout, layout_misfits
from harness.common.run_folder.profile_window import PRE_TRAINING
from harness.experiment.base import (
    FEWER_MESSAGES,
    IDLE_LINKS,
    Advice,
    AdviceNumbers,
    Count,
    CountOrZero,
    Fields,
    Suggestion,
)
from harness.experiment.options import BATCH, BrokenRule, value
from harness.experiment.training import PRECISIONS, MixedPrecision, Training

_OF_OUR_SCRIPTS = {"module_ranges": "--module-ranges", "faults": "--fault", "checkpoint_every": "--checkpoint-every"}


class Megatron(Training):
    """Exercise 3: tensor and pipeline parallelism with Megatron."""

    title: ClassVar[str] = "Megatron TP/PP"
    folder: ClassVar[str] = "exercise_3_MegatronLM"
    default_model: ClassVar[str] = "mistral-7b"
    instead: ClassVar[Mapping[str, str]] = {
        "--gradient-accumulation-steps": "the number of micro-batches follows from --global-batch-size: use that"
    }

    exercise: Annotated[Literal[3], value("-e", "--exercise", group="where")] = 3
    tp: Count | None = value("--tp", tag="tp", train="--tp").option(
        None, "tensor-parallel size (default: a node's GPUs divided by --pp and --cp)"
    )
    pp: Count = value("--pp", tag="pp", train="--pp").option(1, "pipeline-parallel size")
    cp: Count = value("--cp", train="--cp").option(1, "context-parallel size")
    vpp: Count = value("--vpp", train="--vpp").option(1, "virtual pipeline stages per rank (interleaved schedule)")
    global_batch_size: Count | None = value(
        "--global-batch-size", tag="gbs", tag_place=BATCH, train="--global-batch-size"
    ).option(None, "samples per iteration over all ranks (default: 128; on CPU 8 micro-batches)")
    engine: Literal["megatron-core", "megatron-lm"] = value("--engine", metavar="NAME", free=True).option(
        "megatron-core", "the exercise's loop on megatron-core, or pretrain_gpt.py of the NeMo container"
    )
    mixed_precision: MixedPrecision | None = replace(  # type: ignore[assignment]  # None until the device is known
        PRECISIONS, help=f"{PRECISIONS.help} (default: bf16 on GPUs, fp32 on CPU)"
    ).option(
        None, "compute in bf16, keep fp32 master weights; tf32: compute in it (default: bf16 on GPUs, fp32 on CPU)"
    )
    data_path: str | None = value("--data-path", metavar="PREFIX", free=True, path=True).option(
        None, "Megatron .bin/.idx prefix (default: the site's, else built from the harness's data)", min_length=1
    )
    steps: Count | None = value("--iters", "--steps", free=True, train="--iters").option(
        None, "total number of iterations (default: until the profiling window closes)"
    )
    skip_steps: CountOrZero = value("--skip-steps", free=True, train="--skip").option(
        PRE_TRAINING.skip, "iterations before the profiler is set up"
    )
    warmup_steps: CountOrZero = value("--warmup-steps", free=True, train="--warmup").option(
        PRE_TRAINING.warmup, "iterations for which the profiler warms up"
    )
    active_steps: Count = value("--active-steps", free=True, train="--active").option(
        PRE_TRAINING.active, "iterations that are profiled"
    )

    @property
    def uses_megatron_lm(self) -> bool:
        """Whether Megatron-LM's own script trains, of the NeMo container, instead of ours."""
        return self.engine == "megatron-lm"

    @property
    def layout(self) -> Layout:
        """How the ranks share the model, once the GPUs per node are known."""
        sizes = {"tp": self.tp or 1, "pp": self.pp, "cp": self.cp, "vpp": self.vpp}
        return Layout(self.world_size or 1, **sizes)

    @property
    def batch(self) -> BatchSizes:
        """The sizes of an iteration's batch, once they are known."""
        return BatchSizes(self.global_batch_size or 1, self.micro_batch_size or 1, self.seq_length or 0)

    @property
    def stage_ranks(self) -> int:
        return (self.tp or 1) * self.cp

    @property
    def model_ranks(self) -> int:
        """Ranks that share one model."""
        return self.stage_ranks * self.pp

    @property
    def fault_setup(self) -> Setup:
        replicas = self.layout.dp if self.world_size and self.tp else None
        return super().fault_setup._replace(replicas=replicas, stages=self.pp, virtual_stages=self.vpp)

    @property
    def batch_per_iteration(self) -> int | None:
        return self.global_batch_size

    def more_work(self, micro_batch: int, batch: int | None) -> Fields:
        """The global batch doubles too, or there would be fewer micro-batches."""
        whole = self.global_batch_size or batch
        doubled = super().more_work(micro_batch, batch)
        return {**doubled, "global_batch_size": 2 * whole} if whole else doubled

    def send_less(self, seen: AdviceNumbers) -> Advice:
        """Fewer ranks share a layer."""
        tp = self.tp or 1
        if tp < 2:
            return IDLE_LINKS
        smaller = Suggestion(
            "a smaller tensor-parallel group, if the memory allows", {"tp": tp // 2 if tp % 2 == 0 else 1}
        )
        interleaved = self.vpp > 1  # its micro-batches must stay a multiple of the stages
        why = "Tensor parallelism exchanges activations in every layer."
        return Advice(why, (FEWER_MESSAGES,) if interleaved else (smaller, FEWER_MESSAGES))

    def broken_rules(self) -> Iterator[BrokenRule]:
        yield from super().broken_rules()
        if self.precision == "tf32" and self.uses_megatron_lm:
            yield BrokenRule(
                {"mixed_precision", "engine"},
                "--mixed-precision tf32: Megatron-LM's script has no such setting: use --engine megatron-core",
            )
        for field, flag in _OF_OUR_SCRIPTS.items():
            if getattr(self, field) and self.uses_megatron_lm:
                yield BrokenRule(
                    {field, "engine"},
                    f"{flag} works in our own training scripts, and --engine megatron-lm runs Megatron-LM's: drop one",
                )
        if self.world_size is None:
            return
        batch = self.batch if self.micro_batch_size and self.global_batch_size else None
        place = f" (-n {self.nodes} × -g {self.gpus_per_node})"
        for misfit in layout_misfits(self.layout, batch, place):
            world = {"nodes", "gpus_per_node"} if "world" in misfit.sizes else set()
            yield BrokenRule({*misfit.sizes} | world, misfit.sentence)
