"""The identity of a rocpd database: ranks, host, processes, devices."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from harness.common.ranks import rank_in_file
from harness.traces.database import whole
from harness.traces.errors import TraceError
from harness.traces.rocpd.tables import Recording
from harness.traces.trace import Identity

_MOST_DIGITS = 9  # no rank has ten


def identity(
    path: Path, recorded: list[Recording], device_names: dict[int, str], backend: str | None
) -> Identity:
    """The identity of all recordings in a file. Ranks are those of the processes' environment (RANK, WORLD_SIZE),
    of which nothing else is read: it may hold secrets.

    Raises:
        TraceError: the recordings are of several machines, whose clocks have nothing in common.
    """
    hosts = _hosts(path, recorded)
    environments = {pid: found for each in recorded for pid, found in _environments(each)}
    ranks = {pid: rank for pid, (rank, _) in environments.items() if rank is not None}
    worlds = {world for _, world in environments.values() if world is not None}
    only = next(iter(ranks.values())) if len(set(ranks.values())) == 1 else None
    return Identity(
        source="rocpd",
        path=str(path),
        rank=only if ranks else rank_in_file(path.name),
        world_size=worlds.pop() if len(worlds) == 1 else None,
        ranks=ranks,
        host=next(iter(hosts), None),
        pid=next(iter(environments)) if len(environments) == 1 else None,
        device_names=device_names,
        tool_version=_schema(recorded),
        backend=backend,
    )


def _hosts(path: Path, recorded: list[Recording]) -> list[str]:
    rows = [
        row
        for each in recorded
        for row in each.database.rows(each.table("info_node"), "machine_id", "hostname")
    ]
    if len({machine for machine, _ in rows}) > 1:
        raise TraceError(
            path,
            "holds recordings of several machines, whose clocks do not agree: give each machine's own databases",
        )
    return [str(host) for _, host in rows if host]


def _schema(recorded: list[Recording]) -> str | None:
    found = (
        value for each in recorded for tag, value in each.database.rows(each.table("metadata"), "tag", "value")
        if tag == "schema_version"
    )  # fmt: skip
    version = next(found, None)
    return None if version is None else f"rocpd {version}"


def _environments(recording: Recording) -> Iterable[tuple[int, tuple[int | None, int | None]]]:
    """Rank and world size by pid."""
    for pid, text in recording.database.rows(recording.table("info_process"), "pid", "environment"):
        if whole(pid) is not None:
            values = _object(text)
            yield pid, (_count(values.get("RANK")), _count(values.get("WORLD_SIZE")))


def _object(text: object) -> dict[str, Any]:
    try:
        values = json.loads(text) if isinstance(text, str) else {}
    except (ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}


def _count(text: object) -> int | None:
    is_number = isinstance(text, str) and text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS
    return int(str(text)) if is_number else None
