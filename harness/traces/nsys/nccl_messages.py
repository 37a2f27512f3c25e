"""Collectives of an nsys export: each NCCL kernel with the NVTX ranges of the NCCL calls that launched it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from harness.traces.columns import NameTable
from harness.traces.database import Database, json_object, whole
from harness.traces.messages import Message
from harness.traces.nccl_calls import OF_ONE_RANK, collectives_of_calls
from harness.traces.nsys.ids import process_of_one, string_ids, thread_of_one
from harness.traces.nsys.nvtx import RANGES, TABLE
from harness.traces.trace import Collectives, Events, Ranges


@dataclass(slots=True)
class Payloads:
    """The data that NCCL attached to its NVTX ranges."""

    by_place: dict[tuple[int, int], dict[str, Any]]  # thread and start of the range
    sizes: dict[str, int]  # ranks of each communicator
    members: set[tuple[str, int, int]]  # communicator, pid and rank of this report's processes

    def ranks_in(self, group: str | None) -> dict[int, int]:
        """The rank of each process in a communicator, unless a process has several ranks there."""
        own = [(pid, rank) for name, pid, rank in self.members if name == group]
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
