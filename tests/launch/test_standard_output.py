"""Output that cannot be written is one sentence; a closed pipe is no error."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launch.launch_shared import ROOT
from tests.waiting import limit_s

COMMANDS = [("ls",), ("--help",), ("ls", "--help"), ("-e", "1", "--dry-run"), ("sites", "--schema")]

pytestmark = pytest.mark.parametrize("command", COMMANDS, ids=" ".join)


def harness(tmp_path: Path, command: tuple[str, ...], stdout: int) -> subprocess.CompletedProcess[str]:
    """With buffered stdout, as on a terminal of a student."""
    env = {**os.environ, "HARNESS_RUNS": str(tmp_path), "HARNESS_SITE": "local", "PYTHONUNBUFFERED": ""}
    argv = [sys.executable, "-m", "harness", *command]
    return subprocess.run(
        argv, cwd=ROOT, env=env, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False, timeout=limit_s()
    )


def test_a_full_disk_is_named(tmp_path: Path, command: tuple[str, ...]) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        done = harness(tmp_path, command, full)
    finally:
        os.close(full)
    assert done.returncode == 1, done.stderr
    assert done.stderr.splitlines()[-1] == "slurm.sh: standard output: No space left on device"
    assert "Traceback" not in done.stderr
    assert "ignored" not in done.stderr


def test_a_closed_pipe_is_no_failure(tmp_path: Path, command: tuple[str, ...]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = harness(tmp_path, command, writer)
    finally:
        os.close(writer)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "ignored" not in done.stderr
