"""The Perfetto file holds every event of every rank on one clock, to the nanosecond, under readable names."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from harness.common.errors import WorkError
from harness.export.perfetto import write_perfetto
from harness.monitor.samples import DeviceSeries, NodeSamples
from harness.traces import find_traces, open_trace
from harness.traces.trace import Activity, MetricSeries, Trace
from tests.real_traces import real_trace
from tests.synthetic.columns import event, trace

BASE = 1_700_000_000_000_000_000


def written(traces: Sequence[Trace], folder: Path, recordings: Sequence[NodeSamples] = ()) -> list[dict[str, Any]]:
    done = write_perfetto(traces, folder / "trace.json.gz", recordings=recordings)
    document = json.loads(gzip.decompress(done.path.read_bytes()), parse_float=Decimal)
    assert document["displayTimeUnit"] == "ns"
    return list(document["traceEvents"])


def ns(microseconds: Decimal) -> int:
    value = microseconds * 1000
    assert value == int(value)
    return int(value)


def drawn(events: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """What a viewer shows of a file, in its order."""
    tracks = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    boxes = [e for e in events if e["ph"] == "X"]
    return {
        "processes": [e["args"]["name"] for e in events if e["name"] == "process_name"],
        "boxes": [(e["cat"], e["name"], ns(e["ts"]), ns(e["dur"])) for e in boxes],
        "spans": [(e["name"], ns(e["ts"]), ns(e["dur"])) for e in boxes],
        "tracks": [tracks[e["pid"], e["tid"]] for e in boxes],
        "arguments": [e["args"] for e in boxes if "args" in e],
        "arrows": [(e["ph"], e["id"], tracks[e["pid"], e["tid"]], ns(e["ts"])) for e in events if e["ph"] in "sf"],
        "counters": [(e["name"], ns(e["ts"]), float(e["args"]["value"])) for e in events if e["ph"] == "C"],
    }


@pytest.mark.parametrize("name", ["kineto_dlrm_v100_8ranks", "nsys_h100_2gpu_ab/after.sqlite"])
def test_a_real_trace_keeps_every_event_range_and_call(name: str, tmp_path: Path) -> None:
    traces = [open_trace(path) for path in find_traces([real_trace(name)])]
    boxes = drawn(written(traces, tmp_path))["boxes"]
    work = [length for category, _, _, length in boxes if category not in {"api", "range"}]
    assert len(work) == sum(len(t.events) for t in traces)
    longer = sum(work) - sum(int((t.events.end_ns - t.events.start_ns).sum()) for t in traces)
    assert 0 <= longer <= work.count(1), "what takes no time is drawn as 1 ns"
    kinds = [category for category, *_ in boxes]
    assert kinds.count("range") == sum(len(t.ranges.start_ns) for t in traces)
    assert kinds.count("api") == sum(len(t.calls.start_ns) for t in traces)


def nest(events: list[dict[str, Any]]) -> None:
    """Slices of each track, in the file's order at equal times, lie inside or after those before them."""
    stacks: dict[tuple[int, int], list[int]] = defaultdict(list)
    for e in sorted((e for e in events if e["ph"] == "X"), key=lambda e: e["ts"]):
        stack, start, end = stacks[e["pid"], e["tid"]], ns(e["ts"]), ns(e["ts"]) + ns(e["dur"])
        while stack and stack[-1] <= start:
            stack.pop()
        assert not stack or end <= stack[-1], f"{e['name']} crosses the end of what it began in"
        stack.append(end)


def monitor(start_ns: int) -> NodeSamples:
    times = [start_ns - 10**10, start_ns, start_ns + 5, start_ns + 10**10]
    device = DeviceSeries(0, "A100", None, times, {"power_w": [1.0, 250.5, float("nan"), 3.0]})
    return NodeSamples(Path("x"), "lrdn1", "nvml", 100, (device,), {}, 0)


def on_cpu(name: str, start: int, end: int, number: int, **more: Any) -> dict[str, Any]:
    """A piece of an operator, or a collective's span."""
    placed = {"activity": Activity.CPU_OP, "stream": 100, "correlation": number, "launch": start, "launch_thread": 100}
    return event(name, start, end, **(placed | more))


class Picture(NamedTuple):
    """Traces, the monitor's samples, and what is drawn of them."""

    traces: Sequence[Trace]
    drawn: dict[str, list[Any]]
    recordings: Sequence[NodeSamples] = ()


