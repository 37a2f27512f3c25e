"""Lines that PyTorch and its launcher write about themselves, taken out of a run's output while it streams."""

from __future__ import annotations

import re

_LONGEST = 1 << 16  # text that is longer and has no end yet is the program's own

_TIME = rb"\d{4} \d\d:\d\d:\d\d\.\d{3,9} "
# Their warnings, and the stack in C++ below one; each may have its rank before it.
_THEIRS = re.compile(
    rb"(?:\[rank\d{1,6}\]: ?)?(?:"
    rb"\[[WI]" + _TIME + rb"[\w./-]+\.[chp]+:\d+\] |[WI]" + _TIME + rb"\d+ torch/distributed/[\w/]+\.py:\d+\]|"
    rb"Exception raised from [^]]{1,999} \(most recent call first\):|frame #\d{1,4}: |<omitting python frames>)"
)


class LauncherLines:
    """Takes them out of one log."""

    def __init__(self) -> None:
        self._rest = b""  # of a line that has no end yet
        self._is_begun = False  # whether that line's beginning was shown

    def without(self, new: bytes, last: bool = False) -> bytes:
        """The program's own lines in the log's next text; `last`: no more text follows.

        A line is shown when it is whole. A bar of progress, which has a carriage return and no end, is shown at once.
        """
        *lines, self._rest = (self._rest + new).split(b"\n")
        shown = [line + b"\n" for line in lines if not self._is_theirs(line)]
        self._is_begun |= b"\r" in self._rest or len(self._rest) > _LONGEST
        if self._is_begun or (last and not self._is_theirs(self._rest)):
            shown.append(self._rest)
            self._rest = b""
        return b"".join(shown)

    def _is_theirs(self, line: bytes) -> bool:
        is_begun, self._is_begun = self._is_begun, False
        return not is_begun and _THEIRS.match(line) is not None
