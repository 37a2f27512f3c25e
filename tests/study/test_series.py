"""Where the points of a series stand, what it costs at most, and how it continues: from runs on disk alone."""

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

from harness.common.errors import HarnessError, RequestError, WorkError
from harness.experiment.exercises import DDP
from harness.launch.backends import local
from harness.run import Run, Stage
from harness.run.record import State, Status
from harness.site.site import load_site
from harness.study.series import runner
from harness.study.series.cost import cost_document, making
from harness.study.series.folder import driving, refuse_name
from harness.study.series.points import SeriesPoint, SeriesTask, prepared, task_statuses
from harness.study.series.runner import SeriesOutcome, SeriesProgress, Submitter, carry_out, survey
from harness.study.series.runs import observed, runs_of, slot_of
from tests.study.kit import Say
from tests.study.reference_runs import two
from tests.study.series_shared import SECOND_NS, a_run, point, quick_runs, tasks
from tests.waiting import limit_s, wait_until


@pytest.mark.parametrize(
    ("ends", "place"),
    [
        ([], "to do"),
        (["completed"], "done"),
        (["failed"], "failed"),
        (["timeout"], "failed"),
        (["node_fail"], "failed"),
        (["cancelled"], "to do"),
        ([None], "to do"),
        (["failed", "completed"], "done"),
        (["completed", "failed"], "done"),
        (["failed", None], "to do"),
        (["cancelled", "failed"], "failed"),
    ],
)
def test_a_points_runs_on_disk_say_whether_it_is_done(runs: Path, ends: list[State | None], place: str) -> None:
    (task,) = tasks(1)
    found = [observed(a_run(runs, task, end, number=i)) for i, end in enumerate(ends)]
    (status,) = task_statuses([task], found)
    assert status.status == place
    assert len(status.kept) + (status.run is not None) == len(ends), "each run is kept and stated"
    unknown = [each._replace(state="unknown", began=True) for each in found]
    assert [each.status for each in task_statuses([task], unknown)] == ["running" if ends else "to do"]


def test_runs_of_another_series_repeat_or_point_count_for_nothing(runs: Path) -> None:
    first, second, other = prepared([point(1), point(1, repeat=1), point(2)])
    found = [a_run(runs, first, "completed", number=1, series="s2"), a_run(runs, second, "completed", number=2)]
    places = task_statuses([first, second, other], [observed(run) for run in runs_of("s")])
    assert [place.status for place in places] == ["to do", "done", "to do"]
    assert [run.path for run in runs_of("s2")] == [found[0].path]


def test_a_series_made_with_other_settings_is_refused_with_the_field(runs: Path) -> None:
    (task,) = tasks(1)
    a_run(runs, task, "completed", number=1)
    changed = task.point._replace(experiment=task.point.experiment.model_copy(update={"seed": 7}))
    with pytest.raises(RequestError, match=r"local-1 .*\(seed 1234, now 7\).*--name"):
        survey("s", prepared([changed]))
    longer = task.point._replace(site=task.point.site.model_copy(update={"time": "00:01:00"}))
    survey("s", prepared([longer]))


def test_points_that_cannot_run_are_all_named_before_anything_starts() -> None:
    cuda = point(1).site.model_copy(update={"device": "cuda"})
    with pytest.raises(RequestError) as refused:
        prepared([point(1), point(2)._replace(site=cuda), point(3)._replace(site=cuda), point(1)])
    wrong = ("micro_batch_size=2: ", "micro_batch_size=3: ", "micro_batch_size=1 is given twice")
    assert [each for each in wrong if each not in str(refused.value)] == []


@pytest.mark.parametrize("name", ["", "a b", "../x", ".x", "x/y", "é", "x" * 81])
def test_a_series_name_is_a_folders_name(name: str) -> None:
    with pytest.raises(RequestError, match=r"^--name: got "):
        refuse_name(name, "--name")


# ---- What it costs at most


@pytest.mark.usefixtures("runs")
def test_its_cost_is_the_devices_of_each_run_times_its_limit_and_here_their_time_one_after_the_other() -> None:
    place = load_site("leonardo")
    wanted = prepared([SeriesPoint(str(nodes), DDP(nodes=nodes), place, 0, []) for nodes in (1, 2)])
    assert making(wanted) == "2 runs, at most 6 GPU hours (the time limit: 4 × 00:30:00, 8 × 00:30:00 each)"
    assert making(tasks(2)) == "2 runs, at most 20 min (the time limit: 00:10:00 each)"


@pytest.mark.usefixtures("runs")
def test_every_number_of_the_cost_has_its_unit() -> None:
    assert cost_document(tasks(1, ranks=2)) == {
        "runs": {"to_make": 1},
        "most_device_hours": {
            "name": "most_device_hours", "value": pytest.approx(1 / 3), "unit": "process h", "source": "the time limit"
        },
        "most_elapsed_s": {"name": "most_elapsed_s", "value": 600, "unit": "s", "source": "the time limit"},
    }  # fmt: skip


def test_a_recording_says_what_it_costs_at_most(runs: Path, say: Say) -> None:
    recording = ("reference", "record", "--site", "local", "--list", two(runs), "--dry-run")
    assert "to make: 2 runs, at most 4 h (the time limit: 02:00:00 each)" in say(*recording).err
    cost = say(*recording, "--json").json["cost"]
    assert (cost["runs"], cost["most_device_hours"]["value"]) == ({"to_make": 2}, 8)


# ---- The runner, with a submitter that plays a cluster


