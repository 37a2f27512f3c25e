"""Every idle nanosecond goes to one cause, and to the right one where the answer is known."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.analysis.process.intervals import length as length_of
from harness.analysis.process.intervals import union
from harness.analysis.process.measure import measured_processes
from harness.analysis.process.part import RankPart
from harness.analysis.process.prepared import MeasuredProcess
from harness.analysis.summary import Window
from harness.traces import open_trace
from harness.traces.trace import Activity, HostKind
from tests.analysis.measuring import RULES
from tests.real_traces import FOLDER, needs_real_traces, real_trace
from tests.synthetic.columns import GEMM, NCCL, Made

MS = 1_000_000
CPU = Activity.CPU_OP
OPERATOR, PYTHON = HostKind.OPERATOR, HostKind.PYTHON


def measured_of(made: Made, window: Window = Window.STEPS) -> tuple[RankPart, MeasuredProcess]:
    (only,) = measured_processes(made.trace(), window, RULES)
    return only


def short() -> Made:
    """A step of 100 ns."""
    return Made().step(0, 100, 0)


def stall(end: int = 9 * MS, length: int = 10 * MS, **last: int) -> Made:
    """A step in which the device has no work from 1 ms on, until a kernel that is launched 5 µs before it begins."""
    made = Made().step(0, length, 0).event(0, MS, launch_ns=0)
    return made.event(end, length, GEMM, launch_ns=end - 5_000, **last)


def looping(gap: int, count: int = 4) -> Made:
    """Kernels of 10 µs that a host launches every 30 µs, and after each group of ten no launch for `gap`."""
    made, at = Made().step(0, count * 20 * MS, 0), 0
    for _ in range(count):
        for i in range(10):
            made.event(at + 30_000 * i + 5_000, at + 30_000 * i + 15_000, launch_ns=at + 30_000 * i)
        at += 300_000 + gap
    return made


def launched_late(kernel: str) -> Made:
    """A launch that takes nearly 5 ms."""
    made = looping(gap=5 * MS).call(300_000, 5 * MS, "cudaLaunchKernel")
    return made.event(5 * MS + 10_000, 5 * MS + 20_000, kernel, launch_ns=300_000)


@pytest.mark.parametrize(
    ("made", "causes"),
    [
        (short().range(20, 50, "DataLoad batch 1").event(0, 10, launch_ns=0).event(60, 100, launch_ns=55),
         {"data loading": 30, "launch-bound": 20}),
        (short().call(5, 40, "cudaStreamSynchronize").event(0, 10, launch_ns=0).event(60, 100, launch_ns=50),
         {"synchronisation": 50}),
        # a watchdog that waits for an event is not the training
        (short().call(5, 40, "cudaEventSynchronize", thread=77).event(0, 10, launch_ns=0).event(60, 100, launch_ns=50),
         {"launch-bound": 50}),
        # a thread that launches is
        (short().call(5, 40, "cudaStreamSynchronize", thread=77).event(0, 10, launch_ns=0)
         .event(60, 100, launch_ns=50, launch_thread=77), {"synchronisation": 50}),
        (short().event(0, 40, launch_ns=0).event(70, 100, NCCL, launch_ns=30), {"communication": 30}),
        # the device does not wait for workers that prefetch
        (short().range(0, 100, "DataLoader worker", thread=9).event(0, 40, launch_ns=0).event(50, 100, launch_ns=45),
         {"launch-bound": 10}),
        (short().range(0, 30, "DataLoad batch 0").range(60, 80, "recv forward mb0")
         .event(30, 55, "aten::mm", activity=CPU).event(80, 95, "aten::mm", activity=CPU),
         {"data loading": 30, "communication": 20, "launch-bound": 10}),
    ],
)  # fmt: skip
def test_idle_time_has_its_causes(made: Made, causes: dict[str, int]) -> None:
    (device,) = measured_of(made)[0].devices
    assert {c.cause: c.duration_ns for c in device.idle_causes} == causes
    assert sum(causes.values()) == device.idle_ns


@pytest.mark.parametrize(
    ("made", "causes"),
    [
        # launches one after the other, and a host that sleeps
        (looping(5 * MS), {"not recorded": 3 * (5 * MS + 20_000), "launch-bound": 4 * 9 * 20_000}),
        (looping(MS).call(300_000 - 15_000, 1_290_000, "cudaMalloc"), {"allocation": pytest.approx(MS, rel=0.05)}),
        (launched_late("new_kernel"), {"first use": 5 * MS - 300_000}),
        (launched_late(GEMM), {"first use": 0}),
        (stall().host(2 * MS, 8 * MS, "Lazy Function Loading", HostKind.OS_CALL), {"first use": 6 * MS}),
        (stall().host(2 * MS, 4 * MS, "Python GC", HostKind.COLLECTOR)
         .host(5 * MS, 8 * MS, "CUPTI Buffer flush", HostKind.PROFILER, thread=-1),
         {"garbage collection": 2 * MS, "profiler": 3 * MS}),
        # a graph is captured
        (stall().call(0, 9, "cudaLaunchKernel").call(4 * MS, 4 * MS + 9, "cudaStreamBeginCapture")
         .call(7 * MS, 8 * MS, "cudaStreamEndCapture"), {"graph capture": 4 * MS}),
        # a pause is no launch, though work that waits was launched after it
        (Made().step(0, 10 * MS, 0).event(0, MS, launch_ns=0).event(9 * MS, 10 * MS, launch_ns=8 * MS - 5_000, stream=8)
         .event(8 * MS, 9 * MS, launch_ns=8 * MS - 4_000), {"not recorded": 7 * MS - 5_000}),
    ],
)  # fmt: skip
def test_a_part_of_the_idle_time_has_its_cause(made: Made, causes: dict[str, Any]) -> None:
    (device,) = measured_of(made, Window.GPU)[0].devices
    found = {c.cause: c.duration_ns for c in device.idle_causes}
    assert {cause: found.get(cause, 0) for cause in causes} == causes


def test_dispatching_a_collective_is_no_work() -> None:
    made = short().event(0, 50, "aten::mm", activity=CPU).event(50, 70, "c10d::allreduce_", activity=CPU)
    made.event(60, 100, "gloo:all_reduce", activity=Activity.CPU_COLLECTIVE)
    (device,) = measured_of(made)[0].devices
    assert (device.compute_ns, device.communication_ns, device.idle_ns) == (50, 40, 10)
    assert device.device_kind == "cpu"


spans = st.lists(st.tuples(st.integers(0, 400_000), st.integers(0, 150_000)), max_size=6)
CALLS = ("cudaStreamSynchronize", "cudaMemcpyAsync", "cudaMalloc", "cudaLaunchKernel", "cudaStreamBeginCapture")


@given(spans, spans, spans, spans, st.data())
def test_the_causes_sum_to_the_idle_time_and_no_activity_is_longer(
    kernels: list[tuple[int, int]],
    loading: list[tuple[int, int]],
    calls: list[tuple[int, int]],
    functions: list[tuple[int, int]],
    draw: st.DataObject,
) -> None:
    made = Made().step(0, 500_000, 0)
    made.event(0, 10, launch_ns=0)
    for start, length in kernels:
        launch = draw.draw(st.integers(-1, start))
        made.event(start, start + length, draw.draw(st.sampled_from(("mm", NCCL))), launch_ns=launch)
    for start, length in loading:
        made.range(start, start + length, draw.draw(st.sampled_from(("DataLoad", "forward"))))
    for start, length in calls:
        made.call(start, start + length, draw.draw(st.sampled_from(CALLS)))
    for start, length in functions:
        made.host(start, start + length, "train.py(3): main", draw.draw(st.sampled_from(HostKind)))
    part, measured = measured_of(made)
    (device,) = part.devices
    assert sum(c.duration_ns for c in device.idle_causes) == device.idle_ns
    idle = measured.idle[0]
    whole = union(idle.start_ns, idle.end_ns)
    assert length_of(whole) == int((idle.end_ns - idle.start_ns).sum()) == device.idle_ns  # disjoint
    assert (np.diff(idle.start_ns) >= 0).all() and (idle.end_ns > idle.start_ns).all()
    assert all(row.idle_ns <= (device.idle_ns or 0) for row in part.rows.host_activities)


def test_the_longest_gaps_name_the_range_and_the_neighbours() -> None:
    made = Made().step(0, 1000, 0).range(100, 900, "forward")
    made.event(0, 100, "first", launch_ns=0).event(800, 1000, "second", launch_ns=790)
    gap = measured_of(made)[0].devices[0].longest_gaps[0]
    assert (gap.start_ns, gap.duration_ns, gap.cause) == (100, 700, "launch-bound")
    assert (gap.range, gap.before, gap.after) == ("forward", "first", "second")


def preprocessing() -> Made:
    """Many short functions inside of one: a person calls that preprocessing, and asks what in it takes most."""
    made = stall().host(MS, 9 * MS - 6_000, "transformers/pipelines/video.py(120): preprocess", PYTHON)
    for start in range(MS, 9 * MS, 400_000):
        made.host(start, start + 300_000, "transformers/image.py(235): resize", PYTHON)
        made.host(start, start + 90_000, "numpy/core.py(3): pad", PYTHON)
    return made


UNFLATTEN = "aten::unflatten_dense_tensors"
NODE = "autograd::engine::evaluate_function: MyBackward"
ROWS: dict[str, tuple[Made, str, list[dict[str, Any]]]] = {
    "a copy that blocks, with its call, operator and range": (
        stall(8 * MS).range(MS, 9 * MS, "move inputs 3").call(MS, 7 * MS + 990_000, "cudaMemcpyAsync")
        .host(MS, 8 * MS, "aten::to", OPERATOR), "blocking copy",
        [{"kind": "call", "what": "cudaMemcpyAsync", "call": "cudaMemcpyAsync", "operator": "aten::to",
          "range": "move inputs #", "idle_ns": 7 * MS, "count": 1, "first_ns": MS}]),
    "a copy for item, with the launch after it": (
        stall(8 * MS).call(MS // 2, 8 * MS - 20_000, "cudaMemcpyAsync")
        .host(MS // 2, 8 * MS - 15_000, "aten::item", OPERATOR), "synchronisation",
        [{"operator": "aten::item", "idle_ns": 7 * MS}]),
    "a first launch": (launched_late("new_kernel"), "first use", [{"kind": "call", "what": "cudaLaunchKernel"}]),
    "the user's function, and the library's inside": (
        stall().host(0, 10 * MS, "/home/me/train.py(3): main", PYTHON)
        .host(MS, 9 * MS - 50_000, "/home/me/augment.py(7): augment", PYTHON)
        .host(MS + 1, 9 * MS - 60_000, "scipy/ndimage/_interpolation.py(700): zoom", PYTHON)
        .host(MS + 2, 4 * MS, "numpy/core/shape_base.py(372): stack", PYTHON), "host work",
        [{"kind": "python", "what": "zoom (scipy/ndimage/_interpolation.py)", "idle_ns": 8 * MS,
          "where.file": "/home/me/augment.py", "where.line": 7, "where.function": "augment",
          "innermost.function": "zoom", "innermost_ns": 8 * MS - 60_000 - 1}]),
    "the function that covers most of it": (
        preprocessing(), "host work",
        [{"where.function": "preprocess", "innermost.function": "resize", "innermost_ns": 20 * 300_000}]),
    "an operator without kernels, beside the rest": (
        stall(19 * MS, 20 * MS).range(0, 20 * MS, "DistributedDataParallel.forward")
        .host(3 * MS, 15 * MS, UNFLATTEN, OPERATOR), "host work",
        [{"kind": "operator", "what": UNFLATTEN, "idle_ns": 12 * MS, "range": "DistributedDataParallel.forward"},
         {"kind": "range", "count": 2, "idle_ns": 6 * MS, "range": "DistributedDataParallel.forward"}]),
    "nothing": (stall(), "not recorded", [{"what": None, "kind": ""}]),
    "autograd's thread, while the main thread waits": (
        stall(launch_thread=77).range(0, 10 * MS, "backward").host(0, 10 * MS, "train.py(9): train", PYTHON)
        .host(1, 10 * MS, "<built-in method run_backward of torch._C._EngineBase>", PYTHON)
        .host(MS, 9 * MS, NODE, OPERATOR, thread=77), "host work",
        [{"kind": "operator", "operator": NODE, "phase": "backward", "where.function": "train"}]),
    "no core": (stall().host(MS, 8 * MS, "not on a core", HostKind.WAIT), "host work",
                [{"kind": "wait", "what": "not on a core"}]),
    "a call of the system, in which it has no core": (
        stall().host(MS, 8 * MS, "not on a core", HostKind.WAIT).host(2 * MS, 8 * MS, "read", HostKind.OS_CALL),
        "host work", [{"kind": "os call", "what": "read"}]),
    "a function that loads data": (
        stall().host(2 * MS, 8 * MS, "torch/utils/data/dataloader.py(633): __next__", PYTHON)
        .host(3 * MS, 8 * MS, "/home/me/videos.py(5): __getitem__", PYTHON), "data loading",
        [{"innermost.function": "__getitem__", "idle_ns": 6 * MS}]),
    "a long pause between operators on a CPU": (
        Made().step(0, 10 * MS, 0).range(0, 10 * MS, "forward").event(0, MS, "aten::mm", activity=CPU, launch_ns=0)
        .event(9 * MS, 10 * MS, "aten::mm", activity=CPU, launch_ns=9 * MS)
        .host(MS, 9 * MS, "/home/me/train.py(12): log", PYTHON), "launch-bound",
        [{"what": "log (/home/me/train.py)", "idle_ns": 8 * MS, "where.line": 12}]),
}  # fmt: skip


@pytest.mark.parametrize("case", ROWS)
def test_what_the_host_did_meanwhile_is_named(case: str) -> None:
    made, cause, expected = ROWS[case]
    rows = [row for row in measured_of(made)[0].rows.host_activities if row.cause == cause]
    assert len(rows) == len(expected)
    for row, known in zip(rows, expected, strict=True):
        assert {name: attrgetter(name)(row) for name in known} == known


@needs_real_traces
def test_every_real_trace_gives_each_idle_nanosecond_one_cause_and_no_activity_more_than_that() -> None:
    files = [p for p in FOLDER.glob("*/*") if p.name.endswith((".json.gz", ".sqlite", ".sqlite.gz"))]
    assert len(files) > 10
    for path in files:
        for part, measured in measured_processes(open_trace(path), Window.STEPS, RULES):
            for device in part.devices:
                idle = measured.idle[device.device]
                assert sum(c.duration_ns for c in device.idle_causes) == int(idle.sums().sum()) == device.idle_ns
                assert (idle.start_ns[1:] >= idle.end_ns[:-1]).all()
                rows = [r for r in part.rows.host_activities if r.device == device.device]
                assert sum(r.idle_ns for r in rows) <= (device.idle_ns or 0)


@pytest.mark.parametrize(
    ("name", "cause", "what", "around", "idle_ms"),
    [
        (
            "kineto_a100_collective_args/rank0.json.gz",
            "host work",
            "aten::unflatten_dense_tensors",
            "DistributedDataParallel.forward",
            67,
        ),
        ("kineto_resnet50_workers/num_workers_4.json.gz", "blocking copy", "cudaMemcpyAsync", None, 37),
        (
            "kineto_resnet50_workers/num_workers_0.json.gz",
            "data loading",
            "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
            "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
            352,
        ),
    ],
)
def test_the_largest_thing_that_the_host_of_a_real_trace_did_is_named(
    name: str, cause: str, what: str, around: str | None, idle_ms: int
) -> None:
    ((part, _),) = measured_processes(open_trace(real_trace(name)), Window.STEPS, RULES)
    row = next(r for r in part.rows.host_activities if r.cause != "launch-bound")
    assert (row.cause, row.what, row.range, row.idle_ns // MS) == (cause, what, around, idle_ms)
