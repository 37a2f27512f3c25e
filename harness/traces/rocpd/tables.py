"""The tables of a rocprofv3 database: agents, identity and the host's ranges."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.common.ranks import rank_in_file
from harness.traces.columns import NameTable, constant, distinct_rows, joined, sorted_calls, sorted_spans
from harness.traces.database import Database, json_object, whole
from harness.traces.errors import TraceError
from harness.traces.trace import I32, I64, Calls, Identity, RangeKind, Ranges

_METADATA = re.compile(r"rocpd_metadata(_\w{1,64})?", re.ASCII)
_MOST_DIGITS = 9  # no rank has ten
RCCL_DOMAIN = "RCCL"

# Operations of roctx that are ranges; those of the second line are what the program calls, of older recordings.
_RANGES = {
    "roctxThreadRangeA": RangeKind.PUSH_POP, "roctxProcessRangeA": RangeKind.START_END,
    "roctxRangePushA": RangeKind.PUSH_POP, "roctxRangeStartA": RangeKind.START_END,
}  # fmt: skip


class SuffixedTables:
    """The tables whose names end with `suffix`."""

    def __init__(self, database: Database, suffix: str) -> None:
        self.database = database
        self._suffix = suffix

    def table(self, name: str) -> str:
        """The table's whole name."""
        return f"rocpd_{name}{self._suffix}"

    def columns(self, name: str) -> set[str]:
        """The columns of a table; empty for one that is not there."""
        return set(self.database.columns(self.table(name)))

    def integers(self, name: str, *wanted: str) -> dict[str, I64]:
        """Columns of a table as arrays, -1 for NULL and for a missing column."""
        return self.database.integers(self.table(name), *wanted)

    def texts(self, ids: I64, table: str = "string", column: str = "string") -> dict[int, str]:
        """The texts of rows of a table by their ids."""
        present, _ = distinct_rows(ids)
        return self.database.texts(present.tolist(), self.table(table), column)

    @cached_property
    def events(self) -> JoinedColumns:
        """What all kinds of rows share: the category, and the number of the call that they belong to."""
        return JoinedColumns(self.integers("event", "id", "category_id", "stack_id"))

    @cached_property
    def _pids(self) -> dict[int, int]:
        return self._numbers("info_process", "pid")

    @cached_property
    def _tids(self) -> dict[int, int]:
        return self._numbers("info_thread", "tid")

    def _numbers(self, table: str, column: str) -> dict[int, int]:
        rows = self.database.rows(self.table(table), "id", column)
        return {i: n for i, n in rows if whole(i) is not None and whole(n) is not None}

    def pids(self, ids: I64) -> I64:
        """The system's numbers of processes."""
        return looked_up(ids, self._pids)

    def tids(self, ids: I64) -> I64:
        """The system's numbers of threads."""
        return looked_up(ids, self._tids)


class JoinedColumns:
    """Columns of a table that others refer to by its ids."""

    def __init__(self, columns: dict[str, I64]) -> None:
        ids = columns["id"]
        self._order = np.argsort(ids, kind="stable")
        self._ids = ids[self._order]
        self._columns = columns

    def of(self, ids: I64, column: str) -> I64:
        """The column's values for these ids, -1 where there is no such row."""
        if not len(self._ids):
            return np.full(len(ids), -1, np.int64)
        place = np.minimum(np.searchsorted(self._ids, ids), len(self._ids) - 1)
        found = self._columns[column][self._order[place]]
        return np.where((self._ids[place] == ids) & (ids >= 0), found, -1)


def looked_up(ids: I64, numbers: dict[int, int]) -> I64:
    """Each id's number; an id that has none stays as it is."""
    present, rows = distinct_rows(ids)
    found: I64 = np.array([numbers.get(i, i) for i in present.tolist()], np.int64)[rows]
    return found


def named(ids: I64, texts: dict[int, str], names: NameTable, default: str) -> I32:
    """Ids of texts as indices of the trace's names."""
    present, rows = distinct_rows(ids)
    index: I32 = names.indices(texts.get(i) or default for i in present.tolist())[rows]
    return index


