"""A series whose driver is killed with SIGKILL and started again: nothing lost, nothing twice."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
from collections.abc import Callable, Sequence
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any

import pytest

from harness.common.errors import WorkError
from harness.launch.backends import local
from harness.run import Stage
from harness.study.series.folder import driving
from harness.study.series.points import SeriesTask
from harness.study.series.runner import SeriesOutcome, SeriesProgress, carry_out
from harness.study.series.runs import observed, runs_of, slot_of
from tests.study.series_shared import quick_runs, tasks
from tests.waiting import limit_s, wait_until

FORK = multiprocessing.get_context("fork")  # a driver that has imported everything is killed early and late alike
SERIES = "killed"


@pytest.fixture(autouse=True)
def _quick(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick_runs(monkeypatch, 0.1)


def runner(all_tasks: Sequence[SeriesTask]) -> SeriesOutcome:
    return carry_out(SERIES, all_tasks, lambda _: None)


def driver(all_tasks: Sequence[SeriesTask], seconds: float | None = None) -> ForkProcess:
    """Another process that drives the series; killed after so long, and at its end then."""
    process = FORK.Process(target=runner, args=(all_tasks,))
    process.start()
    if seconds is not None:
        process.join(seconds)
        process.kill()
        process.join(timeout=limit_s())
    return process


def completed() -> list[tuple[str, int]]:
    ended = [each for each in map(observed, runs_of(SERIES)) if each.state == "completed"]
    return sorted(slot_of(each.run) for each in ended)


def test_killed_at_random_moments_no_point_is_lost_and_none_is_made_twice() -> None:
    wanted, moments = tasks(24, "00:00:20"), random.Random(20)
    ends = [driver(wanted, moments.uniform(0, 0.2)).exitcode for _ in range(20)]
    assert -signal.SIGKILL in ends, "some were at work"
    assert runner(wanted).complete
    made = completed()
    assert len(made) == len(set(made)) == len(wanted)
    kept = [each for each in map(observed, runs_of(SERIES)) if each.state != "completed"]
    assert not [each for each in kept if each.began], "only what never began is kept"


def dies(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def dies_after(function: Callable[..., Any]) -> Callable[..., Any]:
    def changed(*words: Any, **named: Any) -> None:
        function(*words, **named)
        dies()

    return changed


@pytest.mark.parametrize("where", ["staged", "published", "started"])
def test_killed_between_two_steps_of_a_submission_the_point_is_made_once(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = tasks(2)
    with pytest.MonkeyPatch.context() as patch:
        if where == "started":
            patch.setattr(local, "start_controller", dies_after(local.start_controller))
        else:
            patch.setattr(Stage, "publish", dies_after(Stage.publish) if where == "published" else dies)
        process = driver(wanted)
        process.join(timeout=limit_s())
    assert process.exitcode == -signal.SIGKILL
    left = {"staged": 0, "published": 1, "started": 1}[where]
    assert len(runs_of(SERIES)) == left
    assert runner(wanted).complete
    assert completed() == [(task.point.key, 0) for task in wanted]
    assert len(runs_of(SERIES)) == 2 + (where == "published"), "what never began is kept"


def test_only_one_process_drives_a_series_and_a_killed_ones_lock_is_gone() -> None:
    wanted = tasks(3)
    process = driver(wanted)
    wait_until(lambda: runs_of(SERIES), "the first run")
    with pytest.raises(WorkError, match=rf"being run by process {process.pid} on "), driving(SERIES):
        pass
    process.kill()
    process.join(timeout=limit_s())
    assert runner(wanted).complete


def test_a_run_that_goes_on_while_its_driver_is_dead_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    quick_runs(monkeypatch, 0.5)
    wanted = tasks(1)
    process = driver(wanted)
    wait_until(lambda: any(run.status() for run in runs_of(SERIES)), "the status of a run")
    process.kill()
    process.join(timeout=limit_s())
    said = list[str]()
    assert carry_out(SERIES, wanted, lambda change: said.append(change.what)).complete
    assert said[0] == "waiting for"
    assert len(runs_of(SERIES)) == 1


def test_ctrl_c_stops_the_run_on_this_machine_and_the_next_drive_makes_it_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    quick_runs(monkeypatch, 60)

    def interrupt(change: SeriesProgress) -> None:
        said.append(change.what)
        if change.what == "started":
            wait_until(change.run.status, "the status of the run")
            raise KeyboardInterrupt

    said = list[str]()
    with pytest.raises(KeyboardInterrupt):
        carry_out(SERIES, tasks(1), interrupt)
    assert said == ["started", "stopping", "cancelled"]
    quick_runs(monkeypatch, 0.05)
    assert runner(tasks(1)).complete
    assert [each.state for each in map(observed, runs_of(SERIES))] == ["cancelled", "completed"]
