"""A mystery's summary before it is revealed: the measurement without the diagnosis."""

from __future__ import annotations

from pathlib import Path

from harness.analysis.summary import Summary, Withheld
from harness.run.mystery import is_hidden

WITHHELD = ("findings", "replay.what_ifs")
REASON = "this run is a mystery: find the cause yourself, or end it with `mystery reveal`"


def without_diagnosis(summary: Summary, run: Path) -> Summary:
    """The summary without what tells the cause, where `run` is a mystery that was not revealed."""
    if not is_hidden(run, summary.experiment):
        return summary
    quality = summary.quality
    withheld = [*quality.withheld, *(Withheld(field=field, reason=REASON) for field in WITHHELD)]
    replay = summary.replay and summary.replay.model_copy(update={"what_ifs": []})
    kept = quality.model_copy(update={"withheld": withheld})
    return summary.model_copy(update={"findings": [], "replay": replay, "quality": kept})
