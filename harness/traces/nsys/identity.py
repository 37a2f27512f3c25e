"""Who an nsys export says it is: host, devices, clock, version; and what the tool says went wrong."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

from harness.common.ranks import rank_in_file, rank_in_range
from harness.traces.columns import distinct
from harness.traces.nsys.database import Database
from harness.traces.nsys.devices import Devices
from harness.traces.nsys.nccl_messages import Payloads
from harness.traces.trace import Identity, Ranges

_EXPORT_TABLES = ("META_DATA_EXPORT", "EXPORT_META_DATA")  # the latter until 2022
_DROPPED = re.compile(
    r"events? dropped:?\s*(\d+)|(\d+)\s+(?:\w+\s+)*events? (?:were|was) dropped", re.IGNORECASE
)


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
    """The export's identity. Rank and world are NCCL's where it recorded them, else our own ranges' or the file name's.

    `own_ranks`: of each process (by pid) whose ranges name it.
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
        tool_version=_text(export.get("EXPORT_PRODUCT_VERSION")),
        epoch_ns=_epoch_ns(database, export),
        backend="nccl" if payloads.by_place else None,
    )


def export_facts(database: Database) -> dict[str, object]:
    """What nsys says of the export itself."""
    return {
        str(name): value for table in _EXPORT_TABLES for name, value in database.rows(table, "name", "value")
    }


def ranks_in_ranges(ranges: Ranges, texts: list[str]) -> dict[int, int]:
    """The rank of each process (by pid) whose ranges name just one."""
    told: dict[int, set[int]] = defaultdict(set)
    for name in set(ranges.name.tolist()):
        if (rank := rank_in_range(texts[name])) is not None:
            for pid in distinct(ranges.process[ranges.name == name]):
                told[pid].add(rank)
    return {pid: ranks.pop() for pid, ranks in told.items() if len(ranks) == 1}


def _rank_of_only(path: Path, processes: set[int]) -> dict[int, int]:
    """The rank in the file's name, of the one process there is."""
    rank = _rank(set(), path)
    return {} if rank is None or len(processes) != 1 else dict.fromkeys(processes, rank)


def _world(payloads: Payloads, own_ranks: dict[int, int]) -> tuple[str | None, int | None]:
    """The largest communicator is the world, unless it shows that it is only a part of one.

    With tensor and data parallelism there may be none of all ranks, and those of the largest size are then several:
    a process is in no more than some of them, or has another rank in each, or another than it says itself.
    """
    size = max(payloads.sizes.values(), default=None)
    largest = [group for group, ranks in payloads.sizes.items() if ranks == size]
    processes = {pid for _, pid, _ in payloads.members}
    told = [payloads.ranks_in(group) for group in largest]
    members = [{pid for name, pid, _ in payloads.members if name == group} for group in largest]
    if any(pids != processes for pids in members) or any(ranks != told[0] for ranks in told):
        return None, None
    if any(own_ranks.get(pid, rank) != rank for ranks in told for pid, rank in ranks.items()):
        return None, None
    # One process that has the same rank in two may be the first of both rows and columns.
    unsure = len(largest) > 1 and len(processes) == 1 and not processes & set(own_ranks)
    return (None, None) if unsure or not largest else (largest[0], size)


def _rank(told: set[int], path: Path) -> int | None:
    """The one rank of a report; a report of several has none."""
    return min(told) if len(told) == 1 else None if told else rank_in_file(path.name)


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
