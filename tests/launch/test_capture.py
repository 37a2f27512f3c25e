"""`slurm.sh capture` asks a training that runs, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from harness.cli.main import main
from harness.common.run_folder.captures import (
    CaptureRequest,
    answer_file,
    folder_of,
    given_up_file,
    read_request,
    stop_file,
)
from harness.launch.backends.protocol import PolledState
from harness.run import Run
from harness.run.record import FINAL, State, Status
from tests.launch.launch_shared import ROOT, a_run
from tests.launch.own_shared import process
from tests.waiting import wait_until


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return a_run(tmp_path, "local-1")


@pytest.fixture
def running_by_a_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.cli.watch.capture.look_at", lambda run: PolledState("running"))


def capture(run: Run, *words: str) -> int:
    return main(["capture", *words[:1], str(run.path), *words[1:]])


def rank_0_writes(run: Run, number: int, after: Path | None = None) -> threading.Thread:
    """What a training of one rank does when it is asked, or after a file is there."""

    def write() -> None:
        wait_until(lambda: read_request(run.path) and (after is None or after.exists()), "the request")
        folder_of(run.path, number).mkdir()
        (folder_of(run.path, number) / "rank0.json.gz").touch()

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    return thread


@pytest.mark.usefixtures("running_by_a_stand_in")
def test_it_asks_and_waits_for_every_ranks_trace(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    rank_0_writes(run, 1)
    assert capture(run, "start", "--steps", "7") == 0
    assert read_request(run.path) == CaptureRequest(1, 7)
    folder = folder_of(run.path, 1)
    assert capsys.readouterr().out == f"recorded: {folder}\nnext: bash slurm.sh report {folder}\n"
    assert capture(run, "stop") == 2
    assert "no recording of local-1 is in progress" in capsys.readouterr().err


@pytest.mark.usefixtures("running_by_a_stand_in")
def test_one_recording_at_a_time_and_stop_ends_it(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert capture(run, "start", "--wait-s", "0") == 1
    assert "0 of 1 ranks have written theirs after 0 s" in capsys.readouterr().err
    assert capture(run, "start") == 2
    assert "recording 1 of local-1 is not complete: wait, or bash slurm.sh capture stop" in capsys.readouterr().err
    rank_0_writes(run, 1, after=stop_file(run.path, 1))
    assert capture(run, "stop") == 0


@pytest.mark.parametrize("state", sorted(FINAL))
def test_what_has_ended_cannot_be_recorded(run: Run, state: State, capsys: pytest.CaptureFixture[str]) -> None:
    run.write_status(Status(state=state))
    assert capture(run, "start") == 2
    assert f"only a running training can be recorded; the state of local-1 is {state}" in capsys.readouterr().err
    assert not (run.path / "captures").exists()


def of_nsys(run: Run, **asked: object) -> Run:
    """The run as nsys records it on two nodes."""
    job = run.record.job | {"profiler": "nsys", "expects": [f"nsys/profile_node{n}.nsys-rep" for n in (0, 1)]}
    experiment = run.record.experiment.model_copy(update=asked)
    run.write_record(run.record.model_copy(update={"job": job, "experiment": experiment}))
    return Run(run.path)


@pytest.mark.usefixtures("running_by_a_stand_in")
@pytest.mark.parametrize("written", [0, 1])
def test_what_may_keep_nsys_from_recording_is_said(run: Run, written: int, capsys: pytest.CaptureFixture[str]) -> None:
    run = of_nsys(run)
    assert capture(run, "start", "--wait-s", "0") == 1
    assert read_request(run.path) == CaptureRequest(1, 5, reports=2)
    for node in range(written):
        answer_file(run.path, 1, f"profile_node{node}", "done").touch()
    capsys.readouterr()
    assert capture(run, "stop", "--wait-s", "0") == 1
    said = capsys.readouterr().err
    assert f"{written} of 2 nodes have written theirs after 0 s: later" in said and "an nsys begins when" in said
    given_up_file(run.path, 1).touch()
    assert capture(run, "stop") == 2, "it was taken back"


@pytest.mark.usefixtures("running_by_a_stand_in")
def test_the_next_recording_is_asked_for_when_every_nsys_has_written_its_report(run: Run) -> None:
    run = of_nsys(run)
    for number in (1, 2):
        assert capture(run, "start", "--wait-s", "0") == 1
        assert read_request(run.path) == CaptureRequest(number, 5, reports=2)
        for node in (0, 1):
            answer_file(run.path, number, f"profile_node{node}", "done").touch()


@pytest.mark.usefixtures("running_by_a_stand_in")
@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (
            {"capture_duration": 3},
            "start the run without --capture-delay and --capture-duration, or with --profiler torch",
        ),
        ({"nsys_per": "rank"}, "start the run with --nsys-per node, or with --profiler torch"),
    ],
)
def test_an_nsys_that_records_only_once_is_refused(
    run: Run, asked: dict[str, object], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert capture(of_nsys(run, **asked), "start") == 2
    assert said in capsys.readouterr().err


@pytest.mark.train
@pytest.mark.long
def test_a_training_of_two_ranks_is_recorded_while_it_runs(tmp_path: Path) -> None:
    here = {"HARNESS_RUNS": str(tmp_path / "runs"), "CUDA_VISIBLE_DEVICES": ""}
    words = ["-e", "1", "-g", "2", "--site", "local", "--steps", "5000", "--no-profile"]  # follows the run to its end
    argv = [sys.executable, "-m", "harness", *words]
    with subprocess.Popen(argv, cwd=ROOT, env=os.environ | here, stdout=subprocess.DEVNULL) as launch:
        try:
            metrics = "runs/*/profiler/*/metrics/rank0.jsonl"
            wait_until(lambda: [*tmp_path.glob(metrics)] or launch.poll() is not None, "the first metrics")
            done = process(ROOT, "capture", "start", "last", "--steps", "3", **here)
            assert done.returncode == 0, done.stderr
            report = process(ROOT, "report", done.stdout.split()[1], "--json", **here)
            assert '"ranks": 2' in " ".join(report.stdout.split()), report.stderr
        finally:
            process(ROOT, "cancel", "last", **here)
