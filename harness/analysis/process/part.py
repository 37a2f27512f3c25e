"""What one measured process contributes to a job's summary: small, serialisable, merged in any order.

A part holds finished numbers of the process, sums that add up across ranks, and the columns that are compared with the
columns of other ranks (collectives, pipeline iterations)."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from harness.analysis.process.collective_rows import CollectiveRows, Key
from harness.analysis.process.pipeline import StagePart
from harness.analysis.process.ranges import RangeSums
from harness.analysis.process.rows import RowsByField
from harness.analysis.summary import Copy, Device, HtaSplit, NodeNetwork, Problem, SummaryPart, TraceSource, Window

KernelSums = list[tuple[str, str, str | None, int, int, int, int]]
# name, kind, precision, count, total, shortest, longest; nanoseconds


class StepsPart(SummaryPart, kw_only=True):
    """The steps of one process.

    Of each counted step: its number, by its mark where the marks count up, else counted from the last one backwards
    (-1, -2 …); how much of it comes after its mark; when its mark begins, since the window's begin; and its own work,
    what of it is not communication alone, as the device with most of it has (empty where that is not known).
    """

    source: str
    found: int
    warmup: int
    cut_off: int
    empty: int
    durations_ns: list[int]
    between_ns: list[int] = []
    on_device: bool = False
    numbers: list[int] = []
    begins_ns: list[int] = []
    own_ns: list[int] = []


class RankPart(SummaryPart, kw_only=True):
    """One process of one file."""

    source: TraceSource
    window: Window
    run: str | None = None  # the run directory of its trace
    steps: StepsPart
    window_start_ns: int
    window_end_ns: int
    epoch_ns: int | None = None
    network: NodeNetwork | None = None  # of its node, in one part of each file that has samples of it
    events: int
    devices: list[Device] = []
    rows: RowsByField = {}
    copies: list[Copy] = []
    stage: StagePart | None = None
    problems: list[Problem] = []
    withheld: list[tuple[str, str]] = []
    dropped_events: int = 0
    backend: str | None = None
    hta: HtaSplit | None = None
    phases: dict[str, tuple[int, int, int | None, int | None]] = {}
    tables: bytes = b""
    collectives: bytes = b""
    graph: bytes = b""  # as harness/replay packs it

    @property
    def key(self) -> tuple[int, str, int]:
        """The order of parts: rank, path, process."""
        rank = self.source.rank
        return (-1 if rank is None else rank, self.source.path, self.source.pid or -1)

    @property
    def clock(self) -> str:
        """Parts with the same clock need no alignment: the unix clock of one host, else the clock of one file."""
        return self.source.path if self.epoch_ns is None else self.source.host or "unknown host"


def pack_tables(kernels: KernelSums, ranges: RangeSums) -> bytes:
    """The tables, compressed: the kernel names of a thousand ranks must not fill the memory."""
    return zlib.compress(json.dumps([kernels, ranges]).encode(), 1)


def unpack_tables(packed: bytes) -> tuple[KernelSums, RangeSums]:
    """The inverse of `pack_tables`."""
    if not packed:
        return [], {}
    kernels, ranges = msgspec.json.decode(zlib.decompress(packed))
    return [tuple(row) for row in kernels], {k: tuple(v) for k, v in ranges.items()}


def pack_rows(rows: CollectiveRows) -> bytes:
    """The rows of collectives, as compressed columns."""
    keys: list[Any] = [[k.kind, k.group, k.group_size, k.dtype, k.ranks] for k in rows.keys]
    head = json.dumps(keys).encode()
    columns = [
        rows.key.astype(np.int64),
        rows.bytes,
        np.diff(rows.start_ns, prepend=0),
        rows.end_ns - rows.start_ns,
        rows.phase.astype(np.int64),
        rows.peer.astype(np.int64),
    ]
    body = np.concatenate(columns).astype("<i8").tobytes()
    return zlib.compress(len(head).to_bytes(4, "little") + head + body, 1)


def unpack_rows(packed: bytes) -> CollectiveRows:
    """The inverse of `pack_rows`."""
    raw = zlib.decompress(packed)
    size = int.from_bytes(raw[:4], "little")
    keys = [Key(k, g, n, d, tuple(r) if r else None) for k, g, n, d, r in json.loads(raw[4 : 4 + size])]
    columns = np.frombuffer(raw[4 + size :], "<i8").astype(np.int64).reshape(6, -1)
    start = np.cumsum(columns[2])
    phase, peer = columns[4].astype(np.int8), columns[5].astype(np.int32)
    row = np.arange(len(start))
    return CollectiveRows(keys, columns[0].astype(np.int32), columns[1], start, start + columns[3], phase, row, peer)


def merge_parts(*groups: Sequence[RankPart]) -> list[RankPart]:
    """All parts of several groups in one canonical order. Associative, commutative, and idempotent.

    The same process of the same file counts once, so that measuring a chunk twice changes nothing.
    """
    by_key = {part.key: part for group in groups for part in group}
    return [by_key[key] for key in sorted(by_key)]
