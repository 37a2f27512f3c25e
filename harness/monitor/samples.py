"""Reading a folder of samples back: per device its columns over time. Standard library only."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.monitor.errors import MonitorError

SAMPLES_FILE = "samples.csv"
META_FILE = "meta.json"
META_SCHEMA = 1
LEADING_COLUMNS = ("unix_ns", "device")


@dataclass(frozen=True)
class Series:
    """One device. `columns` hold one float per entry of `unix_ns`, NaN where the device did not say."""

    index: int
    name: str
    memory_total_bytes: int | None
    unix_ns: list[int] = field(default_factory=list)
    columns: dict[str, list[float]] = field(default_factory=dict)

    def points(self, column: str) -> list[tuple[int, float]]:
        """(unix_ns, value) where the value is known; empty when this source has no such column."""
        pairs = zip(self.unix_ns, self.columns.get(column, ()), strict=False)
        return [(at_ns, value) for at_ns, value in pairs if not math.isnan(value)]


@dataclass(frozen=True)
class Recording:
    """All samples of one node. `damaged_rows` were cut off or unreadable and are left out."""

    folder: Path
    host: str
    source: str  # nvml | processes
    period_ns: int
    devices: tuple[Series, ...]
    meta: dict[str, Any]
    damaged_rows: int

    @property
    def span_ns(self) -> tuple[int, int]:
        """First and last sample of any device; (0, 0) without samples."""
        moments = [moment for device in self.devices for moment in device.unix_ns]
        return (min(moments), max(moments)) if moments else (0, 0)


def find(folder: Path) -> list[Path]:
    """`folder` if it holds samples, else those of its direct subfolders that do (one per node), sorted."""
    if (folder / SAMPLES_FILE).is_file():
        return [folder]
    return sorted(path.parent for path in folder.glob(f"*/{SAMPLES_FILE}"))


def read(folder: Path) -> Recording:
    """The node's samples in `folder`. Raises MonitorError, naming the file, when it cannot be understood."""
    meta = _read_meta(folder / META_FILE)
    try:
        devices = tuple(
            Series(int(entry["index"]), str(entry["name"]), _total(entry["memory_total_bytes"]))
            for entry in meta["devices"]
        )
        host, source, period_ns = str(meta["host"]), str(meta["source"]), int(meta["period_ns"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise MonitorError(f"{folder / META_FILE} is not a monitor's description: {error!r}") from error
    damaged = _read_samples(folder / SAMPLES_FILE, {device.index: device for device in devices})
    return Recording(folder, host, source, period_ns, devices, meta, damaged)


def _total(said: object) -> int | None:
    if said is None or (isinstance(said, int) and said < 1 << 63):
        return said
    raise TypeError(f"memory_total_bytes is {said!r}")


def _read_meta(path: Path) -> dict[str, Any]:
    try:
        meta = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise MonitorError(f"{path}: {error}") from error
    if not isinstance(meta, dict) or meta.get("schema") != META_SCHEMA:
        raise MonitorError(f"{path}: not a monitor's description of schema {META_SCHEMA}")
    return meta


def _read_samples(path: Path, devices: dict[int, Series]) -> int:
    """Fill `devices`; returns how many rows were not whole (the last, when a monitor was killed in it)."""
    damaged = 0
    try:
        with path.open(newline="", encoding="ascii", errors="replace") as lines:
            rows = csv.reader(lines)
            names = next(rows, [])[len(LEADING_COLUMNS) :]
            for device in devices.values():
                device.columns.update({name: [] for name in names})
            damaged = sum(not _take_row(row, names, devices) for row in _non_empty(rows))
    except OSError as error:
        raise MonitorError(f"{path}: {error.strerror}") from error
    except csv.Error as error:
        raise MonitorError(f"{path} is no table: {error}") from error
    return damaged


def _non_empty(rows: Iterator[list[str]]) -> Iterator[list[str]]:
    return (row for row in rows if row)


def _take_row(row: list[str], names: list[str], devices: dict[int, Series]) -> bool:
    """Whether the row was whole; only then it is taken, so that columns stay equally long."""
    if len(row) != len(LEADING_COLUMNS) + len(names):
        return False
    try:
        unix_ns, device = int(row[0]), devices[int(row[1])]
        values = [float(cell) if cell else math.nan for cell in row[len(LEADING_COLUMNS) :]]
    except (ValueError, KeyError):
        return False
    if any(map(math.isinf, values)):
        return False
    device.unix_ns.append(unix_ns)
    for name, value in zip(names, values, strict=True):
        device.columns[name].append(value)
    return True
