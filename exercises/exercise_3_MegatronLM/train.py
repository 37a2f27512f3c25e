"""Exercise 3: pre-train a GPT with tensor and pipeline parallelism, on megatron-core, and profile some iterations.

Read it from top to bottom: `main` prepares and ends the training, `train` is the loop, `train_iteration` one global
batch.

    torchrun --nproc-per-node 2 exercises/exercise_3_MegatronLM/train.py \
        --model configs/models/tiny-mistral.yaml --run-dir /tmp/run --pp 2 --profiler torch
"""

from __future__ import annotations

import gc
import sys
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

gc.disable()  # nothing that is imported is garbage; run_script enables it again
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # `exercises` is found from anywhere

from harness.observe import job_time

job_time.begin_script()  # records what passes before the first step, from here on

import torch.distributed as dist

from exercises.exercise_3_MegatronLM import options, runtime
from exercises.exercise_3_MegatronLM.options import MegatronArguments
from exercises.utils.announce import announce
from exercises.utils.capture import Capture, open_capture
from exercises.utils.errors import run_script
from exercises.utils.models import load_model_config
from exercises.utils.precision import set_precision
from exercises.utils.stop import StopRequest
from exercises.utils.synchronisation import save_if_due
from harness.observe.metrics import MetricsWriter, StepTimer, rank_of_process
from harness.observe.ranges import annotate

if TYPE_CHECKING:  # the import of megatron looks for CUDA, so `main` first installs the CPU shim
    from exercises.exercise_3_MegatronLM.data import Samples
    from exercises.exercise_3_MegatronLM.engine import Engine


def main() -> int:
    """Train as the command line asks. Returns 0, or 143 after SIGTERM."""
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
        train(arguments, training, samples, stop=stop, capture=capture, writer=writer)
    dist.destroy_process_group()
    return stop.exit_code


def train(
    arguments: MegatronArguments,
    training: Engine,
    samples: Samples,
    *,
    stop: StopRequest,
    capture: Capture,
    writer: MetricsWriter,
) -> None:
    """One iteration after the other, until the last one or until SIGTERM."""
    from exercises.exercise_3_MegatronLM import hooks

    marks = hooks.install()
    for iteration in range(arguments.total_steps):
        if stop.before(iteration):
            writer.stopped("SIGTERM")
            break
        capture.step_begins(iteration)
        timer, lr = marks.new_timer(), training.learning_rate
        with timer.part("iteration"), annotate(f"iteration_{iteration}"):
            loss = train_iteration(training, samples, iteration, timer)
        capture.step_ends(iteration)
        phase = arguments.window.phase(iteration)
        line = hooks.step_line(iteration, phase, training.batch, timer, loss=loss, lr=lr)
        writer.step(line)
        save_if_due(arguments, iteration, training.save)
        if dist.get_rank() == 0:
            print(f"iteration {iteration + 1}/{arguments.total_steps}  {line.summary()}", flush=True)


def train_iteration(training: Engine, samples: Samples, iteration: int, timer: StepTimer) -> float:
    """Forward and backward over all micro-batches, then one optimizer step. Returns the global batch's loss."""

    def loading(number: int) -> AbstractContextManager[object]:
        marks = ExitStack()
        marks.enter_context(annotate(f"DataLoad batch {number}"))
        marks.enter_context(timer.part("data"))
        return marks

    with annotate("zero_grad"):
        training.zero_grad()
    loss = training.forward_backward(partial(samples.micro_batches, training.batch, iteration, loading))
    with annotate("optimizer_step"), timer.part("optimizer"):
        training.optimizer.step()
    with annotate("scheduler_step"):
        training.scheduler.step(increment=1)
    return float(loss)


if __name__ == "__main__":
    run_script(main)
