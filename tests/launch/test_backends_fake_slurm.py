"""The Slurm backend against stand-ins for sbatch and its friends: refusals, leaks, disagreeing answers.

tests/slurm has a real Slurm; here is what a real controller does not do on demand.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from harness.cli.watch import status as cancelling
from harness.cli.watch.ls import ls
from harness.common.errors import WorkError
from harness.common.programs import ProgramOutput, ask
from harness.launch.backends import slurm
from harness.run import Run, find_run
from harness.run.record import State, Status
from harness.site import slurm_commands
from tests.heartbeats.written import START_NS, NodeWriter
from tests.launch.launch_shared import Harness
from tests.waiting import limit_s

ANSWERS = {"squeue": "exit 1", "sacct": "exit 1", "scontrol": "exit 1"}


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    for name, body in {"sbatch": "echo 4711", "scancel": "echo $@ >>$0.log", **ANSWERS}.items():
        fake(folder, name, body)
    return folder


def fake(folder: Path, name: str, body: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{body}\n")
    (folder / name).chmod(0o755)


@pytest.fixture
def site(tmp_path: Path) -> str:
    path = tmp_path / "site.yaml"
    path.write_text("name: test\ndescription: a stand-in\ndevice: cpu\ngpus: {per_node: 1, request: none}\n")
    return str(path)


def test_a_submission_is_a_run_with_its_script_and_record(
    programs: Path, site: str, harness: Harness, tmp_path: Path
) -> None:
    done = harness("-e", "1", "--site", site, "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    run = Path(said["path"])
    assert said["job_id"] == "4711"
    assert run.name.startswith("tiny-llama-4711-n1-g1-")
    record = json.loads((run / "run.json").read_text())
    assert record["experiment"]["exercise"] == 1
    assert record["git"]["commit"]
    assert (run / "job.sbatch").read_text() == harness("-e", "1", "--site", site, "--dry-run").stdout
    assert (tmp_path / "runs" / "exercise_1_DDP" / "logs" / "4711").is_dir()


def test_a_second_submission_is_a_second_run(programs: Path, site: str, harness: Harness, tmp_path: Path) -> None:
    assert harness("-e", "1", "--site", site).returncode == 0
    fake(programs, "sbatch", "echo 4712")
    assert harness("-e", "1", "--site", site).returncode == 0
    assert len(list((tmp_path / "runs" / "exercise_1_DDP" / "profiler").iterdir())) == 2


def test_a_refusal_shows_sbatchs_own_message_and_leaves_nothing(
    programs: Path, site: str, harness: Harness, tmp_path: Path
) -> None:
    fake(programs, "sbatch", "echo 'sbatch: error: Invalid qos specification' >&2; exit 1")
    done = harness("-e", "1", "--site", site)
    assert done.returncode == 1
    assert "sbatch refused the job: sbatch: error: Invalid qos specification" in done.stderr
    assert "Submitted" not in done.stdout
    assert not list((tmp_path / "runs").rglob("*"))


@pytest.mark.parametrize("body", ["echo", "echo hello", "exit 3"])
def test_an_sbatch_that_names_no_id_is_a_failure(programs: Path, site: str, harness: Harness, body: str) -> None:
    fake(programs, "sbatch", body)
    done = harness("-e", "1", "--site", site)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr


def test_a_job_of_another_cluster_is_looked_for_and_cancelled_there(
    programs: Path, site: str, harness: Harness
) -> None:
    """The default cluster may have another job with the same number."""
    fake(programs, "sbatch", "echo '4711;mpp3'")
    said = json.loads(harness("-e", "1", "--site", site, "--json").stdout)
    assert said["job_id"] == "4711"
    run = Run(Path(said["path"]))
    there = 'case "$*" in *--clusters=mpp3*4711*)'
    fake(programs, "sacct", f"{there} echo COMPLETED;; *) echo FAILED;; esac")
    assert slurm.poll(run).state == "completed"
    fake(programs, "scontrol", f"{there} echo JobState=NODE_FAIL;; *) echo JobState=RUNNING;; esac")
    assert slurm.poll(run).state == "node_fail"
    # The real sacct names the cluster.
    fake(programs, "squeue", f"{there} echo CLUSTER: mpp3; echo 'PENDING|Priority';; *) echo RUNNING;; esac")
    assert slurm.poll(run).state == "queued"
    assert slurm.poll(run).why == "Priority"
    slurm.cancel(run)
    assert (programs / "scancel.log").read_text().split() == ["--clusters=mpp3", "4711"]
    fake(programs, "sbatch", 'printf "%s\\n" "$@" >$0.argv; echo "4712;mpp3"')
    assert slurm.submit_after(run, ["true"], over=False) == "4712"
    assert "--clusters=mpp3" in (programs / "sbatch.argv").read_text().splitlines()


def test_an_enclosing_jobs_variables_do_not_leak(programs: Path, site: str, harness: Harness) -> None:
    fake(programs, "sbatch", "env >$0.env; echo 4711")
    harness(
        "-e", "1", "--site", site,
        SLURM_JOB_ID="1", SLURM_NTASKS="7", SRUN_CPUS_PER_TASK="3", SBATCH_ACCOUNT="mine", SLURM_CONF="/etc/s.conf",
        SBATCH_WAIT="1", SBATCH_ARRAY_INX="0-1",
    )  # fmt: skip
    seen = (programs / "sbatch.env").read_text()
    assert "SBATCH_ACCOUNT=mine" in seen
    assert "SLURM_CONF=/etc/s.conf" in seen
    assert not any(name in seen for name in ("SLURM_JOB_ID", "SLURM_NTASKS", "SRUN_CPUS"))
    assert not any(name in seen for name in ("SBATCH_WAIT", "SBATCH_ARRAY_INX")), "the job's run would never begin"


def test_directives_of_the_script_cannot_be_overruled_from_outside(programs: Path, site: str, harness: Harness) -> None:
    """sbatch reads SBATCH_ variables after the script and before its command line."""
    fake(programs, "sbatch", 'printf "%s\\n" "$@" >$0.argv; echo 4711')
    done = harness("-e", "1", "--site", site, "-a", "mine", "-p", "gpu", "-q", "q", "--time", "0:10:00",
                   SBATCH_ACCOUNT="theirs", SBATCH_TIMELIMIT="1:00:00")  # fmt: skip
    argv = (programs / "sbatch.argv").read_text().splitlines()
    assert {"--account=mine", "--partition=gpu", "--qos=q", "--time=0:10:00"} <= set(argv)
    assert argv[-2].endswith("job.sbatch")
    assert argv[-1] == "submitted", "the job waits for its run's directory, and makes none"
    assert "SBATCH_ACCOUNT=theirs is not used: the job asks for mine" in done.stderr
    assert "SBATCH_TIMELIMIT=1:00:00 is not used" in done.stderr


def test_a_sites_own_sbatch_lines_mean_on_the_command_line_what_they_mean_in_the_script(
    programs: Path, site: str, harness: Harness
) -> None:
    """sbatch splits and unquotes the directives of a script and removes their comments, but not on its command line."""
    fake(programs, "sbatch", 'printf "%s\\n" "$@" >$0.argv; echo 4711')
    lines = ["--reservation my_res", '--comment="two words"', "--constraint=a100   # note"]
    with Path(site).open("a", encoding="utf-8") as file:
        file.write(f"sbatch: {json.dumps(lines)}\n")
    done = harness("-e", "1", "--site", site)
    assert done.returncode == 0, done.stderr
    argv = (programs / "sbatch.argv").read_text().splitlines()
    assert argv[-7:-3] == ["--reservation", "my_res", "--comment=two words", "--constraint=a100"]


def test_what_follows_a_run_goes_where_the_site_says_and_takes_none_of_its_gpus(
    programs: Path, site: str, harness: Harness
) -> None:
    lines = ["--reservation my_res", "--exclude=node1 # broken", "--gres=gpu:4", "--gres=tmpdir:10g", "--nodes=2",
             "--ntasks-per-socket=1", "--mem=0", "--exclusive", "--gpus-per-task 1"]  # fmt: skip
    with Path(site).open("a", encoding="utf-8") as file:
        file.write(f"sbatch: {json.dumps(lines)}\n")
    run = Run(Path(json.loads(harness("-e", "1", "--site", site, "--json").stdout)["path"]))
    fake(programs, "sbatch", 'printf "%s\\n" "$@" >$0.argv; echo 4712')
    slurm.submit_after(run, ["true"], over=False)
    argv = (programs / "sbatch.argv").read_text().splitlines()
    assert argv[1:5] == ["--reservation", "my_res", "--exclude=node1", "--gres=tmpdir:10g"]
    assert [w for w in argv[5:] if w.startswith(("--nodes", "--ntasks", "--mem", "--gpus", "--excl"))] == [
        "--nodes=1", "--ntasks=1"
    ]  # fmt: skip


def test_slurms_own_log_goes_to_a_folder_whose_name_looks_like_a_pattern(
    programs: Path, site: str, harness: Harness, tmp_path: Path
) -> None:
    fake(programs, "sbatch", 'printf "%s\\n" "$@" >$0.argv; echo 4711')
    assert harness("-e", "1", "--site", site, HARNESS_RUNS=str(tmp_path / "50% %j")).returncode == 0
    outputs = [w for w in (programs / "sbatch.argv").read_text().splitlines() if w.startswith("--output=")]
    assert outputs[-1] == f"--output={tmp_path}/50%% %%j/exercise_1_DDP/logs/slurm-%j.out"


def test_runs_where_slurm_would_write_no_log_are_refused(
    programs: Path, site: str, harness: Harness, tmp_path: Path
) -> None:
    done = harness("-e", "1", "--site", site, HARNESS_RUNS=str(tmp_path / "r\\b"))
    assert done.returncode == 2
    assert "backslash" in done.stderr
    assert "HARNESS_RUNS" in done.stderr
    assert not list(tmp_path.glob("r*b"))


def test_of_a_job_that_never_began_slurm_says_why(programs: Path, run: Run, harness: Harness) -> None:
    fake(programs, "scontrol", "echo 'JobId=4711 JobState=FAILED Reason=JobLaunchFailure'")
    assert "it never started: Slurm says JobLaunchFailure" in harness("status").stdout
    run.write_status(Status(state="failed", exit_code=7))
    assert "it never began" not in harness("status").stdout


@pytest.mark.parametrize(
    ("refusal", "explained"),
    [
        ("CPU count per node can not be satisfied", True),
        ("Requested node configuration is not available", True),
        ("Invalid qos specification", False),
    ],
)
def test_a_refusal_of_the_cpus_says_where_their_number_comes_from(
    programs: Path, site: str, harness: Harness, refusal: str, explained: bool
) -> None:
    with Path(site).open("a", encoding="utf-8") as file:
        file.write("cpus_per_gpu: 8\n")
    fake(programs, "sbatch", f"echo 'sbatch: error: {refusal}' >&2; exit 1")
    said = harness("-e", "1", "--site", site).stderr
    assert ("(the job asks for 8 CPUs per node: cpus_per_gpu in the site file)" in said) == explained, said


def test_status_says_why_a_job_waits(programs: Path, run: Run, harness: Harness) -> None:
    fake(programs, "squeue", "echo 'PENDING|QOSMaxNodePerJobLimit'")
    assert "QOSMaxNodePerJobLimit" in harness("status").stdout
    assert json.loads(harness("status", "--json").stdout)["reason"] == "QOSMaxNodePerJobLimit"


@pytest.mark.parametrize("state", ["cancelled", "failed"])
def test_ls_knows_as_status_does_that_a_node_failed(programs: Path, run: Run, harness: Harness, state: State) -> None:
    """The job was asked to stop, or lost its neighbour, and knows no more. The answer is written down."""
    run.write_status(Status(state=state, exit_code=143, started_ns=1, ended_ns=2))
    fake(programs, "squeue", "echo 'NODE_FAIL|None'")
    words = ("ls", "--json")
    assert json.loads(harness(*words).stdout)[0]["state"] == "node_fail"
    fake(programs, "squeue", "exit 1")
    assert json.loads(harness(*words).stdout)[0]["state"] == "node_fail"
    assert Run(run.path).status().exit_code == 143


@pytest.mark.parametrize("state", ["cancelled", "failed"])
def test_a_job_that_slurm_has_forgotten_is_asked_for_once(
    programs: Path, run: Run, harness: Harness, state: State
) -> None:
    run.write_status(Status(state=state, exit_code=143, started_ns=1, ended_ns=2))
    for name in ("squeue", "scontrol"):
        fake(programs, name, f"echo asked >>'{programs}/asked'; echo Invalid job id specified >&2; exit 1")
    for _ in range(3):
        assert json.loads(harness("ls", "--json").stdout)[0]["state"] == state
    assert (programs / "asked").read_text().split() == ["asked", "asked"]
    assert harness("status").stdout.startswith(f"4711  {state}, exit 143")


def test_a_run_that_completed_on_a_node_taken_for_lost_is_completed(programs: Path, run: Run, harness: Harness) -> None:
    """Where slurmd died, a node's processes go on: the job's own word is newer than Slurm's."""
    run.write_status(Status(state="completed", exit_code=0, started_ns=1, ended_ns=2))
    fake(programs, "squeue", "echo 'NODE_FAIL|None'")
    assert "Slurm reported one of its nodes as lost" in harness("status").stdout
    assert json.loads(harness("status", "--json").stdout)["state"] == "completed"


