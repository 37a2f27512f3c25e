"""Ranges (NVTX) and messages of an nsys export as columns, and who its process is."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.common.ranks import rank_in_file, rank_in_range
from harness.traces.columns import NameTable, compacted, distinct, distinct_rows, sorted_spans
from harness.traces.database import Database, json_object, whole
from harness.traces.nccl_calls import OF_ONE_RANK, Message, collectives_of_calls
from harness.traces.nsys.devices import (
    Devices,
    names_of,
    process_of,
    process_of_one,
    string_ids,
    thread_of,
    thread_of_one,
)
from harness.traces.trace import I32, I64, Collectives, Events, Identity, RangeKind, Ranges

TABLE = "NVTX_EVENTS"
_PUSH_POP = (59, 70)  # NvtxPushPopRange, NvtxtPushPopRange
_START_END = (60, 71)
_DOMAIN = 75  # NvtxDomainCreate
RANGES = _PUSH_POP + _START_END
_EXPORT_TABLES = ("META_DATA_EXPORT", "EXPORT_META_DATA")  # the latter until 2022
_NUMBER = re.compile(r"-?\d{1,18}", re.ASCII)
_DROPPED = re.compile(r"(?i)events? dropped:?\s*(\d{1,15})|(\d{1,15})\s+(?:\w+\s+)*events? (?:were|was) dropped")


def nvtx_ranges(database: Database, names: NameTable, last_ns: int) -> Ranges:
    """All ranges; a range that was still open at the end of the recording ends at `last_ns`."""
    raw = database.integers(TABLE, "start", "end", "eventType", "globalTid", "textId", "domainId")
    keep = np.flatnonzero(np.isin(raw["eventType"], RANGES))
    raw = {name: column[keep] for name, column in raw.items()}
    pushed = np.isin(raw["eventType"], _PUSH_POP)
    is_open = (raw["end"] < raw["start"]) | (raw["end"] == -1) | _closed_by_nsys(raw)
    last_ns = max(last_ns, *(int(raw[name].max(initial=0)) for name in ("start", "end")))
    process = process_of(raw["globalTid"])
    ranges = Ranges(
        start_ns=raw["start"],
        end_ns=np.where(is_open, last_ns, raw["end"]),
        name=_names(database, names, raw["textId"]),
        thread=thread_of(raw["globalTid"]),
        kind=np.where(pushed, RangeKind.PUSH_POP, RangeKind.START_END).astype(np.uint8),
        process=process,
        domain=_domains(database, names, raw["domainId"], process),
        is_open=is_open.astype(np.uint8),
    )
    return sorted_spans(ranges)


def _closed_by_nsys(raw: dict[str, I64]) -> NDArray[np.bool_]:
    """Ranges that nsys itself ended with the recording: a thread's last, if they end in the same nanosecond."""
    threads, rows = distinct_rows(raw["globalTid"])
    last = np.full(len(threads), -1, np.int64)
    np.maximum.at(last, rows, raw["end"])
    ends_last = (raw["end"] == last[rows]) & (raw["end"] > raw["start"])
    first = np.full(len(threads), np.iinfo(np.int64).max)
    np.minimum.at(first, rows[ends_last], raw["start"][ends_last])
    others = ends_last & (raw["start"] > first[rows])  # a range that is in the file twice is one
    several: NDArray[np.bool_] = np.bincount(rows, weights=others, minlength=len(threads)) > 0
    closed: NDArray[np.bool_] = ends_last & several[rows]
    return closed


def _names(database: Database, names: NameTable, text_id: I64) -> I32:
    """A range's name is its own text, or a registered string."""
    index = names_of(database, names, text_id, "")
    own = database.rows(TABLE, "text", only=("eventType", RANGES))
    own_index = np.array([-1 if text is None else names[str(text)] for (text,) in own], np.int32)
    return np.where(own_index >= 0, own_index, index)


