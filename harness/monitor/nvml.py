"""NVIDIA devices through NVML: memory, utilisation, what its SMs do, power, energy, temperature, clock and its limits.
No CUDA.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from harness.monitor.gpm import GPM_COLUMNS, GpmCounters, open_gpm
from harness.monitor.gpu_choice import NoGpu, choose_visible
from harness.monitor.source import SampleValue

NvmlQuery = Callable[[Any, Any], tuple[SampleValue, ...]]


def _memory(nvml: Any, handle: Any) -> Any:
    """Total and used bytes, without the driver's reserve, as nvidia-smi has them; for drivers from 510 on."""
    return nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)


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


@dataclass(frozen=True)
class _Board:
    """A GPU of the node. why: NVML's words if it does not answer, and then it has no handle. refused: for want of
    rights, so it is not the job's."""

    index: int
    handle: Any = None
    uuid: str | None = None
    why: str | None = None
    refused: bool = False


def _board(nvml: Any, index: int) -> _Board:
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        return _Board(index, handle, nvml.nvmlDeviceGetUUID(handle))
    except nvml.NVMLError as error:
        return _Board(index, why=str(error), refused=error.value == nvml.NVML_ERROR_NO_PERMISSION)


class NvmlSource:
    """The job's NVIDIA devices: those that CUDA_VISIBLE_DEVICES names, else all that this process may ask.

    One that does not answer is among them, without values. notes: sentences on what is not as the job sees it.
    """

    kind = "nvml"
    columns = (*(name for names, _ in _READINGS for name in names), *GPM_COLUMNS)

    def __init__(self, nvml: Any, environ: Mapping[str, str] | None = None) -> None:
        """`nvml` is the initialised pynvml module; `environ` the job's environment, None: an empty one.

        Raises NVMLError: NVML does not answer.
        """
        self._nvml = nvml
        environ = environ or {}
        self._node = [_board(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]
        askable = [board for board in self._node if not board.refused]
        uuids, visible = [board.uuid for board in askable], environ.get("CUDA_VISIBLE_DEVICES")
        choice = choose_visible(uuids, visible, uuid_of_slice=self._uuid_of_slice)
        self._boards = [askable[place] for place in choice.places]
        slices = {askable[place].index: name for place, name in choice.slices.items()}
        self._split = {b.index: slices.get(b.index) for b in self._boards if b.index in slices or self._is_split(b)}
        self.notes = (*choice.notes, *self._notes(visible or "", environ.get("CUDA_DEVICE_ORDER")))
        self._gpm: list[GpmCounters | None] = [
            None if board.handle is None or board.index in self._split else open_gpm(nvml, board.handle)
            for board in self._boards
        ]
        self._unsupported: set[tuple[int, tuple[str, ...]]] = set()

    def __len__(self) -> int:
        return len(self._boards)

    def _notes(self, visible: str, order: str | None) -> Iterator[str]:
        for board in self._boards:
            if board.why:
                yield f"GPU {board.index} does not answer ({board.why}): its numbers are not known"
            elif board.index in self._split:
                name = self._split[board.index]
                mine = f"the job has the slice {name} of it" if name else "it is split (MIG)"
                yield f"GPU {board.index}: {mine}; its numbers are the whole board's"
        refused = [board for board in self._node if board.refused]
        if refused and not self._boards:
            yield f"{len(refused)} of the node's {len(self._node)} GPUs may not be asked ({refused[0].why})"
        by_number = any(entry.strip().isdecimal() for entry in visible.split(","))
        models = {self._name(board) for board in self._node if board.handle is not None}
        if by_number and order != "PCI_BUS_ID" and len(models) > 1 and 0 < len(self._boards) < len(self._node):
            yield (
                f"CUDA_VISIBLE_DEVICES is {visible!r}, and the node's GPUs are of several models, which CUDA numbers "
                "by their speed and NVML by their place: the sampled GPUs may be others than the job's, unless "
                "CUDA_DEVICE_ORDER is PCI_BUS_ID"
            )

    def _uuid_of_slice(self, name: str) -> str:
        """Of its GPU."""
        try:
            board = self._nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self._nvml.nvmlDeviceGetHandleByUUID(name))
            return str(self._nvml.nvmlDeviceGetUUID(board))
        except (AttributeError, self._nvml.NVMLError) as error:
            raise NoGpu(str(error)) from error

    def _is_split(self, board: _Board) -> bool:
        modes = None if board.handle is None else self._known(lambda: self._nvml.nvmlDeviceGetMigMode(board.handle))
        return modes is not None and bool(modes[0])

    def describe(self) -> Mapping[str, Any]:
        """Driver and the job's devices; what is not known is null."""
        devices = [
            {
                "index": board.index,
                "name": self._name(board) + " (whole board)" * (board.index in self._split),
                "uuid": board.uuid,
                "memory_total_bytes": self._memory_total(board),
            }
            for board in self._boards
        ]
        return {
            "driver": self._known(self._nvml.nvmlSystemGetDriverVersion),
            "devices": devices,
            "power": "NVML, the whole board",
        }

    def sample(self) -> Sequence[Sequence[SampleValue]]:
        """One row per device."""
        return [self._row(position) for position in range(len(self._boards))]

    def _row(self, position: int) -> list[SampleValue]:
        if self._boards[position].handle is None:
            return [None] * len(self.columns)
        row: list[SampleValue] = []
        for columns, reading in _READINGS:
            row += self._ask(position, columns, reading)
        gpm = self._gpm[position]
        row += [None] * len(GPM_COLUMNS) if gpm is None else self._ask(position, GPM_COLUMNS, lambda *_: gpm.read())
        return row

    def _ask(self, position: int, columns: tuple[str, ...], reading: NvmlQuery) -> tuple[SampleValue, ...]:
        """The reading, or Nones. An unsupported reading is not tried again; a lost device is."""
        unknown = (None,) * len(columns)
        if (position, columns) in self._unsupported:
            return unknown
        try:
            return reading(self._nvml, self._boards[position].handle)
        except self._nvml.NVMLError as error:
            if error.value == self._nvml.NVML_ERROR_NOT_SUPPORTED:
                self._unsupported.add((position, columns))
            return unknown

    def _name(self, board: _Board) -> str:
        name = None if board.handle is None else self._known(self._nvml.nvmlDeviceGetName, board.handle)
        return "unknown" if name is None else str(name)

    def _memory_total(self, board: _Board) -> int | None:
        memory = None if board.handle is None else self._known(_memory, self._nvml, board.handle)
        return None if memory is None else int(memory.total)

    def _known(self, ask: Callable[..., Any], *arguments: Any) -> Any:
        """The answer, or None if there is none: a device may be lost at any time."""
        try:
            return ask(*arguments)
        except (AttributeError, self._nvml.NVMLError):
            return None


def open_nvml() -> tuple[NvmlSource | None, tuple[str, ...]]:
    """The job's NVIDIA devices, None if there are none; and what else is to be said of them.

    Without the Python binding, a driver or a device nothing is.
    """
    try:
        import pynvml  # type: ignore[import-untyped]
    except ImportError:
        return None, ()
    try:
        pynvml.nvmlInit()
        source = NvmlSource(pynvml, os.environ)
    except pynvml.NVMLError as error:
        absent = error.value in (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
        return None, () if absent else (f"no GPU is sampled: NVML does not answer ({error})",)
    return source if len(source) else None, source.notes
