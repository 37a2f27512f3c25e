"""Counters of SMs, tensor cores and memory. Simulated: a fake NVML answers with what an H200 gave."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

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
from tests.monitor.fake_nvml import FakeDevice, FakeNvml, GpmNvml

Write = Callable[..., Path]
# On an H200, driver 580: utilisation, then SM Active, Tensor Active, DRAM, in per cent.
MEASURED = {
    "bf16 products": (98, (94.6, 91.8, 16.1)),
    "copies on the device": (98, (96.8, 0.0, 86.0)),
    "fp32 products": (99, (95.5, 0.0, 2.7)),
    "copies from the host": (100, (0.0, 0.0, 1.1)),
    "idle": (0, (0.0, 0.0, 0.0)),
}


@pytest.fixture(autouse=True)
def _every_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpm, "_LEAST_S", 0.0)


def counters_of(source: NvmlSource) -> list[tuple[object, ...]]:
    places = [source.columns.index(column) for column in GPM_COLUMNS]
    return [tuple(row[place] for place in places) for row in source.sample()]


@pytest.mark.parametrize("work", MEASURED)
def test_simulated_each_sample_has_the_means_since_the_one_before(work: str) -> None:
    device = FakeDevice(gpm=(100.0, 100.0, 100.0))
    source = NvmlSource(GpmNvml(device))
    assert counters_of(source) == [(None, None, None)]
    device.utilization, device.gpm = MEASURED[work]
    for _ in range(3):
        assert counters_of(source) == [pytest.approx(device.gpm)]


def test_simulated_a_device_without_the_counters_leaves_those_of_the_others() -> None:
    source = NvmlSource(GpmNvml(FakeDevice(uuid="GPU-a"), FakeDevice(uuid="GPU-b", gpm=(1.0, 2.0, 3.0))))
    counters_of(source)
    assert counters_of(source) == [(None, None, None), pytest.approx((1.0, 2.0, 3.0))]


def test_simulated_bindings_and_drivers_without_the_functions_leave_the_columns_empty() -> None:
    source = NvmlSource(FakeNvml(FakeDevice(gpm=(1.0, 2.0, 3.0))))
    assert [counters_of(source)[0] for _ in range(2)] == [(None, None, None)] * 2


def test_simulated_a_split_gpu_is_not_asked_because_its_counters_are_not_the_jobs() -> None:
    nvml = GpmNvml(FakeDevice(mig=True, gpm=(1.0, 2.0, 3.0)))
    source = NvmlSource(nvml)
    assert [counters_of(source)[0] for _ in range(2)] == [(None, None, None)] * 2
    assert not nvml.samples


def test_simulated_a_metric_without_a_value_leaves_the_others() -> None:
    nvml = GpmNvml(FakeDevice(gpm=(1.0, 2.0, math.nan)))
    nvml.without = {nvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL}
    source = NvmlSource(nvml)
    counters_of(source)
    assert counters_of(source) == [(1.0, None, None)]


def test_simulated_after_a_reading_that_failed_the_means_begin_again() -> None:
    device = FakeDevice(gpm=(50.0, 0.0, 0.0))
    source = NvmlSource(GpmNvml(device))
    counters_of(source)
    device.lost = True
    assert counters_of(source) == [(None, None, None)]
    device.lost = False
    assert counters_of(source) == [(None, None, None)]
    assert counters_of(source) == [pytest.approx((50.0, 0.0, 0.0))]


def test_simulated_a_device_that_refuses_is_not_asked_again() -> None:
    device = FakeDevice(gpm=(1.0, 2.0, 3.0), not_supported={"gpm"})
    source = NvmlSource(GpmNvml(device))
    for _ in range(3):
        assert counters_of(source) == [(None, None, None)]
    assert device.asked.count("gpm") == 1


def test_simulated_two_samples_are_used_again_and_given_back() -> None:
    nvml = GpmNvml(FakeDevice(gpm=(1.0, 2.0, 3.0)))
    source = NvmlSource(nvml)
    for _ in range(5):
        counters_of(source)
    assert [sample.free for sample in nvml.samples] == [False, False]
    del source
    gc.collect()
    assert [sample.free for sample in nvml.samples] == [True, True]


def test_simulated_the_counters_are_read_once_a_second_at_most_because_that_takes_milliseconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = 0.0
    monkeypatch.setattr(gpm, "_LEAST_S", 0.9)
    monkeypatch.setattr(gpm, "time", SimpleNamespace(monotonic=lambda: now_s))
    device = FakeDevice(gpm=(1.0, 2.0, 3.0))
    source = NvmlSource(GpmNvml(device))
    known = []
    for tenth in range(31):
        now_s = tenth / 10
        known.append(counters_of(source)[0][0] is not None)
    assert sum(known) == 3 and device.asked.count("gpm") == 4


def recorded(write_samples: Write, work: str) -> Path:
    """Five samples of one GPU at this work."""
    device = FakeDevice(gpm=(0.0, 0.0, 0.0))
    source = NvmlSource(GpmNvml(device))
    folder = write_samples(source.columns, [], **source.describe())
    samples = SampleFile(folder / "samples.csv", source.columns)
    device.utilization, device.gpm = MEASURED[work]
    for second in range(5):
        samples.append(10**18 + second * 10**9, range(1), source.sample())
    return folder


def test_simulated_the_summary_and_the_report_have_the_means(write_samples: Write) -> None:
    recording = read(recorded(write_samples, "bf16 products"))
    summary = summarize(recording)
    (device,) = summary.devices
    means = (device.mean_sm_active_percent, device.mean_tensor_active_percent, device.mean_dram_active_percent)
    assert means == pytest.approx((94.6, 91.8, 16.1))
    assert summary.notes == ()
    (row,) = monitored_devices(recording, {})
    shown = {str(column.head): column.cells([row], on_page=True)[0] for column in MONITOR.columns}
    assert [shown[head] for head in ("SM Active", "Tensor Active", "DRAM")] == ["94.6 %", "91.8 %", "16.1 %"]


def test_simulated_utilisation_that_no_sm_had_a_part_in_is_told(write_samples: Write) -> None:
    (note,) = summarize(read(recorded(write_samples, "copies from the host"))).notes
    assert note == (
        "GPU 0: utilisation is 100 %, but it counts any work of the device, copies too; an SM had work in 0.0 % of the "
        "time"
    )


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
