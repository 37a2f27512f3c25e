"""Rules about exposed communication: what was switched off, who is late, what sends less."""

from __future__ import annotations

from harness.analysis.metrics import waiting_share
from harness.analysis.summary import Summary
from harness.experiment.advice import Advice, Change
from harness.explain.finding import Avoidable, asked_of, idle_share, measured
from harness.explain.pipeline import in_schedule
from harness.format import device_time
from harness.format.format import percent

_WAITING = 0.5  # share of the collectives' time from which waiting, not transfer, is the matter


def communication(s: Summary) -> Avoidable | None:
    """Exposed communication and idle time that waits for communication, without the part in a pipeline's bubble."""
    exposed = device_time.share(s.devices, "exposed_communication_ns")
    if exposed is None:
        return None
    share = exposed + (idle_share(s, "communication") or 0.0) - in_schedule(s)
    if share <= 0:
        return None
    # In a pipeline some waiting lies in the bubble, and how much is not known.
    waited = waiting_share(s) if s.pipeline is None else None
    what = "exposed communication" + (", without the pipeline's waiting" if s.pipeline else "")
    if waited is not None and waited > _WAITING:
        what += f", {percent(waited)} of it waiting for the last rank"
    return Avoidable(what, share, *_communication_advice(s, waited))


def _communication_advice(s: Summary, waited: float | None) -> Advice:
    """Why communication is exposed, and what to do: first an option that was switched off, then a late rank."""
    asked, seen = asked_of(s), measured(s)
    if (on_purpose := asked.on_purpose("communication", seen)) is not None:
        return on_purpose
    if waited is not None and waited > _WAITING and s.stragglers:
        rank = s.stragglers[0].rank
        change = Change(f"find in the timeline the work of rank {rank} before it arrives")
        return Advice(f"The others wait most often for rank {rank}.", (change,))
    return asked.send_less(seen)
