"""A training flag means the same to `slurm.sh` and to the training script that it reaches."""

from __future__ import annotations

import re
from typing import Any

import pytest

pytest.importorskip("accelerate", reason="the training scripts need their libraries")

from exercises.exercise_1_DDP import preparation as ddp
from exercises.exercise_2_DeepSpeed import preparation as deepspeed
from exercises.exercise_3_MegatronLM import options as megatron
from harness.experiment.exercises import DDP, DeepSpeed, Megatron, Training
from harness.experiment.options import Option, options_of

CLASSES: list[type[Training]] = [DDP, DeepSpeed, Megatron]
OPTIONS = [(cls, option) for cls in CLASSES for option in options_of(cls) if option.flag.train is not None]
IDS = [f"{cls.__name__} {option.field}" for cls, option in OPTIONS]


def script(cls: type[Training], *words: str) -> Any:
    """What the script of `cls` makes of a command line."""
    argv = ["--run-dir", "r", "--model", "m", *words]
    if cls is DDP:
        return ddp.parse(argv)
    if cls is DeepSpeed:
        argv += ["--deepspeed-config", "c"]
        return deepspeed.parse(argv)
    return megatron.parse(argv)


@pytest.mark.parametrize(("cls", "option"), OPTIONS, ids=IDS)
def test_a_name_and_a_default_mean_one_thing_on_both_sides(
    cls: type[Training], option: Option, capsys: pytest.CaptureFixture[str]
) -> None:
    assert script(cls, *option.arguments(option.default)) == script(cls)
    with pytest.raises(SystemExit):
        script(cls, "--help")
    known = set(re.findall(r"--[a-z][a-z0-9-]+", capsys.readouterr().out))
    assert option.flag.train in known
    assert option.flag.train in option.flag.names or not known & set(option.flag.names)
