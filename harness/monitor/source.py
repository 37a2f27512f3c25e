"""What a source of samples is: its columns, its devices, one row per device at each call; its errors, and gaps between
samples.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

SampleValue = int | float | None  # None: unknown for this device, or this time
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class SampleSource(Protocol):
    """Devices that can be sampled. A column has its unit in its name."""

    @property
    def kind(self) -> str:
        """The source's name in meta.json."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the values in each row."""

    def describe(self) -> Mapping[str, Any]:
        """The source's part of meta.json: driver, devices, and where the power is measured."""

    def sample(self) -> Sequence[Sequence[SampleValue]]:
        """One row per device, in the order of `describe()["devices"]`, each with one value per column."""


def boot_id() -> str | None:
    """An id of the machine since its last start, the same for all its processes; None on systems other than Linux."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip() or None
    except (OSError, ValueError):
        return None


Gap = tuple[int, int]  # unix nanoseconds of the last sample before it and of the first after it
Points = list[tuple[int, float]]

_PERIODS, _LEAST_NS = 10, 10_000_000_000  # a silence this long is none of a busy machine


def find_gaps(moments: Sequence[int], starts: Sequence[int], period_ns: int) -> tuple[Gap, ...]:
    """The gaps between samples, in order. starts: when the monitor began, and when it was started again."""
    found = {
        (before, after) for before, after in pairwise(moments)
        if after - before > max(_PERIODS * period_ns, _LEAST_NS)
    }  # fmt: skip
    for start in starts[1:]:
        place = bisect_left(moments, start)
        if 0 < place < len(moments):
            found.add((moments[place - 1], moments[place]))
    return tuple(sorted(found))


def pieces(points: Points, gaps: Sequence[Gap]) -> list[Points]:
    """The points between the gaps."""
    found, rest = [], points
    for _, end_ns in gaps:
        here = [point for point in rest if point[0] < end_ns]
        found.append(here)
        rest = rest[len(here) :]
    return [each for each in (*found, rest) if each]


class MonitorError(Exception):
    """What is wrong with the request or with a folder of samples, in one sentence."""


def exit_code_of(act: Callable[[], None]) -> int:
    """0: done; 1: the files cannot be written or read; 2: the request was wrong. The sentence goes to stderr."""
    try:
        act()
    except MonitorError as error:
        print(f"monitor: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"monitor: {error.filename or 'the samples'}: {error.strerror or error}", file=sys.stderr)
        return 1
    return 0
