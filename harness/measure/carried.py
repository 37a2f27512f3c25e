"""What a job's recording can carry of the causes and predictions that were found in it."""

from __future__ import annotations

from harness.analysis.summary import Summary
from harness.replay.suspect import Cause

ON_HOST = frozenset(
    {
        Cause.DATA_STALL,
        Cause.HOST_STALL,
        Cause.PAUSE,
        Cause.CHECKPOINT,
        Cause.NOISY_NEIGHBOUR,
        Cause.GARBAGE,
        Cause.PINNED_TOGETHER,
        Cause.TINY_KERNELS,
    }
)


def carried(summary: Summary) -> Summary:
    """The summary without the causes and predictions that its kind of recording cannot carry."""
    withheld = {one.field for one in summary.quality.withheld}
    found, replay = summary.findings, summary.replay
    if "findings" in withheld:
        found = []
    elif "findings.host" in withheld:
        found = [one for one in found if one.cause not in ON_HOST]
    if "replay.what_ifs" in withheld and replay is not None:
        replay = replay.model_copy(update={"what_ifs": []})
    return summary.model_copy(update={"findings": found, "replay": replay})
