"""Heatmaps of nsys' counters, from constructed exports, against counting the rows of the file.

No recording of a real GPU's counters was at hand: the names are those that nsys has for A100 and H100.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from pathlib import Path

import pytest

from harness.analysis.process.counters import MOST_COLUMNS, counter_of
from harness.analysis.summary import Summary
from harness.measure.paths import measure_one
from harness.report.plots.counters import counter_figures
from harness.report.tables.catalogue import files
from harness.report.tables.kernels import COUNTERS
from tests.synthetic.nsys import Nsys

MS = 1_000_000
STEPS, STEP_MS, GPUS = 6, 50, 4
NAMES = (
    "GPC Clock Frequency [MHz]",
    "SMs Active [Throughput %]",
    "SM Issue [Throughput %]",
    "Tensor Active [Throughput %]",
    "DRAM Read Bandwidth [Throughput %]",
    "NVLink TX Requests User Data [Throughput %]",
    "NVLink TX Requests Protocol Data [Throughput %]",
    "PCIe RX Throughput [Throughput %]",
)
SHOWN = ["SMs Active", "SM Issue", "Tensor Active", "DRAM Read Bandwidth", "NVLink TX Requests User Data"]
SHOWN += ["PCIe RX Throughput"]


def busy(gpu: int, at_ms: float) -> float:
    """How much of a moment a GPU computes: it loads data, computes, then sends; GPU 3 is half as fast."""
    inside = at_ms % STEP_MS
    return 0.0 if inside < 8 else (0.45 if gpu == 3 else 0.92) if inside < 38 else 0.12


def sampled() -> Nsys:
    """Four ranks of one node with a GPU each: counters every 0.5 ms."""
    made = Nsys()
    for gpu in range(GPUS):
        kind = (5 << 56 | gpu) - (1 << 60)
        made.add("TARGET_INFO_GPU", vmId=1, id=gpu, name="NVIDIA H100 80GB HBM3", cuDevice=gpu)
        for metric, name in enumerate(NAMES):
            made.add("TARGET_INFO_GPU_METRICS", typeId=kind, metricId=metric, metricName=name)
        for sample in range(-20, 2 * STEPS * STEP_MS + 20):
            share = busy(gpu, sample / 2)
            values = (1980, 100 * share, 55 * share, 38 * share, 30 * share, 4 if 0 < share < 0.2 else 0, 9, 3)
            for metric, value in enumerate(values):
                at = 10 * MS + sample * MS // 2
                made.add("GPU_METRICS", timestamp=at, typeId=kind, metricId=metric, value=round(value))
        pid = 100 + gpu
        for step in range(STEPS):
            begin = (10 + step * STEP_MS) * MS
            made.range(f"batch_{step}-rank{gpu}", begin, STEP_MS * MS - 1000, pid=pid, tid=pid)
            number = 1000 * gpu + step
            made.call("cudaLaunchKernel_v7000", begin + 1000, 500, correlation=number, pid=pid, tid=pid)
            made.kernel("void gemm()", begin + 8 * MS, 30 * MS, correlation=number, pid=pid, device=gpu)
    return made


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sampled().saved(tmp_path_factory.mktemp("nsys") / "profile_node0.sqlite")


@pytest.fixture(scope="module")
def summary(file: Path) -> Summary:
    return measure_one([file])


def test_each_column_is_the_mean_of_the_samples_in_it(file: Path, summary: Summary) -> None:
    with sqlite3.connect(file) as database:
        rows = database.execute("SELECT typeId & 255, metricId, timestamp, value FROM GPU_METRICS").fetchall()
    samples = defaultdict(list)
    for gpu, metric, time_ns, value in rows:
        samples[gpu, metric].append((time_ns, value))
    assert len(summary.devices) == GPUS
    for device in summary.devices:
        start, length = 10 * MS, device.window_ns
        for counter in device.counters:
            metric = NAMES.index(counter.metric)
            assert len(counter.mean) <= MOST_COLUMNS and counter.column_ns * len(counter.mean) >= length
            for column, mean in enumerate(counter.mean):
                low, high = (start + (column + i) * counter.column_ns for i in (0, 1))
                inside = [v for t, v in samples[device.device, metric] if low <= t < min(high, start + length)]
                assert mean == (pytest.approx(sum(inside) / len(inside), rel=6e-3) if inside else None)


def test_only_counters_in_per_cent_that_show_what_limits_a_gpu_are_drawn(summary: Summary) -> None:
    figures = counter_figures(summary)
    assert [figure.data[0]["name"] for figure in figures] == SHOWN
    assert len(COUNTERS.rows(summary)) == GPUS * len(NAMES), "the table has the mean of each"
    assert counter_of("SM Active") and not counter_of("GPC Clock Frequency [MHz]")


def test_rows_are_devices_and_lines_are_steps(summary: Summary) -> None:
    first = counter_figures(summary)[0]
    heat = first.data[0]
    assert heat["y"] == [f"rank {gpu}" for gpu in range(GPUS)]
    assert (heat["zmin"], heat["zmax"]) == (0, 100)
    assert [shape["x0"] for shape in first.layout["shapes"]] == [STEP_MS * step for step in range(1, STEPS)]
    means = [sum(row) / len(row) for row in heat["z"]]
    assert means[3] < 0.6 * means[0], "the slow GPU is seen"
    assert "by nsys" in first.caption and first.caption.endswith("Dotted: the start of each step.")
    (file,) = (file for file in files() if file.name == "counters_over_time")
    rows = list(file.records(summary))
    assert len(rows) == sum(len(counter.mean) for device in summary.devices for counter in device.counters)
    assert (rows[0]["metric"], rows[0]["mean"]) == (NAMES[1], summary.devices[0].counters[0].mean[0])
