"""The answer for a run that is or was stuck, `live/stuck.json`: as the guard writes it, and as everybody reads it."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from harness.common.bounded_read import BoundedReadError, read_bounded_json, read_bounded_text
from harness.common.heartbeats import live_folder
from harness.common.mystery import LINES_BLOCK, seal, unseal
from harness.live.text import span


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
    since_ns: int
    place: tuple[str, int, str] | None
    sentence: str
    advice: str
    lines: tuple[str, ...]
    found_ns: int = 0
    until_ns: int | None = None
    stops: bool = False

    def now(self, now_ns: int) -> str:
        """The finding as a sentence, at a moment."""
        return f"Stuck for {span((now_ns - self.since_ns) / 1e9)} {self.sentence}"

    def without_cause(self, run: str) -> Hang:
        """What a mystery shows: since when, and where each rank is. run: its name, for the command that answers."""
        return self._replace(
            kind="mystery",
            ranks=(),
            waiting=(),
            place=None,
            sentence=f"in step {self.step}; the cause is hidden, because this run is a mystery",
            advice=f"look where each rank is, then: slurm.sh mystery answer {run} --cause … --rank … --step …",
        )

    @property
    def since_clock(self) -> str:
        """The finding as a sentence that stays true."""
        at = datetime.fromtimestamp(self.since_ns / 1e9).strftime("%H:%M:%S")
        return f"stuck since {at} {self.sentence}"

    def told(self, now_ns: int) -> list[str]:
        """The finding with what to try, and a line for each rank."""
        return [
            f"warning: {self.now(now_ns)}",
            f"  try: {self.advice}",
            *(f"  {line}" for line in self.lines),
        ]


def hang_file(run: Path) -> Path:
    """Where the answer is; it does not exist if the run was never stuck."""
    return live_folder(run) / "stuck.json"


def write_hang(run: Path, hang: Hang, hidden: bool = False) -> None:
    """Write the answer. hidden: the run is a mystery, so the cause is sealed. Raises OSError."""
    if hidden:
        _write(_sealed_file(run), seal(_text(hang).encode(), os.urandom(16), LINES_BLOCK))
    _write(hang_file(run), _text(hang.without_cause(run.name) if hidden else hang))


def reveal_hang(run: Path) -> None:
    """Write the answer of a mystery's run with the cause, if it was stuck. Raises OSError."""
    with suppress(ValueError, FileNotFoundError, BoundedReadError):  # it was changed, or never stuck
        _write(hang_file(run), unseal(read_bounded_text(_sealed_file(run))).decode())


def _sealed_file(run: Path) -> Path:
    return hang_file(run).with_suffix(".sealed")


def _text(hang: Hang) -> str:
    return json.dumps(hang._asdict(), indent=1) + "\n"


def _write(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def read_hang(run: Path) -> Hang | None:
    """The answer; None: the run was never stuck, or the file is damaged."""
    try:
        found = read_bounded_json(hang_file(run))
        return _checked(found) if isinstance(found, dict) else None
    except (OSError, ValueError, TypeError, KeyError, BoundedReadError):
        return None


def _checked(found: dict[str, Any]) -> Hang:
    place = found["place"]
    return Hang(
        kind=str(found["kind"]),
        ranks=tuple(int(rank) for rank in found["ranks"]),
        waiting=tuple(int(rank) for rank in found["waiting"]),
        step=int(found["step"]),
        since_ns=_time(found["since_ns"]),
        place=None if place is None else (str(place[0]), int(place[1]), str(place[2])),
        sentence=str(found["sentence"]),
        advice=str(found["advice"]),
        lines=tuple(map(str, found["lines"])),
        found_ns=_time(found["found_ns"]),
        until_ns=None if found["until_ns"] is None else _time(found["until_ns"]),
        stops=bool(found["stops"]),
    )


def _time(value: Any) -> int:
    if not isinstance(value, int) or not 0 <= value < 1 << 62:
        raise ValueError(f"no time: {value!r}")
    return value
