"""One communication message, from any tool, and many messages as the trace's collectives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.traces.columns import NameTable
from harness.traces.sanitize import MOST_RANKS
from harness.traces.trace import Activity, Collectives, Events
from harness.traces.vocabulary import collective_kind, dtype_bytes, is_communication, reduced_dtype

UNKNOWN_KIND = "unknown"
_MOST_BYTES = 1 << 40


@dataclass(slots=True)
class Message:
    """One collective; None and -1: not recorded. Tools record its size in bytes or in elements.

    peer: of a send or receive, the other rank, as its group or the job counts.
    """

    kind: str | None
    dtype: str | None = None
    elements_in: int = -1
    elements_out: int = -1
    recorded_bytes: int = -1
    group: str | None = None
    group_size: int = -1
    peer: int = -1

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
        end_ns=events.end_ns[event],
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
