"""The step of the stored reference beside the run's own, in a sentence. Judges neither: one run is no sample."""

from __future__ import annotations

from harness.analysis.metrics import metrics_by_name
from harness.analysis.summary import Summary
from harness.format.format import duration


def reference_sentence(s: Summary) -> list[str]:
    """One sentence where a stored reference asked for the same; else none."""
    reference, own_ns = s.reference, metrics_by_name(s).get("step_ns")
    if reference is None or own_ns is None:
        return []
    what = f"variant {reference.variant} of {reference.name}, {reference.device_name}"
    return [
        f"The reference on {reference.site} took {duration(reference.step_ns)} a step, yours {duration(own_ns)} "
        f"({what})."
    ]
