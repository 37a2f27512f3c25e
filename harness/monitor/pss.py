"""The memory of a job's processes by PSS, the proportional set size: a page that n processes share counts 1/n in each.

So the sum over the processes counts every page once, where their resident memory (RSS) counts a shared page n times.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path

import psutil

# The kernel walks all pages of a process for its PSS: 13 ms a GiB of 4-KiB pages were measured. Reading may take this
# share of one core; between two readings of a process, its PSS changes as its RSS does.
_SHARE = 1 / 100
# An unused share may be made up for: so all processes of a small job are read in each sample.
_BURST_S = 1.0
# A process that begins or ends changes the PSS of others: a fork that of its parent. Then they are read in advance.
_AHEAD_S = 10.0
_PSS = re.compile(rb"^Pss: +(\d+) kB", re.MULTILINE)


class PssMeter:
    """Sums the PSS of processes, with a bounded cost at each call."""

    def __init__(self) -> None:
        self._offsets: dict[psutil.Process, float] = {}  # last read PSS less the estimate of that moment
        self._next_s = 0.0

    def sum_bytes(self, resident: Mapping[psutil.Process, tuple[int, int]]) -> int:
        """Bytes of these processes together. resident: RSS and, of it, pages of files and of shared memory, bytes."""
        # Without its PSS, a process's part of what it may share is taken as if it shared that with all others.
        estimates = {each: rss - shared + shared / len(resident) for each, (rss, shared) in resident.items()}
        new = [each for each in resident if each not in self._offsets]
        oldest_first = [each for each in self._offsets if each in resident]
        ahead_s = _AHEAD_S if new or len(oldest_first) < len(self._offsets) else 0.0
        for process in [*new, *oldest_first]:
            if time.monotonic() + ahead_s < self._next_s:
                break
            self._read(process, estimates[process])
        self._offsets = {each: offset for each, offset in self._offsets.items() if each in resident}
        return round(sum(max(0.0, size + self._offsets.get(each, 0.0)) for each, size in estimates.items()))

    def _read(self, process: psutil.Process, estimate: float) -> None:
        before_s = time.thread_time()
        pss_bytes = read_pss(process.pid)
        cost_s = time.thread_time() - before_s
        self._next_s = max(self._next_s, time.monotonic() - _BURST_S) + cost_s / _SHARE
        self._offsets.pop(process, None)  # it moves to the end
        self._offsets[process] = 0.0 if pss_bytes is None else pss_bytes - estimate


def read_pss(pid: int) -> int | None:
    """The process's PSS, bytes; None if it cannot be read: Linux before 4.14, another user's process."""
    try:
        found = _PSS.search(Path(f"/proc/{pid}/smaps_rollup").read_bytes())
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None
