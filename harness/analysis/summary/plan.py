"""What a run's plan predicted, beside what was measured. Fields only; no measurement."""

from __future__ import annotations

from harness.analysis.summary.base import SummaryPart


class Predicted(SummaryPart):
    """One number of the run's `plan.json` ([theory.md](theory.md)) that the run also measured: as a
    [metric](#metrics-by-name) of the same name, or for `job_s` as the time from the job's own start to its end. Numbers
    that were not measured, or measured as 0, are left out."""

    name: str
    """Of the plan's number and of the metric."""
    label: str
    """The number in words."""
    unit: str
    """Of all numbers of the row: ns, s, bytes, tokens, tokens/s, share."""
    predicted: float
    """Before the run started. For a range its geometric mean √(low · high)."""
    low: float | None = None
    """The range's lower end. Null if the plan gave one number."""
    high: float | None = None
    """Its upper end."""
    measured: float
    """The metric."""
    ratio: float
    """`measured` / `predicted`."""
    formula: str | None = None
    """The formula of the prediction."""
    source: str | None = None
    """Of the formula, or of the numbers in it."""
