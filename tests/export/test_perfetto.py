"""The Perfetto file holds every event of every rank on one clock, to the nanosecond, under readable names."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.common.errors import WorkError
from harness.export.perfetto import write_perfetto
from harness.monitor.samples import DeviceSeries, NodeSamples
from harness.traces import find_traces, open_trace
from harness.traces.trace import MetricSeries, Trace
from tests.real_traces import real_trace
from tests.synthetic import kineto
from tests.synthetic.columns import event, trace


def written(traces: list[Trace], folder: Path, **more: Any) -> list[dict[str, Any]]:
    done = write_perfetto(traces, folder / "trace.json.gz", **more)
    document = json.loads(gzip.decompress(done.path.read_bytes()), parse_float=Decimal)
    assert document["displayTimeUnit"] == "ns"
    return list(document["traceEvents"])


def ns(microseconds: Decimal) -> int:
    value = microseconds * 1000
    assert value == int(value)
    return int(value)


def tracks(events: list[dict[str, Any]]) -> dict[tuple[int, int], str]:
    return {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}


def slices(events: list[dict[str, Any]], category: str) -> list[dict[str, Any]]:
    return [e for e in events if e["ph"] == "X" and e["cat"] == category]


@pytest.mark.parametrize("name", ["kineto_dlrm_v100_8ranks", "nsys_h100_2gpu_ab/after.sqlite"])
def test_a_real_trace_keeps_every_event_range_and_call(name: str, tmp_path: Path) -> None:
    traces = [open_trace(path) for path in find_traces([real_trace(name)])]
    events = written(traces, tmp_path)
    work = [e for e in events if e["ph"] == "X" and e["cat"] not in {"api", "range"}]
    assert len(work) == sum(len(t.events) for t in traces)
    points = sum(e["dur"] == Decimal("0.001") for e in work)
    assert (
        0
        <= sum(ns(e["dur"]) for e in work) - sum(int((t.events.end_ns - t.events.start_ns).sum()) for t in traces)
        <= points
    )  # what takes no time is drawn as 1 ns
    assert len(slices(events, "range")) == sum(len(t.ranges.start_ns) for t in traces)
    assert len(slices(events, "api")) == sum(len(t.calls.start_ns) for t in traces)
    assert {(e["pid"], e["tid"]) for e in events if e["ph"] == "X"} <= set(tracks(events))


def test_slices_of_one_track_nest_or_follow_each_other(tmp_path: Path) -> None:
    events = [event("a", 0, 100), event("b", 90, 150), event("c", 95, 97)]
    on: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for e in slices(written([trace(events)], tmp_path), "kernel"):
        on[e["pid"], e["tid"]].append((ns(e["ts"]), ns(e["ts"]) + ns(e["dur"])))
    assert len(on) == 3
    for spans in on.values():
        assert all(later[0] >= earlier[1] for earlier, later in pairwise(spans))


def nest(events: list[dict[str, Any]]) -> None:
    """Slices of each track, in the file's order at equal times, lie inside or after those before them."""
    stacks: dict[tuple[int, int], list[int]] = defaultdict(list)
    for e in sorted((e for e in events if e["ph"] == "X"), key=lambda e: e["ts"]):
        stack, start, end = stacks[e["pid"], e["tid"]], ns(e["ts"]), ns(e["ts"]) + ns(e["dur"])
        while stack and stack[-1] <= start:
            stack.pop()
        assert not stack or end <= stack[-1], f"{e['name']} crosses the end of what it began in"
        stack.append(end)


def cpu_records() -> list[kineto.Record]:
    return [
        kineto.said("forward", 0, 100),
        kineto.operator("aten::zero_", 0, 40),
        kineto.operator("aten::fill_", 0, 40),
        kineto.operator("aten::mm", 50, 20),
        kineto.operator("aten::resolve_conj", 55, 5),
        kineto.operator("aten::t", 70, 0),
        kineto.said("backward", 200, 30),
        kineto.operator("aten::mm", 200, 30),
        kineto.said("gloo:all_reduce", 60, 90),
    ]


def cpu_trace(folder: Path) -> Trace:
    header = kineto.HEADER | {"deviceProperties": []}
    return open_trace(kineto.kineto(folder / "cpu.json", cpu_records(), header=header))


def test_operators_are_drawn_once_each_inside_those_that_call_them(tmp_path: Path) -> None:
    events = written([cpu_trace(tmp_path)], tmp_path)
    nest(events)
    drawn = [(e["name"], ns(e["ts"]), ns(e["dur"])) for e in events if e["ph"] == "X" and e["tid"] == 1]
    assert drawn == [
        ("forward", 0, 100), ("aten::zero_", 0, 40), ("aten::fill_", 0, 40), ("aten::mm", 50, 20),
        ("aten::resolve_conj", 55, 5), ("aten::t", 70, 1), ("backward", 200, 30), ("aten::mm", 200, 30),
    ]  # fmt: skip
    assert not [e for e in events if e["ph"] in "sf"], "an operator launches nothing on its own thread"


def test_a_collective_that_outlives_its_callers_has_a_track_beside_theirs(tmp_path: Path) -> None:
    events = written([cpu_trace(tmp_path)], tmp_path)
    (found,) = slices(events, "communication")
    assert tracks(events)[found["pid"], found["tid"]] == "thread 100 (lane 2)"


