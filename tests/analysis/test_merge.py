"""Ranks in any order give the same summary (in any split: test_tree.py); a thousand ranks merge without effort."""

from __future__ import annotations

import pickle
import resource
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.analysis.job.grouping import group
from harness.analysis.job.summarise import summarise_job
from harness.analysis.process.part import RankPart, compressed, deserialize, in_order, serialize
from harness.analysis.summary import Summary, TraceSource
from tests.analysis.measuring import a_rank, part_of
from tests.analysis.measuring import parts_of as parts_of_traces
from tests.synthetic.columns import Made

RANKS = 6


def rank(number: int, world: int = RANKS) -> Made:
    made = a_rank(number, world, f"node{number // 2}")
    for i in range(3):
        at = i * 1000 + 7 * number
        made.step(at, at + 1000, i)
        made.event(at, at + 300, launch_ns=at).event(at + 300, at + 400, f"kernel_{i}", launch_ns=at + 5)
        made.copy(at + 410, at + 430, 4096 * (number + 1), host_memory=1)
        made.collective(at + 500 + 11 * number, at + 800, size=1 << 16, members=world)
    return made


@cache
def parts() -> tuple[RankPart, ...]:
    return tuple(parts_of_traces(*(rank(r) for r in range(RANKS))))


def text(found: list[RankPart]) -> str:
    return summarise_job(found).model_dump_json()


@given(st.permutations(range(RANKS)))
def test_any_order_gives_the_same_summary(order: list[int]) -> None:
    assert text(in_order(parts()[i] for i in order)) == text(list(parts()))


@given(st.integers(0, RANKS), st.integers(0, RANKS))
def test_merging_is_associative_commutative_and_idempotent(i: int, j: int) -> None:
    everything = list(parts())
    a, b, c = everything[:i], everything[i:j], everything[j:]
    assert in_order([*in_order([*a, *b]), *c]) == in_order([*a, *in_order([*b, *c])])
    assert in_order([*a, *b]) == in_order([*b, *a])
    assert in_order([*a, *a, *b]) == in_order([*a, *b])


def test_a_part_is_the_same_in_another_process_and_in_little_memory() -> None:
    moved = pickle.loads(pickle.dumps(list(parts())))
    assert text(deserialize(serialize(list(parts())), list[RankPart])) == text(list(parts()))
    assert moved == list(parts()) == [compressed(part) for part in parts()]
    assert text(moved) == text(list(parts())) == text([compressed(part) for part in parts()])


def test_sums_over_ranks_are_sums_over_ranks() -> None:
    found = summarise_job(list(parts()))
    alone = [summarise_job([part]) for part in parts()]
    assert sum(k.duration_ns for k in found.kinds) == sum(k.duration_ns for s in alone for k in s.kinds)
    assert sum(k.count for k in found.kernels) == sum(k.count for s in alone for k in s.kernels)
    assert sum(c.bytes for c in found.copies) == sum(c.bytes for s in alone for c in s.copies)
    assert found.steps.counted == 3 * RANKS


def shifted(part: RankPart, number: int, world: int) -> RankPart:
    """A copy of a real part as another rank on another host, its clock shifted."""
    source = part.source.model_copy(
        update={"rank": number, "path": f"rank{number}.json", "world_size": world, "host": f"node{number // 4}"}
    )
    devices = [d.model_copy(update={"rank": number}) for d in part.devices]
    return part.model_copy(update={"source": source, "devices": devices, "epoch_ns": 1000 * (number // 4)})


def test_a_thousand_ranks_merge_in_flat_memory() -> None:
    one = part_of(rank(0, 1000))
    summarise_job([shifted(one, i, 10) for i in range(10)])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    thousand = in_order(shifted(one, i, 1000) for i in range(1000))
    found = summarise_job(thousand)
    grown_mib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert (len(found.ranks), found.collectives[0].ranks, found.collectives[0].count) == (1000, 1000, 3)
    assert len(found.clocks) == 250
    assert grown_mib < 200


def identified(
    path: str, rank: int | None, world: int | None, run: str | None = None, pid: int | None = None
) -> RankPart:
    source = TraceSource(path=path, tool="kineto", rank=rank, world_size=world, pid=pid)
    return parts()[0].model_copy(update={"source": source, "run": run})


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


def test_a_summary_survives_json_and_refuses_what_it_does_not_know() -> None:
    found = summarise_job(list(parts()))
    assert Summary.model_validate_json(found.model_dump_json()) == found
