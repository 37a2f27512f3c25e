"""The identity of a Kineto file from the text around its events: rank, world size, devices, clock, groups."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from harness.common.ranks import rank_in_file
from harness.traces.trace import Identity

_UNIX_NS = 10**18  # a clock that counts from 1970 has a later time since 2001


class _Group(msgspec.Struct):
    pg_name: str | int = ""
    ranks: list[int] | str | None = None


class _Distributed(msgspec.Struct):
    backend: str | None = None
    rank: int | None = None
    world_size: int | None = None
    pg_config: list[_Group] = []


class _DeviceProperties(msgspec.Struct):
    id: int = -1
    name: str = ""


class About(msgspec.Struct):
    """The keys of a trace file besides its events, as far as they matter."""

    devices: list[_DeviceProperties] | None = msgspec.field(name="deviceProperties", default=None)
    distributed: _Distributed = msgspec.field(name="distributedInfo", default_factory=_Distributed)
    base_ns: int | None = msgspec.field(name="baseTimeNanoseconds", default=None)
    host: str | None = msgspec.field(name="host_name", default=None)
    whole: bool = True  # False: some of it could not be read

    def groups(self) -> dict[str, list[int]]:
        """Global ranks of each named process group."""
        return {str(g.pg_name): g.ranks for g in self.distributed.pg_config if isinstance(g.ranks, list)}


def read_about(header: bytes, footer: bytes) -> About:
    """The content of the text before and after the events."""
    keys: dict[str, Any] = {}
    whole = True
    for text in (header.strip().rstrip(b",") + b"}", b"{" + footer.strip().lstrip(b",")):
        try:
            keys |= msgspec.json.decode(text, type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # one flipped byte is enough
            # A bare array of events has no such text.
            whole = whole and not header.strip() and text in (b"}", b"{")
    keys.pop("whole", None)
    try:
        return msgspec.structs.replace(msgspec.convert(keys, About, strict=False), whole=whole)
    except msgspec.ValidationError:
        return About(whole=False)


def identity(path: Path, about: About, pid: int, first_ns: int) -> Identity:
    """The trace's identity; the rank is in the file's name where the text does not have it."""
    rank = about.distributed.rank
    rank = rank_in_file(path.name) if rank is None else rank
    unix = about.base_ns is None and first_ns > _UNIX_NS
    return Identity(
        source="kineto",
        path=str(path),
        rank=rank,
        world_size=about.distributed.world_size,
        host=about.host,
        pid=pid if pid >= 0 else None,
        device_names={d.id: d.name for d in about.devices or ()},
        clock="unix" if unix else "trace",
        epoch_ns=0 if unix else about.base_ns,
        backend=about.distributed.backend,
    )
