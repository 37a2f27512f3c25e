"""`slurm.sh capture` asks a training that runs, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import harness.launch.submit
from harness.cli.main import main
from harness.common.captures import Asked, folder_of, read_request, stop_file
from harness.launch.backends.protocol import Look
from harness.run import FINAL, Run, State, Status
from tests.launch.launch_shared import ROOT, a_run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return a_run(tmp_path, "local-1")


@pytest.fixture
def running_by_a_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness.launch.submit, "look_at", lambda run: Look("running"))


def capture(run: Run, *words: str) -> int:
    return main(["capture", *words[:1], str(run.path), *words[1:]])


def rank_0_writes(run: Run, number: int, after: Path | None = None) -> threading.Thread:
    """What a training of one rank does when it is asked, or after a file is there."""

    def write() -> None:
        while read_request(run.path) is None or not (after is None or after.exists()):
            time.sleep(0.05)
        folder_of(run.path, number).mkdir()
        (folder_of(run.path, number) / "rank0.json.gz").touch()

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    return thread


@pytest.mark.usefixtures("running_by_a_stand_in")
def test_it_asks_and_waits_for_every_ranks_trace(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    rank_0_writes(run, 1)
    assert capture(run, "start", "--steps", "7") == 0
    assert read_request(run.path) == Asked(1, 7)
    folder = folder_of(run.path, 1)
    assert capsys.readouterr().out == f"recorded: {folder}\nnext: slurm.sh report {folder}\n"
    assert capture(run, "stop") == 2
    assert "nothing of local-1 is being recorded" in capsys.readouterr().err


@pytest.mark.usefixtures("running_by_a_stand_in")
def test_one_recording_at_a_time_and_stop_ends_it(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert capture(run, "start", "--wait-s", "0") == 1
    assert "0 of 1 ranks have written theirs after 0 s" in capsys.readouterr().err
    assert capture(run, "start") == 2
    assert "recording 1 of local-1 is not complete: wait, or slurm.sh capture stop" in capsys.readouterr().err
    rank_0_writes(run, 1, after=stop_file(run.path, 1))
    assert capture(run, "stop") == 0


@pytest.mark.parametrize("state", sorted(FINAL))
def test_what_has_ended_cannot_be_recorded(
    run: Run, state: State, capsys: pytest.CaptureFixture[str]
) -> None:
    run.write_status(Status(state=state))
    assert capture(run, "start") == 2
    assert f"capture: local-1 is {state}: only a training that runs" in capsys.readouterr().err
    assert not (run.path / "captures").exists()


@pytest.mark.usefixtures("running_by_a_stand_in")
def test_what_nsys_records_cannot_be_asked(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run.write_record(run.record.model_copy(update={"job": run.record.job | {"profiler": "nsys"}}))
    assert capture(Run(run.path), "start") == 2
    assert "--profiler torch or --no-profile" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["start", "--steps", "0"], ["begin"], []])
def test_a_wrong_request_is_one_sentence(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["capture", *words]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert len(err.splitlines()) == 1


@pytest.mark.train
@pytest.mark.long
def test_a_training_of_two_ranks_is_recorded_while_it_runs(tmp_path: Path) -> None:
    environment = {**os.environ, "HARNESS_RUNS": str(tmp_path / "runs"), "CUDA_VISIBLE_DEVICES": ""}

    def slurm(*words: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "harness", *words]
        return subprocess.run(
            argv, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=300
        )

    words = ("-e", "1", "-g", "2", "--site", "local", "--no-profile", "--steps", "5000")
    launch = subprocess.Popen(  # waits for the run's end
        [sys.executable, "-m", "harness", *words], cwd=ROOT, env=environment, stdout=subprocess.DEVNULL
    )
    try:
        while not (metrics := list((tmp_path / "runs").glob("*/profiler/*/metrics/rank0.jsonl"))):
            assert launch.poll() is None
            time.sleep(0.2)
        run = metrics[0].parents[1]
        done = slurm("capture", "start", "last", "--steps", "3")
        assert done.returncode == 0, done.stderr
        report = slurm("report", str(folder_of(run, 1)), "--json")
        assert report.returncode == 0, report.stderr
        assert '"ranks": 2' in " ".join(report.stdout.split())
    finally:
        slurm("cancel", "last")
        launch.wait(timeout=60)
