"""Files of single ranks that do not name the world size: one job if their collectives were the same ones, else not."""

from __future__ import annotations

import random

import pytest

from harness.analysis.job.grouping import group
from harness.analysis.job.summarise import summarise_job
from harness.analysis.summary import Summary, Window
from harness.explain.messages import least_waiting
from tests.analysis.measuring import parts_of
from tests.synthetic.columns import Made

MS = 1_000_000
BEGIN = 1_700_000_000_000_000_000


def trace(
    rank: int | None, ends: list[int], *, size: int = 8, host: str = "node0", bytes_: int = 1 << 20, ahead_ns: int = 0,
    waits_ns: int = 0, world: int | None = None,
) -> Made:  # fmt: skip
    """All-reduces of 2 ms that end then, after work of 3 ms; ahead_ns: of the host's clock."""
    made = Made(rank=rank, world_size=world, path=f"{host}-rank{rank}-{ahead_ns}.json", host=host, clock="unix")
    for number, end in enumerate(ends):
        at = BEGIN + ahead_ns + end
        made.event(at - 5 * MS - waits_ns, at - 2 * MS - waits_ns)
        made.collective(at - 2 * MS - waits_ns, at, size=bytes_ + 1024 * (number % 3), members=size)
    return made


def jobs_of(*ranks: Made) -> list[Summary]:
    return [summarise_job(job) for job in group(parts_of(*ranks, window=Window.GPU))]


def steady(seed: int, count: int = 30) -> list[int]:
    """The ends of a program's collectives, some 8 ms apart."""
    rng = random.Random(seed)
    ends = [0]
    for _ in range(count):
        ends.append(ends[-1] + round(rng.uniform(7.5, 8.5) * MS))
    return ends[1:]


@pytest.mark.parametrize(("host", "ahead_ns"), [("node0", 0), ("node1", 3 * MS)])
def test_the_same_collectives_at_the_same_time_are_one_job_with_missing_ranks(host: str, ahead_ns: int) -> None:
    ends = steady(1)
    (job,) = jobs_of(trace(0, ends), trace(4, ends, host=host, ahead_ns=ahead_ns))
    assert (job.world_size, job.ranks) == (8, [0, 4])
    assert any("missing: 1, 2, 3, 5, 6, 7" in problem.evidence for problem in job.quality.problems)


def test_ranks_that_join_a_job_of_two_are_of_it_and_a_stranger_is_not() -> None:
    ends = steady(1)
    jobs = jobs_of(*(trace(rank, ends) for rank in (0, 4, 6)), trace(5, steady(2)))
    assert sorted(job.ranks for job in jobs) == [[0, 4, 6], [5]]


@pytest.mark.parametrize(
    "other",
    [
        trace(4, steady(2)),  # another job of the same program at the same time
        trace(4, steady(1), ahead_ns=20 * MS),  # on the same host, but later
        trace(4, steady(1), host="node1", ahead_ns=5_000 * MS),  # a later run
        trace(4, steady(1), bytes_=1 << 21),  # other sizes
        trace(4, steady(1), size=16),  # other groups
        trace(9, steady(1)),  # no rank of a group of 8
        trace(0, steady(1), host="node1"),  # the same rank again
        trace(4, steady(1)[:3]),  # too few to know
        trace(None, steady(1)),  # no rank
    ],
)
def test_without_that_they_stay_apart(other: Made) -> None:
    assert len(jobs_of(trace(0, steady(1)), other)) == 2


def test_two_groups_of_two_ranks_with_the_same_calls_are_not_joined() -> None:
    ends = steady(1)
    assert len(jobs_of(trace(0, ends, size=2), trace(4, ends, size=2))) == 2


def test_what_one_rank_takes_longer_is_waiting_though_others_are_missing() -> None:
    ends = steady(1)
    (job,) = jobs_of(trace(0, ends, waits_ns=MS), trace(4, ends))
    (row,) = job.collectives
    assert (row.waiting_ns, row.least_waiting_ns) == (None, 30 * MS)
    assert least_waiting(job) == ("At least 20.0 % of the time in collectives of the ranks that were read is waiting.")


def test_of_a_whole_job_nothing_is_at_least() -> None:
    ends = steady(1)
    (job,) = jobs_of(trace(0, ends, size=2, waits_ns=MS), trace(1, ends, size=2))
    assert (job.world_size, job.collectives[0].waiting_ns, job.collectives[0].least_waiting_ns) == (2, 30 * MS, None)
    assert least_waiting(job) == ""
