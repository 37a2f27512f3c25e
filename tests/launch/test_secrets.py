"""What a shell keeps secret is in no file of a run: not in its script and record, and not in what nsys writes.

A real training's files are searched in tests/study/test_study_trained.py, a real nsys report in test_nsys_real.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.common.system.secrets import KEEP, kept_from_nsys, secret_names
from tests.launch.launch_shared import ROOT, Harness, site_file
from tests.launch.stand_ins import executable
from tests.planted import leaks, planted, told
from tests.waiting import limit_s

PLANTED = planted("in-a-shell")

SBATCH = '#!/bin/sh\nenv >"$0.saw"; echo 4711\n'


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_what_a_dry_run_prints_has_none(harness: Harness, more: tuple[str, ...]) -> None:
    for site in ("local", "leonardo"):
        done = harness("-e", "2", "--site", site, "--dry-run", *more, **PLANTED)
        assert done.returncode == 0, done.stderr
        assert done.stdout and not told(done.stdout + done.stderr, PLANTED)


@pytest.mark.parametrize("profiler", ["torch", "nsys"])
def test_a_submission_writes_none_and_passes_them_on_except_to_nsys(
    harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, profiler: str
) -> None:
    sbatch = executable(tmp_path / "bin" / "sbatch", SBATCH)
    monkeypatch.setenv("PATH", f"{sbatch.parent}{os.pathsep}{os.environ['PATH']}")
    site = site_file(tmp_path, device="cpu", gpus={"per_node": 1, "request": "none"})
    done = harness("-e", "1", "--site", site, "--profiler", profiler, **PLANTED)
    assert done.returncode == 0, done.stderr
    assert leaks(tmp_path / "runs", PLANTED) == [] == told(done.stdout + done.stderr, PLANTED)
    passed = set(told(Path(f"{sbatch}.saw").read_text(), PLANTED))
    if profiler == "nsys":  # it records the environment of the whole job
        assert passed == set()
        assert "not passed to the training: AWS_ACCESS_KEY_ID, AWS_SECRET" in done.stderr
    else:
        assert passed == {*PLANTED}, "the training may need them"


def test_names_that_only_look_like_secrets_stay() -> None:
    needed = ("NCCL_IB_PKEY", "TOKENIZERS_PARALLELISM", "PMI_SHARED_SECRET", "SSH_AUTH_SOCK", "KEYBOARD", "PATH")
    assert secret_names([*needed, *PLANTED, "SLURM_JWT"]) == sorted([*PLANTED, "SLURM_JWT"])


def test_nsys_gets_an_environment_without_them_and_says_so(tmp_path: Path) -> None:
    text = "#!/bin/sh\ncase $1$2 in *version) echo 2022.4.2;; *help) echo '    --output=';; *) env;; esac\n"
    executable(tmp_path / "nsys", text)
    env = {**os.environ, **PLANTED, "PATH": f"{tmp_path}:/bin:/usr/bin", "RUN_DIR": str(tmp_path / "run")}
    node = str(ROOT / "harness/launch/on_node/node.py")
    argv = [sys.executable, node, "nsys", "profile", f"--output={tmp_path}/x", "::"]
    done = subprocess.run([*argv, "true"], env=env, capture_output=True, text=True, check=False, timeout=limit_s())
    assert "nsys: not passed to the training: AWS_ACCESS_KEY_ID, AWS_SECRET" in done.stderr
    assert "HARNESS_HEARTBEATS=" in done.stdout and not told(done.stdout, PLANTED)


def test_one_that_the_training_needs_is_passed_by_name() -> None:
    assert kept_from_nsys({"HF_TOKEN": "a", "WANDB_API_KEY": "b", KEEP: "WANDB_API_KEY"}) == ["HF_TOKEN"]
    assert kept_from_nsys({"PATH": "/bin"}) == []


FORGETS = """
import os, pathlib, subprocess
from harness.common.system.secrets import forget
os.environ["LATER_TOKEN"] = "planted-later"
forget(["HF_TOKEN", "LATER_TOKEN", "ABSENT_TOKEN"])
print(pathlib.Path("/proc/self/environ").read_bytes(), os.environ.get("HF_TOKEN"), os.environ["HOME"])
subprocess.run(["env"], check=True)
"""


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="this system shows no process's environment")
def test_what_a_process_forgets_no_other_program_sees() -> None:
    env = {**os.environ, "HF_TOKEN": PLANTED["HF_TOKEN"], "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", FORGETS], env=env, capture_output=True, text=True, check=True, timeout=limit_s()
    )
    assert "planted-" not in done.stdout and f"None {os.environ['HOME']}" in done.stdout
