"""Starts exercise 3's training as the harness does, on this machine's CPU."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from tests.exercises.launching import ROOT, Run, free_port, launch_forked

SCRIPT = ROOT / "exercises" / "exercise_3_MegatronLM" / "train.py"
MODELS = ROOT / "configs" / "models"


def command(folder: Path, *flags: object, processes: int = 2, model: str = "tiny-mistral") -> list[str]:
    """The launch of one training on this machine."""
    arguments = _arguments(folder, flags, processes=processes, model=model)
    return [str(Path(sys.executable).with_name("torchrun")), *arguments]


def _arguments(folder: Path, flags: Iterable[object], *, processes: int, model: str) -> list[str]:
    machine = ("--nnodes", 1, "--node-rank", 0, "--master-addr", "127.0.0.1", "--master-port", free_port())
    where = ("--run-dir", folder, "--model", MODELS / f"{model}.yaml", "--device", "cpu")
    return list(map(str, (*machine, "--nproc-per-node", processes, SCRIPT, *where, *flags)))


def train(folder: Path, *flags: object, processes: int = 2, model: str = "tiny-mistral") -> Run:
    """Train to the end with forked ranks."""
    arguments = _arguments(folder, flags, processes=processes, model=model)
    return Run(folder, *launch_forked("torchrun", arguments, folder))
