"""A series by its name: its folder, the lock that lets one process run it, its runs on disk, and who submits them.

Which runs there are, only the runs say: the folder holds no list of them.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import takewhile
from pathlib import Path
from typing import Protocol

from harness.common.bounded_read import read_bounded_text
from harness.common.errors import RequestError, WorkError
from harness.launch.backends.protocol import Together as TogetherAs
from harness.launch.backends.registry import backend_of
from harness.launch.submit import Start, cancel, go_together, state_of
from harness.run import Run, State, all_runs, disk_error, make_shared, runs_root
from harness.study.campaign.points import Task
from harness.study.start import start_run, start_together

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")
_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)  # some parallel file systems are mounted without them


def checked_name(name: str, source: str) -> str:
    """The name, which is also a folder's. source: the flag or file that gave it, for the message.

    Raises RequestError: it has other characters than letters, digits and ._-
    """
    if NAME.fullmatch(name):
        return name
    raise RequestError(
        f"{source}: got {name!r}, takes up to 80 letters, digits and ._- beginning with a letter or digit"
    )


def series_root(root: Path | None = None) -> Path:
    """Where the folders of all series are. root: of the runs."""
    return (root or runs_root()) / "series"


def series_folder(name: str) -> Path:
    """The folder of one series, which may not exist yet."""
    return series_root() / name


def runs_of(series: str) -> list[Run]:
    """The series' runs, oldest first. A run whose record cannot be read belongs to none."""
    mention = json.dumps(series)
    return [run for run in all_runs() if _mentions(run, mention) and _is_part(run, series)]


def _mentions(run: Run, mention: str) -> bool:
    """A quick look: a thousand records take seconds to validate."""
    with suppress(OSError, ValueError):
        return mention in read_bounded_text(run.record_file, errors="replace")
    return False


def _is_part(run: Run, series: str) -> bool:
    with suppress(WorkError):
        return run.record.part is not None and run.record.part.series == series
    return False


@contextmanager
def driving(name: str) -> Iterator[Path]:
    """Be the only process that drives the series; gives its folder, which is made.

    The lock is the kernel's, on a file: it ends with its process, however that ends, and no child inherits it.

    Raises:
        WorkError: another process drives it, or the folder cannot be written.
    """
    folder = series_folder(name)
    try:
        make_shared(folder.parent)
        folder.mkdir(exist_ok=True)
        descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise disk_error(folder, error) from None
    try:
        _lock(descriptor, name, folder)
        yield folder
    finally:
        os.close(descriptor)


def _lock(descriptor: int, name: str, folder: Path) -> None:
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            holder = os.pread(descriptor, 200, 0).decode(errors="replace").strip() or "another process"
            raise WorkError(f"series {name} is being run by {holder}: wait for its end, or stop it") from None
        print(
            f"warning: {folder}: this file system has no locks: do not start a second process for series {name}",
            file=sys.stderr,
        )
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)


class Submitter(Protocol):
    """Starts tasks and watches their runs."""

    @property
    def poll_s(self) -> float:
        """Seconds between two looks at the runs."""

    @property
    def runs_here(self) -> bool:
        """True: its runs share this machine and end with the process that started them. False: they stay in a queue."""

    def room(self, active: int) -> int:
        """How many more tasks it takes, while so many of its runs have not ended."""

    def together(self, tasks: Sequence[Task]) -> int:
        """How many of the first of these tasks, at least one, go into one submission."""

    def start(self, series: str, tasks: Sequence[Task]) -> list[Run]:
        """Start tasks that go together, or the first ones of them; returns their runs in order.

        Raises:
            RequestError, WorkError: nothing was started.
        """

    def state(self, run: Run) -> State:
        """The run's state now."""

    def stop(self, run: Run) -> None:
        """Ask the run to end. Raises WorkError: it cannot be stopped from here."""


class Chain:
    """One submission per task, at most so many at once; the next when one has ended."""

    def __init__(self, tasks: Sequence[Task], most_at_once: int) -> None:
        backends = [backend_of(task.point.site) for task in tasks]
        self.runs_here = any(backend.RUNS_HERE for backend in backends)
        self.poll_s = max((backend.POLL_S for backend in backends), default=0.0)
        self._most = most_at_once

    def room(self, active: int) -> int:
        return self._most - active

    def together(self, tasks: Sequence[Task]) -> int:
        return 1

    def start(self, series: str, tasks: Sequence[Task]) -> list[Run]:
        point, ready = tasks[0]
        return [start_run(ready, point.command, point.part(series))]

    def state(self, run: Run) -> State:
        return state_of(run)

    def stop(self, run: Run) -> None:
        cancel(run)


class Together:
    """One submission at a time, of the first tasks that go together: a job array, or one allocation for all of them.

    sizes: the most tasks of a submission, then what is tried after each refusal; the last is 1, a chain. A cluster that
    limits how many jobs a user may queue counts each task of an array; an allocation for many runs may be too long.
    """

    runs_here = False

    def __init__(self, tasks: Sequence[Task], way: TogetherAs, sizes: Sequence[int], at_once: int = 1) -> None:
        self._chain = Chain(tasks, at_once)
        self.poll_s = self._chain.poll_s
        self._way, self._at_once = way, at_once
        self._most, *self._after_refusals = sizes

    def room(self, active: int) -> int:
        if self._most < 2:
            return self._chain.room(active)
        return 0 if active else self._most

    def together(self, tasks: Sequence[Task]) -> int:
        jobs = [task.prepared.job for task in tasks[: self._most]]
        return sum(1 for _ in takewhile(lambda job: go_together([jobs[0], job]), jobs))

    def start(self, series: str, tasks: Sequence[Task]) -> list[Run]:
        if len(tasks) == 1:
            return self._chain.start(series, tasks)
        starts = [Start(ready, point.command, point.part(series)) for point, ready in tasks]
        try:
            return start_together(starts, self._way, self._at_once)
        except WorkError:
            self._most = next((size for size in self._after_refusals if size < len(tasks)), 1)
            return self.start(series, tasks[: self._most])

    def state(self, run: Run) -> State:
        return self._chain.state(run)

    def stop(self, run: Run) -> None:
        self._chain.stop(run)


def submitter_for(tasks: Sequence[Task], most_at_once: int) -> Submitter:
    """An array if the backend has them, else a chain."""
    largest = most_together(tasks, "array")
    if largest < 2 or len(tasks) < 2:
        return Chain(tasks, most_at_once)
    return Together(tasks, "array", (largest, 1), most_at_once)


def most_together(tasks: Sequence[Task], way: TogetherAs) -> int:
    """The most of these tasks that one submission may hold; 0 if they are started one after the other."""
    return min((backend_of(task.point.site).most_together(way) for task in tasks), default=0)
