"""Exercise 1: fine-tune a Llama with DistributedDataParallel, and profile some of its steps.

Read it from top to bottom: `train` is the loop, `train_step` one batch. What is trained is built in `preparation.py`,
which also begins and ends the training.

    PYTHONPATH=. accelerate launch --config_file configs/accelerate/ddp.yaml exercises/exercise_1_DDP/train.py \
        --model configs/models/tiny-llama.yaml --run-dir /tmp/run --profiler torch
"""

from __future__ import annotations

from typing import Any

from exercises.entry import run_script

from tqdm import tqdm  # type: ignore[import-untyped]

from exercises.exercise_1_DDP import variants
from exercises.exercise_1_DDP.preparation import TrainingState, run_training
from exercises.utils.capture import Capture
from exercises.utils.data import TokenBatch
from harness.common.run_folder.metrics_lines import StepLine
from harness.observe import metrics
from harness.observe.ranges import annotate


def main() -> int:
    """Prepare everything, train, and return the exit code."""
    return run_training(train)


def train(training: TrainingState, writer: metrics.MetricsWriter, capture: Capture) -> None:
    """Go through the data, epoch after epoch, until the last step or until we are asked to stop."""
    arguments, accelerator = training.arguments, training.accelerator
    steps = iter(tqdm(range(arguments.total_steps), disable=not accelerator.is_main_process, mininterval=1.0))
    step = next(steps, None)
    for epoch in range(arguments.total_steps):
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


def train_step(training: TrainingState, batches: Any, step: int) -> StepLine:
    """One batch: load it, forward, backward, and when enough batches are accumulated, the optimizer."""
    accelerator, model = training.accelerator, training.model
    timer = metrics.StepTimer()
    with annotate(f"batch_{step}"):
        with annotate(f"DataLoad batch {step}"), timer.part("data"):
            batch: TokenBatch = next(batches)

        # Inside `accumulate`, gradients are all-reduced only in the last batch of an accumulation (no_sync).
        with accelerator.accumulate(model):
            keeping = variants.offload_activations(model, training.arguments.activation_offload)
            with annotate("forward"), timer.part("forward"), keeping:
                loss = model(**batch).loss
            with annotate("backward"), timer.part("backward"):
                accelerator.backward(loss)
            synced = bool(accelerator.sync_gradients)
            learning_rate = float(training.scheduler.get_last_lr()[0])
            if synced:
                with timer.part("optimizer"):
                    with annotate("optimizer_step"):
                        accelerator.clip_grad_norm_(model.parameters(), 1.0)
                        training.optimizer.step()
                    with annotate("scheduler_step"):
                        training.scheduler.step()
                    with annotate("zero_grad"):
                        training.optimizer.zero_grad()
        loss_value = loss.item()  # waits for the device, so that the step's time includes its work
    window = training.arguments.window
    return timer.finish(step, window, input_ids=batch["input_ids"], loss=loss_value, lr=learning_rate, synced=synced)


if __name__ == "__main__":
    run_script(main)
