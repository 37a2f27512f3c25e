"""Recordings of one node as nsys exports them to SQLite, with the columns of schema 3.11 that its analysis needs."""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from .program import MAIN, Recording

_WORK = "start INT, end INT, deviceId INT, contextId INT, streamId INT, correlationId INT, globalPid INT"
_TABLES = {
    "META_DATA_EXPORT": "name TEXT, value TEXT",
    "StringIds": "id INTEGER PRIMARY KEY, value TEXT",
    "TARGET_INFO_SYSTEM_ENV": "globalVid INT, devStateName TEXT, name TEXT, nameEnum INT, value TEXT",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs INT, utcTime TEXT",
    "TARGET_INFO_GPU": "vmId INT, id INT, name TEXT, cuDevice INT",
    "CUPTI_ACTIVITY_KIND_KERNEL": f"{_WORK}, demangledName INT, shortName INT",
    "CUPTI_ACTIVITY_KIND_MEMCPY": f"{_WORK}, bytes INT, copyKind INT, srcKind INT, dstKind INT",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start INT, end INT, eventClass INT, globalTid INT, correlationId INT, nameId INT",
    "NVTX_EVENTS": "start INT, end INT, eventType INT, rangeId INT, text TEXT, globalTid INT, textId INT, "
    "domainId INT, jsonText TEXT",
    "SCHED_EVENTS": "start INT, cpu INT, isSchedIn INT, globalTid INT",
}
_COPY_KIND = {"HtoD": 1, "DtoH": 2}
_MEMORY = {"pageable": 0, "pinned": 1}
_DEVICE_MEMORY = 2
_PUSH_POP, _DOMAIN, _DEFAULT, _NCCL = 59, 75, 0, 1
_NCCL_NAME = {
    "all_reduce": "ncclAllReduce",
    "all_gather": "ncclAllGather",
    "reduce_scatter": "ncclReduceScatter",
    "send": "ncclSend",
    "recv": "ncclRecv",
}
_BEGIN = 5_000_000


def write_nsys(recordings: Sequence[Recording], world_size: int, path: Path, *, node: int = 0) -> Path:
    """One node's export."""
    path.unlink(missing_ok=True)
    strings: dict[str, int] = {}
    rows: dict[str, list[tuple[Any, ...]]] = {name: [] for name in _TABLES}

    def text(value: str) -> int:
        return strings.setdefault(value, len(strings) + 1)

    rows["META_DATA_EXPORT"].append(("EXPORT_PRODUCT_VERSION", "2024.6.1.90"))
    rows["TARGET_INFO_SYSTEM_ENV"].append((None, None, "Hostname", 619, f"node{node}"))
    rows["TARGET_INFO_SESSION_START_TIME"].append((1_700_000_000_000_000_000, None))
    for local, recording in enumerate(recordings):
        rows["TARGET_INFO_GPU"].append((1, local, "NVIDIA A100-SXM4-80GB", local))
        _one(recording, local, world_size, rows, text)
    rows["StringIds"] = [(number, value) for value, number in strings.items()]
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA journal_mode=OFF")
        database.execute("PRAGMA synchronous=OFF")
        for table, columns in _TABLES.items():
            database.execute(f"CREATE TABLE {table} ({_quoted(columns)})")
            marks = ",".join("?" * (columns.count(",") + 1))
            database.executemany(f"INSERT INTO {table} VALUES ({marks})", rows[table])
    database.close()
    return path


def _quoted(columns: str) -> str:
    return ", ".join('"{}" {}'.format(*column.split(" ", 1)) for column in columns.split(", "))


def _one(recording: Recording, device: int, world_size: int, rows: dict[str, list[tuple[Any, ...]]], text: Any) -> None:
    rank = recording.rank
    pid = 5000 + rank
    global_pid = (1 << 48) | (pid << 24)

    def thread(number: int) -> int:
        return global_pid | (pid if number == MAIN else pid + 1000)

    def nvtx(name: str, start: int, end: int, number: int, payload: object = None) -> None:
        domain = _DEFAULT if payload is None else _NCCL
        said = None if payload is None else json.dumps(payload)
        rows["NVTX_EVENTS"].append(
            (start + _BEGIN, end + _BEGIN, _PUSH_POP, None, name, thread(number), None, domain, said)
        )

    rows["NVTX_EVENTS"].append((_BEGIN, None, _DOMAIN, None, "NCCL", thread(MAIN), None, _NCCL, None))
    nvtx(f"epoch_0-rank_{rank}", 0, recording.end, MAIN)
    if world_size > 1:
        world = {"NCCL communicator ID": 1, "No. of ranks": world_size, "Rank": rank}
        nvtx("ncclCommInitRank", 0, 1, MAIN, world)
    for kind, number, name, start, end in recording.spans:
        if kind == "step":
            nvtx(f"batch_{name}", start, end, number)
        elif kind == "range":
            nvtx(name, start, end, number)
        elif kind == "collector":
            nvtx("gc", start, end, number)
    calls = {called.number: called for called in recording.calls}
    for number, name, start, end, correlation in recording.calls:
        rows["CUPTI_ACTIVITY_KIND_RUNTIME"].append(
            (start + _BEGIN, end + _BEGIN, 0, thread(number), correlation, text(f"{name}_v7000"))
        )
    for work, correlation in recording.work:
        placed = (work.start + _BEGIN, work.end + _BEGIN, device, 1, work.stream, correlation, global_pid)
        if work.kind == "copy":
            host = _MEMORY[work.memory]
            sides = (host, _DEVICE_MEMORY) if work.direction == "HtoD" else (_DEVICE_MEMORY, host)
            rows["CUPTI_ACTIVITY_KIND_MEMCPY"].append((*placed, work.size, _COPY_KIND[work.direction], *sides))
        else:
            rows["CUPTI_ACTIVITY_KIND_KERNEL"].append(
                (*placed, text(work.name), text(work.name.split("<")[0].split("(")[0]))
            )
        if work.message is not None:
            message, called = work.message, calls[correlation]
            share = len(message.members) if message.kind in ("all_gather", "reduce_scatter") else 1
            said = {
                "NCCL communicator ID": _communicator(message.members, world_size),
                "No. of ranks": len(message.members),
                "Rank": message.members.index(rank),
                "Message size [bytes]": message.elements * 2 // share,
            }
            if message.kind in ("send", "recv"):
                said["Peer"] = message.members.index(rank) ^ 1
            nvtx(_NCCL_NAME[message.kind], called.start - 500, called.end + 500, called.thread, said)
    rows["SCHED_EVENTS"] += _scheduled(recording.off_core, thread)


def _communicator(members: tuple[int, ...], world_size: int) -> int:
    """A number for each group; 1 is the world."""
    return 1 if len(members) == world_size else zlib.crc32(repr(members).encode()) + 2


def _scheduled(off_core: Iterable[tuple[int, int, int]], thread: Any) -> list[tuple[Any, ...]]:
    return [
        (moment + _BEGIN, 0, on, thread(number))
        for number, start, end in off_core
        for moment, on in ((start, 0), (end, 1))
    ]
