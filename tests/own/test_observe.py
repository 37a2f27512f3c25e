"""`observe -- COMMAND` on this machine: the command runs as if it had been typed alone, whatever happens to us."""

from __future__ import annotations

import json
import os
import pty
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from own_trainings import SCRIPTS

from harness.cli.watch.of_job import of_job
from harness.cli.words import is_prefix
from harness.common.run_folder import job_folder
from harness.common.run_folder.run_files import METRICS, SAME_RANK
from harness.observe import same_rank
from harness.run import find_run
from tests.waiting import limit_s

REPOSITORY = Path(__file__).resolve().parents[2]
WORD = [sys.executable, "-I", "-m", "harness", "observe"]
TRAINING = [sys.executable, str(SCRIPTS / "one_process.py"), "--steps", "12"]


def environ(**more: str) -> dict[str, str]:
    outer = ("SLURM", "HARNESS", "SCRATCH", "PYTHONPATH", "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER")
    kept = {name: text for name, text in os.environ.items() if not name.startswith(outer)}
    return {**kept, "OMP_NUM_THREADS": "1", "COLUMNS": "80", **more}


def observed(
    folder: Path,
    *command: str,
    flags: tuple[str, ...] = ("--no-report",),
    env: Mapping[str, str] | None = None,
    before: Callable[[], object] | None = None,
) -> subprocess.CompletedProcess[str]:
    argv = [*WORD, *flags, "--", *command]
    return subprocess.run(
        argv,
        cwd=folder,
        env=env or environ(),
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=before,
        timeout=limit_s(300),
    )


def runs(folder: Path) -> list[Path]:
    return sorted((folder / "runs/own/profiler").glob("*"))


@pytest.mark.train
def test_a_training_becomes_a_run_and_its_answer_follows(tmp_path: Path) -> None:
    done = observed(tmp_path, *TRAINING, flags=())
    assert done.returncode == 0
    (run,) = runs(tmp_path)
    assert run.name == "one_process-here-1"
    assert json.loads((run / "status.json").read_text())["state"] == "completed"
    assert "here-1   observe -- " in done.stderr
    assert "\n  a step " in done.stderr, "the bar of the answer"
    assert done.stdout.startswith("12 steps"), "what the training prints stays alone"


@pytest.mark.train
def test_tasks_that_train_alone_are_told_in_the_log_and_by_status(tmp_path: Path) -> None:
    step = {"SLURM_JOB_ID": "11", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "2"}
    first, second = (observed(tmp_path, *TRAINING, env=environ(**step, SLURM_PROCID=task)) for task in "01")
    (said,) = re.findall("observer: (task 0 .* and task 1 .* are both rank 0: each trains alone, .*)", second.stderr)
    told = subprocess.run(
        [*WORD[:-1], "status", "11"],
        cwd=tmp_path,
        env=environ(),
        capture_output=True,
        text=True,
        check=True,
        timeout=limit_s(),
    )
    assert said in told.stdout and "observer:" not in first.stderr


HERE: dict[str, Any] = {"task": None}
SRUN = {"SLURM_PROCID": "1", "SLURM_LOCALID": "1"}
TORCHRUN = {**SRUN, "TORCHELASTIC_RUN_ID": "a", "LOCAL_RANK": "0"}


@pytest.mark.parametrize(
    ("environment", "first", "local", "said"),
    [
        (SRUN, {"task": 0}, 1, "RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID MASTER_ADDR=…"),
        ({**SRUN, "OMPI_COMM_WORLD_RANK": "1"}, {"task": 0}, 0, "set in each task RANK=$OMPI_COMM_WORLD_RANK"),
        (TORCHRUN, {"task": 0, "host": "node1"}, 0, "task 0 (pid 7 on node1) and task 1 "),
        (TORCHRUN, {"task": 0, "host": "node1"}, 0, "give torchrun --nnodes $SLURM_NNODES --node-rank $SLURM_NODEID"),
        ({**TORCHRUN, "ACCELERATE_MIXED_PRECISION": "no"}, {"task": 0}, 0, "give accelerate launch --num_machines"),
        ({}, HERE, 0, "put `observe --` before each, or call init_process_group in both"),
        (SRUN, {"task": 0, "met": True}, 1, "which saw one before the ranks had met"),
        ({}, {**HERE, "pid": os.getppid()}, 0, ""),
        ({}, {**HERE, "above": [os.getpid()]}, 0, ""),
    ],
)
def test_processes_that_are_the_same_rank_are_named_with_what_makes_them_one_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], first: Any, *, local: int, said: str
) -> None:
    from harness.observe import watch

    monkeypatch.setattr(os, "environ", environment)
    assert watch.rank_now()[2] == local
    metrics = METRICS.path(tmp_path, 0)
    metrics.parent.mkdir()
    metrics.write_text(json.dumps({**json.loads(same_rank.process_line()), "pid": 7, "above": [], **first}) + "\n")
    told = same_rank.told(tmp_path, 0, metrics, has_met="met" in first)
    assert said in told
    assert [path.read_text().strip() for path in SAME_RANK.paths(tmp_path)] == [told] * bool(
        said and "met" not in first
    )


