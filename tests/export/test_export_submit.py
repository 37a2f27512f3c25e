"""`slurm.sh export paraver --submit`, against a stand-in for sbatch: the job converts as requested, in any folder."""

from __future__ import annotations

import gzip
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.cli.watch.follow import follow
from harness.common.system.users import this_user
from harness.launch.backends import local
from harness.run import Run
from tests.synthetic import kineto
from tests.waiting import limit_s

ROOT = Path(__file__).parents[2]
SBATCH = 'for word; do case "$word" in --wrap=*) echo "${word#--wrap=}" >$0.sh;; esac; done; echo 4711'
SITE = "name: test\ndescription: a stand-in\ndevice: cpu\ngpus: {per_node: 1, request: none}\n"
Harness = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def harness(tmp_path: Path) -> Harness:
    """The command line, run in tmp_path, with an sbatch that records the script it gets."""
    programs = {"sbatch": SBATCH, "squeue": "exit 1", "sacct": "exit 1", "scontrol": "exit 1"}
    for name, body in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    environ = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT), "HARNESS_RUNS": str(tmp_path / "runs")}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "harness", *words]
        return subprocess.run(
            argv, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False, timeout=limit_s()
        )

    return run


@pytest.fixture
def run(harness: Harness, tmp_path: Path) -> Path:
    """A run that was submitted, with a trace, at a site whose jobs have a Python of their own."""
    own = tmp_path / "own-python"
    own.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    own.chmod(0o755)
    (tmp_path / "site.yaml").write_text(f"{SITE}job_python: {own}\n")
    done = harness("-e", "1", "--site", "site.yaml", "--json")
    assert done.returncode == 0, done.stderr
    folder = Path(json.loads(done.stdout)["path"])
    (folder / "torch").mkdir()
    text = kineto.kineto_text([kineto.kernel("gemm", 1_000, 2_000)])
    (folder / "torch" / "rank0.json.gz").write_bytes(gzip.compress(text))
    return folder


def test_the_job_converts_as_was_asked(run: Path, harness: Harness, tmp_path: Path) -> None:
    image = ("--container", "tools image.sif", "--container-command", "apptainer")
    asked = ("--engine", "own", "--out", "here", *image, "--compress")
    done = harness("export", "paraver", str(run), "--submit", *asked, "--json")
    assert done.returncode == 0, done.stderr
    script = tmp_path / "sbatch.sh"
    words = shlex.split(script.read_text().replace("\\\n", ""))
    assert words[0] == str(tmp_path / "own-python")
    assert words[-9:] == [
        "--engine", "own", "--out", str(tmp_path / "here"),
        "--container", str(tmp_path / "tools image.sif"), "--container-command", "apptainer",
        "--compress",
    ]  # fmt: skip
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run(["sh", script], cwd=run, env=environ, check=True, timeout=limit_s())
    assert (tmp_path / "here.prv.gz").is_file()


@pytest.mark.parametrize("login", ["login.example.org", None])
def test_after_a_run_on_a_cluster_the_page_is_followed_by_the_line_for_the_laptop(
    run: Path, login: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record = json.loads((run / "run.json").read_text())
    record["site"]["login"] = login
    (run / "run.json").write_text(json.dumps(record))
    moved = run.rename(run.with_name("it's here"))
    monkeypatch.setattr("socket.getfqdn", lambda: "login7.cluster")
    monkeypatch.setattr("harness.cli.watch.follow.watch", lambda run, quiet: "completed")
    follow(Run(moved), quiet=True, as_json=False)
    said = capsys.readouterr()
    assert f"\n  page:    {moved / 'report.html'}\n" in said.out
    (typed,) = [line for line in said.err.splitlines() if "laptop" in line]
    words = shlex.split(typed.partition(": ")[2])
    assert words == ["scp", "-r", f"{this_user()}@{login or 'login7.cluster'}:{moved}", "."]


def test_of_a_run_on_this_machine_there_is_nothing_to_bring(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("harness.cli.watch.follow.backend_of_run", lambda run: local)
    monkeypatch.setattr("harness.cli.watch.follow.watch", lambda run, quiet: "completed")
    follow(Run(run), quiet=True, as_json=False)
    said = capsys.readouterr()
    assert "\n  page:    " in said.out and "scp" not in said.err


def test_a_wrong_request_is_refused_before_it_is_submitted(run: Path, harness: Harness, tmp_path: Path) -> None:
    (tmp_path / "sbatch.sh").unlink(missing_ok=True)
    done = harness("export", "paraver", str(run), "--submit", "--types", "nccl", "--engine", "own")
    assert done.returncode == 2
    assert "--types: only nsys2prv can do that, and it is not used with --engine own" in done.stderr
    assert not (tmp_path / "sbatch.sh").exists()
