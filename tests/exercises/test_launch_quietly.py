"""A launch on a CPU prints its progress before the training starts, and no warning."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from exercises.utils.announce import announce
from harness.experiment.deepspeed import DeepSpeed
from harness.launch.job import Machine, resolve
from harness.site.site import load_site
from tests.waiting import limit_s

pytest.importorskip("deepspeed", reason="the training extra is not installed")

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.long
def test_deepspeed_does_not_warn_of_the_gpus_a_laptop_lacks(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import deepspeed\nprint(deepspeed.get_accelerator().device_name())\n")
    config = ROOT / "configs" / "accelerate" / "deepspeed.yaml"
    job = resolve(DeepSpeed(), load_site("local"), Machine(0, 2, False, "python", "/runs"))
    own = {name: str(job.env[name]) for name in ("ACCELERATE_USE_CPU", "CUDA_VISIBLE_DEVICES", "DS_ACCELERATOR")}
    done = subprocess.run(
        [Path(sys.executable).with_name("accelerate"), "launch", "--config_file", str(config),
         "--num_processes", "1", str(script)],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=limit_s(480),
        env={**os.environ, **own, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "cpu" in done.stdout.split()
    assert "WARNING" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("environment", "speaks"),
    [
        ({}, True),
        ({"RANK": "0", "NODE": "0"}, True),
        ({"RANK": "3", "NODE": "0"}, False),
        ({"NODE": "1"}, False),
        ({"SLURM_NODEID": "1"}, False),
    ],
)
def test_the_progress_of_a_training_is_printed_once_for_all_ranks(
    environment: dict[str, str], speaks: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("RANK", "NODE", "SLURM_NODEID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    announce("building")
    assert capsys.readouterr().err == ("building …\n" if speaks else "")
