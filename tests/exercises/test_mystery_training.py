"""A training finds the faults of its mystery in its run, and leaves no record of them that is not hidden."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

pytest.importorskip("accelerate", reason="the training scripts need their libraries")

from exercises.utils.faults.machine import SideProcess
from harness.common.errors import RequestError
from harness.common.faults.mystery import hidden_file, hidden_folder, hidden_text
from tests.exercises.small_training import arguments, train
from tests.waiting import wait_until


def hide(folder: Path, *faults: str) -> Path:
    hidden_folder(folder).mkdir(parents=True)
    hidden_file(folder).write_text(hidden_text(faults))
    return folder


def test_it_injects_and_hides_what_it_records(tmp_path: Path) -> None:
    run = hide(tmp_path / "run", "host-stall,ms=10,in=backward,every=2")
    seen = train(run, steps=4)
    assert seen.lines == []
    assert not (run / "faults").exists()
    lines = [json.loads(line) for line in (hidden_folder(run) / "rank0.jsonl").read_text().splitlines()]
    assert [(line["step"], line["fault"]) for line in lines] == [(1, "host-stall"), (3, "host-stall")]
    assert all(seen.phase("backward")[line["step"]] >= line["ns"] >= 10_000_000 for line in lines)


def test_faults_that_were_changed_start_nothing(tmp_path: Path) -> None:
    run = hide(tmp_path / "run", "pause,ms=5")
    hidden_file(run).write_text(hidden_file(run).read_text() + "paus,ms=5")
    with pytest.raises(RequestError, match="it was changed: start a new mystery"):
        arguments(run)


def test_a_list_of_processes_does_not_say_what_a_side_process_does() -> None:
    stopper = SideProcess("stopper", os.getpid())
    try:
        said = Path(f"/proc/{stopper.pid}/cmdline")  # a process that has just begun has no words yet
        wait_until(said.read_text, "the words of the process")
        words = said.read_text()
    finally:
        stopper.close()
    assert "stopper" not in words
    assert "faults" not in words


def test_no_refusal_names_a_hidden_fault(tmp_path: Path) -> None:
    """A fault that cannot work here, as in a run folder that was moved to another machine."""
    run = hide(tmp_path / "run", "pause,ms=5,rank=7")
    assert [str(fault) for fault in arguments(run).faults] == ["pause,ms=5,rank=7"]
