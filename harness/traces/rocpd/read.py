"""A database of rocprofv3 as a Trace: its work, its calls and RCCL's messages."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from harness.traces.columns import AnyColumn, Columns, NameTable, device_numbers, distinct, joined, sorted_events, work
from harness.traces.database import Database, FileKind, opened, whole
from harness.traces.errors import TraceError
from harness.traces.nccl_calls import OF_ONE_RANK, Message, MessageOf, collectives_of_calls, communication_kernels
from harness.traces.progress import OnProgress
from harness.traces.rocpd.tables import (
    RCCL,
    RCCL_DOMAIN,
    Agents,
    Regions,
    SuffixedTables,
    hip_calls,
    host_ranges,
    identity,
    looked_up,
    named,
    read_agents,
    recordings,
)
from harness.traces.trace import I32, I64, Activity, Calls, CopyKind, Events, Trace
from harness.traces.vocabulary import copy_name, dtype_bytes, dtype_name

_COUNTS = ("count", "sendcount", "recvcount")
_WANTED = (*_COUNTS, "datatype")
# ncclDataType_t, by number (nccl.h).
_TYPES = (
    "int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64", "bfloat16", "float8_e4m3fn",
    "float8_e5m2",
)  # fmt: skip
_MOST_DIGITS = 18

Arguments = dict[str, Any]
_COMMON = ("start", "end", "pid", "stream_id", "queue_id", "event_id")
_OBJECT = re.compile(r"( \[clone)? ?\.kd\]?$")  # of a kernel's descriptor, whose name is the kernel's and this
_UNNAMED = "[unnamed kernel]"
_KIND = FileKind("a database of rocprofv3", "as rocprofv3 writes it", "record it again")
_MOST_RECORDINGS = 256  # of one node
_NO_CALLS = "which collective each RCCL kernel carries out was not recorded (record with rocprofv3 --rccl-trace)"


def messages_of(regions: list[Regions]) -> MessageOf:
    """What gives a call's message by its thread and start."""
    found = {place: arguments for each in regions for place, arguments in _arguments(each).items()}

    def message_of(thread: int, start_ns: int, kind: str) -> Message:
        return _message(kind, found.get((thread, start_ns), {}))

    return message_of


def _arguments(regions: Regions) -> dict[tuple[int, int], Arguments]:
    raw = regions.of(RCCL)
    if not len(raw["start"]):
        return {}
    by_event: dict[int, Arguments] = defaultdict(dict)
    events = set(raw["event_id"].tolist())
    table, database = regions.recording.table("arg"), regions.recording.database
    for event, name, text in database.rows(table, "event_id", "name", "value", only=("name", _WANTED)):
        if event in events:
            by_event[event][str(name)] = text
    places = zip(raw["thread"].tolist(), raw["start"].tolist(), raw["event_id"].tolist(), strict=True)
    return {(thread, start): by_event.get(event, {}) for thread, start, event in places}


def _message(kind: str, arguments: Arguments) -> Message:
    """RCCL's calls count one rank's part of what is gathered or scattered; how many ranks there are is not recorded."""
    dtype = _dtype(arguments.get("datatype"))
    count = next((n for n in (_number(arguments.get(name)) for name in _COUNTS) if n is not None), -1)
    width = dtype_bytes(dtype) if dtype else 0
    known = count >= 0 and width > 0 and kind not in OF_ONE_RANK
    return Message(kind, dtype=dtype, recorded_bytes=count * width if known else -1)


def _dtype(text: object) -> str | None:
    number = _number(text)
    if number is not None:
        return _TYPES[number] if number < len(_TYPES) else None
    return dtype_name(str(text).removeprefix("nccl")) if text is not None else None


def _number(text: object) -> int | None:
    if isinstance(text, str) and text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS:
        return int(text)
    found = whole(text)
    return found if found is not None and found >= 0 else None


KERNELS, COPIES = "kernel_dispatch", "memory_copy"


def device_events(tables: list[tuple[SuffixedTables, Agents]], names: NameTable, calls: Calls) -> Events:
    """All work on GPUs, sorted as `Events` requires."""
    parts = [part(recording, agents, names) for recording, agents in tables for part in (_kernels, _copies)]
    return sorted_events(joined(parts), calls)