HOSTILE = 'kernel<"x\\y">\n\t\u2028é'
SM_ACTIVE = MetricSeries("SM Active [%]", 0, np.array([10, 30], np.int64), np.array([1.5, 60.0]))
CALL = {"name": "cudaLaunchKernel", "start": 10, "end": 12, "thread": 3, "correlation": 9}
SENT = {"event": 0, "kind": "all_reduce", "bytes": 4096, "group": 'the "dp" group', "group_size": 8}
PICTURES = {
    "what overlaps on a stream is on tracks of its own": Picture(
        [trace([event("a", 0, 100), event("b", 90, 150), event("c", 95, 97)])],
        {"tracks": ["GPU 0 stream 7", "GPU 0 stream 7 (lane 2)", "GPU 0 stream 7 (lane 3)"]},
    ),
    "what takes no time is a nanosecond wide and comes last": Picture(
        [trace([event("a", 0, 0), event("b", 5, 5), event("b", 5, 5), event("c", 5, 9)])],
        {"boxes": [("kernel", "a", 0, 1), ("kernel", "c", 5, 4), ("kernel", "b", 5, 1), ("kernel", "b", 5, 1)]},
    ),
    "operators are drawn once each inside those that call them": Picture(
        [trace([on_cpu("outer", 0, 10, 0), on_cpu("inner", 10, 30, 1), on_cpu("outer", 30, 40, 0),
                on_cpu("point", 40, 40, 2)], [{"name": "forward", "start": 0, "end": 60, "thread": 100}])],
        {"spans": [("forward", 0, 60), ("outer", 0, 40), ("inner", 10, 20), ("point", 40, 1)],
         "tracks": ["thread 100"] * 4, "arrows": []},
    ),
    "a collective that outlives its callers has a track beside theirs": Picture(
        [trace([on_cpu("outer", 0, 40, 0),
                on_cpu("gloo:all_reduce", 30, 90, -1, activity=Activity.CPU_COLLECTIVE, launch=-1)])],
        {"tracks": ["thread 100", "thread 100 (lane 2)"]},
    ),
    "no thread's number is negative": Picture(
        [trace([event("gemm", 50, 60)], calls=[CALL | {"thread": -549452224}])],
        {"tracks": ["GPU 0 stream 7", "thread 3745515072"]},
    ),
    "an arrow leads from the launch to its kernel": Picture(
        [trace([event("gemm", 50, 60, launch=10, launch_thread=3, correlation=9)], calls=[CALL])],
        {"arrows": [("s", 0, "thread 3", 0), ("f", 0, "GPU 0 stream 7", 40)],
         "boxes": [("kernel", "gemm", 40, 10), ("api", "cudaLaunchKernel", 0, 2)], "arguments": [{"correlation": 9}]},
    ),
    "ranks share one clock and are named by rank, node and device": Picture(
        [trace([event("gemm", 501, 900)], rank=1, host="lrdn2", epoch_ns=BASE, clock="trace"),
         trace([event("gemm", BASE + 2, BASE + 3)], rank=0, host="lrdn1")],
        {"processes": ["rank 0 · lrdn1 · GPU 0", "rank 1 · lrdn2 · GPU 0"],
         "boxes": [("kernel", "gemm", 0, 1), ("kernel", "gemm", 499, 399)]},
    ),
    "a collective has its kind, size and group": Picture(
        [trace([event("ncclX", 0, 5)], collectives=[SENT])],
        {"arguments": [{"collective": "all_reduce", "message bytes": 4096, "group": 'the "dp" group', "ranks": 8}]},
    ),
    "hostile names stay JSON": Picture([trace([event(HOSTILE, 0, 5)])], {"boxes": [("kernel", HOSTILE, 0, 5)]}),
    "the monitor's samples of the time are counters": Picture(
        [trace([event("gemm", BASE, BASE + 50)], host="n")],
        {"counters": [("0 power_w", 0, 250.5)], "processes": ["process 100 · n · GPU 0", "monitor · lrdn1"]},
        [monitor(BASE)],
    ),
    "the metrics of a device are counters on the clock of all ranks": Picture(
        [trace([event("gemm", 0, 50)], rank=0, metrics=[SM_ACTIVE]), trace([event("gemm", -100, 50)], rank=1)],
        {"counters": [("GPU 0 SM Active [%]", 110, 1.5), ("GPU 0 SM Active [%]", 130, 60.0)]},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PICTURES)
def test_a_viewer_shows(name: str, tmp_path: Path) -> None:
    traces, expected, recordings = PICTURES[name]
    events = written(traces, tmp_path, recordings)
    nest(events)
    found = drawn(events)
    assert {part: found[part] for part in expected} == expected


def test_without_a_date_in_the_trace_the_monitor_is_left_out_with_a_note(tmp_path: Path) -> None:
    undated = trace([event("gemm", 0, 50)], clock="trace")
    done = write_perfetto([undated], tmp_path / "t.json.gz", recordings=[monitor(0)])
    assert any("monitor's counters are left out" in note for note in done.notes)


def test_nothing_to_write_is_an_error_and_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(WorkError, match="nothing to write"):
        write_perfetto([trace()], tmp_path / "t.json.gz")
    assert not list(tmp_path.iterdir())
