"""A stand-in for ROCm's amdsmi: the functions that the monitor calls, answering as the source of some version does.

No test here ran on an AMD GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any


class AmdSmiException(Exception):
    """As in amdsmi: the base of its errors, with the library's code where there is one."""

    def __init__(self, err_code: int | None = None) -> None:
        super().__init__(err_code)
        self.err_code = err_code


NOT_SUPPORTED, BUSY = 2, 30
JUNCTION = 1
POWER = {"socket_power": 412, "current_socket_power": "N/A", "average_socket_power": 412}


@dataclass
class FakeAmd:
    """One die of an MI250X as ROCm 7 shows it."""

    uuid: str = "a1ff740c-0000-1000-80d0-000000000000"
    power: dict[str, Any] = field(default_factory=lambda: dict(POWER))
    activity: dict[str, Any] = field(default_factory=lambda: {"gfx_activity": 93, "umc_activity": 41})
    energy: dict[str, Any] = field(
        default_factory=lambda: {"energy_accumulator": 2_000_000, "counter_resolution": 15.3}
    )
    clock: dict[str, Any] = field(default_factory=lambda: {"clk": 1650, "max_clk": 1700})
    degrees: float = 58
    memory: int = 12 * 2**30
    memory_total: int = 64 * 2**30
    asic: dict[str, Any] = field(default_factory=lambda: {"market_name": "AMD Instinct MI250X", "vendor_id": 0x1002})
    driver: dict[str, str] = field(default_factory=lambda: {"driver_name": "amdgpu", "driver_version": "6.12.12"})
    errors: dict[str, int] = field(default_factory=dict)  # by what is asked, the code that it fails with
    asked: list[str] = field(default_factory=list)


ANSWERS = {  # by function, what it tells of a device
    "amdsmi_get_gpu_device_uuid": "uuid",
    "amdsmi_get_gpu_asic_info": "asic",
    "amdsmi_get_gpu_driver_info": "driver",
    "amdsmi_get_gpu_memory_total": "memory_total",
    "amdsmi_get_gpu_memory_usage": "memory",
    "amdsmi_get_gpu_activity": "activity",
    "amdsmi_get_power_info": "power",
    "amdsmi_get_energy_count": "energy",
    "amdsmi_get_temp_metric": "degrees",
    "amdsmi_get_clock_info": "clock",
}


class FakeAmdSmi:
    """The module itself."""

    AmdSmiException = AmdSmiException
    AmdSmiMemoryType = SimpleNamespace(VRAM=0)
    AmdSmiTemperatureType = SimpleNamespace(EDGE=0, JUNCTION=JUNCTION)
    AmdSmiTemperatureMetric = SimpleNamespace(CURRENT=0)
    AmdSmiClkType = SimpleNamespace(GFX=0)

    def __init__(self, *devices: FakeAmd, driver: bool = True) -> None:
        self._devices, self._driver = list(devices), driver

    def amdsmi_init(self) -> None:
        if not self._driver:
            raise AmdSmiException(34)

    def amdsmi_get_processor_handles(self) -> list[FakeAmd]:
        return self._devices

    def __getattr__(self, function: str) -> Callable[..., Any]:
        if function not in ANSWERS:
            raise AttributeError(function)
        what = ANSWERS[function]

        def answer(device: FakeAmd, *about: int) -> Any:
            device.asked.append(what)
            assert what != "degrees" or about[0] == JUNCTION
            if what in device.errors:
                raise AmdSmiException(device.errors[what])
            return getattr(device, what)

        return answer
