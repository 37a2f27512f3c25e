"""Each fault takes the time that it says, in the steps and on the rank that it says, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

pytest.importorskip("accelerate", reason="the training scripts need their libraries")

import torch

from exercises.utils.faults.inject import INJECTORS, injected
from harness.common.faults.fault import FAULTS
from tests.exercises.small_training import arguments, loop, prepared, train
from tests.waiting import wait_until


def test_every_declared_fault_and_no_other_has_its_injector() -> None:
    assert sorted(INJECTORS) == sorted(FAULTS)


@pytest.mark.parametrize(
    ("fault", "phase"),
    [
        ("data-stall,ms=10", "load"),
        ("host-stall,ms=10", "forward"),
        ("host-stall,ms=10,in=backward", "backward"),
        ("host-stall,ms=10,in=optimizer", "optimizer"),
        ("extra-compute,ms=10", "forward"),
        ("gc,objects=200", "forward"),
    ],
)
def test_it_takes_its_time_in_its_phase_of_each_kth_step(tmp_path: Path, fault: str, phase: str) -> None:
    begin_ns = time.time_ns()
    seen = train(tmp_path, f"{fault},every=3", steps=7)
    name = fault.partition(",")[0]
    assert [(line["step"], line["fault"], line["rank"]) for line in seen.lines] == [(2, name, 0), (5, name, 0)]
    for line in seen.lines:
        assert (10_000_000 if "ms=10" in fault else 1_000_000) <= line["ns"] <= seen.phase(phase)[line["step"]]
        assert begin_ns <= line["unix_ns"] <= time.time_ns()


def test_the_fault_comes_once_per_step_whatever_the_number_of_micro_batches(tmp_path: Path) -> None:
    training = prepared(arguments(tmp_path, "host-stall,ms=1"), steps=1)
    with injected(training, training.model, training.optimizer) as faulty:
        for batch in faulty.loader:
            for _ in range(4):
                faulty.model(batch)
    assert len((tmp_path / "faults" / "rank0.jsonl").read_text().splitlines()) == 1


def test_a_pause_stops_the_whole_process_within_the_training(tmp_path: Path) -> None:
    """The stopper is a process of its own, which stops this one whenever it gets a core."""
    faults = tmp_path / "faults" / "rank0.jsonl"
    begin_ns = time.perf_counter_ns()
    training = prepared(arguments(tmp_path, "pause,ms=40,every=2"), steps=10_000)
    with injected(training, training.model, training.optimizer) as faulty:
        for last, _ in enumerate(loop(faulty)):
            number = last
            if faults.exists() and len(faults.read_text().splitlines()) >= 3:
                break
            time.sleep(0.01)  # a step that the stopper can stop
    took_ns = time.perf_counter_ns() - begin_ns
    pauses = [json.loads(line) for line in faults.read_text().splitlines()]
    assert {line["fault"] for line in pauses} == {"pause"}
    assert all(line["ns"] >= 40_000_000 for line in pauses)
    assert took_ns >= sum(line["ns"] for line in pauses)
    steps = [line["step"] for line in pauses]
    assert steps == sorted(steps) and 1 <= steps[0] <= steps[-1] <= number


def test_a_stopped_process_goes_on_when_its_stopper_is_asked_to_end() -> None:
    from exercises.utils.faults.machine import SideProcess

    stopper = SideProcess("stopper", os.getpid())
    os.kill(stopper.pid, signal.SIGTERM)  # as a batch system sends it to every process of a job
    stopper.send("0 10000000")
    reports: list[str] = []

    def has_reported() -> bool:
        reports.extend(stopper.received())
        return bool(reports)

    wait_until(has_reported, "the report of a stop")
    stopper.send(f"{86_400 * 10**9} 10000000")  # would begin in a day
    stopper.close()
    assert int(reports[0].split()[1]) >= 10_000_000
    assert list(stopper.received()) == [], "no stop begins after the end"


def names_of_the_trace(folder: Path, *faults: str) -> set[str]:
    """The names of all events that torch.profiler records of a training."""
    with torch.profiler.profile(record_shapes=True) as profile:
        train(folder, *faults, steps=2)
    return {event.name for event in profile.events()}


def test_a_trace_has_no_name_that_gives_a_fault_away(tmp_path: Path) -> None:
    plain = names_of_the_trace(tmp_path)
    hidden = ("data-stall,ms=1", "host-stall,ms=1", "pause,ms=1", "gc,objects=1", "pinned-together", "noisy-neighbour")
    assert names_of_the_trace(tmp_path, *hidden) == plain
    more = names_of_the_trace(tmp_path, "extra-compute,ms=1", "checkpoint") - plain
    assert all(name.startswith(("aten::", "[memory]")) for name in more)
    assert "aten::mm" in more | plain
