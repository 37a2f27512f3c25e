"""A run that failed says why, and what its damaged files still tell is not lost."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from harness.common.errors import WorkError
from harness.launch import supervise as outcome
from harness.launch.backends import local
from harness.launch.backends.protocol import PolledState
from harness.launch.poll import look_at
from harness.run import Run, find_run
from harness.run.ended import what_it_means, why_it_wrote_no_more
from harness.run.record import NodeStatus, Status
from tests.launch.launch_shared import Harness, a_run


def ended(run: Run, codes: list[int], reason: str = "") -> Status:
    """The run's status after its nodes ended so, one after the other."""
    (run.path / "node-status").mkdir()
    for number, code in enumerate(codes):
        node = NodeStatus(node=number, host=f"node{number}", exit=code, started_ns=1, ended_ns=number + 2)
        (run.path / "node-status" / f"{number}.json").write_text(node.model_dump_json())
    outcome.record_end(run, max(codes), reason)
    status = Run(run.path).status()
    assert status is not None
    return status


@pytest.mark.parametrize("number", ["KILL", "SEGV", "ABRT", "BUS", "TERM"])
def test_a_signal_is_named_with_what_usually_sends_it(number: str) -> None:
    code = 128 + signal.Signals[f"SIG{number}"]
    assert what_it_means(code).startswith(f"exit {code}: ended by the signal {number}; ")


@pytest.mark.parametrize("code", [None, 0, 1, 7, 128, 255, 300])
def test_a_status_of_the_trainings_own_has_no_meaning_to_us(code: int | None) -> None:
    assert what_it_means(code) == ""


def test_a_program_that_is_not_there_is_said() -> None:
    assert "a program was not found" in what_it_means(127)


def test_status_tells_which_signal_ended_a_training(tmp_path: Path, harness: Harness) -> None:
    run = a_run(tmp_path / "runs", "local-1")
    ended(run, [137])
    assert "exit 137: ended by the signal KILL" in harness("status").stdout


def test_of_two_nodes_the_killed_one_is_the_cause_and_not_its_neighbour(tmp_path: Path) -> None:
    """The neighbour loses its connection, and fails with 1 a moment later."""
    assert ended(a_run(tmp_path, "1", nodes=2), [139, 1]).exit_code == 139
    assert ended(a_run(tmp_path, "2", nodes=2), [143, 7]).exit_code == 7, "143: it was stopped for the other"


def test_a_run_on_a_full_disk_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = a_run(tmp_path, "local-1")
    run.write_status(Status(state="running", pid=1))
    assert why_it_wrote_no_more(run) == ""
    full = os.statvfs_result((4096, 4096, 100, 0, 0, 9, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _path: full)
    monkeypatch.setattr(local, "poll", lambda _run: PolledState("failed"))
    assert "is full; free some space" in why_it_wrote_no_more(run)
    assert "is full; free some space" in look_at(run).why
    run.write_status(Status(state="failed", exit_code=7))
    assert look_at(run).why == "", "it could write how it ended"


@pytest.mark.parametrize("damage", ["cut", "deleted", "folder"])
def test_a_damaged_status_does_not_make_a_completed_run_a_failed_one(
    tmp_path: Path, harness: Harness, damage: str
) -> None:
    run = a_run(tmp_path / "runs", "local-1")
    ended(run, [0])
    path = run.path / "status.json"
    if damage == "cut":
        path.write_text(path.read_text()[:9])
    else:
        path.unlink()
    if damage == "folder":
        path.mkdir()
    assert harness("status").stdout.startswith("local-1  completed, exit 0")


def test_a_run_whose_record_is_lost_is_said_to_be_one(tmp_path: Path, harness: Harness) -> None:
    run = a_run(tmp_path / "runs", "local-1")
    (run.path / "metrics").mkdir()
    run.record_file.unlink()
    with pytest.raises(WorkError, match=r"its run\.json is lost"):
        find_run(str(run.path))
    for command in ("status", "logs", "cancel", "run"):
        done = harness(command, str(run.path))
        assert (done.returncode, done.stdout) == (1, "")
        assert "its run.json is lost" in done.stderr
