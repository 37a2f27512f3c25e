"""A run is never overwritten, never lost, and found by its id, name or path; how it ended is written and said."""

from __future__ import annotations

import json
import os
import signal
import site
import subprocess
import sys
import venv
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from harness.cli.main import main
from harness.common.errors import RequestError, WorkError
from harness.common.run_folder.run_files import METRICS
from harness.experiment.exercises import OwnTraining
from harness.launch.backends import local
from harness.launch.backends.protocol import PolledState
from harness.launch.on_node import supervise as outcome
from harness.launch.poll import look_at
from harness.run import Run, Stage, all_runs, claim_local_id, find_run, release_local_id, write_atomically
from harness.run.ended import not_injected, what_is_open, what_it_means, why_it_wrote_no_more
from harness.run.find import claim_folder
from harness.run.record import NodeStatus, State, Status
from tests.launch.launch_shared import ROOT, Harness, a_run
from tests.waiting import limit_s, wait_until


def test_a_run_is_found_by_id_name_path_and_last(tmp_path: Path) -> None:
    first, second = a_run(tmp_path, "local-1"), a_run(tmp_path, "local-2")
    for token in ("local-1", first.name, str(first.path), str(first.path / "run.json")):
        assert find_run(token, tmp_path).path == first.path
    assert find_run("last", tmp_path).path == second.path
    with pytest.raises(RequestError, match=r"did you mean local-[12]\?"):
        find_run("local-3", tmp_path)
    for typo in ("lsat", "LAST", "lats"):
        with pytest.raises(RequestError, match=rf"no run '{typo}': did you mean last\? \(slurm.sh ls lists all"):
            find_run(typo, tmp_path)


def test_a_run_is_never_overwritten(tmp_path: Path) -> None:
    run = a_run(tmp_path, "7")
    before = (run.path / "run.json").read_text()
    with pytest.raises(WorkError, match="nothing was overwritten"):
        a_run(tmp_path, "7")
    assert (run.path / "run.json").read_text() == before
    assert len(all_runs(tmp_path)) == 1


def test_what_is_not_published_leaves_no_trace(tmp_path: Path) -> None:
    with pytest.raises(KeyError), Stage(tmp_path / "runs" / "exercise_1_DDP") as stage:
        (stage.path / "job.sbatch").write_text("half")
        raise KeyError
    assert list(tmp_path.iterdir()) == []


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


