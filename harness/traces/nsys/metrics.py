"""What an nsys export sampled or counted of its devices: hardware counters, and memory that CUDA handed out."""

from __future__ import annotations

import numpy as np

from harness.traces.nsys.database import Database
from harness.traces.nsys.identity import cuda_devices
from harness.traces.trace import MetricSeries

_GPU_BITS = 0xFF  # of a typeId; the others say which machine and source
_ALLOCATED = 0  # ENUM_CUDA_DEV_MEM_EVENT_OPER
_ON_DEVICE = (2, 5)  # ENUM_CUDA_MEM_KIND: device, device static


def metric_series(database: Database) -> list[MetricSeries]:
    """Every sampled counter of every device, in order of time."""
    raw = database.integers("GPU_METRICS", "timestamp", "typeId", "metricId", "value")
    if len(raw["timestamp"]) == 0:
        return []
    named = {
        (kind & _GPU_BITS, number): str(name)
        for kind, number, name in database.rows("TARGET_INFO_GPU_METRICS", "typeId", "metricId", "metricName")
    }
    device, metric = raw["typeId"] & _GPU_BITS, raw["metricId"]
    cuda = cuda_devices(database)
    order = np.lexsort((raw["timestamp"], metric, device))
    changes = (np.diff(device[order]) != 0) | (np.diff(metric[order]) != 0)
    return [
        MetricSeries(
            name=named.get((int(device[rows[0]]), int(metric[rows[0]])), f"metric {metric[rows[0]]}"),
            device=cuda.get(int(device[rows[0]]), int(device[rows[0]])),
            time_ns=raw["timestamp"][rows],
            value=raw["value"][rows].astype(np.float64),
        )
        for rows in np.split(order, np.flatnonzero(changes) + 1)
    ]


def peak_memory_bytes(database: Database) -> dict[int, int]:
    """The most memory that was allocated on each device at once, where allocations were recorded."""
    raw = database.integers(
        "CUDA_GPU_MEMORY_USAGE_EVENTS", "start", "deviceId", "bytes", "memKind", "memoryOperationType"
    )
    signed = np.where(raw["memoryOperationType"] == _ALLOCATED, raw["bytes"], -raw["bytes"])
    on_device = np.isin(raw["memKind"], _ON_DEVICE)
    peak = {}
    for device in np.unique(raw["deviceId"][on_device]).tolist():
        rows = np.flatnonzero(on_device & (raw["deviceId"] == device))
        rows = rows[np.argsort(raw["start"][rows], kind="stable")]
        peak[device] = max(0, int(np.cumsum(signed[rows]).max()))
    return peak
