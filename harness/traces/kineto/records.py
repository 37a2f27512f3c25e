"""The shapes of Kineto's records, which categories of every era mean which kind, and its numbers as integers."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from enum import IntEnum, auto
from typing import Annotated

import msgspec
import numpy as np

from harness.traces.trace import I64, CopyKind
from harness.traces.vocabulary import copy_name

MTIA = "mtia_ccp_events"  # Meta's accelerator: kernels, copies and waits in one category
KERNELS = frozenset({"kernel", "Kernel", MTIA, "hpu_op"})
COPIES = frozenset({"gpu_memcpy", "Memcpy"})
SETS = frozenset({"gpu_memset", "Memset"})
OLD_OPERATOR = "Operator"  # until torch 1.9
OPERATORS = ("cpu_op", OLD_OPERATOR)
CALLS = (
    *("cuda_runtime", "cuda_driver", "Runtime", "hip_runtime", "xpu_runtime", "xpu_driver"),
    *("privateuse1_runtime", "privateuse1_driver", "mtia_runtime"),
)

# What Kineto writes besides: arrows, marks, and ranges of the host that are shown again beside a device's work.
IGNORED = frozenset(
    {"ac2g", "async_cpu_to_gpu", "fwdbwd", "forward_backward", "Trace", "async", "async_gpu", "gpu_user_annotation"}
    | {"cuda_sync", "cuda_event", "cuda_profiler_range", "external_correlation", "collective_comm", "mtia_insight"}
    | {"glow_runtime", "user_defined"}
)
LONG_US = rb'"?(?:[5-9]\d|\d{3})'  # how the text of at least SHORTEST_HOST_NS in microseconds begins
_MOST_DIGITS = 18  # of a number written as text
_MTIA_COPY = "dma_request"
_MTIA_WAITS = ("event_record", "event_wait")  # of a stream: no work of the device
_MTIA_DIRECTIONS = {"HOST_TO_DEVICE": CopyKind.H2D, "DEVICE_TO_HOST": CopyKind.D2H, "DEVICE_TO_DEVICE": CopyKind.D2D}
_MOST_NS = 1 << 62  # the year 2116; twice as much is no number of 64 bits
_MOST_FLOAT_DIGITS = 16  # of microseconds before the point


class RecordKind(IntEnum):
    """What a reader takes a record for."""

    DEVICE = auto()  # work on a GPU
    CALL = auto()  # a runtime or driver call on the host
    RANGE = auto()  # a range of the program's own
    OPERATOR = auto()  # an operator on the host
    INSTANT = auto()  # the memory profiler's marks
    HOST = auto()  # a long span of the host: a Python function, the profiler's own work, an operator beside a GPU


KIND_OF_CATEGORY = {
    **dict.fromkeys((*KERNELS, *COPIES, *SETS), RecordKind.DEVICE),
    **dict.fromkeys(CALLS, RecordKind.CALL),
    "user_annotation": RecordKind.RANGE,
    **dict.fromkeys(OPERATORS, RecordKind.OPERATOR),
    "cpu_instant_event": RecordKind.INSTANT,
    **dict.fromkeys(("python_function", "overhead"), RecordKind.HOST),
}


# Every tool's numbers are within these; larger ones make a record invalid, and fit into no column.
Whole = Annotated[int, msgspec.Meta(ge=-(1 << 62), le=1 << 62)]
Small = Annotated[int, msgspec.Meta(ge=-(1 << 31), lt=1 << 31)]


class Head(msgspec.Struct, gc=False):
    """The fields of a record that decide its kind."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    dur: msgspec.Raw = msgspec.Raw(b"")


class WorkArgs(msgspec.Struct, gc=False):
    """Where work ran and what ties it to its call; other tools write some of the numbers as text."""

    device: Whole | str | None = None
    stream: Whole | str | None = -1
    correlation: Whole | str | None = -1
    bytes: Whole | str | None = -1
    context: Whole | str | None = -1
    size: Whole | str | None = -1  # MTIA's word for bytes
    direction: str | None = None  # of MTIA's copies
    collective: str | None = msgspec.field(name="Collective name", default=None)


class DeviceRecord(msgspec.Struct, gc=False):
    """A kernel, a copy, a set, or the call behind it. Any other record can be decoded as one, with empty fields."""

    cat: str = ""
    name: str = ""
    pid: Whole | str = -1
    tid: Whole | str = -1
    ts: msgspec.Raw = msgspec.Raw(b"")
    dur: msgspec.Raw = msgspec.Raw(b"")
    args: WorkArgs | None = None


def works_alike(records: Sequence[DeviceRecord]) -> list[DeviceRecord]:
    """Work as Kineto writes that of a GPU: MTIA's copies as copies, and without the waits of its streams."""
    return [_of_mtia(r) if r.cat == MTIA else r for r in records if r.cat != MTIA or r.name not in _MTIA_WAITS]


def _of_mtia(record: DeviceRecord) -> DeviceRecord:
    args = record.args or WorkArgs()
    if args.stream == WorkArgs().stream:
        args.stream = record.tid
    if record.name == _MTIA_COPY:
        record.cat, args.bytes = "gpu_memcpy", args.size
        record.name = copy_name(_MTIA_DIRECTIONS.get(args.direction or "", CopyKind.UNKNOWN))
    record.args = args
    return record


def carries_message(record: DeviceRecord) -> bool:
    """Whether a record says which collective it carries out."""
    return record.args is not None and record.args.collective is not None


