"""The runner: submit the runs of a series that are not done, some at once, and wait for those that run.

Killed at any moment and started again, it loses nothing and repeats nothing: it begins with what is on disk, under the
series' lock, and holds nothing that is not there.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import NamedTuple

from harness.common.errors import HarnessError, RequestError, WorkError
from harness.launch.backends.protocol import Together
from harness.launch.backends.registry import backend_of
from harness.launch.cancel import cancel
from harness.launch.poll import state_of
from harness.launch.submit import Start, go_together
from harness.measure.of_run import write_summary
from harness.plan.start import start_run, start_together
from harness.run import Run
from harness.run.record import FINAL, State
from harness.study.series.folder import driving
from harness.study.series.points import SeriesTask, TaskStatus, counts, refuse_other_settings, task_statuses
from harness.study.series.runs import OPEN, ObservedRun, Slot, began, observed, runs_of, slot_of

ANOTHER_NAME = "give the new one another name with --name"
UNKNOWN_S = 300.0  # so long a scheduler may not answer: a standby controller takes over after two minutes
MOST_REFUSALS = 3  # in a row: then it is not the point
IN_QUEUE = 4  # runs at once, of those in a queue; on this machine they would slow each other down


class SeriesProgress(NamedTuple):
    """A line of progress. what: started, adopted, a state, refused, not measured. counts: of the tasks, by status."""

    what: str
    slot: Slot
    run: Run | None
    note: str
    counts: dict[str, int]


class SeriesOutcome(NamedTuple):
    """How a call ended. stopped: why it made no more runs, as a sentence; empty when it made all."""

    places: list[TaskStatus]
    stopped: str = ""

    @property
    def failed(self) -> list[TaskStatus]:
        return [place for place in self.places if place.status == "failed"]

    @property
    def completed(self) -> list[Run]:
        """The runs that fill a place."""
        return [place.run for place in self.places if place.status == "done" and place.run is not None]

    @property
    def complete(self) -> bool:
        return all(place.status == "done" for place in self.places)


def survey(
    series: str, tasks: Sequence[SeriesTask], advice: str = ANOTHER_NAME
) -> tuple[list[TaskStatus], list[ObservedRun]]:
    """Where each task stands, and all runs of the series, now. Reads only.
    Raises RequestError: its runs were made with other settings; with the advice."""
    runs = [observed(run) for run in runs_of(series)]
    refuse_other_settings(series, tasks, (each.run for each in runs), advice)
    return task_statuses(tasks, runs), runs


def to_make(places: Sequence[TaskStatus], retry_failed: bool) -> list[SeriesTask]:
    """The tasks that a call starts, in order. On this machine each point runs once, then each again: if the machine
    changes meanwhile, the repeats differ, and not the points."""
    wanted = ("to do", "failed") if retry_failed else ("to do",)
    tasks = [place.task for place in places if place.status in wanted]
    if not all(backend_of(task.point.site).RUNS_HERE for task in tasks):
        return tasks
    return sorted(tasks, key=lambda task: task.point.repeat)


def carry_out(
    series: str,
    tasks: Sequence[SeriesTask],
    tell: Callable[[SeriesProgress], None],
    submitter: Submitter | None = None,
    *,
    retry_failed: bool = False,
) -> SeriesOutcome:
    """Make all runs of the series that are not done; returns the state of each task. retry_failed: also those that
    failed before.

    Ctrl-C stops the runs that share this machine, and leaves those in a queue; then it is raised again.

    Raises:
        RequestError: the series was made with other settings.
        WorkError: another process drives it, or its folder cannot be written.
    """
    with driving(series):
        here = any(backend_of(task.prepared.job.site).HELD for task in tasks)
        chosen = submitter or submitter_for(tasks, 1 if here else IN_QUEUE)
        runner = _Runner(series, tasks, tell, chosen, retry_failed)
        try:
            stopped = runner.go()
        except KeyboardInterrupt:
            runner.interrupted()
            raise
        return SeriesOutcome(list(runner.places.values()), stopped)


class Submitter:
    """Starts tasks and watches their runs: one submission per task and `at_once` of them at a time, or, where `sizes`
    are above 1, one submission at a time of the first tasks that go together (a job array, or one allocation).

    sizes: the most tasks of a submission, then what is tried after each refusal; the last is 1. A cluster that limits
    how many jobs a user may queue counts each task of an array; an allocation for many runs may be too long.
    """

    def __init__(
        self, tasks: Sequence[SeriesTask], at_once: int, way: Together = "array", sizes: Sequence[int] = (1,)
    ) -> None:
        backends = [backend_of(task.prepared.job.site) for task in tasks]
        self.runs_here = any(backend.HELD for backend in backends)
        """True: its runs share a machine and end with the process that started them. False: they stay in a queue."""
        self.poll_s = max((backend.POLL_S for backend in backends), default=0.0)
        """Seconds between two looks at the runs."""
        self._at_once, self._way = at_once, way
        self._most, *self._after_refusals = sizes

    def room(self, active: int) -> int:
        """How many more tasks it takes, while so many of its runs have not ended."""
        if self._most < 2:
            return self._at_once - active
        return 0 if active else self._most

    def together(self, tasks: Sequence[SeriesTask]) -> int:
        """How many of the first of these tasks, at least one, go into one submission."""
        jobs = [task.prepared.job for task in tasks[: self._most]]
        return sum(1 for _ in takewhile(lambda job: go_together([jobs[0], job]), jobs))

    def start(self, series: str, tasks: Sequence[SeriesTask]) -> list[Run]:
        """Start tasks that go together, or the first ones of them; returns their runs in order.
        Raises RequestError, WorkError: nothing was started."""
        if len(tasks) == 1:
            point, ready = tasks[0]
            return [start_run(ready, point.command, point.part(series))]
        starts = [Start(ready, point.command, point.part(series)) for point, ready in tasks]
        try:
            return start_together(starts, self._way, self._at_once)
        except WorkError:
            self._most = next((size for size in self._after_refusals if size < len(tasks)), 1)
            return self.start(series, tasks[: self._most])

    def state(self, run: Run) -> State:
        return state_of(run)

    def stop(self, run: Run) -> None:
        """Ask the run to end. Raises WorkError: it cannot be stopped from here."""
        cancel(run)


def submitter_for(
    tasks: Sequence[SeriesTask], at_once: int = 1, way: Together = "array", smaller: Sequence[int] = ()
) -> Submitter:
    """Several tasks in a submission where the backend has that way, else one after the other. smaller: the sizes to try
    after a refusal, the largest first."""
    largest = min((backend_of(task.prepared.job.site).most_together(way) for task in tasks), default=0)
    if largest < 2 or len(tasks) < 2:
        return Submitter(tasks, at_once)
    return Submitter(tasks, at_once, way, (largest, *smaller, 1))


class _Runner:
    def __init__(
        self,
        series: str,
        tasks: Sequence[SeriesTask],
        tell: Callable[[SeriesProgress], None],
        submitter: Submitter,
        retry_failed: bool,
    ) -> None:
        self.series = series
        self.tell, self.submitter, self.retry_failed = tell, submitter, retry_failed
        places, runs = survey(self.series, tasks)
        self.places = {place.task.point.slot: place for place in places}
        self.todo = deque(to_make(places, retry_failed))
        # Also runs of points that are asked for no more: they take a place in the queue.
        self.active = {each.run.name: each.run for each in runs if each.state in OPEN}
        self.adopted = set(self.active)
        self.unknown_since: dict[str, float] = {}
        self.full = False  # the scheduler takes no more until a run has ended
        self.refusals = 0

    def go(self) -> str:
        """Works until all runs are made; returns a sentence with the reason if it stopped earlier."""
        for place in self.places.values():
            if place.status == "running":
                self._say("waiting for", place.task.point.slot, place.run)
            elif place.status == "done" and place.run is not None and not place.run.summary.is_file():
                self._measure(place.task.point.slot, place.run)
        while True:
            for run in list(self.active.values()):
                self._look(run)
            if stopped := self._start():
                return stopped
            if not self.active and not self.todo:
                return ""
            time.sleep(self.submitter.poll_s)

    def interrupted(self) -> None:
        """Stop what shares this machine, and wait for its end."""
        if not self.submitter.runs_here:
            return
        for run in list(self.active.values()):
            self._say("stopping", slot_of(run), run)
            try:
                self.submitter.stop(run)
            except HarnessError as error:
                self._say("not stopped", slot_of(run), run, str(error))
                del self.active[run.name]
        while self.active:
            for run in list(self.active.values()):
                self._look(run)
            time.sleep(self.submitter.poll_s)

    def _look(self, run: Run) -> None:
        state = self.submitter.state(run)
        if state == "unknown":
            since = self.unknown_since.setdefault(run.name, time.monotonic())
            if time.monotonic() - since < UNKNOWN_S:
                return
        elif state not in FINAL:
            self.unknown_since.pop(run.name, None)
            return
        self._settle(run, state)

    def _settle(self, run: Run, state: State) -> None:
        """A run has ended, or its state is no longer known."""
        del self.active[run.name]
        self.full = False
        ended = ObservedRun(run, state, began(run))
        slot = slot_of(run)
        place = self.places.get(slot)
        if place is None:
            return
        status = "done" if state == "completed" else "failed"
        self.places[slot] = place._replace(status=status, run=run, state=state)  # type: ignore[arg-type]  # literals
        again = run.name in self.adopted and (not ended.began or self.retry_failed)
        if status == "failed" and again:
            self.todo.append(place.task)
            self.places[slot] = place._replace(status="to do", run=None, state=None, kept=(*place.kept, ended))
        self._say(state if ended.began else "never began", slot, run)
        if status == "done":
            self._measure(slot, run)

    def _start(self) -> str:
        """Start what may start now; returns why nothing more will, as a sentence."""
        while self.todo and not self.full and (room := self.submitter.room(len(self.active))) > 0:
            ready = list(self.todo)[:room]
            if stopped := self._submit(ready):
                return stopped
        return ""

    def _submit(self, ready: Sequence[SeriesTask]) -> str:
        ready = ready[: self.submitter.together(ready)]
        try:
            runs = self.submitter.start(self.series, ready)
        except HarnessError as error:
            return self._refused(error)
        self.refusals = 0
        for run in runs:
            task = self.todo.popleft()
            slot = task.point.slot
            self.active[run.name] = run
            self.places[slot] = self.places[slot]._replace(status="running", run=run, state="queued")
            self._say("started", slot, run)
        return ""

    def _refused(self, error: HarnessError) -> str:
        """A submission was refused: for now, if runs of ours may be why; else this point fails."""
        if self.active and not isinstance(error, RequestError):
            self.full = True
            return ""
        self.refusals += 1
        task = self.todo.popleft()
        self.places[task.point.slot] = self.places[task.point.slot]._replace(status="failed")
        self._say("refused", task.point.slot, None, str(error))
        if self.refusals < MOST_REFUSALS:
            return ""
        return f"stopped: {self.refusals} submissions in a row were refused, the last with: {error}"

    def _measure(self, slot: Slot, run: Run) -> None:
        if reason := write_summary(run):
            self._say("not measured", slot, run, reason)

    def _say(self, what: str, slot: Slot, run: Run | None, note: str = "") -> None:
        self.tell(SeriesProgress(what, slot, run, note, counts(self.places.values())))
