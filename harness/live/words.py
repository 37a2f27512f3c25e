"""Ranks, places and durations in sentences."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

_SHOWN = 6


def listed(ranks: Sequence[int]) -> str:
    """Ranks as words.

    >>> listed([3]), listed([2, 0, 3]), listed(range(20))
    ('rank 3', 'ranks 0, 2 and 3', 'ranks 0, 1, 2, 3, 4 and 15 others')
    """
    numbers = sorted(ranks)
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    if len(numbers) > _SHOWN:
        first = numbers[: _SHOWN - 1]
        return f"ranks {', '.join(map(str, first))} and {len(numbers) - len(first)} others"
    return f"ranks {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}" if numbers else "no rank"


def where(place: tuple[str, int, str] | None) -> str:
    """A place in a program, short.

    >>> where(("/home/ann/train.py", 88, "main"))
    'train.py:88'
    """
    return "" if place is None else f"{Path(place[0]).name}:{place[1]}"


def duration(seconds: float) -> str:
    """How long something has lasted.

    >>> duration(12.4), duration(150), duration(7300)
    ('12 s', '2 min 30 s', '2 h 1 min')
    """
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s" if whole % 60 else f"{whole // 60} min"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
