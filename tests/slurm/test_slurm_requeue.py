"""A job that Slurm puts back into its queue."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

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