def recordings(database: Database) -> list[SuffixedTables]:
    """The recordings in a database, by the names of its tables."""
    found = map(_METADATA.fullmatch, database.tables)
    return [SuffixedTables(database, suffix) for suffix in sorted(match[1] or "" for match in found if match)]


class Agents(NamedTuple):
    """The trace's number of each GPU by the agent's id, and the GPUs' names by that number."""

    number: dict[int, int]
    names: dict[int, str]


def read_agents(recording: SuffixedTables) -> Agents:
    """The GPUs. `type_index` counts them as the machine has them, whichever of them the process may use."""
    table = recording.table("info_agent")
    wanted = ("id", "type", "type_index", "absolute_index", "product_name", "model_name", "name")
    number, names = dict[int, int](), dict[int, str]()
    for agent, kind, index, absolute, *called in recording.database.rows(table, *wanted):
        if kind != "GPU" or whole(agent) is None:
            continue
        device = next((i for i in map(whole, (index, absolute)) if i is not None), agent)
        number[agent] = device
        names[device] = next((str(name) for name in called if name), "GPU")
    return Agents(number, names)


def identity(path: Path, recorded: list[SuffixedTables], device_names: dict[int, str], backend: str | None) -> Identity:
    """The identity of all recordings in a file. Ranks are those of the processes' environment (RANK, WORLD_SIZE),
    of which nothing else is read: it may hold secrets. Raises TraceError: the recordings are of several machines, whose
    clocks have nothing in common."""
    hosts = _hosts(path, recorded)
    environments = {pid: found for each in recorded for pid, found in _environments(each)}
    ranks = {pid: rank for pid, (rank, _) in environments.items() if rank is not None}
    worlds = {world for _, world in environments.values() if world is not None}
    only = next(iter(ranks.values())) if len(set(ranks.values())) == 1 else None
    return Identity(
        source="rocpd",
        path=str(path),
        rank=only if ranks else rank_in_file(path),
        world_size=worlds.pop() if len(worlds) == 1 else None,
        ranks=ranks,
        host=next(iter(hosts), None),
        pid=next(iter(environments)) if len(environments) == 1 else None,
        device_names=device_names,
        tool_version=_schema(recorded),
        backend=backend,
    )


def _hosts(path: Path, recorded: list[SuffixedTables]) -> list[str]:
    rows = [row for each in recorded for row in each.database.rows(each.table("info_node"), "machine_id", "hostname")]
    if len({machine for machine, _ in rows}) > 1:
        raise TraceError(
            path, "holds recordings of several machines, whose clocks do not agree: give each machine's own databases"
        )
    return [str(host) for _, host in rows if host]


def _schema(recorded: list[SuffixedTables]) -> str | None:
    found = (
        value for each in recorded for tag, value in each.database.rows(each.table("metadata"), "tag", "value")
        if tag == "schema_version"
    )  # fmt: skip
    version = next(found, None)
    return None if version is None else f"rocpd {version}"


def _environments(recording: SuffixedTables) -> Iterable[tuple[int, tuple[int | None, int | None]]]:
    """Rank and world size by pid."""
    for pid, text in recording.database.rows(recording.table("info_process"), "pid", "environment"):
        if whole(pid) is not None:
            values = json_object(text) if isinstance(text, str) else {}
            yield pid, (_count(values.get("RANK")), _count(values.get("WORLD_SIZE")))


def _count(text: object) -> int | None:
    is_number = isinstance(text, str) and text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS
    return int(str(text)) if is_number else None


HIP, MARKER, RCCL = "HIP_", "MARKER_", "RCCL_"  # how the categories of regions begin


