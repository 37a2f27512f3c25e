"""Trace files made from a plain description: Kineto's JSON in many layouts, nsys' SQLite of any schema.

All times given here are integer nanoseconds. What the readers should make of a file follows from its description.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

Record = dict[str, Any]

HEADER: Record = {
    "schemaVersion": 1,
    "deviceProperties": [{"id": 0, "name": "NVIDIA A100-SXM4-40GB", "numSms": 108}],
    "distributedInfo": {
        "backend": "nccl",
        "rank": 3,
        "world_size": 8,
        "pg_config": [{"pg_name": "0", "pg_desc": "default_pg", "pg_size": 8, "ranks": list(range(8))}],
    },
    "host_name": "node7",
    "baseTimeNanoseconds": 1_711_964_646_000_000_000,
}
FOOTER: Record = {"traceName": "./rank3.json"}

# --- Kineto -----------------------------------------------------------------------------------------------------


def microseconds(time_ns: int) -> str:
    """As Kineto writes a time: microseconds with three decimals."""
    return f"{'-' * (time_ns < 0)}{abs(time_ns) // 1000}.{abs(time_ns) % 1000:03d}"


def at(time_ns: int) -> Number:
    """A time as JSON's number, digit by digit."""
    return Number(microseconds(time_ns))


def record(cat: str, name: str, start_ns: int, length_ns: int, *, pid: Any, tid: Any, **args: Any) -> Record:
    """Any complete event; argument names may hold spaces, so they are given as `**{...}`."""
    times = {"ts": at(start_ns), "dur": at(length_ns)}
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, **times, "args": args}


class Number(str):
    """Text that is written into JSON as a number, digit by digit."""

    __slots__ = ()


def kernel(
    name: str, start_ns: int, length_ns: int, *, cat: Any = "kernel", device: Any = 0, stream: Any = 7,
    correlation: Any = 1, **args: Any,
) -> Record:  # fmt: skip
    """Work on a GPU."""
    placed = {"device": device, "context": 1, "stream": stream, "correlation": correlation}
    return record(cat, name, start_ns, length_ns, pid=device, tid=stream, **placed, **args)


def call(
    name: str,
    start_ns: int,
    length_ns: int,
    *,
    cat: str = "cuda_runtime",
    correlation: int = 1,
    tid: int = 100,
) -> Record:
    """A runtime call on the host."""
    return record(cat, name, start_ns, length_ns, pid=50, tid=tid, cbid=211, correlation=correlation)


def said(name: str, start_ns: int, length_ns: int, *, cat: str = "user_annotation", tid: int = 100) -> Record:
    """A range of the program's own."""
    return record(cat, name, start_ns, length_ns, pid=50, tid=tid)


def operator(
    name: str, start_ns: int, length_ns: int, *, tid: Any = 100, cat: Any = "cpu_op", **args: Any
) -> Record:
    """An operator on the host."""
    return record(cat, name, start_ns, length_ns, pid=50, tid=tid, **args)


def _dumped(value: Any, **how: Any) -> str:
    marked = json.dumps(_marked(value), **how)
    return re.sub(r'"\\u0000#([-0-9.]*)"', r"\1", marked)


def _marked(value: Any) -> Any:
    """Marks Numbers, so that their quotes can be taken off again."""
    if isinstance(value, Number):
        return "\0#" + value
    if isinstance(value, dict):
        return {key: _marked(item) for key, item in value.items()}
    return [_marked(item) for item in value] if isinstance(value, list) else value


def _torch_1(record: Record) -> str:
    """torch 1.9 to 2.8: the first keys in one line, the times in one, the arguments in one."""
    first = ", ".join(
        f"{_dumped(k)}: {_dumped(v)}" for k, v in record.items() if k not in ("ts", "dur", "args")
    )
    times = ", ".join(f"{_dumped(k)}: {_dumped(v)}" for k, v in record.items() if k in ("ts", "dur"))
    args = ", ".join(f"{_dumped(k)}: {_dumped(v)}" for k, v in record.get("args", {}).items())
    inner = f',\n    "args": {{\n      {args}\n    }}' if "args" in record else ""
    return f"\n  {{\n    {first},\n    {times}{inner}\n  }}"


