"""A Summary as files, one per table, for spreadsheets (CSV) and notebooks (Parquet). Knows only the Summary."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from harness.analysis.summary import Summary, SummaryPart
from harness.common.errors import RequestError, WorkError
from harness.common.paths import IN_CHECKOUT

_TABLES = (
    "kinds",
    "kernels",
    "unclassified",
    "idle_causes",
    "phases",
    "ranges",
    "collectives",
    "collective_phases",
    "message_sizes",
    "collective_fits",
    "stragglers",
    "clocks",
    "launches",
    "copies",
    "training",
    "monitor",
    "sources",
)
_PER_DEVICE = ("steps", "kinds", "idle_causes", "longest_gaps", "metric_averages")


def write_tables(summaries: Iterable[Summary], folder: Path, parquet: bool = False) -> list[Path]:
    """Write every table that has rows; a column `job` tells several jobs apart.

    Raises:
        RequestError: Parquet was asked for and pyarrow is not installed.
        WorkError: the disk is full or not writable.
    """
    write, ending = (_parquet_writer(), "parquet") if parquet else (_write, "csv")
    tables: dict[str, list[dict[str, Any]]] = {}
    for number, summary in enumerate(summaries):
        for name, rows in _rows(summary):
            tables.setdefault(name, []).extend({"job": number, **row} for row in rows)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return [write(folder / f"{name}.{ending}", rows) for name, rows in tables.items() if rows]
    except OSError as error:
        raise WorkError(f"--{ending} {folder}: cannot be written ({error.strerror})") from error


def check_parquet() -> None:
    """Raises RequestError where Parquet cannot be written, for whoever asks before the work that it would follow."""
    if find_spec("pyarrow") is None:
        install = "bash slurm.sh --install tables" if IN_CHECKOUT else "pip install pyarrow"
        raise RequestError(f"--parquet needs pyarrow: run `{install}`, or use --csv")


def _parquet_writer() -> Callable[[Path, list[dict[str, Any]]], Path]:
    check_parquet()
    from pyarrow import Table, parquet  # noqa: PLC0415 - large, and only this needs it

    def write(path: Path, rows: list[dict[str, Any]]) -> Path:
        parquet.write_table(Table.from_pylist(rows), path)
        return path

    return write


def _rows(summary: Summary) -> Iterable[tuple[str, list[dict[str, Any]]]]:
    for name in _TABLES:
        yield name, [_flat(row) for row in getattr(summary, name)]
    yield "devices", [_flat(device) for device in summary.devices]
    for name in _PER_DEVICE:
        yield (
            f"device_{name}",
            [
                {"rank": device.rank, "device": device.device, **_flat(row)}
                for device in summary.devices
                for row in getattr(device, name)
            ],
        )
    yield (
        "steps",
        [
            {"rank": rank.rank, "step": i, "duration_ns": ns}
            for rank in summary.steps.per_rank
            for i, ns in enumerate(rank.durations_ns)
        ],
    )
    if summary.pipeline is not None:
        yield "pipeline", [_flat(stage) for stage in summary.pipeline.per_stage]


def _flat(row: SummaryPart) -> dict[str, Any]:
    """The row's plain values; lists and tables inside it have files of their own, or none."""
    return {k: v for k, v in row.model_dump(mode="json").items() if not isinstance(v, (list, dict))}


def _write(path: Path, rows: list[dict[str, Any]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path
