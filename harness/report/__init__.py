"""What people read: the terminal, the page, tables. Measures nothing and launches nothing."""

from harness.report.tables import write_tables
from harness.report.terminal import render, render_hta

__all__ = ["render", "render_hta", "write_tables"]
