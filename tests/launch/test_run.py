"""A run is never overwritten, never lost, and found by its id, name or path; how it ended is written and said."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from harness.cli.main import main
from harness.common.errors import RequestError, WorkError
from harness.common.run_folder.run_files import HEARTBEATS, METRICS
from harness.experiment.ddp import DDP
from harness.experiment.exercises import OwnTraining
from harness.launch.backends import local
from harness.launch.on_node import supervise as outcome
from harness.run import Run, Stage, all_runs, claim_local_id, find_run, release_local_id, write_atomically
from harness.run.ended import not_injected, what_is_open, what_it_means, why_it_ended
from harness.run.find import claim_folder
from harness.run.record import NodeStatus, State, Status
from tests.launch.launch_shared import Harness, a_run, kept_by
from tests.waiting import limit_s, wait_until


def test_a_run_is_found_by_id_name_path_and_last(tmp_path: Path) -> None:
    first, second = a_run(tmp_path, "local-1"), a_run(tmp_path, "local-2")
    tokens = ("local-1", first.name, str(first.path), str(first.path / "run.json"), "last")
    assert [find_run(token, tmp_path).path for token in tokens] == [first.path] * 4 + [second.path]
    with pytest.raises(RequestError, match=r"did you mean local-[12]\?"):
        find_run("local-3", tmp_path)
    for typo in ("lsat", "LAST", "lats"):
        with pytest.raises(RequestError, match=rf"no run '{typo}': did you mean last\? \(bash slurm.sh ls lists all"):
            find_run(typo, tmp_path)


def test_a_run_is_never_overwritten_and_what_is_not_published_leaves_no_trace(tmp_path: Path) -> None:
    with pytest.raises(KeyError), Stage(tmp_path / "runs" / "exercise_1_DDP") as stage:
        (stage.path / "job.sbatch").write_text("half")
        raise KeyError
    assert list(tmp_path.iterdir()) == []
    before = a_run(tmp_path, "7").record_file.read_text()
    with pytest.raises(WorkError, match="nothing was overwritten"):
        a_run(tmp_path, "7")
    assert [run.record_file.read_text() for run in all_runs(tmp_path)] == [before]


def test_a_name_of_several_runs_is_refused_with_all_their_paths(tmp_path: Path) -> None:
    first, second = a_run(tmp_path, "local-1"), a_run(tmp_path, "local-1-again")
    second.write_record(second.record.model_copy(update={"job_id": "local-1"}))
    with pytest.raises(RequestError, match=rf"'local-1' names 2 runs: .* one of {first.path}, {second.path}$"):
        find_run("local-1", tmp_path)


@pytest.fixture
def kit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a checkout's runs, which another project's commands do not name."""
    monkeypatch.delenv("HARNESS_RUNS", raising=False)
    monkeypatch.setattr("harness.run.files.ROOT", tmp_path / "kit")
    return tmp_path / "kit" / "exercises"


def test_runs_of_the_kit_and_of_every_project_have_different_ids(tmp_path: Path, kit: Path) -> None:
    projects = [tmp_path / name / "runs" for name in ("a", "b")]
    with ThreadPoolExecutor(9) as several:
        found = list(several.map(claim_local_id, [kit, *projects] * 9))
    assert len({job_id for job_id, _ in found}) == 27
    assert {folder.parents[1] for _, folder in found} == {kit, *projects}
    assert len({claim_folder(root, "7")[0] for root in (kit, *projects)}) == 3
    release_local_id(found[0][1])
    assert not found[0][1].exists(), "a number that is given back leaves nothing"


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    target = tmp_path / "run.json"
    write_atomically(target, "old")
    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(WorkError, match="no space left"):
        write_atomically(target, "new")
    assert target.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["run.json"]


def test_a_run_without_a_status_is_queued_while_its_process_lives(tmp_path: Path) -> None:
    run = a_run(tmp_path, "local-1")
    assert local.poll(run).state == "queued", "its controller is being started"
    keeper = subprocess.Popen(["sleep", "60", "/a/link/to/.local/1"], stderr=subprocess.DEVNULL)
    keeper.terminate()
    keeper.wait(timeout=limit_s())
    kept_by(run, keeper.pid)
    assert local.poll(run).state == "failed"
    log = run.controller_dir / f"{keeper.pid}_0_log.err"
    log.write_text("submitit INFO - Loading pickle\nOSError: [Errno 28] No space left on device\n")
    assert local.poll(run).why.endswith(": OSError: [Errno 28] No space left on device")
    outcome.record_start(run)
    assert local.poll(run).state == "failed", "neither its script nor its controller lives"
    run.write_record(run.record.model_copy(update={"submit_host": "elsewhere"}))
    assert local.poll(run).state == "unknown", "its processes are on another machine"


