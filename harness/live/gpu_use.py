"""How much each GPU of a node is used, from the last samples of its monitor."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from harness.common.bounded_read import read_end
from harness.monitor.errors import MonitorError
from harness.monitor.samples import GPU_SOURCES, LEADING_COLUMNS, META_FILE, SAMPLES_FILE, read_meta

COLUMN = "utilization_percent"
TAIL_BYTES = 1 << 13  # some samples of 16 GPUs


def gpu_use(folder: Path) -> dict[int, int]:
    """Percent by the device's number; empty: the monitor samples no GPUs, or has no sample yet."""
    found: dict[int, int] = {}
    with suppress(OSError, ValueError, MonitorError):
        if read_meta(folder / META_FILE).get("source") not in GPU_SOURCES:
            return {}
        with (folder / SAMPLES_FILE).open(encoding="utf-8") as file:
            columns = file.readline().strip().split(",")
        at, device = columns.index(COLUMN), LEADING_COLUMNS.index("device")
        for line in read_end(folder / SAMPLES_FILE, TAIL_BYTES).decode("utf-8", "replace").splitlines():
            cells = line.split(",")
            if len(cells) == len(columns) and cells[at] and cells[device].isdecimal():
                found[int(cells[device])] = round(float(cells[at]))
    return found
