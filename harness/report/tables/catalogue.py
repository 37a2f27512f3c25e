"""Every table of the report in the terminal's order, and every file. Other modules get the tables here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from harness.analysis.metrics import LABELS, Number
from harness.analysis.summary import Summary
from harness.report.elements import Table
from harness.report.tables import (
    communication,
    efficiency,
    machine,
    memory,
    nccl,
    pace_changes,
    pacing,
    pipeline,
    plan,
    replay,
    stragglers,
    time,
    work,
)
from harness.report.tables.table import File, TableOf, file_of, file_per_device

# A table in one of these modules is shown; the terminal shows them in the order in which they stand there.
_MODULES = (
    replay,
    stragglers,
    efficiency,
    time,
    pace_changes,
    pacing,
    work,
    communication,
    nccl,
    pipeline,
    plan,
    memory,
    machine,
)
TABLES: tuple[TableOf[Any], ...] = tuple(
    found for module in _MODULES for found in vars(module).values() if isinstance(found, TableOf)
)

_STEPS = File(
    "steps",
    lambda s: (
        {"rank": rank.rank, "step": i, "duration_ns": ns}
        for rank in s.steps.per_rank
        for i, ns in enumerate(rank.durations_ns)
    ),
)
_WITHOUT_TABLE = (
    _STEPS,
    file_of("sources"),
    file_of("profiler_overhead"),
    *map(file_per_device, ("steps", "kinds", "idle_causes")),
)


def files() -> Iterator[File]:
    """Every CSV or Parquet file of a Summary."""
    yield from (table.file for table in TABLES if table.file is not None)
    yield from _WITHOUT_TABLE


def page_tables(s: Summary, section: str) -> list[Table]:
    """The tables with rows of one of the page's sections."""
    chosen = sorted((t for t in TABLES if t.section == section), key=lambda t: t.page_order)
    return [shown for shown in (t.on_page(s) for t in chosen) if shown.rows]


def figure_table(s: Summary, figure: str) -> Table | None:
    """The numbers of one of the page's figures."""
    return next((t.on_page(s) for t in TABLES if t.figure == figure), None)


def numbers() -> list[Number]:
    """The tables' own numbers for compare and --fail-if, beside those of analysis/metrics.py."""
    return [number for table in TABLES for number in table.numbers]


def labels() -> dict[str, str]:
    """The label of every number that has its line in a comparison, in order."""
    return LABELS | {number.name: number.label for number in numbers() if number.label}
