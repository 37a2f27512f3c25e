"""Jobs that Slurm puts back into its queue, and arrays whose tasks it writes as one entry."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from harness.site.slurm_commands import JobId, JobReply, forget_silence, squeue_all, squeue_everybody
from harness.site.slurm_commands import squeue as squeue_of
from harness.site.slurm_queue import of_these, places_of
from tests.slurm.slurm_cluster import Slurm, wait_until
from tests.slurm.slurm_sh import SHORT, SlurmSh

pytestmark = pytest.mark.slurm


@pytest.mark.train
def test_a_job_that_the_site_lets_slurm_requeue_runs_again_to_its_end(slurm_sh: SlurmSh, tmp_path: Path) -> None:
    slurm, starts = slurm_sh.slurm, tmp_path / "starts"
    first_waits = f'echo "${{SLURM_RESTART_COUNT:-0}}" >>\'{starts}\'; [ -n "${{SLURM_RESTART_COUNT:-}}" ] || sleep 600'
    run = slurm_sh.submit(slurm_sh.site("again", sbatch=["--requeue"], setup=[first_waits]), *SHORT)
    wait_until(starts.exists, "the first start")
    slurm.run("scontrol", "requeue", run.job_id)
    wait_until(lambda: slurm.state(run.job_id) == "PENDING", "the job's return to the queue")
    said = slurm_sh.status(run.job_id)
    assert (said["state"], said["reason"]) == ("queued", "BeginTime")  # Slurm waits for its nodes
    time.sleep(5)  # as Slurm waits by itself, for two minutes, until what was killed has ended
    slurm.run("scontrol", "update", f"JobId={run.job_id}", "StartTime=now")
    assert slurm.wait(run.job_id) == "COMPLETED"
    assert starts.read_text().split() == ["0", "1"]
    said = slurm_sh.status(run.job_id)
    assert (said["state"], said["exit_code"], said["missing"]) == ("completed", 0, [])
    assert run.read("run.json")["status"]["state"] == "completed"
    assert [run.active_steps(rank) for rank in range(2)] == [3, 3]


def test_places_are_the_order_in_which_jobs_and_tasks_of_an_array_start(
    slurm_own: Slurm, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Slurm writes the waiting tasks of an array as one entry, with the reasons of all."""
    monkeypatch.setenv("SLURM_CONF", slurm_own.env["SLURM_CONF"])
    forget_silence()
    slurm_own.run("scontrol", "update", "PartitionName=gpu", "State=DOWN")  # jobs wait there
    started = tmp_path / "started"
    said = 'echo "${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}"'
    words = ("-N2", "--exclusive", "--output=/dev/null", "--wrap", f"{said} >>'{started}'")
    before = slurm_own.sbatch(*words)
    array = slurm_own.sbatch("--array=0-4%2", *words)
    after, first = slurm_own.sbatch(*words), slurm_own.sbatch(*words)
    slurm_own.run("scontrol", "update", f"JobId={first}", "Priority=4294900000")
    for job in (before, array, after):
        slurm_own.run("scontrol", "update", f"JobId={job}", "Priority=1000")
    slurm_own.run("scontrol", "hold", f"{array}_4")
    tasks = [f"{array}_{number}" for number in range(5)]
    jobs = [first, before, *tasks, after]
    written, asked = squeue_everybody(None), squeue_all(None, jobs)
    assert written is not None and asked is not None
    assert sorted(of_these(written, jobs)) == sorted(asked) == sorted(jobs)
    assert {entry.word for entry in asked.values()} == {"PENDING"}
    assert asked[tasks[4]].reason == "JobHeldAdmin"  # the tests are root
    places = {number: place.position for number, place in places_of(asked.values(), jobs).items()}
    slurm_own.run("scancel", tasks[2])
    wait_until(lambda: tasks[2] not in (squeue_all(None, tasks) or {}), "one task's cancellation")
    slurm_own.run("scontrol", "update", "PartitionName=gpu", "State=UP")
    assert slurm_own.wait(after) == "COMPLETED"
    assert started.read_text().split() == [job for job in sorted(places, key=places.__getitem__) if job != tasks[2]]
    assert squeue_of(JobId(tasks[4]), "%T|%r") == JobReply("PENDING|JobHeldAdmin")
