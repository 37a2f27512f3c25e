"""Whether a run's time limit comes before its last step, and which limit is long enough."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from harness.common.display.format import duration, span
from harness.common.system.slurm_notation import clock_text
from harness.heartbeats.model import NS, Live

MORE = 1.1  # times the time that a run needs: the next one may be slower


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
        steps, enough = (progress.steps or 0) - (progress.step or 0), "a longer --time"
        if live.began_ns is not None:
            needed_s = MORE * ((live.now_ns - live.began_ns) / NS + progress.remaining_s) + live.warning_s
            enough = f"--time {clock_text(math.ceil(needed_s))}"
        asked = f"; the run is asked to end {span(warning_s)} before its limit" if warning_s else ""
        yield Note(
            "limit",
            (),
            f"The time limit ends the run before its last step: {span(left_s)} are left, and it needs "
            f"{span(progress.remaining_s)}.",
            f"{steps:,} steps of {duration(progress.step_ns)} are left{asked}",
            f"start the next run with {enough}",
        )
