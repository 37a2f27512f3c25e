"""The programs of exercise 2: accelerate with DeepSpeed, which reads a configuration file of the run."""

from __future__ import annotations

from typing import Any

from harness.experiment.deepspeed import DeepSpeed
from harness.launch.argv import RUN_DIR, Word, join
from harness.launch.exercises.accelerate import accelerate, accelerate_files
from harness.launch.exercises.base import CommandPlace, ExercisePlan, Target, script_path
from harness.launch.exercises.deepspeed_config import deepspeed_config
from harness.launch.exercises.training import (
    TrainingLaunch,
    around_each_rank,
    training_argv,
    training_plan,
)


class DeepSpeedLaunch(TrainingLaunch[DeepSpeed]):
    """accelerate starts the exercise's script with DeepSpeed's plugin."""

    def defaults(self, asked: DeepSpeed, target: Target) -> dict[str, Any]:
        hpz = asked.hpz_partition or (target.gpus_per_node if asked.zero_stage == 3 else None)
        return super().defaults(asked, target) | {"hpz_partition": hpz}

    def plan(self, asked: DeepSpeed, place: CommandPlace) -> ExercisePlan:
        config = deepspeed_config(asked, tiny=place.model is not None and place.model.tiny)
        files = accelerate_files(asked, "deepspeed") | {"ds_config.json": config.to_json()}
        words: list[Word] = ["--deepspeed-config", join(RUN_DIR, "/ds_config.json")]
        script = script_path(asked, "train.py")
        training = [script, *training_argv(asked, place), *words]
        argv = [*accelerate(place), *around_each_rank(asked, place), *training]
        return training_plan(asked, place, argv, files)


LAUNCH = DeepSpeedLaunch()
