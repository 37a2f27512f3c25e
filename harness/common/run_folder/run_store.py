"""How a file of a run is named, read and limited. The table of all files is in `harness.common.run_folder.run_files`.

A type is given beside its class, in the room that has it: `RECORD_FILE = RECORD.holding(decode)`. What cannot be read
gives one sentence, which names the file and says why. Standard library only, Python 3.8: a training's processes take
names from the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from harness.common.errors import WorkError
from harness.common.system.bounded_read import (
    MOST_BYTES,
    MOST_LINE_BYTES,
    BoundedReadError,
    parse_json,
    read_bounded_text,
    read_end,
    read_lines,
    why_unread,
)

Content = TypeVar("Content")
Other = TypeVar("Other")


class UnreadFileError(WorkError):
    """A file of a run that was not read. reason: why, without the file's name. is_missing: there is none. is_damaged:
    it was read, and its content is not what it should be."""

    def __init__(self, path: Path, error: OSError | ValueError, is_damaged: bool = False) -> None:
        self.reason = why_unread(error)
        self.is_missing, self.is_damaged = isinstance(error, FileNotFoundError), is_damaged
        super().__init__(f"{path} cannot be read: {self.reason}")


def as_text(text: str) -> str:
    """The content of a file that has no type: its text."""
    return text


def _only_read(content: object) -> str:
    raise TypeError(f"this form of the file is not for writing: {type(content).__name__}")


def as_object(text: str) -> dict[str, Any]:
    """The JSON object of a text. Raises BoundedReadError: it has none."""
    value = parse_json(text)
    if not isinstance(value, dict):
        raise BoundedReadError("is no JSON object")
    return value


class RunFile(Generic[Content]):
    """A file of a run, or all of a kind.

    name: in the folder `kept_in`: the run's own, that of its logs, or that of the logs of all runs; `*` stands for the
    rank, node or number.
    form: as a user sees it. purpose, writers and readers: one line each, for people. decode: makes its content of its
    text, and raises ValueError, with one line, for what is none; encode: its text of its content. most_bytes: a longer
    file is not read as a whole.
    """

    # No dataclass: in each process of a training its import would take longer than this whole module.
    def __init__(
        self,
        name: str,
        form: str,
        purpose: str,
        writers: str,
        readers: str,
        *,
        decode: Callable[[str], Content] = as_text,  # type: ignore[assignment]  # of an entry of the table
        encode: Callable[[Content], str] = as_text,  # type: ignore[assignment]
        most_bytes: int = MOST_BYTES,
        kept_in: Literal["run", "log", "logs"] = "run",
    ) -> None:
        self.name, self.form, self.purpose, self.writers, self.readers = name, form, purpose, writers, readers
        self.decode, self.encode, self.most_bytes, self.kept_in = decode, encode, most_bytes, kept_in

    def holding(self, decode: Callable[[str], Other], encode: Callable[[Other], str] | None = None) -> RunFile[Other]:
        """The same file with its content's type. encode: None: in this form it is only read."""
        file: RunFile[Any] = copy(self)
        file.decode, file.encode = decode, encode or _only_read
        return file

    @property
    def as_json(self) -> RunFile[dict[str, Any]]:
        """The same file as a JSON object of any content."""
        return self.holding(as_object)

    def limited(self, most_bytes: int) -> RunFile[Content]:
        """The same file for a reader that has no time for more bytes."""
        file = copy(self)
        file.most_bytes = most_bytes
        return file

    @property
    def base(self) -> str:
        """Its name without folders."""
        return self.name.rpartition("/")[2]

    def path(self, folder: Path, member: int | str = "") -> Path:
        """Where it is. member: of a kind, the rank, node or number."""
        return folder / self.name.replace("*", str(member))

    def folder(self, run: Path) -> Path:
        """The folder that it is in, in a run; of a kind, the one with all of them."""
        return (run / self.name).parent

    def paths(self, folder: Path) -> list[Path]:
        """Those of the kind that there are, by name."""
        return sorted(folder.glob(self.name))

    def read(self, path: Path) -> Content:
        """The content. Raises UnreadFileError: it is missing or damaged, may not be read, or is too large."""
        try:
            text = read_bounded_text(path, self.most_bytes)
        except (OSError, BoundedReadError) as error:
            raise UnreadFileError(path, error) from None
        try:
            return self.decode(text)
        except RecursionError:
            raise UnreadFileError(path, BoundedReadError("is nested too deeply"), is_damaged=True) from None
        except ValueError as error:
            raise UnreadFileError(path, error, is_damaged=True) from None

    def known(self, path: Path) -> Content | None:
        """The content; None where `read` raises."""
        try:
            return self.read(path)
        except UnreadFileError:
            return None

    def lines(self, path: Path, most_bytes: int = MOST_LINE_BYTES) -> Iterator[str]:
        """Its lines, one at a time, of each at most so many bytes. Raises UnreadFileError as `read`, for a line without
        end in place of a large file."""
        try:
            yield from read_lines(path, most_bytes)
        except (OSError, BoundedReadError) as error:
            raise UnreadFileError(path, error) from None

    def known_lines(self, path: Path, most_bytes: int = MOST_LINE_BYTES) -> Iterator[str]:
        """The same up to where it cannot be read; none of a missing file."""
        try:
            yield from read_lines(path, most_bytes)
        except (OSError, BoundedReadError):
            return

    def objects(self, path: Path) -> Iterator[dict[str, Any]]:
        """The objects of a file of JSON lines; a line that is not one, as a last line that was cut short, is left out.
        Raises UnreadFileError as `lines`."""
        return _objects(self.lines(path))

    def known_objects(self, path: Path) -> Iterator[dict[str, Any]]:
        """The same up to where it cannot be read; none of a missing file."""
        return _objects(self.known_lines(path))

    def end(self, path: Path, most_bytes: int) -> bytes:
        """Its last bytes, at most so many; empty where it cannot be read."""
        try:
            return read_end(path, most_bytes)
        except (OSError, BoundedReadError):
            return b""

    def end_text(self, path: Path, most_bytes: int) -> str:
        """The same as text: bytes that are not UTF-8 become �."""
        return self.end(path, most_bytes).decode("utf-8", "replace")


def _objects(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        try:
            yield as_object(line)
        except BoundedReadError:
            continue
