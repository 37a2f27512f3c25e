"""The lines of the user's code in which a rank's main thread was, as its observer sampled them: `lines/rank<R>.jsonl`.

A line is `{"event": "start" | "place" | "at" | "end", …}`. Times are unix time. What is malformed is left out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from harness.common.bounded_read import read_lines
from harness.common.printable import printable, printable_name
from harness.common.secrets import masked_text
from harness.traces.trace import I32, I64

MOST_LINES = 1 << 23  # of a file: two days of changes at 50 per second
MOST_LINE_BYTES = 1 << 15
MOST_PLACES = 1 << 14
MOST_SOURCE_LINES = 5
MOST_SOURCE = 200  # characters of a source line
_MOST_HZ = 10_000
_LATEST_NS = 1 << 62
_FEWEST_CHANGES = 20  # of which the shortest distances show how often the thread was sampled


@dataclass(frozen=True)
class CodeLine:
    """A line of a program. source: it and the lines around it, the first of them with the number `first_line`; empty
    where the file could not be read."""

    file: str
    line: int
    function: str
    source: tuple[str, ...] = ()
    first_line: int = 1


@dataclass(frozen=True)
class SampledLines:
    """n stretches in order of time without overlaps, each in one of the `places`, -1: not in the user's code."""

    start_ns: I64
    end_ns: I64
    place: I32
    places: list[CodeLine]

    def since(self, epoch_ns: int) -> SampledLines:
        """The same on a clock whose zero is this unix time."""
        return replace(self, start_ns=self.start_ns - epoch_ns, end_ns=self.end_ns - epoch_ns)

    def at(self, moment_ns: I64) -> I64:
        """The place of each moment; -1 also where none is known."""
        row = np.searchsorted(self.start_ns, moment_ns, side="right") - 1
        known = (row >= 0) & (moment_ns < np.append(self.end_ns, 0)[row])
        return np.where(known, np.append(self.place, -1)[row], -1).astype(np.int64)


class Sampled(NamedTuple):
    """Which process a file is about."""

    rank: int | None
    host: str | None
    pid: int | None


class _Line(msgspec.Struct):
    event: str
    unix_ns: int = -1
    since_ns: int = -1
    id: int | None = None
    rank: int | None = None
    host: str | None = None
    pid: int | None = None
    hz: float = 0.0
    file: str = ""
    line: int = 0
    function: str = ""
    source: list[str] = []
    first_line: int = 1


def read_about(path: Path) -> Sampled | None:
    """The process of a file, by its first line; None: the file cannot be read or begins with something else."""
    try:
        first = next(_lines(path), None)
    except (OSError, ValueError):
        return None
    if first is None or first.event != "start":
        return None
    return Sampled(first.rank, None if first.host is None else printable_name(first.host), first.pid)


def read_sampled_lines(path: Path, first_ns: int, last_ns: int) -> SampledLines | None:
    """The stretches that overlap a span of unix time; None: there are none, or the file cannot be read."""
    places: dict[int, CodeLine] = {}
    times: list[tuple[int, int, int]] = []  # seen before, seen there, place
    period_ns, ended_ns = 0.0, last_ns
    try:
        for line in _lines(path):
            if line.event == "start" and 0 < line.hz <= _MOST_HZ:
                period_ns = 1e9 / line.hz
            elif line.event == "place" and line.id is not None and len(places) < MOST_PLACES:
                places.setdefault(line.id, _place(line))
            elif line.event == "end" and line.unix_ns > 0:
                ended_ns = min(ended_ns, line.unix_ns)
            elif line.event == "at" and 0 < line.unix_ns < _LATEST_NS:
                if times and line.unix_ns < times[-1][1]:
                    continue  # a clock that was set back
                if len(times) == 1 and line.unix_ns <= first_ns:
                    times.clear()
                times.append((line.since_ns, line.unix_ns, -1 if line.id is None else line.id))
                if line.unix_ns > last_ns:
                    break
    except (OSError, ValueError):
        pass  # what was read until there counts
    return _stretches(times, places, period_ns, (first_ns, min(last_ns, ended_ns)))


def _lines(path: Path) -> Iterator[_Line]:
    decode = msgspec.json.Decoder(_Line).decode
    for text in islice(read_lines(path, MOST_LINE_BYTES), MOST_LINES):
        try:
            yield decode(text)
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
            continue


def _place(line: _Line) -> CodeLine:
    source = (text.expandtabs(4)[:MOST_SOURCE] for text in line.source[:MOST_SOURCE_LINES])
    return CodeLine(
        file=printable_name(line.file),
        line=line.line,
        function=printable_name(line.function),
        source=tuple(masked_text(printable(text)) for text in source),
        first_line=line.first_line,
    )


def _stretches(
    times: list[tuple[int, int, int]], places: dict[int, CodeLine], period_ns: float, span: tuple[int, int]
) -> SampledLines | None:
    if not times:
        return None
    before, seen, ids = np.array(times, np.int64).T
    start = _changed(before, seen, period_ns)
    end = np.append(start[1:], max(span[1], int(start[-1])))
    start, end = np.maximum(start, span[0]), np.minimum(end, span[1])
    kept = end > start
    known = [number for number in dict.fromkeys(ids[kept].tolist()) if number in places]
    index = {number: i for i, number in enumerate(known)}
    place = np.array([index.get(number, -1) for number in ids[kept].tolist()], np.int32)
    if not kept.any():
        return None
    return SampledLines(start[kept], end[kept], place, [places[number] for number in known])


def _changed(before: I64, seen: I64, period_ns: float) -> I64:
    """When the thread came to each place: on average half a period before it was seen there. Where the sampler says
    when it had looked before, and that is long ago, it was kept from looking by what the thread did there."""
    apart = np.diff(seen)
    if len(apart) >= _FEWEST_CHANGES:
        shortest = float(np.quantile(apart, 0.05))
        period_ns = min(period_ns, shortest) if period_ns else shortest
    half = round(period_ns / 2)
    earlier = np.append(seen[:1] - 2 * half, seen[:-1])
    said = (before > 0) & (before <= seen)
    last = np.where(said, np.maximum(before, earlier), np.maximum(seen - 2 * half, earlier))
    late = said & (seen - last > 4 * half)
    return np.where(late, last, (last + seen) // 2)
