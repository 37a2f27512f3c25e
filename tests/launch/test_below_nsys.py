"""The libraries that nsys loads into its child are bound into the container; what is there already is not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.launch.profilers.below_nsys import needed, unbound, with_binds
from tests.launch.launch_shared import ROOT
from tests.waiting import limit_s

NSYS = "/apps/cuda/12.6/nsight-systems-2024.5.1"
LIBRARY = f"{NSYS}/target-linux-x64/libToolsInjection64.so"


def become(folder: Path, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """The arguments of a container that only prints them; the last two are the image and a program."""
    waits = folder / ".waits"
    waits.touch()
    program = str(ROOT / "harness/launch/profilers/below_nsys.py")
    argv = [sys.executable, "-I", program, str(waits), str(len(words) + 1), "printf", *words, "image", "program"]
    env = {"PATH": os.environ["PATH"], **environ}
    return subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=limit_s())


def test_the_installation_and_the_session_are_needed_and_a_sites_own_library_is_not(tmp_path: Path) -> None:
    config = tmp_path / "injection_config"
    config.touch()
    environ = {
        "LD_PRELOAD": f"/apps/xalt/libxalt.so:{NSYS}/target-linux-x64/libToolsInjectionProxy64.so",
        "CUDA_INJECTION64_PATH": LIBRARY,
        "NVTX_INJECTION64_PATH": f"/elsewhere{LIBRARY}",
        "QUADD_INJECTION_CONFIG": str(config),
        "QUADD_INJECTION_PROXY": "OSRT, NVTX",
        "QUADD_OS_RUNTIME_CONFIG": "/gone/with/its/session",
        "PATH": NSYS,
    }
    assert needed(environ) == [NSYS, f"/elsewhere{NSYS}", str(tmp_path)]
    assert needed({"TMPDIR": str(tmp_path)}) == [str(tmp_path)]
    assert needed({"TMPDIR": "relative", "LD_PRELOAD": ""}) == []


@pytest.mark.parametrize(
    ("bind", "shown"), [("/apps", True), ("/apps:/apps:ro", True), ("/apps:/a", False), ("/app", False)]
)
def test_what_is_bound_by_the_same_name_is_not_bound_twice(bind: str, shown: bool) -> None:
    assert unbound([NSYS], ["singularity", "exec", "--nv", "--bind", bind]) == ([] if shown else [NSYS])


def test_it_becomes_the_container_with_the_binds_before_the_image(tmp_path: Path) -> None:
    done = become(tmp_path, "%s\n", "--nv", CUDA_INJECTION64_PATH=LIBRARY, TMPDIR=str(tmp_path))
    assert done.stdout.splitlines() == ["--nv", "--bind", NSYS, "--bind", str(tmp_path), "image", "program"]
    assert not (tmp_path / ".waits").exists(), "the training has begun"
    ran = json.loads((tmp_path / ".waits.ran").read_text())
    assert ran == ["printf", "%s\n", *done.stdout.splitlines()], "what it became, for the node's status"


def test_an_nsys_that_cannot_be_shown_to_each_rank_is_one_sentence() -> None:
    with pytest.raises(ValueError, match=r"^nsys: /cuda/bin/nsys does not show where .* use --nsys-per node$"):
        with_binds(["run", "image", "x"], 1, {"HARNESS_NSYS": "/cuda/bin/nsys"})
