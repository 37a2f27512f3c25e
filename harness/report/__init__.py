"""What people read: the terminal, the page, tables. Measures nothing and launches nothing."""

from harness.report.tables import check_parquet, write_tables
from harness.report.terminal import render, render_hta, render_short

__all__ = ["check_parquet", "render", "render_hta", "render_short", "write_tables"]
