"""The page's section about efficiency as HPC centres count it. Knows no number: the table has them."""

from __future__ import annotations

from harness.analysis.summary import Summary
from harness.format.labels import are_cpus
from harness.report.elements import Section
from harness.report.page.inputs import Inputs
from harness.report.tables.catalogue import page_tables
from harness.report.tables.efficiency import efficiency_words

_LEAD = (
    "Only compute is useful: waiting inside a collective is not. The factors multiply to the efficiency above them. "
    "Load balance: do some devices compute more than others? Communication: how much do exposed communication and "
    "copies add? Orchestration: how long is even the most active device idle?"
)
_ON_CPU = " On a CPU the operators stand in for kernels, so Python between operators lowers orchestration."


def efficiency_section(s: Summary, inputs: Inputs) -> Section:
    """The efficiencies of the counted steps; empty where they are withheld."""
    lead = f"{efficiency_words(s)}. {_LEAD}" if efficiency_words(s) else _LEAD
    lead += _ON_CPU if are_cpus(s.devices) else ""
    return Section("efficiency", "Efficiency", lead, tables=page_tables(s, "efficiency"))
