"""What exercise 3 prepares before its loop, and does after it: its options, and model, data and optimizer, spread by
megatron-core."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch.distributed as dist

from exercises.exercise_3_MegatronLM import options, runtime
from exercises.exercise_3_MegatronLM.options import MegatronArguments
from exercises.utils.announce import announce
from exercises.utils.capture import Capture, open_capture
from exercises.utils.models import load_model_config
from exercises.utils.precision import set_precision
from exercises.utils.stop import StopRequest
from exercises.utils.synchronisation import save_if_due
from harness.observe.metrics import MetricsWriter, StepTimer, rank_of_process

if TYPE_CHECKING:  # the import of megatron looks for CUDA, so `run_training` first installs the CPU shim
    from exercises.exercise_3_MegatronLM.data import Samples
    from exercises.exercise_3_MegatronLM.engine import Engine
    from exercises.exercise_3_MegatronLM.hooks import MegatronStep, StageRanges


@dataclass(frozen=True)
class MegatronState:
    """All that the loop needs. `engine` has model, optimizer and schedule; `marks` times the stages in them."""

    arguments: MegatronArguments
    engine: Engine
    samples: Samples
    marks: StageRanges
    stop: StopRequest
    rank: int

    def step_line(self, iteration: int, timer: StepTimer, *, loss: float, lr: float) -> MegatronStep:
        """What the metrics keep of an iteration."""
        from exercises.exercise_3_MegatronLM import hooks

        phase = self.arguments.window.phase(iteration)
        return hooks.step_line(iteration, phase, self.engine.batch, timer, loss=loss, lr=lr)

    def save_if_due(self, iteration: int) -> None:
        """Write a checkpoint after `iteration`, if `--checkpoint-every` says so."""
        save_if_due(self.arguments, iteration, self.engine.save)


def run_training(train: Callable[[MegatronState, MetricsWriter, Capture], None]) -> int:
    """Prepare everything, train with this loop, and return the exit code: 0, or 143 after SIGTERM."""
    runtime.order_launches()
    stop = StopRequest()
    arguments = options.parse()
    model = load_model_config(arguments.model)
    rank, world, _ = rank_of_process()
    layout = arguments.layout(world)
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
    start = hooks.start_line(arguments, model, layout, training, device)
    with (
        MetricsWriter(arguments.run_dir, start) as writer,
        open_capture(arguments, rank) as capture,
        hooks.injected(arguments, training, samples),  # --fault
    ):
        train(MegatronState(arguments, training, samples, hooks.install(), stop, rank), writer, capture)
    dist.destroy_process_group()
    return stop.exit_code
