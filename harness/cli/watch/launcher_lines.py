"""Lines that PyTorch and its launcher write about themselves, taken out of a run's output while it streams."""

from __future__ import annotations

import re
from collections import deque
from typing import NamedTuple

MOST_LINES = 60  # that are kept
_LONGEST = 1 << 16  # text that is longer and has no end yet is the program's own

_TIME = rb"\d{4} \d\d:\d\d:\d\d\.\d{3,9} "
_OF_CPP = _TIME + rb"[\w./-]+\.[chp]+:\d+\] "
_OF_LAUNCHER = _TIME + rb"\d+ torch/distributed/[\w/]+\.py:\d+\]"
_BEFORE_2_3 = rb"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}\] torch\.distributed\.[\w.]+: "
_PATH = rb"[^]\s:]{1,300}"
_BARRIER = rb"Error waiting on exit barrier\. "


def _line(*beginnings: bytes) -> bytes:
    """The pattern of a line that begins like one of these, or has its rank before that; without any, of no line."""
    return rb"(?:\[rank\d{1,6}\]: ?)?(?:%s)" % (b"|".join(beginnings) or rb"(?!)")


class LineKind(NamedTuple):
    """Patterns of lines of one sort. head: of the first; below: of what belongs to it under it; last: of the last."""

    head: bytes
    below: bytes = _line()
    last: bytes = _line()


_KINDS = (
    LineKind(_line(rb"\[[WI]" + _OF_CPP, rb"\[E" + _OF_CPP + rb".{0,200}exit barrier")),
    LineKind(_line(b"W" + _OF_LAUNCHER, _BEFORE_2_3 + rb"\[WARNING\]")),
    LineKind(_line(b"E" + _OF_LAUNCHER + b" " + _BARRIER), _line(b"E" + _OF_LAUNCHER)),
    LineKind(
        _line(_BEFORE_2_3 + rb"\[ERROR\] " + _BARRIER, rb"ERROR:torch\.distributed\.[\w.]+:" + _BARRIER, _BARRIER),
        _line(_BEFORE_2_3 + rb"\[ERROR\]", rb"Traceback \(most recent call last\):", b"  "),
        _line(rb"[\w.]+: "),
    ),
    LineKind(
        _line(
            rb"Exception raised from [^]]{1,999} \(most recent call first\):",
            rb"frame #\d{1,4}: ",
            b"<omitting python frames>",
        ),
        last=_line(rb"\Z"),
    ),
    LineKind(
        _line(
            b"/" + _PATH + b"-packages/(?:torch|accelerate|deepspeed)/" + _PATH + rb"\.py:\d+: "
            rb"(?:User|Future|Deprecation)Warning: "
        ),
        last=_line(rb"  \S"),
    ),
    LineKind(
        _line(b"The following values were not passed to `accelerate launch` and had defaults used instead:"),
        _line(rb"\t"),
    ),
    LineKind(
        _line(b"To avoid this warning pass in values for each of the problematic parameters or run `accelerate config`")
    ),
)


class LauncherLines:
    """The lines that were taken out of one log. count: of them; last: the last MOST_LINES, without their ends."""

    def __init__(self) -> None:
        self.count = 0
        self.last: deque[bytes] = deque(maxlen=MOST_LINES)
        self._rest = b""  # of a line that has no end yet
        self._is_begun = False  # whether that line's beginning was shown
        self._kind: LineKind | None = None  # of the line before, if it was taken out

    def without(self, new: bytes, last: bool = False) -> bytes:
        """The program's own lines in the log's next text; `last`: no more text follows.

        A line is shown when it is whole. A bar of progress, which has a carriage return and no end, is shown at once.
        """
        *lines, self._rest = (self._rest + new).split(b"\n")
        shown = [line + b"\n" for line in lines if not self._is_taken_out(line)]
        self._is_begun |= b"\r" in self._rest or len(self._rest) > _LONGEST
        if self._is_begun or (last and not self._is_taken_out(self._rest)):
            shown.append(self._rest)
            self._rest = b""
        return b"".join(shown)

    def _is_taken_out(self, line: bytes) -> bool:
        before, self._kind = self._kind, None
        if self._is_begun:
            self._is_begun = False
            return False
        if before and re.match(before.below, line):
            self._kind = before
        elif not (before and re.match(before.last, line)):
            self._kind = next((kind for kind in _KINDS if re.match(kind.head, line)), None)
            if self._kind is None:
                return False
        if line:
            self.count += 1
            self.last.append(line)
        return True
