"""Collectives of an nsys export: each NCCL kernel with the API calls, as NVTX saw them, that launched it."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from harness.traces.columns import Names
from harness.traces.messages import Message, collectives, communication_kernels, completed
from harness.traces.nsys.database import Database
from harness.traces.nsys.ids import process_of_one, thread_of_one
from harness.traces.nsys.ranges import RANGES, TABLE
from harness.traces.trace import Collectives, Events, Ranges
from harness.traces.vocabulary import POINT_TO_POINT, collective_kind

_GROUP_START, _GROUP_END = "ncclGroupStart", "ncclGroupEnd"
_TORCH = "nccl:"  # torch's own range around its NCCL calls: "nccl:all_to_all, op_id = 7"
_REACH = 1000  # ranges to look back over: a collective of sends and receives has two for each rank
_OF_ONE_RANK = (
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "gather",
    "scatter",
)  # NCCL tells one rank's part


@dataclass(slots=True)
class _Launch:
    """A stretch of a thread in which NCCL launches the kernels of some messages."""

    start_ns: int
    end_ns: int
    messages: list[Message]
    places: list[int] = field(default_factory=list)  # of the kernels launched in it


@dataclass(slots=True)
class Payloads:
    """What NCCL attached to its NVTX ranges."""

    by_place: dict[tuple[int, int], dict[str, Any]]  # thread and start of the range
    sizes: dict[str, int]  # ranks of each communicator
    members: set[tuple[str, int, int]]  # communicator, pid and rank of this report's processes

    def ranks_in(self, group: str | None) -> dict[int, int]:
        """The rank of each process in a communicator; not of a process that has several there."""
        own = [(pid, rank) for name, pid, rank in self.members if name == group]
        once = Counter(pid for pid, _ in own)
        return {pid: rank for pid, rank in sorted(own) if once[pid] == 1}


def is_nccl_call(name: str) -> bool:
    """Whether NCCL itself made a range of this name, around a call of its API."""
    return name.startswith("nccl") and not name.startswith(_TORCH)


def read_payloads(database: Database) -> Payloads:
    """NCCL's payloads, from the JSON that newer schemas hold; none where there is none."""
    said = Payloads({}, {}, set())
    if not {"jsonText", "jsonTextId"} & set(database.columns(TABLE)):
        return said
    for start, global_tid, text in _json_rows(database):
        values = _object(text)
        said.by_place[thread_of_one(global_tid), start] = values
        group, size, rank = _group(values), values.get("No. of ranks"), values.get("Rank")
        if group is not None and isinstance(size, int):
            said.sizes[group] = size
            if isinstance(rank, int):
                said.members.add((group, process_of_one(global_tid), rank))
    return said


def _json_rows(database: Database) -> list[tuple[int, int, str]]:
    held = ("jsonText", "jsonTextId")
    rows = database.rows(TABLE, "start", "globalTid", *held, only=("eventType", RANGES), filled=held)
    shared = database.texts({number for *_, number in rows if number is not None})
    told = ((start, tid, text or shared.get(number)) for start, tid, text, number in rows)
    return [(start, tid, text) for start, tid, text in told if text is not None and tid is not None]


def _object(text: str) -> dict[str, Any]:
    try:
        values = json.loads(text)
    except ValueError:
        return {}
    return values if isinstance(values, dict) else {}


def _group(values: dict[str, Any]) -> str | None:
    found = values.get("NCCL communicator ID", values.get("NCCL communicator hash"))
    return None if found is None else str(found)


def device_collectives(ranges: Ranges, events: Events, names: Names, payloads: Payloads) -> Collectives:
    """A row for each NCCL kernel, with whatever NVTX tells of its messages; else what the kernel's name does."""
    rows = communication_kernels(names.texts, events)
    kernels, which = np.unique(events.name[rows], return_inverse=True)
    messages = [completed(Message(None), names.texts[name]) for name in kernels.tolist()]
    named = _nccl_ranges(ranges, names.texts)
    launching = {thread: _launches(spans, thread, payloads) for thread, spans in named.items()}
    followed = np.flatnonzero(np.isin(events.launch_thread[rows], list(named)))
    for place in followed.tolist():
        thread, launch_ns = (int(column[rows[place]]) for column in (events.launch_thread, events.launch_ns))
        at = _covering(launching[thread], launch_ns)
        if at is not None:
            at.places.append(place)
    for thread, launches in launching.items():
        for place, message in (pair for launch in launches for pair in _shared_out(launch)):
            row = rows[place]
            _refine(
                completed(message, names.texts[events.name[row]]), named[thread], int(events.launch_ns[row])
            )
            which[place] = len(messages)
            messages.append(message)
    return collectives(rows, messages, which, events, names=names, groups={})


