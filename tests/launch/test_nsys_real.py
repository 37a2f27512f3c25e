"""A real nsys on this machine, as a student without a GPU may have it: asked what it can, then recording a training."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from launch_shared import ROOT

from harness.launch.nsys import load_options, profile_argv, understood


def said(nsys_folder: Path, *words: str) -> str:
    """What nsys prints."""
    return subprocess.run([nsys_folder / "nsys", *words], capture_output=True, text=True, check=True).stdout


def test_the_real_one_is_understood(nsys_folder: Path) -> None:
    nsys = understood(said(nsys_folder, "--version"), said(nsys_folder, "profile", "--help"))
    assert nsys.version >= (2022, 4)
    argv, warnings = profile_argv(nsys, load_options("default"), "out", has_gpu=False)
    assert warnings == []
    assert {"nvtx", "osrt"} <= set(argv[2].removeprefix("--trace=").split(","))
    assert not any("gpu" in word for word in argv)


@pytest.mark.train
def test_on_a_cpu_it_records_each_rank_s_steps(nsys_folder: Path, tmp_path: Path) -> None:
    env = {
        **os.environ,
        "PATH": f"{nsys_folder}{os.pathsep}{os.environ['PATH']}",
        "HARNESS_RUNS": str(tmp_path),
    }
    words = ["-e", "1", "-g", "2", "--site", "local", "--profiler", "nsys", "--json"]
    argv = ["bash", str(ROOT / "slurm.sh"), *words]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    summary = json.loads(Path(json.loads(done.stdout)["summary"]).read_text())
    assert [f["what"] for f in summary["quality"]["findings"]] == ["recorded without a GPU"] * 2
    assert summary["steps"]["counted"] == summary["steps"]["found"] == 40
    own_clock = sorted(rank["median_step_ns"] for rank in summary["training"])
    by_nsys = sorted(rank["median_ns"] for rank in summary["steps"]["per_rank"])
    assert by_nsys == pytest.approx(own_clock, rel=0.2), "two clocks, one training"
