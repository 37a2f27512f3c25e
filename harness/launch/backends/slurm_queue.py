"""Who is before whom in Slurm's queue, from a list of everybody's jobs. Asks nobody.

The order is the one in which Slurm considers jobs: by priority, then by number (`man squeue`, --priority).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from harness.launch.backends.protocol import QueuePlace
from harness.site.slurm_commands import QueueEntry

# Slurm leaves these out when it looks for a job to start: they wait for something else than their turn.
NOT_IN_TURN = frozenset(
    {
        "Dependency",
        "DependencyNeverSatisfied",
        "BeginTime",
        "JobArrayTaskLimit",
        "JobHeldUser",
        "JobHeldAdmin",
    }
)
_NUMBER = re.compile(r"(\d+)(?:_\[?([\d,:-]+))?")
_TASKS = re.compile(r"(\d{1,9})(?:-(\d{1,9})(?::([1-9]\d{0,8}))?)?")


class _Waiting(NamedTuple):
    """An entry that waits for its turn: a job, or tasks of an array (empty: it is no array)."""

    priority: int
    job: int
    tasks: tuple[range, ...]

    @property
    def first(self) -> int:
        return self.tasks[0].start if self.tasks else 0

    @property
    def jobs(self) -> int:
        return sum(map(len, self.tasks)) or 1


def of_these(entries: Iterable[QueueEntry], numbers: Collection[str]) -> dict[str, QueueEntry]:
    """The entries of these jobs, by number; a task of an array that waits has its array's entry."""
    wanted = _by_job(numbers)
    found: dict[str, QueueEntry] = {}
    for entry in entries:
        job, tasks = _parsed(entry.number)
        for number, task in wanted.get(job, ()):
            if not tasks or any(task in each for each in tasks):
                found.setdefault(number, entry)
    return found


def places_of(entries: Iterable[QueueEntry], numbers: Collection[str]) -> dict[str, QueuePlace]:
    """The place of each of these jobs that waits for its turn, by number. Of a job in several partitions, the one in
    which the fewest are before it.

    entries: those of all users. A list of tasks that squeue has cut counts as far as it is written.
    """
    queues: dict[str, list[_Waiting]] = defaultdict(list)
    for entry in entries:
        if entry.word == "PENDING" and _in_turn(entry.reason) and entry.priority not in ("", "0"):
            queues[entry.partition].append(_Waiting(_whole(entry.priority), *_parsed(entry.number)))
    wanted = _by_job(numbers)
    found: dict[str, QueuePlace] = {}
    for partition, queue in queues.items():
        length = sum(each.jobs for each in queue)
        for number, place in _in(queue, wanted):
            other = found.get(number)
            if other is None or place < other.place:
                found[number] = QueuePlace(partition, place, length)
    return found


def _in_turn(reason: str) -> bool:
    """Whether it waits for its turn. Of an array's tasks, which are one entry, squeue writes each reason once.

    >>> _in_turn("Priority"), _in_turn("JobArrayTaskLimit,JobHeldUser"), _in_turn("None,JobHeldUser")
    (True, False, True)
    """
    return not NOT_IN_TURN.issuperset(reason.split(","))


def _in(queue: list[_Waiting], wanted: dict[int, list[tuple[str, int]]]) -> Iterator[tuple[str, int]]:
    """The wanted jobs of one partition, each with its place from 1."""
    before = 0
    for waiting in sorted(queue, key=lambda each: (-each.priority, each.job, each.first)):
        for number, task in wanted.get(waiting.job, ()):
            if not waiting.tasks:
                yield number, before + 1
            elif any(task in each for each in waiting.tasks):
                earlier = sum(
                    len(range(each.start, min(each.stop, task), each.step)) for each in waiting.tasks
                )
                yield number, before + earlier + 1
        before += waiting.jobs


def _by_job(numbers: Collection[str]) -> dict[int, list[tuple[str, int]]]:
    """Numbers as ours by their job: each with its task, -1 if it is none of an array."""
    found: dict[int, list[tuple[str, int]]] = defaultdict(list)
    for number in numbers:
        job, tasks = _parsed(number)
        found[job].append((number, tasks[0].start if tasks else -1))
    return found


def _parsed(number: str) -> tuple[int, tuple[range, ...]]:
    """
    >>> _parsed("4711"), _parsed("4711_3"), _parsed("4711_[0-3,8-12:2%4]")
    ((4711, ()), (4711, (range(3, 4),)), (4711, (range(0, 4), range(8, 13, 2))))
    """
    found = _NUMBER.match(number)
    if found is None:
        return -1, ()
    tasks = (_TASKS.match(part) for part in (found[2] or "").split(","))
    return int(found[1]), tuple(
        range(int(each[1]), int(each[2] or each[1]) + 1, int(each[3] or 1)) for each in tasks if each
    )


def _whole(text: str) -> int:
    return int(text) if text.isdecimal() else 0
