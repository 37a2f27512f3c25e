"""Ranks merged as a tree: whatever its shape, the summary is that of all parts at once, to the nanosecond."""

from __future__ import annotations

import json
import pickle
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import NODEFAULT
from msgspec.structs import fields

from harness.analysis.job import partial_merge
from harness.analysis.job.partial_merge import JobMerge, join_merges, merge_parts
from harness.analysis.job.summarise import summarise_job, summarise_merge
from harness.analysis.process.part import RankPart, compressed, deserialize, in_order, serialize
from harness.analysis.summary import Device, Summary, Window
from harness.common.errors import RequestError
from harness.measure import partial_merge as merges
from harness.measure.jobs import summarise
from harness.measure.partial_merge import join_partial_merges, merge_of_parts, summarise_partial_merge
from harness.measure.paths import measure_files
from harness.measure.request import ReportRequest, measure_request
from tests.analysis.measuring import a_rank
from tests.analysis.measuring import parts_of as parts_of_traces
from tests.analysis.test_pipeline import cpu_rank, with_messages
from tests.analysis.test_silent_errors import kernel, timed, write_decimals
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


@cache
def flat(kind: str, most: int) -> str:
    return summarise_job(parts_of(kind)).model_dump_json()


@pytest.fixture(params=[1024, 2], ids=["all in detail", "the outermost in detail"])
def most(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(partial_merge, "MOST_DETAILED", request.param)
    monkeypatch.setattr(partial_merge, "OUTERMOST", 1)
    return int(request.param)


def grown(leaves: list[JobMerge], data: st.DataObject) -> JobMerge:
    """The leaves joined as a tree of any shape, some of it by way of bytes."""
    nodes = list(leaves)
    while len(nodes) > 1:
        first = data.draw(st.integers(0, len(nodes) - 2))
        last = data.draw(st.integers(first + 2, len(nodes)))
        joined = join_merges(nodes[first:last])
        nodes[first:last] = [deserialize(serialize(joined), JobMerge) if data.draw(st.booleans()) else joined]
    return nodes[0]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_any_tree_gives_the_summary_of_the_flat_merge(kind: str, most: int, data: st.DataObject) -> None:
    parts = data.draw(st.permutations(parts_of(kind)))
    cuts = sorted(data.draw(st.sets(st.integers(1, len(parts) - 1))))
    chunks = [parts[a:b] for a, b in zip([0, *cuts], [*cuts, len(parts)], strict=True)]
    whole = grown([merge_parts(chunk) for chunk in chunks], data)
    assert summarise_merge(whole).model_dump_json() == flat(kind, most)


def test_parts_are_the_same_in_any_order_in_another_process_and_in_little_memory() -> None:
    parts = list(parts_of("synthetic"))
    assert in_order([*reversed(parts), *parts[:2]]) == parts, "each of them once"
    assert pickle.loads(pickle.dumps(parts)) == parts == [compressed(part) for part in parts]
    again = deserialize(serialize(parts), list[RankPart])
    texts = {summarise_job(each).model_dump_json() for each in (again, [compressed(part) for part in parts])}
    assert texts == {flat("synthetic", 1024)}


def test_sums_over_ranks_are_sums_over_ranks() -> None:
    found = summarise_job(list(parts_of("synthetic")))
    alone = [summarise_job([part]) for part in parts_of("synthetic")]
    assert sum(k.duration_ns for k in found.kinds) == sum(k.duration_ns for s in alone for k in s.kinds)
    assert sum(k.count for k in found.kernels) == sum(k.count for s in alone for k in s.kernels)
    assert sum(c.bytes for c in found.copies) == sum(c.bytes for s in alone for c in s.copies)
    assert found.steps.counted == 3 * 6


OF_ONE_RANK = {"host_activities", "long_messages", "devices", "sources", "launches", "quality"}


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_without_details_change_no_number_of_the_job(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    detailed = summarise_job(parts_of(kind))
    monkeypatch.setattr(partial_merge, "MOST_DETAILED", 2)
    monkeypatch.setattr(partial_merge, "OUTERMOST", 1)
    bounded = summarise_job(parts_of(kind))
    for name in {*Summary.__struct_fields__} - OF_ONE_RANK:
        assert getattr(bounded, name) == getattr(detailed, name), name
    totals = [field.name for field in fields(Device) if field.default_factory is NODEFAULT]
    for one, other in zip(bounded.devices, detailed.devices, strict=True):
        assert [getattr(one, name) for name in totals] == [getattr(other, name) for name in totals]
    named = [d.rank for d in bounded.devices if d.kinds]
    assert 0 < len(named) < len(detailed.devices)
    slowest = detailed.steps.slowest_rank
    assert slowest in named
    (said,) = [w for w in bounded.quality.withheld if w.field == partial_merge.DETAILS]
    assert said.reason.startswith(f"of {len(detailed.devices)} ranks only the {len(named)} outermost")


def dumped(found: list[Summary]) -> list[dict[str, Any]]:
    """Without the replay, which needs the events of all ranks at once."""
    texts = [json.loads(summary.model_dump_json()) for summary in found]
    for text in texts:
        del text["replay"], text["findings"]
        withheld = text["quality"]["withheld"]
        text["quality"]["withheld"] = [w for w in withheld if w["field"] != merges.REPLAY]
        for unknown in ("serialisation", "transfer", "split_unknown", "ideal_elapsed_ns"):
            (text["pop"] or {}).pop(unknown, None)
    return texts


def moved(part: RankPart, path: str, **more: Any) -> RankPart:
    return part.model_copy(update={"source": part.source.model_copy(update={"path": path, **more})})


def test_the_jobs_of_several_folders_are_those_of_the_flat_merge() -> None:
    one = [moved(part, f"a/{part.source.path}") for part in parts_of("synthetic")]
    apart = [moved(part, f"{part.source.rank}/b.json", world_size=7) for part in one]
    alone = moved(one[0], "c/x.json", rank=None, world_size=None)
    helper = moved(one[0], "0/b.json", rank=None, pid=900).model_copy(
        update={"steps": one[0].steps.model_copy(update={"durations_ns": []})}
    )
    leaves = [merge_of_parts(some) for some in ([*one[:2], alone], [*apart, helper], one[2:])]
    whole = join_partial_merges([join_partial_merges(leaves[:2]), leaves[2]])
    found = summarise_partial_merge(whole)
    assert len(found) == 3
    assert [[w.field for w in each.quality.withheld].count(merges.REPLAY) for each in found] == [1] * 3
    assert dumped(found) == dumped(summarise([*one, *apart, alone, helper]))


def test_a_folder_that_holds_a_rank_twice_is_one_sentence() -> None:
    one = [moved(part, f"a/{part.source.path}") for part in parts_of("synthetic")]
    twice = merge_of_parts([*one, moved(one[0], "a/again.json")])
    with pytest.raises(RequestError, match=r"^a: its traces hold a rank twice"):
        summarise_partial_merge(twice)


def test_many_traces_are_measured_as_a_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for r in range(5):
        (tmp_path / f"r{r}").mkdir()
        events = [timed("ProfilerStep#1", "user_annotation", 0, 1000), kernel(10, 100 * (r + 1), 1)]
        write_decimals(tmp_path / f"r{r}", events).rename(tmp_path / f"rank{r}.json")
    flat = measure_request(ReportRequest([str(tmp_path)])).summaries
    monkeypatch.setattr("harness.measure.request.MOST_DETAILED", 4)
    monkeypatch.setattr("harness.measure.partial_merge.AT_ONCE", 2)
    found = measure_request(ReportRequest([str(tmp_path)])).summaries
    assert dumped(found) == dumped(flat)
    assert all(any(w.field == "replay" for w in s.quality.withheld) for s in found)