def _torch_2(record: Record) -> str:
    """torch 2.13: one key per line."""
    lines = ",\n    ".join(f"{_dumped(k)}: {_dumped(v)}" for k, v in record.items() if k != "args")
    args = ", ".join(f"{_dumped(k)}: {_dumped(v)}" for k, v in record.get("args", {}).items())
    inner = f'\n    ,\n    "args": {{\n      {args}\n    }}' if "args" in record else ""
    return f"\n  {{\n    {lines}{inner}\n  }}"


def _torch(one: Callable[[Record], str]) -> Callable[[Record, list[Record], Record], str]:
    def write(header: Record, records: list[Record], footer: Record) -> str:
        before = "".join(f"  {_dumped(k)}: {_dumped(v)},\n" for k, v in header.items())
        after = "".join(f",\n  {_dumped(k)}: {_dumped(v)}" for k, v in footer.items())
        return f'{{\n{before}  "traceEvents": [{",".join(map(one, records))}\n  ]{after}\n}}\n'

    return write


def _redumped(**how: Any) -> Callable[[Record, list[Record], Record], str]:
    def write(header: Record, records: list[Record], footer: Record) -> str:
        return _dumped({**header, "traceEvents": records, **footer}, **how)

    return write


def _events_first(header: Record, records: list[Record], footer: Record) -> str:
    return _dumped({"traceEvents": records, **header, **footer}, indent=1)


def _line_each(header: Record, records: list[Record], footer: Record) -> str:
    before = _dumped(header)[:-1]
    return f'{before}, "traceEvents": [\n' + ",\n".join(map(_dumped, records)) + f"\n], {_dumped(footer)[1:]}"


def _turned(header: Record, records: list[Record], footer: Record) -> str:
    backwards = [dict(reversed(record.items())) for record in records]
    return _torch(_torch_2)(header, backwards, footer)


def _wide(header: Record, records: list[Record], footer: Record) -> str:
    return _dumped({**header, "traceEvents": records, **footer}, separators=(" ,\r\n\t", " : "))


LAYOUTS: dict[str, Callable[[Record, list[Record], Record], str]] = {
    "torch 1.9": _torch(_torch_1),
    "torch 2.13": _torch(_torch_2),
    "keys the other way round": _turned,
    "compact": _redumped(separators=(",", ":")),
    "json.dump": _redumped(),
    "indented by 1": _redumped(indent=1),
    "indented by 2": _redumped(indent=2),
    "indented by tabs": _redumped(indent="\t"),
    "keys sorted": _redumped(indent=2, sort_keys=True),
    "one record a line": _line_each,
    "events before all else": _events_first,
    "much white space": _wide,
}


def kineto_text(
    records: Iterable[Record], layout: str = "torch 1.9", header: Record = HEADER, footer: Record = FOOTER
) -> bytes:
    """A trace file's text."""
    return LAYOUTS[layout](header, list(records), footer).encode()


def kineto(path: Path, records: Iterable[Record], layout: str = "torch 1.9", **more: Any) -> Path:
    """Write a Kineto file and return its path."""
    path.write_bytes(kineto_text(records, layout, **more))
    return path


