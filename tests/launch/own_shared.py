"""A user's folder with a training of its own, from which `slurm.sh run -- …` is typed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.cli.main import main
from harness.experiment.exercises import OwnTraining
from harness.launch.job import Job, Machine, resolve
from harness.site.site import Site
from tests.launch.stand_ins import executable
from tests.waiting import limit_s

LAPTOP = Machine(0, 2, False, "/harness/python", "/harness/runs", "/home/u/runs")
HERE = Site(name="here", description="x", device="cpu", profiler="torch")
# What a user's shell may have that changes the Python of a training, and where runs are looked for.
FROM_THE_SHELL = ("VIRTUAL_ENV", "CONDA_PREFIX", "HARNESS_RUNS")


def own(*command: str, **fields: object) -> OwnTraining:
    """The request, typed in /home/u."""
    return OwnTraining.model_validate({"command": command, "start_in": "/home/u", **fields})


def job_of(asked: OwnTraining, site: Site = HERE, machine: Machine = LAPTOP) -> Job:
    return resolve(asked, site, machine)


class Typed:
    """`typed("run", "--", "train.py")` runs the command line in the folder, in this process."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self._capsys = folder, capsys

    def __call__(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(self.folder)
            for name in FROM_THE_SHELL:
                patch.delenv(name, raising=False)
            for name, value in {"HARNESS_SITE": "local", **environment}.items():
                patch.setenv(name, value)
            self._capsys.readouterr()
            code = main(list(words))
        return subprocess.CompletedProcess(words, code, *self._capsys.readouterr())

    def files(self) -> list[str]:
        """All that is in the folder."""
        return sorted(path.name for path in self.folder.iterdir())


def a_python(path: Path, text: str) -> str:
    """A program that answers what a Python is asked with `text`."""
    return str(executable(path, f"#!/bin/sh\necho '{text}'\n"))


def process(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The same in a process of its own, as slurm.sh starts it."""
    kept = {name: value for name, value in os.environ.items() if name not in FROM_THE_SHELL}
    return subprocess.run(
        [sys.executable, "-I", "-m", "harness", *words],
        cwd=folder, env={**kept, "HARNESS_SITE": "local", **environment},
        capture_output=True, text=True, errors="replace", check=False, timeout=limit_s(300),
    )  # fmt: skip
