"""The new text of a growing file, without lines that only a tracing tool reads. Knows no run."""

from __future__ import annotations

import codecs
import re
from pathlib import Path
from typing import TextIO

# PyTorch's profiler writes these marks to stderr when it starts and stops. A KINETO_LOG_LEVEL that hides them also
# hides the profiler's errors, as the marks have the highest level. So they stay in the log and are left out here.
_MARK = rb"USDT:\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \d+:\d+ \w+\.cpp:\d+\] profiler_(?:start|stop)"
# Ranks write at the same time: the line ends may follow all of the marks.
_MARKS = re.compile(rb"((?:" + _MARK + rb"\n?)+)(\n*)")
_UNFINISHED = re.compile(rb"USDT:[^\n]{0,200}\Z")


class Tail:
    """The text that was added to a file since the last read; the file may not exist yet."""

    def __init__(self, path: Path, out: TextIO) -> None:
        self.path, self._out, self._position = path, out, 0
        self._held = b""
        # A read may end within a character; the next read gets its other bytes.
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def pump(self, last: bool = False) -> None:
        """Write the new text; `last`: no more text follows, so nothing is held back."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._position)
                new = file.read()
        except OSError:
            return
        self._position += len(new)
        text = self._held + new
        self._held = b"" if last else _unfinished(text)
        shown = _MARKS.sub(_without, text[: len(text) - len(self._held)])
        self._out.write(self._decoder.decode(shown, final=last))
        self._out.flush()


def _unfinished(text: bytes) -> bytes:
    """The end of the text that may become a mark, or a mark whose line end has not come yet."""
    begun = _UNFINISHED.search(text)
    last = [m for m in _MARKS.finditer(text) if m.end() == len(text)]
    marks = [m for m in last if m[0].count(b"\n") < m[0].count(b"USDT:")]
    starts = [m.start() for m in (begun, *marks) if m]
    return text[min(starts) :] if starts else b""


def _without(found: re.Match[bytes]) -> bytes:
    """Marks and the line ends after them are replaced by the line ends that are not theirs."""
    theirs = found[1].count(b"USDT:") - found[1].count(b"\n")
    return found[2][theirs:]
