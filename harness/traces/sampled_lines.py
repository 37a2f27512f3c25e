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

from harness.common.display.printable import printable, printable_name
from harness.common.run_folder.run_files import LINES
from harness.common.system.secrets import masked_text
from harness.traces.trace import I32, I64

MOST_LINES = 1 << 23  # of a file: two days of changes at 50 per second
MOST_LINE_BYTES = 1 << 15
MOST_PLACES = 1 << 14
MOST_SOURCE_LINES = 5
MOST_SOURCE = 200  # characters of a source line
MOST_CALLERS = 8
_MOST_HZ = 10_000
_LATEST_NS = 1 << 62
_LARGEST = 1 << 31
_FEWEST_CHANGES = 20  # of which the distances show whether each look is a row
UNSEEN = -2  # in place of an index into the places
_LATE = 3  # periods between two looks, from which the sampler was kept from looking


@dataclass(frozen=True)
class CodeLine:
    """A line of a program. source: it and the lines around it, the first of them with the number `first_line`; empty
    where the file could not be read. callers: the lines of the user's code that called it, each as file, line and
    function, the nearest first; empty where they were not written."""

    file: str
    line: int
    function: str
    source: tuple[str, ...] = ()
    first_line: int = 1
    callers: tuple[tuple[str, int, str], ...] = ()


class LineStretches(NamedTuple):
    """n stretches in order of time without overlaps, each at a place (-1: not in the user's code)."""

    start_ns: I64
    end_ns: I64
    line_number: I32

    def at(self, moment_ns: I64) -> I64:
        """The place of each moment; UNSEEN where nobody looked."""
        row = np.searchsorted(self.start_ns, moment_ns, side="right") - 1
        known = (row >= 0) & (moment_ns < np.append(self.end_ns, 0)[row])
        return np.where(known, np.append(self.line_number, -1)[row], UNSEEN).astype(np.int64)


@dataclass(frozen=True)
class SampledLines:
    """n changes of the main thread's place, or looks, in order of time: it came to `place` (an index into `places`, -1:
    not in the user's code) after `after_ns` and no later than `seen_ns`. until_ns: the end of the last stretch.
    period_ns: between two looks."""

    after_ns: I64
    seen_ns: I64
    line_number: I32
    places: list[CodeLine]
    until_ns: int
    period_ns: int

    def since(self, epoch_ns: int) -> SampledLines:
        """The same on a clock whose zero is this unix time."""
        after, seen, until = self.after_ns - epoch_ns, self.seen_ns - epoch_ns, self.until_ns - epoch_ns
        return replace(self, after_ns=after, seen_ns=seen, until_ns=until)

    @property
    def has_each_look(self) -> bool:
        """Whether every look is a row, not only those that saw another place than the one before."""
        apart = np.diff(self.seen_ns)
        return len(apart) >= _FEWEST_CHANGES and float(np.median(apart)) < 1.5 * self.period_ns

    def stretches(self, borders_ns: I64) -> LineStretches:
        """When it was at each place. borders_ns: moments, in order, at which a line may rather have ended than at
        others: the begins and ends of what takes long.

        Without a border the middle of the two looks counts. Between two borders nobody looked, so the place is not
        known there. Between looks that are far apart the sampler was kept from looking by what the new line did."""
        middle = (self.after_ns + self.seen_ns) // 2
        late = self.seen_ns - self.after_ns > _LATE * self.period_ns
        wanted = np.where(late, self.after_ns, middle)
        start = _nearest(borders_ns, wanted, self.after_ns, self.seen_ns)
        first = np.searchsorted(borders_ns, self.after_ns, side="right")
        last = np.searchsorted(borders_ns, self.seen_ns, side="right") - 1
        unseen = ~late & (last > first)
        start = np.maximum.accumulate(np.where(unseen, np.append(borders_ns, 0)[last], start))
        end = np.append(np.where(unseen, np.append(borders_ns, 0)[first], start)[1:], self.until_ns)
        kept = end > start
        return LineStretches(start[kept], end[kept], self.line_number[kept])


