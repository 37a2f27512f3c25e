"""Databases as rocprofv3 writes them (rocpd), made by us from a plain description: none was recorded on a GPU.

Tables and columns are those of rocprofiler-sdk's schema 3.0.0. Times are integer nanoseconds. What the reader should
make of a file follows from its description.
"""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

_ID = "id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT"
_OWN = "guid TEXT DEFAULT '{guid}' NOT NULL"
_NODE = "nid INTEGER NOT NULL, pid INTEGER NOT NULL"
_TIME = 'start BIGINT NOT NULL, "end" BIGINT NOT NULL'
_SIZES = ", ".join(f"{what}_size_{axis} INTEGER NOT NULL" for what in ("workgroup", "grid") for axis in "xyz")
_MORE = "extdata JSONB DEFAULT '{{}}' NOT NULL"
SCHEMA = {
    "metadata": "tag TEXT NOT NULL, value TEXT NOT NULL",
    "string": f"{_OWN}, string TEXT NOT NULL UNIQUE ON CONFLICT ABORT",
    "info_node": (
        f"{_OWN}, hash BIGINT NOT NULL UNIQUE, machine_id TEXT NOT NULL UNIQUE, system_name TEXT, hostname TEXT"
    ),
    "info_process": (
        f"{_OWN}, nid INTEGER NOT NULL, ppid INTEGER, pid INTEGER NOT NULL, init BIGINT, fini BIGINT, start BIGINT, "
        f'"end" BIGINT, command TEXT, environment JSONB DEFAULT \'{{{{}}}}\' NOT NULL, {_MORE}'
    ),
    "info_thread": f"{_OWN}, {_NODE}, ppid INTEGER, tid INTEGER NOT NULL, name TEXT, {_MORE}",
    "info_agent": (
        f"{_OWN}, {_NODE}, type TEXT CHECK (type IN ('CPU', 'GPU')), absolute_index INTEGER, logical_index INTEGER, "
        f"type_index INTEGER, uuid INTEGER, name TEXT, model_name TEXT, vendor_name TEXT, product_name TEXT, {_MORE}"
    ),
    "info_kernel_symbol": (
        f"{_OWN}, {_NODE}, code_object_id INTEGER NOT NULL, kernel_name TEXT, display_name TEXT, {_MORE}"
    ),
    "event": (
        f"{_OWN}, category_id INTEGER, stack_id INTEGER, parent_stack_id INTEGER, correlation_id INTEGER, {_MORE}"
    ),
    "arg": (
        f"{_OWN}, event_id INTEGER NOT NULL, position INTEGER NOT NULL, type TEXT NOT NULL, name TEXT NOT NULL, "
        f"value TEXT, {_MORE}"
    ),
    "region": f"{_OWN}, {_NODE}, tid INTEGER NOT NULL, {_TIME}, name_id INTEGER NOT NULL, event_id INTEGER, {_MORE}",
    "kernel_dispatch": (
        f"{_OWN}, {_NODE}, tid INTEGER, agent_id INTEGER NOT NULL, kernel_id INTEGER NOT NULL, "
        f"dispatch_id INTEGER NOT NULL, queue_id INTEGER NOT NULL, stream_id INTEGER NOT NULL, {_TIME}, {_SIZES}, "
        f"region_name_id INTEGER, event_id INTEGER, {_MORE}"
    ),
    "memory_copy": (
        f"{_OWN}, {_NODE}, tid INTEGER, {_TIME}, name_id INTEGER NOT NULL, dst_agent_id INTEGER, src_agent_id INTEGER, "
        f"size INTEGER NOT NULL, queue_id INTEGER, stream_id INTEGER, region_name_id INTEGER, event_id INTEGER, {_MORE}"
    ),
}  # fmt: skip
CPU, GPU = 0, 4  # agents: LUMI-G's nodes count four CPUs before the first GPU
NID = 77


