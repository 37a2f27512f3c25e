"""A series whose driver is killed with SIGKILL and started again: nothing lost, nothing twice, the cap never passed."""

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
from harness.study.series.points import SeriesTask, cost_ns
from harness.study.series.runner import Limits, SeriesOutcome, SeriesProgress, carry_out
from harness.study.series.runs import observed, runs_of, slot_of
from tests.study.series_shared import SECOND_NS, quick_runs, tasks
from tests.waiting import limit_s, wait_until

FORK = multiprocessing.get_context("fork")  # a driver that has imported everything is killed early and late alike
SERIES = "killed"


@pytest.fixture(autouse=True)
def _quick(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick_runs(monkeypatch, 0.1)


def runner(all_tasks: Sequence[SeriesTask], limits: Limits) -> SeriesOutcome:
    return carry_out(SERIES, all_tasks, limits, lambda _: None)


def driver(all_tasks: Sequence[SeriesTask], limits: Limits, seconds: float | None = None) -> ForkProcess:
    """Another process that drives the series; killed after so long, and at its end then."""
    process = FORK.Process(target=runner, args=(all_tasks, limits))
    process.start()
    if seconds is not None:
        process.join(seconds)
        process.kill()
        process.join(timeout=limit_s())
    return process


def completed() -> list[tuple[str, int]]:
    ended = [each for each in map(observed, runs_of(SERIES)) if each.state == "completed"]
    return sorted(slot_of(each.run) for each in ended)


def cap_held_at_every_start(cap_ns: int) -> bool:
    """When a run was made, what the earlier ones took and its own limit were within the cap."""
    runs = [observed(run) for run in runs_of(SERIES)]
    spent = [cost_ns(each) for each in runs]
    limits = [each.run.record.site.time_s * SECOND_NS for each in runs]
    return all(sum(spent[:i]) + limits[i] <= cap_ns for i in range(len(runs)))


@pytest.mark.parametrize(
    ("points", "kills", "cap_s"),
    [(24, 20, 120.0), (12, 6, 20.5)],  # 24 × 0.1 s, far more on a busy machine, and one run's limit of 20 s; too few
)
def test_killed_at_random_moments_no_point_is_lost_none_is_made_twice_and_the_cap_holds(
    points: int, kills: int, cap_s: float
) -> None:
    wanted, moments = tasks(points, "00:00:20"), random.Random(kills)
    limits = Limits(max_device_hours=cap_s / 3600)
    ends = [driver(wanted, limits, moments.uniform(0, 0.2)).exitcode for _ in range(kills)]
    assert -signal.SIGKILL in ends, "some were at work"
    outcome = runner(wanted, limits)
    assert outcome.complete == (cap_s > 100) or "stopped before the cap" in outcome.stopped
    made = completed()
    assert 0 < len(made) == len(set(made)) <= points and (len(made) == points) == outcome.complete
    kept = [each for each in map(observed, runs_of(SERIES)) if each.state != "completed"]
    assert not [each for each in kept if each.began], "only what never began is kept"
    assert limits.cap_ns is not None and cap_held_at_every_start(limits.cap_ns)


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
    wanted, limits = tasks(2), Limits()
    with pytest.MonkeyPatch.context() as patch:
        if where == "started":
            patch.setattr(local, "start_controller", dies_after(local.start_controller))
        else:
            patch.setattr(Stage, "publish", dies_after(Stage.publish) if where == "published" else dies)
        process = driver(wanted, limits)
        process.join(timeout=limit_s())
    assert process.exitcode == -signal.SIGKILL
    left = {"staged": 0, "published": 1, "started": 1}[where]
    assert len(runs_of(SERIES)) == left
    assert runner(wanted, limits).complete
    assert completed() == [(task.point.key, 0) for task in wanted]
    assert len(runs_of(SERIES)) == 2 + (where == "published"), "what never began is kept"


def test_only_one_process_drives_a_series_and_a_killed_ones_lock_is_gone() -> None:
    wanted = tasks(3)
    process = driver(wanted, Limits())
    wait_until(lambda: runs_of(SERIES), "the first run")
    with pytest.raises(WorkError, match=rf"being run by process {process.pid} on "), driving(SERIES):
        pass
    process.kill()
    process.join(timeout=limit_s())
    assert runner(wanted, Limits()).complete


def test_a_run_that_goes_on_while_its_driver_is_dead_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    quick_runs(monkeypatch, 0.5)
    wanted = tasks(1)
    process = driver(wanted, Limits())
    wait_until(lambda: any(run.status() for run in runs_of(SERIES)), "the status of a run")
    process.kill()
    process.join(timeout=limit_s())
    said = list[str]()
    assert carry_out(SERIES, wanted, Limits(), lambda change: said.append(change.what)).complete
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
        carry_out(SERIES, tasks(1), Limits(), interrupt)
    assert said == ["started", "stopping", "cancelled"]
    quick_runs(monkeypatch, 0.05)
    assert runner(tasks(1), Limits()).complete
    assert [each.state for each in map(observed, runs_of(SERIES))] == ["cancelled", "completed"]
