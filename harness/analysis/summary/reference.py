"""The stored reference that asked for the same as this run. Fields only; no measurement."""

from __future__ import annotations

from harness.analysis.summary.base import SummaryPart


class ReferenceStep(SummaryPart):
    """The step time of a [stored reference](references.md) with the same settings: all options that a comparison shows,
    as resolved. The reference of the run's site comes first, else the newest. The report says how much
    slower or faster the run is; `reference check` gives the verdict."""

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
    mean_step_ns: int | None = None
    """Geometric mean over these runs of the metric `mean_step_ns`, as `reference check` compares it."""
