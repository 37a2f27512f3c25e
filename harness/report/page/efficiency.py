"""The page's section about efficiency as HPC centres count it. Knows no number: the table has them."""

from __future__ import annotations

from harness.analysis.summary import Summary
from harness.format.labels import are_cpus
from harness.report.elements import Section
from harness.report.page.inputs import Inputs
from harness.report.tables.catalogue import page_tables
from harness.report.tables.efficiency import efficiency_words

_LEAD = (
    "Only compute is useful; waiting inside a collective is not. The product of the factors is the efficiency above "
    "them. Load balance is low if some devices compute more than others. Communication is low if exposed "
    "communication and copies take much time. Orchestration is low if even the most active device is often idle."
)
_ON_CPU = (
    " On a CPU, operators are counted instead of kernels, so Python between operators lowers orchestration."
)


def efficiency_section(s: Summary, inputs: Inputs) -> Section:
    """The efficiencies of the counted steps; empty if they are withheld."""
    lead = f"{efficiency_words(s)}. {_LEAD}" if efficiency_words(s) else _LEAD
    lead += _ON_CPU if are_cpus(s.devices) else ""
    return Section("efficiency", "Efficiency", lead, tables=page_tables(s, "efficiency"))
