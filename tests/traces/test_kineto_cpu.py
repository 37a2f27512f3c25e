"""Traces that were recorded now, without a GPU: operators stand in for kernels, gloo's spans are the communication."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path

from harness.traces import open_trace
from harness.traces.trace import Activity, RangeKind
from tests.traces.recorded import COLLECTIVES, ELEMENTS, STEPS, WORLD_SIZE
from tests.traces.told import told

ONE = 4 * ELEMENTS
SIZES = {
    "all_reduce": 4 * (ELEMENTS * ELEMENTS + ELEMENTS), "all_gather": ONE * WORLD_SIZE,
    "reduce_scatter": ONE * WORLD_SIZE, "broadcast": ONE, "all_to_all": ONE, "barrier": 0,
}  # fmt: skip


def test_a_recorded_rank_says_who_it_is_and_what_it_sent_in_which_ranges(recorded: list[Path]) -> None:
    assert {*SIZES} == {*COLLECTIVES}
    for rank, path in enumerate(recorded):
        found = told(open_trace(path))
        source, own, world, _, _, backend = found["who"]
        assert (source, own, world, backend) == ("kineto", rank, WORLD_SIZE, "gloo")
        assert found["clock"][1] is not None and found["notes"] == []
        assert list(found["groups"].values()) == [list(range(WORLD_SIZE))]
        assert Counter(found["messages"]) == dict.fromkeys(SIZES.items(), STEPS)
        assert {size for *_, size in found["collectives"]} == {WORLD_SIZE}
        assert {found["activity"][event] for event in found["of events"]} == {Activity.CPU_COLLECTIVE}
        assert min(found["launch"][event] for event in found["of events"]) > 0, "each was issued by an operator"
        names = Counter(found["ranges"])
        assert names["forward"] == names["backward"] == found["range kinds"].count(RangeKind.STEP) == STEPS
        assert not any(name.startswith("gloo:") for name in names)


def test_no_two_recorded_operators_run_at_once_on_a_thread(recorded: list[Path]) -> None:
    trace = open_trace(recorded[0])
    e = trace.events
    main = max(e.stream.tolist(), key=e.stream.tolist().count)
    own = (e.activity == Activity.CPU_OP) & (e.stream == main)
    assert own.sum() > 100
    assert (e.start_ns[own][1:] >= e.end_ns[own][:-1]).all()
    assert {trace.names[i] for i in e.dtype[own] if i >= 0} >= {"float32"}


def test_a_recorded_trace_packed_or_dumped_anew_is_the_same(recorded: list[Path], tmp_path: Path) -> None:
    first = told(open_trace(recorded[0]))
    assert first["peak"] != {}
    (packed := tmp_path / "rank0.json.gz").write_bytes(gzip.compress(recorded[0].read_bytes()))
    (dumped := tmp_path / "rank0.json").write_text(json.dumps(json.loads(recorded[0].read_text())))
    assert told(open_trace(packed)) == told(open_trace(dumped)) == first
