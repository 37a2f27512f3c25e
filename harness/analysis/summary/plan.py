"""What a run's plan predicted, beside what was measured. Fields only; no measurement."""

from __future__ import annotations

from harness.analysis.summary.base import SummaryPart


class Predicted(SummaryPart):
    """One number of the plan that the run has a measured counterpart of, both in `unit`.

    predicted: for a range its geometric mean, and low to high the range.
    """

    name: str
    label: str
    unit: str
    predicted: float
    low: float | None = None
    high: float | None = None
    measured: float
    ratio: float  # measured over predicted
    formula: str | None = None
    source: str | None = None