def _nearest(borders: I64, wanted: I64, low: I64, high: I64) -> I64:
    """For each wanted moment the nearest border in (low, high]; the moment itself where there is none."""
    if not len(borders):
        return wanted
    after = np.searchsorted(borders, wanted)
    before = borders[np.maximum(after - 1, 0)]
    following = borders[np.minimum(after, len(borders) - 1)]
    has_before, has_following = (before > low) & (before <= high), (following > low) & (following <= high)
    nearer = has_before & (~has_following | (wanted - before < following - wanted))
    return np.where(nearer, before, np.where(has_following, following, wanted))


class SampledProcess(NamedTuple):
    """Which process a file is about."""

    rank: int | None
    host: str | None
    pid: int | None


class _SampledLine(msgspec.Struct):
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
    callers: list[tuple[str, int, str]] = []


def read_about(path: Path) -> SampledProcess | None:
    """The process of a file, by its first line; None: the file cannot be read or begins with something else."""
    first = next(_lines(path), None)
    if first is None or first.event != "start":
        return None
    return SampledProcess(first.rank, None if first.host is None else printable_name(first.host), first.pid)


def read_sampled_lines(path: Path, first_ns: int, last_ns: int) -> SampledLines | None:
    """The places in a span of unix time; None: there are none, or the file cannot be read."""
    places: dict[int, CodeLine] = {}
    times: list[tuple[int, int, int]] = []  # seen before, seen there, place
    period_ns, ended_ns = 0.0, last_ns
    for line in _lines(path):
        if line.event == "start" and 0 < line.hz <= _MOST_HZ:
            period_ns = 1e9 / line.hz
        elif line.event == "place" and _is_small(line.id, line.line, line.first_line):
            if len(places) < MOST_PLACES:
                places.setdefault(_number(line.id), _place(line))
        elif line.event == "end" and line.unix_ns > 0:
            ended_ns = min(ended_ns, line.unix_ns)
        elif line.event == "at" and 0 < line.unix_ns < _LATEST_NS:
            if times and line.unix_ns < times[-1][1]:
                continue  # a clock that was set back
            if len(times) == 1 and line.unix_ns <= first_ns:
                times.clear()
            since_ns = line.since_ns if 0 < line.since_ns <= line.unix_ns else -1
            times.append((since_ns, line.unix_ns, _number(line.id)))
            if line.unix_ns > last_ns:
                break
    return _changes(times, places, period_ns, (first_ns, min(last_ns, ended_ns)))


def _is_small(*numbers: int | None) -> bool:
    """Whether these are numbers of lines, or of places."""
    return all(number is not None and 0 <= number < _LARGEST for number in numbers)


def _number(number: int | None) -> int:
    return number if number is not None and _is_small(number) else -1


def _lines(path: Path) -> Iterator[_SampledLine]:
    decode = msgspec.json.Decoder(_SampledLine).decode
    for text in islice(LINES.known_lines(path, MOST_LINE_BYTES), MOST_LINES):
        try:
            yield decode(text)
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
            continue


def _place(line: _SampledLine) -> CodeLine:
    source = (text.expandtabs(4)[:MOST_SOURCE] for text in line.source[:MOST_SOURCE_LINES])
    return CodeLine(
        file=printable_name(line.file),
        line=line.line,
        function=printable_name(line.function),
        source=tuple(masked_text(printable(text)) for text in source),
        first_line=line.first_line,
        callers=tuple(
            (printable_name(file), number, printable_name(function))
            for file, number, function in line.callers[:MOST_CALLERS]
            if _is_small(number)
        ),
    )


def _changes(
    times: list[tuple[int, int, int]], code_lines: dict[int, CodeLine], period_ns: float, span: tuple[int, int]
) -> SampledLines | None:
    if not times:
        return None
    before, seen, ids = np.array(times, np.int64).T
    said = (before > 0) & (before <= seen)
    if said.any():
        period_ns = float(np.median((seen - before)[said]))
    after = np.maximum(np.where(said, before, seen - round(period_ns)), np.append(0, seen[:-1]))
    end = np.append(seen[1:], span[1])
    kept = (end > span[0]) & (seen <= span[1])
    if not kept.any():
        return None
    known = [number for number in dict.fromkeys(ids[kept].tolist()) if number in code_lines]
    index = {number: i for i, number in enumerate(known)}
    place = np.array([index.get(number, -1) for number in ids[kept].tolist()], np.int32)
    lines = [code_lines[number] for number in known]
    return SampledLines(after[kept], seen[kept], place, lines, span[1], round(period_ns))
