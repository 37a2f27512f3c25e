"""What `status`, `ls` and `cancel` say when Slurm does not answer, has forgotten, or knows how a job ended; and what is
known of a run on this machine. tests/slurm/test_slurm_states.py has a real Slurm."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from harness.cli.watch import follow
from harness.cli.watch import status as cancelling
from harness.common.run_folder.run_files import METRICS
from harness.common.system import processes
from harness.common.system.programs import TOO_LATE, ask
from harness.launch.backends import local, slurm
from harness.launch.backends.slurm_poll import MEANINGS, meaning_of
from harness.launch.on_node import supervise as outcome
from harness.launch.poll import look_at
from harness.run import DiskError
from harness.run.record import FINAL, Status
from harness.site import slurm_commands
from tests.heartbeats.written import START_NS, NodeWriter
from tests.launch.launch_shared import Harness, a_run, kept_by
from tests.launch.stand_ins import FORGOTTEN, NO_DATABASE, UNREACHED, Programs, of_slurm
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
STUCK = "stuck since 14:03:28 in step 7: node node2 with rank 1 has not reported since 14:03:28"
KILLED = "rank 1 failed first, in step 7: the kernel killed it: the job used more memory than its cgroup allows"
LAST = "the last state that the job wrote: running"


@pytest.mark.parametrize(
    ("job", "own", "says", "state", "why"),
    [
        # squeue's word, then scontrol's, then sacct's, then the run's own
        ("4711", None, {}, "unknown", "Slurm does not know job 4711 any more; the job has written nothing yet"),
        ("4711", {"state": "running"}, {}, "unknown", f"Slurm does not know job 4711 any more; {LAST}"),
        ("4711", {"state": "failed", "exit_code": 7}, {}, "failed", ""),
        ("4711", {"state": "failed"}, {"sacct": "echo 'CANCELLED by 1000'"}, "cancelled", ""),
        ("4711", {"state": "failed"}, {"sacct": "echo CANCELLED", "scontrol": "echo JobState=NODE_FAIL"}, "node_fail",
         "one of its nodes failed: submit it again"),
        ("4711", {"state": "failed"}, {"scontrol": "echo JobState=NODE_FAIL", "squeue": "echo PENDING"}, "queued", ""),
        ("4711", None, {"squeue": "echo 'PENDING|QOSMaxNodePerJobLimit'"}, "queued", "QOSMaxNodePerJobLimit"),
        ("4711", None, {"scontrol": "echo 'JobState=FAILED Reason=JobLaunchFailure'"}, "failed",
         "it never started: Slurm says JobLaunchFailure: often the node does not see the folder of the runs, "
         "which HARNESS_RUNS names; else submit it again"),
        # nobody answers, or the accounts lag behind
        ("4711", {"state": "running"}, {"squeue": UNREACHED}, "unknown", f"Slurm does not answer; {LAST}"),
        ("4711", {"state": "completed", "exit_code": 0}, {"squeue": UNREACHED}, "completed",
         "Slurm does not answer; the last state that the job wrote: completed"),
        ("4711", {"state": "running"}, {"sacct": NO_DATABASE}, "unknown",
         f"Slurm's controller has forgotten the job, and its accounts do not answer; {LAST}"),
        ("4711", {"state": "running"}, {"squeue": UNREACHED, "sacct": "echo RUNNING"}, "running",
         "Slurm's controller does not answer, and its accounts lag behind"),
        ("4711", {"state": "running"}, {"sacct": "echo RUNNING"}, "unknown",
         f"Slurm does not know job 4711 any more; {LAST}"),
        ("4711", {"state": "completed"}, {"squeue": "exit 1", "scontrol": "exit 1", "sacct": "echo RUNNING"},
         "completed", ""),
        ("4711", {"state": "completed"}, {"scontrol": "echo 'JobState=FAILED Reason=None'"}, "failed", ""),
        # the job's own word, where it is more precise
        ("4711", {"state": "timeout", "exit_code": 143}, {"sacct": "echo FAILED"}, "timeout", ""),
        ("4711", {"state": "cancelled", "exit_code": 143}, {"squeue": "echo 'NODE_FAIL|None'"}, "node_fail",
         "one of its nodes failed: submit it again"),
        ("4711", {"state": "completed"}, {"squeue": "echo 'NODE_FAIL|None'"}, "completed",
         "Slurm reported one of its nodes as lost, but it ran to its end: its reports are there"),
        *(("4711", {"state": "stuck", "why": STUCK}, {"squeue": f"echo '{word}|None'"}, "stuck", STUCK)
          for word in ("NODE_FAIL", "CANCELLED", "TIMEOUT", "FAILED")),
        ("4711", {"state": "failed", "exit_code": 137, "why": KILLED},
         {"squeue": "echo 'OUT_OF_MEMORY|None'"}, "failed",
         f"{KILLED}; Slurm ended it because it used more memory than the job requested"),
        # one of several runs in an allocation
        ("4711-1", None, {"squeue": "echo PENDING"}, "queued", ""),
        ("4711-1", None, {"squeue": "echo RUNNING"}, "queued", "runs before it in the same allocation have not ended"),
        ("4711-1", {"state": "running"}, {"squeue": "echo RUNNING"}, "running", ""),
        ("4711-1", {"state": "completed"}, {"squeue": "echo RUNNING"}, "completed", ""),
        ("4711-1", {"state": "failed"}, {"squeue": "echo COMPLETED"}, "failed", ""),
        ("4711-1", {"state": "running"}, {"squeue": "echo TIMEOUT"}, "timeout",
         "it was ended before it could write its exit status; Slurm says TIMEOUT"),
        ("4711-1", None, {"squeue": "echo CANCELLED"}, "cancelled", ""),
        ("4711-1", None, {"squeue": "echo COMPLETED"}, "failed", "its allocation ended before it"),
    ],
)  # fmt: skip
def test_a_state_is_slurms_the_jobs_own_or_not_known(
    programs: Programs,
    tmp_path: Path,
    *,
    job: str,
    own: dict[str, object] | None,
    says: dict[str, str],
    state: str,
    why: str,
) -> None:
    programs.say(**says)
    run = of_slurm(tmp_path, job, **({"started_ns": 1, "ended_ns": 2, **own} if own else {}))
    for _ in range(2):  # what was learned is written down, and stays
        assert look_at(run)[:2] == (state, why)
    assert not list(run.path.glob(".status*"))


def test_of_a_run_that_slurm_ended_for_lack_of_memory_the_fullest_host_is_told(
    programs: Programs, tmp_path: Path
) -> None:
    programs.say(squeue="echo 'OUT_OF_MEMORY|None'")
    run = of_slurm(tmp_path, state="running", started_ns=1)
    METRICS.path(run.path, 0).parent.mkdir()
    for rank, (host, size) in enumerate((("a", 3), ("b", 2), ("b", 5))):
        lines = [{"event": "start", "host": host, "host_limit_bytes": 8 * 10**9}]
        lines += [{"event": "step", "step": step, "host_memory_bytes": size * 10**9} for step in range(9)]
        METRICS.path(run.path, rank).write_text("".join(json.dumps(line) + "\n" for line in lines))
    said = (
        "Slurm ended it because it used more memory than the job requested; of 8.00 GB on its host, its 2 ranks last "
        "had 7.00 GB: a peak inside a step, or other processes, took the rest"
    )
    for _ in range(2):
        why = look_at(run).why
        assert said in why


@pytest.mark.parametrize("code", CODES)
def test_every_word_of_slurm_is_a_state(programs: Programs, tmp_path: Path, code: str) -> None:
    programs.say(squeue=f"echo '{code}|None'")
    look = look_at(of_slurm(tmp_path, state="running", started_ns=1))
    assert look.state != "unknown"
    plain = {"PENDING", "RUNNING", "RESIZING", "SIGNALING", "COMPLETED", "CANCELLED"}
    assert bool(look.why) == (code not in plain), "what the state does not say, a sentence says"
    assert "{" not in look.why


def test_a_word_that_is_not_known_is_no_end() -> None:
    assert meaning_of("DREAMING", "1")[:2] == ("unknown", "Slurm's state DREAMING is not known here")
    assert set(CODES) == set(MEANINGS)
    assert {each.state for each in MEANINGS.values() if each.state in FINAL} == FINAL - {"stuck"}


@pytest.mark.parametrize("body", ["exec sleep 60", "sleep 60; :", UNREACHED])
def test_a_controller_that_does_not_answer_is_asked_once_by_a_command(
    programs: Programs, tmp_path: Path, harness: Harness, monkeypatch: pytest.MonkeyPatch, body: str
) -> None:
    monkeypatch.setattr(slurm_commands, "QUESTION_S", limit_s(3))
    programs.say(squeue=body, scontrol=body)
    for number in range(5):
        of_slurm(tmp_path, str(4711 + number), state="running", started_ns=1)
    listed = harness("ls")
    assert (len(programs.calls("squeue")), programs.calls("scontrol")) == (1, []), "the same server"
    assert listed.stdout.count("running?") == 5
    assert "?: Slurm does not answer; this is the last state that the job wrote" in listed.stderr
    assert f"\n  Slurm does not answer; {LAST}\n" in harness("status", "4713").stdout


def test_what_is_learned_is_written_down_and_of_a_final_state_nobody_is_asked_again(
    programs: Programs, tmp_path: Path, harness: Harness
) -> None:
    run = of_slurm(tmp_path, state="running", started_ns=1, host="node1")
    programs.say(scontrol="echo 'JobId=4711 JobState=NODE_FAIL Reason=NodeDown'")
    assert "node_fail" in harness("ls").stdout
    kept = run.status()
    assert kept is not None
    assert (kept.state, kept.told_by, kept.started_ns, kept.host) == ("node_fail", "NODE_FAIL", 1, "node1")
    written, questions = (run.path / "status.json").stat().st_ino, len(programs.calls("squeue"))
    programs.say(scontrol=FORGOTTEN)
    assert "node_fail" in harness("ls").stdout
    assert len(programs.calls("squeue")) == questions
    assert "\n  one of its nodes failed" in harness("status").stdout
    assert (run.path / "status.json").stat().st_ino == written, "it is written once"


@pytest.mark.parametrize(
    ("own", "told_by", "why"),
    [
        ({"state": "completed", "exit_code": 0}, None, ""),
        ({"state": "failed", "why": "rank 1 first"}, "FAILED", "rank 1 first"),
    ],
)
def test_a_jobs_own_end_and_its_reason_stay_when_slurm_is_asked(
    tmp_path: Path, own: dict[str, Any], told_by: str | None, why: str
) -> None:
    run = of_slurm(tmp_path, started_ns=1, **own)
    run.write_down("failed", told_by="FAILED")
    kept = run.status()
    assert kept is not None and (kept.state, kept.told_by, kept.why) == (own["state"], told_by, why)


def test_a_job_that_slurm_runs_again_is_queued_and_then_running_and_a_lost_node_stays_lost(
    programs: Programs, tmp_path: Path
) -> None:
    run = of_slurm(tmp_path, state="running", started_ns=1)
    programs.say(scontrol="echo JobState=NODE_FAIL")
    assert look_at(run).state == "node_fail"
    outcome.record_end(run, 143, "cancelled")
    programs.say(scontrol=FORGOTTEN)
    assert look_at(run).state == "node_fail", "a node that comes back does not deny that it was lost"
    programs.say(squeue="echo 'PENDING|BeginTime'")
    assert look_at(run)[:2] == ("queued", "BeginTime")
    outcome.record_start(run)
    programs.say(squeue="echo 'RUNNING|None'")
    assert look_at(run).state == "running"


def test_where_nothing_may_be_written_the_state_is_only_shown(
    programs: Programs, tmp_path: Path, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, *_: object) -> None:
        raise DiskError(f"{path}: cannot be written")

    of_slurm(tmp_path, state="running", started_ns=1)
    programs.say(scontrol="echo JobState=NODE_FAIL")
    monkeypatch.setattr("harness.run.run.write_atomically", refuse)
    for word in ("status", "ls"):
        done = harness(word)
        assert (done.returncode, "node_fail" in done.stdout, done.stderr) == (0, True, "")


def test_a_node_that_fell_silent_is_named_when_slurm_says_that_one_failed(
    programs: Programs, tmp_path: Path, harness: Harness
) -> None:
    run = of_slurm(tmp_path, state="running", started_ns=1)
    NodeWriter(run.path, "node1", range(1)).line(event="end", unix_ns=START_NS)
    NodeWriter(run.path, "node2", range(1, 2))
    programs.say(squeue="echo 'NODE_FAIL|None'")
    wanted = "one of its nodes failed: submit it again; node host-node2 with rank 1 has not reported since"
    for words in (("status",), ("status",), ("watch", "--once", "4711")):
        assert harness(*words, COLUMNS="160").stdout.count(wanted) == 1


def test_who_waits_for_a_run_waits_on_while_slurm_does_not_answer(
    programs: Programs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = of_slurm(tmp_path, state="running", started_ns=1)
    programs.say(squeue=f"[ $(grep -cx -e -- $0.log) -lt 5 ] || {{ echo COMPLETED; exit; }}; {UNREACHED}")
    monkeypatch.setattr(slurm_commands, "AGAIN_S", 0.0)
    monkeypatch.setattr(follow, "GRACE_S", 0.0)
    monkeypatch.setattr(slurm, "POLL_S", 0.01)
    assert follow.wait_for_end(run, []) == "completed"
    assert "unknown: Slurm does not answer" in capsys.readouterr().err


# --- cancel ------------------------------------------------------------------------------------------------------

OVER = "[ -e $(dirname $0)/over ] || echo 'RUNNING|None'"  # until scancel has made the file
ENDS = "touch $(dirname $0)/over"


@pytest.mark.parametrize(
    ("says", "code", "out", "err"),
    [
        ({"squeue": "echo 'COMPLETING|None'"}, 0,
         "4711 is ending, its last processes still run: bash slurm.sh status 4711\n",
         "4711 is ending: it closes its traces"),
        ({}, 1, "", "Slurm does not know job 4711 (any more): nothing was cancelled"),
        ({"squeue": UNREACHED, "scancel": UNREACHED}, 1, "",
         "Slurm does not answer: the cancellation of job 4711 is not"),
        ({"squeue": "echo PENDING"}, 1, "", "4711 was asked to stop and is still queued: bash slurm.sh status 4711"),
        ({"squeue": OVER, "scontrol": "echo JobState=COMPLETED",
          "scancel": f"{ENDS}; echo 'Job/step already completing or completed' >&2; exit 1"}, 0,
         "4711: completed\n", ""),
        ({"squeue": OVER, "scontrol": "echo JobState=CANCELLED", "scancel": ENDS}, 0, "4711: cancelled\n", ""),
    ],
)  # fmt: skip
def test_a_cancellation_says_what_became_of_the_job(
    programs: Programs, tmp_path: Path, harness: Harness, monkeypatch: pytest.MonkeyPatch, *,
    says: dict[str, str], code: int, out: str, err: str,
) -> None:  # fmt: skip
    for name, value in {"QUIET_S": 0.0, "UNHEARD_S": limit_s(1), "MOST_S": 0.5}.items():
        monkeypatch.setattr(cancelling, name, value)
    of_slurm(tmp_path, state="running", started_ns=1)
    programs.say(**says)
    done = harness("cancel")
    assert (done.returncode, done.stdout) == (code, out), done.stderr
    assert err in done.stderr
    assert (programs.calls("scancel") == []) == (says == {})
    again = json.loads(harness("cancel", "--json").stdout or "{}")
    assert code or (again["job_id"], again["ending"]) == ("4711", "ending" in out)


def test_to_cancel_a_run_of_an_allocation_names_those_that_end_with_it(
    programs: Programs, tmp_path: Path, harness: Harness
) -> None:
    ended = of_slurm(tmp_path, "4711-0", state="completed", exit_code=0)
    of_slurm(tmp_path, "4711-1", state="running", started_ns=1)
    waiting = of_slurm(tmp_path, "4711-2")
    of_slurm(tmp_path, "4712-2")
    programs.say(squeue=OVER, scontrol="echo JobState=CANCELLED", scancel=ENDS)
    done = harness("cancel", "4711-1")
    assert done.stdout == "4711-1: cancelled, and with it 4711-2 of the same allocation\n", done.stderr
    assert [run.status().state for run in (ended, waiting) if run.status()] == ["completed", "cancelled"]
    again = harness("cancel", "4711-1")
    assert (again.returncode, again.stdout) == (0, "4711-1 has already ended: cancelled\n")


# --- runs on this machine ----------------------------------------------------------------------------------------


def test_a_program_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    """A site's own wrapper around squeue must not leave one process per question."""
    file = tmp_path / "child"
    body = f"sleep 600 & echo $! >{file}; wait"
    assert ask(["sh", "-c", body], limit_s(3), os.environ).code == TOO_LATE
    child = int(file.read_text())
    wait_until(lambda: not processes.lives(child), "the end of what it started")


def test_another_process_or_a_thread_of_the_kernel_is_not_taken_for_the_run(tmp_path: Path) -> None:
    """After a reboot both may have the number of the run's script."""
    run = a_run(tmp_path, "local-1")
    kept_by(run, 1)
    kernel = [process.pid for process in psutil.process_iter(["cmdline"]) if process.info["cmdline"] == []]
    for pid in [os.getpid(), *kernel[:1]]:
        run.write_status(Status(state="running", pid=pid, host=run.record.submit_host, started_ns=1))
        assert local.poll(run).state == "failed"
    look_at(run)
    assert (kept := run.status()) is not None and "it ended without an exit status" in kept.why
    assert (kept.state, kept.told_by) == ("failed", run.record.submit_host)


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
