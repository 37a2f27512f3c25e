"""The one reader of small files: what is no regular file, too long or too deep is one sentence, never a wait."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from harness.common.system.bounded_read import (
    MOST_DEPTH,
    BoundedReadError,
    parse_json,
    read_bounded,
    read_bounded_json,
    read_bounded_text,
    read_end,
    read_lines,
    why_unread,
)


def made(folder: Path, kind: str) -> Path:
    """Something that is no file to read."""
    path = folder / kind
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "endless":
        with path.open("wb") as file:
            file.truncate(1 << 40)  # sparse
    elif kind == "no text":
        path.write_bytes(b"a\xff")
    return Path("/dev/zero") if kind == "device" else path


@pytest.mark.parametrize(
    ("kind", "error", "sentence"),
    [
        ("folder", BoundedReadError, "is a folder, not a file"),
        ("pipe", BoundedReadError, "is a pipe, not a file"),
        ("device", BoundedReadError, "is a device, not a file"),
        ("endless", BoundedReadError, "longer than 1 MiB"),
        ("no text", BoundedReadError, "is not text in UTF-8"),
        ("none", FileNotFoundError, "No such file"),
    ],
)
def test_what_cannot_be_read_is_said_at_once(tmp_path: Path, kind: str, error: type[Exception], sentence: str) -> None:
    path = made(tmp_path, kind)
    with pytest.raises(error, match=sentence):
        (read_bounded_text if kind == "no text" else read_bounded)(path, most_bytes=1 << 20)


def test_a_socket_is_an_os_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind("status.json")
        with pytest.raises(OSError, match=r"status\.json"):
            read_bounded(tmp_path / "status.json")


DEEP = (MOST_DEPTH + 1, 900, 100_000)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        *[("[" * depth + "1" + "]" * depth, "deep") for depth in DEEP],
        *[('{"a":' * depth + "1" + "}" * depth, "deep") for depth in DEEP],
        *[(text, "not JSON") for text in ("", "{", '{"a": 1}}', '"' + "9" * 5000, "9" * 5000)],
        *[(text, "half a character") for text in ('"\\ud800"', '{"\\uDFFF": 1}', '["\\ud83d", "\\ude00"]')],
    ],
    ids=lambda text: text[:20],
)
def test_json_that_no_file_of_ours_has_is_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(BoundedReadError, match=sentence) as raised:
        parse_json(text)
    assert "\n" not in str(raised.value)


def test_what_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"a": [1, "ü"]}', encoding="utf-8")
    assert read_bounded_json(tmp_path / "a.json") == {"a": [1, "ü"]}
    assert parse_json("[" * MOST_DEPTH + "]" * MOST_DEPTH), "the deepest that is allowed"
    assert parse_json('"\\ud83d\\ude00"') == "😀", "two halves that belong together"
    assert str(parse_json('{"loss": NaN}')["loss"]) == "nan", "a diverged training may write it"
    (tmp_path / "a").write_bytes(b"a\xff")
    assert read_bounded_text(tmp_path / "a", errors="replace") == "a\ufffd"


def test_lines_come_one_by_one_a_long_one_is_cut_and_one_without_end_ends_the_reading(tmp_path: Path) -> None:
    path = tmp_path / "rank0.jsonl"
    path.write_bytes(b"first\n\n" + b"x" * 100 + b"\r\n\xff\x00\nlast, unfinished")
    assert list(read_lines(path, 30)) == ["first", "", "x" * 30, "\ufffd\0", "last, unfinished"]
    lines = read_lines(made(tmp_path, "endless"), 1 << 10)
    with pytest.raises(BoundedReadError, match="has a line of more than 64 KiB"):
        next(lines)


def test_the_end_of_a_file_is_read_however_long_it_is(tmp_path: Path) -> None:
    path = made(tmp_path, "endless")
    with path.open("r+b") as file:
        file.seek(1 << 40)
        file.write(b"the end")
    assert (read_end(path, 7), read_end(path, 8)) == (b"the end", b"\0the end")


def test_why_a_reading_failed_is_one_line_without_the_name() -> None:
    errors: tuple[OSError | ValueError, ...] = (
        FileNotFoundError(2, "No such file or directory", "x"),
        ValueError("one\ntwo"),
        ValueError(),
    )
    assert [why_unread(each) for each in errors] == ["No such file or directory", "one", "it is damaged"]
