"""nsys exports (SQLite) made from a plain description, of any schema.

Times are integer nanoseconds. What the readers should make of a file follows from its description.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Record = dict[str, Any]

_COMMON = "start INT, end INT, deviceId INT, contextId INT, streamId INT, correlationId INT, globalPid INT"
SCHEMA = {
    "META_DATA_EXPORT": "name TEXT, value TEXT",
    "StringIds": "id INTEGER NOT NULL PRIMARY KEY, value TEXT",
    "TARGET_INFO_SYSTEM_ENV": "globalVid INT, devStateName TEXT, name TEXT, nameEnum INT, value TEXT",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs INT, utcTime TEXT",
    "TARGET_INFO_GPU": "vmId INT, id INT, name TEXT, cuDevice INT",
    "TARGET_INFO_CUDA_DEVICE": "gpuId INT, cudaId INT, pid INT",
    "TARGET_INFO_GPU_METRICS": "typeId INT, sourceId INT, typeName TEXT, metricId INT, metricName TEXT",
    "CUPTI_ACTIVITY_KIND_KERNEL": f"{_COMMON}, demangledName INT, shortName INT, mangledName INT, graphNodeId INT",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": f"{_COMMON}, graphId INT",
    "CUPTI_ACTIVITY_KIND_MEMCPY": f"{_COMMON}, bytes INT, copyKind INT, srcKind INT, dstKind INT",
    "CUPTI_ACTIVITY_KIND_MEMSET": f"{_COMMON}, value INT, bytes INT",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start INT, end INT, eventClass INT, globalTid INT, correlationId INT, nameId INT",
    "OSRT_API": "start INT, end INT, eventClass INT, globalTid INT, correlationId INT, nameId INT",
    "CUDNN_EVENTS": "start INT, end INT, eventClass INT, globalTid INT, nameId INT",
    "CUBLAS_EVENTS": "start INT, end INT, eventClass INT, globalTid INT, nameId INT",
    "MPI_COLLECTIVES_EVENTS": "start INT, end INT, globalTid INT, textId INT, commHandle INT, rootRank INT, size INT",
    "MPI_P2P_EVENTS": "start INT, end INT, globalTid INT, textId INT, commHandle INT, tag INT, remoteRank INT",
    "PROFILER_OVERHEAD": "start INT, end INT, globalTid INT, nameId INT, returnValue INT",
    "CUPTI_ACTIVITY_KIND_OVERHEAD": "start INT, end INT, eventClass INT, globalTid INT, nameId INT, overheadType INT",
    "SCHED_EVENTS": "start INT, cpu INT, isSchedIn INT, globalTid INT",
    "COMPOSITE_EVENTS": "id INTEGER NOT NULL PRIMARY KEY, start INT, cpu INT, threadState INT, globalTid INT",
    "SAMPLING_CALLCHAINS": (
        "id INT, symbol INT, module INT, unresolved INT, stackDepth INT, PRIMARY KEY (id, stackDepth)"
    ),
    "CUDA_GPU_MEMORY_USAGE_EVENTS": (
        "start INT, globalPid INT, deviceId INT, bytes INT, memKind INT, memoryOperationType INT"
    ),
    "NVTX_EVENTS": (
        "start INT, end INT, eventType INT, rangeId INT, text TEXT, globalTid INT, textId INT, domainId INT, "
        "jsonTextId INT, jsonText TEXT"
    ),
    "TARGET_INFO_NETWORK_METRICS": "metricsListId INT, metricsIdx INT, name TEXT, description TEXT, unit TEXT",
    "TARGET_INFO_NIC_INFO": "GUID INT, stateName TEXT, nicId INT, name TEXT, deviceId INT, vendorId INT, linkLayer INT",
    "NIC_ID_MAP": "nicId INT, globalId INT",
    "NET_NIC_METRIC": (
        "start INT, end INT, globalId INT, portId INT, metricsListId INT, metricsIdx INT, value REAL"
    ),
    "GPU_METRICS": "timestamp INT, typeId INT, metricId INT, value INT",
    "DIAGNOSTIC_EVENT": "timestamp INT, timestampType INT, source INT, severity INT, text TEXT, globalPid INT",
}  # fmt: skip

NIC_METRICS = (
    "IB: Bytes sent", "IB: Bytes received", "Eth: Bytes sent", "Eth: Bytes received", "IB: Send waits",
)  # fmt: skip


def global_pid(pid: int) -> int:
    """nsys' global id of a process."""
    return (1 << 48) | (pid << 24)


