"""Counters of SMs, tensor cores and memory. Simulated: a fake NVML answers with what an H200 gave."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from harness.analysis.summary import MonitorDevice, Summary
from harness.measure.machine import monitored_devices
from harness.monitor import gpm
from harness.monitor.gpm import GPM_COLUMNS
from harness.monitor.nvml import NvmlSource
from harness.monitor.record import SampleFile
from harness.monitor.samples import read
from harness.monitor.summary import summarize, without_sms
from harness.report.page.inputs import Inputs
from harness.report.page.run import machine_section
from harness.report.tables.monitor import MONITOR
from tests.monitor.conftest import Write, rows_of
from tests.monitor.fake_nvml import FakeDevice, FakeNvml, GpmNvml

# On an H200, driver 580: utilisation, then SM Active, Tensor Active, DRAM, in per cent.
MEASURED = {
    "bf16 products": (98, (94.6, 91.8, 16.1)),
    "copies on the device": (98, (96.8, 0.0, 86.0)),
    "fp32 products": (99, (95.5, 0.0, 2.7)),
    "copies from the host": (100, (0.0, 0.0, 1.1)),
    "idle": (0, (0.0, 0.0, 0.0)),
}
COUNTED, NOTHING = (1.0, 2.0, 3.0), (None, None, None)


@pytest.fixture(autouse=True)
def _every_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpm, "_LEAST_S", 0.0)


def counters_of(source: NvmlSource) -> list[tuple[object, ...]]:
    return [tuple(row[column] for column in GPM_COLUMNS) for row in rows_of(source)]


@pytest.mark.parametrize("work", MEASURED)
def test_simulated_each_sample_has_the_means_since_the_one_before(work: str) -> None:
    device = FakeDevice(gpm=(100.0, 100.0, 100.0))
    source = NvmlSource(GpmNvml(device))
    assert counters_of(source) == [NOTHING]
    device.utilization, device.gpm = MEASURED[work]
    for _ in range(3):
        assert counters_of(source) == [pytest.approx(device.gpm)]


# A GPU that is split is not asked, as its counters are not the job's.
LACKING: dict[str, tuple[type[FakeNvml], list[dict[str, Any]], list[tuple[object, ...]], int]] = {
    "a device without them": (GpmNvml, [{}, {"gpm": COUNTED}], [NOTHING, COUNTED], 2),
    "bindings and drivers without the functions": (FakeNvml, [{"gpm": COUNTED}], [NOTHING], 0),
    "a split GPU": (GpmNvml, [{"mig": (1, 1), "gpm": COUNTED}], [NOTHING], 0),
    "a metric that is no number": (GpmNvml, [{"gpm": (1.0, 2.0, math.nan)}], [(1.0, 2.0, None)], 2),
    "a device that refuses": (GpmNvml, [{"gpm": COUNTED, "not_supported": {"gpm"}}], [NOTHING], 1),
}


@pytest.mark.parametrize(("module", "devices", "counters", "asked"), LACKING.values(), ids=LACKING)
def test_simulated_what_is_lacking_leaves_the_others_and_is_not_asked_again(
    module: type[FakeNvml], devices: list[dict[str, Any]], counters: list[tuple[object, ...]], asked: int
) -> None:
    nvml = module(*(FakeDevice(**about) for about in devices))
    source = NvmlSource(nvml)
    counters_of(source)
    assert counters_of(source) == counters
    assert sum(device.asked.count("gpm") for device in nvml.devices) == asked


def test_simulated_a_metric_that_nvml_has_no_value_for_leaves_the_others() -> None:
    nvml = GpmNvml(FakeDevice(gpm=COUNTED))
    nvml.without = {nvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL}
    source = NvmlSource(nvml)
    assert [counters_of(source)[0] for _ in range(2)] == [NOTHING, (1.0, None, 3.0)]


def test_simulated_after_a_reading_that_failed_the_means_begin_again() -> None:
    device = FakeDevice(gpm=(50.0, 0.0, 0.0))
    source = NvmlSource(GpmNvml(device))
    counters_of(source)
    device.lost = True
    assert counters_of(source) == [NOTHING]
    device.lost = False
    assert [counters_of(source)[0] for _ in range(2)] == [NOTHING, (50.0, 0.0, 0.0)]


def test_simulated_two_samples_are_used_again() -> None:
    nvml = GpmNvml(FakeDevice(gpm=COUNTED))
    source = NvmlSource(nvml)
    for _ in range(5):
        counters_of(source)
    assert len(nvml.samples) == 2


def test_simulated_the_counters_are_read_once_a_second_at_most_because_that_takes_milliseconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = SimpleNamespace(now_s=0.0)
    clock.monotonic = lambda: clock.now_s
    monkeypatch.setattr(gpm, "_LEAST_S", 0.9)
    monkeypatch.setattr(gpm, "time", clock)
    device = FakeDevice(gpm=COUNTED)
    source, known = NvmlSource(GpmNvml(device)), 0
    for tenth in range(31):
        clock.now_s = tenth / 10
        known += counters_of(source)[0][0] is not None
    assert (known, device.asked.count("gpm")) == (3, 4)


@pytest.mark.parametrize(
    ("work", "shown", "notes"),
    [
        ("bf16 products", ["94.6 %", "91.8 %", "16.1 %"], ()),
        (
            "copies from the host", ["0.0 %", "0.0 %", "1.1 %"],
            ("GPU 0: utilisation is 100 %, but it counts any work of the device, copies too; an SM had work in 0.0 % "
             "of the time",),
        ),
    ],
)  # fmt: skip
def test_simulated_the_summary_and_the_report_have_the_means(
    write_samples: Write, work: str, shown: list[str], notes: tuple[str, ...]
) -> None:
    device = FakeDevice(gpm=(0.0, 0.0, 0.0))
    source = NvmlSource(GpmNvml(device))
    folder = write_samples(source.columns, [], **source.describe())
    samples = SampleFile(folder / "samples.csv", source.columns)
    device.utilization, device.gpm = MEASURED[work]
    for second in range(5):
        samples.append(10**18 + second * 10**9, range(1), source.sample())
    recording = read(folder)
    assert summarize(recording).notes == notes
    (row,) = monitored_devices(recording, {})
    cells = {str(column.head): column.cells([row], on_page=True)[0] for column in MONITOR.columns}
    assert [cells[head] for head in ("SM Active", "Tensor Active", "DRAM")] == shown


@pytest.mark.parametrize(("utilization", "sm_active", "told"), [
    (100.0, 0.0, True), (90.0, 44.9, True), (90.0, 45.0, False), (89.9, 0.0, False), (99.0, 95.5, False),
    (None, 0.0, False), (100.0, None, False),
])  # fmt: skip
def test_only_a_busy_device_with_less_than_half_of_that_on_its_sms_is_told(
    utilization: float | None, sm_active: float | None, told: bool
) -> None:
    assert (without_sms(utilization, sm_active) is not None) == told


def test_the_report_and_its_page_tell_alike_devices_once() -> None:
    rows = [
        MonitorDevice(
            node="n", device=i, name="H200", samples=1, duration_ns=1, mean_utilization_percent=100.0,
            mean_sm_active_percent=0.0,
        )
        for i in range(6)
    ]  # fmt: skip
    told = "n GPU 0, n GPU 1, n GPU 2, n GPU 3 …: utilisation is 100 %"
    (line,) = MONITOR.advice(Summary(monitor=rows))
    assert line.startswith(f"  ! {told}")
    assert machine_section(Summary(monitor=rows), Inputs()).note.startswith(told)


def test_samples_from_before_these_columns_are_read(write_samples: Write) -> None:
    (device,) = summarize(read(write_samples(["utilization_percent"], [[98.0], [99.0]]))).devices
    assert (device.mean_utilization_percent, device.mean_sm_active_percent) == (98.5, None)