@pytest.mark.train
@pytest.mark.long  # half a minute until it is sure
def test_a_training_that_is_stuck_is_ended_if_that_was_asked(tmp_path: Path) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    hangs = [*launcher, str(SCRIPTS / "hangs.py"), "--kind", "sleep", "--rank", "1"]
    done = observed(tmp_path, *hangs, flags=("--no-report", "--on-hang", "stop"))
    assert done.returncode == 1, "torchrun's own status after a request to end"
    (run,) = runs(tmp_path)
    assert json.loads((run / "status.json").read_text())["state"] == "stuck"


@pytest.mark.train
@pytest.mark.parametrize(("stops", "state"), [("false", "completed"), ("true", "stuck")])
def test_only_a_job_that_the_guard_ended_is_stuck(tmp_path: Path, stops: str, state: str) -> None:
    """Not one that was told as stuck and went on, as a rank computed for long."""
    trains = f"{' '.join(TRAINING)}; cd runs/own/profiler/*/live && echo '{{\"stops\": {stops}}}' >stuck.json"
    observed(tmp_path, "sh", "-c", trains, flags=("--no-report", "--on-hang", "stop"))
    (run,) = runs(tmp_path)
    assert json.loads((run / "status.json").read_text())["state"] == state


ENDINGS: dict[tuple[str, ...], int] = {
    **{("sh", "-c", f"exit {code}"): code for code in (0, 1, 77, 255)},
    **{("sh", "-c", f"kill -{number} $$"): -number for number in (9, 10, 11, 13, 15)},
    ("there-is-no-such-program",): 127,
    ("./plain.txt",): 126,
}


@pytest.mark.parametrize(("command", "code"), ENDINGS.items(), ids=map(" ".join, ENDINGS))
def test_the_word_ends_as_the_command_does(tmp_path: Path, command: tuple[str, ...], code: int) -> None:
    (tmp_path / "plain.txt").touch()
    assert observed(tmp_path, *command).returncode == code


COUNTS = """
import os, signal, sys, time
got = []
for name in ("TERM", "USR1", "INT", "HUP"):
    signal.signal(getattr(signal, "SIG" + name), lambda number, _: got.append(number))
print("ready", flush=True)
while not got:
    time.sleep(0.05)
time.sleep(1.5)
print(got, flush=True)
"""


