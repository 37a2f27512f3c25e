"""What exercise 3 adds to `metrics/rank<R>.jsonl`: the rank's place in the layout, and the global batch's tokens."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch
from megatron.core import parallel_state

from exercises.exercise_3_MegatronLM.engine import Engine
from exercises.exercise_3_MegatronLM.options import MegatronArguments
from exercises.utils.describe import describe
from harness.common.megatron_layout import BatchSizes, Layout
from harness.common.metrics_lines import StartLine, StepLine
from harness.common.model_config import ModelConfig
from harness.observe.metrics import StepTimer, peak_memory_bytes, rank_of_process


@dataclass(frozen=True)
class MegatronStart(StartLine):
    """The first line. `parameters` counts the whole model, `parameters_of_rank` what this rank holds.

    tp … ep are the sizes of the parallel dimensions, `*_rank` this rank's place in each.
    """

    parameters_of_rank: int
    global_batch_size: int
    num_microbatches: int
    tp: int
    pp: int
    cp: int
    dp: int
    vpp: int
    ep: int
    tp_rank: int
    pp_rank: int
    cp_rank: int
    dp_rank: int
    ep_rank: int
    sequence_parallel: bool
    distributed_optimizer: bool
    overlap: bool


@dataclass(frozen=True)
class MegatronStep(StepLine):
    """One iteration of one rank.

    tokens, samples: this rank's equal share; the sum over all ranks is the global batch.
    loss: that of the global batch, the same on every rank. forward_ns: without the data loading inside.
    """

    tokens_global: int

    def summary(self) -> str:
        """The progress line on the terminal."""
        rate = self.tokens_global / (self.step_ns / 1e9)
        return f"loss {self.loss:.4f}  {self.step_ns / 1e6:.0f} ms  {rate:.0f} tokens/s  ({self.phase})"


def start_line(
    arguments: MegatronArguments, sizes: ModelConfig, layout: Layout, engine: Engine, device: torch.device
) -> MegatronStart:
    """The first line of this rank's metrics."""
    shared = vars(describe(arguments, sizes, engine.batch.seq_length, device))
    return MegatronStart(
        **{**shared, **_place(layout), "gradient_accumulation_steps": engine.num_microbatches},
        parameters_of_rank=engine.parameters(),
        global_batch_size=engine.batch.global_size,
        num_microbatches=engine.num_microbatches,
        sequence_parallel=layout.sequence_parallel,
        distributed_optimizer=arguments.distributed_optimizer,
        overlap=arguments.overlap,
    )


def _place(layout: Layout) -> dict[str, int]:
    sizes = asdict(layout)
    del sizes["world"]
    return {
        **sizes,
        "dp": layout.dp,
        "tp_rank": parallel_state.get_tensor_model_parallel_rank(),
        "pp_rank": parallel_state.get_pipeline_model_parallel_rank(),
        "cp_rank": parallel_state.get_context_parallel_rank(),
        "dp_rank": parallel_state.get_data_parallel_rank(),
        "ep_rank": parallel_state.get_expert_model_parallel_rank(),
    }


def step_line(
    iteration: int, phase: str, batch: BatchSizes, timer: StepTimer, *, loss: float, lr: float
) -> MegatronStep:
    """The line of an iteration; `timer` has the parts iteration, data, forward, backward and optimizer."""
    rank, world, _ = rank_of_process()
    return MegatronStep(
        step=iteration,
        phase=phase,
        unix_ns=timer.unix_ns,
        step_ns=timer.part_ns("iteration"),
        data_ns=timer.part_ns("data"),
        forward_ns=timer.part_ns("forward") - timer.part_ns("data"),
        backward_ns=timer.part_ns("backward"),
        optimizer_ns=timer.part_ns("optimizer"),
        loss=loss,
        lr=lr,
        tokens=batch.tokens_of_rank(rank, world),
        samples=batch.samples_of_rank(rank, world),
        synced=True,
        peak_memory_bytes=peak_memory_bytes(),
        tokens_global=batch.tokens,
    )
