"""Messages of RCCL's calls, of a rocpd database: from the arguments that rocprofv3 writes beside each call.

Names of arguments: rocprofiler-sdk, source/lib/rocprofiler-sdk/rccl/rccl.def.cpp. How it writes a data type, by number
or by name, is uncertain; both are read. The communicator is written as an address of the process, which says nothing to
other ranks, and a peer by its number in that communicator: neither is taken.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from harness.traces.database import whole
from harness.traces.messages import Message
from harness.traces.nccl_calls import OF_ONE_RANK, MessageOf
from harness.traces.rocpd.host import RCCL, Regions
from harness.traces.vocabulary import dtype_bytes, dtype_name

_COUNTS = ("count", "sendcount", "recvcount")
_WANTED = (*_COUNTS, "datatype")
# ncclDataType_t, by number (nccl.h).
_TYPES = (
    "int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64", "bfloat16", "float8_e4m3fn",
    "float8_e5m2",
)  # fmt: skip
_MOST_DIGITS = 18

Arguments = dict[str, Any]


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
