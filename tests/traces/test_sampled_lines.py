"""The file of sampled lines: what it says, and what of it cannot be believed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.traces.sampled_lines import (
    MOST_LINE_BYTES,
    MOST_SOURCE,
    MOST_SOURCE_LINES,
    SampledLines,
    read_about,
    read_sampled_lines,
)

MS = 1_000_000
NOW = 1_700_000_000 * 10**9
START = {"event": "start", "rank": 3, "host": "node7", "pid": 42, "hz": 50, "unix_ns": NOW}
NONE = np.empty(0, np.int64)


def place(number: int, line: int = 10, **more: Any) -> dict[str, Any]:
    source = ["before", f"line {line}", "after"]
    named = {"file": "/home/me/train.py", "line": line, "function": "train"}
    return {"event": "place", "id": number, **named, "source": source, "first_line": line - 1, **more}


def at(ms: float, number: int | None, since_ms: float | None = None) -> dict[str, Any]:
    since = {} if since_ms is None else {"since_ns": NOW + round(since_ms * MS)}
    return {"event": "at", "unix_ns": NOW + round(ms * MS), "id": number, **since}


def written(folder: Path, *lines: dict[str, Any] | str) -> Path:
    file = folder / "rank3.jsonl"
    file.write_text("".join((x if isinstance(x, str) else json.dumps(x)) + "\n" for x in lines))
    return file


def read(file: Path, first_ms: float = 0, last_ms: float = 1000) -> SampledLines:
    found = read_sampled_lines(file, NOW + round(first_ms * MS), NOW + round(last_ms * MS))
    assert found is not None
    return found.since(NOW)


def told(found: SampledLines, borders: list[float] | None = None) -> list[tuple[float, float, int | None]]:
    """(from, to, line) in milliseconds."""
    rows = found.stretches(np.array([round(b * MS) for b in borders or []], np.int64))
    lines = [*(x.line for x in found.places), None]
    return [(a / MS, b / MS, lines[p]) for a, b, p in zip(*(column.tolist() for column in rows), strict=True)]


MALFORMED = [
    "",
    "null",
    "[]",
    "{",
    '"at"',
    "{}",
    "[" * 100_000,
    '{"event": ' * 5000,
    '{"event": "at"}',
    '{"event": "at", "unix_ns": "soon", "id": 0}',
    '{"event": "at", "unix_ns": 1e400, "id": 0}',
    f'{{"event": "at", "unix_ns": {10**30}, "id": 0}}',
    '{"event": "at", "unix_ns": -5, "id": 0}',
    '{"event": "at", "unix_ns": NaN, "id": 0}',
    f'{{"event": "at", "unix_ns": {NOW + 500 * MS}, "id": true}}',
    f'{{"event": "at", "unix_ns": {NOW + 500 * MS}, "id": [0]}}',
    '{"event": "place", "id": 7, "file": 3, "line": 1, "function": "f"}',
    '{"event": "place", "file": "x", "line": 1, "function": "f"}',
    '{"event": "place", "id": 0, "file": "/other.py", "line": 99, "function": "again"}',
    '{"event": "place", "id": 8, "file": "\\ud800", "line": 1, "function": "f"}',
    f'{{"event": "place", "id": {10**30}, "file": "x", "line": 1, "function": "f"}}',
    f'{{"event": "place", "id": 9, "file": "x", "line": {10**30}, "function": "f"}}',
    '{"event": "place", "id": 9, "file": "x", "line": -1, "function": "f"}',
    '{"event": "start", "rank": "all", "hz": "many"}',
    '{"event": "start", "hz": -1}',
    '{"event": "start", "hz": 0}',
    '{"event": "end", "unix_ns": -1}',
    "x" * (2 * MOST_LINE_BYTES),
    "\x00\x1b[2J",
]


GOOD = (place(0), place(1, 20), at(100, 0, 80), at(150, 1, 130))
TIMELINES: dict[str, tuple[list[dict[str, Any] | str], list[float], list[tuple[float, float, int | None]]]] = {
    "each line is from between two looks until the next one": (
        [place(0), at(100, 0, 80), place(1, 20), at(140, 1, 120), at(200, None, 180), at(240, 0, 220)], [],
        [(90, 130, 10), (130, 190, 20), (190, 230, None), (230, 1000, 10)],
    ),
    "a border that lies between two looks ends a line": (
        [place(0), at(100, 0, 80), place(1, 20), at(140, 1, 120)], [125], [(90, 125, 10), (125, 1000, 20)]
    ),
    "between two borders that nobody saw no line is known": (
        [place(0), at(100, 0, 80), place(1, 20), at(140, 1, 120)], [125, 135], [(90, 125, 10), (135, 1000, 20)]
    ),
    "what takes long begins and ends with its line": (
        [place(0), place(1, 20), at(100, 0, 80), at(140, 1, 120), at(200, 0, 180)], [121, 199, 300],
        [(90, 121, 10), (121, 199, 20), (199, 1000, 10)],
    ),
    "without the time of the last look half a period is taken off": (
        [place(0), place(1, 20), at(100, 0), at(150, 1) | {"since_ns": 10**30}], [],
        [(90, 140, 10), (140, 1000, 20)],
    ),
    "a file that was cut counts until there": (
        [place(0), at(100, 0, 80), '{"event": "at", "unix_'], [], [(90, 1000, 10)]
    ),
    "a place that was never told is none": (
        [place(0), at(100, 0, 80), at(150, 10**30, 130)], [], [(90, 140, 10), (140, 1000, None)]
    ),
    "a clock that was set back changes nothing": (
        [place(0), place(1, 20), at(100, 0, 80), at(50, 1, 40), at(150, 1, 130)], [],
        [(90, 140, 10), (140, 1000, 20)],
    ),
    "after the end nothing is known": (
        [place(0), at(100, 0, 80), {"event": "end", "unix_ns": NOW + 300 * MS}], [], [(90, 300, 10)]
    ),
    **{
        f"a malformed line is left out: {line[:60]}": (
            [*GOOD[:2], line, GOOD[2], line, GOOD[3], line], [], [(90, 140, 10), (140, 1000, 20)]
        )
        for line in MALFORMED
    },
}  # fmt: skip


@pytest.mark.parametrize("name", TIMELINES)
def test_the_lines_of_a_file_are_stretches_of_time(tmp_path: Path, name: str) -> None:
    lines, borders, expected = TIMELINES[name]
    file = written(tmp_path, START, *lines)
    assert told(read(file), borders) == expected
    assert read_about(file) == (3, "node7", 42)


def test_a_line_that_kept_the_sampler_from_looking_has_the_whole_time(tmp_path: Path) -> None:
    looks = [at(100 + 20 * i, i % 2, 80 + 20 * i) for i in range(10)]
    file = written(tmp_path, START, place(0), place(1, 20), place(2, 30), *looks, at(700, 2, 280), at(720, 0, 700))
    assert (280, 710, 30) in told(read(file))


def test_only_the_span_is_read(tmp_path: Path) -> None:
    looks = [at(20 * i, i % 2, 20 * i - 20) for i in range(1, 5000)]
    file = written(tmp_path, START, place(0), place(1, 20), *looks, place(2, 30), at(100_001, 2))
    found = read(file, 50_000, 50_100)
    assert 4 <= len(found.line_number) <= 7
    assert [x.line for x in found.places] == [10, 20]
    assert read_sampled_lines(file, NOW - 10 * MS, NOW - 5 * MS) is None


def test_texts_are_of_bounded_length_and_steer_nothing(tmp_path: Path) -> None:
    hostile: dict[str, Any] = {
        "file": "/a\x1b[31m\n" + "b" * 100_00,
        "function": "\u202ef`",
        "source": ["\ty" * 300] * 20,
    }
    found = read(written(tmp_path, START, place(0, **hostile), at(100, 0))).places[0]
    assert "\x1b" not in found.file and "\n" not in found.file and len(found.file) <= 4096
    assert "\u202e" not in found.function
    assert len(found.source) == MOST_SOURCE_LINES and max(map(len, found.source)) <= MOST_SOURCE


def test_a_secret_in_the_source_is_masked(tmp_path: Path) -> None:
    source = ['login(token="hf_abcdefghijklmnop")', "password = 'correct horse'", "x = keys['sk-abcdefghijkl']"]
    found = read(written(tmp_path, START, place(0, source=source), at(100, 0))).places[0]
    assert found.source == ('login(token="***")', "password = '***'", "x = keys['***']")


def test_what_is_no_file_is_no_lines(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "missing", "."):
        assert read_sampled_lines(tmp_path / name, 0, NOW) is None
        assert read_about(tmp_path / name) is None
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "binary").write_bytes(os.urandom(10_000))
    for name in ("empty", "binary"):
        assert read_sampled_lines(tmp_path / name, 0, NOW) is None
        assert read_about(tmp_path / name) is None


def test_a_place_may_have_callers_of_which_damaged_ones_are_left_out(tmp_path: Path) -> None:
    callers = [["/home/me/train.py", 42, "main"], ["/home/me/train.py", -1, "bad"], ["/home/me/a\x1b.py", 7, "f"]]
    file = written(tmp_path, START, place(0, callers=callers * 9), at(100, 0, 80), place(1, callers=7), place(2))
    (known,) = read(file).places
    assert known.callers[0] == ("/home/me/train.py", 42, "main")
    assert [caller[1] for caller in known.callers[:3]] == [42, 7, 42] and "\x1b" not in known.callers[1][0]
    assert len(known.callers) <= 8
    assert read(written(tmp_path, START, place(0), at(100, 0, 80))).places[0].callers == ()
