"""Rules about a device that waits for its host: for data, launches, synchronisation, copies."""

from __future__ import annotations

from harness.analysis.summary import Summary
from harness.experiment.advice import IDLE_FOR_DATA, Advice, Change
from harness.explain.causes import CAUSES
from harness.explain.finding import Avoidable, asked_of, idle_share, measured, more_work, slowest
from harness.format import device_time
from harness.format.labels import are_cpus

_FASTER_DATA = Change(CAUSES["data-stall"].advice)
PAGEABLE_NOTICEABLE = 0.005  # share of the devices' time in pageable copies, from which pinning is advised


def data(s: Summary) -> Avoidable | None:
    share = idle_share(s, "data loading")
    if share is None:
        share = _data_by_metrics(s)
    if not share:
        return None
    advice = asked_of(s).on_purpose("data", measured(s)) or Advice(IDLE_FOR_DATA, (_FASTER_DATA,))
    return Avoidable("waiting for data", share, *advice)


def _data_by_metrics(s: Summary) -> float:
    """The share of data loading in the slowest rank's median step."""
    rank = slowest(s)
    return (rank.median_data_ns or 0) / rank.median_step_ns if rank and rank.median_step_ns else 0.0


def launch_bound(s: Summary) -> Avoidable | None:
    share = idle_share(s, "launch-bound")
    if not share:
        return None
    what, why = "launch-bound idle time", "The host issues kernels more slowly than the device runs them."
    if are_cpus(s.devices):
        what, why = "time between operators", "It is Python overhead: the operators are too small to hide it."
    changes = (
        *more_work(s, "twice the micro-batch, so that each launch has more work"),
        Change("larger batches, fused operators (torch.compile) or CUDA graphs"),
    )
    return Avoidable(what, share, why, changes)


def synchronisation(s: Summary) -> Avoidable | None:
    share = idle_share(s, "synchronisation")
    if not share:
        return None
    gaps = (g for d in s.devices for g in d.longest_gaps if g.cause == "synchronisation")
    gap = max(gaps, key=lambda g: g.duration_ns, default=None)
    where = f" The longest such gap is inside {gap.range}." if gap is not None and gap.range else ""
    why = f"The host waits for the device (.item(), a blocking copy, a synchronize) and launches nothing.{where}"
    change = Change("take the value out of the loop, or read it some steps later")
    return Avoidable("synchronisation", share, why, (change,))


def memory(s: Summary) -> Avoidable | None:
    share = device_time.share(s.devices, "exposed_memory_ns")
    if not share:
        return None
    window = sum(d.window_ns for d in s.devices)
    pageable = sum(c.pageable_ns for c in s.copies if c.direction == "copy H2D")
    text = "pin the host buffers (pin_memory=True) and copy with non_blocking=True"
    if pageable <= PAGEABLE_NOTICEABLE * window:  # an .item() copies a few bytes: no reason to pin
        text = "copy on a separate stream while kernels run (non_blocking=True, prefetching)"
    what, why = "exposed copies", "The device computes nothing meanwhile."
    return Avoidable(what, share, why, (Change(text),))
