"""The programs of exercise 1: accelerate with DDP, and the script that a student brings."""

from __future__ import annotations

from pathlib import PurePosixPath

from harness.experiment.ddp import DDP
from harness.launch.exercises.accelerate import accelerate, accelerate_files
from harness.launch.exercises.base import Place, Plan, script_path
from harness.launch.exercises.training import TrainingLaunch, training_plan, training_words


class DDPLaunch(TrainingLaunch[DDP]):
    """accelerate starts the exercise's script, or another one."""

    def plan(self, asked: DDP, place: Place) -> Plan:
        script = PurePosixPath(asked.script or "train.py")
        own = script.is_absolute()
        path = str(script) if own else script_path(asked, str(script))
        argv = [*accelerate(place), path, *training_words(asked, place)]
        plan = training_plan(asked, place, argv, accelerate_files(asked, "ddp"))
        plan.folders.extend([str(script.parent)] * own)  # with what it imports from beside it
        return plan


LAUNCH = DDPLaunch()
