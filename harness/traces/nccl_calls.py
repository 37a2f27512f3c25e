"""Collectives by the ranges that NCCL's (or RCCL's) calls left on their threads, whichever tool recorded them."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from harness.traces.columns import NameTable
from harness.traces.messages import Message, collectives, communication_kernels, completed
from harness.traces.trace import Collectives, Events, Ranges
from harness.traces.vocabulary import POINT_TO_POINT, collective_kind

_GROUP_START, _GROUP_END = "ncclGroupStart", "ncclGroupEnd"
_TORCH = "nccl:"  # torch's own range around its NCCL calls: "nccl:all_to_all, op_id = 7"
_REACH = 1000  # ranges to search backwards: a collective of sends and receives has two per rank
# Of these, a call's size is that of one rank's part.
OF_ONE_RANK = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")

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


def collectives_of_calls(
    ranges: Ranges, events: Events, names: NameTable, message_of: MessageOf
) -> Collectives:
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