@pytest.mark.parametrize("whole_group", [False, True], ids=["the first process", "the whole group"])
@pytest.mark.parametrize(
    "name", ["SIGTERM", *(pytest.param(each, marks=pytest.mark.long) for each in ("SIGUSR1", "SIGINT"))]
)
def test_the_command_hears_a_signal_once(tmp_path: Path, name: str, whole_group: bool) -> None:
    """Slurm signals all processes of a step, or only the first one: the command must get it once in either case."""
    argv = [*WORD, "--no-report", "--", sys.executable, "-c", COUNTS]
    pipe = subprocess.PIPE
    process = subprocess.Popen(argv, cwd=tmp_path, env=environ(), stdout=pipe, text=True, start_new_session=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    number = signal.Signals[name]
    (os.killpg if whole_group else os.kill)(process.pid, number)
    assert process.stdout.readline() == f"[{int(number)}]\n"
    assert process.wait(limit_s()) == 0


def test_ctrl_c_and_ctrl_z_of_a_terminal_reach_the_command_once(tmp_path: Path) -> None:
    main, other = pty.openpty()
    argv = [*WORD, "--no-report", "--", sys.executable, "-c", COUNTS]

    def lead() -> None:
        os.setsid()
        os.close(os.open(os.ttyname(0), os.O_RDWR))  # the first terminal that a leader opens is its own

    pipe = subprocess.PIPE
    process = subprocess.Popen(argv, cwd=tmp_path, env=environ(), stdin=other, stdout=pipe, text=True, preexec_fn=lead)  # noqa: PLW1509
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    os.write(main, b"\x03")
    assert process.stdout.readline() == "[2]\n"
    assert process.wait(limit_s()) == 0
    os.close(main)
    os.close(other)


def _no_file_grows() -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


@pytest.mark.parametrize(("file", "before"), [("other", _no_file_grows), ("runs", None)])
def test_where_nothing_can_be_recorded_that_is_said_once_and_the_command_runs(
    tmp_path: Path, file: str, before: Callable[[], object] | None
) -> None:
    """On a full disk (a limit of 0 bytes for each file), and where a file has the name of the runs' folder."""
    (tmp_path / file).touch()
    done = observed(tmp_path, "sh", "-c", "echo works; exit 5", env=environ(SCRATCH="/proc/nowhere"), before=before)
    assert (done.returncode, done.stdout) == (5, "works\n")
    assert done.stderr.count("observe: nothing is recorded, because") == 1


def test_what_runs_beside_may_be_killed(tmp_path: Path) -> None:
    """The monitor, and what only listens for signals: the command goes on to its end."""
    others = "for pid in $(cat /proc/$PPID/task/$PPID/children); do [ $pid = $$ ] || kill -9 $pid; done"
    done = observed(tmp_path, "sh", "-c", f"sleep 2; {others}; sleep 1; exit 6")
    assert done.returncode == 6


def test_a_job_that_is_observed_already_is_left_alone(tmp_path: Path) -> None:
    inner = [*WORD, "--no-report", "--", "sh", "-c", "exit 4"]
    done = observed(tmp_path, *inner)
    assert done.returncode == 4
    assert "this job is observed already" in done.stderr


@pytest.mark.long  # a training of its own for a rare nesting
@pytest.mark.train
def test_a_job_that_an_observed_one_submits_is_no_part_of_it(tmp_path: Path) -> None:
    """As sbatch does, it inherits all variables; here the job's number changes below the word."""
    inner = f"SLURM_JOB_ID=12 {' '.join(TRAINING)}"
    done = observed(tmp_path, "sh", "-c", inner, env=environ(SLURM_JOB_ID="11"))
    assert done.returncode == 0
    assert runs(tmp_path) == []
    assert done.stderr.count("observer:") == 0
    word = f"SLURM_JOB_ID=12 {' '.join([*WORD, '--no-report', '--', *TRAINING])}"
    observed(tmp_path, "sh", "-c", word, env=environ(SLURM_JOB_ID="11"))
    assert [run.name for run in runs(tmp_path)] == ["one_process-12"]


def test_one_variable_switches_it_off(tmp_path: Path) -> None:
    done = observed(tmp_path, "env", env=environ(HARNESS_OBSERVE="off"))
    assert done.stderr == ""
    assert "PYTHONPATH" not in done.stdout
    assert runs(tmp_path) == []


def test_the_environment_of_the_command_differs_only_by_what_it_needs(tmp_path: Path) -> None:
    plain = subprocess.run(
        ["env", "-0"], cwd=tmp_path, env=environ(), capture_output=True, text=True, check=True, timeout=limit_s()
    )
    done = observed(tmp_path, "env", "-0")
    more = set(done.stdout.split("\0")) - set(plain.stdout.split("\0"))
    assert {each.partition("=")[0] for each in more} == {"HARNESS_OBSERVE", "HARNESS_HEARTBEATS", "PYTHONPATH"}


def test_where_nothing_trains_nothing_is_kept(tmp_path: Path) -> None:
    done = observed(tmp_path, sys.executable, "-c", "print(1)")
    assert done.stdout == "1\n"
    assert not list(tmp_path.iterdir()), "no empty folder either"
    assert "nothing is kept" in done.stderr


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--profiler", "nsight", "--", "true"), "--profiler: got 'nsight', takes one of none, torch"),
        (("--profile", "torch", "--", "true"), "unknown flag --profile: did you mean --profiler?"),
        (
            ("--steps", "0", "--profiler", "torch", "--", "true"),
            "--steps: got '0', takes a whole number ≥ 1 and ≤ 10000",
        ),
        (("--steps", "3", "--", "true"), "--steps is for --profiler torch"),
        (("--memory", "--profiler", "torch", "--", "true"), "would each be in the other's record: drop one"),
        (("train.py",), "a command stands after --"),
        (("--",), "name a command after --"),
        ((), "name a command after --"),
    ],
)
def test_a_wrong_request_is_one_sentence_and_starts_nothing(
    tmp_path: Path, words: tuple[str, ...], sentence: str
) -> None:
    done = subprocess.run(
        [*WORD, *words], cwd=tmp_path, env=environ(), capture_output=True, text=True, check=False, timeout=limit_s()
    )
    assert done.returncode == 2
    assert sentence in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not list(tmp_path.iterdir())