class Cluster(Submitter):
    """A submitter whose runs end as told: one poll after the start, at most `most` at once."""

    poll_s = 0.0
    runs_here = False

    def __init__(self, root: Path, ends: Sequence[State | HarnessError], most: int = 1) -> None:
        self.root, self.ends, self.most = root, list(ends), most
        self.ending: dict[str, State] = {}
        self.running = set[str]()
        self.most_seen = 0

    def room(self, active: int) -> int:
        return self.most - active

    def together(self, ready: Sequence[SeriesTask]) -> int:
        return 1

    def start(self, series: str, ready: Sequence[SeriesTask]) -> list[Run]:
        end = self.ends.pop(0)
        if isinstance(end, HarnessError):
            raise end
        number = 100 + len(runs_of(series))
        run = a_run(self.root, ready[0], None, number=number, series=series)
        self.running.add(run.name)
        self.most_seen = max(self.most_seen, len(self.running))
        self.ending[run.name] = end
        return [run]

    def state(self, run: Run) -> State:
        if run.status() is None:
            run.write_status(Status(state="running", started_ns=0))
            return "running"
        end = self.ending.get(run.name, "completed")
        self.running.discard(run.name)
        run.write_status(Status(state=end, started_ns=0, ended_ns=30 * SECOND_NS))
        return end

    def stop(self, run: Run) -> None:
        raise AssertionError(run.name)


def told(
    root: Path, wanted: Sequence[SeriesTask], cluster: Cluster, *, retry_failed: bool = False
) -> tuple[list[SeriesProgress], runner.SeriesOutcome]:
    said = list[SeriesProgress]()
    return said, carry_out("s", wanted, said.append, cluster, retry_failed=retry_failed)


def test_a_point_that_fails_is_kept_and_made_again_only_on_request_and_only_once(runs: Path) -> None:
    said, outcome = told(runs, tasks(3), Cluster(runs, ["completed", "failed", "completed"]))
    assert [place.task.point.key for place in outcome.failed] == ["micro_batch_size=2"]
    assert said[-1].counts == {"done": 2, "running": 0, "to do": 0, "failed": 1}
    calls: list[tuple[list[State], bool, bool]] = [
        ([], False, False), (["failed"], True, False), (["completed"], True, True),
    ]  # fmt: skip
    for ends, retry, complete in calls:
        assert told(runs, tasks(3), Cluster(runs, ends), retry_failed=retry)[1].complete is complete
    assert [slot_of(run).key for run in runs_of("s")].count("micro_batch_size=2") == 3


def test_a_full_queue_is_asked_again_when_a_run_has_ended_and_gets_no_more_at_once_than_asked(runs: Path) -> None:
    done: list[State | HarnessError] = ["completed"] * 7
    cluster = Cluster(runs, [done[0], WorkError("QOSMaxSubmitJobPerUserLimit"), *done[1:]], most=3)
    assert told(runs, tasks(7), cluster)[1].complete
    assert cluster.most_seen == 3


def test_three_refusals_in_a_row_end_the_drive_with_the_schedulers_sentence(runs: Path) -> None:
    cluster = Cluster(runs, [WorkError("Invalid account")] * 9)
    said, outcome = told(runs, tasks(9), cluster)
    assert outcome.stopped.endswith("Invalid account")
    assert [change.what for change in said] == ["refused"] * 3
    assert len(cluster.ends) == 6


def test_a_run_that_nobody_knows_any_more_fails_its_point_after_a_while(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "UNKNOWN_S", 0.0)
    cluster = Cluster(runs, ["unknown", "completed"])
    _, outcome = told(runs, tasks(1), cluster)
    assert [place.state for place in outcome.failed] == ["unknown"]


# ---- A series whose driver is killed with SIGKILL and started again: nothing lost, nothing twice


FORK = multiprocessing.get_context("fork")  # a driver that has imported everything is killed early and late alike
SERIES = "killed"


@pytest.fixture
def _quick(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick_runs(monkeypatch, 0.1)


def driven(all_tasks: Sequence[SeriesTask]) -> SeriesOutcome:
    return carry_out(SERIES, all_tasks, lambda _: None)


def driver(all_tasks: Sequence[SeriesTask], seconds: float | None = None) -> ForkProcess:
    """Another process that drives the series; killed after so long, and at its end then."""
    process = FORK.Process(target=driven, args=(all_tasks,))
    process.start()
    if seconds is not None:
        process.join(seconds)
        process.kill()
        process.join(timeout=limit_s())
    return process


def completed() -> list[tuple[str, int]]:
    ended = [each for each in map(observed, runs_of(SERIES)) if each.state == "completed"]
    return sorted(slot_of(each.run) for each in ended)


@pytest.mark.usefixtures("_quick")
def test_killed_at_random_moments_no_point_is_lost_and_none_is_made_twice() -> None:
    wanted, moments = tasks(24, "00:00:20"), random.Random(20)
    ends = [driver(wanted, moments.uniform(0, 0.2)).exitcode for _ in range(20)]
    assert -signal.SIGKILL in ends, "some were at work"
    assert driven(wanted).complete
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


@pytest.mark.usefixtures("_quick")
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
    assert driven(wanted).complete
    assert completed() == [(task.point.key, 0) for task in wanted]
    assert len(runs_of(SERIES)) == 2 + (where == "published"), "what never began is kept"


@pytest.mark.usefixtures("_quick")
def test_only_one_process_drives_a_series_and_a_killed_ones_lock_is_gone() -> None:
    wanted = tasks(3)
    process = driver(wanted)
    wait_until(lambda: runs_of(SERIES), "the first run")
    with pytest.raises(WorkError, match=rf"being run by process {process.pid} on "), driving(SERIES):
        pass
    process.kill()
    process.join(timeout=limit_s())
    assert driven(wanted).complete


@pytest.mark.usefixtures("_quick")
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


@pytest.mark.usefixtures("_quick")
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
    assert driven(tasks(1)).complete
    assert [each.state for each in map(observed, runs_of(SERIES))] == ["cancelled", "completed"]
