"""What `status` and `cancel` say of jobs that a real Slurm holds, stops, runs again, kills or does not answer for.

Nothing trains: a line of the site keeps each job busy.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from harness.common.system.processes import signal_all
from harness.common.system.scrub_environment import RULES
from tests.common.test_scrub_environment import SPOILS
from tests.launch.launch_shared import exported
from tests.slurm.slurm_sh import REPOSITORY, SlurmSh, Submitted
from tests.waiting import limit_s, wait_until

pytestmark = [pytest.mark.slurm]


def submit(slurm_sh: SlurmSh, name: str, line: str = "sleep 3600", *options: str) -> Submitted:
    """A run whose job is this line of its site; the site has these options of sbatch."""
    return slurm_sh.submit(slurm_sh.site(name, setup=[line], sbatch=list(options)))


def has_started(run: Submitted) -> bool:
    return (run.path / "status.json").exists()


@pytest.fixture
def busy(slurm_sh: SlurmSh) -> Iterator[Submitted]:
    """A run that has begun; it is ended afterwards."""
    run = submit(slurm_sh, "busy")
    slurm_sh.wait_while_it_runs(run, lambda: has_started(run), "the job's beginning")
    yield run
    slurm_sh.slurm.run("scancel", run.job_id, check=False)


def pids_of_script(run: Submitted) -> list[int]:
    """The processes that run the job's script. A cluster beside this one can have a job of the same number."""
    script, folder = f"job{int(run.job_id):05d}/slurm_script", f"HARNESS_RUNS={run.path.parents[2]}\0"
    return [pid for pid in pids_with(script) if _has(Path("/proc", str(pid), "environ"), folder)]


def pids_with(text: str) -> list[int]:
    """The processes with this text in their command."""
    return [int(file.parent.name) for file in Path("/proc").glob("[0-9]*/cmdline") if _has(file, text)]


def _has(file: Path, text: str) -> bool:
    try:
        return text.encode() in file.read_bytes()
    except OSError:  # it ended meanwhile
        return False


@pytest.mark.long
def test_a_controller_that_hangs_is_named_and_the_jobs_own_word_is_shown(slurm_sh: SlurmSh, busy: Submitted) -> None:
    controller = int((slurm_sh.slurm.root / "run" / "slurmctld.pid").read_text())
    os.kill(controller, signal.SIGSTOP)
    try:
        with ThreadPoolExecutor() as both:
            shown, stopped = both.map(lambda command: slurm_sh(command, busy.job_id), ("status", "cancel"))
    finally:
        os.kill(controller, signal.SIGCONT)
    assert f"{busy.job_id}  unknown" in shown.stdout
    assert "Slurm does not answer; the last state that the job wrote: running" in shown.stdout
    assert stopped.returncode == 1
    assert "Slurm does not answer: the cancellation of job" in stopped.stderr
    again = slurm_sh("cancel", busy.job_id)
    assert again.returncode == 0, again.stderr
    assert slurm_sh.status(busy.job_id)["state"] == "cancelled"


def test_a_script_that_was_killed_outright_has_failed_also_in_its_own_status(
    slurm_sh: SlurmSh, busy: Submitted
) -> None:
    slurm_sh.wait_while_it_runs(busy, lambda: pids_of_script(busy), "the script's process")
    for pid in pids_of_script(busy):
        os.kill(pid, signal.SIGKILL)
    assert slurm_sh.slurm.wait(busy.job_id) == "FAILED"
    assert busy.read("status.json")["state"] == "running"
    said = slurm_sh.status(busy.job_id)
    assert (said["state"], said["reason"]) == (
        "failed", "it was ended before it could write its exit status; Slurm says FAILED"
    )  # fmt: skip
    written = busy.read("status.json")
    assert (written["state"], written["told_by"]) == ("failed", "FAILED")
    assert written["started_ns"]


