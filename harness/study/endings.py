"""How a run ended before its time: who is stuck, who failed first, as the numbers that a lesson's relations read."""

from __future__ import annotations

from typing import NamedTuple

from harness.analysis.metrics import Metrics
from harness.live.dead import deaths, first_death
from harness.live.hang import read_hang
from harness.live.stuck import IN_COLLECTIVE
from harness.run import Run


class Ending(NamedTuple):
    """sentence: as `status` says it; empty: nobody saw it. numbers: by name; of what did not happen there is none.

    stuck_rank, stuck_ranks_count: the first of the ranks that cause it, and how many these are. stuck_waiting_count:
    ranks that wait for them. stuck_in_collective: 1 if all wait in collectives. failed_rank: the first one.
    failed_by_error: 1 if it ended by an error or a signal, 0 if it left without. failed_others_count: ranks that told
    an error later.
    """

    sentence: str
    numbers: Metrics


def ending_of(run: Run) -> Ending:
    """The end of a run that is over."""
    hang = read_hang(run.path)
    if hang is not None and hang.until_ns is None:
        numbers = {
            "stuck_rank": float(hang.ranks[0]),
            "stuck_ranks_count": float(len(hang.ranks)),
            "stuck_waiting_count": float(len(hang.waiting)),
            "stuck_in_collective": float(hang.kind in IN_COLLECTIVE),
            "stuck_step": float(hang.step),
        }
        return Ending(hang.since_clock, numbers if hang.ranks else {})
    first = first_death(run.path, run.err)
    if first is None:
        return Ending("", {})
    others = [death for death in deaths(run.path, run.err) if death.rank != first.rank and death.error]
    numbers = {
        "failed_rank": float(first.rank),
        "failed_by_error": float(not first.left),
        "failed_others_count": float(len({death.rank for death in others})),
    }
    if first.step is not None:
        numbers["failed_step"] = float(first.step)
    return Ending(first.sentence, numbers)