def gpu_step(first_ns: int = 4_458_676_988_068_751_123) -> list[Record]:
    """A little of everything that a GPU's trace holds, with answers that are easy to see."""
    t = first_ns
    return [
        {"name": "process_name", "ph": "M", "ts": at(t), "pid": 50, "tid": 0, "args": {"name": "python"}},
        said("ProfilerStep#3", t, 90_000),
        operator("aten::mm", t + 1_000, 9_000, **{"Input Dims": [[4, 4], [4, 4]], "Input type": ["float", "float"]}),
        call("cudaLaunchKernel", t + 2_001, 3_000, correlation=11),
        {"ph": "s", "id": 11, "pid": 50, "tid": 100, "ts": at(t + 2_001), "cat": "ac2g", "name": "ac2g"},
        kernel("void gemm<float, 2>(float*)", t + 10_003, 20_007, correlation=11, grid=[1, 2, 3]),
        call("cudaMemcpyAsync", t + 5_000, 900, correlation=12),
        kernel("Memcpy HtoD (Pageable -> Device)", t + 30_010, 4_000, cat="gpu_memcpy", correlation=12, bytes=4096),
        kernel("Memset (Device)", t + 35_000, 500, cat="gpu_memset", correlation=13, bytes=64),
        kernel("odd \"name\" with }, {\"cat\": \"kernel\" and \\ in it]", t + 36_000, 1, correlation=14),
        said("ProfilerStep#4", t + 90_000, 5_000),
        {"name": "Record Window End", "ph": "i", "s": "g", "pid": "", "tid": "", "ts": at(t + 95_000)},
    ]  # fmt: skip


# --- nsys -------------------------------------------------------------------------------------------------------

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
    "CUDA_GPU_MEMORY_USAGE_EVENTS": (
        "start INT, globalPid INT, deviceId INT, bytes INT, memKind INT, memoryOperationType INT"
    ),
    "NVTX_EVENTS": (
        "start INT, end INT, eventType INT, rangeId INT, text TEXT, globalTid INT, textId INT, domainId INT, "
        "jsonTextId INT, jsonText TEXT"
    ),
    "GPU_METRICS": "timestamp INT, typeId INT, metricId INT, value INT",
    "DIAGNOSTIC_EVENT": "timestamp INT, timestampType INT, source INT, severity INT, text TEXT, globalPid INT",
}  # fmt: skip


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
            "CUPTI_ACTIVITY_KIND_KERNEL", start=start, end=start + length, deviceId=device, contextId=1,
            streamId=stream, correlationId=correlation, globalPid=global_pid(pid),
            **{column: None if text is None else self.string(text) for column, text in labels.items()},
        )  # fmt: skip

    def call(
        self, name: str, start: int, length: int, *, correlation: int, pid: int = 9, tid: int = 9
    ) -> None:
        """A runtime call."""
        self.add(
            "CUPTI_ACTIVITY_KIND_RUNTIME", start=start, end=start + length, eventClass=0, correlationId=correlation,
            globalTid=global_tid(pid, tid), nameId=self.string(name),
        )  # fmt: skip

    def copy(
        self, start: int, length: int, *, kind: int, source: int = 1, target: int = 2, size: int = 64
    ) -> None:
        """A memory copy."""
        self.add(
            "CUPTI_ACTIVITY_KIND_MEMCPY", start=start, end=start + length, deviceId=0, contextId=1, streamId=7,
            correlationId=0, globalPid=global_pid(9), bytes=size, copyKind=kind, srcKind=source, dstKind=target,
        )  # fmt: skip

    def memory(
        self, start: int, size: int, *, freed: bool = False, pid: int = 9, device: int = 0, kind: int = 2
    ) -> None:
        """An allocation, or its end."""
        self.add(
            "CUDA_GPU_MEMORY_USAGE_EVENTS", start=start, globalPid=global_pid(pid), deviceId=device, bytes=size,
            memKind=kind, memoryOperationType=int(freed),
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
        columns = [c for c in SCHEMA[table].split(", ") if c.split()[0] not in self._without_columns]
        quoted = ",".join('"{}" {}'.format(*column.split(" ", 1)) for column in columns)
        database.execute(f"CREATE TABLE {table} ({quoted})")
        names = [c.split()[0] for c in columns]
        rows = [[row.get(name) for name in names] for row in self._rows[table]]
        database.executemany(f"INSERT INTO {table} VALUES ({','.join('?' * len(names))})", rows)


def nsys_step() -> Nsys:
    """A little of everything that an nsys export holds."""
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
