"""NCCL's calls and messages, from any tool, as the trace's collectives."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from harness.traces.columns import NameTable
from harness.traces.sanitize import MOST_RANKS
from harness.traces.trace import Activity, Collectives, Events, Ranges
from harness.traces.vocabulary import POINT_TO_POINT, collective_kind, dtype_bytes, is_communication, reduced_dtype

UNKNOWN_KIND = "unknown"
_MOST_BYTES = 1 << 40
_TORCH = "nccl:"  # torch's own range around its NCCL calls: "nccl:all_to_all, op_id = 7"
_REACH = 1000  # ranges to search backwards: a collective of sends and receives has two per rank
# Of these, a call's size is that of one rank's part.
OF_ONE_RANK = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")


@dataclass(slots=True)
class Message:
    """One collective; None and -1: not recorded. Tools record its size in bytes or in elements.

    peer: of a send or receive, the other rank, as its group or the job counts. end_ns: of a collective of several
    copies, when the last one ends.
    """

    kind: str | None
    dtype: str | None = None
    elements_in: int = -1
    elements_out: int = -1
    recorded_bytes: int = -1
    group: str | None = None
    group_size: int = -1
    peer: int = -1
    end_ns: int = -1

    @property
    def bytes(self) -> int:
        """The larger of input and output, as nccl-tests counts; -1 when not recorded."""
        elements = max(self.elements_in, self.elements_out)
        if self.recorded_bytes >= 0 or elements == 0:
            return max(self.recorded_bytes, 0)
        width = dtype_bytes(self.dtype) if self.dtype else 0
        return elements * width if elements > 0 and width else -1


def completed(message: Message, kernel: str) -> Message:
    """The message with its missing kind and type taken from the kernel's name."""
    message.kind = message.kind or collective_kind(kernel.split("(", maxsplit=1)[0])
    message.dtype = message.dtype or reduced_dtype(kernel)
    return message


def communication_kernels(names: list[str], events: Events) -> NDArray[np.intp]:
    """Rows of the kernels that communicate."""
    verdicts = np.array([is_communication(name) for name in names], bool)
    if not verdicts.any():
        return np.empty(0, np.intp)
    return np.flatnonzero(verdicts[events.name] & (events.activity == Activity.KERNEL))


def collectives(
    rows: NDArray[np.integer],
    messages: Sequence[Message],
    which: NDArray[np.integer],
    events: Events,
    *,
    names: NameTable,
    groups: dict[str, list[int]],
) -> Collectives:
    """The collectives at `rows` of `events` in order of start; `which` gives the position of each one's message."""
    order = np.argsort(events.start_ns[rows], kind="stable")
    event, which = rows[order].astype(np.int64), which[order]
    for message in messages:
        _name_group(message, groups)
    return Collectives(
        event=event,
        kind=names.indices(m.kind or UNKNOWN_KIND for m in messages)[which],
        bytes=np.array([_known(m.bytes, _MOST_BYTES) for m in messages], np.int64)[which],
        dtype=np.array([names[m.dtype] if m.dtype else -1 for m in messages], np.int32)[which],
        group=np.array([names[m.group] if m.group else -1 for m in messages], np.int32)[which],
        group_size=np.array([_known(m.group_size, MOST_RANKS) for m in messages], np.int32)[which],
        peer=np.array([_known(m.peer, MOST_RANKS) for m in messages], np.int32)[which],
        start_ns=events.start_ns[event],
        end_ns=np.maximum(events.end_ns[event], np.array([m.end_ns for m in messages], np.int64)[which]),
    )


def _known(number: int, most: int) -> int:
    """A number, or -1 for one that no message has: it counts as not recorded."""
    return number if 0 <= number <= most else -1


def _name_group(message: Message, groups: dict[str, list[int]]) -> None:
    """Fill in a group's size from its name, or its name where only one group fits."""
    if message.group is not None and message.group_size < 0 and message.group in groups:
        message.group_size = len(groups[message.group])
    if message.group is None:
        fitting = [name for name, ranks in groups.items() if message.group_size in (-1, len(ranks))]
        sizes = {len(groups[name]) for name in fitting}
        message.group = fitting[0] if len(fitting) == 1 else None
        message.group_size = sizes.pop() if len(sizes) == 1 else message.group_size


_GROUP_START, _GROUP_END = "ncclGroupStart", "ncclGroupEnd"

# The message of the call of this kind that began on a thread at a time in nanoseconds.
MessageOf = Callable[[int, int, str], Message]


@dataclass(slots=True)
class _Launch:
    """A stretch of a thread in which NCCL launches the kernels of some messages."""

    start_ns: int
    end_ns: int
    messages: list[Message]
    places: list[int] = field(default_factory=list)  # of the kernels launched in it


