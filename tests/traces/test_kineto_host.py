"""What the host did, from Kineto: long operators, Python functions, Python's collector, the profiler's own work."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.traces import open_trace
from harness.traces.trace import SHORTEST_HOST_NS, HostKind, Trace
from tests.synthetic import kineto

LONG, SHORT = SHORTEST_HOST_NS, SHORTEST_HOST_NS - 1


def spans(trace: Trace) -> list[tuple[str, HostKind]]:
    return [(trace.names[name], HostKind(kind)) for name, kind in zip(trace.host.name, trace.host.kind, strict=True)]


def read(tmp_path: Path, records: list[kineto.Record], layout: str = "torch 1.9") -> Trace:
    return open_trace(kineto.kineto(tmp_path / "t.json", records, layout))


@pytest.mark.parametrize("layout", kineto.LAYOUTS)
def test_beside_a_gpu_long_operators_functions_and_the_profilers_work_are_kept(tmp_path: Path, layout: str) -> None:
    trace = read(tmp_path, kineto.gpu_step(), layout)
    assert spans(trace) == [
        ("Activity Buffer Request", HostKind.PROFILER),
        ("train.py(12): step", HostKind.PYTHON),
        ("aten::to", HostKind.OPERATOR),
    ]
    assert trace.host.thread.tolist() == [-1, 100, 100]  # Kineto does not say where the profiler worked
    assert set(trace.host.process.tolist()) == {50}


@pytest.mark.parametrize("layout", kineto.LAYOUTS)
def test_a_span_that_explains_no_idle_stretch_is_left_out(tmp_path: Path, layout: str) -> None:
    records = [kineto.kernel("k", 0, 5)]
    for number, length in enumerate([0, 9_999, SHORT, LONG, LONG + 1, 99_999, 1_000_000, 123_456_789_000]):
        records.append(kineto.operator(f"op {length}", 10**12 * number, length))
        records.append(kineto.python(f"f.py(1): {length}", 10**12 * number, length))
    host = read(tmp_path, records, layout).host
    assert sorted((host.end_ns - host.start_ns).tolist()) == sorted(
        2 * [LONG, LONG + 1, 99_999, 1_000_000, 123_456_789_000]
    )


def test_pythons_collector_is_told_from_functions(tmp_path: Path) -> None:
    records = [
        kineto.kernel("k", 0, 5),
        kineto.python("Python GC", 10, 9 * LONG),
        kineto.python("gc", 20, LONG),
        kineto.python("<built-in function collect>", 20 * LONG, LONG),
    ]
    kinds = [kind for _, kind in spans(read(tmp_path, records))]
    assert kinds == [HostKind.COLLECTOR, HostKind.PYTHON, HostKind.COLLECTOR]


def test_without_device_work_operators_are_the_events_and_functions_stay(tmp_path: Path) -> None:
    records = [kineto.operator("aten::mm", 0, 9 * LONG), kineto.python("train.py(3): f", 0, 10 * LONG)]
    trace = read(tmp_path, records)
    assert len(trace.events) == 1
    assert spans(trace) == [("train.py(3): f", HostKind.PYTHON)]


@pytest.mark.parametrize("layout", kineto.LAYOUTS)
def test_a_range_of_an_old_torch_is_no_operator_and_its_operators_are(tmp_path: Path, layout: str) -> None:
    records = [
        kineto.call("cudaLaunchKernel", 1, 1, cat="Runtime"),
        kineto.kernel("k", 0, 5, cat="Kernel"),
        kineto.operator("ProfilerStep#3", 0, 9 * LONG, cat="Operator"),
        kineto.operator("aten::to", 5, 2 * LONG, cat="Operator"),
        kineto.operator("record_param_comms", 7, LONG, cat="Operator"),
    ]
    trace = read(tmp_path, records, layout)
    assert [trace.names[name] for name in trace.ranges.name] == ["ProfilerStep#3"]
    assert spans(trace) == [("aten::to", HostKind.OPERATOR), ("record_param_comms", HostKind.OPERATOR)]


@pytest.mark.parametrize("layout", kineto.LAYOUTS)
def test_no_call_that_can_block_is_left_out(tmp_path: Path, layout: str) -> None:
    names = [
        "cudaMalloc", "cudaFree", "cudaHostAlloc", "cuModuleLoadData", "cudaStreamBeginCapture", "hipModuleLoad",
        "cudaMemcpyAsync", "hipLaunchKernel", "cuLaunchKernelEx", "cudaStreamSynchronize",
    ]  # fmt: skip
    records = [kineto.call(name, 10 * i, 5, cat=("cuda_runtime", "cuda_driver")[i % 2]) for i, name in enumerate(names)]
    trace = read(tmp_path, [*records, kineto.kernel("k", 0, 5)], layout)
    assert [trace.names[name] for name in trace.calls.name] == names


def test_times_below_zero_move_the_hosts_spans_too(tmp_path: Path) -> None:
    records = [kineto.kernel("k", 0, 5), kineto.python("a.py(1): f", -LONG, 3 * LONG)]
    trace = read(tmp_path, records)
    assert trace.host.start_ns.tolist() == [0]
    assert trace.events.start_ns.tolist() == [LONG]
