"""A reference of real trainings on this machine: recorded, held against what it was, and damaged."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.study.reference.stored import read_reference, read_runs
from tests.planted import leaks, planted
from tests.waiting import limit_s

ROOT = Path(__file__).resolve().parents[2]
PLANTED = planted("for-a-reference")
LIST = """
name: short
title: One short run
device: cpu
variants:
  - name: ddp
    asks: {exercise: 1, gpus_per_node: 2, skip_steps: 1, wait_steps: 0, warmup_steps: 1, active_steps: 3}
"""

# Two trainings; test_reference_store.py has the same of runs that are made.
pytestmark = [pytest.mark.train, pytest.mark.long]


def reference(runs: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **PLANTED, "HARNESS_RUNS": str(runs), "HARNESS_SITE": "local", "CUDA_VISIBLE_DEVICES": ""}
    env.pop("HARNESS_REFERENCES", None)
    argv = [sys.executable, "-m", "harness", "reference", *words]
    return subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=limit_s(600))


def test_a_reference_is_recorded_checked_and_damaged(tmp_path: Path) -> None:
    runs, names = tmp_path / "runs", tmp_path / "short.yaml"
    names.write_text(LIST, encoding="utf-8")
    record = ("record", "--list", str(names), "--name", "real", "--yes", "--repeats", "2")

    whole = reference(runs, *record)
    assert whole.returncode == 0, whole.stderr
    assert "real: kept 2 runs of 1 variant in" in whole.stdout

    folder = runs / "references" / "real"
    kept = read_reference(folder)
    first_run, second_run = read_runs(folder, kept.variants[0]).runs
    assert first_run.metrics["all_reduce_bytes"] == second_run.metrics["all_reduce_bytes"] == 1247488
    assert (kept.environments[0].software["torch"], len(kept.environments)) == ("2.13.0+cpu", 1)

    again = reference(runs, "check", str(runs / second_run.path), "--against", "real")
    assert "counts and bytes are the same" in " ".join(again.stdout.split()), again.stdout + again.stderr

    assert leaks(tmp_path, PLANTED) == []  # runs, logs, the controller's own files and the reference

    trace = next((runs / second_run.path / "torch").glob("rank1*"))
    trace.write_bytes(trace.read_bytes()[:-1000])
    cut = reference(runs, "check", str(runs / second_run.path), "--against", "real")
    assert cut.returncode == 1
    assert "trace damaged" in " ".join(cut.stdout.split()), cut.stdout
