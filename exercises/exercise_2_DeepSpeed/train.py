"""Exercise 2: fine-tune a Mistral with DeepSpeed ZeRO, and profile some of its steps.

Read it from top to bottom: `train` is the loop, `train_step` one batch. Training ends with the profiled steps. What is
trained is built in `preparation.py`, which also begins and ends the training.

    PYTHONPATH=. accelerate launch --config_file configs/accelerate/deepspeed.yaml \
        exercises/exercise_2_DeepSpeed/train.py --model configs/models/tiny-mistral.yaml \
        --deepspeed-config configs/deepspeed/stage-3/full-precision.json --run-dir /tmp/run --profiler torch
"""

from __future__ import annotations

import itertools
from typing import Any

from exercises.entry import run_script

from tqdm import tqdm  # type: ignore[import-untyped]

from exercises.exercise_2_DeepSpeed.preparation import ZeroState, run_training
from exercises.utils.capture import Capture
from exercises.utils.data import TokenBatch
from harness.common.run_folder.metrics_lines import StepLine
from harness.observe import metrics
from harness.observe.ranges import annotate


def main() -> int:
    """Prepare everything, train, and return the exit code."""
    return run_training(train)


def train(training: ZeroState, writer: metrics.MetricsWriter, capture: Capture) -> None:
    """Go through the data, epoch after epoch, until the last step or until we are asked to stop."""
    arguments, accelerator = training.arguments, training.accelerator
    steps = iter(tqdm(range(arguments.total_steps), disable=not accelerator.is_main_process, mininterval=1.0))
    step = next(steps, None)
    for epoch in itertools.count():
        with annotate(f"epoch_{epoch}-rank_{accelerator.process_index}"):
            batches = iter(training.loader)
            for _ in range(len(training.loader)):
                if step is None or training.stop.before(step, lead=arguments.gradient_accumulation_steps):
                    return
                capture.step_begins(step)
                record = train_step(training, batches, step)
                writer.step(record)
                capture.step_ends(step)
                if record.synced:
                    training.check.after_update(record.phase)
                training.save_if_due(step)
                step = next(steps, None)
            next(batches, None)  # lets the loader end its epoch


def train_step(training: ZeroState, batches: Any, step: int) -> StepLine:
    """One batch: load it, forward, backward, and when enough batches are accumulated, the optimizer."""
    engine = training.engine
    timer = metrics.StepTimer()
    with annotate(f"batch_{step}"):
        with annotate(f"DataLoad batch {step}"), timer.part("data"):
            batch: TokenBatch = next(batches)

        # Stage 3 gathers each layer's parameters before it computes with them, here and again in backward.
        with annotate("forward"), timer.part("forward"):
            loss = engine(**batch).loss
        # Gradients are reduced bucket by bucket while the rest is computed; each rank keeps its own part. We call
        # the engine itself: `accelerator.backward` would do the optimizer's work in here, too.
        with annotate("backward"), timer.part("backward"):
            engine.backward(loss)

        # The engine counts batches and steps the optimizer at the end of an accumulation; clipping and zeroing
        # the gradients are part of its step.
        synced = bool(engine.is_gradient_accumulation_boundary())
        learning_rate = float(training.scheduler.get_last_lr()[0])
        with annotate("optimizer_step"), timer.part("optimizer"):
            engine.step()
        if synced:
            with annotate("scheduler_step"):
                training.scheduler.step()
        loss_value = float(loss.item())  # waits for the device, so that the step's time includes its work
    window = training.arguments.window
    return timer.finish(step, window, input_ids=batch["input_ids"], loss=loss_value, lr=learning_rate, synced=synced)


if __name__ == "__main__":
    run_script(main)