class Regions:
    """The stretches of host time of one recording."""

    def __init__(self, profiler_recording: SuffixedTables) -> None:
        self.recording = profiler_recording
        self._raw = profiler_recording.integers("region", "start", "end", "pid", "tid", "name_id", "event_id")
        category = profiler_recording.events.of(self._raw["event_id"], "category_id")
        self._texts = profiler_recording.texts(self._raw["name_id"])
        present, self._category = distinct_rows(category)
        texts = profiler_recording.texts(category)
        self._categories = [texts.get(i, "") for i in present.tolist()]

    def of(self, beginning: str) -> dict[str, I64]:
        """The regions whose category begins so, with the system's numbers of processes and threads."""
        chosen = np.array([text.startswith(beginning) for text in self._categories], bool)
        rows = np.flatnonzero(chosen[self._category])
        raw = {name: column[rows] for name, column in self._raw.items()}
        raw["process"] = self.recording.pids(raw.pop("pid"))
        raw["thread"] = self.recording.tids(raw.pop("tid"))
        return raw

    def names(self, raw: dict[str, I64], names: NameTable) -> I32:
        """The regions' own names, as indices of the trace's."""
        return named(raw["name_id"], self._texts, names, "[unnamed call]")

    def operations(self, raw: dict[str, I64]) -> list[str]:
        """The regions' own names."""
        return [self._texts.get(i, "") for i in raw["name_id"].tolist()]


def hip_calls(regions: list[Regions], names: NameTable) -> Calls:
    """Calls of HIP's runtime and of what the compiler puts around a launch."""
    return sorted_calls(Calls(**joined([_calls(part, names) for part in regions])))


def _calls(regions: Regions, names: NameTable) -> dict[str, Any]:
    raw = regions.of(HIP)
    call = regions.recording.events.of(raw["event_id"], "stack_id")
    return {
        "start_ns": raw["start"],
        "end_ns": raw["end"],
        "name": regions.names(raw, names),
        "thread": raw["thread"],
        "correlation": np.where(call > 0, call, -1),
        "process": raw["process"],
    }


def host_ranges(regions: list[Regions], names: NameTable) -> Ranges:
    """The program's own ranges, and those of RCCL's calls, which have a domain of their own."""
    parts = [part(each, names) for each in regions for part in (_markers, _rccl)]
    return sorted_spans(Ranges(**joined(parts)))


def _rccl(regions: Regions, names: NameTable) -> dict[str, Any]:
    raw = regions.of(RCCL)
    kind = constant(RangeKind.PUSH_POP, len(raw["start"]), np.uint8)
    return _ranges(raw, regions.names(raw, names), kind, names[RCCL_DOMAIN] if len(kind) else -1)


def _markers(regions: Regions, names: NameTable) -> dict[str, Any]:
    """Ranges of roctx: the region is named after the call, and the event beside it has the program's text."""
    raw = regions.of(MARKER)
    operations = regions.operations(raw)
    keep = np.array([name in _RANGES for name in operations], bool)
    raw = {name: column[keep] for name, column in raw.items()}
    operations = [name for name in operations if name in _RANGES]
    texts = _messages(regions.recording, raw["event_id"])
    found = zip(operations, raw["event_id"].tolist(), strict=True)
    name = names.indices(texts.get(event, operation) for operation, event in found)
    kind = np.array([_RANGES[name] for name in operations], np.uint8)
    return _ranges(raw, name, kind, -1)


def _messages(recording: SuffixedTables, events: I64) -> dict[int, str]:
    """The texts that the program gave, by event."""
    found = {
        event: json_object(text).get("message") for event, text in recording.texts(events, "event", "extdata").items()
    }
    return {event: text for event, text in found.items() if isinstance(text, str)}


def _ranges(raw: dict[str, I64], name: I32, range_kind: NDArray[np.uint8], domain: int) -> dict[str, Any]:
    n = len(name)
    return {
        "start_ns": raw["start"],
        "end_ns": raw["end"],
        "name": name,
        "thread": raw["thread"],
        "kind": range_kind,
        "process": raw["process"],
        "domain": constant(domain, n, np.int32),
        "is_open": constant(0, n, np.uint8),
    }
