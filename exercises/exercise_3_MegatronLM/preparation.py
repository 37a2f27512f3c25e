"""What exercise 3 prepares before its loop, and does after it: its options, and model, data and optimizer, spread by
megatron-core."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch.distributed as dist

from exercises.exercise_3_MegatronLM import options, runtime
from exercises.exercise_3_MegatronLM.options import MegatronArguments
from exercises.utils.announce import announce
from exercises.utils.describe import describe
from exercises.utils.models import load_model_config
from exercises.utils.precision import set_precision
from exercises.utils.stop import StopRequest
from exercises.utils.synchronisation import SynchronisationCheck
from exercises.utils.training import LoopState, Train, run_loop
from harness.observe.metrics import StepTimer, rank_of_process

if TYPE_CHECKING:  # the import of megatron looks for CUDA, so `run_training` first installs the CPU shim
    from exercises.exercise_3_MegatronLM.data import Samples
    from exercises.exercise_3_MegatronLM.engine import Engine
    from exercises.exercise_3_MegatronLM.hooks import MegatronStep, StageRanges


@dataclass(frozen=True)
class MegatronState(LoopState[MegatronArguments]):
    """All that the loop needs. `engine` has model, optimizer and schedule; `marks` times the stages in them."""

    engine: Engine
    samples: Samples
    marks: StageRanges

    @property
    def rank(self) -> int:
        return self.description.rank

    def step_line(self, iteration: int, timer: StepTimer, *, loss: float, lr: float) -> MegatronStep:
        """What the metrics keep of an iteration."""
        from exercises.exercise_3_MegatronLM import hooks

        phase = self.arguments.window.phase(iteration)
        return hooks.step_line(iteration, phase, self.engine.batch, timer, loss=loss, lr=lr)

    @contextmanager
    def with_faults(self) -> Iterator[MegatronState]:
        from exercises.exercise_3_MegatronLM import hooks

        with hooks.injected(self.arguments, self.engine, self.samples):
            hooks.install(self.marks)  # around the faults: a stage's range has the time of its fault
            yield self

    def save(self, folder: Path) -> None:
        self.engine.save(folder)

    def end(self) -> None:
        dist.destroy_process_group()


def run_training(train: Train[MegatronState]) -> int:
    """Prepare everything, train with this loop, and return the exit code."""
    runtime.order_launches()
    return run_loop(options.parse, build, train)


def build(arguments: MegatronArguments, stop: StopRequest) -> MegatronState:
    """Model, data and optimizer, spread over the processes by megatron-core. Raises RequestError: the layout, the batch
    and the model break a rule."""
    model = load_model_config(arguments.model)
    layout = arguments.layout(rank_of_process()[1])
    batch = arguments.batch(layout, model)
    options.check(layout, batch, model)

    announce("starting the process group and importing megatron-core")
    device = runtime.start(arguments.on_cpu)
    set_precision(arguments.precision, device)
    from exercises.exercise_3_MegatronLM import data, engine, hooks

    engine.start_groups(layout, arguments.seed)
    announce("building the model and reading the data")
    training = engine.build(arguments, model, layout, batch)
    prefix = data.prefix_of(arguments, model.vocab_size)
    samples = data.Samples(prefix, batch.seq_length, model.vocab_size, arguments.seed)
    described = describe(arguments, model, batch.seq_length, device)
    description = replace(described, gradient_accumulation_steps=training.num_microbatches)
    check = SynchronisationCheck([])  # ranks of tensor and pipeline parallelism have different parameters
    return MegatronState(arguments, stop, check, description, training, samples, hooks.StageRanges())
