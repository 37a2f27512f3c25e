"""Who an nsys export says it is: host, devices, clock, version; and what the tool says went wrong."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from harness.traces.nsys.collectives import Payloads
from harness.traces.nsys.database import Database
from harness.traces.nsys.devices import Devices
from harness.traces.trace import Identity

_RANK_IN_FILE = re.compile(r"rank[-_]?(\d+)", re.IGNORECASE)
_RANK_IN_RANGE = re.compile(r"^epoch_\d+-rank_(\d+)$")  # the outermost range of our training scripts
_EXPORT_TABLES = ("META_DATA_EXPORT", "EXPORT_META_DATA")  # the latter until 2022
_DROPPED = re.compile(
    r"events? dropped:?\s*(\d+)|(\d+)\s+(?:\w+\s+)*events? (?:were|was) dropped", re.IGNORECASE
)


def identity(
    database: Database,
    export: dict[str, object],
    path: Path,
    processes: set[int],
    range_names: Iterable[str],
    *,
    payloads: Payloads,
    devices: Devices,
) -> Identity:
    """The export's identity. Rank and world are NCCL's where it told them, else our own ranges' or the file name's."""
    hosts = database.rows("TARGET_INFO_SYSTEM_ENV", "value", only=("name", ["Hostname"]))
    world, world_size = _world(payloads)
    ranks = payloads.ranks_in(world)
    return Identity(
        source="nsys",
        path=str(path),
        rank=_rank(set(ranks.values()), range_names, path),
        world_size=world_size,
        ranks=ranks,
        host=next((str(value) for (value,) in hosts), None),
        pid=next(iter(processes)) if len(processes) == 1 else None,
        device_names=devices.names,
        tool_version=_text(export.get("EXPORT_PRODUCT_VERSION")),
        epoch_ns=_epoch_ns(database, export),
        backend="nccl" if payloads.by_place else None,
    )


def export_facts(database: Database) -> dict[str, object]:
    """What nsys says of the export itself."""
    return {
        str(name): value for table in _EXPORT_TABLES for name, value in database.rows(table, "name", "value")
    }


def _world(payloads: Payloads) -> tuple[str | None, int | None]:
    """The largest communicator is the world."""
    world = max(payloads.sizes, key=lambda group: payloads.sizes[group], default=None)
    return world, None if world is None else payloads.sizes[world]


def _rank(told: set[int], range_names: Iterable[str], path: Path) -> int | None:
    """The one rank of a report; a report of several has none."""
    told = told or {int(found.group(1)) for name in range_names if (found := _RANK_IN_RANGE.search(name))}
    told = told or {int(found.group(1)) for found in [_RANK_IN_FILE.search(path.name)] if found}
    return min(told) if len(told) == 1 else None


def _epoch_ns(database: Database, export: dict[str, object]) -> int | None:
    """Unix time of the trace's clock zero, which nsys can have moved when it exported."""
    if str(export.get("EXPORT_PARAM_TIME_NORMALIZE")).lower() == "true":
        return 0
    started = next(iter(database.rows("TARGET_INFO_SESSION_START_TIME", "utcEpochNs")), (None,))[0]
    shift = _text(export.get("EXPORT_PARAM_TIME_SHIFT")) or "0"
    return started - int(shift) if isinstance(started, int) and shift.lstrip("-").isdigit() else None


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def dropped_events(database: Database) -> int:
    """How many events nsys says it lost."""
    total = 0
    for (text,) in database.rows("DIAGNOSTIC_EVENT", "text"):
        found = _DROPPED.search(str(text))
        if found:
            total += int(found.group(1) or found.group(2))
    return total