_Span = tuple[int, int, str]


def _nccl_ranges(ranges: Ranges, texts: list[str]) -> dict[int, list[_Span]]:
    """Ranges that NCCL or torch put around communication, by thread, in order of start."""
    wanted = {i for i in set(ranges.name.tolist()) if texts[i].startswith("nccl")}
    spans: dict[int, list[_Span]] = defaultdict(list)
    rows = zip(
        *(c.tolist() for c in (ranges.start_ns, ranges.end_ns, ranges.name, ranges.thread)), strict=True
    )
    for start, end, name, thread in rows:
        if name in wanted:
            spans[thread].append((start, end, texts[name]))
    return spans


def _launches(spans: list[_Span], thread: int, payloads: Payloads) -> list[_Launch]:
    """Single calls launch at once; those between ncclGroupStart and the outermost ncclGroupEnd at that end."""
    found: list[_Launch] = []
    grouped: list[Message] = []
    depth = 0
    for start, end, name in spans:
        if name == _GROUP_START:
            depth += 1
        elif name == _GROUP_END:
            depth = max(0, depth - 1)
            if depth == 0:
                found.append(_Launch(start, end, grouped))
                grouped = []
        elif is_nccl_call(name) and (kind := collective_kind(name)) is not None:
            message = _message(kind, payloads.by_place.get((thread, start), {}), payloads.sizes)
            if depth:
                grouped.append(message)
            else:
                found.append(_Launch(start, end, [message]))
    return found


def _message(kind: str, values: dict[str, Any], sizes: dict[str, int]) -> Message:
    """NCCL tells what one rank gives to an all-gather or gets of a reduce-scatter; the message is all ranks' parts.

    Source: NCCL, src/collectives.cc ("just pass the size of one message and not the total bytes").
    """
    size = next((v for k, v in values.items() if k.startswith("Message size") and isinstance(v, int)), -1)
    group = _group(values)
    ranks = sizes.get(group or "", -1)
    if kind in _OF_ONE_RANK and size > 0:
        size = size * ranks if ranks > 0 else -1
    return Message(kind, bytes_told=size, group=group, group_size=ranks)


def _covering(launches: list[_Launch], launch_ns: int) -> _Launch | None:
    at = bisect_right(launches, launch_ns, key=lambda launch: launch.start_ns) - 1
    return launches[at] if at >= 0 and launch_ns <= launches[at].end_ns else None


def _shared_out(launch: _Launch) -> list[tuple[int, Message]]:
    """The message of each kernel of a launch: one each where the numbers agree, else all in the only kernel."""
    if len(launch.places) == len(launch.messages):
        return list(zip(launch.places, launch.messages, strict=True))
    if len(launch.places) == 1 and launch.messages:
        return [(launch.places[0], _fused(launch.messages))]
    return []


def _fused(messages: list[Message]) -> Message:
    """One message for several that travel in one kernel; sends and receives go at the same time."""
    kinds = Counter(message.kind for message in messages)
    groups = {message.group for message in messages}
    both = set(kinds) == {"send", "recv"}
    first = messages[0]
    return Message(
        "send_recv" if both else first.kind if len(kinds) == 1 else None,
        bytes_told=max(_sum(messages, "send"), _sum(messages, "recv"))
        if both
        else _sum(messages, first.kind),
        group=first.group if len(groups) == 1 else None,
        group_size=first.group_size if len(groups) == 1 else -1,
    )


def _sum(messages: list[Message], kind: str | None) -> int:
    sizes = [message.bytes_told for message in messages if message.kind == kind]
    return sum(sizes) if min(sizes, default=-1) >= 0 else -1


def _refine(message: Message, spans: list[_Span], launch_ns: int) -> None:
    """Sends and receives may be the parts of a collective; torch's range around them says of which."""
    if message.kind not in POINT_TO_POINT:
        return
    last = bisect_right(spans, launch_ns, key=lambda span: span[0])
    for start, end, name in (spans[i] for i in range(last - 1, max(-1, last - _REACH), -1)):
        if name.startswith(_TORCH) and start <= launch_ns <= end:
            message.kind = collective_kind(name) or message.kind
            return
