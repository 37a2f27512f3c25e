"""The other commands on a user's own training on a real two-node Slurm: a sweep as one array, rerun."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.slurm.slurm_sh import REPOSITORY, SlurmSh

pytestmark = pytest.mark.slurm

PROGRAM = "import pathlib, sys\npathlib.Path(f'{sys.argv[2]}.done').touch()\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the user types: a script and the file that it reads."""
    (tmp_path / "train.py").write_text(PROGRAM, encoding="utf-8")
    (tmp_path / "samples.txt").touch()
    return tmp_path


@pytest.fixture
def series() -> Iterator[str]:
    """The name of a series, whose request lies in the checkout, where an earlier test's would be another's."""
    name = f"own-sweep-{time.time_ns()}"
    yield name
    shutil.rmtree(REPOSITORY / "exercises" / "series" / name)


def typed(slurm_sh: SlurmSh, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The command in that folder, without HARNESS_RUNS."""
    argv = ("bash", f"{REPOSITORY}/slurm.sh", *words)
    return slurm_sh.slurm.run(*argv, check=False, seconds=300, env={"COLUMNS": "200"}, cwd=folder)


@pytest.mark.long  # as the sweep of test_slurm_series.py, over another flag
def test_a_sweep_over_a_flag_of_the_script(slurm_sh: SlurmSh, folder: Path, series: str) -> None:
    site = slurm_sh.site("own-sweep", time="00:02:00")
    sweep = {
        "name": series,
        "base": {"exercise": "own", "command": "train.py --size 1", "nodes": 1, "gpus_per_node": 1},
        "matrix": {"--size": [2, 4, 8]},
    }
    (folder / "sweep.yaml").write_text(yaml.safe_dump(sweep), encoding="utf-8")
    done = typed(slurm_sh, folder, "sweep", "sweep.yaml", "--site", str(site), "--yes", "--json")
    assert done.stdout, done.stderr
    assert [row["stands"] for row in json.loads(done.stdout)["states"]] == ["done"] * 3, done.stderr
    assert sorted(path.stem for path in folder.glob("*.done")) == ["2", "4", "8"]
    runs = [json.loads(path.read_text()) for path in folder.glob("runs/own/profiler/*/run.json")]
    assert {run["job_id"].partition("_")[1] for run in runs} == {"_"}, "one array"
    (folder / "8.done").unlink()
    last = next(run["job_id"] for run in runs if run["experiment"]["command"][-1] == "8")
    again = typed(slurm_sh, folder, "run", last, "--wait")
    assert (again.returncode, (folder / "8.done").exists()) == (0, True), again.stderr