def global_tid(pid: int, tid: int) -> int:
    """nsys' global id of a thread."""
    return global_pid(pid) | tid


class Nsys:
    """An nsys export under construction; `saved` writes it."""

    def __init__(self, *, without_tables: Sequence[str] = (), without_columns: Sequence[str] = ()) -> None:
        self._rows: dict[str, list[Record]] = {table: [] for table in SCHEMA}
        self._strings: dict[str, int] = {}
        self._without_tables, self._without_columns = without_tables, without_columns
        self.add("META_DATA_EXPORT", name="EXPORT_PRODUCT_VERSION", value="2024.6.1.90")
        self.add("TARGET_INFO_SYSTEM_ENV", name="Hostname", value="lrdn0042", nameEnum=619)
        self.add("TARGET_INFO_SESSION_START_TIME", utcEpochNs=1_700_000_000_000_000_000)

    def add(self, table: str, **values: Any) -> None:
        """One row."""
        self._rows[table].append(values)

    def string(self, text: str) -> int:
        """The id of a string."""
        return self._strings.setdefault(text, len(self._strings) + 1)

    def kernel(self, name: str | None, start: int, length: int, *, pid: int = 9, device: int = 0, stream: int = 7,
               correlation: int = 0, short: str | None = None, mangled: str | None = None) -> None:  # fmt: skip
        """A kernel, and the call that launches it where it has a correlation."""
        labels = {"demangledName": name, "shortName": short or name, "mangledName": mangled}
        self.add(
            "CUPTI_ACTIVITY_KIND_KERNEL", start=start, end=start + length, deviceId=device, contextId=1 + device,
            streamId=stream, correlationId=correlation, globalPid=global_pid(pid),
            **{column: None if text is None else self.string(text) for column, text in labels.items()},
        )  # fmt: skip

    def call(self, name: str, start: int, length: int, *, correlation: int, pid: int = 9, tid: int = 9) -> None:
        """A runtime call."""
        self.add(
            "CUPTI_ACTIVITY_KIND_RUNTIME", start=start, end=start + length, eventClass=0, correlationId=correlation,
            globalTid=global_tid(pid, tid), nameId=self.string(name),
        )  # fmt: skip

    def host(self, table: str, name: str, start: int, length: int, *, pid: int = 9, tid: int = 9) -> None:
        """A span of a thread: a call of the operating system or a library, or the profiler's overhead."""
        named = "textId" if table.startswith("MPI_") else "nameId"
        placed = {"globalTid": global_tid(pid, tid), named: self.string(name)}
        self.add(table, start=start, end=start + length, **placed)

    def sample(self, start: int, *chain: tuple[str, str], pid: int = 9, tid: int = 9) -> None:
        """A sample of a thread's call chain: functions and their modules, the innermost first."""
        number = len(self._rows["COMPOSITE_EVENTS"]) + 1
        self.add("COMPOSITE_EVENTS", id=number, start=start, threadState=1, globalTid=global_tid(pid, tid))
        for depth, (symbol, module) in enumerate(chain):
            named = {"symbol": self.string(symbol), "module": self.string(module)}
            self.add("SAMPLING_CALLCHAINS", id=number, stackDepth=depth, **named)

    def scheduled(self, start: int, on_core: bool, *, pid: int = 9, tid: int = 9) -> None:
        """A thread gets a core, or leaves it."""
        self.add("SCHED_EVENTS", start=start, isSchedIn=int(on_core), globalTid=global_tid(pid, tid))

    def copy(self, start: int, length: int, *, kind: int, source: int = 1, target: int = 2, size: int = 64,
             correlation: int = 0) -> None:  # fmt: skip
        """A memory copy."""
        self.add(
            "CUPTI_ACTIVITY_KIND_MEMCPY", start=start, end=start + length, deviceId=0, contextId=1, streamId=7,
            correlationId=correlation, globalPid=global_pid(9), bytes=size,
            copyKind=kind, srcKind=source, dstKind=target,
        )  # fmt: skip

    def memory(
        self, start: int, size: int, *, freed: bool = False, pid: int = 9, device: int = 0, kind: int = 2
    ) -> None:
        """An allocation, or its end."""
        self.add(
            "CUDA_GPU_MEMORY_USAGE_EVENTS", start=start, globalPid=global_pid(pid), deviceId=device, bytes=size,
            memKind=kind, memoryOperationType=int(freed),
        )  # fmt: skip

    def adapter(self, number: int, name: str) -> None:
        """A network adapter, and nsys' list of metrics, of which the bytes are numbers 0 to 3 and the waits 4."""
        self.add("TARGET_INFO_NIC_INFO", nicId=number, name=name, GUID=-number, linkLayer=2)
        self.add("NIC_ID_MAP", nicId=number, globalId=1000 + number)
        for index, metric in enumerate(NIC_METRICS if number == 0 else ()):
            unit = "ticks/ms" if metric.endswith("waits") else "bytes/ms"
            self.add("TARGET_INFO_NETWORK_METRICS", metricsListId=0, metricsIdx=index, name=metric, unit=unit)

    def traffic(self, adapter: int, metric: int, start: int, length: int, *, value: float, port: int = 1) -> None:
        """A sample of one metric of one port: a rate in the metric's unit."""
        self.add(
            "NET_NIC_METRIC", start=start, end=start + length, globalId=1000 + adapter, portId=port,
            metricsListId=0, metricsIdx=metric, value=value,
        )  # fmt: skip

    def sampled(self, gpu: int, value: int, time: int = 10) -> None:
        """A sample of one counter of nsys' GPU number `gpu`."""
        kind = (5 << 56 | gpu) - (1 << 60)
        self.add("TARGET_INFO_GPU_METRICS", typeId=kind, metricId=0, metricName="SM Active")
        self.add("GPU_METRICS", timestamp=time, typeId=kind, metricId=0, value=value)

    def range(self, text: str | None, start: int, length: int | None, *, pid: int = 9, tid: int = 9, kind: int = 59,
              domain: int = 0, registered: str | None = None, payload: Record | None = None) -> None:  # fmt: skip
        """An NVTX range, or a domain (`kind=75`)."""
        self.add(
            "NVTX_EVENTS", start=start, end=None if length is None else start + length, eventType=kind, text=text,
            globalTid=global_tid(pid, tid), domainId=domain,
            textId=None if registered is None else self.string(registered),
            jsonText=None if payload is None else json.dumps(payload),
        )  # fmt: skip

    def saved(self, path: Path, *, page_bytes: int = 4096) -> Path:
        """Write the export."""
        path.unlink(missing_ok=True)
        with sqlite3.connect(path) as database:
            database.execute(f"PRAGMA page_size={page_bytes}")
            self._rows["StringIds"] = [{"id": i, "value": text} for text, i in self._strings.items()]
            for table in (table for table in SCHEMA if table not in self._without_tables):
                self._write(database, table)
        database.close()
        return path

    def _write(self, database: sqlite3.Connection, table: str) -> None:
        schema, key, _ = SCHEMA[table].partition(", PRIMARY KEY")
        columns = [c for c in schema.split(", ") if c.split()[0] not in self._without_columns]
        quoted = ",".join('"{}" {}'.format(*column.split(" ", 1)) for column in columns)
        quoted += f"{key} (id, stackDepth)" if key and "stackDepth" in quoted else ""
        database.execute(f"CREATE TABLE {table} ({quoted})")
        names = [c.split()[0] for c in columns]
        rows = [[row.get(name) for name in names] for row in self._rows[table]]
        database.executemany(f"INSERT INTO {table} VALUES ({','.join('?' * len(names))})", rows)


def nsys_step() -> Nsys:
    """One row of each sort of an nsys export."""
    made = Nsys()
    made.add("TARGET_INFO_GPU", vmId=1, id=1, name="NVIDIA A100", cuDevice=0)
    made.range("batch_0", 1_000, 90_000)
    made.range("forward", 2_000, 30_000)
    made.call("cudaLaunchKernel_v7000", 3_000, 500, correlation=21)
    made.kernel("void gemm<float>(float*)", 10_000, 20_000, correlation=21)
    made.call("cudaMemcpyAsync_v3020", 4_000, 500, correlation=22)
    made.copy(31_000, 4_000, kind=1, source=0)
    made.add(
        "CUPTI_ACTIVITY_KIND_MEMSET",
        start=36_000,
        end=36_500,
        deviceId=0,
        streamId=7,
        bytes=32,
        globalPid=global_pid(9),
    )
    made.kernel("void softmax<float>(float*)", 40_000, 1, correlation=99)
    return made
