"""The answer for a run that is or was stuck, `live/stuck.json`, as the guard writes it and everybody reads it; and who
waits for whom.
"""

from __future__ import annotations

import json
import linecache
from collections.abc import Sequence
from datetime import datetime
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from harness.common.display.format import span
from harness.common.paths import INSTALLED_EXERCISES
from harness.common.run_folder.heartbeats import Evidence
from harness.common.run_folder.run_files import HANG
from harness.common.run_folder.run_store import as_object
from harness.common.system.bounded_read import BoundedReadError
from harness.common.system.files import write_whole_text
from harness.heartbeats.lines import ProgramLine, Time

LOADS = "torch/utils/data/dataloader.py"
FOR_LOCK = "waiting for a lock"
_DISTRIBUTED = "torch/distributed/"
_ENGINE = ("torch/autograd/graph.py", "torch/autograd/__init__.py")
# What a line of the user's own does when it waits for a collective that was begun before.
_WAITS = (".wait(", ".item(", ".cpu(", ".synchronize(", ".tolist(", ".result(", ".value(")
_NO_GROUP: dict[str, Any] = {"ranks": (), "last": 0}
_INSTALLED = ("/site-packages/", "/dist-packages/")


class Hang(NamedTuple):
    """Who is stuck where. kind: the cause, a key of `ADVICE` in stuck.py. ranks: those that cause it; waiting: those
    that wait for them.

    since_ns: unix time of the last progress of any rank. place: file, line and function of the first of `ranks`.
    lines: one for each rank, where it is. found_ns: when it was found; until_ns: until when it held, None: to the end.
    stops: the job is ended.
    """

    kind: str
    ranks: tuple[int, ...]
    waiting: tuple[int, ...]
    step: int
    since_ns: Time
    place: ProgramLine | None
    sentence: str
    advice: str
    lines: tuple[str, ...]
    found_ns: Time = 0
    until_ns: Time | None = None
    stops: bool = False

    def now(self, now_ns: int) -> str:
        """The finding as a sentence, at a moment."""
        return f"Stuck for {span((now_ns - self.since_ns) / 1e9)} {self.sentence}"

    @property
    def since_clock(self) -> str:
        """The finding as a sentence that stays true."""
        at = datetime.fromtimestamp(self.since_ns / 1e9).strftime("%H:%M:%S")
        return f"stuck since {at} {self.sentence}"

    def told(self, now_ns: int) -> list[str]:
        """The finding with what to try, and a line for each rank."""
        return [f"warning: {self.now(now_ns)}", f"  try: {self.advice}", *(f"  {line}" for line in self.lines)]


def hang_file(run: Path) -> Path:
    """Where the answer is; it does not exist if the run was never stuck."""
    return HANG.path(run)


def write_hang(run: Path, hang: Hang) -> None:
    """Write the answer. Raises OSError."""
    text = json.dumps(hang._asdict(), indent=1) + "\n"
    write_whole_text(hang_file(run), text)


def read_hang(run: Path) -> Hang | None:
    """The answer; None: the run was never stuck, or the file is damaged."""
    return HANG.holding(_hang).known(hang_file(run))


def _hang(text: str) -> Hang:
    content = as_object(text)
    if missing := {*Hang._fields} - {*content}:
        raise BoundedReadError(f"has no {min(missing)}")
    return msgspec.convert([content[name] for name in Hang._fields], Hang)


class Wait(NamedTuple):
    """A collective or message that a rank has begun and that does not end. members: the ranks of its group."""

    op: str
    group: str
    members: tuple[int, ...]
    seq: int
    sizes: str
    code_line: ProgramLine | None
    p2p: bool = False
    peer: int | None = None


def waits_for_ranks(rank: Evidence) -> Wait | None:
    """What the rank waits in, if that is for other ranks; None: it waits for something else, or for nothing."""
    frames = rank.threads.get("main", [])
    if rank.computes and not rank.collectives:
        return None
    if rank.call and rank.call["p2p"]:
        return _of_call(rank.call, rank, frames)
    if rank.collectives and frames and _blocked_in_collective(frames[0], rank):
        return _recorded(rank, frames)
    if rank.call and frames and _DISTRIBUTED in frames[0][0]:
        return _of_call(rank.call, rank, frames)
    return None


def _blocked_in_collective(innermost: Sequence[Any], rank: Evidence) -> bool:
    """Whether the innermost frame is one that waits for collectives."""
    file, line, *_ = innermost
    if _DISTRIBUTED in file or file.endswith(_ENGINE):
        return rank.state not in "Tt"
    installed = any(part in file for part in _INSTALLED) and INSTALLED_EXERCISES not in file
    if rank.waits_in.startswith(FOR_LOCK) and installed and LOADS not in file:
        return True  # a library waits in C++, as DeepSpeed does for parameters
    return any(word in linecache.getline(file, line) for word in _WAITS)


def _recorded(rank: Evidence, frames: Sequence[Sequence[Any]]) -> Wait:
    first = min(rank.collectives, key=itemgetter("unix_ns"))
    line = ProgramLine(*first["line"]) if first["line"] else users_place(frames)
    members, sizes = tuple(first["ranks"]), _sizes(first["sizes"])
    return Wait(first["op"], first["group"], members, first["seq"], sizes, line, p2p=first["p2p"])


def _of_call(call: dict[str, Any], rank: Evidence, frames: Sequence[Sequence[Any]]) -> Wait:
    name, group = next(iter(rank.groups.items()), ("0", _NO_GROUP))
    members, sizes, line = tuple(group["ranks"]), _sizes(call["sizes"]), users_place(frames)
    return Wait(call["op"], name, members, group["last"], sizes, line, p2p=call["p2p"], peer=call["peer"])


def users_place(frames: Sequence[Sequence[Any]]) -> ProgramLine | None:
    """The innermost of these frames that is the user's."""
    return next((ProgramLine(*frame[:3]) for frame in frames if frame[3]), None)


def place_of(rank: Evidence) -> ProgramLine | None:
    """The user's line that the main thread is in; where its stack is not known, the last one that was seen."""
    return users_place(rank.threads.get("main", [])) or (ProgramLine(*rank.place) if rank.place else None)


def _sizes(sizes: list[list[int]]) -> str:
    """Sizes of tensors, as "7 × 4 elements".

    >>> _sizes([[7, 4], [2]])
    '7 × 4 and 2 elements'
    >>> _sizes([[1]])
    '1 element'
    """
    if not sizes:
        return ""
    shown = [" × ".join(map(str, size)) or "1" for size in sizes[:2]]
    elements = "element" if shown == ["1"] else "elements"
    return f"{' and '.join(shown)} {elements}{', …' * (len(sizes) > 2)}"
