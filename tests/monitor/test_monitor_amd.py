"""AMD devices, without a GPU: a fake amdsmi answers as the real one's source says; none of it ran on hardware."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from harness.monitor.amd import AmdSource, open_amd
from harness.monitor.samples import read
from harness.monitor.summary import summarize
from tests.monitor.conftest import Write, rows_of
from tests.monitor.fake_amdsmi import ANSWERS, BUSY, NOT_SUPPORTED, FakeAmd, FakeAmdSmi


def row_of(**values: Any) -> dict[str, object]:
    return rows_of(AmdSource(FakeAmdSmi(FakeAmd(**values))))[0]


def test_with_a_fake_amdsmi_values_have_the_units_that_the_columns_say() -> None:
    assert row_of() == {
        "memory_used_bytes": 12 * 2**30,
        "utilization_percent": 93,
        "memory_utilization_percent": 41,
        "power_watts": 412,
        "energy_joules": pytest.approx(30.6),
        "temperature_celsius": 58,
        "sm_clock_mhz": 1650,
    }


@pytest.mark.parametrize(("power", "watts"), [
    ({"socket_power": 300, "current_socket_power": "N/A", "average_socket_power": "N/A"}, 300),  # ROCm 7
    ({"current_socket_power": 310, "average_socket_power": "N/A"}, 310),  # MI300
    ({"current_socket_power": "N/A", "average_socket_power": 320}, 320),  # MI200
    ({"current_socket_power": 0xFFFFFFFF, "average_socket_power": 330}, 330),  # ROCm 6.0: raw values
    ({"socket_power": 0, "current_socket_power": "N/A", "average_socket_power": 0}, None),  # an MI250X's second die
    ({"socket_power": "N/A"}, None),
])  # fmt: skip
def test_with_a_fake_amdsmi_power_is_found_in_every_version(power: dict[str, Any], watts: int | None) -> None:
    assert row_of(power=power)["power_watts"] == watts


def test_with_a_fake_amdsmi_of_older_versions_values_are_the_same() -> None:
    old = row_of(
        energy={"power": 2_000_000, "counter_resolution": 15.3}, clock={"cur_clk": 1650}, degrees=58_000,
        activity={"gfx_activity": 0xFFFF, "umc_activity": 41},
    )  # fmt: skip
    assert old == row_of() | {"utilization_percent": None, "energy_joules": pytest.approx(30.6)}


def test_with_a_fake_amdsmi_what_a_device_does_not_support_is_empty_and_not_asked_again() -> None:
    device = FakeAmd(errors={"energy": NOT_SUPPORTED, "clock": BUSY})
    source = AmdSource(FakeAmdSmi(device))
    for _ in range(3):
        (row,) = rows_of(source)
        assert (row["energy_joules"], row["sm_clock_mhz"], row["power_watts"]) == (None, None, 412)
    assert (device.asked.count("energy"), device.asked.count("clock")) == (1, 3)
    device.errors.clear()
    assert rows_of(source)[0]["sm_clock_mhz"] == 1650


def test_with_a_fake_amdsmi_without_a_function_its_column_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(ANSWERS, "amdsmi_get_energy_count")
    assert row_of()["energy_joules"] is None


def test_with_a_fake_amdsmi_devices_are_described() -> None:
    second = FakeAmd(uuid="b2", errors={"memory_total": NOT_SUPPORTED})
    about = AmdSource(FakeAmdSmi(FakeAmd(uuid="a1"), second), {"ROCR_VISIBLE_DEVICES": "1,0"}).describe()
    assert about["driver"] == "6.12.12"
    name = "AMD Instinct MI250X"
    assert about["devices"] == [
        {"index": 0, "name": name, "uuid": "a1", "memory_total_bytes": 64 * 2**30},
        {"index": 1, "name": name, "uuid": "b2", "memory_total_bytes": None},
    ]


@pytest.mark.parametrize(("environ", "indices"), [
    ({}, [0, 1, 2]),
    ({"ROCR_VISIBLE_DEVICES": "1"}, [1]),
    ({"ROCR_VISIBLE_DEVICES": ""}, []),
    ({"ROCR_VISIBLE_DEVICES": "-1"}, []),
    ({"ROCR_VISIBLE_DEVICES": "1,2", "HIP_VISIBLE_DEVICES": "1"}, [2]),  # counted in what ROCm left
    ({"HIP_VISIBLE_DEVICES": "-1"}, []),
    ({"HIP_VISIBLE_DEVICES": "", "CUDA_VISIBLE_DEVICES": "2"}, [2]),  # HIP reads the first that is not empty
])  # fmt: skip
def test_the_variables_of_rocm_and_hip_choose_what_a_fake_amdsmi_shows(
    environ: dict[str, str], indices: list[int]
) -> None:
    source = AmdSource(FakeAmdSmi(*(FakeAmd(uuid=f"a{i}") for i in range(3))), environ)
    assert source._indices == indices
    assert bool(source.notes) == (not indices)


def test_with_a_fake_amdsmi_a_device_without_a_uuid_leaves_the_others() -> None:
    lost = FakeAmd(uuid="b2", errors={"uuid": BUSY, "power": BUSY})
    source = AmdSource(FakeAmdSmi(FakeAmd(), lost))
    assert [row["power_watts"] for row in rows_of(source)] == [412, None]
    assert source.describe()["devices"][1]["uuid"] is None


@pytest.mark.parametrize(("module", "found"), [
    (FakeAmdSmi(FakeAmd(), FakeAmd(uuid="b2")), 2), (FakeAmdSmi(FakeAmd(), driver=False), None),
    (FakeAmdSmi(), None), (None, None),
])  # fmt: skip
def test_a_fake_amdsmi_is_used_where_it_has_devices(
    monkeypatch: pytest.MonkeyPatch, module: FakeAmdSmi | None, found: int | None
) -> None:
    monkeypatch.setitem(sys.modules, "amdsmi", module)
    for name in ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    path = list(sys.path)
    source, notes = open_amd()
    assert notes == ()
    assert (None if source is None else len(source)) == found
    assert sys.path == path


def test_the_package_in_rocms_own_folder_is_found_and_one_without_its_library_is_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "share" / "amd_smi" / "amdsmi"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise OSError('libamd_smi.so: cannot open shared object file')")
    monkeypatch.setenv("ROCM_PATH", str(tmp_path))
    monkeypatch.delitem(sys.modules, "amdsmi", raising=False)
    assert open_amd() == (None, ())
    (folder / "__init__.py").write_text("from tests.monitor.fake_amdsmi import *\nraise SystemExit('imported')")
    with pytest.raises(SystemExit, match="imported"):
        open_amd()


def test_samples_of_a_fake_amdsmi_are_a_recording_of_gpus(write_samples: Write) -> None:
    source = AmdSource(FakeAmdSmi(FakeAmd()))
    rows = [source.sample()[0] for _ in range(3)]
    devices = source.describe()["devices"]
    recording = read(write_samples(source.columns, rows, source=source.kind, devices=devices))
    (device,) = summarize(recording).devices
    assert recording.of_gpus
    assert (device.mean_power_watts, device.peak_memory_bytes) == (412, 12 * 2**30)
    assert device.name == "AMD Instinct MI250X"
