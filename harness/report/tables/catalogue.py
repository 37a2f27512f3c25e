"""Every table of the report in the terminal's order, and every file. Other modules get the tables here."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from harness.analysis.summary import Summary
from harness.common.display.format import cells
from harness.common.errors import WorkError
from harness.compare.environment import facts_of
from harness.report.elements import PageTable
from harness.report.tables import (
    communication,
    efficiency,
    job_time,
    kernels,
    memory,
    monitor,
    nccl,
    pace,
    pipeline,
    ranges,
    replay,
    time,
    training,
)
from harness.report.tables.table import File, FileRow, TableOf, file_of, file_per_device

# Every table, in the order in which the terminal shows them.
TABLES: tuple[TableOf[Any], ...] = (
    *job_time.TABLES,
    *replay.TABLES,
    efficiency.EFFICIENCY,
    *time.TABLES,
    *pace.TABLES,
    ranges.RANGES,
    kernels.KERNELS,
    kernels.UNCLASSIFIED,
    ranges.MODULES,
    *communication.TABLES,
    *nccl.TABLES,
    pipeline.STAGES,
    training.PREDICTIONS,
    *memory.TABLES,
    kernels.LAUNCHES,
    kernels.COPIES,
    kernels.COUNTERS,
    training.TRAINING,
    efficiency.SPEED,
    *monitor.TABLES,
)

_STEPS = File(
    "steps",
    lambda s: (
        {"rank": rank.rank, "step": i, "duration_ns": ns}
        for rank in s.steps.per_rank
        for i, ns in enumerate(rank.durations_ns)
    ),
)
_COUNTERS = File(
    "counters_over_time",
    lambda s: (
        {"rank": d.rank, "device": d.device, "metric": c.metric, "start_ns": i * c.column_ns, "mean": mean}
        for d in s.devices
        for c in d.counters
        for i, mean in enumerate(c.mean)
    ),
)
_ENVIRONMENTS = File(
    "environments",
    lambda s: ({"name": name, "value": value} for name, value in (facts_of(s) if s.environments else {}).items()),
)
_WITHOUT_TABLE = (
    _STEPS,
    _COUNTERS,
    _ENVIRONMENTS,
    file_of("sources"),
    file_of("profiler_overhead"),
    file_of("memory_growth"),
    *map(file_per_device, ("steps", "kinds", "idle_causes", "longest_gaps")),
)


def files() -> Iterator[File]:
    yield from (table.file for table in TABLES if table.file is not None)
    yield from _WITHOUT_TABLE


def page_tables(s: Summary, section: str) -> list[PageTable]:
    """The tables with rows of one of the page's sections."""
    chosen = sorted((t for t in TABLES if t.section == section), key=lambda t: t.page_order)
    return [shown for shown in (t.on_page(s) for t in chosen) if shown.rows]


def figure_table(s: Summary, figure: str) -> PageTable | None:
    return next((t.on_page(s) for t in TABLES if t.figure == figure), None)


def write_tables(summaries: Iterable[Summary], folder: Path) -> list[Path]:
    """Write every table with rows. Raises WorkError: it cannot be written."""
    jobs = list(enumerate(summaries))
    tables = {
        file.name: _even([{"job": number, **row} for number, s in jobs for row in file.records(s)]) for file in files()
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return [_write(folder / f"{name}.csv", rows) for name, rows in tables.items() if rows]
    except OSError as error:
        raise WorkError(f"--out {folder}: cannot be written ({error.strerror})") from error


def _even(rows: Sequence[FileRow]) -> list[FileRow]:
    """The rows with the columns that all rows have: a list in one row can be missing in another."""
    shared = set.intersection(*map(set, rows)) if rows else set()
    return [{name: value for name, value in row.items() if name in shared} for row in rows]


def _write(path: Path, rows: list[FileRow]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(cells(rows[0]))
        writer.writerows(cells(row[name] for name in rows[0]) for row in rows)
    return path
