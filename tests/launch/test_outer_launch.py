"""Variables that another launch left in the shell make no rank of a training, and a launch names them."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from harness.common.system.scrub_environment import scrub_environment
from harness.run import all_runs
from tests.launch.launch_shared import Harness
from tests.launch.own_shared import process
from tests.waiting import limit_s

OUTER = {
    "RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "NODE_RANK": "3", "GROUP_RANK": "1",
    "ROLE_RANK": "1", "CROSS_RANK": "1", "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_USE_AGENT_STORE": "True",
    "OMPI_COMM_WORLD_RANK": "1", "PMI_RANK": "1", "PMIX_NAMESPACE": "x", "MV2_COMM_WORLD_SIZE": "2",
    "PET_NNODES": "2", "PET_STANDALONE": "1", "SUBMITIT_LOCAL_GLOBALID": "1", "MASTER_ADDR": "10.255.255.1",
}  # fmt: skip
OF_SLURM = {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_LOCALID": "1", "SLURM_NODEID": "1", "SLURM_JOB_ID": "77"}
SETTINGS = {"PET_MAX_RESTARTS": "0", "PMIX_MCA_gds": "hash", "OMPI_MCA_btl": "tcp", "TORCHELASTIC_LOG_LEVEL": "x"}
TELLS = "import json, os; print(json.dumps(dict(os.environ)))"


def test_what_a_launcher_tells_its_ranks_is_left_behind_and_settings_stay() -> None:
    environ = OUTER | SETTINGS
    (sentence,) = scrub_environment(environ)
    assert environ == SETTINGS
    assert sentence.startswith(", ".join(sorted(OUTER)) + " of your shell are not passed to the job: ")
    assert scrub_environment({"RANK": "0"})[0].startswith("RANK of your shell is not passed to the job: it is of an")


def test_a_run_here_gets_nothing_of_an_outer_launch(harness: Harness, tmp_path: Path) -> None:
    done = harness("run", "--no-profile", "--", "python3", "-c", TELLS, **OUTER, **OF_SLURM, **SETTINGS)
    assert done.returncode == 0, done.stderr
    (run,) = all_runs(tmp_path / "runs")
    got = json.loads(run.out.read_text())
    assert not [name for name in got if name.startswith(("SLURM_", "SUBMITIT_", "PMI_", "ROLE_", "OMPI_COMM"))]
    assert "RANK" not in got and "WORLD_SIZE" not in got
    assert (got["NODE_RANK"], got["MASTER_ADDR"]) == ("0", "127.0.0.1"), "the run's own"
    assert got | SETTINGS == got
    warned = [line for line in done.stderr.splitlines() if "outer launch" in line]
    assert len(warned) == 1 and "RANK, ROLE_RANK" in warned[0]


def test_so_does_a_script_that_is_started_by_hand(tmp_path: Path) -> None:
    script = tmp_path / "try.sbatch"
    printed = process(tmp_path, "run", "--dry-run", "--no-profile", "--", "python3", "-c", TELLS)
    script.write_text(printed.stdout)
    env = {**os.environ, **OUTER, **OF_SLURM, "HARNESS_SITE": "local"}
    done = subprocess.run(
        ["bash", script], env=env, cwd="/", capture_output=True, text=True, check=False, timeout=limit_s()
    )
    assert done.returncode == 0, done.stderr
    (run,) = all_runs(tmp_path / "runs")
    got = json.loads(run.out.read_text())
    assert not [name for name in got if name in ("RANK", "WORLD_SIZE") or name.startswith(("SLURM_", "SUBMITIT_"))]


@pytest.mark.parametrize("name", ["OMP_PROC_BIND", "TORCHELASTIC_LOG_LEVEL", "PET_MAX_RESTARTS", "FSDP_VERSION"])
def test_a_setting_is_passed_on_and_named(harness: Harness, name: str) -> None:
    done = harness("run", "--dry-run", "--", "true", **{name: "1"})
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("from your shell: ")]
    assert f"{name}=1" in line
    assert "warning" not in done.stderr
