"""NVIDIA devices through NVML: memory, utilisation, power, energy, temperature, clock and its limits, PCIe. No CUDA."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

from harness.monitor.source import SampleValue

NvmlQuery = Callable[[Any, Any], tuple[SampleValue, ...]]


def _memory(nvml: Any, handle: Any) -> Any:
    """Total and used bytes. Version 2 leaves out the driver's reserve, as nvidia-smi does; version 1 counts it.

    Bindings before 11.510 and drivers before 510 have only version 1.
    """
    try:
        return nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    except (AttributeError, TypeError, nvml.NVMLError):
        return nvml.nvmlDeviceGetMemoryInfo(handle)


def _clock_limits(nvml: Any, handle: Any) -> Any:
    """A bit for each reason. Every driver has the older name of the function; bindings may drop it."""
    older = getattr(nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", None)
    return (older or nvml.nvmlDeviceGetCurrentClocksEventReasons)(handle)


# (columns, how to read them): NVML gives mW, mJ and MHz; the file has W, J and MHz.
_READINGS: tuple[tuple[tuple[str, ...], NvmlQuery], ...] = (
    (("memory_used_bytes",), lambda n, h: (_memory(n, h).used,)),
    (
        ("utilization_percent", "memory_utilization_percent"),
        lambda n, h: attrgetter("gpu", "memory")(n.nvmlDeviceGetUtilizationRates(h)),
    ),
    (("power_watts",), lambda n, h: (n.nvmlDeviceGetPowerUsage(h) / 1e3,)),
    (("energy_joules",), lambda n, h: (n.nvmlDeviceGetTotalEnergyConsumption(h) / 1e3,)),
    (("temperature_celsius",), lambda n, h: (n.nvmlDeviceGetTemperature(h, n.NVML_TEMPERATURE_GPU),)),
    (("sm_clock_mhz",), lambda n, h: (n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_SM),)),
    (("clock_limits",), lambda n, h: (_clock_limits(n, h),)),
)
_PCIE_COLUMNS = ("pcie_tx_bytes_per_second", "pcie_rx_bytes_per_second")


def _read_pcie(nvml: Any, handle: Any) -> tuple[SampleValue, ...]:
    """Host traffic of one device; NVML counts it over 20 ms per direction and gives KB/s."""
    directions = (nvml.NVML_PCIE_UTIL_TX_BYTES, nvml.NVML_PCIE_UTIL_RX_BYTES)
    return tuple(1000 * nvml.nvmlDeviceGetPcieThroughput(handle, direction) for direction in directions)


def _text(value: str | bytes) -> str:
    """Old bindings return bytes."""
    return value.decode() if isinstance(value, bytes) else value


class NvmlSource:
    """All NVIDIA devices this process may see, or those that CUDA_VISIBLE_DEVICES names."""

    kind = "nvml"
    columns = tuple(name for names, _ in _READINGS for name in names) + _PCIE_COLUMNS

    def __init__(self, nvml: Any, visible: str | None = None) -> None:
        """`nvml` is the initialised pynvml module; `visible` is CUDA_VISIBLE_DEVICES, None for all."""
        self._nvml = nvml
        handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
        uuids = [_text(nvml.nvmlDeviceGetUUID(handle)) for handle in handles]
        self._indices = choose_visible(uuids, visible)
        self._uuids = [uuids[i] for i in self._indices]
        self._handles = [handles[i] for i in self._indices]
        self._unsupported: set[tuple[int, tuple[str, ...]]] = set()
        self._pcie_turn = 0

    def __len__(self) -> int:
        return len(self._handles)

    def describe(self) -> Mapping[str, Any]:
        """Driver and devices; an unknown memory size is null."""
        devices = []
        for index, uuid, handle in zip(self._indices, self._uuids, self._handles, strict=True):
            name, total = _text(self._nvml.nvmlDeviceGetName(handle)), self._memory_total(handle)
            devices.append({"index": index, "name": name, "uuid": uuid, "memory_total_bytes": total})
        driver = _text(self._nvml.nvmlSystemGetDriverVersion())
        return {"driver": driver, "devices": devices, "power": "NVML, the whole board"}

    def sample(self) -> Sequence[Sequence[SampleValue]]:
        """One row per device. PCIe blocks for 40 ms, so each call reads it only of the next device in turn."""
        self._pcie_turn = (self._pcie_turn + 1) % max(1, len(self._handles))
        return [self._row(position) for position in range(len(self._handles))]

    def _row(self, position: int) -> list[SampleValue]:
        row: list[SampleValue] = []
        for columns, reading in _READINGS:
            row += self._ask(position, columns, reading)
        if position == self._pcie_turn:
            return row + list(self._ask(position, _PCIE_COLUMNS, _read_pcie))
        return row + [None] * len(_PCIE_COLUMNS)

    def _ask(self, position: int, columns: tuple[str, ...], reading: NvmlQuery) -> tuple[SampleValue, ...]:
        """The reading, or Nones. An unsupported reading is not tried again; a lost device is."""
        unknown = (None,) * len(columns)
        if (position, columns) in self._unsupported:
            return unknown
        try:
            return reading(self._nvml, self._handles[position])
        except self._nvml.NVMLError as error:
            if error.value == self._nvml.NVML_ERROR_NOT_SUPPORTED:
                self._unsupported.add((position, columns))
            return unknown

    def _memory_total(self, handle: Any) -> int | None:
        try:
            return int(_memory(self._nvml, handle).total)
        except self._nvml.NVMLError:
            return None


def choose_visible(uuids: Sequence[str], visible: str | None) -> list[int]:
    """Indices of the devices that CUDA_VISIBLE_DEVICES names, by number or by the start of a UUID.

    All devices if it is unset, empty or not understood (for example a MIG slice).
    """
    chosen: list[int] = []
    for device in filter(None, map(str.strip, (visible or "").split(","))):
        found = [i for i, uuid in enumerate(uuids) if device == str(i) or uuid.startswith(device)]
        if len(found) != 1:
            return list(range(len(uuids)))
        chosen += found
    return sorted(set(chosen)) or list(range(len(uuids)))


def open_nvml() -> NvmlSource | None:
    """The machine's NVIDIA devices; None without the Python binding, a driver or a device."""
    try:
        import pynvml  # type: ignore[import-untyped]
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        source = NvmlSource(pynvml, os.environ.get("CUDA_VISIBLE_DEVICES"))
    except pynvml.NVMLError:
        return None
    return source if len(source) else None
