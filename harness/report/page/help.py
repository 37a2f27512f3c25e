"""The page's section about what would help: causes of lost time, and changes. Knows no number: the tables have them."""

from __future__ import annotations

from harness.analysis.summary import Summary
from harness.explain.replayed import what_is_not_charged, why_no_answer
from harness.report.elements import Section
from harness.report.page.inputs import Inputs
from harness.report.tables.catalogue import page_tables

_LEAD = (
    "The run's events, replayed with one thing changed: waiting is charged to who causes it. A bound cannot be "
    "reached: it says how much there is to gain at most. A click on a cause shows a step with it in the timeline. "
    "slurm.sh whatif RUN --verify makes the run of the best change with a command, and compares."
)


def help_section(s: Summary, inputs: Inputs) -> Section:
    """Both tables; a note where the replay does not repeat the run, or cannot charge all waiting."""
    tables = page_tables(s, "help")
    note = (why_no_answer(s) or what_is_not_charged(s) or "") if s.replay is not None else ""
    return Section("help", "What would help", _LEAD if tables else "", tables=tables, note=note)
