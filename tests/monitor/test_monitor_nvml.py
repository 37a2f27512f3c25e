"""NVIDIA devices, without a GPU: a fake pynvml answers, and is compared with the real module."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.monitor.nvml import NvmlSource
from harness.monitor.record import SampleFile
from harness.monitor.samples import read
from harness.monitor.summary import summarize
from tests.monitor.conftest import Start, Write, recorder, rows_of, samples_of, wait_for_samples
from tests.monitor.fake_nvml import ANSWERS, FakeDevice, FakeNvml, GpmNvml, NVMLError
from tests.waiting import limit_s


def test_with_a_fake_pynvml_values_have_the_units_that_the_columns_say() -> None:
    (row,) = rows_of(NvmlSource(FakeNvml(FakeDevice(power=450_500, joules=1000.0, joules_per_read=1.5))))
    assert row == {
        "memory_used_bytes": 8 * 2**30,
        "utilization_percent": 87,
        "memory_utilization_percent": 40,
        "sm_active_percent": None,
        "tensor_active_percent": None,
        "dram_active_percent": None,
        "power_watts": 450.5,
        "energy_joules": 1001.5,
        "temperature_celsius": 61,
        "sm_clock_mhz": 1980,
        "clock_limits": 4,
    }


def test_with_a_fake_pynvml_what_a_device_does_not_support_is_empty_and_not_asked_again() -> None:
    old = FakeDevice(not_supported={"energy"})
    source = NvmlSource(FakeNvml(old))
    assert [rows_of(source)[0]["energy_joules"] for _ in range(3)] == [None] * 3
    assert (old.asked.count("energy"), old.asked.count("power")) == (1, 3)


def test_with_a_fake_pynvml_a_lost_device_leaves_the_others_and_may_come_back() -> None:
    lost = FakeDevice(uuid="GPU-b")
    source = NvmlSource(FakeNvml(FakeDevice(uuid="GPU-a"), lost))
    for lost.lost, watts in ((True, None), (False, 450.0)):
        assert [row["power_watts"] for row in rows_of(source)] == [450.0, watts]


def test_with_a_fake_pynvml_samples_go_to_disk_and_come_back_as_energy(write_samples: Write) -> None:
    devices = [FakeDevice(uuid=f"GPU-{i}", joules_per_read=100.0 * (i + 1)) for i in range(2)]
    devices[1].clock_limits = 0x20 | 0x80 | 0x1  # idle (0x1) lowers no clock against a program's will
    source = NvmlSource(FakeNvml(*devices))
    folder = write_samples(source.columns, [], [], **source.describe())
    samples = SampleFile(folder / "samples.csv", source.columns)
    for second in range(11):
        samples.append(10**18 + second * 10**9, range(2), source.sample())
    summary = summarize(read(folder))
    assert [(device.energy_joules, device.energy_from, device.clock_limits) for device in summary.devices] == [
        (1000.0, "counter", {"power cap": 1.0}),
        (2000.0, "counter", {"heat": 1.0, "power brake": 1.0}),
    ]
    assert (summary.energy_joules, summary.duration_ns) == (3000.0, 10 * 10**9)


MODULE = """
import sys
from tests.monitor.fake_nvml import FakeDevice, FakeNvml
sys.modules["pynvml"] = FakeNvml(FakeDevice(uuid="GPU-a"), FakeDevice(uuid="GPU-b", not_supported={"energy"}))
"""


def test_with_a_fake_pynvml_the_program_records_and_draws_the_devices(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    (tmp_path / "pynvml.py").write_text(MODULE)
    monitor = recorder(start, tmp_path, first=[tmp_path, Path(__file__).parent])
    wait_for_samples(tmp_path, 6)
    monitor.terminate()
    assert monitor.wait(limit_s()) == 0
    recording = read(samples_of(tmp_path))
    assert (recording.source, recording.meta["driver"]) == ("nvml", "570.86.15")
    assert [device.energy_from for device in summarize(recording).devices] == ["counter", "power"]
    assert start("-m", "harness.monitor", "plot", samples_of(tmp_path)).wait(limit_s()) == 0
    assert (samples_of(tmp_path) / "power.png").read_bytes().startswith(b"\x89PNG")


def test_the_fake_offers_nothing_that_pynvml_does_not() -> None:
    pynvml = pytest.importorskip("pynvml")
    names = [*ANSWERS, *(name for name in dir(GpmNvml) if name.lower().startswith(("nvml", "c_nvml")))]
    assert len(names) > 25
    assert [name for name in names if not hasattr(pynvml, name)] == []
    assert all(
        getattr(pynvml, name) == getattr(GpmNvml, name) for name in names if name.isupper() and name != "NVMLError"
    )
    assert {str(NVMLError(code)) for code in (4, 6, 15)} == {str(pynvml.NVMLError(code)) for code in (4, 6, 15)}
