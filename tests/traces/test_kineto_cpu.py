"""Traces without a GPU: operators stand in for kernels, gloo's spans are the communication."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from harness.measure.paths import measure_one as measure
from harness.traces import open_trace
from harness.traces.operators import operators
from harness.traces.trace import Activity, RangeKind, Trace
from tests.synthetic import kineto
from tests.traces.recorded import COLLECTIVES, ELEMENTS, STEPS, WORLD_SIZE

CPU_HEADER = kineto.HEADER | {"deviceProperties": []}


def read(tmp_path: Path, records: list[kineto.Record], **more: object) -> Trace:
    return open_trace(kineto.kineto(tmp_path / "t.json", records, **{"header": CPU_HEADER} | more))  # type: ignore[arg-type]


def spans(trace: Trace) -> list[tuple[str, int, int]]:
    e = trace.events
    return [
        (trace.names[n], s, t) for n, s, t in zip(e.name.tolist(), e.start_ns.tolist(), e.end_ns.tolist(), strict=True)
    ]


def innermost_ns(start: NDArray[np.int64], end: NDArray[np.int64], computes: NDArray[np.bool_]) -> int:
    """Time in which the innermost span computes, by brute force: instant after instant."""
    instants = np.unique(np.concatenate([start, end]))
    total = 0
    for begins, ends in zip(instants[:-1].tolist(), instants[1:].tolist(), strict=True):
        running = np.flatnonzero((start <= begins) & (end >= ends))
        if len(running) and computes[running[np.lexsort((end[running], -start[running]))[0]]]:
            total += ends - begins
    return total


def test_each_instant_belongs_to_the_innermost_operator(tmp_path: Path) -> None:
    records = [
        kineto.operator("aten::linear", 0, 100),
        kineto.operator("aten::addmm", 10, 60),
        kineto.operator("aten::copy_", 20, 5),
        kineto.operator("aten::relu", 100, 20),
    ]
    trace = read(tmp_path, records)
    assert spans(trace) == [
        ("aten::linear", 0, 10),
        ("aten::addmm", 10, 20),
        ("aten::copy_", 20, 25),
        ("aten::addmm", 25, 70),
        ("aten::linear", 70, 100),
        ("aten::relu", 100, 120),
    ]
    assert trace.events.correlation[1] == trace.events.correlation[3] != trace.events.correlation[2]
    assert (trace.events.activity == Activity.CPU_OP).all()


def test_an_operator_that_outlives_its_caller_by_rounding_is_cut_to_it(tmp_path: Path) -> None:
    records = [kineto.operator("outer", 0, 100), kineto.operator("inner", 50, 51), kineto.operator("next", 100, 10)]
    assert spans(read(tmp_path, records)) == [
        ("outer", 0, 50), ("inner", 50, 100), ("outer", 100, 100), ("next", 100, 110),
    ]  # fmt: skip


def test_an_operators_whole_span_is_known_even_where_callees_take_its_first_and_last_instant(tmp_path: Path) -> None:
    records = [kineto.operator("outer", 5, 20), kineto.operator("inner", 5, 20), kineto.operator("point", 25, 0)]
    trace = read(tmp_path, records)
    whole = operators(trace.events, np.arange(len(trace.events)))
    names = [trace.names[i] for i in trace.events.name[whole.first]]
    spans_of = zip(names, whole.start_ns.tolist(), whole.end_ns.tolist(), whole.own_ns.tolist(), strict=True)
    assert sorted(spans_of) == [("inner", 5, 25, 20), ("outer", 5, 25, 0), ("point", 25, 25, 0)]


def test_threads_do_not_nest_in_each_other(tmp_path: Path) -> None:
    records = [kineto.operator("a", 0, 100, tid=1), kineto.operator("b", 20, 30, tid=2)]
    assert spans(read(tmp_path, records)) == [("a", 0, 100), ("b", 20, 50)]


def test_the_collectives_own_thread_computes_nothing(tmp_path: Path) -> None:
    records = [
        kineto.operator("aten::mm", 0, 100, tid=1),
        kineto.said("gloo:all_reduce", 10, 50, tid=2),
        kineto.operator("aten::copy_", 20, 5, tid=2),
        kineto.said("gloo:send", 200, 100, tid=1),
        kineto.operator("aten::add", 220, 10, tid=1),
    ]
    assert spans(read(tmp_path, records)) == [
        ("aten::mm", 0, 100), ("gloo:all_reduce", 10, 60), ("gloo:send", 200, 300), ("aten::add", 220, 230),
    ]  # fmt: skip


def test_a_gpus_file_without_gpu_work_says_that_operators_stand_in(tmp_path: Path) -> None:
    records = [kineto.operator("aten::mm", 0, 100)]
    trace = read(tmp_path, records, header=kineto.HEADER)
    assert spans(trace) == [("aten::mm", 0, 100)]
    assert "the operators of the host are its events" in trace.notes[0]
    assert read(tmp_path, records).notes == []


def test_a_collective_of_several_groups_goes_to_the_one_of_its_size(tmp_path: Path) -> None:
    groups = [{"pg_name": "0", "ranks": [0, 1, 2, 3]}, {"pg_name": "tp", "ranks": [0, 1]}]
    header = CPU_HEADER | {"distributedInfo": {"rank": 0, "world_size": 4, "pg_config": groups}}
    shapes = {"Input Dims": [[64], [32], [], []], "Input type": ["float", "float", "", ""]}
    records = [
        kineto.operator("c10d::_allgather_base_", 0, 10, **shapes),
        kineto.record("user_annotation", "gloo:all_gather", 20, 30, pid=50, tid=2,
                    **{"Input Dims": [[32]], "Input type": ["float"]}),
        kineto.said("gloo:broadcast", 60, 10, tid=2),
    ]  # fmt: skip
    c = read(tmp_path, records, header=header).collectives
    assert c.group_size.tolist() == [2, -1]
    assert c.bytes.tolist() == [256, -1]
    assert c.group[1] == -1


@pytest.mark.parametrize(
    ("values", "peer"), [(["", "", "1", "0"], 1), (["", "", "?", "0"], -1), ([], -1), ("none", -1), ([""] * 3, -1)]
)
def test_a_send_on_a_cpu_says_with_whom(tmp_path: Path, values: object, peer: int) -> None:
    shapes = {"Input Dims": [[[8]], [], [], []], "Input type": ["TensorList", "", "Scalar", "Scalar"]}
    asked = {"Input Dims": [[8]], "Input type": ["float"]}
    records = [
        kineto.operator("c10d::send", 0, 10, **shapes, **{"Concrete Inputs": values}),
        kineto.operator("gloo:send", 20, 30, cat="user_annotation", **asked),
    ]
    c = read(tmp_path, records).collectives
    assert (c.bytes.tolist(), c.peer.tolist()) == ([32], [peer])


def test_a_tensor_without_dimensions_is_one_element_and_a_number_has_no_elements(tmp_path: Path) -> None:
    """As DeepSpeed reduces the norm of its gradients; without types the two cannot be separated."""
    asked = {"Input Dims": [[[]], [], []], "Input type": ["TensorList", "", "Scalar"]}
    done = {"Input Dims": [[]], "Input type": ["float"]}
    for changed, size in (({}, 4), ({"Input type": None}, -1)):
        records = [
            kineto.operator("c10d::allreduce_", 0, 10, **asked | changed),
            kineto.record("user_annotation", "gloo:all_reduce", 20, 30, pid=50, tid=2, **done | changed),
        ]
        assert read(tmp_path, records).collectives.bytes.tolist() == [size]


def test_a_recorded_rank_says_who_it_is(recorded: list[Path]) -> None:
    for rank, path in enumerate(recorded):
        trace = open_trace(path)
        who = trace.identity
        assert (who.rank, who.world_size, who.backend, who.source) == (rank, WORLD_SIZE, "gloo", "kineto")
        assert who.epoch_ns is not None and trace.notes == []
        assert list(trace.groups.values()) == [list(range(WORLD_SIZE))]


def test_recorded_collectives_have_kind_size_and_group(recorded: list[Path]) -> None:
    trace = open_trace(recorded[0])
    c = trace.collectives
    kinds = [trace.names[i] for i in c.kind]
    assert Counter(kinds) == dict.fromkeys(COLLECTIVES, STEPS)
    size = {kind: set(c.bytes[np.array(kinds) == kind].tolist()) for kind in COLLECTIVES}
    one = 4 * ELEMENTS
    assert size["all_gather"] == size["reduce_scatter"] == {one * WORLD_SIZE}
    assert size["broadcast"] == size["all_to_all"] == {one}
    assert size["barrier"] == {0}
    assert size["all_reduce"] == {4 * (ELEMENTS * ELEMENTS + ELEMENTS)}
    assert c.group_size.tolist() == [WORLD_SIZE] * len(c)
    assert (trace.events.activity[c.event] == Activity.CPU_COLLECTIVE).all()
    assert (trace.events.launch_ns[c.event] > 0).all(), "each was issued by an operator"


def test_recorded_steps_and_ranges_are_there(recorded: list[Path]) -> None:
    trace = open_trace(recorded[1])
    names = Counter(trace.names[i] for i in trace.ranges.name)
    assert names["forward"] == names["backward"] == STEPS
    assert (trace.ranges.kind == RangeKind.STEP).sum() == STEPS
    assert not any(name.startswith("gloo:") for name in names)


def test_recorded_operators_cover_the_time_in_operators_once(recorded: list[Path]) -> None:
    """Against the JSON itself, thread by thread: no overlap, nothing lost, dtypes known."""
    trace = open_trace(recorded[0])
    e = trace.events
    records = json.loads(recorded[0].read_text())["traceEvents"]
    issues = ("c10d::", "record_param_comms")
    main = max(e.stream.tolist(), key=e.stream.tolist().count)
    own = (e.activity == Activity.CPU_OP) & (e.stream == main)
    assert own.sum() > 100
    assert (e.start_ns[own][1:] >= e.end_ns[own][:-1]).all(), "two operators at once on one thread"
    rows = [r for r in records if r.get("cat") == "cpu_op" and r["tid"] == main]
    start = np.array([round(r["ts"] * 1000) for r in rows])
    end = start + np.array([round(r["dur"] * 1000) for r in rows])
    computes = np.array([not r["name"].startswith(issues) for r in rows])
    measured = int((e.end_ns[own] - e.start_ns[own]).sum())
    expected = innermost_ns(start, end, computes)
    assert measured == pytest.approx(expected, abs=3 * len(rows)), "a few ns for each float"
    assert {trace.names[i] for i in e.dtype[own] if i >= 0} >= {"float32"}


def test_a_recorded_trace_packed_or_dumped_anew_is_the_same(recorded: list[Path], tmp_path: Path) -> None:
    first = open_trace(recorded[0])
    packed = tmp_path / "rank0.json.gz"
    packed.write_bytes(gzip.compress(recorded[0].read_bytes()))
    dumped = tmp_path / "rank0.json"
    dumped.write_text(json.dumps(json.loads(recorded[0].read_text())))
    for other in (open_trace(packed), open_trace(dumped)):
        assert spans(other) == spans(first)
        assert other.peak_memory_bytes == first.peak_memory_bytes != {}


def test_the_report_counts_operators_as_often_as_the_recorded_file_holds_them(recorded: list[Path]) -> None:
    records = json.loads(recorded[0].read_text())["traceEvents"]
    raw = Counter(r["name"] for r in records if r.get("cat") == "cpu_op" and not r["name"].startswith("c10d::"))
    del raw["record_param_comms"]
    shown = {k.name: k for k in measure([recorded[0]], window="gpu").kernels}
    calling = [name for name in raw if name in shown and raw[name] > 1]
    assert len(calling) > 10
    for name in calling:
        assert shown[name].count <= raw[name], "only those on the collectives' own threads are left out"
    main = max(records, key=lambda r: r.get("name") == "aten::addmm")["tid"]
    elsewhere = {r["name"] for r in records if r.get("cat") == "cpu_op" and r["tid"] != main}
    alone = {name: raw[name] for name in calling if name not in elsewhere}
    assert {name: shown[name].count for name in alone} == alone
    assert sum(k.duration_ns for k in shown.values()) == sum(
        t.duration_ns for t in measure([recorded[0]], window="gpu").kinds
    )
