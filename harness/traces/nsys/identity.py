"""The identity of an nsys export: rank, host, devices, clock, version; and the events that nsys lost."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

from harness.common.ranks import rank_in_file, rank_in_range
from harness.traces.columns import distinct
from harness.traces.database import Database, whole
from harness.traces.nsys.devices import Devices
from harness.traces.nsys.nccl_messages import Payloads
from harness.traces.trace import Identity, Ranges

_EXPORT_TABLES = ("META_DATA_EXPORT", "EXPORT_META_DATA")  # the latter until 2022
_NUMBER = re.compile(r"-?\d{1,18}", re.ASCII)
_DROPPED = re.compile(
    r"(?i)events? dropped:?\s*(\d{1,15})|(\d{1,15})\s+(?:\w+\s+)*events? (?:were|was) dropped"
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
    """The export's identity. Rank and world size are from NCCL's payloads, else from our ranges or the file's name.

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
    return {
        str(name): value for table in _EXPORT_TABLES for name, value in database.rows(table, "name", "value")
    }


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
    rank = rank_in_file(path.name)
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


def _rank(recorded: set[int], path: Path) -> int | None:
    """The rank of a report; None for a report with several ranks."""
    if not recorded:
        return rank_in_file(path.name)
    return min(recorded) if len(recorded) == 1 else None


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
