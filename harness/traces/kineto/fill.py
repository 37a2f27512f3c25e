"""A Kineto file's records gathered, and its identity: rank, world size, devices, clock."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from harness.common.ranks import rank_in_file
from harness.traces.errors import TraceError
from harness.traces.kineto.chrome_events import ReadingPlan
from harness.traces.kineto.framing import Blocks, NotJson, Records, decoded
from harness.traces.kineto.gather import KeptRecords, Unbelievable
from harness.traces.kineto.pick import RecordBatch, batch_of, picked
from harness.traces.progress import OnProgress
from harness.traces.trace import Identity

_UNIX_NS = 10**18  # a clock that counts from 1970 has a later time since 2001
_RECORDS_AT_ONCE = 1024


class _ProcessGroup(msgspec.Struct):
    pg_name: str | int = ""
    ranks: list[int] | str | None = None


class _DistributedInfo(msgspec.Struct):
    backend: str | None = None
    rank: int | None = None
    world_size: int | None = None
    pg_config: list[_ProcessGroup] = []


class _DeviceProperties(msgspec.Struct):
    id: int = -1
    name: str = ""


class About(msgspec.Struct):
    """The keys of a trace file besides its events, as far as they matter."""

    devices: list[_DeviceProperties] | None = msgspec.field(name="deviceProperties", default=None)
    distributed: _DistributedInfo = msgspec.field(name="distributedInfo", default_factory=_DistributedInfo)
    base_ns: int | None = msgspec.field(name="baseTimeNanoseconds", default=None)
    host: str | None = msgspec.field(name="host_name", default=None)
    whole: bool = True  # False: some of it could not be read

    def groups(self) -> dict[str, list[int]]:
        """Global ranks of each named process group."""
        return {str(g.pg_name): g.ranks for g in self.distributed.pg_config if isinstance(g.ranks, list)}


_keys = msgspec.json.Decoder(dict[str, Any])


def read_about(header: bytes, footer: bytes) -> About:
    """The content of the text before and after the events."""
    keys: dict[str, Any] = {}
    whole = True
    for text in (header.strip().rstrip(b",") + b"}", b"{" + footer.strip().lstrip(b",")):
        try:
            more: dict[str, Any] = decoded(_keys, text)
            keys |= more
        except msgspec.DecodeError:  # one flipped byte is enough
            # A bare array of events has no such text.
            whole = whole and not header.strip() and text in (b"}", b"{")
    keys.pop("whole", None)
    try:
        return msgspec.structs.replace(msgspec.convert(keys, About, strict=False), whole=whole)
    except msgspec.ValidationError:
        return About(whole=False)


def identity(path: Path, about: About, pid: int, first_ns: int, accelerators: dict[int, str]) -> Identity:
    """The trace's identity; the rank is in the file's name where the text does not have it. accelerators: devices that
    are no GPUs, by number; the text may have a better name."""
    rank = about.distributed.rank
    rank = rank_in_file(path) if rank is None else rank
    unix = about.base_ns is None and first_ns > _UNIX_NS
    return Identity(
        source="kineto",
        path=str(path),
        rank=rank,
        world_size=about.distributed.world_size,
        host=about.host,
        pid=pid if pid >= 0 else None,
        device_names=accelerators
        | {d.id: f"{accelerators.get(d.id, '')} {d.name}".strip() for d in about.devices or ()},
        clock="unix" if unix else "trace",
        epoch_ns=0 if unix else about.base_ns,
        backend=about.distributed.backend,
    )


def gathered_from(
    path: Path, progress: OnProgress, *, operators: bool, plan: ReadingPlan | None = None
) -> tuple[KeptRecords, Records, About]:
    """The records' content, of all that are wanted or as a plan says. Raises TraceError: the file is not a trace."""
    try:
        gathered, records = (
            _by_plan(path, progress, operators, plan) if plan else _all_gathered(path, progress, operators)
        )
    except (msgspec.DecodeError, ValueError, Unbelievable) as error:
        raise TraceError(path, f"is damaged: one of its records cannot be read ({error})") from error
    return gathered, records, read_about(records.header, records.footer)


def salvaged(path: Path, progress: OnProgress) -> Records:
    """The records of a file, of which those that cannot be read are left out."""
    return Records(Blocks(path, progress), salvage=True)


def names_no_gpu(path: Path) -> bool:
    """Whether the text before the file's events lists no GPU."""
    return read_about(Records(Blocks(path)).header, b"").devices == []


def _by_plan(path: Path, progress: OnProgress, operators: bool, plan: ReadingPlan) -> tuple[KeptRecords, Records]:
    """The records that a plan gives; where one of them cannot be read, all that are wanted, without a plan."""
    records = salvaged(path, progress)
    try:
        return _gathered(batch_of(raws, operators) for raws in plan.records(records)), records
    except (msgspec.DecodeError, ValueError):
        return _all_gathered(path, progress, operators)


def _all_gathered(path: Path, progress: OnProgress, operators: bool) -> tuple[KeptRecords, Records]:
    """Without the records that cannot be read; where some are not even JSON, each is looked for by itself.

    Raises TraceError, msgspec.DecodeError: no record can be read."""
    records = Records(Blocks(path, progress))
    try:
        return _gathered(picked(records, operators)), records
    except (NotJson, msgspec.DecodeError):
        records = salvaged(path, progress)
        gathered = _gathered(picked(records, operators))
        if not records.readable:
            raise
        return gathered, records


def _gathered(batches: Iterator[RecordBatch]) -> KeptRecords:
    """Batches joined to a thousand records or more, which spreads the cost of a batch over them."""
    gathered, joined = KeptRecords(), RecordBatch()
    for batch in batches:
        joined.extend(batch)
        if len(joined) >= _RECORDS_AT_ONCE:
            gathered.add(joined)
            joined = RecordBatch()
    gathered.add(joined)
    return gathered
