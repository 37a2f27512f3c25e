"""What the tests of the launch wing share: command lines run as a user runs them, in a place of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from launch_shared import ROOT, Harness

from harness.launch.resolve import Machine


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A laptop: two cores, nothing else."""
    return Machine(
        gpus=0, cores=2, has_nsys=False, python="/venv/bin/python", runs_dir=str(tmp_path / "runs")
    )


@pytest.fixture
def harness(tmp_path: Path) -> Harness:
    """`harness("-e", "1", …)` runs the command line; runs go to tmp_path/runs, the site is local unless asked."""

    def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "HARNESS_RUNS": str(tmp_path / "runs"), "HARNESS_SITE": "local", **environment}
        return subprocess.run(
            [sys.executable, "-m", "harness", *words],
            cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip

    return run
