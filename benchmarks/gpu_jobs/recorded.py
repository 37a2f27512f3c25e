"""Real recordings as plain facts: which calls a process made, what its device did, and which event waited for which.

Reads Kineto's JSON and nsys' sqlite exports by itself, so that what is checked with it does not rest on the readers
of the product. All times are integer nanoseconds of the recording's own clock.
"""

from __future__ import annotations

import gzip
import json
import re
import sqlite3
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

_WORK = {"kernel": "kernel", "memcpy": "copy", "gpu_memcpy": "copy", "memset": "set", "gpu_memset": "set"}
_CALLS = ("cuda_runtime", "cuda_driver", "runtime")
_STAGED = 64 << 10  # bytes: a smaller copy from pageable memory returns when the driver has them (CUDA's API notes)
_NO_STREAM = (1 << 32) - 1


class Call(NamedTuple):
    """A call of the runtime or driver; number ties the device's work to it."""

    thread: int
    name: str
    start: int
    end: int
    number: int


class Task(NamedTuple):
    """What a device did; waited: the call that launched it returns only when it is done."""

    name: str
    kind: str
    stream: int
    start: int
    end: int
    number: int
    waited: bool


@dataclass
class Process:
    """One recorded process and its device. steps: how many were marked, 0 for none.

    records: by call, the stream and the event that it marks; waits: by call, what it waits for: (waiting stream, event,
    its number among the records of this event); each None where the recording does not say."""

    calls: list[Call] = field(default_factory=list)
    tasks: list[Task] = field(default_factory=list)
    steps: int = 0
    records: dict[int, tuple[int, object]] = field(default_factory=dict)
    waits: dict[int, tuple[int | None, object]] = field(default_factory=dict)


def read(path: Path) -> list[Process]:
    """The processes of a file, or of a folder with a file for each rank. Raises ValueError: it holds no trace."""
    if path.is_dir():
        return [process for file in sorted(path.iterdir()) for process in read(file)]
    if ".sqlite" in path.suffixes:
        return _read_export(path)
    return [_read_kineto(path)]


# ---- Kineto ----


def _read_kineto(path: Path) -> Process:
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    document = json.loads(text, parse_float=str)
    if not isinstance(document, dict) or "traceEvents" not in document:
        raise ValueError(f"{path} is not a trace of torch.profiler")
    process, marks = Process(), set()
    for event in document["traceEvents"]:
        if event.get("ph") != "X":
            continue
        category = str(event.get("cat", "")).lower()
        if category in _WORK:
            process.tasks.append(_kineto_task(event, _WORK[category]))
        elif category in _CALLS:
            process.calls.append(_kineto_call(event))
        elif category == "cuda_sync":
            _kineto_wait(process, event["args"])
        elif event["name"].startswith("ProfilerStep#"):
            marks.add(event["name"])
    process.steps = len(marks)
    return process


def _ns(microseconds: object) -> int:
    """The decimal text of a JSON number: a float64 does not hold today's microseconds to the nanosecond."""
    whole, _, rest = str(microseconds).partition(".")
    return int(whole) * 1000 + (int(rest[:3].ljust(3, "0")) if rest else 0)


def _kineto_call(event: dict[str, Any]) -> Call:
    start = _ns(event["ts"])
    number = event.get("args", {}).get("correlation", 0)
    return Call(int(event["tid"]), event["name"], start, start + _ns(event["dur"]), int(number))


def _kineto_task(event: dict[str, Any], kind: str) -> Task:
    start, args, name = _ns(event["ts"]), event["args"], event["name"]
    size = int(args.get("bytes", 0))
    waited = kind == "copy" and "Pageable" in name and ("DtoH" in name or size > _STAGED)
    stream, number = int(args["stream"]), int(args["correlation"])
    return Task(name, kind, stream, start, start + _ns(event["dur"]), number, waited)


