"""What a launch on a CPU prints before the training does: nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("deepspeed", reason="the training extra is not installed")

ROOT = Path(__file__).resolve().parents[2]


def test_deepspeed_does_not_warn_of_the_gpus_a_laptop_lacks(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import deepspeed\nprint(deepspeed.get_accelerator().device_name())\n")
    config = ROOT / "configs" / "accelerate" / "deepspeed.yaml"
    done = subprocess.run(
        [sys.executable, "-m", "exercises.utils.launch", "accelerate", "--config_file", str(config),
         "--num_processes", "1", str(script)],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=120,
        env={**os.environ, "ACCELERATE_USE_CPU": "true", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "cpu" in done.stdout.split()
    assert "WARNING" not in done.stdout + done.stderr
