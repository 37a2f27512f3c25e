"""What exercise 1 prepares before its loop, and does after it: its options, and model, data and optimizer, spread by
accelerate."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.distributed.checkpoint as distributed_checkpoint
from accelerate import Accelerator  # type: ignore[import-untyped]
from accelerate.utils import DistributedDataParallelKwargs, GradientAccumulationPlugin, set_seed  # type: ignore[import-untyped]
from torch.optim.lr_scheduler import LambdaLR

from exercises.exercise_1_DDP import variants
from exercises.utils import models, unified_memory
from exercises.utils.announce import announce
from exercises.utils.arguments import parse_arguments, positive
from exercises.utils.data import check_vocabulary, load_vocabulary
from exercises.utils.describe import describe
from exercises.utils.faults import settings
from exercises.utils.loaders import LoaderArguments, declare_loading, on_device, on_the_fly_loader, prepared_loader
from exercises.utils.precision import set_precision
from exercises.utils.stop import StopRequest
from exercises.utils.synchronisation import SynchronisationCheck, require_every_process
from exercises.utils.training import LoaderState, Train, run_loop
from harness.observe.metrics import rank_of_process


@dataclass(frozen=True)
class DDPArguments(LoaderArguments):
    exercise: ClassVar[int | None] = 1
    slow_dataloading: bool
    bucket_cap_mb: float | None
    fsdp: variants.Way | None
    lora: int | None
    activation_offload: bool
    unified_memory: bool


@dataclass(frozen=True)
class TrainingState(LoaderState[DDPArguments]):
    """All that the loop needs."""

    def save(self, folder: Path) -> None:
        """Write the state of model, optimizer and scheduler. Sharded, each rank writes its part."""
        if self.arguments.fsdp is None:
            self.accelerator.save_state(str(folder), safe_serialization=False)  # the model may share tensors
            return
        parts = {"model": self.model, "optimizer": self.optimizer.optimizer, "scheduler": self.scheduler}
        state = {name: part.state_dict() for name, part in parts.items()}
        distributed_checkpoint.save(state, checkpoint_id=folder)  # type: ignore[attr-defined]  # not in its __all__


def run_training(train: Train[TrainingState]) -> int:
    """Prepare everything, train with this loop, and return the exit code."""
    return run_loop(parse, build, train)


def parse(argv: Sequence[str] | None = None) -> DDPArguments:
    """The command line. Exits with 2 for a wrong one."""
    return parse_arguments(DDPArguments, "Exercise 1: data-parallel training.", declare_options, argv)


def build(arguments: DDPArguments, stop: StopRequest) -> TrainingState:
    """Model, data and optimizer, spread over the processes by accelerate."""
    announce("building the model and reading the data")
    if arguments.unified_memory:
        unified_memory.use(rank_of_process()[2])  # before anything else uses the GPU
    set_seed(arguments.seed)
    accelerator = make_accelerator(arguments)
    require_every_process(accelerator.num_processes)
    device = accelerator.device
    set_precision(arguments.precision, device)

    config = models.load_model_config(arguments.model)
    seq_length = arguments.seq_length or config.defaults.seq_length
    vocabulary = load_vocabulary(arguments.checkpoint)
    check_vocabulary(vocabulary, config.vocab_size)
    make_loader = on_the_fly_loader if arguments.slow_dataloading else prepared_loader
    loader = make_loader(arguments, vocabulary, seq_length)
    first_on = device if arguments.fsdp is None else None  # sharded, it need not fit there as a whole
    model = models.build_model(config, arguments.checkpoint, arguments.activation_checkpointing, first_on)
    if arguments.lora is not None:
        model = variants.with_lora(model, arguments.lora, arguments.activation_checkpointing)
    if arguments.precision == "fp8":
        model = variants.in_fp8(model, device)
    if arguments.fsdp is None:
        model.to(device)  # before the optimizer, whose fused kernels need the weights in their final place
    else:
        variants.shard(model, arguments.fsdp, device, arguments.mixed_precision)
    if arguments.compile:
        compile_model(model, arguments)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=arguments.learning_rate, fused=device.type == "cuda")
    warmup = max(1, arguments.lr_warmup_steps)
    scheduler = LambdaLR(optimizer, lambda done: min(1.0, (done + 1) / warmup))
    optimizer, prepared = accelerator.prepare(optimizer, loader)
    if arguments.fsdp is None:
        model = accelerator.prepare(model)
    accelerator.register_for_checkpointing(scheduler)
    batches = on_device(arguments, prepared, device, usual=not arguments.slow_dataloading)

    # A sharded model has no whole parameters to compare.
    check = SynchronisationCheck(trained if arguments.fsdp is None else [])
    description = describe(arguments, config, seq_length, device, lora=arguments.lora)
    return TrainingState(arguments, stop, check, description, accelerator, model, optimizer, scheduler, batches)


def make_accelerator(arguments: DDPArguments) -> Accelerator:
    """accelerate's view of the processes, the precision and the accumulation."""
    # torch 2.13 renamed this setting of DDP, and accelerate passes it on by its old name only.
    warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
    return Accelerator(
        cpu=arguments.on_cpu,
        mixed_precision="bf16" if arguments.mixed_precision else "no",
        gradient_accumulation_plugin=GradientAccumulationPlugin(
            num_steps=arguments.gradient_accumulation_steps,
            sync_with_dataloader=False,  # no early optimizer step at the end of an epoch
        ),
        device_placement=False,  # the model is placed above, a batch where it is loaded
        # The only buffers are the rotary tables. They never change, so DDP need not send them before every forward.
        kwargs_handlers=[DistributedDataParallelKwargs(broadcast_buffers=False, **bucket_size(arguments))],
    )


def compile_model(model: Any, arguments: DDPArguments) -> None:
    """Compile it in place, inside of what DDP or FSDP puts around it: state and names stay as they are."""
    from exercises.utils import compilation  # torch._dynamo takes a second

    # What divides the graph can neither recompute nor keep buckets that are smaller than DDP's first one, of 1 MiB.
    divides = not arguments.activation_checkpointing and bucket_size(arguments).get("bucket_cap_mb", 1) >= 1
    compilation.prepare(arguments, divides=divides)
    model.compile()


def bucket_size(arguments: DDPArguments) -> dict[str, float]:
    """DDP's setting for the size of its gradient buckets, in MiB; none: its own."""
    requested = {} if arguments.bucket_cap_mb is None else {"bucket_cap_mb": arguments.bucket_cap_mb}
    return requested | settings.ddp_buckets(arguments.faults)


def declare_options(parser: Any) -> None:
    parser.add_argument("--fsdp", choices=("full", "hybrid"), help="shard the parameters with FSDP2")
    parser.add_argument("--lora", type=positive, help="train adapters of this rank instead of the weights")
    offload = "keep activations for the backward pass in the host's memory"
    parser.add_argument("--activation-offload", action="store_true", help=offload)
    unified = "let tensors use the memory of both GPU and host"
    parser.add_argument("--unified-memory", action="store_true", help=unified)
    parser.add_argument("--bucket-cap-mb", type=float, help="size of DDP's gradient buckets in MiB")
    slow = "tokenise on the fly in the main process, without workers and pinned memory"
    parser.add_argument("--slow-dataloading", action="store_true", help=slow)
    declare_loading(parser)
