"""AMD devices through ROCm's own Python package `amdsmi`: memory, utilisation, power, energy, temperature, clock.

Written from the package's source; never run on an AMD GPU. Its answers changed between versions of ROCm (5.6 to 7.1):
what one lacks is left empty. The columns are those of nvml.py, without the SMs' counters and the
clock's limits.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.monitor.gpu_choice import choose_visible
from harness.monitor.source import SampleValue

AmdQuery = Callable[[Any, Any], tuple[SampleValue, ...]]

_NOT_SUPPORTED = 2  # AMDSMI_STATUS_NOT_SUPPORTED
_MOST_CELSIUS = 1000  # above it are thousandths of a degree, as older versions give them
_UNKNOWN = (0xFFFF, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF)  # older versions write this where newer ones write "N/A"
# The first that has a number counts. ROCm 7 has the first; MI300 the second; MI200 and older the third.
_POWER = ("socket_power", "current_socket_power", "average_socket_power")
_CHANGED = (AttributeError, KeyError, TypeError)  # another version has no such function or no such field
# What importing it may raise: it is not there, or its library is missing or another version's.
_UNUSABLE = (ImportError, OSError, AttributeError, KeyError, RuntimeError)
_OF_ROCM, _OF_HIP = "ROCR_VISIBLE_DEVICES", ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")  # HIP reads the first set
_OWN_FOLDER = "share/amd_smi"  # of ROCm, where the package is before anybody installs it


def _number(value: Any) -> float | int | None:
    known = isinstance(value, int | float) and not isinstance(value, bool) and value not in _UNKNOWN
    return value if known else None


def _first(answer: Mapping[str, Any], *names: str) -> float | int | None:
    """The first of these fields that has a number."""
    return next((n for n in (_number(answer.get(name)) for name in names) if n is not None), None)


def _memory(smi: Any, handle: Any) -> tuple[SampleValue, ...]:
    return (_number(smi.amdsmi_get_gpu_memory_usage(handle, smi.AmdSmiMemoryType.VRAM)),)


def _activity(smi: Any, handle: Any) -> tuple[SampleValue, ...]:
    answer = smi.amdsmi_get_gpu_activity(handle)
    return _first(answer, "gfx_activity"), _first(answer, "umc_activity")


def _power(smi: Any, handle: Any) -> tuple[SampleValue, ...]:
    """Watts. Of an MI250X's two dies the first has the module's power and the other none, which reads as 0."""
    answer = smi.amdsmi_get_power_info(handle)
    return (next((n for n in (_first(answer, name) for name in _POWER) if n), None),)


def _energy(smi: Any, handle: Any) -> tuple[SampleValue, ...]:
    """Joules: a counter of steps whose size is given in millionths of a joule."""
    answer = smi.amdsmi_get_energy_count(handle)
    count, step = _first(answer, "energy_accumulator", "power"), _first(answer, "counter_resolution")
    return (None if not count or step is None else count * step / 1e6,)


def _temperature(smi: Any, handle: Any) -> tuple[SampleValue, ...]:
    """Of the die's hottest place, which every generation has; the edge's is not known on newer ones."""
    kind, now = smi.AmdSmiTemperatureType.JUNCTION, smi.AmdSmiTemperatureMetric.CURRENT
    degrees = _number(smi.amdsmi_get_temp_metric(handle, kind, now))
    return (degrees / 1000 if degrees is not None and degrees > _MOST_CELSIUS else degrees,)


def _clock(smi: Any, handle: Any) -> tuple[SampleValue, ...]:
    return (_first(smi.amdsmi_get_clock_info(handle, smi.AmdSmiClkType.GFX), "clk", "cur_clk"),)


_READINGS: tuple[tuple[tuple[str, ...], AmdQuery], ...] = (
    (("memory_used_bytes",), _memory),
    (("utilization_percent", "memory_utilization_percent"), _activity),
    (("power_watts",), _power),
    (("energy_joules",), _energy),
    (("temperature_celsius",), _temperature),
    (("sm_clock_mhz",), _clock),
)


class AmdSource:
    """The job's AMD devices: those that ROCR_VISIBLE_DEVICES and HIP_VISIBLE_DEVICES name, else all of the machine;
    each die of an MI250X is one. notes: sentences on what is not as the job sees it.
    """

    kind = "amdsmi"
    columns = tuple(name for names, _ in _READINGS for name in names)

    def __init__(self, smi: Any, environ: Mapping[str, str] | None = None) -> None:
        """`smi` is the initialised amdsmi module; `environ` the job's environment, None: an empty one."""
        self._smi = smi
        environ = environ or {}
        handles = smi.amdsmi_get_processor_handles()
        uuids = list(map(self._uuid, handles))
        of_rocm = choose_visible(uuids, environ.get(_OF_ROCM), _OF_ROCM)
        # HIP counts in what ROCm left, and takes an empty list for none.
        name = next((name for name in _OF_HIP if environ.get(name)), _OF_HIP[0])
        of_hip = choose_visible([uuids[i] for i in of_rocm.places], environ.get(name) or None, name)
        self._indices = [of_rocm.places[i] for i in of_hip.places]
        self._uuids = [uuids[i] for i in self._indices]
        self._handles = [handles[i] for i in self._indices]
        self.notes = (*of_rocm.notes, *of_hip.notes)
        self._unsupported: set[tuple[int, tuple[str, ...]]] = set()

    def _uuid(self, handle: Any) -> str | None:
        """None: it does not say it."""
        try:
            return str(self._smi.amdsmi_get_gpu_device_uuid(handle))
        except self._smi.AmdSmiException:
            return None

    def __len__(self) -> int:
        return len(self._handles)

    def describe(self) -> Mapping[str, Any]:
        """Driver and devices; what is not known is null."""
        places = zip(self._indices, self._uuids, self._handles, strict=True)
        devices = [
            {
                "index": index,
                "name": self._text("amdsmi_get_gpu_asic_info", handle, "market_name") or "AMD GPU",
                "uuid": uuid,
                "memory_total_bytes": self._memory_total(handle),
            }
            for index, uuid, handle in places
        ]
        driver = self._text("amdsmi_get_gpu_driver_info", self._handles[0], "driver_version")
        return {"driver": driver, "devices": devices, "power": "amdsmi, the whole socket"}

    def sample(self) -> Sequence[Sequence[SampleValue]]:
        return [
            [value for columns, reading in _READINGS for value in self._ask(position, columns, reading)]
            for position in range(len(self._handles))
        ]

    def _ask(self, position: int, columns: tuple[str, ...], reading: AmdQuery) -> tuple[SampleValue, ...]:
        """The reading, or Nones. An unsupported reading is not tried again; a busy or lost device is."""
        unknown = (None,) * len(columns)
        if (position, columns) in self._unsupported:
            return unknown
        try:
            return reading(self._smi, self._handles[position])
        except _CHANGED:
            self._unsupported.add((position, columns))
        except self._smi.AmdSmiException as error:
            if getattr(error, "err_code", None) == _NOT_SUPPORTED:
                self._unsupported.add((position, columns))
        return unknown

    def _text(self, function: str, handle: Any, field: str) -> str | None:
        try:
            return str(getattr(self._smi, function)(handle)[field])
        except (*_CHANGED, self._smi.AmdSmiException):
            return None

    def _memory_total(self, handle: Any) -> int | None:
        try:
            total = _number(self._smi.amdsmi_get_gpu_memory_total(handle, self._smi.AmdSmiMemoryType.VRAM))
        except (*_CHANGED, self._smi.AmdSmiException):
            return None
        return None if total is None else int(total)


def open_amd() -> tuple[AmdSource | None, tuple[str, ...]]:
    """The job's AMD devices, None if there are none; and what else is to be said of them.

    Without ROCm's package, its library, a driver or a device nothing is.
    """
    smi = _imported()
    if smi is None:
        return None, ()
    try:
        smi.amdsmi_init()
        source = AmdSource(smi, os.environ)
    except (*_CHANGED, smi.AmdSmiException):
        return None, ()
    return source if len(source) else None, source.notes


def _imported() -> Any:
    """The package, installed or from ROCm's folder; None if it or its library is not there."""
    folder = str(Path(os.environ.get("ROCM_PATH", "/opt/rocm")) / _OWN_FOLDER)
    sys.path.append(folder)
    try:
        return importlib.import_module("amdsmi")
    except _UNUSABLE:
        return None
    finally:
        sys.path.remove(folder)
