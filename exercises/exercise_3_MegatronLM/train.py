"""Exercise 3: pre-train a GPT with tensor and pipeline parallelism, on megatron-core, and profile some iterations.

Read it from top to bottom: `train` is the loop, `train_iteration` one global batch. What is trained is built in
`preparation.py`, which also begins and ends the training.

    PYTHONPATH=. torchrun --nproc-per-node 2 exercises/exercise_3_MegatronLM/train.py \
        --model configs/models/tiny-mistral.yaml --run-dir /tmp/run --pp 2 --profiler torch
"""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from functools import partial

from exercises.entry import run_script

from exercises.exercise_3_MegatronLM.preparation import MegatronState, run_training
from exercises.utils.capture import Capture
from harness.observe.metrics import MetricsWriter, StepTimer
from harness.observe.ranges import annotate


def main() -> int:
    """Prepare everything, train, and return the exit code."""
    return run_training(train)


def train(megatron_state: MegatronState, writer: MetricsWriter, capture: Capture) -> None:
    """One iteration after the other, until the last one or until SIGTERM."""
    for iteration in range(megatron_state.arguments.total_steps):
        if megatron_state.stop.before(iteration):
            return
        capture.step_begins(iteration)
        timer, lr = megatron_state.marks.new_timer(), megatron_state.engine.learning_rate
        with timer.part("iteration"), annotate(f"iteration_{iteration}"):
            loss = train_iteration(megatron_state, iteration, timer)
        capture.step_ends(iteration)
        line = megatron_state.step_line(iteration, timer, loss=loss, lr=lr)
        writer.step(line)
        megatron_state.save_if_due(iteration)
        if megatron_state.rank == 0:
            print(f"iteration {iteration + 1}/{megatron_state.arguments.total_steps}  {line.summary()}", flush=True)


def train_iteration(megatron_state: MegatronState, iteration: int, timer: StepTimer) -> float:
    """Forward and backward over all micro-batches, then one optimizer step. Returns the global batch's loss."""
    engine, samples = megatron_state.engine, megatron_state.samples

    def loading(number: int) -> AbstractContextManager[object]:
        marks = ExitStack()
        marks.enter_context(annotate(f"DataLoad batch {number}"))
        marks.enter_context(timer.part("data"))
        return marks

    with annotate("zero_grad"):
        engine.zero_grad()
    loss = engine.forward_backward(partial(samples.micro_batches, engine.batch, iteration, loading))
    with annotate("optimizer_step"), timer.part("optimizer"):
        engine.optimizer.step()
    with annotate("scheduler_step"):
        engine.scheduler.step(increment=1)
    return float(loss)


if __name__ == "__main__":
    run_script(main)
