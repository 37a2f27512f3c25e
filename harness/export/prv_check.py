"""Whether files are a usable Paraver trace, of any writer: header, rows, events, times. Changes nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from harness.common.errors import WorkError

_HEADER = re.compile(rb"#Paraver \([^)]*\):(\d+)(?:_ns)?:(\d+)(?:\(([\d,]*)\))?:1:(\d+):?\(([\d:,]+)\)")
_RECORDS = (b"1", b"2", b"3")
_TIME_FIELD = 5
_LEVEL = re.compile(r"LEVEL (\w+) SIZE (\d+)")


@dataclass(frozen=True)
class PrvContents:
    """What is in the files. `last_ns` is the time of the latest record; `threads` are per task."""

    header: bytes
    end_ns: int
    last_ns: int
    threads: list[int]
    node_of_task: list[int]
    events: int
    rows: dict[str, list[str]]


def check_paraver(prv: Path) -> PrvContents:
    """The contents of `prv`, its .pcf and .row. Raises WorkError: they are not a usable trace."""
    for path in (prv, prv.with_suffix(".pcf"), prv.with_suffix(".row")):
        if not path.is_file() or path.stat().st_size == 0:
            raise WorkError(f"{path.name} is {'empty' if path.is_file() else 'missing'}")
    header, events, last_ns = _scan(prv)
    match = _HEADER.fullmatch(header)
    if not match:
        raise WorkError(f"{prv.name} does not begin with a Paraver header")
    end, _, _, tasks, placed = match.groups()
    pairs = [tuple(map(int, pair.split(b":"))) for pair in placed.split(b",") if pair]
    rows = read_rows(prv.with_suffix(".row"))
    threads, node_of_task = ([pair[i] for pair in pairs] for i in (0, 1))
    if len(pairs) != int(tasks):
        raise WorkError(f"{prv.name}: the header promises {int(tasks)} tasks and describes {len(pairs)}")
    if events == 0:
        raise WorkError(f"{prv.name} holds no event")
    if last_ns <= 0 or int(end) <= 0:
        raise WorkError(f"{prv.name}: the trace lasts no time")
    if len(rows.get("THREAD", [])) != sum(threads):
        raise WorkError(f"{prv.stem}.row names {len(rows.get('THREAD', []))} threads of {sum(threads)}")
    return PrvContents(header, int(end), last_ns, threads, node_of_task, events, rows)


def _scan(prv: Path) -> tuple[bytes, int, int]:
    """(header, number of event records, latest time)."""
    events = last_ns = 0
    with prv.open("rb") as file:
        header = file.readline().rstrip(b"\r\n")
        for number, line in enumerate(file, start=2):
            if line[:1] not in _RECORDS:
                if line[:1] in (b"#", b"c", b"C", b"\n"):
                    continue
                raise WorkError(f"{prv.name}, line {number}: no Paraver record: {line[:60]!r}")
            fields = line.split(b":", _TIME_FIELD + 1)
            try:
                last_ns = max(last_ns, int(fields[_TIME_FIELD]))
            except (IndexError, ValueError):
                raise WorkError(f"{prv.name}, line {number}: no time in {line[:60]!r}") from None
            events += line[:1] == b"2"
    return header, events, last_ns


def read_rows(path: Path) -> dict[str, list[str]]:
    """Names by level, as a .row file has them. Raises WorkError: a level is cut off."""
    rows: dict[str, list[str]] = {}
    lines = iter(path.read_text(encoding="utf-8", errors="replace").splitlines())
    for line in lines:
        if match := _LEVEL.match(line):
            names = list(islice(lines, int(match[2])))
            if len(names) < int(match[2]):
                raise WorkError(f"{path.name} is cut off in level {match[1]}")
            rows[match[1]] = names
    return rows
