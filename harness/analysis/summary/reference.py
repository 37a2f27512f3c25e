"""The stored reference that asked for the same as this run. Fields only; no measurement."""

from __future__ import annotations

from harness.analysis.summary.base import SummaryPart


class ReferenceStep(SummaryPart):
    """The step time of a [stored reference](references.md) with the same settings: all options that a comparison shows,
    as resolved. The reference of the run's site comes first, else the newest. The report shows it and gives no verdict;
    `reference check` does."""

    name: str
    """Of the reference."""
    variant: str
    """Its variant with these settings."""
    site: str
    """Where it was recorded."""
    device_name: str
    """Its device."""
    run_count: int
    """How many runs of the variant there are."""
    step_ns: int
    """Median over these runs of the metric `step_ns`."""
