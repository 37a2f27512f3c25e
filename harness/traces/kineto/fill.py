"""A Kineto file's records gathered in the fastest way that it allows, and its identity: rank, world size, devices,
clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from harness.common.ranks import rank_in_file
from harness.traces.errors import TraceError
from harness.traces.kineto.chrome_events import ReadingPlan
from harness.traces.kineto.framing import Blocks, NotJson, Records, decoded
from harness.traces.kineto.gather import Gathered, Unbelievable
from harness.traces.kineto.layout import OtherLayout, Picker, RecordBatch, batch_of, picked, picked_by_layout
from harness.traces.pool import KILLED, process_pool
from harness.traces.progress import OnProgress
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


_RECORDS_AT_ONCE = 1024
_PART_BYTES = 24 << 20  # less is read sooner than a process is started


def gathered_from(
    path: Path, progress: OnProgress, workers: int, *, operators: bool, plan: ReadingPlan | None = None
) -> tuple[Gathered, Records, About]:
    """The records' content, in the fastest way that the file allows, or as a plan says. Raises TraceError: the file is
    not a trace."""
    try:
        if plan is not None:
            records = salvaged(path, progress)
            gathered = _gathered((batch_of(raws, operators) for raws in plan.records(records)), forgiving=True)
        else:
            gathered, records = _by_lines(path, progress, workers, operators)
    except (OtherLayout, msgspec.DecodeError, ValueError):
        try:
            gathered, records = _forgiving(path, progress, operators)
        except (msgspec.DecodeError, ValueError, Unbelievable) as error:
            raise TraceError(path, f"is damaged: one of its records cannot be read ({error})") from error
    return gathered, records, read_about(records.header, records.footer)


def salvaged(path: Path, progress: OnProgress) -> Records:
    """The records of a file, of which those that cannot be read are left out."""
    return Records(Blocks(path, progress), salvage=True)


def names_no_gpu(path: Path) -> bool:
    """Whether the text before the file's events lists no GPU."""
    return read_about(Records(Blocks(path)).header, b"").devices == []


def _by_lines(path: Path, progress: OnProgress, workers: int, operators: bool) -> tuple[Gathered, Records]:
    blocks = Blocks(path, progress)
    parts = 1 if not blocks.is_plain else min(workers, path.stat().st_size // _PART_BYTES)
    if parts < 2:
        return _filled(path, progress, operators, picked_by_layout)
    records = Records(blocks)
    picker = Picker(records.rest, operators)
    gathered, records.footer = _in_parts(path, picker, records.begin, parts, progress)
    return gathered, records


def _filled(
    path: Path, progress: OnProgress, operators: bool, pick: Callable[[Records, bool], Iterator[RecordBatch]]
) -> tuple[Gathered, Records]:
    records = Records(Blocks(path, progress))
    return _gathered(pick(records, operators)), records


def _forgiving(path: Path, progress: OnProgress, operators: bool) -> tuple[Gathered, Records]:
    """Without the records that cannot be read; where some are not even JSON, each is looked for by itself.

    Raises TraceError, msgspec.DecodeError: no record can be read."""
    records = Records(Blocks(path, progress))
    try:
        return _gathered(picked(records, operators), forgiving=True), records
    except (NotJson, msgspec.DecodeError):
        records = salvaged(path, progress)
        gathered = _gathered(picked(records, operators), forgiving=True)
        if not records.readable:
            raise
        return gathered, records


def _gathered(batches: Iterator[RecordBatch], forgiving: bool = False) -> Gathered:
    """Batches joined to a thousand records or more, which spreads the cost of a batch over them."""
    gathered, joined = Gathered(forgiving=forgiving), RecordBatch()
    for batch in batches:
        joined.extend(batch)
        if len(joined) >= _RECORDS_AT_ONCE:
            gathered.add(joined)
            joined = RecordBatch()
    gathered.add(joined)
    return gathered


def _in_parts(path: Path, picker: Picker, begin: int, parts: int, progress: OnProgress) -> tuple[Gathered, bytes]:
    """Parts of the file read by a process each: the parts' content joined in the file's order, and the footer."""
    from concurrent.futures import BrokenExecutor

    size = path.stat().st_size
    bounds = [begin + (size - begin) * part // parts for part in range(parts + 1)]
    whole: Gathered | None = None
    with process_pool(parts) as pool:
        stops: list[int | None] = [*bounds[1:-1], None]
        jobs = [pool.submit(_part, path, picker, *span) for span in zip(bounds, stops, strict=False)]
        for stop, job in zip(bounds[1:], jobs, strict=True):
            try:
                gathered, footer = job.result()
            except BrokenExecutor as error:
                raise TraceError(path, KILLED) from error
            whole = gathered if whole is None else whole.joined(gathered)
            progress(stop, size)
    assert whole is not None
    return whole, footer


def _part(path: Path, picker: Picker, start: int, stop: int | None) -> tuple[Gathered, bytes]:
    """The records that begin from byte `start` up to `stop`; None: up to the end, with the footer."""
    blocks = Blocks(path).plain_from(start)
    text = next(blocks, b"")
    first = text.find(picker.begin)
    if first < 0:
        raise OtherLayout
    rest = chain([text[first:]], blocks)
    batches = picker.to_the_end(rest) if stop is None else picker.up_to(rest, stop - start - first)
    return _gathered(batches), picker.footer
