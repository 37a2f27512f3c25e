"""A run on this machine ends well, whatever the shell that starts it exports."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.run import Run, all_runs
from tests.common.test_scrub_environment import SPOILS
from tests.launch.launch_shared import ROOT
from tests.waiting import limit_s

SHORT = ("--skip-steps", "0", "--wait-steps", "0", "--warmup-steps", "1", "--active-steps", "1", "--seq-length", "16")


@pytest.mark.long  # each variable alone is in tests/common/test_scrub_environment.py
@pytest.mark.train
def test_a_local_run_completes_with_all_of_them_exported(tmp_path: Path) -> None:
    exits = tmp_path / "exits"
    exits.write_text('[ -z "${HARNESS_JOB_ID-}" ] || exit 3\n')
    spoiling = {name: value for name, (value, _) in SPOILS.items()} | {"BASH_ENV": str(exits)}
    argv = ["bash", str(ROOT / "slurm.sh"), "-e", "0", "--site", "local", "--max-bytes", "4096"]
    places = {"HARNESS_RUNS": str(tmp_path / "runs"), "HARNESS_VENV": sys.prefix}
    done = subprocess.run(
        argv, env=os.environ | places | spoiling, capture_output=True, text=True, check=False, timeout=limit_s(600)
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (run,) = all_runs(tmp_path / "runs")
    own = Run(run.path).status()
    assert own is not None
    assert (own.state, own.missing) == ("completed", [])
    assert "PYTHONHOME of your shell is not passed to the job" in done.stderr
