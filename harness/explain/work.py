"""Rules about the work itself: its precision, and a rank that needs more time for it than the others."""

from __future__ import annotations

from harness.analysis.summary import Summary
from harness.experiment.advice import Change
from harness.explain.finding import Avoidable, asked_of
from harness.explain.next_command import is_ours
from harness.format.labels import are_cpus
from harness.theory.devices import peak_flops_per_s


def precision(s: Summary) -> Avoidable | None:
    """fp32 products on a GPU: at least half of their time goes away with 16 bits."""
    total = sum(d.window_ns for d in s.devices)
    slow = sum(k.duration_ns for k in s.kinds if k.precision == "fp32") / 2
    if are_cpus(s.devices) or not slow or not total:
        return None
    half = "fp16" if _without_bf16(s) else "bf16"
    why = f"Matrix products run in fp32; in {half} they take half the time or less (half of the time is counted here)."
    ours = is_ours(s) and half == "bf16" and not asked_of(s).in_bf16
    text = "mixed precision (bf16)" if half == "bf16" else "mixed precision: fp16, with loss scaling"
    change = Change(text, {"mixed_precision": True} if ours else None)
    return Avoidable("single precision", slow / total, why, (change,))


def _without_bf16(s: Summary) -> bool:
    """Whether a device is known to compute in fp16 but not in bf16, as before Ampere."""
    names = {d.name for d in s.devices if d.name}
    return any(peak_flops_per_s(n, "fp16") and not peak_flops_per_s(n, "bf16") for n in names)


def straggler(s: Summary) -> Avoidable | None:
    score, rank = s.steps.straggler_score, s.steps.slowest_rank
    if score is None or rank is None or score <= 1:
        return None
    why = f"Its step takes {score:.2f} × the median rank's, and the others wait for it."
    what = f"find the additional work of rank {rank} in the timeline, and test its node (slurm.sh -e 0)"
    return Avoidable(f"the slower rank {rank}", 1 - 1 / score, why, (Change(what),))
