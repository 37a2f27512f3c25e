"""How the runs of a check get onto a machine.

Where there is a queue all go into one allocation, so onto the same nodes and near each other in time; where that is
refused a block of them into one, and where that is, too, each is a job of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.study.campaign.points import Task
from harness.study.campaign.submitter import Chain, Submitter, Together, most_together
from harness.study.check.order import BLOCKS


def submitter_for(tasks: Sequence[Task]) -> Submitter:
    """One allocation where the backend has a queue; on this machine one run after the other."""
    largest = most_together(tasks, "series")
    if largest < 2:
        return Chain(tasks, most_at_once=1)
    return Together(tasks, "series", (largest, len(BLOCKS[0]), 1))
