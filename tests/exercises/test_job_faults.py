"""Faults outside of the steps, in each exercise: the job's time has each in its part, with the seconds that it took."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("accelerate", reason="the training scripts need their libraries")

from harness.run.mystery import injected
from tests.exercises.launching import ROOT
from tests.waiting import limit_s

pytestmark = [pytest.mark.train, pytest.mark.long]

PARTS = {"slow-weights,ms=150": "model", "slow-checkpoint,ms=1500": "checkpoints"}


@pytest.mark.parametrize("exercise", ["1", "2", "3"])
def test_each_part_has_the_seconds_of_its_fault_beside_its_own(exercise: str, tmp_path: Path) -> None:
    """Megatron takes seconds for any checkpoint."""
    faults = [word for text in PARTS for word in ("--fault", text)]
    words = ["-e", exercise, "-g", "2", "--no-profile", "--steps", "10", "--checkpoint-every", "5", *faults]
    env = {**os.environ, "HARNESS_RUNS": str(tmp_path), "HARNESS_SITE": "local", "CUDA_VISIBLE_DEVICES": ""}
    for argv in (words, ["report", "last", "--json"]):
        command = [sys.executable, "-m", "harness", *argv]
        done = subprocess.run(
            command, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=limit_s(600)
        )
        assert done.returncode == 0, done.stderr[-3000:]
    (run,) = tmp_path.glob("exercise_*/profiler/[!.]*")
    took: dict[str, dict[int, int]] = {}
    for line in injected(run):
        of = took.setdefault(line.fault, {})
        of[line.rank] = of.get(line.rank, 0) + line.ns
    found = {part["part"]: part["duration_ns"] for part in json.loads(done.stdout)["job_time"]["parts"]}
    for text, part in PARTS.items():
        assert found[part] >= 0.9 * max(took[text.partition(",")[0]].values()), (part, found, took)
