"""Who a Kineto file says it is: rank, world, devices, clock, groups. From the text around its events."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from harness.common.ranks import rank_in_file
from harness.traces.trace import Identity

_UNIX_NS = 10**18  # later than 2001: a clock that counts from 1970 is past this


class _Group(msgspec.Struct):
    pg_name: str | int = ""
    ranks: list[int] | str | None = None


class _Distributed(msgspec.Struct):
    backend: str | None = None
    rank: int | None = None
    world_size: int | None = None
    pg_config: list[_Group] = []


class _Device(msgspec.Struct):
    id: int = -1
    name: str = ""


class About(msgspec.Struct):
    """The keys of a trace file besides its events, as far as they matter."""

    devices: list[_Device] | None = msgspec.field(name="deviceProperties", default=None)
    distributed: _Distributed = msgspec.field(name="distributedInfo", default_factory=_Distributed)
    base_ns: int | None = msgspec.field(name="baseTimeNanoseconds", default=None)
    host: str | None = msgspec.field(name="host_name", default=None)
    whole: bool = True  # False: some of it could not be read

    def groups(self) -> dict[str, list[int]]:
        """Global ranks of each named process group."""
        return {str(g.pg_name): g.ranks for g in self.distributed.pg_config if isinstance(g.ranks, list)}


def about(header: bytes, footer: bytes) -> About:
    """What the text before and after the events says."""
    said: dict[str, Any] = {}
    whole = True
    for text in (header.strip().rstrip(b",") + b"}", b"{" + footer.strip().lstrip(b",")):
        try:
            said |= msgspec.json.decode(text, type=dict[str, Any])
        except msgspec.DecodeError:
            whole = (
                whole and not header.strip() and text in (b"}", b"{")
            )  # a bare array of events has neither
    known = {key: said[key] for key in _WANTED if key in said}
    try:
        return msgspec.structs.replace(msgspec.convert(known, About, strict=False), whole=whole)
    except msgspec.ValidationError:
        return About(whole=False)


_WANTED = ("deviceProperties", "distributedInfo", "baseTimeNanoseconds", "host_name")


def identity(path: Path, said: About, pid: int, first_ns: int) -> Identity:
    """The trace's identity; the rank comes from the file's name where the text does not tell."""
    rank = said.distributed.rank
    rank = rank_in_file(path.name) if rank is None else rank
    unix = said.base_ns is None and first_ns > _UNIX_NS
    return Identity(
        source="kineto",
        path=str(path),
        rank=rank,
        world_size=said.distributed.world_size,
        host=said.host,
        pid=pid if pid >= 0 else None,
        device_names={d.id: d.name for d in said.devices or ()},
        clock="unix" if unix else "trace",
        epoch_ns=0 if unix else said.base_ns,
        backend=said.distributed.backend,
    )