def test_what_takes_no_time_is_drawn_a_nanosecond_wide(tmp_path: Path) -> None:
    found = slices(
        written([trace([event("a", 0, 0), event("b", 5, 5), event("b", 5, 5), event("c", 5, 9)])], tmp_path), "kernel"
    )
    assert [(e["name"], ns(e["dur"])) for e in found] == [("a", 1), ("c", 4), ("b", 1), ("b", 1)]


def test_a_threads_number_is_never_negative(tmp_path: Path) -> None:
    call = {"name": "cudaLaunchKernel", "start": 10, "end": 12, "thread": -549452224}
    events = written([trace([event("gemm", 50, 60)], calls=[call])], tmp_path)
    assert "thread 3745515072" in tracks(events).values()


def test_ranks_share_one_clock_and_are_named_by_rank_node_and_device(tmp_path: Path) -> None:
    base = 1_700_000_000_000_000_000
    late = trace([event("gemm", 501, 900)], rank=1, host="lrdn2", epoch_ns=base, clock="trace")
    early = trace([event("gemm", base + 2, base + 3)], rank=0, host="lrdn1")
    events = written([late, early], tmp_path)
    assert [e["args"]["name"] for e in events if e["name"] == "process_name"] == [
        "rank 0 · lrdn1 · GPU 0", "rank 1 · lrdn2 · GPU 0",
    ]  # fmt: skip
    assert [(e["pid"], ns(e["ts"])) for e in slices(events, "kernel")] == [(1, 0), (2, 499)]
    assert tracks(events)[1, 1] == "GPU 0 stream 7"


def test_an_arrow_leads_from_the_launch_to_its_kernel(tmp_path: Path) -> None:
    kernel = event("gemm", 50, 60, launch=10, launch_thread=3, correlation=9)
    call = {"name": "cudaLaunchKernel", "start": 10, "end": 12, "thread": 3, "correlation": 9}
    events = written([trace([kernel], calls=[call])], tmp_path)
    (start,) = (e for e in events if e["ph"] == "s")
    (finish,) = (e for e in events if e["ph"] == "f")
    (api,), (gemm,) = slices(events, "api"), slices(events, "kernel")
    assert start["id"] == finish["id"] and finish["bp"] == "e"
    assert (start["tid"], start["ts"]) == (api["tid"], api["ts"])
    assert (finish["tid"], finish["ts"]) == (gemm["tid"], gemm["ts"])
    assert gemm["args"] == {"correlation": 9}


def test_a_collective_has_its_kind_size_and_group(tmp_path: Path) -> None:
    calls = [{"event": 0, "kind": "all_reduce", "bytes": 4096, "group": 'the "dp" group', "group_size": 8}]
    (found,) = slices(written([trace([event("ncclX", 0, 5)], collectives=calls)], tmp_path), "communication")
    assert found["args"] == {"collective": "all_reduce", "message bytes": 4096, "group": 'the "dp" group', "ranks": 8}


def test_hostile_names_stay_json(tmp_path: Path) -> None:
    name = 'kernel<"x\\y">\n\t\u2028é'
    (found,) = slices(written([trace([event(name, 0, 5)])], tmp_path), "kernel")
    assert found["name"] == name


def monitor(start_ns: int) -> NodeSamples:
    times = [start_ns - 10**10, start_ns, start_ns + 5, start_ns + 10**10]
    columns = {"power_w": [1.0, 250.5, float("nan"), 3.0]}
    device = DeviceSeries(0, "A100", None, times, columns)
    return NodeSamples(Path("x"), "lrdn1", "nvml", 100, (device,), {}, 0)


def test_the_monitors_samples_of_the_time_are_counters(tmp_path: Path) -> None:
    base = 1_700_000_000_000_000_000
    events = written([trace([event("gemm", base, base + 50)])], tmp_path, recordings=[monitor(base)])
    counters = [(e["name"], ns(e["ts"]), float(e["args"]["value"])) for e in events if e["ph"] == "C"]
    assert counters == [("0 power_w", 0, 250.5)]
    assert "monitor · lrdn1" in [e["args"]["name"] for e in events if e["name"] == "process_name"]


def test_the_metrics_of_a_device_are_counters_on_the_clock_of_all_ranks(tmp_path: Path) -> None:
    metric = MetricSeries("SM Active [%]", 0, np.array([10, 30], np.int64), np.array([1.5, 60.0]))
    ranks = [trace([event("gemm", 0, 50)], rank=0, metrics=[metric]), trace([event("gemm", -100, 50)], rank=1)]
    events = written(ranks, tmp_path)
    kernel = next(ns(e["ts"]) for e in slices(events, "kernel") if ns(e["dur"]) == 50)
    counters = [(e["name"], ns(e["ts"]) - kernel, float(e["args"]["value"])) for e in events if e["ph"] == "C"]
    assert counters == [("GPU 0 SM Active [%]", 10, 1.5), ("GPU 0 SM Active [%]", 30, 60.0)]


def test_without_a_date_in_the_trace_the_monitor_is_left_out_with_a_note(tmp_path: Path) -> None:
    undated = trace([event("gemm", 0, 50)], clock="trace")
    done = write_perfetto([undated], tmp_path / "t.json.gz", recordings=[monitor(0)])
    assert any("monitor's counters are left out" in note for note in done.notes)


def test_nothing_to_write_is_an_error_and_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(WorkError, match="nothing to write"):
        write_perfetto([trace()], tmp_path / "t.json.gz")
    assert not list(tmp_path.iterdir())
