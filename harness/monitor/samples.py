"""The files in a folder of samples; reads the columns of each device over time. Standard library only."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from harness.common.run_folder.run_files import MONITOR_META, MONITOR_SAMPLES
from harness.common.run_folder.run_store import UnreadFileError
from harness.common.system.bounded_read import parse_json
from harness.common.system.files import write_whole_text
from harness.monitor.source import Gap, MonitorError, find_gaps

SAMPLES_FILE, META_FILE = MONITOR_SAMPLES.base, MONITOR_META.base  # in a node's folder
META_SCHEMA = 1
GPU_SOURCES = ("nvml", "amdsmi")
LEADING_COLUMNS = ("unix_ns", "device")
# Every column of the monitor's files, for `slurm.sh help numbers monitor`. An empty cell: the device does not say.
COLUMNS = {
    "unix_ns": "Unix time of the sample.",
    "device": "Number of the device; in `network.csv` of the port. `meta.json` has their names.",
    "memory_used_bytes": "Memory in use: of a GPU by all processes; without GPUs by the job's processes, each shared "
    "page once (PSS).",
    "utilization_percent": "Share of the time in which the GPU did anything, copies from the host too; without GPUs "
    "the job's CPU time over that of the CPUs that it may use, since the last sample.",
    "sm_active_percent": "SM Active: share of the time in which an SM had work, mean over all SMs and since the last "
    "value. From Hopper on, at most one value a second.",
    "tensor_active_percent": "Tensor Active: share of the cycles in which the tensor cores worked, as above.",
    "dram_active_percent": "Bandwidth of the GPU's memory over its peak, as above.",
    "memory_utilization_percent": "Share of the time in which the GPU's memory was read or written.",
    "power_watts": "As the device says.",
    "energy_joules": "A counter of the device.",
    "temperature_celsius": "Of the GPU; on AMD of its hottest place.",
    "sm_clock_mhz": "Clock of the compute units.",
    "clock_limits": "Why the clock is not at its maximum: NVML's bits (clocks event reasons), as a number.",
    "processes": "Number of the job's processes.",
    "machine_utilization_percent": "CPU time of all processes of the machine over that of all its CPUs.",
    "machine_memory_used_bytes": "The machine's memory minus what is available.",
    "received_bytes": "A counter of the port: all that it has received so far.",
    "sent_bytes": "A counter of the port: all that it has sent so far.",
}
STARTS, ENDED = ("starts_unix_ns", "ended_unix_ns")  # of META_FILE: each start of a monitor, and an end as asked
NOTES = "notes"  # of META_FILE: what is not as the job sees its GPUs, in sentences
_MOST_NOTES, _LONGEST_NOTE = 20, 500
_MOST = 1 << 63
_MOST_LINE_BYTES = 1 << 16  # a node of 16 GPUs has lines of some 100 bytes


@dataclass(frozen=True)
class DeviceSeries:
    """One device. Each of `columns` has one float per entry of `unix_ns`, NaN where the value is unknown.

    gaps: where the recording, of all devices, has no samples.
    """

    index: int
    name: str
    memory_total_bytes: int | None
    unix_ns: list[int] = field(default_factory=list)
    columns: dict[str, list[float]] = field(default_factory=dict)
    gaps: tuple[Gap, ...] = ()

    def points(self, column: str) -> list[tuple[int, float]]:
        """(unix_ns, value) where the value is known; empty if the source does not have the column."""
        pairs = zip(self.unix_ns, self.columns.get(column, ()), strict=False)
        return [(at_ns, value) for at_ns, value in pairs if not math.isnan(value)]


@dataclass(frozen=True)
class NodeSamples:
    """All samples of one node, without the `damaged_rows`, which are cut off or unreadable."""

    folder: Path
    host: str
    source: str  # nvml | amdsmi | processes
    period_ns: int
    devices: tuple[DeviceSeries, ...]
    meta: dict[str, Any]
    damaged_rows: int
    gaps: tuple[Gap, ...] = ()

    @property
    def of_gpus(self) -> bool:
        """Whether the devices are GPUs, and not this node's processes."""
        return self.source in GPU_SOURCES

    @property
    def notes(self) -> tuple[str, ...]:
        """What is not as the job sees its GPUs, in sentences; empty in a recording that does not say."""
        found = self.meta.get(NOTES)
        texts = [each[:_LONGEST_NOTE] for each in found if isinstance(each, str)] if isinstance(found, list) else []
        return tuple(texts[:_MOST_NOTES])

    @property
    def starts(self) -> list[int]:
        """When the monitor was started, unix nanoseconds; empty in a recording that does not say."""
        return starts_of(self.meta)

    @property
    def died(self) -> bool:
        """Whether the monitor never said that it ended; False in a recording that would not say."""
        return bool(self.starts) and ENDED not in self.meta

    @property
    def span_ns(self) -> tuple[int, int]:
        """First and last sample of any device; (0, 0) without samples."""
        moments = [moment for device in self.devices for moment in device.unix_ns]
        return (min(moments), max(moments)) if moments else (0, 0)


