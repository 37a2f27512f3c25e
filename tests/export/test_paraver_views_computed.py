"""What each Paraver view shows, computed by the rules of Paraver, is what the report says, to the nanosecond."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from harness.analysis.summary import Device, Summary
from harness.export.objects import ParaverTask, build_object_model
from harness.export.paraver import write_paraver
from harness.export.prv_labels import EventType
from harness.measure.paths import measure_one
from harness.traces import find_traces, open_trace
from harness.traces.trace import Trace
from tests.export import both_writers as made
from tests.export.paraver_cfg import UNITS_NS, Curve, Paraver, Prv, read_prv, read_view
from tests.real_traces import real_trace

ROOT = Path(__file__).parents[2]
VIEWS = {path.stem: read_view(path.read_text()) for path in (ROOT / "configs" / "paraver").glob("*.cfg")}
H100 = ["bf16", "graphs"]
SHARED = [
    "kineto_dlrm_v100_8ranks", "kineto_a100_collective_args",
    pytest.param("nsys_a100_ddp_4gpu/rank0.sqlite.gz", marks=pytest.mark.long),  # many events of the same kinds
]  # fmt: skip


@dataclass(frozen=True)
class Job:
    """Traces, our Paraver trace of them, and the report on all that their devices did."""

    traces: list[Trace]
    prv: Prv
    summary: Summary

    @property
    def tasks(self) -> list[ParaverTask]:
        return build_object_model(self.traces).tasks

    def cells(self, view: str, statistic: str) -> Iterator[tuple[dict[float, float], Device]]:
        """The row of each task in a view's table, over the time that its device's window covers, and the report on that
        device. Times in ns."""
        shown = Paraver(self.prv, VIEWS[view])
        unit_ns = UNITS_NS[shown.view.windows[int(shown.view.table["ControlWindow"]) - 1]["window_units"][0]]
        for number, task in enumerate(self.tasks):
            events, (device,) = task.trace.events, (d for d in self.summary.devices if d.rank == task.rank)
            begin, end = int(events.start_ns[task.events].min()), int(events.end_ns[task.events].max())
            row = shown.tabulated(statistic, begin + task.offset_ns, end + task.offset_ns)[number]
            yield defaultdict(float, {key: value * unit_ns for key, value in row.items()}), device


@pytest.fixture(scope="module", params=[*H100, *SHARED, "made"])
def job(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Job:
    name, folder = request.param, tmp_path_factory.mktemp("job")
    if name == "made":
        path = made.made(folder / "made.sqlite")
    else:
        path = ROOT / "tests" / "data" / "h100" / f"{name}.json.gz" if name in H100 else real_trace(name)
    traces = [open_trace(found) for found in find_traces([path])]
    return Job(traces, read_prv(write_paraver(traces, folder / "ours").prv), measure_one([path], "gpu"))


def area(curve: Curve, end_ns: int) -> float:
    return float((np.diff(curve.start_ns, append=end_ns) * curve.value).sum())


def test_useful_bubble_active_and_gaps_split_the_window_as_the_report_does(job: Job) -> None:
    parts: dict[str, Callable[[Device], int]] = {
        "useful": lambda d: d.compute_ns,
        "useful_time": lambda d: d.compute_ns,
        "bubble": lambda d: d.window_ns - d.compute_ns,
        "gpu_active": lambda d: d.window_ns - d.idle_ns,
        "gpu_gaps": lambda d: d.idle_ns,
    }
    for view, expected in parts.items():
        rows = list(job.cells(view, "Time"))
        assert rows, "the trace has a device"
        assert [round(row[1.0]) for row, _ in rows] == [expected(device) for _, device in rows], view


def test_overlap_and_concurrency_are_the_reports(job: Job) -> None:
    for row, device in job.cells("overlap", "Time"):
        exposed, both = device.exposed_communication_ns or 0, device.overlapped_communication_ns or 0
        neither = device.window_ns - device.compute_ns - exposed
        assert [round(row[n]) for n in range(4)] == [neither, device.compute_ns - both, exposed, both]
    for row, device in job.cells("nccl_kernel_concurrency", "Time"):
        exposed, both = device.exposed_communication_ns or 0, device.overlapped_communication_ns or 0
        assert round(row[0.0]) == device.window_ns - exposed - both
        assert round(row[1.0]) <= exposed, "two collectives at a time may both be exposed"
        assert round(sum(row[n] for n in range(1, 9))) == exposed + both


@pytest.fixture(scope="module", params=["ours", *made.VERSIONS])
def prv(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Prv:
    """The trace of the made-up export by one writer."""
    if request.param in made.VERSIONS:  # of nsys2prv
        return read_prv(made.DATA / request.param / "trace.prv")
    folder = tmp_path_factory.mktemp("ours")
    return read_prv(write_paraver([open_trace(made.made(folder / "made.sqlite"))], folder / "ours").prv)


def test_a_view_shows_the_same_of_all_writers(prv: Prv) -> None:
    def row(view: str, statistic: str) -> dict[float, float]:
        (shown,) = (each for each in Paraver(prv, VIEWS[view]).tabulated(statistic) if each)
        return shown

    in_ms = made.STEPS / 1e6
    assert row("useful_time", "Time") == {1.0: pytest.approx(2 * made.GEMM_NS * in_ms)}
    busy_ns = made.COPY_NS + 2 * made.GEMM_NS + made.REDUCE_NS - made.OVERLAP_NS
    assert row("gpu_active", "Time") == {1.0: pytest.approx(busy_ns * in_ms)}
    overlap, exposed_ns = row("overlap", "Time"), made.REDUCE_NS - made.OVERLAP_NS
    assert (overlap[2.0], overlap[3.0]) == (made.STEPS * exposed_ns, made.STEPS * made.OVERLAP_NS)
    concurrency = row("nccl_kernel_concurrency", "Time")
    assert (concurrency[1.0], concurrency[2.0]) == (made.STEPS * exposed_ns, made.STEPS * made.OVERLAP_NS)
    assert list(row("nccl_calls", "# Bursts").values()) == [made.STEPS]
    sizes = zip(prv.rows, Paraver(prv, VIEWS["nccl_message_size"]).curves[0], strict=True)
    streams = [curve for row, curve in sizes if row.startswith("CUDA-")]  # nsys2prv 0.6 has them at the calls too
    assert sum(area(each, prv.end_ns) for each in streams) == made.STEPS * made.REDUCE_NS * made.MESSAGE_BYTES
    (flying,) = Paraver(prv, VIEWS["kernels_in_flight"]).curves[0]
    assert (flying.value.max(), area(flying, prv.end_ns)) == (3.0, 561_000)
    kernels = Paraver(prv, VIEWS["kernel_time_percent"]).tabulated("Time")
    work_ns = made.COPY_NS + 2 * made.GEMM_NS + made.REDUCE_NS
    assert sum(sum(each.values()) for each in kernels) == made.STEPS * work_ns


def test_ranges_are_the_innermost_ones(prv: Prv) -> None:
    labels = {value: label.lstrip(":") for (kind, value), label in prv.values.items() if kind == EventType.RANGES}
    shown: dict[str, int] = defaultdict(int)
    for curve in Paraver(prv, VIEWS["ranges"]).curves[0]:
        for value, length in zip(curve.value, np.diff(curve.start_ns, append=prv.end_ns), strict=True):
            shown[labels.get(int(value), "")] += int(length)
    inside = made.STEP_NS - 5_000 - 20_000
    expected = {"forward": made.STEPS * 20_000, **{f"batch_{step}": inside for step in range(made.STEPS)}}
    assert {name: ns for name, ns in shown.items() if name in expected} == expected


def test_counters_are_drawn_from_sample_to_sample(prv: Prv) -> None:
    active, tensor, *_, dram = ([curve] for (curve,) in Paraver(prv, VIEWS["gpu_counters"]).curves)
    for (curve,), values in ((active, made.SM_ACTIVE), (tensor, (10, 40)), (dram, (10, 40))):
        assert {*curve.value.tolist()} - {0} == set(values)
        first = int(curve.start_ns[curve.value > 0][0])
        half = made.STEP_NS // 2
        last_ns = prv.end_ns - first - 5 * half
        assert area(curve, prv.end_ns) == 3 * half * values[0] + 2 * half * values[1] + last_ns * values[1]


def test_threads_of_each_kernel_are_blocks_times_threads_of_a_block(prv: Prv) -> None:
    curves = Paraver(prv, VIEWS["threads_per_kernel"]).curves[-1]
    shown = {row: {*curve.value.tolist()} for row, curve in zip(prv.rows, curves, strict=True) if curve.value.any()}
    has_sizes = "Kernel GrdX" in prv.types
    known = {"CUDA-D0.S7": {0.0, made.GEMM_THREADS}, "CUDA-D0.S20": {0.0, made.NCCL_THREADS}}
    assert shown == (known if has_sizes else {}), "only nsys2prv writes the sizes"
