"""The stored reference that asked for the same as this run. Fields only; no measurement."""

from __future__ import annotations

from harness.analysis.summary.base import SummaryPart


class ReferenceStep(SummaryPart):
    """A reference's variant with the settings of this run, on the same kind of device.

    step_ns: median over its runs of their median steps.
    """

    name: str
    variant: str
    site: str
    device_name: str
    run_count: int
    step_ns: int
