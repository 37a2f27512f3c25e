"""`slurm.sh capture` asks a training that runs, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Literal

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
from tests.waiting import limit_s, wait_until


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
    assert capsys.readouterr().out == f"recorded: {folder}\nnext: slurm.sh report {folder}\n"
    assert capture(run, "stop") == 2
    assert "no recording of local-1 is in progress" in capsys.readouterr().err


@pytest.mark.usefixtures("running_by_a_stand_in")
def test_one_recording_at_a_time_and_stop_ends_it(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert capture(run, "start", "--wait-s", "0") == 1
    assert "0 of 1 ranks have written theirs after 0 s" in capsys.readouterr().err
    assert capture(run, "start") == 2
    assert "recording 1 of local-1 is not complete: wait, or slurm.sh capture stop" in capsys.readouterr().err
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


def nsys_says(run: Run, number: int, node: int, what: Literal["busy", "ready", "done"], text: str = "") -> None:
    answer_file(run.path, number, f"profile_node{node}", what).write_text(text)


@pytest.mark.usefixtures("running_by_a_stand_in")
def test_what_keeps_nsys_from_recording_is_said(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run = of_nsys(run)

    def said(*words: str) -> str:
        assert capture(run, *words, "--wait-s", "0") == 1
        return capsys.readouterr().err

    assert "0 of 2 nodes have written theirs after 0 s: the nsys of profile_node0 does not answer" in said("start")
    assert read_request(run.path) == CaptureRequest(1, 5, reports=2)
    nsys_says(run, 1, 0, "busy", "the run's own recording has not ended")
    assert "profile_node0: the run's own recording has not ended" in said("stop")
    nsys_says(run, 1, 0, "ready")
    nsys_says(run, 1, 1, "busy", "nsys start: no space")
    assert "profile_node1: nsys start: no space" in said("stop")
    given_up_file(run.path, 1).touch()
    assert capture(run, "stop") == 2, "it was taken back"
    assert "no recording of local-1 is in progress" in capsys.readouterr().err


@pytest.mark.usefixtures("running_by_a_stand_in")
def test_a_report_is_there_when_nsys_is_no_longer_at_it(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run = of_nsys(run)
    assert capture(run, "start", "--wait-s", "0") == 1
    folder = folder_of(run.path, 1)
    folder.mkdir()
    for node in (0, 1):
        nsys_says(run, 1, node, "ready")
        (folder / f"profile_node{node}.nsys-rep").touch()
    nsys_says(run, 1, 0, "done")
    capsys.readouterr()
    assert capture(run, "stop", "--wait-s", "0") == 1
    assert "1 of 2 nodes have written theirs after 0 s: later, see" in capsys.readouterr().err
    nsys_says(run, 1, 1, "done")
    assert capture(run, "start", "--wait-s", "0") == 1
    assert read_request(run.path) == CaptureRequest(2, 5, reports=2)


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


@pytest.mark.parametrize("words", [["start", "--steps", "0"], ["begin"], []])
def test_a_wrong_request_is_one_sentence(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["capture", *words]) == 2
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)


class Training:
    """A training of two ranks on this machine that runs until it is cancelled."""

    def __init__(self, runs: Path, *words: str) -> None:
        self._environment = {**os.environ, "HARNESS_RUNS": str(runs), "CUDA_VISIBLE_DEVICES": ""}
        argv = ["-e", "1", "-g", "2", "--site", "local", "--steps", "5000", *words]
        self.launch = subprocess.Popen(  # waits for the run's end
            [sys.executable, "-m", "harness", *argv], cwd=ROOT, env=self._environment, stdout=subprocess.DEVNULL
        )
        self._runs = runs

    def __enter__(self) -> Training:
        return self

    def __exit__(self, *_: object) -> None:
        self.slurm("cancel", "last")
        self.launch.wait(timeout=limit_s(60))

    def slurm(self, *words: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "harness", *words]
        return subprocess.run(
            argv, cwd=ROOT, env=self._environment, capture_output=True, text=True, check=False, timeout=limit_s(300)
        )

    def trains(self) -> Path:
        """The run's folder, once it trains."""
        metrics = "*/profiler/*/metrics/rank0.jsonl"
        wait_until(lambda: list(self._runs.glob(metrics)) or self.launch.poll() is not None, "the first metrics")
        return next(self._runs.glob(metrics)).parents[1]


@pytest.mark.train
@pytest.mark.long
def test_a_training_of_two_ranks_is_recorded_while_it_runs(tmp_path: Path) -> None:
    with Training(tmp_path / "runs", "--no-profile") as training:
        run = training.trains()
        done = training.slurm("capture", "start", "last", "--steps", "3")
        assert done.returncode == 0, done.stderr
        report = training.slurm("report", str(folder_of(run, 1)), "--json")
        assert report.returncode == 0, report.stderr
        assert '"ranks": 2' in " ".join(report.stdout.split())
