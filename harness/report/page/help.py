"""The page's section about what would help: causes of lost time, and changes. Knows no number: the tables have them."""

from __future__ import annotations

from harness.analysis.summary import Summary
from harness.common.paths import PROGRAM
from harness.explain.commands import is_ours
from harness.explain.findings import what_is_not_charged
from harness.report.elements import Section
from harness.report.page.inputs import Inputs
from harness.report.tables.catalogue import page_tables

_LEAD = (
    "The events of all ranks are replayed with one thing changed. Waiting is charged to the rank that causes it. "
    "A bound is the most that can be gained: no run reaches it. Click a cause to see a step with it in the timeline."
)
_VERIFY = (
    f" `{PROGRAM} whatif {{}} --verify` makes the run of the best change that has a command, and compares its step "
    "with the prediction."
)


def help_section(s: Summary, inputs: Inputs) -> Section:
    """Both tables, and a note if much waiting is charged to no rank; empty without a cause and a change."""
    tables = page_tables(s, "help")
    if not tables:
        return Section("help", "What would help")
    run = str((s.run or {}).get("job_id") or "RUN")
    lead = _LEAD + (_VERIFY.format(run) if is_ours(s) else "")
    return Section("help", "What would help", lead, tables=tables, note=what_is_not_charged(s) or "")
