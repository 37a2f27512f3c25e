"""Trainings that several tests look at, each run once."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.experiment.deepspeed import DeepSpeed
from harness.launch.exercises.deepspeed import as_json, deepspeed_config
from tests.exercises.launching import ROOT, Run, completed, train

# Steps 2 to 4 are recorded. The learning rate is high, so that the losses change from step to step.
WINDOW = ["--skip", "0", "--wait", "1", "--warmup", "1", "--active", "3", "--profiler", "torch", "--seq-length", "64"]
LEARNING = ["--learning-rate", "1e-3", "--lr-warmup-steps", "1"]


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The weights of the tiny Mistral from which every training starts."""
    pytest.importorskip("torch", reason="training needs PyTorch")
    from exercises.utils.models import load_model_config, save_random_weights

    folder = tmp_path_factory.mktemp("weights") / "checkpoint"
    save_random_weights(load_model_config(ROOT / "configs/models/tiny-mistral.yaml"), folder, seed=1)
    return folder


def _ddp(factory: pytest.TempPathFactory, checkpoint: Path, *more: str) -> Run:
    folder = factory.mktemp("ddp") / "run"
    options = [*WINDOW, *LEARNING, *more, "--checkpoint", str(checkpoint)]
    return completed(train("exercise_1_DDP/train.py", folder, *options))


def _zero(factory: pytest.TempPathFactory, checkpoint: Path, stage: int) -> Run:
    folder = factory.mktemp(f"zero{stage}") / "run"
    config = folder.parent / "ds_config.json"
    asked = DeepSpeed.model_validate({"zero_stage": stage})
    config.write_text(as_json(deepspeed_config(asked, tiny=True, auto_batch=True)))
    options = [*WINDOW, *LEARNING, "--checkpoint", str(checkpoint), "--deepspeed-config", str(config)]
    return completed(train("exercise_2_DeepSpeed/train.py", folder, *options, config="deepspeed"))


@pytest.fixture(scope="session")
def ddp(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> Run:
    """DDP on two ranks."""
    return _ddp(tmp_path_factory, checkpoint)


@pytest.fixture(scope="session")
def fsdp(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> Run:
    """FSDP2 on two ranks."""
    return _ddp(tmp_path_factory, checkpoint, "--fsdp", "full")


@pytest.fixture(scope="session")
def zero1(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> Run:
    """ZeRO-1 on two ranks."""
    return _zero(tmp_path_factory, checkpoint, 1)


@pytest.fixture(scope="session")
def zero2(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> Run:
    """ZeRO-2 on two ranks."""
    return _zero(tmp_path_factory, checkpoint, 2)


@pytest.fixture(scope="session")
def zero3(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> Run:
    """ZeRO-3 on two ranks."""
    return _zero(tmp_path_factory, checkpoint, 3)