STANDS_FOR = {  # a launcher: it starts what comes after its own flags
    **dict.fromkeys(("srun", "mpirun", "deepspeed"), 'while [[ $1 == -* ]]; do shift 2; done; exec "$@"'),
    "word/training-traces": 'echo typed "$@"; while [[ $1 != -- ]]; do shift; done; shift; exec "$@"',
    **dict.fromkeys(("torchrun", "accelerate", "python", "train.py"), "echo trained"),
    "scontrol": "echo node1",
}


def test_the_page_puts_the_word_where_the_training_is_and_it_runs_without_it(tmp_path: Path) -> None:
    page = (REPOSITORY / "docs/own.md").read_text(encoding="utf-8").split("## In the job")[1]
    lines = [
        line.replace("\\|", "|") for line in re.findall(r"^\| .+ \| `(.*training-traces.*)` \|$", page, re.MULTILINE)
    ]
    after = "\n".join(re.findall(r"^[ +](.*)$", page.split("```diff\n")[1].split("```")[0], re.MULTILINE))
    (tmp_path / "word").mkdir()
    for name, does in STANDS_FOR.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{does}\n")
        (tmp_path / name).chmod(0o755)
    for script, folder in [(after, "elsewhere"), *((each, "word") for each in (after, *lines))]:
        env = {"PATH": f"{tmp_path}:{tmp_path / folder}:/usr/bin:/bin", "SLURM_JOB_NODELIST": "node1"}
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            check=False,
            timeout=limit_s(),
        )
        assert (done.returncode, done.stderr, done.stdout.split()[-1]) == (0, "", "trained"), script
        assert is_prefix(done.stdout.split()[1:]) == (folder == "word"), script


def test_old_folders_in_the_nodes_memory_are_removed(join: Join) -> None:
    old = Path(f"/dev/shm/harness-{os.getuid()}-old-{os.getpid()}")
    young = old.with_name(f"{old.name}-young")
    for folder in (old, young):
        folder.mkdir()
    long_ago_s = time.time() - 2 * 86_400
    os.utime(old, (long_ago_s, long_ago_s))
    memory = join().memory
    assert memory is not None
    assert (old.exists(), young.exists()) == (False, True)
    young.rmdir()


Join = Callable[..., job_folder.JoinedProcess]


@pytest.fixture
def join(tmp_path: Path) -> Iterator[Join]:
    """Join a run as a process with these variables; what that leaves in the node's memory is removed."""
    made: list[job_folder.JoinedProcess] = []

    def joined(**variables: str) -> job_folder.JoinedProcess:
        made.append(job_folder.join({"HARNESS_RUNS": str(tmp_path), **variables}, "train.py", str(tmp_path)))
        return made[-1]

    yield joined
    for each in made:
        assert each.memory is not None
        shutil.rmtree(each.memory, ignore_errors=True)


