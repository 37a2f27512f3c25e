"""The lines of a node's file of heartbeats, which harness/common/run_folder/heartbeats.py describes.

The files may be anybody's: a line that is damaged is left out."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Annotated, NamedTuple

import msgspec

from harness.common.paths import INSTALLED_EXERCISES
from harness.common.run_folder.heartbeats import Beat, live_folder
from harness.common.system.bounded_read import open_regular

MOST_NODES = 4096
ENDS_BYTES = 1 << 17
Number = Annotated[int, msgspec.Meta(ge=0, lt=1 << 40)]
Time = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
Step = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
_INSTALLED = ("site-packages", "dist-packages", f"{os.sep}lib{os.sep}python3", f"{os.sep}lib64{os.sep}python3")
DAMAGED = (msgspec.MsgspecError, ValueError, RecursionError)


class ProgramLine(NamedTuple):
    """A line of the user's program, in which a rank is."""

    file: str
    line: Number
    function: str

    @property
    def short(self) -> str:
        """The file's name, the line and the function."""
        return f"{PurePath(self.file).name}:{self.line} {self.function}"


class _MonitorLine(msgspec.Struct, kw_only=True, tag_field="event"):
    unix_ns: Time = 0


class NodeLine(_MonitorLine, tag="node"):
    node: int | None = None
    host: str = ""


class RankHeader(_MonitorLine, tag="rank"):
    rank: int
    world: int | None = None
    pid: int | None = None
    steps: Step | None = None
    attempt: int | None = None


class PlaceLine(_MonitorLine, tag="place"):
    id: int
    file: str
    line: Number
    function: str


class BeatLine(_MonitorLine, tag="beat"):
    ranks: list[Beat]
    samples: float | None = None
    tokens: float | None = None


class Error(msgspec.Struct):
    type: str = ""
    message: str = ""
    place: ProgramLine | None = None
    unix_ns: Time = 0


class GoneLine(_MonitorLine, tag="gone"):
    rank: int
    pid: int = 0
    attempt: int | None = None
    step: Step | None = None
    place: ProgramLine | None = None
    ended: bool = False
    oom: str | None = None
    error: Error | None = None
    host_bytes: Time | None = None
    beside_bytes: Time | None = None


class LossLine(_MonitorLine, tag="loss"):
    rank: int
    step: Step
    loss: str
    weights: bool | None = None


class MonitorEnd(_MonitorLine, tag="end"):
    """The node's monitor has ended."""


Line = NodeLine | RankHeader | PlaceLine | BeatLine | GoneLine | LossLine | MonitorEnd
_decoder = msgspec.json.Decoder(Line)


def decoded(text: bytes) -> Iterator[Line]:
    """The lines of a text that are whole."""
    try:
        yield from _decoder.decode_lines(text)
        return
    except DAMAGED:
        pass
    for line in text.split(b"\n"):
        try:
            yield _decoder.decode(line)
        except DAMAGED:
            continue


def is_users(file: str) -> bool:
    """Whether a file of another Python is no installed package, of its standard library, of a fault or of marks."""
    ours = (f"{os.sep}exercises{os.sep}utils{os.sep}faults{os.sep}", f"exercise_3_MegatronLM{os.sep}hooks.py")
    installed = _INSTALLED if INSTALLED_EXERCISES not in file else ()
    return not file.startswith("<") and not any(part in file for part in (*installed, *ours))


def node_files(run: Path) -> list[Path]:
    """The files of a run's nodes; none where they cannot be listed."""
    try:
        return sorted(live_folder(run).glob("[!.]*.jsonl"))[:MOST_NODES]
    except OSError:
        return []


def both_ends(path: Path) -> Iterator[Line]:
    """The lines at both ends of a file: ranks begin at its beginning. Raises OSError, BoundedReadError: it is no file
    that may be read."""
    return decoded(text_of_ends(path))


def text_of_ends(path: Path) -> bytes:
    """The text at both ends of a file, all of a short one. Raises as `both_ends`."""
    with open_regular(path) as file:
        text = file.read(ENDS_BYTES)
        if (size := file.seek(0, 2)) > ENDS_BYTES:
            file.seek(max(ENDS_BYTES, size - ENDS_BYTES))
            text += b"\n" + file.read(ENDS_BYTES)
    return text