def _domains(database: Database, names: NameTable, domain: I64, process: I64) -> I32:
    """Each range's domain by name. Each process numbers its domains; 0 is the default domain."""
    index = np.full(len(domain), -1, np.int32)
    created = database.rows(TABLE, "text", "domainId", "globalTid", only=("eventType", [_DOMAIN]))
    for text, number, thread in created:
        if whole(number) is None or whole(thread) is None:
            continue
        owner = process_of(np.array([thread], np.int64))[0]
        index[(domain == number) & (process == owner)] = names[str(text)]
    return compacted(index)


@dataclass(slots=True)
class Payloads:
    """The data that NCCL attached to its NVTX ranges."""

    by_place: dict[tuple[int, int], dict[str, Any]]  # thread and start of the range
    sizes: dict[str, int]  # ranks of each communicator
    members: set[tuple[str, int, int]]  # communicator, pid and rank of this report's processes

    def ranks_in(self, group_name: str | None) -> dict[int, int]:
        """The rank of each process in a communicator, unless a process has several ranks there."""
        own = [(pid, rank) for name, pid, rank in self.members if name == group_name]
        once = Counter(pid for pid, _ in own)
        return {pid: rank for pid, rank in sorted(own) if once[pid] == 1}


def read_payloads(database: Database) -> Payloads:
    """NCCL's payloads, from the JSON of newer schemas; empty without it."""
    payloads = Payloads({}, {}, set())
    if not {"jsonText", "jsonTextId"} & set(database.columns(TABLE)):
        return payloads
    for start, global_tid, text in _json_rows(database):
        values = json_object(text)
        payloads.by_place[thread_of_one(global_tid), start] = values
        group, size, rank = _group(values), whole(values.get("No. of ranks")), whole(values.get("Rank"))
        if group is not None and size is not None:
            payloads.sizes[group] = size
            if rank is not None:
                payloads.members.add((group, process_of_one(global_tid), rank))
    return payloads


def _json_rows(database: Database) -> list[tuple[int, int, str]]:
    held = ("jsonText", "jsonTextId")
    rows = database.rows(TABLE, "start", "globalTid", *held, only=("eventType", RANGES), filled=held)
    shared = string_ids(database, {number for *_, number in rows if number is not None})
    held_rows = ((whole(start), whole(tid), text or shared.get(number)) for start, tid, text, number in rows)
    return [
        (start, tid, text)
        for start, tid, text in held_rows
        if start is not None and tid is not None and isinstance(text, str)
    ]


def _group(values: dict[str, Any]) -> str | None:
    found = values.get("NCCL communicator ID", values.get("NCCL communicator hash"))
    return None if found is None else str(found)


def device_collectives(ranges: Ranges, events: Events, names: NameTable, payloads: Payloads) -> Collectives:
    """A row for each NCCL kernel, with its messages from NVTX, or else with what the kernel's name says."""

    def message_of(thread: int, start_ns: int, kind: str) -> Message:
        return _message(kind, payloads.by_place.get((thread, start_ns), {}), payloads.sizes)

    return collectives_of_calls(ranges, events, names, message_of)


def _message(kind: str, values: dict[str, Any], sizes: dict[str, int]) -> Message:
    """NCCL records what one rank sends in an all-gather or receives in a reduce-scatter; the message is the sum.

    Source: NCCL, src/collectives.cc ("just pass the size of one message and not the total bytes").
    """
    sizes_here = (whole(value) for key, value in values.items() if key.startswith("Message size"))
    size = next((value for value in sizes_here if value is not None), -1)
    group = _group(values)
    ranks = sizes.get(group or "", -1)
    if kind in OF_ONE_RANK and size > 0:
        size = size * ranks if ranks > 0 else -1
    return Message(kind, recorded_bytes=size, group=group, group_size=ranks)


