"""A Summary as files, one per table, for spreadsheets (CSV) and notebooks (Parquet). Knows no table."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path

from harness.analysis.summary import Summary
from harness.common.errors import RequestError, WorkError
from harness.common.paths import IN_CHECKOUT
from harness.format.csv_cells import cells
from harness.report.tables.catalogue import files
from harness.report.tables.table import FileRow


def write_tables(summaries: Iterable[Summary], folder: Path, parquet: bool = False) -> list[Path]:
    """Write every table that has rows; the column `job` is the number of the job.

    Raises:
        RequestError: Parquet was asked for and pyarrow is not installed.
        WorkError: the disk is full or not writable.
    """
    write, ending = (_parquet_writer(), "parquet") if parquet else (_write, "csv")
    jobs = list(enumerate(summaries))
    tables = {
        file.name: _even([{"job": number, **row} for number, s in jobs for row in file.records(s)])
        for file in files()
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return [write(folder / f"{name}.{ending}", rows) for name, rows in tables.items() if rows]
    except OSError as error:
        raise WorkError(f"--{ending} {folder}: cannot be written ({error.strerror})") from error


def _even(rows: Sequence[FileRow]) -> list[FileRow]:
    """The rows with the columns that all rows have: a list in one row can be missing in another."""
    shared = set.intersection(*map(set, rows)) if rows else set()
    return [{name: value for name, value in row.items() if name in shared} for row in rows]


def check_parquet() -> None:
    """Check before the work starts that Parquet can be written. Raises RequestError: pyarrow is not installed."""
    if find_spec("pyarrow") is None:
        install = "bash slurm.sh --install tables" if IN_CHECKOUT else "pip install pyarrow"
        raise RequestError(f"--parquet needs pyarrow: run `{install}`, or use --csv")


def _parquet_writer() -> Callable[[Path, list[FileRow]], Path]:
    check_parquet()
    from pyarrow import Table, parquet

    def write(path: Path, rows: list[FileRow]) -> Path:
        parquet.write_table(Table.from_pylist(rows), path)
        return path

    return write


def _write(path: Path, rows: list[FileRow]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(cells(rows[0]))
        writer.writerows(cells(row[name] for name in rows[0]) for row in rows)
    return path
