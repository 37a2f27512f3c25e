"""By the user's line, what Python has allocated in a few steps and not freed, by `tracemalloc`: lists, text, arrays of
NumPy, and no tensors."""

from __future__ import annotations

import tracemalloc
from collections import Counter

from harness.observe.lines import HARNESS, SourceLine, is_users

_FRAMES = 20  # of a stack


class AllocatedObjects:
    """`by_line`: bytes a step, after the third moment. Off where the script traces allocations itself."""

    def __init__(self) -> None:
        self.by_line: dict[SourceLine | None, int] = {}
        self.on = False
        self._before: Counter[SourceLine] = Counter()

    def at(self, moment: int, steps: int) -> None:
        """moment: 0, it begins; 1, what is there, also what is allocated once, will not be counted; 2, it ends. steps:
        between the last two."""
        if moment == 0 and not tracemalloc.is_tracing():
            self.on = True
            tracemalloc.start(_FRAMES)
        elif moment == 1 and self.on:
            self._before = self._now()
        elif moment == 2 and self.on:
            now = self._now()
            self.by_line = {line: (size - self._before[line]) // steps for line, size in now.items()}
            self.close()

    def close(self) -> None:
        if self.on:
            tracemalloc.stop()
        self.on = False

    def _now(self) -> Counter[SourceLine]:
        found: Counter[SourceLine] = Counter()
        for each in tracemalloc.take_snapshot().statistics("traceback"):
            line = _users_line(each.traceback)
            if line is not None:
                found[line] += each.size
        return found


def _users_line(stack: tracemalloc.Traceback) -> SourceLine | None:
    """The innermost line of the user's; None: there is none, or the observer allocated it."""
    for frame in reversed(stack):
        if frame.filename.startswith(HARNESS):
            return None
        if is_users(frame.filename):
            return SourceLine(frame.filename, frame.lineno, "")
    return None
