"""Counters of the SMs and of the memory that NVIDIA devices from Hopper on give through NVML, called GPM. They need no
rights. They do not disturb profilers, which use another part of the device (DCGM's maintainers, NVIDIA/DCGM issue 62).
"""

from __future__ import annotations

import math
import time
from typing import Any

from harness.monitor.source import SampleValue

# By column, the metric's name in NVML.
_METRICS = {
    "sm_active_percent": "NVML_GPM_METRIC_SM_UTIL",
    "tensor_active_percent": "NVML_GPM_METRIC_ANY_TENSOR_UTIL",
    "dram_active_percent": "NVML_GPM_METRIC_DRAM_BW_UTIL",
}
GPM_COLUMNS = tuple(_METRICS)
# A reading took up to 6 ms on an H200. At ten samples per second, eight devices would take half a core.
_LEAST_S = 0.9
_UNKNOWN: tuple[SampleValue, ...] = (None,) * len(_METRICS)


class GpmCounters:
    """One device's counters. NVML keeps two samples, to the end of this process, and gives the means between them."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        """Raises NVMLError or AttributeError: the driver or the binding lacks a part of it."""
        self._nvml, self._handle = nvml, handle
        self._ids = [getattr(nvml, name) for name in _METRICS.values()]
        self._before, self._now = (nvml.nvmlGpmSampleAlloc() for _ in range(2))
        self._taken_s: float | None = None  # when `_before` was filled; None: it is empty

    def read(self) -> tuple[SampleValue, ...]:
        """The means since the last reading, in per cent; unknown at the first, and within 0.9 s of one.

        Raises NVMLError: the device does not answer. The next reading is then a first one.
        """
        now_s, before_s = time.monotonic(), self._taken_s
        if before_s is not None and now_s - before_s < _LEAST_S:
            return _UNKNOWN
        self._taken_s = None
        self._nvml.nvmlGpmSampleGet(self._handle, self._now)
        values = _UNKNOWN if before_s is None else self._means()
        self._before, self._now = self._now, self._before
        self._taken_s = now_s
        return values

    def _means(self) -> tuple[SampleValue, ...]:
        wanted = self._nvml.c_nvmlGpmMetricsGet_t()
        wanted.version, wanted.numMetrics = self._nvml.NVML_GPM_METRICS_GET_VERSION, len(self._ids)
        wanted.sample1, wanted.sample2 = self._before, self._now
        for place, number in enumerate(self._ids):
            wanted.metrics[place].metricId = number
        self._nvml.nvmlGpmMetricsGet(wanted)
        metrics = (wanted.metrics[place] for place in range(len(self._ids)))
        return tuple(m.value if m.nvmlReturn == 0 and math.isfinite(m.value) else None for m in metrics)


def open_gpm(nvml: Any, handle: Any) -> GpmCounters | None:
    """None: the device, its driver or the Python binding has no such counters."""
    try:
        supported = nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice
        return GpmCounters(nvml, handle) if supported else None
    except (AttributeError, nvml.NVMLError):
        return None