def _kernels(recording: SuffixedTables, agents: Agents, names: NameTable) -> Columns:
    raw = recording.integers(KERNELS, *_COMMON, "agent_id", "kernel_id")
    symbol = raw["kernel_id"]
    texts = recording.texts(symbol, "info_kernel_symbol", "kernel_name")
    texts |= {i: t for i, t in recording.texts(symbol, "info_kernel_symbol", "display_name").items() if t}
    name = named(symbol, {i: _OBJECT.sub("", text) for i, text in texts.items()}, names, _UNNAMED)
    return _part(recording, raw, Activity.KERNEL, name, device=looked_up(raw["agent_id"], agents.number))


def _copies(recording: SuffixedTables, agents: Agents, names: NameTable) -> Columns:
    """Copies from or to a GPU; what the host copies within its own memory is no device's work."""
    raw = recording.integers(COPIES, *_COMMON, "src_agent_id", "dst_agent_id", "size")
    gpus = list(agents.number)
    from_gpu, to_gpu = np.isin(raw["src_agent_id"], gpus), np.isin(raw["dst_agent_id"], gpus)
    keep = np.flatnonzero(from_gpu | to_gpu)
    raw = {column: values[keep] for column, values in raw.items()}
    source, target = (looked_up(raw["src_agent_id"], agents.number), looked_up(raw["dst_agent_id"], agents.number))
    kind = np.select(
        [~from_gpu[keep], ~to_gpu[keep], source == target], [CopyKind.H2D, CopyKind.D2H, CopyKind.D2D], CopyKind.P2P
    ).astype(np.int32)
    name = names.indices(map(copy_name, kind.tolist()))
    device = np.where(from_gpu[keep], source, target)
    return _part(recording, raw, Activity.MEMCPY, name, device=device, bytes=raw["size"], copy_kind=kind)


def _part(
    recording: SuffixedTables, raw: dict[str, I64], activity: Activity, name: I32, device: I64, **more: AnyColumn
) -> Columns:
    call = recording.events.of(raw["event_id"], "stack_id")
    has_streams = (raw["stream_id"] > 0).any()  # others than the default one; else the hardware's queues count
    return work(
        activity,
        name,
        start_ns=raw["start"],
        end_ns=raw["end"],
        device=device_numbers(device),
        stream=raw["stream_id"] if has_streams else raw["queue_id"],
        correlation=np.where(call > 0, call, -1),
        process=recording.pids(raw["pid"]),
        **more,
    )


_NEEDED = {
    KERNELS: ("start", "end", "agent_id", "kernel_id", "event_id"),
    COPIES: ("start", "end", "src_agent_id", "dst_agent_id", "size"),
    "region": ("start", "end", "tid", "name_id", "event_id"),
}


def read_rocpd(path: Path, progress: OnProgress) -> Trace:
    """Read a database of rocprofv3, of one process or of several of one machine. Raises TraceError: the file is not
    rocprofv3's, or of a schema that is not known."""
    with opened(path, progress, _KIND) as database:
        return _trace(path, database)


def _trace(path: Path, database: Database) -> Trace:
    recorded = recordings(database)
    _check(path, recorded)
    names = NameTable()
    regions = [Regions(recording) for recording in recorded]
    calls, ranges = hip_calls(regions, names), host_ranges(regions, names)
    agents = [read_agents(recording) for recording in recorded]
    events = device_events(list(zip(recorded, agents, strict=True)), names, calls)
    device_names = {number: name for each in agents for number, name in each.names.items()}
    worked = distinct(events.device)
    used = {number: name for number, name in device_names.items() if number in worked}
    has_rccl = RCCL_DOMAIN in names and bool((ranges.domain == names[RCCL_DOMAIN]).any())
    return Trace(
        identity=identity(path, recorded, used or device_names, "nccl" if has_rccl else None),
        names=names.texts,
        events=events,
        calls=calls,
        ranges=ranges,
        collectives=collectives_of_calls(ranges, events, names, messages_of(regions)),
        notes=[_NO_CALLS] if not has_rccl and len(communication_kernels(names.texts, events)) else [],
    )


def _check(path: Path, recorded: list[SuffixedTables]) -> None:
    if not recorded:
        raise TraceError(path, "is an SQLite database, but not one of rocprofv3: it has no rocpd_metadata table")
    if len(recorded) > _MOST_RECORDINGS:
        raise TraceError(path, f"is damaged: it holds more than {_MOST_RECORDINGS} recordings")
    for recording in recorded:
        for table, needed in _NEEDED.items():
            have = recording.columns(table)
            missing = [column for column in needed if have and column not in have]
            if missing:
                raise TraceError(
                    path,
                    f"has a schema that is not known: {recording.table(table)} has no column {missing[0]} "
                    "(read are rocpd's versions 3.0.0 to 3.0.5)",
                )
