"""Which files are one job: by what they say of themselves, by their collectives, or by their names."""

from __future__ import annotations

import random
from typing import Any

import pytest

from harness.analysis.job.grouping import group
from harness.analysis.job.summarise import summarise_job
from harness.analysis.process.part import RankPart, used_a_gpu
from harness.analysis.summary import Summary, TraceSource, Window
from harness.explain.messages import least_waiting
from tests.analysis.measuring import part_of, parts_of
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


STEPPED = Made().step(0, 1000, 0).event(0, 300, launch_ns=0)


def identified(
    path: str, rank: int | None, world: int | None, run: str | None = None, pid: int | None = None
) -> RankPart:
    source = TraceSource(path=path, tool="kineto", rank=rank, world_size=world, pid=pid)
    return part_of(STEPPED).model_copy(update={"source": source, "run": run})


@pytest.mark.parametrize(
    ("files", "jobs"),
    [
        ([("a/r1", 1, 2), ("a/r0", 0, 2)], [["a/r0", "a/r1"]]),  # their world size says so
        ([("a/x", None, None), ("a/y", None, None)], [["a/x"], ["a/y"]]),
        ([(f"{folder}/r{r}", r, 2) for folder in ("a", "b") for r in (0, 1)], [["a/r0", "a/r1"], ["b/r0", "b/r1"]]),
        ([("a/x0", 0, 2), ("a/y0", 0, 2)], [["a/x0"], ["a/y0"]]),  # a rank twice in one folder
        ([("a", 0, 2, None, 1), ("a", 0, 2, None, 2), ("b", 1, 2)], [["a", "a"], ["b"]]),  # a rank twice in one file
        # the reports of a run, whatever they say of themselves
        ([("run/node0", None, None, "run"), ("run/node1", None, None, "run")], [["run/node0", "run/node1"]]),
    ],
)
def test_files_are_grouped_by_what_they_say_of_themselves(files: list[tuple[Any, ...]], jobs: list[list[str]]) -> None:
    assert [[p.source.path for p in job] for job in group([identified(*file) for file in files])] == jobs


def test_a_process_that_helps_the_ranks_of_its_file_is_named_and_not_counted() -> None:
    (job,) = group([identified("a", rank, 2) for rank in (0, 1)] + [identified("a", None, 2, pid=900)])
    assert [part.source.rank for part in job] == [0, 1]
    (finding,) = [finding for finding in job[0].problems if "is no rank" in finding.what]
    assert "process 900 (a)" in finding.evidence


def test_a_process_with_steps_may_be_the_rank_that_is_missing() -> None:
    (job,) = group([identified("a", 0, 2), identified("a", None, 2, pid=900)])
    assert [part.source.pid for part in job] == [None, 900]


def report(path: str, late_ns: int = 0, source: str = "nsys") -> Made:
    """A file of a process that works for three batches on a GPU; it tells no rank and no world size."""
    made = Made(source=source, path=path, epoch_ns=BEGIN + late_ns)
    for i in range(3):
        made.range(i * 1000, i * 1000 + 1000, f"batch_{i}").event(i * 1000 + 100, i * 1000 + 600, launch_ns=i * 1000)
    return made


def host_only(path: str) -> Made:
    return Made(source="nsys", path=path, epoch_ns=BEGIN).range(0, 3000, "batch_0")


ALONE: list[tuple[list[int], int | None]] = [([], None), ([], None)]
NUMBERED: list[tuple[list[Made], list[tuple[list[int], int | None]]]] = [
    *(([report(f"t/{name.format(r)}", late_ns=r) for r in range(4)], [([0, 1, 2, 3], 4)])
      for name in ("report.{}.sqlite", "report_{}.sqlite", "n2_job17_{}.sqlite", "prof-{:03}.sqlite")),
    *(([report(f"t/{name}", late_ns=i * late_ns) for i, name in enumerate(names)], ALONE) for names, late_ns in (
        (("report1.sqlite", "report2.sqlite"), 0),
        (("report.0.sqlite", "report.2.sqlite"), 0),
        (("a0.sqlite", "b1.sqlite"), 0),
        (("a0_b0.sqlite", "a1_b1.sqlite"), 0),
        (("report.0.sqlite", "report.1.sqlite"), 10**10),  # later recordings
    )),
    ([report(f"t/trace.{number}.json", source="kineto") for number in range(2)], ALONE),
    ([report(f"t/{name}.{rank}.sqlite") for name in ("before", "after") for rank in range(2)], [([0, 1], 2)] * 2),
    # a launcher without work of a GPU comes last and is no rank, also where it has the first number
    ([host_only("t/report.0.sqlite"), report("t/report.1.sqlite"), report("t/report.2.sqlite")], [*ALONE, ([], None)]),
    ([host_only("t/a.sqlite"), *(report(f"t/report.{rank}.sqlite") for rank in range(2))], [([0, 1], 2), ([], None)]),
    ([host_only(f"t/report.{rank}.sqlite") for rank in range(2)], [([0, 1], 2)]),  # of CPUs only
]  # fmt: skip


@pytest.mark.parametrize(("files", "jobs"), NUMBERED)
def test_reports_of_nsys_that_count_up_from_0_are_one_job(
    files: list[Made], jobs: list[tuple[list[int], int | None]]
) -> None:
    found = group(parts_of(*files, window=Window.GPU))
    assert [(summary.ranks, summary.world_size) for summary in map(summarise_job, found)] == jobs
    works = [any(map(used_a_gpu, job)) for job in found]
    assert works == sorted(works, reverse=True), "a launcher comes last"


FOLDERS = {  # of one trace each without a rank, whose collectives name a group of two or four: the ranks of each job
    "rank_0 rank_1": [[0, 1]],
    "rank1 rank0": [[0, 1]],
    "gpu0 gpu1 gpu2 gpu3": [[0, 1, 2, 3]],
    "node0-gpu0 node0-gpu1 node1-gpu0 node1-gpu1": [[0, 1, 2, 3]],
    "lrdn0123/gpu0 lrdn0123/gpu1 lrdn0777/gpu0 lrdn0777/gpu1": [[0, 1, 2, 3]],
    "rank_0/job_1712000000 rank_1/job_1712000007": [[0, 1]],
    "run1/rank0 run1/rank1 run2/rank0 run2/rank1": [[0, 1], [0, 1]],
    "rank_0 rank_2": [[], []],  # one is missing, or the numbers are others
    "before after": [[], []],
    "1 2": [[], []],
    "rank_0 worker_1": [[], []],
}


@pytest.mark.parametrize("names", FOLDERS)
def test_folders_number_the_ranks_of_traces_that_do_not_if_the_collectives_name_as_many(names: str) -> None:
    """Of collectives of two, two folders are not the ranks of a job of four."""
    folders = names.split()
    size = len(folders) // (2 if "run2" in names else 1)
    for members, jobs in ((size, FOLDERS[names]), (size + 1, [[]] * len(folders)), (-1, [[]] * len(folders))):
        made = [trace(None, steady(1), size=members) for _ in folders]
        for number, one in enumerate(made):
            one.identity["path"] = f"/data/{folders[number]}/profile.json"
        found = jobs_of(*made)
        assert sorted(job.ranks for job in found) == jobs
        assert all(job.world_size == (len(job.ranks) or None) for job in found)
