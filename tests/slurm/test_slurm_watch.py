"""What `watch` says of jobs that a real Slurm runs, holds and has forgotten."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from harness.site.slurm_commands import forget_silence, squeue_all
from tests.slurm.slurm_cluster import Slurm
from tests.slurm.slurm_sh import SlurmSh, Submitted
from tests.waiting import wait_until

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
    forget_silence()
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


@pytest.fixture
def queue(slurm_sh: SlurmSh) -> Iterator[Submitted]:
    """A run that waits after a job and three tasks of an array, and before one job. Others do not wait for their turn:
    one is held, one waits for a job, one for a time, one for another partition."""
    slurm, done = slurm_sh.slurm, ("--wrap", "sleep 3600", "--output=/dev/null")
    whole = ("--nodes=2", "--exclusive", *done)
    jobs = [slurm.sbatch(*whole)]
    try:
        slurm.wait_running(jobs[0])
        jobs += [
            slurm.sbatch(*whole),
            slurm.sbatch("--array=0-2", *whole),
            slurm.sbatch("--hold", *whole),
            slurm.sbatch(f"--dependency=afterok:{jobs[0]}", *whole),
            slurm.sbatch("--begin=now+1hour", *whole),
            slurm.sbatch("--partition=short", "--time=5", *done),
        ]
        run = slurm_sh.submit(slurm_sh.site("waits"))
        jobs += [run.job_id, slurm.sbatch(*whole)]
        # Until the scheduler has looked at a job, its reason is None, or Resources if nodes are short.
        reasons = ("squeue", "--noheader", "--states=PENDING", "--format=%r")
        last = {"Dependency", "BeginTime", "JobHeldUser"}
        wait_until(
            lambda: last <= set(found := slurm.run(*reasons).stdout.split()) and "None" not in found,
            "the reasons of all that wait",
            lambda: slurm.run("squeue").stdout,
        )
        yield run
    finally:
        slurm.run("scancel", *jobs, check=False)


def test_the_place_in_the_queue_of_its_partition(slurm_sh: SlurmSh, queue: Submitted) -> None:
    number, slurm = queue.job_id, slurm_sh.slurm

    def place() -> tuple[str, int, int]:
        found = watched(slurm_sh, number)
        assert found["state"] == "queued"
        return found["partition"], found["queue_place"], found["queue_length"]

    assert place() == ("gpu", 5, 6)
    assert "5th of 6 in the queue of partition gpu" in slurm_sh("watch", number, "--once").stdout
    slurm.run("scontrol", "update", f"jobid={number}", "priority=4294967000")
    assert place() == ("gpu", 1, 6)
    slurm.run("scontrol", "hold", number)
    found = watched(slurm_sh, number)
    assert found["reason"].startswith("JobHeld")
    assert found["queue_place"] is None


def test_the_place_of_a_run_in_several_partitions(slurm_sh: SlurmSh, queue: Submitted) -> None:
    number = queue.job_id
    slurm_sh.slurm.run("scontrol", "update", f"jobid={number}", "partition=gpu,short", "timelimit=5", "numnodes=1")
    found = watched(slurm_sh, number)
    assert (found["partition"], found["queue_place"], found["queue_length"]) == ("short", 2, 2)
