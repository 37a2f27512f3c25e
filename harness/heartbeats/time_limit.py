"""Whether a run's time limit comes before its last step, and which limit is long enough."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from harness.common.display.format import duration, span
from harness.common.system.slurm_notation import clock_text
from harness.heartbeats.model import NS, Live

LIMIT_FACTOR = 1.05  # of the time that a run needs: the next one may be slower
LIMIT_S = 300  # a time limit is a multiple of it


class Note(NamedTuple):
    """A finding. kind: a word for scripts. sentence: what is so. evidence: what was seen. command: what to do next."""

    kind: str
    ranks: tuple[int, ...]
    sentence: str
    evidence: str
    command: str


def time_limit(live: Live) -> Iterator[Note]:
    """The time limit, or the request to end that comes before it, comes before the last step."""
    progress = live.progress()
    if live.deadline_ns is None or progress.remaining_s is None or not progress.remaining_s:
        return
    warning_s = float(live.warning_s)
    if live.began_ns is not None:
        warning_s = min(warning_s, (live.deadline_ns - live.began_ns) / NS / 4)
    left_s = (live.deadline_ns - live.now_ns) / NS - warning_s
    if progress.remaining_s > left_s >= 0:
        steps, enough = (progress.steps or 0) - (progress.step or 0), _long_enough(live, progress.remaining_s)
        asked = f"; the run is asked to end {span(warning_s)} before its limit" if warning_s else ""
        yield Note(
            "limit",
            (),
            f"The time limit ends the run before its last step: {span(left_s)} are left, and it needs "
            f"{span(progress.remaining_s)}{f'; {enough} is long enough' if enough else ''}.",
            f"{steps:,} steps of {duration(progress.step_ns)} are left{asked}",
            f"start the next run with {enough or 'a longer --time'}",
        )


def _long_enough(live: Live, remaining_s: float) -> str:
    """A time limit in which the run ends by itself, as --time HH:MM:SS; empty: nobody knows when it began."""
    if live.began_ns is None:
        return ""
    needed_s = LIMIT_FACTOR * ((live.now_ns - live.began_ns) / NS + remaining_s)
    limit_s = min(needed_s + live.warning_s, needed_s * 4 / 3)
    return f"--time {clock_text(math.ceil(limit_s / LIMIT_S) * LIMIT_S)}"