def replace_json(path: Path, content: dict[str, Any]) -> None:
    write_whole_text(path, json.dumps(content, indent=2) + "\n")


def find(folder: Path) -> list[Path]:
    """`folder` if it has samples, else its direct subfolders with samples (one per node), sorted."""
    if (folder / SAMPLES_FILE).is_file():
        return [folder]
    return sorted(path.parent for path in folder.glob(f"*/{SAMPLES_FILE}"))


def read(folder: Path) -> NodeSamples:
    """The node's samples in `folder`. Raises MonitorError: one of its files cannot be read."""
    meta = read_meta(folder / META_FILE)
    try:
        devices = tuple(map(_series, meta["devices"]))
        host, source, period_ns = str(meta["host"]), str(meta["source"]), int(meta["period_ns"])
        if not 0 <= period_ns < _MOST:
            raise ValueError(f"period_ns is {period_ns}")
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise MonitorError(f"{folder / META_FILE} is not a monitor's description: {error!r}") from error
    damaged = read_series(folder / SAMPLES_FILE, {device.index: device for device in devices})
    moments = sorted({moment for device in devices for moment in device.unix_ns})
    gaps = find_gaps(moments, starts_of(meta), period_ns)
    devices = tuple(replace(device, gaps=gaps) for device in devices)
    return NodeSamples(folder, host, source, period_ns, devices, meta, damaged, gaps)


def starts_of(meta: dict[str, Any]) -> list[int]:
    """When the monitor was started, unix nanoseconds; empty if its description does not say."""
    found = meta.get(STARTS)
    return [each for each in found if isinstance(each, int) and 0 <= each < _MOST] if isinstance(found, list) else []


def _series(device: dict[str, Any]) -> DeviceSeries:
    size = device["memory_total_bytes"]
    if size is not None and not (isinstance(size, int) and abs(size) < _MOST):
        raise TypeError(f"memory_total_bytes is {size!r}")
    return DeviceSeries(int(device["index"]), str(device["name"]), size)


def read_meta(path: Path) -> dict[str, Any]:
    """A monitor's description. Raises MonitorError: it is missing or none."""
    try:
        meta = MONITOR_META.holding(parse_json).read(path)
    except UnreadFileError as error:
        raise MonitorError(f"{path}: {error.reason}") from error
    if not isinstance(meta, dict) or meta.get("schema") != META_SCHEMA:
        raise MonitorError(f"{path}: not a monitor's description of schema {META_SCHEMA}")
    return meta


def read_series(path: Path, device_series: dict[int, DeviceSeries]) -> int:
    """Fill `device_series`; returns the number of damaged rows (the last one, if the monitor was killed in it).

    Raises:
        MonitorError: the file cannot be read.
    """
    try:
        lines = MONITOR_SAMPLES.lines(path, _MOST_LINE_BYTES)
        names = next(lines, "").split(",")[len(LEADING_COLUMNS) :]
        for device in device_series.values():
            device.columns.update({name: [] for name in names})
        return sum(not _take_row(line, names, device_series) for line in lines if line)
    except UnreadFileError as error:
        raise MonitorError(f"{path}: {error.reason}") from error


def _take_row(line: str, names: list[str], device_series: dict[int, DeviceSeries]) -> bool:
    """Whether the row is whole; any other row is left out, so that all columns have the same length."""
    row = line.split(",")
    if len(row) != len(LEADING_COLUMNS) + len(names) or len(line) >= _MOST_LINE_BYTES:  # a cut line may look whole
        return False
    try:
        unix_ns, device = int(row[0]), device_series[int(row[1])]
        values = [float(cell) if cell else math.nan for cell in row[len(LEADING_COLUMNS) :]]
    except (ValueError, KeyError):
        return False
    if any(map(math.isinf, values)) or not abs(unix_ns) < _MOST:
        return False
    device.unix_ns.append(unix_ns)
    for name, value in zip(names, values, strict=True):
        device.columns[name].append(value)
    return True
