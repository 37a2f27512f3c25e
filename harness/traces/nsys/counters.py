"""The hardware counters of an nsys export, and the memory that CUDA allocated."""

from __future__ import annotations

import numpy as np

from harness.traces.database import Database, whole
from harness.traces.nsys.cuda import CALLS
from harness.traces.nsys.devices import Devices
from harness.traces.nsys.ids import process_of, process_of_one
from harness.traces.trace import MetricSeries

_GPU_BITS = 0xFF  # of a typeId; the others say which machine and source
_ALLOCATED = 0  # ENUM_CUDA_DEV_MEM_EVENT_OPER
_ON_DEVICE = (2, 5)  # ENUM_CUDA_MEM_KIND: device, device static
_MEMORY = "CUDA_GPU_MEMORY_USAGE_EVENTS"
_FIRST_CALLS = ("cuInit", "cuDevicePrimaryCtxRetain", *(f"cuCtxCreate{v}" for v in ("", "_v2", "_v3", "_v4")))


def metric_series(database: Database, devices: Devices) -> list[MetricSeries]:
    """Every sampled counter of every device, in order of time."""
    raw = database.integers("GPU_METRICS", "timestamp", "typeId", "metricId", "value")
    if len(raw["timestamp"]) == 0:
        return []
    listed = database.rows("TARGET_INFO_GPU_METRICS", "typeId", "metricId", "metricName")
    kinds = ((whole(kind), number, name) for kind, number, name in listed)
    name_of = {(kind & _GPU_BITS, number): str(name) for kind, number, name in kinds if kind is not None}
    device, metric = raw["typeId"] & _GPU_BITS, raw["metricId"]
    order = np.lexsort((raw["timestamp"], metric, device))
    changes = (np.diff(device[order]) != 0) | (np.diff(metric[order]) != 0)
    return [
        MetricSeries(
            name=name_of.get((int(device[rows[0]]), int(metric[rows[0]])), f"metric {metric[rows[0]]}"),
            device=devices.of_gpu(int(device[rows[0]])),
            time_ns=raw["timestamp"][rows],
            value=raw["value"][rows].astype(np.float64),
        )
        for rows in np.split(order, np.flatnonzero(changes) + 1)
    ]


def peak_memory_bytes(database: Database, devices: Devices) -> dict[tuple[int, int], int]:
    """The most memory that each process had allocated at once, by process and device.

    Only of processes whose first calls of CUDA were recorded; others may have allocated memory before.
    """
    wanted = ("start", "globalPid", "deviceId", "bytes", "memKind", "memoryOperationType")
    raw = database.integers(_MEMORY, *wanted)
    process = process_of(raw["globalPid"])
    kept = np.isin(raw["memKind"], _ON_DEVICE) & np.isin(process, _recorded_from_the_start(database))
    rows = np.flatnonzero(kept)
    rows = rows[np.argsort(raw["start"][rows], kind="stable")]
    signed = np.where(raw["memoryOperationType"][rows] == _ALLOCATED, 1, -1) * raw["bytes"][rows]
    device = devices.of_cuda(process[rows], raw["deviceId"][rows])
    peak = {}
    for owner, number in sorted(set(zip(process[rows].tolist(), device.tolist(), strict=True))):
        held = np.cumsum(signed[(process[rows] == owner) & (device == number)])
        if held.min() >= 0:
            peak[owner, number] = int(held.max())
    return peak


def _recorded_from_the_start(database: Database) -> list[int]:
    """Processes whose first call of CUDA is in the recording."""
    if not database.columns(_MEMORY):
        return []
    first = [number for number, _ in database.rows("StringIds", "id", "value", only=("value", _FIRST_CALLS))]
    threads = [row for table in CALLS for row in database.rows(table, "globalTid", only=("nameId", first))]
    return sorted({process_of_one(thread) for (thread,) in threads if whole(thread) is not None})
