"""Exercise 1, task 1a-optional: the same training as `train.py`. What is profiled, you say.

Fill the eight gaps with the calls of the slide. `README.md` beside this file explains them, and has the solution:

    torch.cuda.cudart().cudaProfilerStart()     torch.cuda.nvtx.range_push("name")
    torch.cuda.cudart().cudaProfilerStop()      torch.cuda.nvtx.range_pop()

nsys receives them on a GPU. Without a GPU, or with torch.profiler, the harness records the same calls (`by_calls`). The
script trains with any number of gaps filled. Run it, and look at what you added:

    bash slurm.sh -e 1 --script train_todo.py
    bash slurm.sh report last --full

Without the harness, in the checkout:

    PYTHONPATH=. accelerate launch --config_file configs/accelerate/ddp.yaml exercises/exercise_1_DDP/train_todo.py \
        --model configs/models/tiny-llama.yaml --run-dir /tmp/run --profiler torch
"""

from __future__ import annotations

from typing import Any

from exercises.entry import run_script

import torch
from tqdm import tqdm  # type: ignore[import-untyped]

from exercises.exercise_1_DDP import variants
from exercises.exercise_1_DDP.preparation import TrainingState, run_training
from exercises.utils.data import TokenBatch
from exercises.utils.profiler_calls import StepWriter, by_calls
from harness.common.run_folder.metrics_lines import StepLine
from harness.observe import metrics


def main() -> int:
    """Prepare everything, train, and return the exit code."""
    return run_training(by_calls(train))


def train(training: TrainingState, writer: StepWriter) -> None:
    """Go through the data, epoch after epoch, until the last step or until we are asked to stop."""
    arguments, accelerator = training.arguments, training.accelerator
    steps = iter(tqdm(range(arguments.total_steps), disable=not accelerator.is_main_process, mininterval=1.0))
    step = next(steps, None)
    for epoch in range(arguments.total_steps):
        # An example: the whole epoch is one range. In a `with`, `range` is a push before the block and a pop after it.
        with torch.cuda.nvtx.range(f"epoch_{epoch}-rank_{accelerator.process_index}"):
            batches = iter(training.loader)
            for _ in range(len(training.loader)):
                if step is None or training.stop.before(step, lead=arguments.gradient_accumulation_steps):
                    return
                # GAP 1: start the profiler, if `step` is arguments.window.start: the first step to profile.
                record = train_step(training, batches, step)
                writer.step(record)
                # GAP 2: stop the profiler, if `step` is arguments.window.end - 1: the last step to profile.
                if record.synced:
                    training.check.after_update(record.phase)
                training.save_if_due(step)
                step = next(steps, None)
            next(batches, None)  # lets the loader end its epoch


def train_step(training: TrainingState, batches: Any, step: int) -> StepLine:
    """One batch: load it, forward, backward, and when enough batches are accumulated, the optimizer."""
    accelerator, model = training.accelerator, training.model
    timer = metrics.StepTimer()
    # GAP 3 begins: the whole step is the range `batch_<step>`, for example batch_17.
    # GAP 4 begins: loading is the range `DataLoad batch <step>`, inside of it.
    with timer.part("data"):
        batch: TokenBatch = next(batches)
    # GAP 4 ends.

    # Inside `accumulate`, gradients are all-reduced only in the last batch of an accumulation (no_sync).
    with accelerator.accumulate(model):
        keeping = variants.offload_activations(model, training.arguments.activation_offload)
        # GAP 5 begins: `forward`.
        with timer.part("forward"), keeping:
            loss = model(**batch).loss
        # GAP 5 ends.
        # GAP 6 begins: `backward`.
        with timer.part("backward"):
            accelerator.backward(loss)
        # GAP 6 ends.
        synced = bool(accelerator.sync_gradients)
        learning_rate = float(training.scheduler.get_last_lr()[0])
        if synced:
            with timer.part("optimizer"):
                # GAP 7 begins: `optimizer_step`.
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                training.optimizer.step()
                # GAP 7 ends.
                # GAP 8 begins: two ranges, first `scheduler_step`.
                training.scheduler.step()
                # GAP 8 goes on: `scheduler_step` ends, `zero_grad` begins.
                training.optimizer.zero_grad()
                # GAP 8 ends.
    loss_value = loss.item()  # waits for the device, so that the step's time includes its work
    # GAP 3 ends.
    window = training.arguments.window
    return timer.finish(step, window, input_ids=batch["input_ids"], loss=loss_value, lr=learning_rate, synced=synced)


if __name__ == "__main__":
    run_script(main)