def _kineto_wait(process: Process, args: dict[str, Any]) -> None:
    """Newer traces say for which stream's event a call waits: the call that recorded the event names it."""
    number, event = int(args.get("correlation", 0)), args.get("wait_on_cuda_event_record_corr_id")
    stream = args.get("stream")
    waiting = int(stream) if stream is not None and int(stream) >= 0 else None
    if event is not None:
        process.records[int(event)] = (int(args.get("wait_on_stream", -1)), int(event))
    process.waits[number] = (waiting, event if event is None else int(event))


# ---- nsys ----


def _read_export(path: Path) -> list[Process]:
    if path.suffix != ".gz":
        return _read_database(path)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "export.sqlite"
        file.write_bytes(gzip.decompress(path.read_bytes()))
        return _read_database(file)


def _read_database(path: Path) -> list[Process]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as database:
        processes: dict[int, Process] = defaultdict(Process)
        for thread, name, start, end, number in database.execute(
            "select globalTid, value, start, end, correlationId from CUPTI_ACTIVITY_KIND_RUNTIME"
            " join StringIds on id = nameId"
        ):
            call = Call(thread, name.rsplit("_v", 1)[0], start, end, number)
            processes[thread >> 24].calls.append(call)
        steps = _marked_steps(database)
        for process in processes.values():
            process.steps = steps
        for pid, task in _database_tasks(database):
            processes[pid].tasks.append(task)
        if _has(database, "CUDA_EVENT"):
            for pid, number, stream, event in database.execute(
                "select globalPid, correlationId, streamId, eventId from CUPTI_ACTIVITY_KIND_CUDA_EVENT"
            ):
                processes[pid >> 24].records[number] = (stream, event)
        if _has(database, "SYNCHRONIZATION"):
            for pid, number, stream, event in database.execute(
                "select globalPid, correlationId, streamId, eventId from CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
            ):
                processes[pid >> 24].waits[number] = (stream if stream != _NO_STREAM else None, event)
    return [processes[pid] for pid in sorted(processes) if processes[pid].tasks]


def _database_tasks(database: sqlite3.Connection) -> Iterator[tuple[int, Task]]:
    columns = _columns(database, "KERNEL")
    pid = "globalPid" if "globalPid" in columns else "0"
    for process, name, stream, start, end, number in database.execute(
        f"select {pid}, value, streamId, start, end, correlationId from CUPTI_ACTIVITY_KIND_KERNEL"
        " join StringIds on id = demangledName"
    ):
        yield process >> 24, Task(name, "kernel", stream, start, end, number, False)
    if "srcKind" in _columns(database, "MEMCPY"):
        for process, stream, start, end, number, way, source, target, size in database.execute(
            "select globalPid, streamId, start, end, correlationId, copyKind, srcKind, dstKind, bytes"
            " from CUPTI_ACTIVITY_KIND_MEMCPY"
        ):
            waited = (way == 1 and source == 0 and size > _STAGED) or (way == 2 and target == 0)
            yield process >> 24, Task("copy", "copy", stream, start, end, number, waited)
    if _has(database, "MEMSET"):
        for process, stream, start, end, number in database.execute(
            "select globalPid, streamId, start, end, correlationId from CUPTI_ACTIVITY_KIND_MEMSET"
        ):
            yield process >> 24, Task("set", "set", stream, start, end, number, False)


def _marked_steps(database: sqlite3.Connection) -> int:
    if not database.execute("select 1 from sqlite_master where name = 'NVTX_EVENTS'").fetchone():
        return 0
    query = "select distinct coalesce(text, value) from NVTX_EVENTS left join StringIds on id = textId"
    return sum(bool(re.fullmatch(r"step \d+", text or "")) for (text,) in database.execute(query))


def _columns(database: sqlite3.Connection, table: str) -> set[str]:
    return {row[1] for row in database.execute(f"pragma table_info(CUPTI_ACTIVITY_KIND_{table})")}


def _has(database: sqlite3.Connection, table: str) -> bool:
    return bool(_columns(database, table))
