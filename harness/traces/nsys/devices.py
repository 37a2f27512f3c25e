"""nsys' numbers of threads, processes, strings and devices to those of the trace."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from harness.traces.columns import AnyColumn, NameTable, compacted, distinct_rows
from harness.traces.database import Database, whole
from harness.traces.trace import I32, I64

_LOW_24_BITS = 0xFFFFFF
_ANY_PROCESS = -1


def process_of(global_id: I64) -> I64:
    """The pid in nsys' global ids of processes and threads; -1 stays -1."""
    return compacted(np.where(global_id < 0, -1, (global_id >> 24) & _LOW_24_BITS))


def thread_of(global_id: I64) -> I64:
    """The thread id in nsys' global thread ids; -1 stays -1."""
    return compacted(np.where(global_id < 0, -1, global_id & _LOW_24_BITS))


def thread_of_one(global_id: int) -> int:
    """`thread_of` a single id."""
    return global_id & _LOW_24_BITS


def process_of_one(global_id: int) -> int:
    """`process_of` a single id."""
    return (global_id >> 24) & _LOW_24_BITS


def string_ids(database: Database, ids: Iterable[int]) -> dict[int, str]:
    """The strings of some StringIds."""
    return database.texts(ids, "StringIds", "value")


def names_of(
    database: Database, names: NameTable, ids: NDArray[np.integer], default: str, cleaned: Callable[[str], str] = str
) -> I32:
    """StringIds to indices of the trace's names; each text is `cleaned`, and a missing one is `default`."""
    present, rows = distinct_rows(ids)
    texts = string_ids(database, present.tolist())
    index = names.indices(cleaned(texts.get(number, default)) for number in present.tolist())
    return np.take(index, rows)


class Devices:
    """The GPUs of an export. `device` here is the trace's own number: CUDA's, or nsys' where CUDA's clash."""

    def __init__(self, names: dict[int, str], gpu_of: dict[tuple[int, int], int]) -> None:
        self._gpu_of = gpu_of  # by process and CUDA's number
        self._number = _cuda_numbers(gpu_of, names)
        self.names = {self.of_gpu(gpu): name for gpu, name in names.items()}

    def of_gpu(self, gpu: int) -> int:
        """The device that nsys numbers `gpu`."""
        return gpu if self._number is None else self._number.get(gpu, gpu)

    def of_cuda(self, process: I64, number: AnyColumn) -> AnyColumn:
        """The devices to which the processes give these CUDA numbers."""
        if self._number is not None:
            return number
        device: AnyColumn = number.copy()
        for (pid, own), gpu in self._gpu_of.items():
            device[(number == own) & ((process == pid) | (pid == _ANY_PROCESS))] = gpu
        return device


def read_devices(database: Database) -> Devices:
    """The export's GPUs; without a table of GPUs, CUDA's numbers are kept."""
    listed = database.rows("TARGET_INFO_GPU", "id", "name", "cuDevice")
    mapped = database.rows("TARGET_INFO_CUDA_DEVICE", "pid", "cudaId", "gpuId")
    mapped = mapped or [(None, cuda, gpu) for gpu, _, cuda in listed]
    gpu_of = {
        (_ANY_PROCESS if pid is None else pid, cuda): gpu
        for pid, cuda, gpu in mapped
        if whole(cuda) is not None and whole(gpu) is not None
    }
    return Devices({gpu: str(name) for gpu, name, _ in listed if whole(gpu) is not None}, gpu_of)


def _cuda_numbers(gpu_of: dict[tuple[int, int], int], gpus: Iterable[int]) -> dict[int, int] | None:
    """CUDA's number of each GPU, or nsys' number where CUDA has none; None: two processes or two GPUs disagree."""
    pairs = {(gpu, number) for (_, number), gpu in gpu_of.items()}
    numbers = {gpu: gpu for gpu in gpus} | dict(pairs)
    one_each = len(pairs) == len({gpu for gpu, _ in pairs})
    return numbers if one_each and len(set(numbers.values())) == len(numbers) else None
