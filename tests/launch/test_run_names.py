"""What a run and its exercise are called."""

from __future__ import annotations

import pytest

from harness.common.paths import ROOT
from harness.experiment.exercises import DDP, EXERCISES, CommTests, DeepSpeed, Experiment, Megatron


@pytest.mark.parametrize(
    ("asked", "tags"),
    [
        (CommTests(), "-n1"),
        (
            DDP(gpus_per_node=4, micro_batch_size=2, slow_dataloading=True, script="/x/my own.py"),
            "-n1-g4-mbs2-gas1-mixed0-actckpt0-slowdl1-scriptmy_own",
        ),
        (
            DeepSpeed(gpus_per_node=4, micro_batch_size=8, mixed_precision=True, heavy_comm=True, hpz_partition=4),
            "-n1-g4-mbs8-gas1-mixed1-actckpt0-commoverlap1-heavycomm1-hpz4-ZeRO3",
        ),
        (
            Megatron(gpus_per_node=4, micro_batch_size=1, global_batch_size=8, tp=4, mixed_precision=True),
            "-n1-g4-mbs1-gbs8-mixed1-actckpt0-tp4-pp1",
        ),
    ],
)  # fmt: skip
def test_the_tags_of_a_runs_name_stand_as_on_the_slides(asked: Experiment, tags: str) -> None:
    assert asked.name("model")[1] == tags


def test_each_exercise_has_its_folder_and_title() -> None:
    for cls in EXERCISES.values():
        assert (ROOT / "exercises" / cls.folder).is_dir()
        assert cls.title
