"""What `status`, `ls` and `cancel` say when Slurm does not answer, has forgotten, or knows how a job ended.

Against stand-ins for Slurm's commands; tests/slurm/test_slurm_states.py has the real ones.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from harness.cli.watch import follow
from harness.cli.watch import status as cancelling
from harness.common import processes
from harness.common.programs import TOO_LATE, ask
from harness.launch import supervise as outcome
from harness.launch.backends import local, slurm
from harness.launch.backends.slurm_poll import MEANINGS, meaning_of
from harness.launch.poll import look_at
from harness.run import Run
from harness.run.record import FINAL, Status
from harness.site import slurm_commands
from tests.launch.launch_shared import Harness, a_run
from tests.waiting import limit_s, wait_until

# `man squeue`, JOB STATE CODES, of Slurm 22.05, and what newer ones added.
CODES = [
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "CONFIGURING",
    "COMPLETING",
    "DEADLINE",
    "FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PENDING",
    "PREEMPTED",
    "RUNNING",
    "RESV_DEL_HOLD",
    "REQUEUE_FED",
    "REQUEUE_HOLD",
    "REQUEUED",
    "RESIZING",
    "REVOKED",
    "SIGNALING",
    "SPECIAL_EXIT",
    "STAGE_OUT",
    "STOPPED",
    "SUSPENDED",
    "TIMEOUT",
    "LAUNCH_FAILED",
    "RECONFIG_FAIL",
    "POWER_UP_NODE",
    "EXPEDITING",
]
UNREACHED = "echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1"
FORGOTTEN = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"
NO_ACCOUNTS = "echo 'Slurm accounting storage is disabled' >&2; exit 1"


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Slurm's commands on PATH; each writes its arguments beside it. The job has been forgotten."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    for name, body in {"scancel": "", "squeue": FORGOTTEN, "scontrol": FORGOTTEN, "sacct": NO_ACCOUNTS}.items():
        program(folder, name, body)
    return folder


def program(folder: Path, name: str, body: str) -> None:
    (folder / name).write_text(f'#!/bin/sh\necho "$@" >>$0.log\n{body}\n')
    (folder / name).chmod(0o755)


def asked(folder: Path, name: str) -> int:
    """How often the program was started."""
    log = folder / f"{name}.log"
    return len(log.read_text().splitlines()) if log.exists() else 0


def of_slurm(root: Path, job_id: str = "4711", **status: object) -> Run:
    """A run of a Slurm job, which wrote this status."""
    run = a_run(root / "runs", job_id)
    run.write_record(run.record.model_copy(update={"backend": "slurm"}))
    if status:
        run.write_status(Status.model_validate(status))
    return run


# --- when nobody answers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", ["exec sleep 60", "sleep 60; :", UNREACHED])
def test_a_controller_that_does_not_answer_is_asked_once_by_a_command(
    programs: Path, tmp_path: Path, harness: Harness, monkeypatch: pytest.MonkeyPatch, body: str
) -> None:
    monkeypatch.setattr(slurm_commands, "QUESTION_S", limit_s(3))
    for name in ("squeue", "scontrol"):
        program(programs, name, body)
    for number in range(5):
        of_slurm(tmp_path, str(4711 + number), state="running", started_ns=1)
    listed = harness("ls")
    assert asked(programs, "squeue") == 1
    assert asked(programs, "scontrol") == 0, "the same server"
    assert listed.stdout.count("running?") == 5
    assert "?: Slurm does not answer; this is the last state that the job wrote" in listed.stderr
    shown = harness("status", "4713")
    assert "4713  unknown" in shown.stdout
    assert "Slurm does not answer; the last state that the job wrote: running" in shown.stdout


def test_of_a_job_that_wrote_its_end_nothing_is_doubtful_when_slurm_does_not_answer(
    programs: Path, tmp_path: Path, harness: Harness
) -> None:
    program(programs, "squeue", UNREACHED)
    of_slurm(tmp_path, state="completed", exit_code=0)
    shown = harness("status").stdout
    assert "4711  completed, exit 0" in shown
    assert "Slurm does not answer; the last state that the job wrote: completed" in shown


def test_accounts_that_do_not_answer_are_asked_once_and_named(programs: Path, tmp_path: Path, harness: Harness) -> None:
    program(programs, "sacct", "echo 'sacct: error: Problem talking to the database: Connection refused' >&2; exit 1")
    for number in range(3):
        of_slurm(tmp_path, str(4711 + number), state="running", started_ns=1)
    assert harness("ls").returncode == 0
    assert asked(programs, "sacct") == 1
    assert "its accounts do not answer; the last state that the job wrote: running" in harness("status").stdout


def test_accounts_alone_are_used_with_a_sentence(programs: Path, tmp_path: Path) -> None:
    program(programs, "squeue", UNREACHED)
    program(programs, "sacct", "echo RUNNING")
    look = look_at(of_slurm(tmp_path, state="running"))
    assert (look.state, look.why) == (
        "running", "Slurm's controller does not answer, and its accounts lag behind"
    )  # fmt: skip


def test_accounts_that_have_a_forgotten_job_as_running_are_not_used(programs: Path, tmp_path: Path) -> None:
    program(programs, "sacct", "echo RUNNING")
    look = look_at(of_slurm(tmp_path, state="running"))
    assert look.state == "unknown"
    assert look.why == "Slurm does not know job 4711 any more; the last state that the job wrote: running"


def test_a_program_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    """A site's own wrapper around squeue must not leave one process per question."""
    file = tmp_path / "child"
    body = f"sleep 600 & echo $! >{file}; wait"
    assert ask(["sh", "-c", body], limit_s(3), os.environ).code == TOO_LATE
    child = int(file.read_text())
    wait_until(lambda: not processes.lives(child), "the end of what it started")


