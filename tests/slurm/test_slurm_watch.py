"""What `watch` says of jobs that a real Slurm runs, holds and has forgotten."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from harness.site.slurm_commands import squeue_all
from tests.slurm.slurm_cluster import Slurm
from tests.slurm.slurm_sh import SlurmSh, Submitted

pytestmark = [pytest.mark.slurm]


@pytest.fixture
def jobs(slurm_sh: SlurmSh) -> Iterator[list[Submitted]]:
    """A job that runs, and one that is held."""
    sites = [slurm_sh.site("runs", setup=["sleep 3600"]), slurm_sh.site("held", sbatch=["--hold"])]
    runs = [slurm_sh.submit(site) for site in sites]
    slurm_sh.wait_while_it_runs(runs[0], (runs[0].path / "status.json").exists, "the job's beginning")
    yield runs
    slurm_sh.slurm.run("scancel", *(run.job_id for run in runs), check=False)


def watched(slurm_sh: SlurmSh, job_id: str) -> dict[str, Any]:
    done = slurm_sh("watch", job_id, "--json", "--once")
    assert done.stdout, done.stderr
    return dict(json.loads(done.stdout))


def test_state_deadline_and_reason(slurm_sh: SlurmSh, jobs: list[Submitted]) -> None:
    busy, held = (run.job_id for run in jobs)
    found = watched(slurm_sh, busy)
    assert found["state"] == "running"
    began_ns = json.loads((jobs[0].path / "status.json").read_text())["started_ns"]
    assert found["deadline_unix_ns"] - began_ns == pytest.approx(600e9, abs=120e9), "ten minutes after its start"
    found = watched(slurm_sh, held)
    assert (found["state"], found["reason"]) == ("queued", "JobHeldUser")
    slurm_sh.slurm.run("scancel", busy)
    slurm_sh.slurm.wait(busy)
    assert watched(slurm_sh, busy)["state"] == "cancelled"


def test_tasks_of_an_array_and_jobs_that_slurm_does_not_know(
    slurm: Slurm, slurm_sh: SlurmSh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.site.slurm_commands._silent", {})
    for name, value in slurm.env.items():
        monkeypatch.setenv(name, value)
    array = slurm.sbatch("--hold", "--array=0-3", "--wrap", "sleep 1", "--output=/dev/null")
    found = squeue_all(None, [f"{array}_1", f"{array}_3", "999999"])
    assert found is not None
    assert {number: entry.word for number, entry in found.items()} == dict.fromkeys(
        (f"{array}_1", f"{array}_3"), "PENDING"
    )
    assert squeue_all(None, ["999999"]) == {}
    slurm.run("scancel", array)
