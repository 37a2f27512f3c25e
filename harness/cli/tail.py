"""A file's new text as it comes, without lines that only a tracing tool reads. Knows no run."""

from __future__ import annotations

import codecs
import re
from pathlib import Path
from typing import TextIO

# PyTorch's profiler marks its start and its stop so on stderr. KINETO_LOG_LEVEL is a threshold and these marks stand
# highest: what hides them hides the profiler's errors as well. So they stay in the log and are left out here.
_MARK = rb"USDT:\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \d+:\d+ \w+\.cpp:\d+\] profiler_(?:start|stop)"
_MARKS = re.compile(
    rb"((?:" + _MARK + rb"\n?)+)(\n*)"
)  # ranks write at once: line ends may follow all of them
_UNFINISHED = re.compile(rb"USDT:[^\n]{0,200}\Z")


class Tail:
    """New text of a file since the last look; the file may not exist yet."""

    def __init__(self, path: Path, out: TextIO) -> None:
        self.path, self._out, self._position = path, out, 0
        self._held = b""
        # A look may end within a character, whose other bytes the next one finds.
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def pump(self, last: bool = False) -> None:
        """Write what is new; `last`: nothing will follow, so nothing is held back."""
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
    """The end of the text where it may become a mark, or where a mark's line end is still to come."""
    begun = _UNFINISHED.search(text)
    marks = [
        m for m in _MARKS.finditer(text) if m.end() == len(text) and m[0].count(b"\n") < m[0].count(b"USDT:")
    ]
    starts = [m.start() for m in (begun, *marks) if m]
    return text[min(starts) :] if starts else b""


def _without(found: re.Match[bytes]) -> bytes:
    """What stays of marks and the line ends after them: the line ends that are not theirs."""
    theirs = found[1].count(b"USDT:") - found[1].count(b"\n")
    return found[2][theirs:]
