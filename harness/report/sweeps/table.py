"""The table of a series: a row per point, for the terminal, and as CSV with every measured value. Knows no run."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from harness.analysis.repeats import PointValues
from harness.format.csv_cells import cells
from harness.report.elements import Table
from harness.report.sweeps.values import label_of, runs_text, text_of
from harness.report.tables.screen import Screen
from harness.run import naming_flag, write_atomically

INTERVALS = "mean of the runs ± half of its 95 % interval (Student's t); one run has no interval"


def shown_table(title: str, points: Sequence[PointValues], metrics: Sequence[str]) -> Table:
    """The options that vary beside the chosen metrics."""
    axes = list(points[0].settings) if points else []
    head = [*axes, "runs", *map(label_of, metrics)]
    rows = [
        [
            *(point.settings[name] for name in axes),
            runs_text(point, metrics),
            *(text_of(name, point.values.get(name)) for name in metrics),
        ]
        for point in points
    ]
    repeats = any(len(point.runs) > 1 for point in points)
    return Table(f"{title}: {INTERVALS}" if repeats else title, head, rows, left=len(axes))


def lines(title: str, points: Sequence[PointValues], metrics: Sequence[str], screen: Screen) -> list[str]:
    """The table in lines that fit the terminal."""
    return screen.block(shown_table(title, points, metrics))


def write_csv(points: Sequence[PointValues], path: Path) -> None:
    """Every measured value of every point: its mean, the ends of its interval, and of how many runs.

    Raises:
        WorkError: the file cannot be written.
    """
    axes = list(points[0].settings) if points else []
    metrics = list(dict.fromkeys(name for point in points for name in point.values))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    ends = ("", "_low", "_high", "_n")
    writer.writerow(cells([*axes, "runs", *(f"{name}{end}" for name in metrics for end in ends)]))
    for point in points:
        values = [point.values.get(name) for name in metrics]
        numbers = [
            part for v in values for part in ((v.mean, v.low, v.high, v.n) if v else (None, None, None, 0))
        ]
        writer.writerow(cells([*(point.settings[name] for name in axes), " ".join(point.runs), *numbers]))
    with naming_flag("--csv"):
        write_atomically(path, text.getvalue())
