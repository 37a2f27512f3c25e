"""Bus bandwidth over algorithm bandwidth, as nccl-tests defines them (doc/PERFORMANCE.md)."""

from __future__ import annotations

from typing import overload

_SHARED = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")


@overload
def bus_factor(kind: str, group_size: int) -> float: ...


@overload
def bus_factor(kind: str, group_size: int | None) -> float | None: ...


def bus_factor(kind: str, group_size: int | None) -> float | None:
    """The share of a message that each rank must move over its link; None if that needs an unknown group size.

    With it a bandwidth can be compared with the link's speed, whatever the collective and the number of ranks. The
    message is the larger of a rank's input and output.

    >>> bus_factor("all_reduce", 4), bus_factor("all_gather", 4), bus_factor("broadcast", 4)
    (1.5, 0.75, 1.0)
    """
    if kind != "all_reduce" and kind not in _SHARED:
        return 1.0
    if group_size is None:
        return None
    return (2 if kind == "all_reduce" else 1) * (group_size - 1) / group_size
