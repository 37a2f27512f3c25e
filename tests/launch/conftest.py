"""What the tests of the launch share: command lines run as a user runs them, in a folder of their own."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from harness.cli.main import main
from harness.launch.job import Machine
from tests.launch.launch_shared import ROOT, Harness, site_file
from tests.launch.stand_ins import Programs


@pytest.fixture(autouse=True)
def slurm_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test is a command of its own: what did not answer another one is asked again."""
    monkeypatch.setattr("harness.site.slurm_commands._silent", {})


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    return Programs(tmp_path / "bin", monkeypatch)


@pytest.fixture
def cluster(tmp_path: Path) -> str:
    """The file of a Slurm site without GPUs."""
    return site_file(tmp_path, device="cpu", gpus={"per_node": 1, "request": "none"}, time="00:10:00")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A laptop: two cores, nothing else."""
    return Machine(gpus=0, cores=2, has_nsys=False, python="/venv/bin/python", runs_dir=str(tmp_path / "runs"))


@pytest.fixture
def harness(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Harness:
    """`harness("-e", "1", …)` runs the command line here; runs go to tmp_path/runs, the site is local unless asked."""

    def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(ROOT)
            patch.setattr("sys.argv", ["harness", *words])
            usual = {"HARNESS_RUNS": str(tmp_path / "runs"), "HARNESS_SITE": "local"}
            for name, value in (usual | environment).items():
                patch.setenv(name, value)
            capsys.readouterr()
            code = main(list(words))
        return subprocess.CompletedProcess(words, code, *capsys.readouterr())

    return run