def identity(
    database: Database,
    export: dict[str, object],
    path: Path,
    processes: set[int],
    own_ranks: dict[int, int],
    *,
    payloads: Payloads,
    devices: Devices,
) -> Identity:
    """The export's identity. Rank and world size are from NCCL's payloads; else the rank is from our ranges or the
    file's name.

    `own_ranks`: the rank by pid, of the processes whose ranges name it.
    """
    hosts = database.rows("TARGET_INFO_SYSTEM_ENV", "value", only=("name", ["Hostname"]))
    world, world_size = _world(payloads, own_ranks or _rank_of_only(path, processes))
    ranks = payloads.ranks_in(world)
    return Identity(
        source="nsys",
        path=str(path),
        rank=_rank(set(ranks.values()) or set(own_ranks.values()), path),
        world_size=world_size,
        ranks=ranks,
        host=next((str(value) for (value,) in hosts), None),
        pid=next(iter(processes)) if len(processes) == 1 else None,
        device_names=devices.names,
        tool_version=str(version) if (version := export.get("EXPORT_PRODUCT_VERSION")) is not None else None,
        epoch_ns=_epoch_ns(database, export),
        backend="nccl" if payloads.by_place else None,
    )


def export_metadata(database: Database) -> dict[str, object]:
    """nsys' own data about the export, by name."""
    return {str(name): value for table in _EXPORT_TABLES for name, value in database.rows(table, "name", "value")}


def ranks_in_ranges(ranges: Ranges, texts: list[str]) -> dict[int, int]:
    """The rank of each process (by pid) whose ranges name exactly one rank."""
    found: dict[int, set[int]] = defaultdict(set)
    for name in set(ranges.name.tolist()):
        if (rank := rank_in_range(texts[name])) is not None:
            for pid in distinct(ranges.process[ranges.name == name]):
                found[pid].add(rank)
    return {pid: ranks.pop() for pid, ranks in found.items() if len(ranks) == 1}


def _rank_of_only(path: Path, processes: set[int]) -> dict[int, int]:
    """The rank in the file's name, for the process of a report with a single one."""
    rank = rank_in_file(path)
    return {} if rank is None or len(processes) != 1 else dict.fromkeys(processes, rank)


def _world(payloads: Payloads, own_ranks: dict[int, int]) -> tuple[str | None, int | None]:
    """The largest communicator is the world, unless it is only a part of the world.

    With tensor and data parallelism there may be no communicator of all ranks. Then there are several of the largest
    size, and a process is not in all of them, or has different ranks in them, or a rank that differs from its own.
    """
    size = max(payloads.sizes.values(), default=None)
    largest = [group for group, ranks in payloads.sizes.items() if ranks == size]
    processes = {pid for _, pid, _ in payloads.members}
    ranks_in = [payloads.ranks_in(group) for group in largest]
    members = [{pid for name, pid, _ in payloads.members if name == group} for group in largest]
    if any(pids != processes for pids in members) or any(ranks != ranks_in[0] for ranks in ranks_in):
        return None, None
    if any(own_ranks.get(pid, rank) != rank for ranks in ranks_in for pid, rank in ranks.items()):
        return None, None
    # A single process with the same rank in two communicators may be the first of both its row and its column.
    unsure = len(largest) > 1 and len(processes) == 1 and not processes & set(own_ranks)
    return (None, None) if unsure or not largest else (largest[0], size)


def _rank(ranks: set[int], path: Path) -> int | None:
    """The rank of a report; None for a report with several ranks."""
    if not ranks:
        return rank_in_file(path)
    return min(ranks) if len(ranks) == 1 else None


def _epoch_ns(database: Database, export: dict[str, object]) -> int | None:
    """Unix time of the trace's clock zero, which nsys may have moved in the export."""
    if str(export.get("EXPORT_PARAM_TIME_NORMALIZE")).lower() == "true":
        return 0
    started = next(iter(database.rows("TARGET_INFO_SESSION_START_TIME", "utcEpochNs")), (None,))[0]
    began, shift = whole(started), str(export.get("EXPORT_PARAM_TIME_SHIFT") or 0)
    return began - int(shift) if began is not None and _NUMBER.fullmatch(shift) else None


def dropped_events(database: Database) -> int:
    """The number of events that nsys reports as lost."""
    found = (_DROPPED.search(str(text)) for (text,) in database.rows("DIAGNOSTIC_EVENT", "text"))
    return sum(int(match.group(1) or match.group(2)) for match in found if match)
