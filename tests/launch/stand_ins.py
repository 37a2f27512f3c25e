"""Stand-ins for Slurm's programs, for what a real controller does not do on demand (tests/slurm has real ones)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from harness.run import Run
from harness.run.record import Status
from tests.launch.launch_shared import a_run

UNREACHED = "echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1"
FORGOTTEN = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"
NO_ACCOUNTS = "echo 'Slurm accounting storage is disabled' >&2; exit 1"
NO_DATABASE = "echo 'sacct: error: Problem talking to the database: Connection refused' >&2; exit 1"


def executable(path: Path, text: str) -> Path:
    """A program that is this text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
    return path


class Programs:
    """Slurm's programs on PATH, each a line of shell. sbatch gives job 4711, and the controller has forgotten it."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        folder.mkdir()
        patch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        self.say(sbatch="echo 4711", scancel="", squeue=FORGOTTEN, scontrol=FORGOTTEN, sacct=NO_ACCOUNTS)

    def say(self, **bodies: str) -> None:
        for name, body in bodies.items():
            log = f'{{ printf "%s\\n" "$@"; echo --; }} >>"{self.folder}/{name}.log"'
            executable(self.folder / name, f"#!/bin/sh\n{log}\n{body}\n")

    def calls(self, name: str) -> list[list[str]]:
        """The words of each call."""
        log = self.folder / f"{name}.log"
        return [each.splitlines() for each in log.read_text().split("--\n")[:-1]] if log.exists() else []


def of_slurm(root: Path, job_id: str = "4711", **status: object) -> Run:
    """A run of a Slurm job, which wrote this status."""
    run = a_run(root / "runs", job_id)
    run.write_record(run.record.model_copy(update={"backend": "slurm"}))
    if status:
        run.write_status(Status.model_validate(status))
    return run
