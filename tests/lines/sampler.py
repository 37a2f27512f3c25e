"""A sampler of the main thread's lines, as a rank's observer writes them. Standard library only."""

from __future__ import annotations

import json
import linecache
import os
import socket
import sys
import sysconfig
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

_OTHERS = (
    *{sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")},
    "<",
    __file__,
)
Place = tuple[str, int, str]


def own_line(frame: FrameType | None) -> Place | None:
    """The innermost frame that is neither the standard library's nor an installed package's."""
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(_OTHERS) and "site-packages" not in name:
            return name, frame.f_lineno, frame.f_code.co_name
        frame = frame.f_back
    return None


class LineSampler:
    """Writes `lines/rank<R>.jsonl` of a run until it is closed."""

    def __init__(self, run: Path, rank: int, hz: int = 50) -> None:
        path = run / "lines" / f"rank{rank}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("w")
        self.hz = hz
        self._numbers: dict[Place, int] = {}
        self._last: Place | None = None
        self._main = threading.main_thread().ident
        self._end = threading.Event()
        start = {"event": "start", "rank": rank, "host": socket.gethostname(), "pid": os.getpid(), "hz": hz}
        self._write(start | {"unix_ns": time.time_ns()})
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """The last line, and the end of the file."""
        self._end.set()
        self._thread.join()
        self._write({"event": "end", "unix_ns": time.time_ns()})
        self._file.close()

    def _sample(self) -> None:
        first = True
        while not self._end.wait(1 / self.hz):
            now, at = time.time_ns(), own_line(sys._current_frames().get(self._main or 0))
            if first or at != self._last:
                number = None if at is None else self._number(at)
                self._write({"event": "at", "unix_ns": now, "id": number})
            first, self._last = False, at

    def _number(self, at: Place) -> int:
        if at not in self._numbers:
            self._numbers[at] = len(self._numbers)
            file, line, function = at
            around = [linecache.getline(file, number).rstrip("\n") for number in (line - 1, line, line + 1)]
            place: dict[str, Any] = {"event": "place", "id": self._numbers[at], "file": file, "line": line}
            self._write(place | {"function": function, "source": around, "first_line": line - 1})
        return self._numbers[at]

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
