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


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("kind", ["a full disk", "a closed pipe"])
def test_a_full_disk_is_named_and_a_closed_pipe_is_no_failure(
    tmp_path: Path, command: tuple[str, ...], kind: str
) -> None:
    if kind == "a full disk":
        stdout = os.open("/dev/full", os.O_WRONLY)
    else:
        reader, stdout = os.pipe()
        os.close(reader)
    env = {**os.environ, "HARNESS_RUNS": str(tmp_path), "HARNESS_SITE": "local", "PYTHONUNBUFFERED": ""}  # as a student
    argv = [sys.executable, "-m", "harness", *command]
    done = subprocess.run(
        argv, cwd=ROOT, env=env, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False, timeout=limit_s()
    )
    os.close(stdout)
    assert "Traceback" not in done.stderr and "ignored" not in done.stderr
    last = done.stderr.splitlines()[-1:]
    assert done.returncode == (kind == "a full disk"), done.stderr
    assert done.returncode == 0 or last == ["slurm.sh: standard output: No space left on device"]
