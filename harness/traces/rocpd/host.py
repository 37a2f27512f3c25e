"""What the host did, of a rocpd database: calls of HIP, and ranges of roctx and of RCCL's calls."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.traces.columns import NameTable, constant, distinct_rows, joined, sorted_calls, sorted_spans
from harness.traces.database import json_object
from harness.traces.rocpd.tables import Recording, named
from harness.traces.trace import I32, I64, Calls, RangeKind, Ranges

RCCL_DOMAIN = "RCCL"
HIP, MARKER, RCCL = "HIP_", "MARKER_", "RCCL_"  # how the categories of regions begin
# Operations of roctx that are ranges; those of the second line are what the program calls, of older recordings.
_RANGES = {
    "roctxThreadRangeA": RangeKind.PUSH_POP, "roctxProcessRangeA": RangeKind.START_END,
    "roctxRangePushA": RangeKind.PUSH_POP, "roctxRangeStartA": RangeKind.START_END,
}  # fmt: skip


class Regions:
    """The stretches of host time of one recording."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self._raw = recording.integers("region", "start", "end", "pid", "tid", "name_id", "event_id")
        category = recording.events.of(self._raw["event_id"], "category_id")
        self._texts = recording.texts(self._raw["name_id"])
        present, self._category = distinct_rows(category)
        texts = recording.texts(category)
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


def _messages(recording: Recording, events: I64) -> dict[int, str]:
    """The texts that the program gave, by event."""
    found = {
        event: json_object(text).get("message")
        for event, text in recording.texts(events, "event", "extdata").items()
    }
    return {event: text for event, text in found.items() if isinstance(text, str)}


def _ranges(raw: dict[str, I64], name: I32, kind: NDArray[np.uint8], domain: int) -> dict[str, Any]:
    n = len(name)
    return {
        "start_ns": raw["start"],
        "end_ns": raw["end"],
        "name": name,
        "thread": raw["thread"],
        "kind": kind,
        "process": raw["process"],
        "domain": constant(domain, n, np.int32),
        "is_open": constant(0, n, np.uint8),
    }