@contextmanager
def disk_of(kilobytes: int, folder: Path) -> Iterator[Path]:
    """A file system of a size in kilobytes."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "none", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False, timeout=limit_s()).returncode:
        pytest.skip("a small file system can only be mounted by root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True, timeout=limit_s())


def test_a_full_disk_is_one_sentence_and_leaves_nothing(tmp_path: Path, harness: Harness) -> None:
    with disk_of(16, tmp_path / "disk") as disk:
        done = harness("-e", "1", HARNESS_RUNS=str(disk))
        assert done.returncode == 1
        assert "no space left on this disk" in done.stderr
        assert "Traceback" not in done.stderr
        assert list(disk.iterdir()) == []


def test_the_jobs_python_is_the_one_of_the_environment_we_run_in(tmp_path: Path) -> None:
    """The folder depends on HARNESS_VENV."""
    venv.create(tmp_path / "el se", symlinks=True, with_pip=False)
    wrapper = tmp_path / "el se" / "harness-python"
    wrapper.touch()
    code = "from harness.launch.submit import this_machine; print(this_machine().python)"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *site.getsitepackages()])}
    argv = [str(tmp_path / "el se" / "bin" / "python"), "-c", code]
    said = subprocess.run(argv, env=env, capture_output=True, text=True, check=True, timeout=limit_s()).stdout
    assert said.strip() == str(wrapper)


def kept_by(run: Run, pid: int) -> None:
    """The files that submitit writes when it starts the controller `pid`."""
    run.controller_dir.mkdir(parents=True)
    (run.controller_dir / f"{pid}_submitted.pkl").touch()


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


def test_a_time_limit_without_a_warning_ends_a_local_run_as_a_timeout(harness_process: Harness, tmp_path: Path) -> None:
    described = yaml.safe_load((ROOT / "configs/sites/local.yaml").read_text(encoding="utf-8"))
    path = tmp_path / "unwarned.yaml"
    path.write_text(yaml.safe_dump(described | {"signal_seconds": 0}), encoding="utf-8")
    minutes, seconds = divmod(round(limit_s(6)), 60)  # submitit must have started, which takes it a second
    limit = f"0:{minutes:02}:{seconds:02}"
    done = harness_process("run", "-g", "1", "--site", str(path), "--time", limit, "--", "sleep", "600")
    assert done.returncode == 1
    assert "timeout: " in done.stderr, done.stderr


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


def with_end_line(run: Run, status: str) -> Run:
    """The run with what its rank last wrote of itself."""
    (run.path / "metrics").mkdir()
    lines = ['{"event": "start"}', json.dumps({"event": "end", "status": status}), '{"st']
    (run.path / "metrics" / "rank0.jsonl").write_text("\n".join(lines[: 2 if status else 3]))
    return run


@pytest.mark.parametrize(
    ("codes", "shell", "reason", "expects", "last", "state", "exit_code"),
    [
        ([143, 7], 143, "", [], None, "failed", 7),  # the training's own status counts
        ([139, 1], 139, "", [], None, "failed", 139),  # the neighbour loses its connection, and fails a moment later
        ([0], 0, "", [], None, "completed", 0),
        ([0, None], 0, "", [], None, "failed", 1),  # of two nodes one could not write its status
        ([143], 143, "timeout", [], None, "timeout", 143),
        ([143], 143, "cancelled", [], None, "cancelled", 143),
        ([0], 0, "timeout", [], None, "completed", 0),  # the warning came after the end
        ([0], 0, "timeout", ["torch/rank0.json.gz"], None, "timeout", 0),
        ([0], 0, "cancelled", [], "stopped", "cancelled", 143),  # nsys ends with 0 when it is asked to end
        ([0], 0, "cancelled", [], "completed", "completed", 0),
        ([0], 0, "cancelled", [], "", "completed", 0),
    ],
)
def test_how_a_run_ended(
    tmp_path: Path, *, codes: list[int | None], shell: int, reason: str, expects: list[str], last: str | None,
    state: str, exit_code: int,
) -> None:  # fmt: skip
    run = with_nodes(a_run(tmp_path, "1", expects, nodes=len(codes)), *codes)
    if last is not None:
        with_end_line(run, last)
    (run.path / "node-status" / "1a.json").write_text("{}")  # an editor's
    assert outcome.record_end(run, shell, reason) == exit_code
    status = run.status()
    assert status is not None and (status.state, status.exit_code) == (state, exit_code)
    assert [n.exit for n in run.record.nodes] == [code for code in codes if code is not None]


def test_what_a_completed_run_left_open_is_said(tmp_path: Path) -> None:
    run = a_run(tmp_path, "1")
    asked = OwnTraining(command=("short.py",), start_in="/", faults=("data-stall,ms=5", "slow-checkpoint,ms=5"))
    run.write_record(run.record.model_copy(update={"experiment": asked}))
    (run.path / "metrics").mkdir()
    METRICS.path(run.path, 0).write_text('{"event": "step"}\n' * 4)
    assert not_injected(Run(run.path)) == (
        "nothing was injected by --fault data-stall,ms=5: no step of this training has its moment; "
        "nothing was injected by --fault slow-checkpoint,ms=5: this training has no file of that kind"
    )
    said = "nothing was profiled: it took 4 steps, and the profiled ones are 8 to 17: "
    assert what_is_open(Run(run.path)).startswith(said)


def test_missing_and_empty_reports_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = with_nodes(a_run(tmp_path, "1", [f"torch/rank{rank}.json.gz" for rank in range(3)]), 0)
    (run.path / "torch").mkdir()
    (run.path / "torch" / "rank0.json.gz").write_bytes(b"x")
    (run.path / "torch" / "rank1.json.gz").write_bytes(b"")
    assert outcome.record_end(run, 0, "") == 0
    said = capsys.readouterr().err
    assert [f"rank{rank}.json.gz" in said for rank in range(3)] == [False, True, True]


@pytest.mark.parametrize(
    ("container", "delay", "said"),
    [
        ([], None, "missed the profiled steps"),
        (["singularity"], None, "site's container.binds"),
        ([], 200, "before the 200 s of --capture-delay"),
    ],
)
def test_a_run_that_went_well_without_a_report_of_nsys_says_why_that_probably_is(
    tmp_path: Path, harness: Harness, container: list[str], delay: int | None, said: str
) -> None:
    run = with_nodes(a_run(tmp_path / "runs", "local-1", ["nsys/profile_node0.nsys-rep"]), 0)
    asked = run.record.experiment.model_copy(update={"capture_delay": delay})
    job = run.record.job | {"container": container}
    run.write_record(run.record.model_copy(update={"job": job, "experiment": asked}))
    assert outcome.record_end(run, 0, "") == 0
    reason = json.loads(harness("status", "--json").stdout)["reason"]
    assert reason.startswith("nsys recorded nothing") and said in reason
    assert reason in harness("status").stdout


def test_ls_and_status_show_a_run_whose_process_is_gone(tmp_path: Path, harness: Harness) -> None:
    run = a_run(tmp_path / "runs", "local-1")
    outcome.record_start(run)
    status = run.status()
    assert status is not None
    run.write_status(status.model_copy(update={"pid": os.getpid()}))  # a live process, not the script of this run
    assert "unknown" in harness("ls").stdout
    assert json.loads(harness("status", "--json").stdout)["state"] == "unknown"
    assert harness("cancel").returncode == 1


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


def test_a_run_on_a_full_disk_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = a_run(tmp_path, "local-1")
    run.write_status(Status(state="running", pid=1))
    assert why_it_wrote_no_more(run) == ""
    no_blocks = os.statvfs_result((4096, 4096, 100, 0, 0, 9, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _path: no_blocks)
    monkeypatch.setattr(local, "poll", lambda _run: PolledState("failed"))
    assert "is full; free some space" in look_at(run).why
    run.write_status(Status(state="failed", exit_code=7))
    assert look_at(run).why == "", "it could write how it ended"


@pytest.mark.parametrize("damage", ["cut", "deleted", "folder"])
def test_a_damaged_status_does_not_make_a_completed_run_a_failed_one(
    tmp_path: Path, harness: Harness, damage: str
) -> None:
    run = with_nodes(a_run(tmp_path / "runs", "local-1"), 0)
    outcome.record_end(run, 0, "")
    path = run.path / "status.json"
    half = path.read_text()[:9]
    path.unlink()
    if damage == "cut":
        path.write_text(half)
    elif damage == "folder":
        path.mkdir()
    assert harness("status").stdout.startswith("local-1  completed, exit 0")


def test_a_run_whose_record_is_lost_is_said_to_be_one(tmp_path: Path, harness: Harness) -> None:
    run = with_end_line(a_run(tmp_path / "runs", "local-1"), "")
    run.record_file.unlink()
    for command in ("status", "logs", "cancel", "run"):
        done = harness(command, str(run.path))
        assert (done.returncode, done.stdout, "its run.json is lost" in done.stderr) == (1, "", True)


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
