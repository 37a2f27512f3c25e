"""Whether a rank waits for other ranks, and in which collective or message."""

from __future__ import annotations

import linecache
from collections.abc import Sequence
from typing import Any, NamedTuple

from harness.common.heartbeats import Evidence

LOADS = "torch/utils/data/dataloader.py"
FOR_LOCK = "waiting for a lock"
_DISTRIBUTED = "torch/distributed/"
_ENGINE = ("torch/autograd/graph.py", "torch/autograd/__init__.py")
# What a line of the user's own does when it waits for a collective that was begun before.
_WAITS = (".wait(", ".item(", ".cpu(", ".synchronize(", ".tolist(", ".result(", ".value(")
_INSTALLED = ("/site-packages/", "/dist-packages/")


class Wait(NamedTuple):
    """A collective or message that a rank has begun and that does not end. members: the ranks of its group."""

    op: str
    group: str
    members: tuple[int, ...]
    seq: int
    sizes: str
    line: tuple[str, int, str] | None
    p2p: bool = False
    peer: int | None = None


def waits_for_ranks(rank: Evidence) -> Wait | None:
    """What the rank waits in, if that is for other ranks; None: it waits for something else, or for nothing."""
    frames = rank.threads.get("main", [])
    if rank.computes and not rank.collectives:
        return None
    if rank.call and rank.call.get("p2p"):
        return _of_call(rank, frames)
    if rank.collectives and _blocked_in_collective(frames, rank):
        return _recorded(rank, frames)
    if rank.call and frames and _DISTRIBUTED in str(frames[0][0]):
        return _of_call(rank, frames)
    return None


def _blocked_in_collective(frames: Sequence[Sequence[Any]], rank: Evidence) -> bool:
    """Whether the innermost frame is one that waits for collectives."""
    if not frames:
        return False
    file, line = str(frames[0][0]), int(frames[0][1])
    if _DISTRIBUTED in file or any(file.endswith(engine) for engine in _ENGINE):
        return rank.state not in "Tt"
    if rank.waits_in.startswith(FOR_LOCK) and any(part in file for part in _INSTALLED) and LOADS not in file:
        return True  # a library waits in C++, as DeepSpeed does for parameters
    return any(word in linecache.getline(file, line) for word in _WAITS)


def _recorded(rank: Evidence, frames: Sequence[Sequence[Any]]) -> Wait:
    first = min(rank.collectives, key=lambda each: int(each["unix_ns"]))
    line = first.get("line")
    return Wait(
        op=str(first["op"]),
        group=str(first["group"]),
        members=tuple(int(each) for each in first.get("ranks") or ()),
        seq=int(first["seq"]),
        sizes=_sizes(first.get("sizes")),
        line=(str(line[0]), int(line[1]), str(line[2])) if line else _users(frames),
        p2p=bool(first.get("p2p")),
    )


def _of_call(rank: Evidence, frames: Sequence[Sequence[Any]]) -> Wait:
    call = rank.call or {}
    group = next(iter(rank.groups.values()), {})
    return Wait(
        op=str(call["op"]),
        group=next(iter(rank.groups), "0"),
        members=tuple(group.get("ranks") or ()),
        seq=int(group.get("last") or 0),
        sizes=_sizes(call.get("sizes")),
        line=_users(frames),
        p2p=bool(call.get("p2p")),
        peer=call.get("peer"),
    )


def _users(frames: Sequence[Sequence[Any]]) -> tuple[str, int, str] | None:
    return next(((str(f[0]), int(f[1]), str(f[2])) for f in frames if f[3]), None)


def _sizes(sizes: Any) -> str:
    """Sizes of tensors, as "7 × 4 elements".

    >>> _sizes([[7, 4], [2]])
    '7 × 4 and 2 elements'
    >>> _sizes([[1]])
    '1 element'
    """
    if not isinstance(sizes, list) or not sizes:
        return ""
    shown = [" × ".join(map(str, size)) if size else "1" for size in sizes[:2] if isinstance(size, list)]
    elements = " element" if shown == ["1"] else " elements"
    return " and ".join(shown) + elements + (", …" if len(sizes) > 2 else "") if shown else ""