class Rocpd:
    """A database under construction; `saved` writes it."""

    def __init__(self, *, pid: int = 9, guid: str = "0190", environment: dict[str, str] | None = None) -> None:
        self.pid, self._guid = pid, guid
        self._rows: dict[str, list[dict[str, Any]]] = {table: [] for table in SCHEMA}
        self._strings: dict[str, int] = {}
        self._symbols: dict[str, int] = {}
        self._call = 0
        self.add("metadata", tag="schema_version", value="3.0.0")
        self.add("info_node", id=NID, hash=NID, machine_id="m1", system_name="Linux", hostname="nid005042")
        self.add("info_process", id=pid, nid=NID, pid=pid, environment=json.dumps(environment or {}))
        self.agent(CPU, "CPU", 0, "AMD EPYC 7A53 64-Core Processor")
        self.agent(GPU, "GPU", 0, "AMD Instinct MI250X")
        self.agent(GPU + 1, "GPU", 1, "AMD Instinct MI250X")

    def add(self, table: str, **values: Any) -> int:
        """One row; returns its id."""
        rows = self._rows[table]
        row = {"id": len(rows) + 1, **values}
        rows.append(row)
        return int(row["id"])

    def agent(self, number: int, kind: str, index: int, name: str) -> None:
        """A CPU or a GPU."""
        self.add(
            "info_agent", id=number, nid=NID, pid=self.pid, type=kind, absolute_index=number, logical_index=number,
            type_index=index, name="gfx90a" if kind == "GPU" else name, model_name="", product_name=name,
        )  # fmt: skip

    def string(self, text: str) -> int:
        """The id of a string."""
        return self._strings.setdefault(text, len(self._strings) + 1)

    def event(self, category: str, call: int, **more: Any) -> int:
        """What all rows have: a category, and the number of the call that they belong to."""
        return self.add("event", category_id=self.string(category), stack_id=call, parent_stack_id=call, **more)

    def region(self, category: str, name: str, start: int, length: int, *, tid: int | None = None,
               message: str | None = None, arguments: dict[str, str] | None = None) -> int:  # fmt: skip
        """A stretch of a thread; returns the number of its call."""
        self._call += 1
        more = {} if message is None else {"extdata": json.dumps({"message": message})}
        event = self.event(category, self._call, **more)
        for position, (argument, value) in enumerate((arguments or {}).items()):
            self.add("arg", event_id=event, position=position, type="size_t", name=argument, value=value)
        self.add(
            "region", id=self._call, nid=NID, pid=self.pid, tid=self.pid if tid is None else tid, start=start,
            end=start + length, name_id=self.string(name), event_id=event,
        )  # fmt: skip
        return self._call

    def range(
        self, text: str, start: int, length: int, *, tid: int | None = None, operation: str = "roctxThreadRangeA"
    ) -> None:
        """A range of the program."""
        self.region("MARKER_CORE_RANGE_API", operation, start, length, tid=tid, message=text)

    def hip(self, name: str, start: int, length: int, *, tid: int | None = None) -> int:
        """A call of HIP; returns its number."""
        return self.region("HIP_RUNTIME_API_EXT", name, start, length, tid=tid)

    def rccl(self, name: str, start: int, length: int, **arguments: str) -> int:
        """A call of RCCL; returns its number."""
        return self.region("RCCL_API", name, start, length, arguments=arguments)

    def kernel(self, name: str, start: int, length: int, *, call: int = 0, agent: int = GPU, stream: int = 1,
               queue: int = 1) -> None:  # fmt: skip
        """A kernel, launched by a call of this number."""
        if name not in self._symbols:
            own = {"code_object_id": 1, "kernel_name": f"_Z{name}.kd", "display_name": name}
            self._symbols[name] = self.add("info_kernel_symbol", nid=NID, pid=self.pid, **own)
        sizes = {column.split()[0]: 1 for column in _SIZES.split(", ")}
        self.add(
            "kernel_dispatch", nid=NID, pid=self.pid, tid=self.pid, agent_id=agent, kernel_id=self._symbols[name],
            dispatch_id=1, queue_id=queue, stream_id=stream, start=start, end=start + length, **sizes,
            event_id=self.event("KERNEL_DISPATCH", call),
        )  # fmt: skip

    def copy(
        self, start: int, length: int, *, source: int, target: int, size: int = 64, call: int = 0, stream: int = 1
    ) -> None:
        """A memory copy between two agents."""
        what = f"MEMORY_COPY_{'HOST' if source == CPU else 'DEVICE'}_TO_{'HOST' if target == CPU else 'DEVICE'}"
        self.add(
            "memory_copy", nid=NID, pid=self.pid, tid=self.pid, start=start, end=start + length,
            name_id=self.string(what), src_agent_id=source, dst_agent_id=target, size=size, stream_id=stream,
            event_id=self.event("MEMORY_COPY", call),
        )  # fmt: skip

    def saved(self, path: Path) -> Path:
        """Write the database anew."""
        path.unlink(missing_ok=True)
        return self.added(path)

    def added(self, path: Path) -> Path:
        """Write the recording into a database that may have others, as rocpd's own tool merges them."""
        threads = sorted({row["tid"] for row in self._rows["region"]})
        self._rows["info_thread"] = [{"id": i, "nid": NID, "pid": self.pid, "tid": i} for i in threads]
        self._rows["string"] = [{"id": i, "string": text} for text, i in self._strings.items()]
        with sqlite3.connect(path) as database:
            for table, rows in self._rows.items():
                name = f"rocpd_{table}_{self._guid}"
                database.execute(f"CREATE TABLE `{name}` ({_ID}, {SCHEMA[table].format(guid=self._guid)})")
                database.execute(f"CREATE VIEW IF NOT EXISTS `rocpd_{table}` AS SELECT * FROM `{name}`")
                for row in rows:
                    columns = ",".join(f'"{column}"' for column in row)
                    values = list(row.values())
                    database.execute(f"INSERT INTO `{name}` ({columns}) VALUES ({','.join('?' * len(row))})", values)
        database.close()
        return path


def rocpd_steps(pid: int = 9, guid: str = "0190", rank: int = 0, agent: int = GPU) -> Rocpd:
    """Four steps of 90 µs, one each 100 µs, of one rank of two; before them a copy of 1 MiB to the GPU.

    In each step a product of 40 µs, and from 5 µs before its end on an all-reduce of 4 MiB, which takes 20 µs.
    """
    made = Rocpd(pid=pid, guid=guid, environment={"RANK": str(rank), "WORLD_SIZE": "2", "SECRET_TOKEN": "abc"})
    call = made.hip("hipMemcpyAsync", 4_000, 500)
    made.copy(31_000, 4_000, source=CPU, target=agent, size=1 << 20, call=call)
    for step in range(4):
        t = 100_000 + step * 100_000
        made.range(f"batch_{step}", t, 90_000)
        call = made.hip("hipLaunchKernel", t + 1_000, 500)
        made.kernel("Cijk_Ailk_Bljk_BBS_BH_MT128x128x32", t + 3_000, 40_000, call=call, agent=agent)
        made.rccl("ncclAllReduce", t + 2_000, 1_000, count="2097152", datatype="9", op="0")
        call = made.hip("hipExtLaunchKernel", t + 2_200, 500)
        kernel = "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)"
        made.kernel(kernel, t + 38_000, 20_000, call=call, agent=agent, stream=2)
    return made


def rocpd_job(path: Path) -> Path:
    """Both ranks of `rocpd_steps` in one database."""
    rocpd_steps().saved(path)
    return rocpd_steps(pid=10, guid="0191", rank=1, agent=GPU + 1).added(path)
