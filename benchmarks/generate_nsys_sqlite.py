"""Writes an nsys-like SQLite export of any size, with the columns of schema 3.11.

    python benchmarks/generate_nsys_sqlite.py TARGET --kernels 5000000 --devices 2

Every device trains by itself: steps of layers, each layer a push/pop range, each kernel launched by one API call on
the device's thread, one all-reduce in a hundred kernels on a second stream, one copy per step. Same seed, same file.
"""

from __future__ import annotations

import argparse
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

# fmt: off
_KERNEL_COLUMNS = (
    "start", "end", "deviceId", "contextId", "greenContextId", "streamId", "correlationId", "globalPid",
    "demangledName", "shortName", "mangledName", "launchType", "cacheConfig", "registersPerThread",
    "gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ", "staticSharedMemory",
    "dynamicSharedMemory", "localMemoryPerThread", "localMemoryTotal", "gridId", "sharedMemoryExecuted",
    "graphNodeId", "sharedMemoryLimitConfig",
)
_RUNTIME_COLUMNS = (
    "start", "end", "eventClass", "globalTid", "correlationId", "nameId", "returnValue", "callchainId",
)
_NVTX_COLUMNS = (
    "start", "end", "eventType", "rangeId", "category", "color", "text", "globalTid", "endGlobalTid",
    "textId", "domainId", "uint64Value", "int64Value", "doubleValue", "uint32Value", "int32Value",
    "floatValue", "jsonTextId", "jsonText",
)
_COPY_COLUMNS = (
    "start", "end", "deviceId", "contextId", "greenContextId", "streamId", "correlationId", "globalPid",
    "bytes", "copyKind", "deprecatedSrcId", "srcKind", "dstKind", "srcDeviceId", "srcContextId",
    "dstDeviceId", "dstContextId", "migrationCause", "graphNodeId", "virtualAddress",
)
# fmt: on
_TABLES = {
    "CUPTI_ACTIVITY_KIND_KERNEL": _KERNEL_COLUMNS,
    "CUPTI_ACTIVITY_KIND_RUNTIME": _RUNTIME_COLUMNS,
    "CUPTI_ACTIVITY_KIND_MEMCPY": _COPY_COLUMNS,
    "NVTX_EVENTS": _NVTX_COLUMNS,
}
_TEXT = {"text", "jsonText"}
_NAMES = [
    "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn",
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int)",
    "void flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4>>(Flash_fwd_params)",
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(float)",
    "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x2_nn_align8>(Params)",
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "cudaLaunchKernel_v7000",
    "cudaMemcpyAsync_v3020",
]
_KINDS = 5  # compute kernels among the names; the all-reduce follows
_KERNELS_PER_LAYER = 10
_KERNELS_PER_REDUCTION = 100
_LAYERS_PER_STEP = 32
_CHUNK = 200_000

Column = NDArray[np.int64]


def rows(columns: tuple[str, ...], values: dict[str, Any], count: int) -> Iterator[tuple[Any, ...]]:
    """Rows of a table; a column that is not given is NULL, a number that is given for all is repeated."""
    lists = []
    for name in columns:
        value = values.get(name)
        lists.append(value.tolist() if isinstance(value, np.ndarray) else [value] * count)
    return zip(*lists, strict=True)


def write_schema(database: sqlite3.Connection) -> None:
    """Tables, names, and what identifies the export."""
    for table, columns in _TABLES.items():
        typed = ",".join(f'"{name}" {"TEXT" if name in _TEXT else "INTEGER"}' for name in columns)
        database.execute(f"CREATE TABLE {table} ({typed})")
    database.execute("CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL)")
    database.executemany("INSERT INTO StringIds VALUES (?,?)", enumerate(_NAMES, start=1))
    database.execute("CREATE TABLE META_DATA_EXPORT (name TEXT NOT NULL, value TEXT)")
    database.executemany(
        "INSERT INTO META_DATA_EXPORT VALUES (?,?)",
        [("EXPORT_SCHEMA_VERSION", "3.11.1"), ("EXPORT_PRODUCT_VERSION", "2024.2.3.38")],
    )
    database.execute("CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER)")
    database.execute("INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (1700000000000000000)")


def insert(database: sqlite3.Connection, table: str, values: dict[str, Any], count: int) -> None:
    """Append rows to one of the tables."""
    columns = _TABLES[table]
    marks = ",".join("?" * len(columns))
    database.executemany(f"INSERT INTO {table} VALUES ({marks})", rows(columns, values, count))


