"""A real nsys on a machine without a GPU, as a student may have it: its help is read, then it records a training."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.analysis.machine import BUSY, CROWDED
from harness.launch.profilers.nsys import load_options, profile_argv, understood
from tests.launch.launch_shared import ROOT, site_file
from tests.planted import leaks, planted

PLANTED = planted("beside-nsys")


def said(nsys_folder: Path, *words: str) -> str:
    """The output of nsys."""
    return subprocess.run([nsys_folder / "nsys", *words], capture_output=True, text=True, check=True).stdout


def test_the_real_one_is_understood(nsys_folder: Path) -> None:
    nsys = understood(said(nsys_folder, "--version"), said(nsys_folder, "profile", "--help"))
    assert nsys.version >= (2022, 4)
    argv, warnings = profile_argv(nsys, load_options("default"), "out", has_gpu=False)
    assert warnings == []
    assert {"nvtx", "osrt"} <= set(argv[2].removeprefix("--trace=").split(","))
    assert not any("gpu" in word for word in argv)


HIDING = """#!/bin/bash
# A stand-in for singularity: of /media only what was bound is there.
shift # exec
binds=()
while [[ $1 == --* ]]; do
  binds+=("$2")
  shift 2
done
shift # the image
exec unshare --mount bash -c '
  mount --rbind / /mnt
  mount -t tmpfs none /media
  while [[ $1 != -- ]]; do
    mkdir -p "$1" && mount --bind "/mnt$1" "$1"
    shift
  done
  shift
  exec "$@"' - "${binds[@]}" -- "$@"
"""
ELSEWHERE = """
mount -t tmpfs none /media && mkdir /media/nsys && mount --bind "$1" /media/nsys && shift && exec bash "$@"
"""


@pytest.mark.train
def test_in_a_container_that_does_not_see_nsys_it_records_all_the_same(
    nsys_folder: Path, tmp_path: Path
) -> None:
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode:
        pytest.skip("only root can hide a folder from a process")
    container, image = tmp_path / "hiding", tmp_path / "image.sif"
    container.write_text(HIDING)
    container.chmod(0o755)
    image.touch()
    python = Path(sys.prefix) / "bin" / "python"
    said = {"command": str(container), "image": str(image), "arguments": ["exec"], "python": str(python)}
    site = site_file(tmp_path, scheduler="local", device="auto", container=said)
    target = (nsys_folder / "nsys").resolve().parent
    # Debian installs it in two folders: the deepest folder that contains both.
    installed = os.path.commonpath([part.resolve() for part in target.parent.iterdir()])
    inside = Path("/media/nsys") / target.relative_to(installed)
    env = {
        **os.environ,
        "PATH": f"{inside}{os.pathsep}{os.environ['PATH']}",
        "HARNESS_RUNS": str(tmp_path / "runs"),
    }
    words = ["-e", "1", "-g", "1", "--site", site, "--profiler", "nsys", "--json"]
    elsewhere = ["unshare", "--mount", "bash", "-c", ELSEWHERE, "-", installed]
    argv = [*elsewhere, str(ROOT / "slurm.sh"), *words]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    run = json.loads(done.stdout)
    assert (Path(run["path"]) / "nsys" / "profile_node0.nsys-rep").stat().st_size > 10_000
    # On a busy machine the first steps can look like warm-up: then fewer steps are counted.
    assert json.loads(Path(run["summary"]).read_text())["steps"]["found"] == 20


@pytest.mark.train
def test_on_a_cpu_it_records_each_rank_s_steps(nsys_folder: Path, tmp_path: Path) -> None:
    env = {
        **os.environ,
        **PLANTED,
        "PATH": f"{nsys_folder}{os.pathsep}{os.environ['PATH']}",
        "HARNESS_RUNS": str(tmp_path),
    }
    words = ["-e", "1", "-g", "2", "--site", "local", "--profiler", "nsys", "--json"]
    argv = ["bash", str(ROOT / "slurm.sh"), *words]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    summary = json.loads(Path(json.loads(done.stdout)["summary"]).read_text())
    of_nsys = [f["what"] for f in summary["quality"]["findings"] if f["what"] not in (BUSY, CROWDED)]
    assert of_nsys == ["recorded without a GPU"] * 2
    assert summary["steps"]["found"] == 40 and summary["steps"]["counted"] > 0
    own_clock = sorted(rank["median_step_ns"] for rank in summary["training"])
    by_nsys = sorted(rank["median_ns"] for rank in summary["steps"]["per_rank"])
    assert by_nsys == pytest.approx(own_clock, rel=0.2), "two clocks, one training"
    assert leaks(tmp_path, PLANTED) == []
    assert "not passed to the training: AWS_ACCESS_KEY_ID" in done.stderr
