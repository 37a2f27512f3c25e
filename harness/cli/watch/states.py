"""The states of several runs, asked with one question for all that are in a queue. A final state is not asked again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from harness.common.errors import HarnessError
from harness.launch.backends.protocol import Backend, Listed, PolledState
from harness.launch.backends.registry import BACKENDS
from harness.launch.submit import look_at
from harness.live.view import RunState
from harness.run import FINAL, Run

NS = 1_000_000_000
ASK_S = 5.0  # between two questions to a queue
PLACES_S = 60.0  # between two of them that ask for places in the queue: then all its jobs are listed
AGAIN_S = 10.0  # between two questions about a run that has left it, and whose end is not known yet
MOST_ASKED = 1000  # runs in one question, the newest
NO_ANSWER = "its queue does not answer; this is the last known state"


class States:
    """The states of runs. Between two questions to a queue, its last answer is valid."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._told: dict[Path, RunState] = {}
        self._next_s: dict[str, float] = {}  # a backend's name, or a run's path

    def look(self, runs: Sequence[Run]) -> list[RunState]:
        """Their states now, in their order."""
        for run in runs:
            self._take_own_end(run)
        for name, backend, several in _by_backend([run for run in runs if not self._of(run).final]):
            if self._is_due(name, 0 if backend.RUNS_HERE else ASK_S):
                waits = any(map(self._waits, several))
                self._ask(backend, several, waits and self._is_due(f"places of {name}", PLACES_S))
        return [self._of(run) for run in runs]

    def _waits(self, run: Run) -> bool:
        """Whether it waits in a queue, as far as is known. If why is a sentence, its allocation runs already."""
        told = self._told.get(run.path)
        if told is None:
            return run.status() is None
        return told.state == "queued" and " " not in told.why

    def _ask(self, backend: Backend, runs: list[Run], places: bool) -> None:
        entries = backend.listed(runs, places=places)
        if entries is None:
            for run in runs:
                self._told[run.path] = self._of(run)._replace(why=NO_ANSWER)
            return
        for run in runs:
            entry = entries.get(run.path)
            if entry is not None and entry.polled.state not in FINAL:
                before, now = self._of(run), _state(run, entry)
                if now.state == "queued" and before.place and not places:  # it is still as it was last told
                    partition, place, length = before.partition, before.queue_place, before.queue_length
                    now = now._replace(partition=partition, queue_place=place, queue_length=length)
                self._told[run.path] = now
        left = [run for run in runs if run.path not in entries or entries[run.path].polled.state in FINAL]
        for run in left:
            if self._is_due(str(run.path), AGAIN_S):
                self._told[run.path] = _state(run, Listed(_polled(run)))
                if not backend.RUNS_HERE:  # of many that end together, one with each look
                    break

    def _take_own_end(self, run: Run) -> None:
        """An end that the run itself wrote down, if it is certain."""
        if self._of(run).final:
            return
        own = run.status()
        if own is not None and own.is_settled:
            self._told[run.path] = RunState(own.state, own.why or own.note, began_ns=own.started_ns)

    def _of(self, run: Run) -> RunState:
        return self._told.get(run.path, RunState())

    def _is_due(self, what: str, pause_s: float) -> bool:
        now_s = self._clock()
        if now_s < self._next_s.get(what, now_s):
            return False
        self._next_s[what] = now_s + pause_s
        return True


def unfinished(runs: Sequence[Run]) -> list[Run]:
    """Those that have not ended, as far as their own files and one question to each queue say, in their order."""
    waiting = [run for run in runs if _may_run(run)][-MOST_ASKED:]
    found: set[Path] = set()
    for _, backend, several in _by_backend(waiting):
        entries = backend.listed(several)
        if entries is None:
            found |= {run.path for run in several if (own := run.status()) and own.state not in FINAL}
        else:
            found |= {
                path for path, entry in entries.items() if entry.polled.state not in (*FINAL, "unknown")
            }
    return [run for run in waiting if run.path in found]


def _may_run(run: Run) -> bool:
    own = run.status()
    return own is None or own.state not in FINAL


def _by_backend(runs: Sequence[Run]) -> Iterator[tuple[str, Backend, list[Run]]]:
    """The runs of each backend; one whose backend is not here, or whose record is lost, is left out."""
    names: dict[str, list[Run]] = {}
    for run in runs:
        try:
            names.setdefault(run.record.backend, []).append(run)
        except HarnessError:
            continue
    yield from ((name, BACKENDS[name], several) for name, several in names.items() if name in BACKENDS)


def _state(run: Run, entry: Listed) -> RunState:
    polled, own = entry.polled, run.status()
    began_ns, ends_ns = own.started_ns if own else None, entry.ends_ns
    if ends_ns is None and began_ns is not None:
        ends_ns = began_ns + run.record.site.time_s * NS
    partition, place, length = entry.place or (entry.partition, None, None)
    found = RunState(polled.state, polled.why, partition=partition, queue_place=place, queue_length=length)
    if polled.state == "queued":
        return found._replace(starts_ns=entry.starts_ns)
    return found._replace(began_ns=began_ns, deadline_ns=ends_ns, suspended=polled.suspended)


def _polled(run: Run) -> PolledState:
    try:
        return look_at(run)
    except HarnessError as error:
        return PolledState("unknown", str(error))
