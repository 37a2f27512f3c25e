"""What exercise 2 prepares before its loop, and does after it: its options, and model, data and optimizer, sharded by
DeepSpeed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from accelerate.utils import set_seed  # type: ignore[import-untyped]
from torch.optim.lr_scheduler import LambdaLR

from exercises.exercise_2_DeepSpeed import zero
from exercises.utils import models
from exercises.utils.announce import announce
from exercises.utils.arguments import parse_arguments
from exercises.utils.data import check_vocabulary, load_vocabulary
from exercises.utils.describe import describe
from exercises.utils.loaders import LoaderArguments, declare_loading, on_device, prepared_loader
from exercises.utils.precision import set_precision
from exercises.utils.stop import StopRequest
from exercises.utils.synchronisation import SynchronisationCheck, require_every_process
from exercises.utils.training import LoaderState, Train, run_loop
from harness.common.model.model_config import ModelConfig
from harness.observe.metrics import rank_of_process


@dataclass(frozen=True)
class DeepSpeedArguments(LoaderArguments):
    exercise: ClassVar[int | None] = 2
    deepspeed_config: Path


@dataclass(frozen=True)
class ZeroState(LoaderState[DeepSpeedArguments]):
    """All that the loop needs."""

    @property
    def engine(self) -> Any:
        """DeepSpeed's: model, optimizer and communication in one."""
        return self.model

    def save(self, folder: Path) -> None:
        """Write the state of model, optimizer and scheduler: each rank its shards."""
        state = {"scheduler": self.scheduler.state_dict()}
        self.engine.save_checkpoint(str(folder.parent), tag=folder.name, client_state=state, save_latest=False)


def run_training(train: Train[ZeroState]) -> int:
    """Prepare everything, train with this loop, and return the exit code."""
    return run_loop(parse, build, train)


def parse(argv: Sequence[str] | None = None) -> DeepSpeedArguments:
    """The command line. Exits with 2 for a wrong one."""
    return parse_arguments(DeepSpeedArguments, "Exercise 2: DeepSpeed ZeRO.", declare_options, argv)


def declare_options(parser: Any) -> None:
    parser.add_argument("--deepspeed-config", type=Path, required=True, help="a file of configs/deepspeed")
    declare_loading(parser)


def build(arguments: DeepSpeedArguments, stop: StopRequest) -> ZeroState:
    """Model, data and optimizer, sharded over the processes by DeepSpeed."""
    announce("building the model and reading the data")
    set_seed(arguments.seed)
    ds_config = zero.fill_in(zero.read_config(arguments.deepspeed_config), arguments)
    config = models.load_model_config(arguments.model)
    checkpoint = arguments.checkpoint or common_weights(config, arguments)
    accelerator = zero.make_accelerator(ds_config, arguments)
    require_every_process(accelerator.num_processes)
    set_precision(arguments.precision, accelerator.device)

    seq_length = arguments.seq_length or config.defaults.seq_length
    vocabulary = load_vocabulary(arguments.checkpoint)
    check_vocabulary(vocabulary, config.vocab_size)
    loader = prepared_loader(arguments, vocabulary, seq_length)
    # Under stage 3 no rank ever holds the whole model: each layer is cut into shards as soon as it exists.
    model = models.build_model(config, checkpoint, zero.checkpoints_activations(ds_config))
    fused = accelerator.device.type == "cuda"
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.learning_rate, fused=fused)
    warmup = max(1, arguments.lr_warmup_steps)
    scheduler = LambdaLR(optimizer, lambda done: min(1.0, (done + 1) / warmup))
    engine, _, prepared = accelerator.prepare(model, optimizer, loader)
    if arguments.compile:
        from exercises.utils import compilation  # torch._dynamo takes a second

        compilation.prepare(arguments)
        engine.compile()
    batches = on_device(arguments, prepared, accelerator.device)
    require_every_process(engine.dp_world_size)

    # Under stage 3 no rank has whole parameters to compare.
    check = SynchronisationCheck([] if ds_config["zero_optimization"]["stage"] == 3 else engine.parameters())
    precision = "bf16" if zero.uses_bf16(ds_config) else arguments.precision  # the file decides on bfloat16
    description = describe(arguments, config, seq_length, accelerator.device, precision=precision)
    return ZeroState(arguments, stop, check, description, accelerator, engine, engine, scheduler, batches)


def common_weights(config: ModelConfig, arguments: DeepSpeedArguments) -> Path | None:
    """A tiny model's random weights as a checkpoint that all ranks and all ZeRO stages start from.

    Stage 3 draws random weights shard by shard, so they would differ from those of the other stages. None for a
    large model, whose weights would take too long to write. Call it before DeepSpeed starts: from then on all ranks
    must build a model together. The ranks wait for rank 0 when the process group starts.
    """
    if not config.tiny:
        return None
    folder = arguments.run_dir / "checkpoint"
    if rank_of_process()[0] == 0:
        models.save_random_weights(config, folder, arguments.seed)
    return folder
