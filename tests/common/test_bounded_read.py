"""The one reader of small files: what is no regular file, too long or too deep is one sentence, never a wait."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from harness.common.bounded_read import (
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


def test_it_reads_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"a": [1, "ü"]}', encoding="utf-8")
    assert read_bounded_json(tmp_path / "a.json") == {"a": [1, "ü"]}


@pytest.mark.parametrize("kind", ["folder", "pipe", "device"])
def test_what_is_no_file_is_said_at_once(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "run.json"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path = Path("/dev/zero")
    with pytest.raises(BoundedReadError, match=f"is a {kind}, not a file"):
        read_bounded(path)


def test_a_socket_is_an_os_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind("status.json")
        with pytest.raises(OSError, match=r"status\.json"):
            read_bounded(tmp_path / "status.json")


def test_a_file_longer_than_its_kind_is_not_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # sparse
    with pytest.raises(BoundedReadError, match="longer than 1 MiB"):
        read_bounded(path, 1 << 20)


@pytest.mark.parametrize("depth", [MOST_DEPTH + 1, 900, 100_000])
@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_deep_json_is_refused_however_deep(depth: int, opening: str) -> None:
    closing = "]" if opening == "[" else "}"
    with pytest.raises(BoundedReadError, match="deep"):
        parse_json(opening * depth + "1" + closing * depth)


def test_the_deepest_allowed_is_read() -> None:
    assert parse_json("[" * MOST_DEPTH + "]" * MOST_DEPTH)


@pytest.mark.parametrize("text", ["", "{", '{"a": 1}}', '"' + "9" * 5000, "9" * 5000])
def test_what_is_not_json_is_one_sentence(text: str) -> None:
    with pytest.raises(BoundedReadError, match="not JSON") as raised:
        parse_json(text)
    assert "\n" not in str(raised.value)


def test_a_missing_file_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_bounded(tmp_path / "none")


@pytest.mark.parametrize("text", ['"\\ud800"', '{"\\uDFFF": 1}', '["\\ud83d", "\\ude00"]'])
def test_half_a_character_is_refused_where_it_is_read(text: str) -> None:
    with pytest.raises(BoundedReadError, match="half a character"):
        parse_json(text)


def test_a_character_in_two_halves_that_belong_together_is_read() -> None:
    assert parse_json('"\\ud83d\\ude00"') == "😀"


def test_a_diverged_training_may_write_nan() -> None:
    assert parse_json('{"loss": NaN}')["loss"] != parse_json('{"loss": NaN}')["loss"]


def test_text_that_is_not_utf_8_is_one_sentence_or_replaced(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"a\xff")
    with pytest.raises(BoundedReadError, match="is not text in UTF-8"):
        read_bounded_text(tmp_path / "a")
    assert read_bounded_text(tmp_path / "a", errors="replace") == "a\ufffd"


def test_lines_come_one_by_one_and_a_long_one_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "rank0.jsonl"
    path.write_bytes(b"first\n\n" + b"x" * 100 + b"\r\n\xff\x00\nlast, unfinished")
    assert list(read_lines(path, 30)) == ["first", "", "x" * 30, "\ufffd\0", "last, unfinished"]


def test_a_line_without_end_ends_the_reading(tmp_path: Path) -> None:
    path = tmp_path / "rank0.jsonl"
    path.write_bytes(b"first\n")
    with path.open("ab") as file:
        file.truncate(1 << 40)  # sparse
    lines = read_lines(path, 1 << 10)
    assert next(lines) == "first"
    with pytest.raises(BoundedReadError, match="has a line of more than 64 KiB"):
        next(lines)


def test_the_end_of_a_file_is_read_however_long_it_is(tmp_path: Path) -> None:
    path = tmp_path / "log.err"
    with path.open("wb") as file:
        file.truncate(1 << 40)
        file.seek(1 << 40)
        file.write(b"the end")
    assert read_end(path, 7) == b"the end"
    assert read_end(path, 8) == b"\0the end"


def test_why_a_reading_failed_is_one_line_without_the_name(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as missing:
        read_bounded(tmp_path / "none")
    assert why_unread(missing.value) == "No such file or directory"
    assert why_unread(ValueError("one\ntwo")) == "one"
    assert why_unread(ValueError()) == "it is damaged"
