"""From samples to numbers: energy, peaks, and damaged files."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from harness.monitor.samples import find, read
from harness.monitor.source import MonitorError
from harness.monitor.summary import summarize
from tests.monitor.conftest import Write

POWER, BOTH = ("power_watts",), ("power_watts", "energy_joules")


@pytest.mark.parametrize(
    ("columns", "rows", "joules", "source"),
    [
        (POWER, [[100], [200], [200], [0]], 450, "power"),  # the area below it
        (POWER, [[100], [None], [None], [100]], 300, "power"),  # a value that is missing is bridged, not taken for zero
        (BOTH, [[100, 5000], [100, 5150]], 150, "counter"),
        (BOTH, [[100, 5000], [100, 20], [100, 120]], 200, "power"),  # a counter that runs backwards is not used
        (("memory_used_bytes",), [[5], [7]], None, None),  # not measured is unknown, not zero
    ],
)
def test_energy_is_the_devices_counter_or_the_area_below_power(
    write_samples: Write, columns: Sequence[str], rows: list[list[float]], joules: float | None, source: str | None
) -> None:
    summary = summarize(read(write_samples(columns, rows)))
    assert (summary.devices[0].energy_joules, summary.devices[0].energy_from) == (joules, source)
    assert summary.energy_joules == joules


def test_a_recording_without_samples_has_a_summary_of_unknowns(write_samples: Write) -> None:
    summary = summarize(read(write_samples(["memory_used_bytes"], [])))
    assert (summary.samples, summary.duration_ns, summary.devices[0].peak_memory_bytes) == (0, 0, None)


DEVICE = '{"index": 0, "name": "GPU", "memory_total_bytes": "y"}'
NO_DESCRIPTIONS = (
    *("{", "[]", '{"schema": 99}', '{"schema": 1, "host": "n"}'),
    f'{{"schema": 1, "host": "n", "source": "nvml", "period_ns": 1, "devices": [{DEVICE}]}}',
)


def test_a_folder_that_is_not_a_monitors_is_named(write_samples: Write) -> None:
    folder = write_samples(["power_watts"], [[1]])
    whole = (folder / "meta.json").read_text()
    for text in NO_DESCRIPTIONS:
        (folder / "meta.json").write_text(text)
        with pytest.raises(MonitorError, match=r"meta\.json"):
            read(folder)
    (folder / "meta.json").write_text(whole)
    (folder / "samples.csv").unlink()
    with pytest.raises(MonitorError, match=r"samples\.csv"):
        read(folder)


DAMAGED_ROWS = (
    *(b"2,0," + b"0" * 200_000 + b"9", b"2,0,\0", b"9" * 30 + b",0,1", b'2,0,"1', b"2,0,inf", b"2,0"),
    *(b"\xff\xfe\x01,\x80", b"12,99,4"),
)


@pytest.mark.parametrize("row", DAMAGED_ROWS, ids=range(len(DAMAGED_ROWS)))
def test_a_row_that_no_monitor_writes_is_counted_and_the_others_are_read(write_samples: Write, row: bytes) -> None:
    folder = write_samples(["power_watts"], [[1]])
    with (folder / "samples.csv").open("ab") as file:
        file.write(row + b"\n")
    recording = read(folder)
    assert (recording.damaged_rows, summarize(recording).damaged_rows) == (1, 1)
    assert recording.devices[0].columns["power_watts"] == [1.0]


def test_nodes_are_found_below_the_runs_folder(write_samples: Write) -> None:
    folder = write_samples(["power_watts"], [[1]])
    assert find(folder) == find(folder.parent) == [folder]
    assert find(folder / "meta.json") == []


def test_summary_json_is_the_summary(write_samples: Write) -> None:
    from harness.monitor.plot import plot

    folder = write_samples(["power_watts"], [[100], [300]], [[10], [30]])
    written = sorted(path.name for path in plot(folder))
    assert written == ["memory.png", "power.png", "summary.json", "utilization.png"]
    assert all((folder / name).read_bytes().startswith(b"\x89PNG") for name in written if name.endswith("png"))
    assert not list(folder.glob(".*"))
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["energy_joules"] == 220
    assert [device["max_power_watts"] for device in summary["devices"]] == [300, 30]
