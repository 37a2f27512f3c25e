"""How the runs of a check get onto a machine.

With a queue all runs share one allocation, so they use the same nodes and follow each other. If the cluster refuses it,
each block of runs is one allocation. If it refuses that too, each run is a separate job.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.study.campaign.points import Task
from harness.study.campaign.submitter import Chain, Submitter, Together, most_together
from harness.study.check.order import BLOCKS


def submitter_for(tasks: Sequence[Task]) -> Submitter:
    """One allocation if the backend has a queue; on this machine one run after the other."""
    largest = most_together(tasks, "series")
    if largest < 2:
        return Chain(tasks, most_at_once=1)
    return Together(tasks, "series", (largest, len(BLOCKS[0]), 1))