def test_who_waits_for_a_run_waits_on_while_slurm_does_not_answer(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = of_slurm(tmp_path, state="running", started_ns=1)
    counting = "n=$(cat $0.n 2>/dev/null || echo 0); echo $((n + 1)) >$0.n"
    program(programs, "squeue", f"{counting}; [ $n -lt 4 ] || {{ echo COMPLETED; exit; }}; {UNREACHED}")
    monkeypatch.setattr(slurm_commands, "AGAIN_S", 0.0)
    monkeypatch.setattr(follow, "GRACE_S", 0.0)
    monkeypatch.setattr(slurm, "POLL_S", 0.01)
    assert follow.wait_for_end(run, []) == "completed"
    assert "unknown: Slurm does not answer" in capsys.readouterr().err


# --- Slurm's words -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", CODES)
def test_every_word_of_slurm_is_a_state(programs: Path, tmp_path: Path, code: str) -> None:
    program(programs, "squeue", f"echo '{code}|None'")
    look = look_at(of_slurm(tmp_path, state="running", started_ns=1))
    assert look.state != "unknown"
    plain = {"PENDING", "RUNNING", "RESIZING", "SIGNALING", "COMPLETED", "CANCELLED"}
    assert bool(look.why) == (code not in plain), "what the state does not say, a sentence says"
    assert "{" not in look.why


def test_a_word_that_is_not_known_is_no_end() -> None:
    assert meaning_of("DREAMING", "1").state == "unknown"
    assert "DREAMING" in meaning_of("DREAMING", "1").why
    assert set(CODES) == set(MEANINGS)


# --- what is written down ----------------------------------------------------------------------------------------


def test_an_end_that_the_job_could_not_write_is_known_also_when_slurm_has_forgotten_it(
    programs: Path, tmp_path: Path, harness: Harness
) -> None:
    run = of_slurm(tmp_path, state="running", started_ns=1, host="node1")
    program(programs, "scontrol", "echo 'JobId=4711 JobState=NODE_FAIL Reason=NodeDown'")
    assert "one of its nodes failed" in harness("status").stdout
    kept = run.status()
    assert kept is not None
    assert (kept.state, kept.told_by, kept.started_ns, kept.host) == ("node_fail", "NODE_FAIL", 1, "node1")
    before = (run.path / "status.json").stat()
    program(programs, "scontrol", FORGOTTEN)
    assert "4711  node_fail" in harness("status").stdout
    assert "one of its nodes failed" in harness("status").stdout
    assert "node_fail" in harness("ls").stdout
    assert (run.path / "status.json").stat().st_ino == before.st_ino, "it is written once"
    assert not list(run.path.glob(".status*"))


def test_ls_writes_down_what_it_learned(programs: Path, tmp_path: Path, harness: Harness) -> None:
    run = of_slurm(tmp_path, state="running", started_ns=1)
    program(programs, "sacct", "echo 'CANCELLED by 1000'")
    assert "cancelled" in harness("ls").stdout
    kept = run.status()
    assert kept is not None
    assert (kept.state, kept.told_by) == ("cancelled", "CANCELLED")
    questions = asked(programs, "squeue")
    assert "cancelled" in harness("ls").stdout
    assert asked(programs, "squeue") == questions, "of a final state nobody is asked again"


def test_a_jobs_own_end_is_never_replaced(tmp_path: Path) -> None:
    """Also one that a shared file system shows only when this machine has written into its folder."""
    run = of_slurm(tmp_path, state="completed", exit_code=0, started_ns=1)
    before = (run.path / "status.json").read_bytes()
    run.write_down("failed", told_by="FAILED")
    assert (run.path / "status.json").read_bytes() == before
    assert not list(run.path.glob(".status*"))


def test_who_failed_first_stays_when_slurm_is_asked(tmp_path: Path) -> None:
    """The job knows why; who asks Slurm afterwards only learns that it failed."""
    run = of_slurm(tmp_path, state="failed", exit_code=1, started_ns=1, why="rank 1 failed first")
    run.write_down("failed", told_by="FAILED")
    kept = run.status()
    assert kept is not None
    assert (kept.told_by, kept.why) == ("FAILED", "rank 1 failed first")


def test_a_job_that_slurm_runs_again_is_queued_and_then_running(programs: Path, tmp_path: Path) -> None:
    run = of_slurm(tmp_path, state="running", started_ns=1)
    program(programs, "scontrol", "echo JobState=NODE_FAIL")
    assert look_at(run).state == "node_fail"
    program(programs, "squeue", "echo 'PENDING|BeginTime'")
    assert look_at(run)[:2] == ("queued", "BeginTime")
    outcome.record_start(run)
    program(programs, "squeue", "echo 'RUNNING|None'")
    assert look_at(run).state == "running"


def test_a_lost_node_that_comes_back_does_not_deny_that_it_was_lost(programs: Path, tmp_path: Path) -> None:
    run = of_slurm(tmp_path, state="running", started_ns=1)
    program(programs, "scontrol", "echo JobState=NODE_FAIL")
    assert look_at(run).state == "node_fail"
    outcome.record_end(run, 143, "cancelled")
    program(programs, "scontrol", FORGOTTEN)
    assert look_at(run).state == "node_fail"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may make a file that root itself cannot replace")
def test_where_nothing_may_be_written_the_state_is_only_shown(programs: Path, tmp_path: Path, harness: Harness) -> None:
    run = of_slurm(tmp_path, state="running", started_ns=1)
    program(programs, "scontrol", "echo JobState=NODE_FAIL")
    before = (run.path / "status.json").read_bytes()
    mount = ["mount", "--bind", "-o", "ro", str(run.path), str(run.path)]
    if subprocess.run(mount, capture_output=True, check=False, timeout=limit_s()).returncode:
        pytest.skip("a folder can be made read-only only where mounts are allowed")
    try:
        shown, listed = harness("status"), harness("ls")
    finally:
        subprocess.run(["umount", "--lazy", str(run.path)], check=True, timeout=limit_s())
    assert (shown.returncode, listed.returncode) == (0, 0)
    assert "node_fail" in shown.stdout and "node_fail" in listed.stdout
    assert (run.path / "status.json").read_bytes() == before


# --- cancel ------------------------------------------------------------------------------------------------------


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test waits as long as a user would."""
    for name, value in {"QUIET_S": 0.0, "MORE_S": 0.2, "UNHEARD_S": 0.5, "MOST_S": 0.5}.items():
        monkeypatch.setattr(cancelling, name, value)


@pytest.mark.usefixtures("soon")
def test_a_job_that_is_ending_is_cancelled_well(programs: Path, tmp_path: Path, harness: Harness) -> None:
    of_slurm(tmp_path, state="running", started_ns=1)
    program(programs, "squeue", "echo 'COMPLETING|None'")
    program(programs, "scontrol", "echo 'KillWait                = 45 sec'")
    for _ in range(2):  # a second cancellation is as good as the first
        done = harness("cancel")
        assert done.returncode == 0, done.stderr
        assert "4711 is ending: it has 45 s to close its traces" in done.stderr
        assert "4711 is ending, its last processes still run: slurm.sh status 4711" in done.stdout
    said = json.loads(harness("cancel", "--json").stdout)
    assert said == {"job_id": "4711", "before": "running", "state": "running", "ending": True}


@pytest.mark.usefixtures("soon")
def test_a_job_that_slurm_has_forgotten_cannot_be_cancelled(programs: Path, tmp_path: Path, harness: Harness) -> None:
    of_slurm(tmp_path, state="running", started_ns=1)
    done = harness("cancel")
    assert done.returncode == 1
    assert "Slurm does not know job 4711 (any more): nothing was cancelled" in done.stderr
    assert asked(programs, "scancel") == 0


@pytest.mark.usefixtures("soon")
def test_a_cancellation_that_slurm_does_not_answer_says_what_is_not_known(
    programs: Path, tmp_path: Path, harness: Harness
) -> None:
    of_slurm(tmp_path, state="running", started_ns=1)
    program(programs, "squeue", UNREACHED)
    program(programs, "scancel", "echo 'scancel: error: Kill job error on job id 4711: Unable to contact slurm "
            "controller (connect failure)' >&2; exit 1")  # fmt: skip
    done = harness("cancel")
    assert done.returncode == 1
    assert re.search(
        "Slurm does not answer: the cancellation of job 4711 is not confirmed.* slurm.sh status 4711", done.stderr
    )


@pytest.mark.usefixtures("soon")
def test_a_job_that_ends_while_it_is_cancelled_has_ended(programs: Path, tmp_path: Path, harness: Harness) -> None:
    of_slurm(tmp_path, state="running", started_ns=1)
    program(programs, "squeue", "[ -e $0.over ] || echo 'RUNNING|None'")
    program(programs, "scontrol", "echo JobState=COMPLETED")
    over = programs / "squeue.over"
    program(programs, "scancel", f"touch {over}; echo 'Job/step already completing or completed' >&2; exit 1")
    done = harness("cancel")
    assert (done.returncode, done.stdout) == (0, "4711: completed\n")


@pytest.mark.usefixtures("soon")
def test_to_cancel_a_run_of_an_allocation_names_those_that_end_with_it(
    programs: Path, tmp_path: Path, harness: Harness
) -> None:
    ended = of_slurm(tmp_path, "4711-0", state="completed", exit_code=0)
    of_slurm(tmp_path, "4711-1", state="running", started_ns=1)
    waiting = of_slurm(tmp_path, "4711-2")
    of_slurm(tmp_path, "4712-2")
    program(programs, "squeue", "[ -e $0.over ] || echo 'RUNNING|None'")
    program(programs, "scontrol", "echo JobState=CANCELLED")
    program(programs, "scancel", f"touch {programs / 'squeue.over'}")
    done = harness("cancel", "4711-1")
    assert done.stdout == "4711-1: cancelled, and with it 4711-2 of the same allocation\n", done.stderr
    assert [run.status().state for run in (ended, waiting) if run.status()] == ["completed", "cancelled"]
    again = harness("cancel", "4711-1")
    assert (again.returncode, again.stdout) == (0, "4711-1 has already ended: cancelled\n")


# --- runs on this machine ----------------------------------------------------------------------------------------


def test_another_process_or_a_thread_of_the_kernel_is_not_taken_for_the_run(tmp_path: Path) -> None:
    """After a reboot both may have the number of the run's script."""
    run = a_run(tmp_path, "local-1")
    run.controller_dir.mkdir(parents=True)
    (run.controller_dir / "1_submitted.pkl").touch()
    kernel = [process.pid for process in psutil.process_iter(["cmdline"]) if process.info["cmdline"] == []]
    for pid in [os.getpid(), *kernel[:1]]:
        run.write_status(Status(state="running", pid=pid, host=run.record.submit_host, started_ns=1))
        assert local.poll(run).state == "failed"
    assert look_at(run).state == "failed"
    assert (kept := run.status()) is not None
    assert (kept.state, kept.told_by) == ("failed", run.record.submit_host)
    assert "it ended without an exit status" in kept.why


DEAF = (
    "import pathlib, signal, sys, time; signal.signal(15, signal.SIG_IGN); pathlib.Path(sys.argv[1]).touch(); "
    "time.sleep(3600)"
)


def test_a_second_cancellation_of_a_local_run_kills_what_did_not_hear_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = a_run(tmp_path, "local-1")
    run.controller_dir.mkdir(parents=True)
    does_not_hear = tmp_path / "deaf"
    deaf = f"{sys.executable} -c '{DEAF}' {does_not_hear}"
    run.script.write_text(f"trap 'asked=1' TERM\n{deaf} &\nwhile :; do wait $!; (($? == 143)) || exit 7; done\n")
    script = subprocess.Popen(["bash", str(run.script)])
    try:
        run.write_status(Status(state="running", pid=script.pid, host=run.record.submit_host, started_ns=1))
        wait_until(does_not_hear.exists, "a process that does not hear")
        (child,) = processes.below(script.pid)
        local.cancel(run)
        assert local.poll(run)[:3] == ("running", "it was asked to end, and is closing its traces", True)
        assert processes.lives(child)
        monkeypatch.setattr(local, "KILL_S", 0.0)
        local.cancel(run)
        assert script.wait(timeout=limit_s(60)) == 7, "the script itself is left to write how it ended"
    finally:
        script.kill()


def test_what_a_killed_script_leaves_is_ended(tmp_path: Path) -> None:
    body = f"trap '' TERM; sleep 600 & echo $! >{tmp_path / 'child'}; wait"
    leader = subprocess.Popen(["bash", "-c", body], start_new_session=True)
    named = tmp_path / "child"
    wait_until(lambda: named.exists() and named.read_text(), "the child's number")
    child = int(named.read_text())
    leader.send_signal(signal.SIGKILL)
    leader.wait(timeout=limit_s())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "LAST_S", 0.2)
        processes.end_session(leader.pid, local.LAST_S)
    wait_until(lambda: not processes.lives(child), "the end of what it left")


def test_final_states_are_the_only_ones_that_are_written_down() -> None:
    slurms = {each.state for each in MEANINGS.values() if each.state in FINAL}
    assert slurms == FINAL - {"stuck"}  # which only the job itself knows
