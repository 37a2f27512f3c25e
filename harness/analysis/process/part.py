"""What one measured process contributes to a job's summary: small, serialisable, merged in any order.

A part holds finished numbers of the process, sums that add up across ranks, and the columns that are compared with the
columns of other ranks (collectives, pipeline iterations)."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple, TypeVar, get_origin

import msgspec
import numpy as np

from harness.analysis.process.collective_rows import CollectiveRows
from harness.analysis.process.pipeline import StagePart
from harness.analysis.process.ranges import RangeSums
from harness.analysis.process.rows import RowsByField
from harness.analysis.summary import Copy, Device, NodeNetwork, Problem, SummaryPart, TraceSource, Window

KernelSums = list[tuple[str, str, str | None, int, int, int, int, int]]
# name, kind, precision, count, total, shortest, longest, overlapped (-1: not known); nanoseconds


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
    left_out: int = 0
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
    phases: dict[str, tuple[int, int, int | None, int | None]] = {}
    tables: bytes = b""  # of Tables, serialized: the names of a thousand ranks must not fill the memory
    collectives: bytes = b""  # of CollectiveRows
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


def used_a_gpu(part: RankPart) -> bool:
    """Whether work of a GPU was recorded, and not the host's alone."""
    return any(device.device_kind != "cpu" for device in part.devices)


def with_rank(part: RankPart, rank: int, world_size: int | None = None) -> RankPart:
    """The part as that of a rank, which its file does not tell; and of a world size, if it is given."""
    told = {"rank": rank} | ({} if world_size is None else {"world_size": world_size})
    rows = {
        field: [row | {"rank": rank} if "rank" in row else row for row in rows] for field, rows in part.rows.items()
    }
    devices = [device.model_copy(update={"rank": rank}) for device in part.devices]
    return part.model_copy(update={"source": part.source.model_copy(update=told), "devices": devices, "rows": rows})


class Tables(NamedTuple):
    """The kernels and ranges of one process, by name."""

    kernels: KernelSums
    ranges: RangeSums


def unpack_tables(part: RankPart) -> Tables:
    """A part's tables; empty where the part has been merged."""
    return deserialize(part.tables, Tables) if part.tables else Tables([], {})


def unpack_rows(part: RankPart) -> CollectiveRows:
    """A part's collectives."""
    return deserialize(part.collectives, CollectiveRows)


def in_order(parts: Iterable[RankPart]) -> list[RankPart]:
    """The parts in one canonical order. The same process of the same file counts once, so that measuring a chunk twice
    changes nothing."""
    by_key = {part.key: part for part in parts}
    return [by_key[key] for key in sorted(by_key)]


T = TypeVar("T")


def serialize(value: object) -> bytes:
    """A dataclass, a NamedTuple or a struct, of these and of arrays; zlib adds a checksum."""
    return zlib.compress(msgspec.msgpack.encode(value, enc_hook=_encoded), 1)


def deserialize(data: bytes, kind: type[T]) -> T:
    """The inverse of `serialize`. Raises ValueError: the bytes are damaged."""
    try:
        return msgspec.msgpack.decode(zlib.decompress(data), type=kind, dec_hook=_decoded)
    except (zlib.error, msgspec.MsgspecError) as error:
        raise ValueError(f"damaged: {error}") from None


def _encoded(value: Any) -> Any:
    # Times grow along a row: their differences are shorter when compressed.
    return value.dtype.str, value.shape, np.diff(value.ravel(), prepend=value.dtype.type(0)).tobytes()


def _decoded(kind: Any, value: Any) -> Any:
    if get_origin(kind) is Counter:
        return Counter(value)
    dtype, shape, differences = value
    return np.cumsum(np.frombuffer(differences, dtype), dtype=dtype).reshape(shape)
