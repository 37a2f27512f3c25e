"""Ranks, counted things, clocks and lines of code as text that people read. Knows no run."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import PurePath

from harness.common.run_folder.metrics_lines import as_ranges

_SINGLE = 6  # ranks that are named one by one
_BARS = "▁▂▃▄▅▆▇█"


def clock(unix_ns: int, now_ns: int) -> str:
    """A time of the day; of another day with its date."""
    then, now = time.localtime(unix_ns / 1e9), time.localtime(now_ns / 1e9)
    return time.strftime("%H:%M:%S" if then[:3] == now[:3] else "%Y-%m-%d %H:%M", then)


def sparkline(values: Sequence[float]) -> str:
    """A character for each value, from nothing to twice their median.

    >>> sparkline([10, 10, 11, 15, 80, 5]), sparkline([])
    ('▄▄▄▅█▂', '')
    """
    if not len(values):
        return ""
    most = 2 * sorted(values)[len(values) // 2] or 1.0
    return "".join(_BARS[min(len(_BARS) - 1, max(0, round(value / most * 8) - 1))] for value in values)


def ranks_named(ranks: Iterable[int]) -> str:
    """
    >>> ranks_named([3]), ranks_named([2, 0, 3]), ranks_named(range(20)), ranks_named(range(0, 40, 2))
    ('rank 3', 'ranks 0, 2 and 3', 'ranks 0-19', '20 ranks, as 0, 2, 4')
    """
    numbers = sorted(ranks)
    if len(numbers) < 2:
        return f"rank {numbers[0]}" if numbers else "no rank"
    if len(numbers) <= _SINGLE:
        return f"ranks {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"
    text = as_ranges(numbers)
    return f"ranks {text}" if len(text) <= 24 else f"{len(numbers)} ranks, as {', '.join(map(str, numbers[:3]))}"


def where(code_line: tuple[str, int, str] | None) -> str:
    """A line of a program, short.

    >>> where(("/home/ann/train.py", 88, "main"))
    'train.py:88'
    """
    return "" if code_line is None else f"{PurePath(code_line[0]).name}:{code_line[1]}"


def how_many(count: int, noun: str) -> str:
    """
    >>> how_many(1, "node"), how_many(1200, "rank")
    ('1 node', '1,200 ranks')
    """
    return f"{count:,} {noun}{'s' * (count != 1)}"


def first_of(names: Sequence[str], most: int, separator: str = ", ") -> str:
    """The first of the names, and how many there are besides.

    >>> first_of(["a", "b"], 2), first_of(["a", "b", "c"], 2), first_of(["a", "b", "c", "d"], 2, "; ")
    ('a, b', 'a, b and 1 more', 'a; b and 2 more')
    """
    left = len(names) - most
    return separator.join(names[:most]) + (f" and {left:,} more" if left > 0 else "")
