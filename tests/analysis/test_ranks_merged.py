"""The ranks of a job in one summary: in any order, and very many of them."""

from __future__ import annotations

import pickle
from functools import cache

import pytest

from harness.analysis.job.summarise import summarise_job
from harness.analysis.process.part import RankPart, compressed, in_order
from harness.analysis.summary import Window
from harness.measure.jobs import summarise
from harness.measure.paths import measure_files
from tests.analysis.measuring import a_rank
from tests.analysis.measuring import parts_of as parts_of_traces
from tests.analysis.test_pipeline import cpu_rank, with_messages
from tests.real_traces import real_trace
from tests.synthetic.columns import Made

KINDS = ("synthetic", "uneven", "pipeline", "real")


def rank(number: int, world: int = 6) -> Made:
    made = a_rank(number, world, f"node{number // 2}")
    for i in range(3):
        at = i * 1000 + 7 * number
        made.step(at, at + 1000, i)
        made.event(at, at + 300, launch_ns=at).event(at + 300, at + 400, f"kernel_{i}", launch_ns=at + 5)
        made.copy(at + 410, at + 430, 4096 * (number + 1), host_memory=1)
        made.collective(at + 500 + 11 * number, at + 800, size=1 << 16, members=world)
    return made


@cache
def parts_of(kind: str) -> tuple[RankPart, ...]:
    """Six ranks that do the same; six of which one counted a step more; a pipeline of four whose sends
    and receives have no common instance; the eight ranks of a real job."""
    if kind == "real":
        files = sorted(real_trace("kineto_dlrm_v100_8ranks").glob("*.json.gz"))
        return tuple(measure_files(files, Window.STEPS).parts)
    made = [rank(number) for number in range(6)]
    if kind == "pipeline":
        made = [with_messages(cpu_rank(stage, 4, 3), stage, 4, 3) for stage in range(4)]
    if kind == "uneven":
        made[4].step(4000, 5000, 3).event(4000, 4300, launch_ns=4000)
        made[4].collective(4500, 4800, size=1 << 16, members=6)
    return tuple(parts_of_traces(*made))


@pytest.mark.parametrize("kind", KINDS)
def test_the_order_of_the_parts_changes_nothing(kind: str) -> None:
    parts = parts_of(kind)
    moved = [*parts[2:], *reversed(parts[:2])]
    assert summarise_job(moved).model_dump_json() == summarise_job(parts).model_dump_json()


def test_parts_are_the_same_in_any_order_in_another_process_and_in_little_memory() -> None:
    parts = list(parts_of("synthetic"))
    assert in_order([*reversed(parts), *parts[:2]]) == parts, "each of them once"
    assert pickle.loads(pickle.dumps(parts)) == parts == [compressed(part) for part in parts]
    assert summarise_job([*map(compressed, parts)]).model_dump_json() == summarise_job(parts).model_dump_json()


def test_sums_over_ranks_are_sums_over_ranks() -> None:
    found = summarise_job(list(parts_of("synthetic")))
    alone = [summarise_job([part]) for part in parts_of("synthetic")]
    assert sum(k.duration_ns for k in found.kinds) == sum(k.duration_ns for s in alone for k in s.kinds)
    assert sum(k.count for k in found.kernels) == sum(k.count for s in alone for k in s.kernels)
    assert sum(c.bytes for c in found.copies) == sum(c.bytes for s in alone for c in s.copies)
    assert found.steps.counted == 3 * 6


def test_a_job_of_very_many_ranks_has_no_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    (few,) = summarise(parts_of("synthetic"))
    monkeypatch.setattr("harness.measure.jobs.MOST_REPLAYED", 4)
    (many,) = summarise(parts_of("synthetic"))
    assert [w.field for w in many.quality.withheld if w not in few.quality.withheld] == ["replay"]
    assert many.kernels == few.kernels and many.steps == few.steps