def is_nccl_call(name: str) -> bool:
    """Whether NCCL itself made a range of this name, around a call of its API."""
    return name.startswith("nccl") and not name.startswith(_TORCH)


def collectives_of_calls(ranges: Ranges, events: Events, names: NameTable, message_of: MessageOf) -> Collectives:
    """A row for each NCCL kernel, with the messages of the calls that launched it, or with what its name says."""
    rows = communication_kernels(names.texts, events)
    kernels, which = np.unique(events.name[rows], return_inverse=True)
    messages = [completed(Message(None), names.texts[name]) for name in kernels.tolist()]
    nccl_ranges = _nccl_ranges(ranges, names.texts)
    launching = {thread: _launches(spans, thread, message_of) for thread, spans in nccl_ranges.items()}
    for place in np.flatnonzero(np.isin(events.launch_thread[rows], list(nccl_ranges))).tolist():
        thread, launch_ns = (int(column[rows[place]]) for column in (events.launch_thread, events.launch_ns))
        at = _covering(launching[thread], launch_ns)
        if at is not None:
            at.places.append(place)
    for thread, launches in launching.items():
        for place, message in (pair for launch in launches for pair in _shared_out(launch)):
            row = rows[place]
            completed(message, names.texts[events.name[row]])
            _refine(message, nccl_ranges[thread], int(events.launch_ns[row]))
            which[place] = len(messages)
            messages.append(message)
    return collectives(rows, messages, which, events, names=names, groups={})


_Span = tuple[int, int, str]


def _nccl_ranges(ranges: Ranges, texts: list[str]) -> dict[int, list[_Span]]:
    """Ranges that NCCL or torch put around communication, by thread, in order of start."""
    wanted = {i for i in set(ranges.name.tolist()) if texts[i].startswith("nccl")}
    spans: dict[int, list[_Span]] = defaultdict(list)
    columns = (ranges.start_ns, ranges.end_ns, ranges.name, ranges.thread)
    for start, end, name, thread in zip(*(column.tolist() for column in columns), strict=True):
        if name in wanted:
            spans[thread].append((start, end, texts[name]))
    return spans


def _launches(spans: list[_Span], thread: int, message_of: MessageOf) -> list[_Launch]:
    """A single call launches at once; calls in a group are launched by the outermost ncclGroupEnd."""
    found: list[_Launch] = []
    grouped: list[Message] = []
    depth = 0
    for start, end, name in spans:
        if name == _GROUP_START:
            depth += 1
        elif name == _GROUP_END:
            depth = max(0, depth - 1)
            if depth == 0:
                found.append(_Launch(start, end, grouped))
                grouped = []
        elif is_nccl_call(name) and (kind := collective_kind(name)) is not None:
            message = message_of(thread, start, kind)
            if depth:
                grouped.append(message)
            else:
                found.append(_Launch(start, end, [message]))
    return found


def _covering(launches: list[_Launch], launch_ns: int) -> _Launch | None:
    at = bisect_right(launches, launch_ns, key=lambda launch: launch.start_ns) - 1
    return launches[at] if at >= 0 and launch_ns <= launches[at].end_ns else None


def _shared_out(launch: _Launch) -> list[tuple[int, Message]]:
    """The message of each kernel of a launch: one each if the numbers agree, or all in a single kernel."""
    if len(launch.places) == len(launch.messages):
        return list(zip(launch.places, launch.messages, strict=True))
    if len(launch.places) == 1 and launch.messages:
        return [(launch.places[0], _fused(launch.messages))]
    return []


def _fused(messages: list[Message]) -> Message:
    """One message for several in one kernel; sends and receives take place at the same time."""
    kinds, first = {message.kind for message in messages}, messages[0]
    kind, size = first.kind if len(kinds) == 1 else None, _sum(messages, first.kind)
    if kinds == {"send", "recv"}:
        kind, size = "send_recv", max(_sum(messages, "send"), _sum(messages, "recv"))
    if len({message.group for message in messages}) > 1:
        return Message(kind, recorded_bytes=size)
    return Message(kind, recorded_bytes=size, group=first.group, group_size=first.group_size)


def _sum(messages: list[Message], kind: str | None) -> int:
    sizes = [message.recorded_bytes for message in messages if message.kind == kind]
    return sum(sizes) if min(sizes, default=-1) >= 0 else -1


def _refine(message: Message, spans: list[_Span], launch_ns: int) -> None:
    """Sends and receives may be parts of a collective, which torch's range around them names."""
    if message.kind not in POINT_TO_POINT:
        return
    last = bisect_right(spans, launch_ns, key=lambda span: span[0])
    for start, end, name in (spans[i] for i in range(last - 1, max(-1, last - _REACH), -1)):
        if name.startswith(_TORCH) and start <= launch_ns <= end:
            message.kind = collective_kind(name) or message.kind
            return
