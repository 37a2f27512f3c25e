"""`report --executor slurm` measures ranks in a real job array and gives what measuring them here gives."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.analysis.test_silent_errors import kernel, timed, write_decimals
from tests.slurm.slurm_cluster import Slurm

pytestmark = pytest.mark.slurm
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def ranks(tmp_path: Path) -> Path:
    """A folder of four ranks' traces, its name as awkward as a user's."""
    folder = tmp_path / "my traces; $HOME"
    for rank in range(4):
        own = tmp_path / str(rank)
        own.mkdir()
        events = [timed("ProfilerStep#1", "user_annotation", 0, 1000), kernel(10, 100 * (rank + 1), 1)]
        folder.mkdir(exist_ok=True)
        write_decimals(own, events).rename(folder / f"rank{rank}.json")
    return folder


def report(slurm: Slurm, where: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    code = f"import os, sys; os.chdir({str(where)!r}); sys.path.insert(0, {str(ROOT)!r}); "
    code += "from harness.cli.main import main; sys.exit(main(sys.argv[1:]))"
    return slurm.run(sys.executable, "-c", code, "report", *arguments, check=False)


@pytest.mark.parametrize("cluster", ["slurm", "slurm_accounting"])
def test_an_array_gives_the_report_of_one_process(
    cluster: str, ranks: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    slurm = request.getfixturevalue(cluster)
    array = ("--executor", "slurm", "--workers", "2", "--slurm", "partition=gpu")
    there = report(slurm, tmp_path, ranks, "--json", *array)
    here = report(slurm, tmp_path, ranks, "--json")
    assert there.returncode == 0, there.stderr
    assert json.loads(there.stdout) == json.loads(here.stdout)
    assert list(tmp_path.glob("report-*")) == [], "an array that went well leaves nothing behind"


def test_a_partition_that_is_not_there_is_one_sentence(slurm: Slurm, ranks: Path, tmp_path: Path) -> None:
    refused = report(slurm, tmp_path, ranks, "--executor", "slurm", "--slurm", "partition=nowhere")
    assert refused.returncode == 1
    assert "not submitted" in refused.stderr
    assert "Traceback" not in refused.stderr