def test_a_run_whose_controller_lives_can_be_stopped_before_its_first_status(tmp_path: Path) -> None:
    run = a_run(tmp_path, "local-1")
    keeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", "/x/.local/1"])
    kept_by(run, keeper.pid)
    assert local.poll(run).state == "queued"
    local.cancel(run)
    assert keeper.wait(timeout=limit_s(30)) == -signal.SIGTERM


def test_what_is_asked_before_the_supervisor_runs_waits_for_it(tmp_path: Path) -> None:
    heard = "signal.signal(signal.SIGUSR1, lambda *_: sys.exit(7)); signal.pthread_sigmask(signal.SIG_UNBLOCK, [10])"
    script = tmp_path / "script"
    script.write_text(
        "touch begun; until [ -e asked ]; do sleep 0.05; done\n"
        f'exec {sys.executable} -c "import signal, sys; {heard}; signal.pause()"\n'
    )
    program = f"from harness.launch.backends import local; sys.exit(local.run_and_pass_signals(['{script}'], {{}}))"
    backend = subprocess.Popen([sys.executable, "-c", f"import sys; {program}"], cwd=tmp_path)
    wait_until((tmp_path / "begun").exists, "the script")
    backend.send_signal(signal.SIGUSR1)
    (tmp_path / "asked").touch()
    assert backend.wait(limit_s(30)) == 7


# --- how it ended ---------------------------------------------------------------------------------------------------


def with_nodes(run: Run, *codes: int | None) -> Run:
    """The run with the files of its nodes, which ended so one after the other; None: the disk was full."""
    (run.path / "node-status").mkdir()
    for number, code in enumerate(codes):
        node = NodeStatus(node=number, host=f"node{number}", exit=code, started_ns=1, ended_ns=number + 2)
        text = "" if code is None else node.model_dump_json()
        (run.path / "node-status" / f"{number}.json").write_text(text)
    return run


@pytest.mark.parametrize(
    ("codes", "shell", "reason", "expects", "state", "exit_code"),
    [
        ([143, 7], 143, "", [], "failed", 7),  # the training's own status counts
        ([139, 1], 139, "", [], "failed", 139),  # the neighbour loses its connection, and fails a moment later
        ([0], 0, "", [], "completed", 0),
        ([0, None], 0, "", [], "failed", 1),  # of two nodes one could not write its status
        ([143], 143, "timeout", [], "timeout", 143),
        ([143], 143, "cancelled", [], "cancelled", 143),
        ([0], 0, "timeout", [], "completed", 0),  # the warning came after the end
        ([0], 0, "timeout", ["torch/rank0.json.gz"], "timeout", 143),
    ],
)
def test_how_a_run_ended(
    tmp_path: Path, *, codes: list[int | None], shell: int, reason: str, expects: list[str], state: str, exit_code: int
) -> None:  # fmt: skip
    run = with_nodes(a_run(tmp_path, "1", expects, nodes=len(codes)), *codes)
    (run.path / "node-status" / "1a.json").write_text("{}")  # an editor's
    assert outcome.record_end(run, shell, reason) == exit_code
    status = run.status()
    assert status is not None and (status.state, status.exit_code) == (state, exit_code)
    assert [n.exit for n in run.record.nodes] == [code for code in codes if code is not None]
    (run.path / "status.json").write_text('{"state"')
    assert (kept := Run(run.path).status()) is not None and kept.state == state, "the record has the end too"


def test_what_a_completed_run_left_open_is_said(tmp_path: Path) -> None:
    asked = OwnTraining(command=("short.py",), start_in="/", faults=("data-stall,ms=5", "slow-checkpoint,ms=5"))
    run = a_run(tmp_path, "1", asked=asked)
    (run.path / "metrics").mkdir()
    METRICS.path(run.path, 0).write_text('{"event": "step"}\n' * 4)
    assert not_injected(Run(run.path)) == (
        "nothing was injected by --fault data-stall,ms=5: no step of this training has its moment; "
        "nothing was injected by --fault slow-checkpoint,ms=5: this training has no file of that kind"
    )
    said = "nothing was profiled: it took 4 steps, and the profiled ones are 8 to 17: "
    assert what_is_open(Run(run.path)).startswith(said)