def test_the_tasks_of_a_step_share_a_run_and_the_next_step_has_its_own(tmp_path: Path, join: Join) -> None:
    job = {"SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "0"}
    tasks = [join(**job, SLURM_PROCID=str(task)) for task in range(4)]
    assert {each.path for each in tasks} == {tmp_path / "own/profiler/train-4711"}
    assert [each.first for each in tasks] == [True, False, False, False]
    again = join(**job, SLURM_PROCID="2")
    assert again.path.name == "train-4711-1", "a second training of the same step"
    assert again.first
    third = join(**{**job, "SLURM_STEP_ID": "1"}, SLURM_PROCID="0")
    assert third.path.name == "train-4711-2"


@pytest.mark.parametrize(
    ("ends", "lines"),
    [
        (
            (("completed", 0), ("failed", 7)),
            [
                "4711   failed: 1 of 2 trainings in this job",
                "train-4711-1: failed, exit 7: REPORT-1",
                "train-4711: completed: REPORT",
            ],
        ),
        (
            (("completed", 0), ("", 1)),
            [
                "4711   failed: 1 of 2 trainings in this job",
                "train-4711-1: failed, exit 1, before anything trained",
                "train-4711: completed: REPORT",
            ],
        ),
        (
            (("", 0), ("cancelled", 143), ("completed", 0)),
            [
                "4711   cancelled: 1 of 2 trainings in this job",
                "train-4711: cancelled, exit 143: REPORT",
                "train-4711-1: completed: REPORT-1",
            ],
        ),
        (
            (("", 1), ("completed", 0)),  # found by the job's id all the same
            [
                "4711   failed: 1 of 2 trainings in this job",
                "train-4711: failed, exit 1, before anything trained",
                "train-4711-1: completed: REPORT-1",
            ],
        ),
        ((("failed", 7),), []),
    ],
)
def test_a_job_is_as_its_worst_training(
    tmp_path: Path, join: Join, monkeypatch: pytest.MonkeyPatch, ends: tuple[tuple[str, int], ...], lines: list[str]
) -> None:
    """ends: of each training its state, empty if nothing trained, and its exit status."""
    monkeypatch.setenv("HARNESS_RUNS", str(tmp_path))
    job = {"SLURM_JOB_ID": "4711"}
    for state, code in ends:
        joined = join(SLURM_JOB_ID="4711")
        job_folder.write_run(joined, job_folder.RunRequest(["train.py"], ["train.py"], "/"), job, {})
        job_folder.write_end(joined, state, code)
        if not state:
            job_folder.withdraw(joined, job | {"HARNESS_RUNS": str(tmp_path)}, code)
    told = "\n".join(of_job(find_run("4711"), "4711")).replace("bash slurm.sh report 4711", "REPORT")
    assert [line.strip() for line in told.splitlines()] == [*lines]
    assert of_job(find_run("last"), "last") == []


def test_the_ranks_of_one_launcher_share_a_run_and_a_restart_stays_in_it(tmp_path: Path, join: Join) -> None:
    ranks = {"MASTER_ADDR": "here", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "a"}
    first = [join(**ranks, RANK=str(rank)) for rank in (1, 0)]
    again = join(**ranks, RANK="0", TORCHELASTIC_RESTART_COUNT="1")
    assert {each.path.name for each in (*first, again)} == {"train-here-1"}
    assert join(**ranks, RANK="0").path.name == "train-here-2", "the launcher was started again"


def test_many_tasks_at_once_agree_on_one_folder(tmp_path: Path) -> None:
    text = (
        "import os, sys; from harness.common.run_folder import job_folder as j; "
        "joined = j.join(dict(os.environ), 'train.py', '.'); print(joined.path, joined.first, joined.memory)"
    )
    job = {"HARNESS_RUNS": str(tmp_path), "SLURM_JOB_ID": "9", "SLURM_STEP_ID": "0", "PYTHONPATH": str(REPOSITORY)}
    argv = [sys.executable, "-c", text]
    started = [
        subprocess.Popen(argv, env=environ(**job, SLURM_PROCID=str(task)), stdout=subprocess.PIPE, text=True)
        for task in range(24)
    ]
    said = [each.communicate(timeout=limit_s())[0].split() for each in started]
    for _, _, memory in said:
        shutil.rmtree(memory, ignore_errors=True)
    assert {path for path, _, _ in said} == {str(tmp_path / "own/profiler/train-9")}
    assert [first for _, first, _ in said].count("True") == 1
