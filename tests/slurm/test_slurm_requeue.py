"""Jobs that Slurm puts back into its queue, and arrays whose tasks it writes as one entry."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from harness.site.slurm_commands import JobId, JobReply, forget_silence, squeue_all, squeue_everybody
from harness.site.slurm_commands import squeue as squeue_of
from harness.site.slurm_queue import of_these, places_of
from tests.slurm.slurm_cluster import Slurm
from tests.slurm.slurm_sh import SHORT, SlurmSh
from tests.slurm.test_slurm_states import pids_of_script
from tests.waiting import wait_until

pytestmark = pytest.mark.slurm


@pytest.mark.train
def test_a_job_that_the_site_lets_slurm_requeue_runs_again_to_its_end(slurm_sh: SlurmSh, tmp_path: Path) -> None:
    slurm, starts = slurm_sh.slurm, tmp_path / "starts"
    first_waits = (
        f'echo "${{SLURM_RESTART_COUNT:-0}}" >>\'{starts}\'; [ -n "${{SLURM_RESTART_COUNT:-}}" ] || sleep 3600'
    )
    run = slurm_sh.submit_words(*slurm_sh.light("again", sbatch=["--requeue"], setup=[first_waits]), *SHORT)
    slurm_sh.wait_while_it_runs(run, starts.exists, "the first start")
    slurm.run("scontrol", "requeue", run.job_id)
    wait_until(
        lambda: slurm.state(run.job_id) == "PENDING", "the job's return to the queue", lambda: slurm.about(run.job_id)
    )
    said = slurm_sh.status(run.job_id)
    assert (said["state"], said["reason"]) == ("queued", "BeginTime")  # Slurm waits for its nodes
    # Slurm waits for two minutes, so that what was killed has ended; here that is looked at.
    nodes = ("sinfo", "--noheader", "--Node", "--partition=gpu", "--format=%T")
    wait_until(
        lambda: set(slurm.run(*nodes).stdout.split()) == {"idle"},
        "nodes without a job",
        slurm.run("sinfo").stdout.strip,
    )
    wait_until(lambda: not pids_of_script(run), "the end of the first start")
    time.sleep(2)  # a credential is revoked for the second in which the job was put back: slurmd knows whole seconds
    slurm.run("scontrol", "update", f"JobId={run.job_id}", "StartTime=now")
    assert slurm.wait(run.job_id) == "COMPLETED", slurm.about(run.job_id)
    assert starts.read_text().split() == ["0", "1"]
    said = slurm_sh.status(run.job_id)
    assert (said["state"], said["exit_code"], said["missing"]) == ("completed", 0, [])
    assert run.read("run.json")["status"]["state"] == "completed"
    assert [run.active_steps(rank) for rank in range(2)] == [3, 3]


def test_places_are_the_order_in_which_jobs_and_tasks_of_an_array_start(
    slurm: Slurm, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Slurm writes the waiting tasks of an array as one entry, with the reasons of all."""
    monkeypatch.setenv("SLURM_CONF", slurm.env["SLURM_CONF"])
    forget_silence()
    slurm.run("scontrol", "update", "PartitionName=gpu", "State=DOWN")  # jobs wait there
    try:
        started = tmp_path / "started"
        said = 'echo "${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}"'
        words = ("-N2", "--exclusive", "--job-name=in-order", "--output=/dev/null", "--wrap", f"{said} >>'{started}'")
        before = slurm.sbatch(*words)
        array = slurm.sbatch("--array=0-4%2", *words)
        after, first = slurm.sbatch(*words), slurm.sbatch(*words)
        slurm.run("scontrol", "update", f"JobId={first}", "Priority=4294900000")
        for job in (before, array, after):
            slurm.run("scontrol", "update", f"JobId={job}", "Priority=1000")
        slurm.run("scontrol", "hold", f"{array}_4")
        tasks = [f"{array}_{number}" for number in range(5)]
        jobs = [first, before, *tasks, after]
        written, asked = squeue_everybody(None), squeue_all(None, jobs)
        assert written is not None and asked is not None
        assert sorted(of_these(written, jobs)) == sorted(asked) == sorted(jobs)
        assert {entry.word for entry in asked.values()} == {"PENDING"}
        assert asked[tasks[4]].reason == "JobHeldAdmin"  # the tests are root
        places = {number: place.position for number, place in places_of(asked.values(), jobs).items()}
        slurm.run("scancel", tasks[2])
        wait_until(lambda: tasks[2] not in (squeue_all(None, tasks) or {}), "one task's cancellation")
        slurm.run("scontrol", "update", "PartitionName=gpu", "State=UP")
        assert slurm.wait(after) == "COMPLETED"
        assert started.read_text().split() == [job for job in sorted(places, key=places.__getitem__) if job != tasks[2]]
        assert squeue_of(JobId(tasks[4]), "%T|%r") == JobReply("PENDING|JobHeldAdmin")
    finally:
        slurm.run("scontrol", "update", "PartitionName=gpu", "State=UP")
        slurm.run("scancel", "--name=in-order")
