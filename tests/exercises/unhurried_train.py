"""Exercise 1's training with a pause in each step: a run that is only waited for leaves the cores to other tests."""

from __future__ import annotations

import time
from typing import Any

from exercises.entry import run_script

from exercises.exercise_1_DDP import train
from exercises.exercise_1_DDP.preparation import TrainingState
from harness.common.run_folder.metrics_lines import StepLine

PAUSE_S = 0.2
_step = train.train_step


def unhurried_step(training: TrainingState, batches: Any, step: int) -> StepLine:
    """A step that begins with the pause."""
    time.sleep(PAUSE_S)  # the pause that this script is for
    return _step(training, batches, step)


if __name__ == "__main__":
    train.train_step = unhurried_step
    run_script(train.main)
