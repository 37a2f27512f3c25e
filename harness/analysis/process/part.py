"""What one measured process contributes to a job's summary: small, serialisable, merged in any order.

A part holds finished numbers of the process, sums that add up across ranks, and the columns that are compared with the
columns of other ranks (collectives, pipeline iterations)."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np

from harness.analysis.process.collective_rows import CollectiveRows
from harness.analysis.process.pipeline import StagePart
from harness.analysis.process.ranges import RangeSums
from harness.analysis.process.rows import ProcessRows
from harness.analysis.summary import Copy, Device, NodeNetwork, Problem, SummaryPart, TraceSource, Window

T = TypeVar("T")


class KernelSum(msgspec.Struct, array_like=True, gc=False):
    """All kernels of one name, kind and precision; on a CPU operators and collectives. overlapped_ns: beside work of
    the other class, communication or not; -1: not known."""

    name: str
    kind: str
    precision: str | None
    count: int
    total_ns: int
    shortest_ns: int
    longest_ns: int
    overlapped_ns: int


def serialize(value: object) -> bytes:
    """A dataclass, a NamedTuple or a struct, of these and of arrays; zlib adds a checksum."""
    return zlib.compress(msgspec.msgpack.encode(value, enc_hook=_encoded), 1)


def deserialize(data: bytes, kind: type[T]) -> T:
    """The inverse of `serialize`. Raises ValueError: the bytes are damaged."""
    try:
        return msgspec.msgpack.decode(zlib.decompress(data), type=kind, dec_hook=_decoded)
    except (zlib.error, msgspec.MsgspecError) as error:
        raise ValueError(f"damaged: {error}") from None


class Compressible:
    """Something large of a part: the object itself in the process that made it. It is compressed where the part goes to
    another process or into a file, and then decompressed by each `get`, so that the names of a thousand ranks do not
    fill the memory."""

    __slots__ = ("_bytes", "_value")

    def __init__(self, value: object = None, compressed: bytes = b"") -> None:
        self._value, self._bytes = value, compressed

    def get(self, kind: type[T]) -> T | None:
        """The object, which is of this type and must not be changed; None: there is none. Raises ValueError: the bytes
        are damaged."""
        if self._bytes:
            return deserialize(self._bytes, kind)
        assert self._value is None or isinstance(self._value, kind)
        return self._value

    def compress(self) -> Compressible:
        """The same as bytes only."""
        return Compressible(compressed=self.compressed)

    @property
    def compressed(self) -> bytes:
        """The object as bytes; empty: there is none."""
        return b"" if self._value is None and not self._bytes else self._bytes or serialize(self._value)

    def __reduce__(self) -> tuple[type[Compressible], tuple[None, bytes]]:
        return Compressible, (None, self.compressed)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Compressible) and self.compressed == other.compressed

    __hash__ = None  # type: ignore[assignment]  # it is compared by what it holds


def _encoded(value: Any) -> Any:
    # Times grow along a row: their differences are shorter when compressed.
    return value.dtype.str, value.shape, np.diff(value.ravel(), prepend=value.dtype.type(0)).tobytes()


def _decoded(_kind: Any, value: Any) -> Any:
    dtype, shape, differences = value
    return np.cumsum(np.frombuffer(differences, dtype), dtype=dtype).reshape(shape)


class StepsPart(SummaryPart, kw_only=True):
    """The steps of one process.

    Of each counted step: its number, by its mark where the marks count up, else counted from the last one backwards
    (-1, -2 …); how much of it comes after its mark; and its own work, what of it is not communication alone, as the
    device with most of it has (empty where that is not known). first_mark_ns: when the first one's mark begins, since
    the window's begin, where the steps are on the device; else 0.
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
    first_mark_ns: int = 0
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
    rows: ProcessRows = msgspec.field(default_factory=ProcessRows)
    copies: list[Copy] = []
    stage: StagePart | None = None
    problems: list[Problem] = []
    withheld: list[tuple[str, str]] = []
    dropped_events: int = 0
    backend: str | None = None
    phases: dict[str, tuple[int, int, int | None, int | None]] = {}
    tables: Compressible = msgspec.field(default_factory=Compressible)  # of Tables
    collectives: Compressible = msgspec.field(default_factory=Compressible)  # of CollectiveRows
    graph: Compressible = msgspec.field(default_factory=Compressible)  # of the ProcessGraph of harness/replay

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
    rows = {name: [row.model_copy(update={"rank": rank}) for row in of] for name, of in part.rows.by_name().items()}
    devices = [device.model_copy(update={"rank": rank}) for device in part.devices]
    return part.model_copy(
        update={"source": part.source.model_copy(update=told), "devices": devices, "rows": ProcessRows(**rows)}
    )


class Tables(NamedTuple):
    """The kernels and ranges of one process, by name."""

    kernels: list[KernelSum]
    ranges: RangeSums


def tables_of(part: RankPart) -> Tables:
    """A part's tables."""
    return part.tables.get(Tables) or Tables([], {})


def collectives_of(part: RankPart) -> CollectiveRows:
    """A part's collectives."""
    rows = part.collectives.get(CollectiveRows)
    assert rows is not None  # of a process without any, too
    return rows


def compressed(part: RankPart) -> RankPart:
    """The same part in little memory, for a process that holds those of many ranks."""
    fields = {name: getattr(part, name).compress() for name in ("tables", "collectives", "graph")}
    return part.model_copy(update=fields)


def in_order(parts: Iterable[RankPart]) -> list[RankPart]:
    """The parts in one canonical order. The same process of the same file counts once, so that measuring a chunk twice
    changes nothing."""
    by_key = {part.key: part for part in parts}
    return [by_key[key] for key in sorted(by_key)]
