"""The one reader of small files: what is no regular file, too long or too deep is one sentence, never a wait."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from harness.common.small_file import MOST_DEPTH, SmallFileError, parse_json, read_small, read_small_json


def test_it_reads_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"a": [1, "ü"]}', encoding="utf-8")
    assert read_small_json(tmp_path / "a.json") == {"a": [1, "ü"]}


@pytest.mark.parametrize("kind", ["folder", "pipe", "device"])
def test_what_is_no_file_is_said_at_once(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "run.json"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path = Path("/dev/zero")
    with pytest.raises(SmallFileError, match=f"is a {kind}, not a file"):
        read_small(path)


def test_a_socket_is_an_os_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind("status.json")
        with pytest.raises(OSError, match=r"status\.json"):
            read_small(tmp_path / "status.json")


def test_a_file_longer_than_its_kind_is_not_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # sparse
    with pytest.raises(SmallFileError, match="longer than 1 MiB"):
        read_small(path, 1 << 20)


@pytest.mark.parametrize("depth", [MOST_DEPTH + 1, 900, 100_000])
@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_deep_json_is_refused_however_deep(depth: int, opening: str) -> None:
    closing = "]" if opening == "[" else "}"
    with pytest.raises(SmallFileError, match="deep"):
        parse_json(opening * depth + "1" + closing * depth)


def test_the_deepest_allowed_is_read() -> None:
    assert parse_json("[" * MOST_DEPTH + "]" * MOST_DEPTH)


@pytest.mark.parametrize("text", ["", "{", '{"a": 1}}', '"' + "9" * 5000, "9" * 5000])
def test_what_is_not_json_is_one_sentence(text: str) -> None:
    with pytest.raises(SmallFileError, match="not JSON") as raised:
        parse_json(text)
    assert "\n" not in str(raised.value)


def test_a_missing_file_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_small(tmp_path / "none")
