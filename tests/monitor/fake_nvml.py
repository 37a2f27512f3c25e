"""A stand-in for pynvml: the functions that the monitor calls, answering with the values of each fake device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any


class NVMLError(Exception):
    """As in pynvml: carries NVML's return code, and is printed in NVML's words."""

    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value

    def __str__(self) -> str:
        words = {4: "Insufficient Permissions", 6: "Not Found", 15: "GPU is lost", 18: "NVML/RM version mismatch"}
        return words.get(self.value, f"error {self.value}")


@dataclass
class FakeDevice:
    """One board that gains `joules_per_read` between two readings of its counter."""

    name: str = "NVIDIA H200"
    uuid: str = "GPU-0000"
    utilization: int = 87
    power: int = 450_000  # mW
    joules: float = 1_000_000.0
    joules_per_read: float = 450.0
    temperature: int = 61
    clock: int = 1980
    clock_limits: int = 0x4
    not_supported: set[str] = field(default_factory=set)
    lost: bool = False
    forbidden: bool = False  # by the cgroup of the job
    mig: tuple[int, int] = (0, 0)  # whether it is split, now and after a reset
    slices: tuple[str, ...] = ()  # UUIDs
    gpm: tuple[float, ...] | None = None  # per cent since the last sample, SM, tensor, DRAM; None: not supported
    gpm_taken: int = 0
    asked: list[str] = field(default_factory=list)
    memory = SimpleNamespace(used=8 * 2**30, total=141 * 2**30)

    @property
    def rates(self) -> SimpleNamespace:
        return SimpleNamespace(gpu=self.utilization, memory=40)

    @property
    def energy(self) -> int:
        self.joules += self.joules_per_read
        return round(self.joules * 1000)

    def ask(self, what: str) -> None:
        """It is asked for this. Raises NVMLError: it does not answer."""
        self.asked.append(what)
        if self.lost:
            raise NVMLError(FakeNvml.NVML_ERROR_GPU_IS_LOST)
        if what in self.not_supported:
            raise NVMLError(FakeNvml.NVML_ERROR_NOT_SUPPORTED)


ANSWERS = {  # by function, what it tells of a device
    "nvmlDeviceGetUUID": "uuid",
    "nvmlDeviceGetName": "name",
    "nvmlDeviceGetMigMode": "mig",
    "nvmlDeviceGetMemoryInfo": "memory",
    "nvmlDeviceGetUtilizationRates": "rates",
    "nvmlDeviceGetPowerUsage": "power",
    "nvmlDeviceGetTotalEnergyConsumption": "energy",
    "nvmlDeviceGetTemperature": "temperature",
    "nvmlDeviceGetClockInfo": "clock",
    "nvmlDeviceGetCurrentClocksThrottleReasons": "clock_limits",
}


class FakeNvml:
    """The module itself, like new bindings on a new driver."""

    NVML_ERROR_INVALID_ARGUMENT = 2
    NVML_ERROR_NOT_SUPPORTED = 3
    NVML_ERROR_NO_PERMISSION = 4
    NVML_ERROR_NOT_FOUND = 6
    NVML_ERROR_DRIVER_NOT_LOADED = 9
    NVML_ERROR_LIBRARY_NOT_FOUND = 12
    NVML_ERROR_GPU_IS_LOST = 15
    NVML_ERROR_LIB_RM_VERSION_MISMATCH = 18
    NVML_TEMPERATURE_GPU = 0
    NVML_CLOCK_SM = 1
    NVMLError = NVMLError
    nvmlMemory_v2 = 0x02000028

    def __init__(self, *devices: FakeDevice, init_error: int | None = None) -> None:
        self.devices = devices
        self.init_error = init_error

    def nvmlInit(self) -> None:
        if self.init_error is not None:
            raise NVMLError(self.init_error)

    def nvmlSystemGetDriverVersion(self) -> str:
        return "570.86.15"

    def nvmlDeviceGetCount(self) -> int:
        return len(self.devices)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeDevice:
        if self.devices[index].forbidden:
            raise NVMLError(self.NVML_ERROR_NO_PERMISSION)
        self.devices[index].ask("handle")
        return self.devices[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> tuple[FakeDevice, str]:
        for device in self.devices:
            if uuid in device.slices:
                return device, uuid
        raise NVMLError(self.NVML_ERROR_NOT_FOUND)

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, device: tuple[FakeDevice, str]) -> FakeDevice:
        return device[0]

    def __getattr__(self, function: str) -> Callable[..., Any]:
        if function not in ANSWERS:
            raise AttributeError(function)
        what = ANSWERS[function]

        def answer(device: FakeDevice, *_about: int, version: int | None = None) -> Any:
            assert what != "memory" or version == self.nvmlMemory_v2, "as the first version counts the driver's reserve"
            device.ask(what)
            return getattr(device, what)

        return answer


@dataclass
class FakeGpmSample:
    """Sums over the device's life, after `taken` samples."""

    sums: tuple[float, ...] = ()
    taken: int = 0


class GpmNvml(FakeNvml):
    """New bindings on a driver that gives the counters of Hopper."""

    NVML_GPM_METRICS_GET_VERSION = 1
    NVML_GPM_METRIC_SM_UTIL = 2
    NVML_GPM_METRIC_ANY_TENSOR_UTIL = 5
    NVML_GPM_METRIC_DRAM_BW_UTIL = 10
    _GPM_METRICS = (2, 5, 10)

    def __init__(self, *devices: FakeDevice) -> None:
        super().__init__(*devices)
        self.samples: list[FakeGpmSample] = []
        self._sums: dict[int, tuple[float, ...]] = {id(device): (0.0,) * 3 for device in devices}
        self.without: set[int] = set()  # metrics that NVML gives no value for

    @staticmethod
    def c_nvmlGpmMetricsGet_t() -> SimpleNamespace:
        return SimpleNamespace(metrics=[SimpleNamespace(nvmlReturn=999) for _ in range(8)])

    def nvmlGpmQueryDeviceSupport(self, device: FakeDevice) -> SimpleNamespace:
        return SimpleNamespace(isSupportedDevice=int(device.gpm is not None))

    def nvmlGpmSampleAlloc(self) -> FakeGpmSample:
        self.samples.append(FakeGpmSample())
        return self.samples[-1]

    def nvmlGpmSampleGet(self, device: FakeDevice, gpmSample: FakeGpmSample) -> FakeGpmSample:
        device.ask("gpm")
        assert device.gpm is not None
        device.gpm_taken += 1
        pairs = zip(self._sums[id(device)], device.gpm, strict=True)
        sums = tuple(before + more for before, more in pairs)
        self._sums[id(device)] = gpmSample.sums = sums
        gpmSample.taken = device.gpm_taken
        return gpmSample

    def nvmlGpmMetricsGet(self, metricsGet: SimpleNamespace) -> SimpleNamespace:
        first, last = metricsGet.sample1, metricsGet.sample2
        if metricsGet.version != self.NVML_GPM_METRICS_GET_VERSION or not 0 < first.taken < last.taken:
            raise NVMLError(self.NVML_ERROR_INVALID_ARGUMENT)
        for metric in metricsGet.metrics[: metricsGet.numMetrics]:
            place = self._GPM_METRICS.index(metric.metricId)
            metric.nvmlReturn = self.NVML_ERROR_NOT_SUPPORTED if metric.metricId in self.without else 0
            metric.value = (last.sums[place] - first.sums[place]) / (last.taken - first.taken)
        return metricsGet