OWN = OwnTraining(command=("train.py",), start_in="/")
MESSAGE = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 16.00 GiB of which 1.00 GiB is free."
    " Of the allocated memory 14.00 GiB is allocated by PyTorch, and 100.00 MiB is reserved by PyTorch but unallocated."
)


@pytest.mark.parametrize(
    ("asked", "grows_by", "change"),
    [
        (OWN, 0, "; a smaller batch needs less"),
        (OWN, 10**9, "; the same command with --memory shows what keeps it"),
        (DDP(exercise=1), 10**9, "; the same command with --memory-snapshot shows what keeps it"),
        (
            DDP(exercise=1, steps=7),
            0,
            " --plan -- --steps 7 shows what it needs, and if that is too much the nearest setting that fits",
        ),
    ],
)
def test_after_memory_ran_out_the_change_is_named(
    tmp_path: Path, asked: OwnTraining | DDP, grows_by: int, change: str
) -> None:
    run = a_run(tmp_path, "1", asked=asked)
    error = {"type": "OutOfMemoryError", "message": MESSAGE, "unix_ns": 1}
    for file, lines in (
        (HEARTBEATS.path(run.path, "n1"), [{"event": "gone", "rank": 0, "step": 9, "error": error}]),
        (METRICS.path(run.path, 0), [{"step": at, "device_memory_bytes": at * grows_by} for at in range(9)]),
    ):
        file.parent.mkdir(exist_ok=True)
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    why = why_it_ended(run, "failed", 1)
    assert why.startswith(
        "rank 0 failed first, in step 9: OutOfMemoryError: it asked for 2.15 GB on its GPU; of 17.2 GB"
    )
    assert why.endswith(change)


def test_missing_and_empty_reports_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = with_nodes(a_run(tmp_path, "1", [f"torch/rank{rank}.json.gz" for rank in range(3)]), 0)
    (run.path / "torch").mkdir()
    (run.path / "torch" / "rank0.json.gz").write_bytes(b"x")
    (run.path / "torch" / "rank1.json.gz").write_bytes(b"")
    assert outcome.record_end(run, 0, "") == 0
    said = capsys.readouterr().err
    assert [f"rank{rank}.json.gz" in said for rank in range(3)] == [False, True, True]


@pytest.mark.parametrize(
    ("container", "said"), [([], "missed the profiled steps"), (["singularity"], "site's container.binds")]
)
def test_a_run_that_went_well_without_a_report_of_nsys_says_why_that_probably_is(
    tmp_path: Path, harness: Harness, container: list[str], said: str
) -> None:
    run = with_nodes(a_run(tmp_path / "runs", "local-1", ["nsys/profile_node0.nsys-rep"]), 0)
    run.write_record(run.record.model_copy(update={"job": run.record.job | {"container": container}}))
    assert outcome.record_end(run, 0, "") == 0
    reason = json.loads(harness("status", "--json").stdout)["reason"]
    assert reason.startswith("nsys recorded nothing") and said in reason
    assert reason in harness("status").stdout


@pytest.mark.parametrize(
    ("code", "meaning"),
    [
        *(
            (128 + signal.Signals[f"SIG{name}"], f": ended by the signal {name}; ")
            for name in ("KILL", "SEGV", "BUS", "TERM")
        ),
        (127, ": a program was not found"),
        *((code, "") for code in (None, 0, 1, 7, 128, 255, 300)),
    ],
)
def test_a_status_that_a_shell_gave_a_meaning_to_is_told(code: int | None, meaning: str) -> None:
    said = what_it_means(code)
    assert said.startswith(f"exit {code}{meaning}") if meaning else said == ""


@pytest.mark.parametrize(
    ("state", "said"),
    [("completed", "is completed, and its logs are missing"), ("queued", "has not printed anything yet")],
)
def test_no_logs_are_explained_by_the_runs_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], state: State, said: str
) -> None:
    monkeypatch.setenv("HARNESS_RUNS", str(tmp_path))
    a_run(tmp_path, "local-1").write_status(Status(state=state))
    assert main(["logs", "local-1"]) == 0
    assert said in capsys.readouterr().err