class ShapeArgs(msgspec.Struct, gc=False):
    """The types of an operator's inputs, where shapes were recorded."""

    types: tuple[str, ...] | None = msgspec.field(name="Input type", default=None)


class HostRecord(msgspec.Struct, gc=False):
    """A span of the host that may explain why a device had no work."""

    cat: str
    name: str
    ts: msgspec.Raw = msgspec.Raw(b"")
    dur: msgspec.Raw = msgspec.Raw(b"")
    pid: Whole | str = -1
    tid: Whole | str = -1


class OperatorRecord(HostRecord, gc=False):
    """An operator or a user's range on a host thread."""

    args: ShapeArgs = msgspec.field(default_factory=ShapeArgs)


class MessageArgs(msgspec.Struct, gc=False):
    """The message in a record's arguments, in any of Kineto's three forms."""

    name: str | None = msgspec.field(name="Collective name", default=None)
    elements_in: Whole | str | None = msgspec.field(name="In msg nelems", default=None)
    elements_out: Whole | str | None = msgspec.field(name="Out msg nelems", default=None)
    group: str | int | None = msgspec.field(name="Process Group Name", default=None)
    group_size: Small | str | None = msgspec.field(name="Group size", default=None)
    dtype: str | None = None
    shapes: msgspec.Raw = msgspec.field(name="Input Dims", default=msgspec.Raw(b"[]"))
    types: list[str] | None = msgspec.field(name="Input type", default=None)
    values: msgspec.Raw = msgspec.field(name="Concrete Inputs", default=msgspec.Raw(b"[]"))
    sender: Small | str | None = msgspec.field(name="Src Rank", default=None)
    receiver: Small | str | None = msgspec.field(name="Dst Rank", default=None)


class MessageRecord(msgspec.Struct, gc=False):
    """The part of a record that describes a collective."""

    args: MessageArgs = msgspec.field(default_factory=MessageArgs)


class MemoryArgs(msgspec.Struct, gc=False):
    """One change of allocated memory."""

    total: Whole | None = msgspec.field(name="Total Allocated", default=None)
    device_type: int | None = msgspec.field(name="Device Type", default=None)
    device: Whole | None = msgspec.field(name="Device Id", default=None)


class MemoryRecord(msgspec.Struct, gc=False):
    """A mark of the memory profiler."""

    cat: str
    name: str
    args: MemoryArgs = msgspec.field(default_factory=MemoryArgs)


def integers(numbers_or_texts: Sequence[int | str | None]) -> I64:
    """Numbers, some perhaps written as text; -1 for a missing one."""
    try:
        return np.array(numbers_or_texts, np.int64)
    except (TypeError, ValueError, OverflowError):
        return np.array([integer(value) for value in numbers_or_texts], np.int64)


def integer(number_or_text: int | str | None) -> int:
    """A number, perhaps written as text ("stream 7"); -1 if there is no number, or one of more than 64 bits."""
    if isinstance(number_or_text, int):
        return number_or_text
    word = (number_or_text or "").rsplit(" ", 1)[-1]
    digits = word.removeprefix("-")
    is_number = digits.isascii() and digits.isdigit() and len(digits) <= _MOST_DIGITS
    return int(word) if is_number else -1


def nanoseconds(microseconds: Sequence[msgspec.Raw]) -> I64:
    """Microseconds as the text of JSON numbers to integer nanoseconds.

    Raises:
        ValueError: a text is not a number, or one beyond 2^62 ns.
    """
    if not microseconds:
        return np.empty(0, np.int64)
    text = b",".join(microseconds)
    if not any(character in text for character in (b"e", b"E", b'"', b"n")):
        decimals = _decimals(text)
        if decimals.max() <= 3:
            return _integers(text.replace(b".", b""), 10 ** (3 - decimals))
    return np.array([_nanoseconds_of(bytes(number)) for number in microseconds], np.int64)


def _decimals(text: bytes) -> I64:
    """How many digits stand behind the point of each number: tools that write a trace anew leave out zeros."""
    characters = np.frombuffer(text + b",", np.uint8)
    ends, points = np.flatnonzero(characters == ord(",")), np.flatnonzero(characters == ord("."))
    decimals = np.zeros(len(ends), np.int64)
    number = np.searchsorted(ends, points)
    decimals[number] = ends[number] - points - 1
    return decimals


def _integers(text: bytes, scale: I64) -> I64:
    """Integers, each multiplied by its scale."""
    values = np.fromstring(text, np.int64, sep=",")  # what has more than 64 bits becomes the largest number
    if len(values) != len(scale):
        raise ValueError("a time stamp is not a number")
    most = _MOST_NS // scale
    if (values < -most).any() or (values > most).any():
        raise ValueError("a time stamp is out of range")
    return values * scale


def _nanoseconds_of(number: bytes) -> int:
    whole, _, fraction = number.strip(b'"').partition(b".")
    if fraction.isdigit() and whole.isdigit() and len(fraction) <= 3 and len(whole) < _MOST_FLOAT_DIGITS:
        return int(whole) * 1000 + int(fraction.ljust(3, b"0"))
    try:
        value = Decimal(number.strip(b'"').decode())
    except ArithmeticError as error:
        raise ValueError("a time stamp is not a number") from error
    # The size first: 1e999999999 as an integer would fill the memory.
    if not value.is_finite() or value.adjusted() >= _MOST_FLOAT_DIGITS or abs(value) > _MOST_NS // 1000:
        raise ValueError("a time stamp is out of range")
    return int((value * 1000).to_integral_value())