class Device:
    """One device's program, written chunk after chunk."""

    def __init__(self, device: int, seed: int) -> None:
        self.device = device
        self.random = np.random.default_rng([seed, device])
        self.pid = 1000 + device
        self.global_pid = (1 << 48) | (self.pid << 24)
        self.global_tid = self.global_pid | self.pid
        self.now = 1_000_000 + device * 137
        self.correlation = 1
        self.layers = 0

    def write(self, database: sqlite3.Connection, count: int) -> None:
        """Append `count` kernels with their launches, ranges and copies."""
        duration = self.random.integers(2_000, 40_000, count)
        gap = self.random.integers(0, 1_500, count)
        gap[:: _KERNELS_PER_LAYER * _LAYERS_PER_STEP] += 200_000
        end = self.now + np.cumsum(duration + gap)
        start = end - duration
        place = np.arange(count) % _KERNELS_PER_REDUCTION
        reduces = place == _KERNELS_PER_REDUCTION - 1
        end[reduces] += 5_000
        name = np.where(reduces, _KINDS + 1, place % _KINDS + 1)
        self._kernels(database, start, end, np.where(reduces, 20, 7), name)
        launch = start - self.random.integers(6_000, 9_000, count)
        self._calls(database, np.maximum.accumulate(launch))
        self._ranges(database, np.maximum.accumulate(launch), count)
        self._copies(database, start[:: _KERNELS_PER_LAYER * _LAYERS_PER_STEP])
        self.now = int(end[-1]) + 1_000
        self.correlation += count

    def _kernels(self, database: sqlite3.Connection, start: Column, end: Column, stream: Column, name: Column) -> None:
        count = len(start)
        fixed = dict.fromkeys(_KERNEL_COLUMNS[13:26], 1) | {"launchType": 1, "cacheConfig": 1}
        values = fixed | {"start": start, "end": end, "deviceId": self.device, "contextId": 1}
        values |= {"streamId": stream, "correlationId": self.correlation + np.arange(count)}
        values |= {"globalPid": self.global_pid, "demangledName": name, "shortName": name}
        insert(database, "CUPTI_ACTIVITY_KIND_KERNEL", values, count)

    def _calls(self, database: sqlite3.Connection, launch: Column) -> None:
        count = len(launch)
        values = {"start": launch, "end": launch + 900, "eventClass": 0, "globalTid": self.global_tid}
        values |= {"correlationId": self.correlation + np.arange(count), "nameId": _KINDS + 2, "returnValue": 0}
        insert(database, "CUPTI_ACTIVITY_KIND_RUNTIME", values, count)

    def _ranges(self, database: sqlite3.Connection, launch: Column, count: int) -> None:
        first = launch[::_KERNELS_PER_LAYER]
        last = np.append(first[1:], launch[-1] + 2_000) - 1
        text = np.array([f"layer {(self.layers + i) % _LAYERS_PER_STEP}" for i in range(len(first))])
        self._push_pop(database, first - 300, last - 300, text)
        per_step = _KERNELS_PER_LAYER * _LAYERS_PER_STEP
        first = launch[::per_step]
        last = np.append(first[1:], launch[-1] + 2_000) - 1
        step = (self.layers // _LAYERS_PER_STEP) + np.arange(len(first))
        self._push_pop(database, first - 600, last - 600, np.array([f"batch_{i}" for i in step]))
        self.layers += count // _KERNELS_PER_LAYER

    def _push_pop(self, database: sqlite3.Connection, start: Column, end: Column, text: NDArray[np.str_]) -> None:
        values = {"start": start, "end": end, "eventType": 59, "text": text, "globalTid": self.global_tid}
        insert(database, "NVTX_EVENTS", values | {"domainId": 0}, len(start))

    def _copies(self, database: sqlite3.Connection, before: Column) -> None:
        count = len(before)
        values = {"start": before - 90_000, "end": before - 60_000, "deviceId": self.device, "contextId": 1}
        values |= {"streamId": 7, "correlationId": 0, "globalPid": self.global_pid, "bytes": 1 << 20}
        insert(database, "CUPTI_ACTIVITY_KIND_MEMCPY", values | {"copyKind": 1, "srcKind": 1, "dstKind": 2}, count)


def generate(target: Path, kernels: int, devices: int, seed: int = 0) -> None:
    """Write an export with `kernels` kernels, spread evenly over `devices`."""
    target.unlink(missing_ok=True)
    database = sqlite3.connect(target)
    database.executescript("PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF;")
    write_schema(database)
    each = kernels // devices
    writers = [Device(device, seed) for device in range(devices)]
    for begin in range(0, each, _CHUNK):
        for writer in writers:
            writer.write(database, min(_CHUNK, each - begin))
    database.commit()
    database.close()


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("target", type=Path)
    parser.add_argument("--kernels", type=int, default=5_000_000)
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    generate(given.target, given.kernels, given.devices, given.seed)
    print(f"{given.target}: {given.target.stat().st_size / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
