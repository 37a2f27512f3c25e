"""The scripts of exercise 0 as commands, and what the tools of a node print."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.exercise_0.conftest import EXERCISE
from tests.waiting import limit_s

SCRIPT = str(EXERCISE / "comm_tests.py")
FIXTURES = Path(__file__).parent / "fixtures"
NONE: Mapping[str, str] = {}
ALONE = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}


def printed(name: str) -> str:
    """What a tool printed on a real machine."""
    return (FIXTURES / f"{name}.txt").read_text(encoding="utf-8")


def run_script(
    folder: Path, *words: str, python: tuple[str, ...] = (), environment: Mapping[str, str] = NONE
) -> tuple[int, str, str]:
    """Exit code, output and errors of `comm_tests.py WORDS` for the run in `folder`."""
    argv = [sys.executable, *python, SCRIPT, *words, "--run-dir", str(folder)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=environment, timeout=limit_s())
    return done.returncode, done.stdout, done.stderr


def torchrun(folder: Path, *words: str) -> str:
    """The output of two real processes that measure on CPUs."""
    python = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    code, output, errors = run_script(folder, *words, "--device", "cpu", python=python, environment=environment)
    assert code == 0, errors
    return output
