"""From samples to numbers: energy, peaks, and damaged files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.monitor.processes import open_rapl
from harness.monitor.samples import find, read
from harness.monitor.source import MonitorError
from harness.monitor.summary import summarize

Write = Callable[..., Path]


def test_energy_is_the_area_below_power_where_there_is_no_counter(write_samples: Write) -> None:
    folder = write_samples(["power_watts"], [[100], [200], [200], [0]])
    numbers = summarize(read(folder)).devices[0]
    assert (numbers.energy_joules, numbers.energy_from) == (150 + 200 + 100, "power")
    assert (numbers.mean_power_watts, numbers.max_power_watts) == (125, 200)


def test_a_gap_in_power_is_bridged_not_taken_for_zero(write_samples: Write) -> None:
    folder = write_samples(["power_watts"], [[100], [None], [None], [100]])
    assert summarize(read(folder)).energy_joules == 300


def test_the_devices_own_counter_is_used_before_power(write_samples: Write) -> None:
    folder = write_samples(["power_watts", "energy_joules"], [[100, 5000], [100, 5150]])
    numbers = summarize(read(folder)).devices[0]
    assert (numbers.energy_joules, numbers.energy_from) == (150, "counter")


def test_a_counter_that_runs_backwards_is_not_used(write_samples: Write) -> None:
    folder = write_samples(["power_watts", "energy_joules"], [[100, 5000], [100, 20], [100, 120]])
    numbers = summarize(read(folder)).devices[0]
    assert (numbers.energy_joules, numbers.energy_from) == (200, "power")


def test_what_was_not_measured_is_unknown_not_zero(write_samples: Write) -> None:
    summary = summarize(read(write_samples(["memory_used_bytes"], [[5], [7]])))
    numbers = summary.devices[0]
    assert numbers.peak_memory_bytes == 7
    assert numbers.energy_joules is numbers.mean_utilization_percent is summary.energy_joules is None


def test_a_recording_without_samples_has_a_summary_of_unknowns(write_samples: Write) -> None:
    summary = summarize(read(write_samples(["memory_used_bytes"], [])))
    assert (summary.samples, summary.duration_ns, summary.devices[0].peak_memory_bytes) == (0, 0, None)


def test_a_cut_off_last_row_costs_that_row_only(write_samples: Write) -> None:
    folder = write_samples(["memory_used_bytes", "power_watts"], [[5, 1], [7, 1], [9, 1]])
    samples = folder / "samples.csv"
    samples.write_bytes(samples.read_bytes()[:-7])
    recording = read(folder)
    assert recording.damaged_rows == 1
    assert recording.devices[0].columns["memory_used_bytes"] == [5, 7]
    assert summarize(recording).damaged_rows == 1


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("meta.json", "{"),
        ("meta.json", "[]"),
        ("meta.json", '{"schema": 99}'),
        ("meta.json", '{"schema": 1, "host": "n"}'),
        (
            "meta.json",
            '{"schema": 1, "host": "n", "source": "nvml", "period_ns": 1, '
            '"devices": [{"index": 0, "name": "GPU", "memory_total_bytes": "y"}]}',
        ),
    ],
)
def test_a_folder_that_is_not_a_monitors_is_named(write_samples: Write, name: str, content: str) -> None:
    folder = write_samples(["power_watts"], [[1]])
    (folder / name).write_text(content)
    with pytest.raises(MonitorError, match=name):
        read(folder)


@pytest.mark.parametrize("row", ["2,0," + "0" * 200_000 + "9", "2,0,\0", f"{'9' * 30},0,1", '2,0,"1'])
def test_a_row_that_no_monitor_writes_is_counted_and_the_others_are_read(write_samples: Write, row: str) -> None:
    folder = write_samples(["power_watts"], [[1]])
    with (folder / "samples.csv").open("a") as file:
        file.write(f"{row}\n")
    recording = read(folder)
    assert recording.damaged_rows == 1
    assert recording.devices[0].columns["power_watts"] == [1.0]


def test_missing_files_are_named(write_samples: Write) -> None:
    folder = write_samples(["power_watts"], [[1]])
    (folder / "samples.csv").unlink()
    with pytest.raises(MonitorError, match=r"samples\.csv"):
        read(folder)


def test_binary_garbage_in_the_samples_is_damage_not_a_crash(write_samples: Write) -> None:
    folder = write_samples(["power_watts"], [[1]])
    with (folder / "samples.csv").open("ab") as samples:
        samples.write(b"\xff\xfe\x01,\x80\n12,99,4\n")
    assert read(folder).damaged_rows == 2


def test_an_endless_value_costs_its_row_only(write_samples: Write) -> None:
    recording = read(write_samples(["memory_used_bytes"], [[5], [float("inf")], [7]]))
    assert recording.damaged_rows == 1
    assert summarize(recording).devices[0].peak_memory_bytes == 7


def test_nodes_are_found_below_the_runs_folder(write_samples: Write) -> None:
    folder = write_samples(["power_watts"], [[1]])
    assert find(folder) == find(folder.parent) == [folder]
    assert find(folder / "meta.json") == []


@pytest.fixture
def powercap(tmp_path: Path) -> Path:
    """Two packages as the kernel shows them, one with a subzone, and a `psys` zone that contains both."""
    for name, label in [("0", "package-0"), ("0:0", "core"), ("1", "package-1"), ("2", "psys")]:
        folder = tmp_path / f"intel-rapl:{name}"
        folder.mkdir()
        (folder / "name").write_text(label + "\n")
        (folder / "energy_uj").write_text("9000000\n")
        (folder / "max_energy_range_uj").write_text("10000000\n")
    return tmp_path


def test_rapl_counts_each_package_once_and_survives_its_counters_wrap(powercap: Path) -> None:
    rapl = open_rapl(powercap)
    assert rapl and rapl.energy_joules() == 18.0
    (powercap / "intel-rapl:0/energy_uj").write_text("9500000")
    assert rapl.energy_joules() == 18.5
    (powercap / "intel-rapl:0/energy_uj").write_text("500000")
    (powercap / "intel-rapl:1/energy_uj").write_text("9250000")
    assert rapl.energy_joules() == 19.75


def test_rapl_that_may_not_be_read_is_not_there(powercap: Path) -> None:
    for package in powercap.glob("intel-rapl:[01]"):
        (package / "energy_uj").unlink()
    assert open_rapl(powercap) is None
    assert open_rapl(powercap / "nowhere") is None


def test_summary_json_is_the_summary(write_samples: Write) -> None:
    from harness.monitor.plot import plot

    folder = write_samples(["power_watts"], [[100], [300]], [[10], [30]])
    plot(folder)
    written = json.loads((folder / "summary.json").read_text())
    assert written["energy_joules"] == 220
    assert [device["max_power_watts"] for device in written["devices"]] == [300, 30]
