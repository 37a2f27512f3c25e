"""The job's time: its parts add up to the elapsed time, and each moment belongs to the rank that is furthest behind."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from harness.analysis.summary import CodeLocation, JobTime
from harness.common.run_folder.job_parts import COMPILATION, IMPORTS, MEETING, MODEL, PARTS
from harness.common.run_folder.run_files import JOB_TIME
from harness.explain.job_time import sentence
from harness.measure.job_time.records import rank_record
from harness.measure.job_time.time_lines import (
    JobRecord,
    RankRecord,
    Stretch,
    TimedStep,
    imports_of,
    job_time,
    rank_line,
)

S = 1_000_000_000


def place(line: int) -> CodeLocation:
    return CodeLocation(file="train.py", line=line, function="main")


def record(rank: int, changes: list[tuple[float, str, int]], steps: list[float], **more: float) -> RankRecord:
    """A rank that begins at 2 s. changes: from when on, the part, the line; steps: when each began, each of 1 s."""
    end = more.get("end", 20.0)
    ends = [at for at, *_ in changes[1:]] + [end]
    return RankRecord(
        rank=rank,
        node=0,
        began_ns=round(1.5 * S),
        begun_ns=2 * S,
        changes=[
            Stretch(round(at * S), round(stop * S), part, place(line))
            for (at, part, line), stop in zip(changes, ends, strict=True)
        ],
        steps=[TimedStep(round(at * S), round(more.get("step", 1.0) * S), 0) for at in steps],
        end_ns=round(end * S),
    )


def seconds(found: JobTime) -> dict[str, float]:
    return {part.part: part.duration_ns / S for part in found.parts}


JOB = JobRecord(begin_ns=0, end_ns=25 * S, submitted_ns=-5 * S, nodes={0: (1 * S, 23 * S)})


def test_a_job_that_was_computed_by_hand() -> None:
    ranks = [
        record(0, [(2, IMPORTS, 1), (5, MEETING, 2), (8, MODEL, 3), (9, "", 4)], [10, 11, 12, 13]),
        replace(record(1, [(2, IMPORTS, 1), (6, "", 7), (8, MODEL, 3), (9, "", 4)], [10, 11, 12, 13]), node=1),
    ]
    found = job_time(replace(JOB, nodes={**JOB.nodes, 1: (S * 3 // 2, 23 * S)}), ranks)
    assert seconds(found) == {
        "job start": 1,
        "launch": 1,  # also while rank 1's node has not begun
        "imports": 4,  # rank 1's
        "meeting": 2,  # rank 0 waits for rank 1, which is at line 7
        "model": 1,
        "other": 1,
        "steps": 4,
        "tail": 6,
        "ending": 3,
        "conversion": 2,
    }
    parts = {part.part: part for part in found.parts}
    assert (parts["meeting"].rank, parts["meeting"].rank_ns, parts["meeting"].where) == (1, 3 * S, place(7))
    assert (parts["imports"].rank, parts["imports"].rank_ns) == (1, 4 * S)
    assert (found.queue_ns, found.elapsed_ns, found.useful_share) == (5 * S, 25 * S, 4 / 25)


def test_a_rank_that_ends_late_is_the_tail_with_its_line() -> None:
    early = record(0, [(2, IMPORTS, 1)], [10, 11, 12], end=13.0)
    late = record(1, [(2, IMPORTS, 1), (13, "", 9)], [10, 11, 12], end=18.0)
    tail = next(part for part in job_time(JOB, [early, late]).parts if part.part == "tail")
    assert (tail.duration_ns, tail.rank, tail.where) == (5 * S, 1, place(9))


LONG_FIRST = replace(
    record(0, [(2, MODEL, 3)], []),
    steps=[TimedStep(10 * S, 7 * S, 3 * S), *(TimedStep(at * S, S, 0) for at in (17, 18, 19))],
)
COMPILED = record(
    0, [(2, MODEL, 3), (10.5, COMPILATION, 5), (13.5, "steps", 0), (15.25, COMPILATION, 5), (16.25, "steps", 0)], []
)
CHECKPOINTS = record(
    0, [(2, MODEL, 3), (10, "steps", 0), (12, "checkpoints", 5), (13.5, "steps", 0)], [10, 11, 12, 14], step=1.5
)


@pytest.mark.parametrize(
    ("ranks", "parts"),
    [
        # rank 1 imports for longer, and so does later what rank 0 does too: before they meet, nobody is late
        ([record(0, [(2, IMPORTS, 1), (4, "", 7), (7, MEETING, 8)], [10, 11]),
          record(1, [(2, IMPORTS, 1), (6, "", 7), (9, MEETING, 8)], [10, 11])],
         {"imports": 4, "other": 3, "meeting": 1}),
        # what the first step takes longer is a part, and its first batch another
        ([LONG_FIRST], {"data": 3, "first step": 3, "steps": 4}),
        ([CHECKPOINTS], {"checkpoints": 1.5}),  # checkpoints in the steps are no steps
        # nor is torch.compile, in the first step and in a later one
        ([replace(COMPILED, steps=[TimedStep(at * S, ns * S, 0) for at, ns in ((10, 4), (14, 1), (15, 2), (17, 1))])],
         {"compilation": 4, "steps": 4}),
    ],
)  # fmt: skip
def test_each_part_has_its_time(ranks: list[RankRecord], parts: dict[str, float]) -> None:
    found = seconds(job_time(JOB, ranks))
    assert {name: found[name] for name in parts} == parts
    assert ranks != [CHECKPOINTS] or found["steps"] + found.get("first step", 0) == 4


def test_parts_add_up_whatever_the_ranks_recorded() -> None:
    dice = random.Random(3)
    for _ in range(200):
        ranks = []
        for number in range(dice.randint(1, 4)):
            at, changes = dice.uniform(0, 4), []
            for _ in range(dice.randint(0, 12)):
                changes.append((at, dice.choice([*PARTS, ""]), dice.randint(1, 9)))
                at += dice.uniform(0, 3)
            first = dice.uniform(0, 24)
            steps = [first + i * dice.uniform(0.5, 1) for i in range(dice.randint(0, 6))]
            ranks.append(record(number, changes or [(2.0, "", 1)], sorted(steps), end=dice.uniform(5, 30)))
        found = job_time(JOB, ranks)
        assert sum(part.duration_ns for part in found.parts) == found.elapsed_ns == 25 * S
        for line in (rank_line(each, 0, 25 * S) for each in ranks):
            whole = [(each.begin_ns, each.end_ns) for each in line.stretches]
            assert all(stop == start for (_, stop), (start, _) in pairwise(whole)), "a gap"


def test_an_import_of_less_than_half_a_second_belongs_to_what_imports_it() -> None:
    chains = [(("torch",), 2.0), (("torch", "numpy"), 0.2), (("transformers", "torch"), 0.4), (("transformers",), 0.7)]
    at, changes = 2.0, []
    for packages, took in chains:
        changes.append(Stretch(round(at * S), round((at + took) * S), IMPORTS, place(1), packages))
        at += took
    rank = RankRecord(0, 0, 2 * S, 2 * S, changes, [], round(at * S))
    found = imports_of([rank_line(rank, 0, 25 * S)])
    assert [(each.package, each.duration_ns / S) for each in found] == [("torch", 2.6), ("transformers", 0.7)]


def test_without_the_job_the_ranks_say_when_it_began() -> None:
    found = job_time(JobRecord(None, None), [record(0, [(2, IMPORTS, 1)], [10, 11])])
    assert (found.elapsed_ns, seconds(found)["launch"]) == (round(18.5 * S), 0.5)
    assert found.queue_ns is None


def test_what_comes_after_the_last_progress_of_a_run_that_was_stuck_is_no_tail() -> None:
    ranks = [record(0, [(2, IMPORTS, 1)], [10, 11]), record(1, [(2, IMPORTS, 1), (9, "", 7)], [])]
    found = job_time(replace(JOB, stuck_ns=14 * S), ranks)
    (stuck,) = (part for part in found.parts if part.part == "stuck")
    assert stuck.duration_ns == found.elapsed_ns - sum(ns * S for part, ns in seconds(found).items() if part != "stuck")
    assert "stuck" in sentence(found) and "let the job end" not in sentence(found) and "tail" not in seconds(found)


def test_a_job_of_which_no_rank_recorded_anything_has_no_share_of_steps() -> None:
    assert job_time(JOB, []) is None


def test_what_slurm_did_before_the_script_is_a_part_from_a_second_on() -> None:
    job = JobRecord(begin_ns=100 * S, end_ns=110 * S, submitted_ns=90 * S, allocated_ns=96 * S)
    found = job_time(job, [record(0, [(2, IMPORTS, 1)], [])])
    assert found is not None
    assert (found.queue_ns, found.elapsed_ns) == (6 * S, 14 * S)
    assert (found.parts[0].part, found.parts[0].duration_ns) == ("prolog", 4 * S)
    assert sum(part.duration_ns for part in found.parts) == found.elapsed_ns
    at_once = job_time(replace(job, allocated_ns=100 * S - 5), [record(0, [(2, IMPORTS, 1)], [])])
    assert at_once is not None
    assert at_once.elapsed_ns == 10 * S, "less than a second is the clock's"


def test_time_between_steps_is_shared_among_lines_by_the_last_sums(tmp_path: Path) -> None:
    place = {"event": "place", "file": "train.py", "function": "fit"}
    lines = [
        {"event": "process", "rank": 0, "unix_ns": 5 * S},
        *({**place, "id": number, "line": line} for number, line in ((0, 10), (1, 10), (2, 30))),
        {"event": "between", "ns": 10, "places": [[2, 10]]},
        {"event": "between", "ns": 1000, "places": [[2, 300], [0, 200], [1, 400], [9, 100]]},
    ]
    file = JOB_TIME.path(tmp_path, 0)
    file.parent.mkdir(parents=True)
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert rank_record(tmp_path, file) is None, "it was killed before it told where it was"
    with file.open("a") as more:
        more.write(json.dumps({"event": "at", "unix_ns": 6 * S, "part": IMPORTS, "id": 0}))
    found = rank_record(tmp_path, file)
    assert found is not None
    assert [(each.where.line, each.share) for each in found.between] == [(10, 0.6), (30, 0.3)]
