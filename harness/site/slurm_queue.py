"""Which of the jobs in a queue are ours, and which place those have that wait for their turn. Asks nobody."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from harness.common.slurm_notation import job_and_tasks
from harness.site.slurm_commands import QueueEntry

# Slurm leaves these out when it looks for a job to start: they wait for something else than their turn.
NOT_IN_TURN = frozenset(
    {"Dependency", "DependencyNeverSatisfied", "BeginTime", "JobArrayTaskLimit", "JobHeldUser", "JobHeldAdmin"}
)


class QueuePlace(NamedTuple):
    """A run's place among the jobs of a partition that wait for their turn. position: from 1; length: of all of
    them."""

    partition: str
    position: int
    length: int


class _WaitingEntry(NamedTuple):
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
        job, tasks = job_and_tasks(entry.number)
        for number, task in wanted.get(job, ()):
            if not tasks or any(task in each for each in tasks):
                found.setdefault(number, entry)
    return found


def places_of(entries: Iterable[QueueEntry], numbers: Collection[str]) -> dict[str, QueuePlace]:
    """The place of each of these jobs that waits for its turn, by number. Of a job in several partitions, the one in
    which the fewest are before it.

    entries: those of all users. A list of tasks that squeue has cut counts as far as it is written.
    """
    queues: dict[str, list[_WaitingEntry]] = defaultdict(list)
    for entry in entries:
        if entry.word == "PENDING" and _in_turn(entry.reason) and entry.priority not in ("", "0"):
            priority = int(entry.priority) if entry.priority.isdecimal() else 0
            queues[entry.partition].append(_WaitingEntry(priority, *job_and_tasks(entry.number)))
    wanted = _by_job(numbers)
    found: dict[str, QueuePlace] = {}
    for partition, queue in queues.items():
        length = sum(each.jobs for each in queue)
        for number, place in _in(queue, wanted):
            other = found.get(number)
            if other is None or place < other.position:
                found[number] = QueuePlace(partition, place, length)
    return found


def _in_turn(reason: str) -> bool:
    """Whether it waits for its turn. Of an array's tasks, which are one entry, squeue writes each reason once.

    >>> _in_turn("Priority"), _in_turn("JobArrayTaskLimit,JobHeldUser"), _in_turn("None,JobHeldUser")
    (True, False, True)
    """
    return not NOT_IN_TURN.issuperset(reason.split(","))


def _in(queue: list[_WaitingEntry], waiting_jobs: dict[int, list[tuple[str, int]]]) -> Iterator[tuple[str, int]]:
    """The wanted jobs of one partition, each with its place from 1."""
    before = 0
    for waiting in sorted(queue, key=lambda each: (-each.priority, each.job, each.first)):
        for number, task in waiting_jobs.get(waiting.job, ()):
            if not waiting.tasks:
                yield number, before + 1
            elif any(task in each for each in waiting.tasks):
                earlier = sum(len(range(each.start, min(each.stop, task), each.step)) for each in waiting.tasks)
                yield number, before + earlier + 1
        before += waiting.jobs


def _by_job(numbers: Collection[str]) -> dict[int, list[tuple[str, int]]]:
    """Numbers as ours by their job: each with its task, -1 if it is none of an array."""
    found: dict[int, list[tuple[str, int]]] = defaultdict(list)
    for number in numbers:
        job, tasks = job_and_tasks(number)
        found[job].append((number, tasks[0].start if tasks else -1))
    return found
