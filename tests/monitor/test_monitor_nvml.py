"""NVIDIA devices, without a GPU: a fake pynvml answers, and is compared with the real module."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.monitor.nvml import NvmlSource
from harness.monitor.record import SampleFile
from harness.monitor.samples import read
from harness.monitor.summary import summarize
from tests.monitor.fake_nvml import FakeDevice, FakeNvml, GpmNvml, NVMLError, OldBindings, OldCall, OldDriver
from tests.monitor.test_monitor_record import wait_for_samples
from tests.waiting import limit_s

Write = Callable[..., Path]


def rows_of(source: NvmlSource) -> list[dict[str, object]]:
    return [dict(zip(source.columns, row, strict=True)) for row in source.sample()]


def test_with_a_fake_pynvml_values_have_the_units_that_the_columns_say() -> None:
    (row,) = rows_of(NvmlSource(FakeNvml(FakeDevice(watts=450.5, joules=1000.0, joules_per_read=1.5))))
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
        "pcie_tx_bytes_per_second": 2_048_000,
        "pcie_rx_bytes_per_second": 512_000,
    }


def test_with_a_fake_pynvml_the_drivers_own_memory_is_left_out_as_nvidia_smi_does() -> None:
    (row,) = rows_of(NvmlSource(FakeNvml(FakeDevice(memory_used=2**30, memory_reserved=600 * 2**20))))
    assert row["memory_used_bytes"] == 2**30


@pytest.mark.parametrize("old", [OldBindings, OldCall, OldDriver])
def test_with_a_fake_old_pynvml_or_driver_used_memory_is_what_they_report(old: type[FakeNvml]) -> None:
    source = NvmlSource(old(FakeDevice(memory_used=2**30, memory_reserved=600 * 2**20)))
    assert rows_of(source)[0]["memory_used_bytes"] == 2**30 + 600 * 2**20
    assert source.describe()["devices"][0]["memory_total_bytes"] == 141 * 2**30


def test_with_a_fake_pynvml_what_a_device_does_not_support_is_empty_and_not_asked_again() -> None:
    old = FakeDevice(not_supported={"energy"})
    source = NvmlSource(FakeNvml(old))
    assert [rows_of(source)[0]["energy_joules"] for _ in range(3)] == [None] * 3
    assert old.asked.count("energy") == 1
    assert old.asked.count("power") == 3


def test_with_a_fake_pynvml_a_lost_device_leaves_the_others_and_may_come_back() -> None:
    lost = FakeDevice(uuid="GPU-b")
    source = NvmlSource(FakeNvml(FakeDevice(uuid="GPU-a"), lost))
    lost.lost = True
    first, second = rows_of(source)
    assert first["power_watts"] == 450.0
    assert set(second.values()) == {None}
    lost.lost = False
    assert rows_of(source)[1]["power_watts"] == 450.0


def test_with_a_fake_pynvml_pcie_is_read_of_one_device_per_sample_because_it_blocks() -> None:
    source = NvmlSource(FakeNvml(*(FakeDevice(uuid=f"GPU-{i}") for i in range(3))))
    read_of = [[row["pcie_tx_bytes_per_second"] is not None for row in rows_of(source)] for _ in range(3)]
    assert all(sum(turn) == 1 for turn in read_of)
    assert all(sum(device) == 1 for device in zip(*read_of, strict=True))


def test_with_a_fake_pynvml_samples_go_to_disk_and_come_back_as_energy(write_samples: Write) -> None:
    devices = [FakeDevice(uuid=f"GPU-{i}", joules_per_read=100.0 * (i + 1)) for i in range(2)]
    devices[1].clock_limits = 0x20 | 0x80 | 0x1  # idle (0x1) lowers no clock against a program's will
    source = NvmlSource(FakeNvml(*devices))
    about = source.describe()
    assert about["driver"] == "570.86.15"
    assert [device["name"] for device in about["devices"]] == ["NVIDIA H200"] * 2
    folder = write_samples(source.columns, [], [], **about)
    samples = SampleFile(folder / "samples.csv", source.columns)
    for second in range(11):
        samples.append(10**18 + second * 10**9, range(2), source.sample())
    summary = summarize(read(folder))
    assert [device.energy_joules for device in summary.devices] == [1000.0, 2000.0]
    assert {device.energy_from for device in summary.devices} == {"counter"}
    assert [device.clock_limits for device in summary.devices] == [
        {"power cap": 1.0},
        {"heat": 1.0, "power brake": 1.0},
    ]
    assert (summary.energy_joules, summary.duration_ns) == (3000.0, 10 * 10**9)


MODULE = """
import sys
from tests.monitor.fake_nvml import FakeDevice, FakeNvml
sys.modules["pynvml"] = FakeNvml(FakeDevice(uuid="GPU-a"), FakeDevice(uuid="GPU-b", not_supported={"energy"}))
"""


def test_with_a_fake_pynvml_the_program_records_and_draws_the_devices(
    tmp_path: Path, start: Callable[..., subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    (tmp_path / "pynvml.py").write_text(MODULE)
    first = [tmp_path, Path(__file__).parent]
    monitor = start("record", "--out", tmp_path / "m", "--hz", "10", first=first)
    wait_for_samples(tmp_path / "m", 6)
    monitor.terminate()
    assert monitor.wait(limit_s()) == 0
    recording = read(tmp_path / "m")
    assert (recording.source, recording.meta["driver"]) == ("nvml", "570.86.15")
    assert [device.energy_from for device in summarize(recording).devices] == ["counter", "power"]
    drawing = start("plot", tmp_path / "m")
    assert drawing.wait(limit_s()) == 0
    assert (tmp_path / "m" / "power.png").read_bytes().startswith(b"\x89PNG")


def test_the_fake_offers_nothing_that_pynvml_does_not() -> None:
    pynvml = pytest.importorskip("pynvml")
    names = [name for name in dir(GpmNvml) if name.lower().startswith(("nvml", "c_nvml"))]
    assert len(names) > 25
    assert [name for name in names if not hasattr(pynvml, name)] == []
    assert all(
        getattr(pynvml, name) == getattr(GpmNvml, name) for name in names if name.isupper() and name != "NVMLError"
    )
    assert {str(NVMLError(code)) for code in (4, 6, 15)} == {str(pynvml.NVMLError(code)) for code in (4, 6, 15)}
