"""Who is before whom in Slurm's queue, held against a list in which each task of an array is a job of its own."""

from __future__ import annotations

import random

import pytest

from harness.site.slurm_commands import QueueEntry
from harness.site.slurm_queue import QueuePlace, of_these, places_of


def entry(number: str, priority: int = 100, reason: str = "Priority", **fields: str) -> QueueEntry:
    given = {"word": "PENDING", "partition": "boost", **fields}
    return QueueEntry(number=number, priority=str(priority), reason=reason, starts="N/A", ends="N/A", **given)


def test_by_priority_then_by_number() -> None:
    queue = [entry("13", 50), entry("12"), entry("9"), entry("10", 200)]
    found = places_of(queue, ["9", "10", "12", "13", "99"])
    assert {number: place for number, (_, place, _) in found.items()} == {"10": 1, "9": 2, "12": 3, "13": 4}
    assert set(found.values()) >= {QueuePlace("boost", 1, 4)}


@pytest.mark.parametrize(
    "other",
    [
        entry("1", 0, "JobHeldUser"), entry("1", 999, "Dependency"), entry("1", 999, "BeginTime"),
        entry("1_[0-99%4]", 999, "JobArrayTaskLimit"), entry("1_[0-9]", 999, "JobArrayTaskLimit,JobHeldAdmin"),
        entry("1", 999, word="RUNNING"), entry("1", 999, partition="debug"),
    ],
)  # fmt: skip
def test_what_does_not_wait_for_its_turn_counts_for_nobody_and_has_no_place(other: QueueEntry) -> None:
    found = places_of([other, entry("7")], ["1", "7"])
    assert found["7"] == ("boost", 1, 1)
    assert other.partition == "debug" or "1" not in found


def test_of_several_partitions_the_one_with_the_fewest_before_it() -> None:
    queue = [entry("1"), entry("2"), entry("3"), entry("3", partition="debug"), entry("4", partition="debug")]
    assert places_of(queue, ["3"]) == {"3": ("debug", 1, 2)}


def test_tasks_of_arrays_are_jobs() -> None:
    queue = [entry("5_[2-4,8-12:2%3]"), entry("5_1", word="RUNNING"), entry("6"), entry("4_[7]")]
    numbers = ["4_7", "5_1", "5_2", "5_8", "5_9", "5_10", "6", "7_0"]
    found = places_of(queue, numbers)
    assert {number: place.position for number, place in found.items()} == {
        "4_7": 1, "5_2": 2, "5_8": 5, "5_10": 6, "6": 8,
    }  # fmt: skip
    assert {place.length for place in found.values()} == {8}
    ours = of_these(queue, numbers)
    assert {number: ours[number].word for number in ours} == {
        "4_7": "PENDING", "5_1": "RUNNING", "5_2": "PENDING", "5_8": "PENDING", "5_10": "PENDING", "6": "PENDING",
    }  # fmt: skip


def test_random_queues() -> None:
    chance = random.Random(1)
    for _ in range(50):
        queue, jobs = [], []
        for job in range(1, 30):
            priority, partition = chance.randrange(4), chance.choice(["a", "b"])
            tasks = sorted(chance.sample(range(20), chance.randrange(1, 9))) if chance.random() < 0.5 else []
            number = f"{job}_[{','.join(map(str, tasks))}]" if tasks else f"{job}"
            queue.append(entry(number, priority, partition=partition))
            names = [f"{job}_{task}" for task in tasks] or [f"{job}"]
            jobs += [(partition, -priority, job, n, name) for n, name in enumerate(names) if priority]
        chance.shuffle(queue)
        wanted: dict[str, tuple[str, int, int]] = {}
        for partition in "ab":
            ordered = sorted(each for each in jobs if each[0] == partition)
            wanted |= {each[-1]: (partition, n, len(ordered)) for n, each in enumerate(ordered, 1)}
        assert places_of(queue, list(wanted)) == wanted


@pytest.mark.parametrize("number", ["", "x", "7_[", "7_[0-3,...%2]", "7_[0-9:0]", "7_[" + "9" * 99 + "]", "7+0", "-1"])
def test_other_numbers_stop_nothing(number: str) -> None:
    assert places_of([entry(number), entry("8", 1)], ["8"])["8"].position >= 1
