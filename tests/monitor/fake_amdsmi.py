"""A stand-in for ROCm's amdsmi: the functions that the monitor calls, answering as the source of some version does.

No test here ran on an AMD GPU.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any


class AmdSmiException(Exception):
    """As in amdsmi: the base of its errors, with the library's code where there is one."""

    def __init__(self, err_code: int | None = None) -> None:
        super().__init__(err_code)
        self.err_code = err_code


NOT_SUPPORTED, BUSY = 2, 30


@dataclass
class FakeAmd:
    """One die of an MI250X as ROCm 7 shows it."""

    uuid: str = "a1ff740c-0000-1000-80d0-000000000000"
    power: dict[str, Any] = field(
        default_factory=lambda: {"socket_power": 412, "current_socket_power": "N/A", "average_socket_power": 412}
    )
    activity: dict[str, Any] = field(default_factory=lambda: {"gfx_activity": 93, "umc_activity": 41})
    energy: dict[str, Any] = field(
        default_factory=lambda: {"energy_accumulator": 2_000_000, "counter_resolution": 15.3}
    )
    clock: dict[str, Any] = field(default_factory=lambda: {"clk": 1650, "max_clk": 1700})
    degrees: float = 58
    errors: dict[str, int] = field(default_factory=dict)  # by function, the code that it fails with
    asked: list[str] = field(default_factory=list)


class FakeAmdSmi:
    """The module itself."""

    AmdSmiException = AmdSmiException
    AmdSmiMemoryType = SimpleNamespace(VRAM=0)
    AmdSmiTemperatureType = SimpleNamespace(EDGE=0, JUNCTION=1)
    AmdSmiTemperatureMetric = SimpleNamespace(CURRENT=0)
    AmdSmiClkType = SimpleNamespace(GFX=0)

    def __init__(self, *devices: FakeAmd, driver: bool = True) -> None:
        self._devices, self._driver = list(devices), driver

    def _ask(self, device: FakeAmd, what: str) -> None:
        device.asked.append(what)
        if what in device.errors:
            raise AmdSmiException(device.errors[what])

    def amdsmi_init(self) -> None:
        if not self._driver:
            raise AmdSmiException(34)

    def amdsmi_get_processor_handles(self) -> list[FakeAmd]:
        return self._devices

    def amdsmi_get_gpu_device_uuid(self, device: FakeAmd) -> str:
        self._ask(device, "uuid")
        return device.uuid

    def amdsmi_get_gpu_asic_info(self, _device: FakeAmd) -> dict[str, Any]:
        return {"market_name": "AMD Instinct MI250X", "vendor_id": 0x1002}

    def amdsmi_get_gpu_driver_info(self, _device: FakeAmd) -> dict[str, str]:
        return {"driver_name": "amdgpu", "driver_version": "6.12.12"}

    def amdsmi_get_gpu_memory_total(self, device: FakeAmd, _kind: int) -> int:
        self._ask(device, "memory_total")
        return 64 * 2**30

    def amdsmi_get_gpu_memory_usage(self, device: FakeAmd, _kind: int) -> int:
        self._ask(device, "memory")
        return 12 * 2**30

    def amdsmi_get_gpu_activity(self, device: FakeAmd) -> dict[str, Any]:
        self._ask(device, "activity")
        return device.activity

    def amdsmi_get_power_info(self, device: FakeAmd) -> dict[str, Any]:
        self._ask(device, "power")
        return device.power

    def amdsmi_get_energy_count(self, device: FakeAmd) -> dict[str, Any]:
        self._ask(device, "energy")
        return device.energy

    def amdsmi_get_temp_metric(self, device: FakeAmd, kind: int, _metric: int) -> float:
        self._ask(device, "temperature")
        assert kind == self.AmdSmiTemperatureType.JUNCTION
        return device.degrees

    def amdsmi_get_clock_info(self, device: FakeAmd, _kind: int) -> dict[str, Any]:
        self._ask(device, "clock")
        return device.clock
