"""NVTX ranges of an nsys export as columns."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from harness.traces.columns import NameTable, compacted, distinct_rows, sorted_spans
from harness.traces.database import Database, whole
from harness.traces.nsys.ids import process_of, string_ids, thread_of
from harness.traces.trace import I32, I64, RangeKind, Ranges

TABLE = "NVTX_EVENTS"
_PUSH_POP = (59, 70)  # NvtxPushPopRange, NvtxtPushPopRange
_START_END = (60, 71)
_DOMAIN = 75  # NvtxDomainCreate
RANGES = _PUSH_POP + _START_END


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
    several: NDArray[np.bool_] = np.bincount(rows, weights=ends_last, minlength=len(threads)) > 1
    closed: NDArray[np.bool_] = ends_last & several[rows]
    return closed


def _names(database: Database, names: NameTable, text_id: I64) -> I32:
    """A range's name is its own text, or a registered string."""
    present, rows = distinct_rows(text_id)
    registered = string_ids(database, present.tolist())
    index: I32 = names.indices(registered.get(number, "") for number in present.tolist())[rows]
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
