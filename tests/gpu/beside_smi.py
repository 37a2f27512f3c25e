"""The monitor's samples and nvidia-smi's answers in the same seconds, as means that can be compared."""

from __future__ import annotations

import csv
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

# The newer name of the reasons for lower clocks, the older one.
THROTTLING = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")


class Pair(NamedTuple):
    """One quantity as both tools name it, with the allowed difference of the means: a share, and a least value."""

    ours: str
    theirs: str
    share: float
    least: float
    factor: float = 1.0  # theirs × factor = ours


PAIRS = (
    Pair("utilization_percent", "utilization.gpu", 0.1, 5.0),
    Pair("power_watts", "power.draw", 0.1, 10.0),
    Pair("memory_used_bytes", "memory.used", 0.1, 6e8, factor=2**20),
    Pair("sm_clock_mhz", "clocks.sm", 0.05, 30.0),
    Pair("temperature_celsius", "temperature.gpu", 0.1, 3.0),
)


class Samples(NamedTuple):
    """Columns between two times of the wall clock: ours of the first device, without missing values, and theirs."""

    ours: dict[str, list[float]]
    theirs: dict[str, list[str]]


def our_samples(path: Path, begin_s: float, end_s: float) -> dict[str, list[float]]:
    """The columns of the monitor's samples.csv."""
    with path.open(encoding="ascii") as file:
        rows = [row for row in csv.DictReader(file) if begin_s <= int(row["unix_ns"]) / 1e9 <= end_s]
    first = min((row["device"] for row in rows), default="0")
    rows = [row for row in rows if row["device"] == first]
    names = rows[0].keys() if rows else ()
    return {name: [float(row[name]) for row in rows if row[name]] for name in names}


def their_samples(path: Path, fields: list[str], begin_s: float, end_s: float) -> dict[str, list[str]]:
    """nvidia-smi's answers, each a line with the time before it; lines that are errors are left out."""
    lines = [line.split(",") for line in path.read_text(encoding="utf-8").splitlines()]
    rows = [row[1:] for row in lines if len(row) == len(fields) + 1 and begin_s <= float(row[0]) <= end_s]
    return {name: [row[i].strip() for row in rows] for i, name in enumerate(fields)}


def means(samples: Samples, pair: Pair) -> tuple[float | None, float | None]:
    """Ours, and nvidia-smi's in our unit; None without a value."""
    texts = (text for text in samples.theirs.get(pair.theirs, []) if text.replace(".", "").isdigit())
    numbers = [float(text) * pair.factor for text in texts]
    ours = samples.ours.get(pair.ours)
    return fmean(ours) if ours else None, fmean(numbers) if numbers else None


def agree(samples: Samples, pair: Pair) -> bool:
    """Whether both means are known and close."""
    ours, theirs = means(samples, pair)
    if ours is None or theirs is None:
        return False
    return abs(ours - theirs) <= max(pair.share * abs(theirs), pair.least)


def clock_limits(samples: Samples) -> tuple[set[int], set[int]]:
    """The bits of reasons for lower clocks that ours and nvidia-smi saw, each in at least one sample."""
    texts = [text for name in THROTTLING for text in samples.theirs.get(name, [])]
    return (
        {int(value) for value in samples.ours.get("clock_limits", [])},
        {int(text, 16) for text in texts if text.startswith("0x")},
    )