def test_a_job_that_slurm_suspends_requeues_and_holds_is_called_so(slurm_sh: SlurmSh, busy: Submitted) -> None:
    slurm, job = slurm_sh.slurm, busy.job_id
    slurm.run("scontrol", "suspend", job)
    said = slurm_sh.status(job)
    assert (said["state"], "has suspended it" in said["reason"]) == ("running", True)
    slurm.run("scontrol", "resume", job)
    slurm.run("scontrol", "update", f"JobId={job}", "Requeue=1")
    slurm.run("scontrol", "requeuehold", "State=SpecialExit", job)
    wait_until(lambda: slurm.state(job) == "SPECIAL_EXIT", "the job's return to the queue", lambda: slurm.about(job))
    said = slurm_sh.status(job)
    assert (said["state"], f"scontrol release {job}" in said["reason"]) == ("queued", True)
    cancelled = slurm_sh("cancel", job)
    assert (cancelled.returncode, cancelled.stdout) == (0, f"{job}: cancelled\n"), cancelled.stderr
    assert slurm_sh.status(job)["state"] == "cancelled"


def test_a_held_job_is_cancelled_before_it_begins(slurm_sh: SlurmSh) -> None:
    held = submit(slurm_sh, "held", "true", "--hold")
    said = slurm_sh.status(held.job_id)
    assert (said["state"], said["reason"]) == ("queued", "JobHeldUser")
    assert slurm_sh("cancel", held.job_id).stdout == f"{held.job_id}: cancelled\n"
    assert held.read("status.json")["state"] == "cancelled"
    again = slurm_sh("cancel", held.job_id)
    assert (again.returncode, again.stdout) == (0, f"{held.job_id} has already ended: cancelled\n")


def test_a_job_that_takes_its_time_to_end_is_ending_and_ctrl_c_ends_only_the_wait(slurm_sh: SlurmSh) -> None:
    deaf = "trap '' TERM; while :; do sleep 1; done; : deaf"  # it must not end by itself
    run = slurm_sh.submit(slurm_sh.site("deaf", node_setup=[deaf]))
    slurm_sh.wait_while_it_runs(run, lambda: pids_with(deaf), "the node's lines")
    argv = ["bash", str(REPOSITORY / "slurm.sh"), "cancel", run.job_id]
    try:
        waiting = subprocess.Popen(argv, env=slurm_sh.slurm.env | slurm_sh.env, stderr=subprocess.PIPE, text=True)
        assert waiting.stderr is not None
        assert "is ending: it closes its traces" in waiting.stderr.readline()
        said = slurm_sh.status(run.job_id)
        assert (said["state"], said["reason"]) == ("running", "it is ending: Slurm waits for its last processes")
        waiting.send_signal(signal.SIGINT)
        assert "slurm.sh status" in waiting.stderr.read()
        assert waiting.wait(timeout=limit_s()) == 130
    finally:
        signal_all(pids_with(deaf), signal.SIGKILL)
    assert slurm_sh.slurm.wait(run.job_id) == "CANCELLED"
    wait_until(
        lambda: slurm_sh.status(run.job_id)["state"] == "cancelled",
        "the state to be cancelled",
        lambda: slurm_sh.slurm.about(run.job_id),
    )


def test_what_the_shell_exports_and_would_spoil_a_run_does_not_reach_the_job(slurm_sh: SlurmSh, tmp_path: Path) -> None:
    """All at once; the site sets one of them itself, and that one stays."""
    exits = tmp_path / "exits"
    exits.write_text('[ -z "${SLURM_JOB_ID-}" ] || exit 3\n')
    spoiling = {name: value for name, (value, _) in SPOILS.items()} | {"BASH_ENV": str(exits), "SHELLOPTS": "noglob"}
    seen = tmp_path / "seen"
    site = slurm_sh.site("clean", env={"PYTHONWARNINGS": "error::UserWarning"}, setup=[f"env >'{seen}'", "exit 0"])
    done = slurm_sh("-e", "1", "--site", site, "--json", env=spoiling)
    assert done.returncode == 0, done.stderr
    job = json.loads(done.stdout)["job_id"]
    for rule in RULES:
        assert f"warning: {rule.name} of your shell is not passed to the job: " in done.stderr
    slurm_sh.slurm.wait(job)
    names = {line.partition("=")[0] for line in seen.read_text().splitlines()}
    assert not names & spoiling.keys()
    script = (Path(json.loads(done.stdout)["path"]) / "job.sbatch").read_text()
    assert "PYTHONWARNINGS=error::UserWarning" in exported(script)