def test_a_node_that_fell_silent_is_named_when_slurm_says_that_one_failed(
    programs: Path, run: Run, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    run.write_status(Status(state="running", started_ns=1))
    NodeWriter(run.path, "node1", range(1)).line(event="end", unix_ns=START_NS)
    NodeWriter(run.path, "node2", range(1, 2))
    fake(programs, "squeue", "echo 'NODE_FAIL|None'")
    wanted = "one of its nodes failed: submit it again; node host-node2 with rank 1 has not reported since"
    for _ in range(2):
        assert harness("status").stdout.count(wanted) == 1
    assert wanted in harness("watch", "--once", "4711").stdout


@pytest.mark.parametrize("word", ["NODE_FAIL", "CANCELLED", "TIMEOUT", "FAILED"])
def test_a_stuck_run_is_stuck_for_every_command_whatever_slurm_ends_it_by(
    programs: Path, run: Run, harness: Harness, word: str
) -> None:
    """As one of whose nodes is gone: the monitor says so before the controller misses the node."""
    why = "stuck since 14:03:28 in step 7: node node2 with rank 1 has not reported since 14:03:28"
    run.write_status(Status(state="stuck", exit_code=143, started_ns=1, ended_ns=2, why=why))
    fake(programs, "squeue", f"echo '{word}|None'")
    said = json.loads(harness("status", "--json").stdout)
    assert (said["state"], said["reason"]) == ("stuck", why)
    assert json.loads(harness("ls", "--json").stdout)[0]["state"] == "stuck"


def test_who_was_killed_for_memory_is_told_beside_slurms_own_word(programs: Path, run: Run, harness: Harness) -> None:
    why = "rank 1 failed first, in step 7: the kernel killed it: the job used more memory than its cgroup allows"
    run.write_status(Status(state="failed", exit_code=137, started_ns=1, ended_ns=2, why=why))
    fake(programs, "squeue", "echo 'OUT_OF_MEMORY|None'")
    for _ in range(2):
        said = json.loads(harness("status", "--json").stdout)
        assert said["state"] == "failed"
        assert said["reason"] == f"{why}; Slurm ended it because it used more memory than the job requested"


def test_a_cancellation_that_is_not_confirmed_is_a_failure(
    programs: Path, run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake(programs, "squeue", "echo PENDING")
    monkeypatch.setattr(cancelling, "UNHEARD_S", 0.5)
    assert cancelling.cancel(str(run.path)) == 1
    assert "was asked to stop and is still queued" in capsys.readouterr().err
    fake(programs, "squeue", "echo CANCELLED")
    assert cancelling.cancel(str(run.path)) == 0


def test_exercise_0_stays_to_show_what_it_measures(programs: Path, site: str, harness: Harness) -> None:
    fake(programs, "squeue", "echo FAILED")
    shown = harness("-e", "0", "--site", site)
    assert "failed: " in shown.stderr
    fake(programs, "sbatch", "echo 4712")
    assert json.loads(harness("-e", "0", "--site", site, "--json").stdout)["job_id"] == "4712"
    fake(programs, "sbatch", "echo 4713")
    assert "next: bash slurm.sh status 4713" in harness("-e", "1", "--site", site).stdout


def test_a_run_again_and_a_lessons_run_record_what_they_ask_for(
    programs: Path, site: str, harness: Harness, tmp_path: Path
) -> None:
    def command_of_run(job_id: str) -> list[str]:
        found = find_run(job_id, tmp_path / "runs").record.command
        return found[1:]

    words = ["-e", "1", "--site", site, "--seed", "7"]
    harness(*words)
    for job_id, again in (("4712", "4711"), ("4713", "4712")):
        fake(programs, "sbatch", f"echo {job_id}")
        harness("run", again)
        assert command_of_run(job_id)[-len(words):] == words  # fmt: skip
    fake(programs, "sbatch", "n=$(cat $0.n || echo 4713); echo $((n + 1)) >$0.n; cat $0.n")
    fake(programs, "squeue", "echo COMPLETED")
    done = harness("lesson", "1a", "--run", "--site", site)
    assert "running: " in done.stderr, done.stderr
    assert command_of_run("4714")[:2] == ["-e", "1"]
    assert site in command_of_run("4714")


def test_a_full_disk_after_sbatch_cancels_the_job(
    programs: Path, site: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from harness.experiment.exercises import DDP
    from harness.launch.submit import Start, prepare, submit
    from harness.run import Stage
    from harness.site.site import load_site

    def full(*_: object) -> Run:
        raise OSError(28, "No space left on device")

    monkeypatch.setenv("HARNESS_RUNS", str(tmp_path / "runs"))
    monkeypatch.setattr(Stage, "publish", full)
    with pytest.raises(WorkError, match=r"job 4711 was cancelled again: .*no space left"):
        submit(Start(prepare(DDP(), load_site(site)), ["slurm.sh"]))
    assert (programs / "scancel.log").read_text().strip() == "4711"
    assert not list((tmp_path / "runs").rglob("*"))


@pytest.fixture
def run(programs: Path, site: str, harness: Harness) -> Run:
    return Run(Path(json.loads(harness("-e", "1", "--site", site, "--json").stdout)["path"]))


def test_the_state_is_squeues_then_scontrols_then_saccts_then_the_runs_own(programs: Path, run: Run) -> None:
    assert slurm.poll(run).state == "unknown"
    run.write_status(Status(state="running"))
    assert slurm.poll(run).state == "unknown", "a job that only said it had begun may have been killed since"
    run.write_status(Status(state="failed", exit_code=7))
    assert slurm.poll(run).state == "failed"
    fake(programs, "sacct", "echo 'CANCELLED by 1000'")
    assert slurm.poll(run).state == "cancelled"
    fake(programs, "scontrol", "echo 'JobId=4711 JobState=NODE_FAIL Reason=None'")
    assert slurm.poll(run).state == "node_fail", "the accounts lag behind the controller"
    fake(programs, "squeue", "echo PENDING")
    assert slurm.poll(run).state == "queued"


@pytest.mark.parametrize(
    ("squeue", "is_queued"),
    [
        ("echo RUNNING", True),
        ("exit 0", False),
        ("echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1", False),
        ("echo 'Unable to contact slurm controller' >&2; exit 1", True),
    ],
)
def test_a_task_has_left_the_queue_only_when_squeue_says_so(programs: Path, squeue: str, is_queued: bool) -> None:
    fake(programs, "squeue", squeue)
    assert slurm_commands.in_queue(slurm_commands.JobId("4711_3")) == is_queued


def test_a_command_that_does_not_answer_in_time_is_passed_over(
    programs: Path, run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def patient(argv: Sequence[str], _seconds: float, environ: Mapping[str, str]) -> ProgramOutput:
        """Only the one that never answers may be over its limit."""
        return ask(argv, limit_s(3 if argv[0] == "squeue" else 60), environ)

    monkeypatch.setattr(slurm_commands, "ask_program", patient)
    fake(programs, "squeue", "echo >>$0.log; exec sleep 60")
    fake(programs, "sacct", "echo COMPLETED")
    assert slurm.poll(run).state == "completed"
    assert slurm.poll(run).why == ""
    for number in "23":
        again = Run(run.path.with_name(number))
        again.path.mkdir()
        again.write_record(run.record)
    (programs / "squeue.log").unlink()
    slurm_commands.forget_silence()
    monkeypatch.setenv("HARNESS_RUNS", str(run.path.parents[2]))
    assert ls() == 0
    assert capsys.readouterr().out.count("completed") == 3
    assert (programs / "squeue.log").read_text() == "\n", "of many runs it is asked once"


def test_accounting_that_lags_behind_is_used_only_without_a_better_source(programs: Path, run: Run) -> None:
    """For seconds after the end of a job sacct still shows it as pending or running."""
    fake(programs, "sacct", "echo RUNNING")
    assert slurm.poll(run).state == "running"
    run.write_status(Status(state="completed", exit_code=0))
    assert slurm.poll(run).state == "completed"
    fake(programs, "scontrol", "echo 'JobId=4711 JobState=FAILED Reason=None'")
    assert slurm.poll(run).state == "failed"


def test_a_job_that_left_early_at_its_time_limit_is_a_timeout(programs: Path, run: Run) -> None:
    fake(programs, "sacct", "echo FAILED")
    run.write_status(Status(state="timeout", exit_code=143))
    assert slurm.poll(run).state == "timeout"


def test_without_slurm_commands_the_run_still_knows_itself(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run.write_status(Status(state="completed", exit_code=0))
    monkeypatch.setenv("PATH", "/nowhere")
    assert slurm.poll(run).state == "completed"
