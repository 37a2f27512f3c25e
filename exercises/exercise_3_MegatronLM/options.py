"""Exercise 3's command line: what all training scripts share, and how Megatron splits the work."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

from exercises.utils.arguments import TrainingArguments, parse_arguments, positive
from harness.common.errors import RequestError
from harness.common.faults.fault import Setup
from harness.common.model.megatron_layout import BatchSizes, Layout, layout_misfits, model_misfits, usual_global_batch
from harness.common.model.model_config import ModelConfig
from harness.common.run_folder.profile_window import PRE_TRAINING


@dataclass(frozen=True)
class MegatronArguments(TrainingArguments):
    exercise: ClassVar[int | None] = 3
    tp: int
    pp: int
    cp: int
    vpp: int
    global_batch_size: int | None
    data_path: Path | None

    @property
    def fault_setup(self) -> Setup:
        usual = super().fault_setup
        replicas = self.layout(usual.world_size or 1).dp
        return usual._replace(replicas=replicas, stages=self.pp, virtual_stages=self.vpp)

    def layout(self, world: int) -> Layout:
        """The requested parallel layout, with `world` processes."""
        return Layout(world=world, tp=self.tp, pp=self.pp, cp=self.cp, vpp=self.vpp)

    def batch(self, layout: Layout, model: ModelConfig) -> BatchSizes:
        """The requested batch; by default the usual one."""
        usual = usual_global_batch(self.micro_batch_size, layout.dp, on_cpu=self.on_cpu)
        return BatchSizes(
            global_size=self.global_batch_size or usual,
            micro_size=self.micro_batch_size,
            seq_length=self.seq_length or model.defaults.pretrain_seq_length,
        )


def check(layout: Layout, batch: BatchSizes, model: ModelConfig) -> None:
    """Raises RequestError: the layout, the batch and the model break a rule; the message lists all broken rules."""
    sentences = [misfit.sentence for misfit in layout_misfits(layout, batch)]
    sentences = sentences or list(model_misfits(layout, batch, model))
    if sentences:
        raise RequestError("; ".join(sentences))


def parse(argv: Sequence[str] | None = None) -> MegatronArguments:
    """Parse the command line. Exits with 2 for a wrong one. Raises RequestError: an option that this exercise does not
    have."""
    arguments = parse_arguments(MegatronArguments, "Pre-train a GPT with Megatron-Core.", _declare, argv)
    if arguments.gradient_accumulation_steps != 1:
        raise RequestError(
            f"--gradient-accumulation-steps {arguments.gradient_accumulation_steps}: exercise 3 accumulates over the "
            "micro-batches of an iteration; set --global-batch-size instead"
        )
    if arguments.checkpoint is not None:
        raise RequestError(f"--checkpoint {arguments.checkpoint}: exercise 3 pre-trains and starts from random weights")
    return arguments


def _declare(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(**asdict(PRE_TRAINING), learning_rate=3e-4, lr_warmup_steps=2, micro_batch_size=1)
    group = parser.add_argument_group("parallel layout")
    for flag, meaning in (
        ("--tp", "tensor-parallel size; > 1 turns sequence parallelism on"),
        ("--pp", "pipeline-parallel size"),
        ("--cp", "context-parallel size"),
        ("--vpp", "model chunks per pipeline rank; > 1 interleaves 1F1B"),
    ):
        group.add_argument(flag, type=positive, default=1, help=meaning)
    group = parser.add_argument_group("iteration")
    samples = "samples per iteration; 128, on CPU 8 micro-batches"
    group.add_argument("--global-batch-size", type=positive, help=samples)
    iterations = "iterations in all; default: to the window's end"
    group.add_argument("--iters", dest="steps", type=positive, help=iterations)
    prefix = "prefix of a Megatron .bin/.idx pair; default: built from --data"
    group.add_argument("--data-path", type=Path, help=prefix)
