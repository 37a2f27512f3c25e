"""The command line that every training script has, parsed into a typed dataclass.

An exercise adds its own options by subclassing `TrainingArguments` and passing a function that declares them.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar, TypeVar, get_args

import torch

from exercises.utils.faults import startup
from exercises.utils.faults.settings import fault, mystery_faults, refuse_misfits
from harness.common.errors import RequestError
from harness.common.faults.fault import Fault, Setup
from harness.common.model.model_config import Precision
from harness.common.run_folder.module_ranges import module_depth
from harness.common.run_folder.profile_window import FINE_TUNING, ProfileWindow, as_recorded
from harness.observe import heartbeat
from harness.observe.heartbeat import PROGRESS
from harness.observe.metrics import rank_of_process

DATASETS = Path(__file__).resolve().parents[1] / "datasets"
DEFAULT_DATA = DATASETS / "instructions.json"
DEFAULT_TOKENIZER = DATASETS / "tokenizer"


@dataclass(frozen=True)
class TrainingArguments:
    """The options of every training script. exercise: its number, on which some faults depend."""

    exercise: ClassVar[int | None] = None
    run_dir: Path
    model: Path
    checkpoint: Path | None
    random_weights: bool
    data: Path
    micro_batch_size: int
    gradient_accumulation_steps: int
    precision: Precision
    activation_checkpointing: bool
    seq_length: int | None
    learning_rate: float
    lr_warmup_steps: int
    skip: int
    wait: int
    warmup: int
    active: int
    steps: int | None
    checkpoint_every: int | None
    profiler: str
    module_ranges: str | None
    memory_snapshot: bool
    device: str
    seed: int
    faults: list[Fault]

    @property
    def window(self) -> ProfileWindow:
        return as_recorded(ProfileWindow(self.skip, self.wait, self.warmup, self.active), os.environ)

    @property
    def mixed_precision(self) -> bool:
        """Whether it computes in bf16 (in fp8: what is not in fp8)."""
        return self.precision in ("bf16", "fp8")

    @property
    def on_cpu(self) -> bool:
        """True when training runs without CUDA: on request, or where CUDA does not work."""
        return self.device == "cpu" or not torch.cuda.is_available()

    @property
    def total_steps(self) -> int:
        """Steps to train: `--steps`, else to the end of the window."""
        return self.window.end if self.steps is None else self.steps

    @property
    def fault_setup(self) -> Setup:
        ranks = int(os.environ.get("WORLD_SIZE", "1"))
        sizes = (self.micro_batch_size, self.total_steps)
        return Setup(self.exercise, ranks, *sizes, replicas=ranks, checkpoints=self.checkpoint_every is not None)


Arguments = TypeVar("Arguments", bound=TrainingArguments)


def parse_arguments(
    kind: type[Arguments],
    description: str,
    declare: Callable[[argparse.ArgumentParser], None] | None = None,
    argv: Sequence[str] | None = None,
) -> Arguments:
    """Parse the command line into `kind`, with the exercise's own options. Exits with 2 for a wrong one. Raises
    RequestError: a fault cannot work in this training."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    _declare_model_and_data(parser)
    _declare_training(parser)
    _declare_capture(parser)
    if declare is not None:
        declare(parser)
    namespace = parser.parse_args(argv)
    if namespace.random_weights and namespace.checkpoint is not None:
        parser.error("--random-weights and --checkpoint exclude each other: weights come from one place")
    arguments = kind(**vars(namespace))
    refuse_misfits(arguments.faults, arguments.fault_setup, "cpu" if arguments.on_cpu else "cuda")
    arguments.faults.extend(mystery_faults(arguments.run_dir))  # no refusal names them: the launch checked them
    PROGRESS.planned = arguments.total_steps
    heartbeat.begin(*rank_of_process())
    startup.begin(arguments.faults, arguments.run_dir, in_exercise=True)
    return arguments


def positive(text: str) -> int:
    """An integer ≥ 1, as an argparse type."""
    value = natural(text)
    if value == 0:
        raise argparse.ArgumentTypeError("must be at least 1, not 0")
    return value


def natural(text: str) -> int:
    """An integer ≥ 0, as an argparse type."""
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a whole number, not {text!r}") from None
    if value < 0:
        raise argparse.ArgumentTypeError(f"must not be negative, not {value}")
    return value


def depth(text: str) -> str:
    """What `--module-ranges` takes, as an argparse type."""
    try:
        return module_depth(text)
    except RequestError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _declare_model_and_data(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("model and data")
    group.add_argument("--run-dir", type=Path, required=True, help="where metrics and traces go")
    group.add_argument("--model", type=Path, required=True, help="a file of configs/models")
    group.add_argument("--checkpoint", type=Path, help="folder with weights in Hugging Face's format")
    group.add_argument("--random-weights", action="store_true", help="no checkpoint, which is the default")
    group.add_argument("--data", type=Path, default=DEFAULT_DATA, help="instructions in Alpaca's JSON format")
    group.add_argument("--seq-length", type=positive, help="tokens per example; default: the model file's")


def _declare_training(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("training")
    group.add_argument("--micro-batch-size", type=positive, default=2, help="examples per batch and process")
    batches = "batches per optimizer step"
    group.add_argument("--gradient-accumulation-steps", type=positive, default=1, help=batches)
    group.add_argument(
        "--mixed-precision", nargs="?", const="bf16", default="fp32", choices=get_args(Precision), dest="precision",
        help="of matrix products; without a word, and bf16: autocast",
    )  # fmt: skip
    recompute = "recompute activations in backward"
    group.add_argument("--activation-checkpointing", action="store_true", help=recompute)
    group.add_argument("--learning-rate", type=float, default=2e-5, help="after the warm-up")
    group.add_argument("--lr-warmup-steps", type=natural, default=5, help="optimizer steps of linear warm-up")
    group.add_argument("--steps", type=positive, help="batches to train; default: to the end of the window")
    checkpoints = "write a checkpoint after each N-th batch, and keep the newest; default: none"
    group.add_argument("--checkpoint-every", type=positive, metavar="N", help=checkpoints)
    group.add_argument("--device", choices=("auto", "cpu"), default="auto", help="auto: CUDA where it works")
    group.add_argument("--seed", type=natural, default=1234, help="of weights and data order")
    group.add_argument(
        "--fault", dest="faults", type=fault, action="append", default=[], metavar="NAME[,KEY=VALUE…]",
        help="inject this fault; can be repeated",
    )  # fmt: skip


def _declare_capture(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("profiling window, in batches")
    group.add_argument("--skip", type=natural, help="batches before the profiler is used")
    group.add_argument("--wait", type=natural, help="then batches with the profiler idle")
    group.add_argument("--warmup", type=natural, help="then batches with the profiler warming up")
    group.add_argument("--active", type=positive, help="then batches that are recorded")
    parser.set_defaults(**asdict(FINE_TUNING))
    group.add_argument("--profiler", choices=("nsys", "torch", "none"), default="none", help="what records")
    modules = "mark the passes of the model's modules: layers, all, or down to so many levels"
    group.add_argument("--module-ranges", type=depth, metavar="DEPTH", help=modules)
    snapshot = "record the memory by category, in every step until the window's end"
    group.add_argument("--memory-snapshot", action="store_true", help=snapshot)
