"""The work of several runs side by side: kinds of kernels with their precision, collectives, and the kernels that
only one of two runs launched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.analysis.compare import Comparison
from harness.analysis.summary import Summary
from harness.common.paths import PROGRAM
from harness.format.format import rate
from harness.report.compare.tables import (
    collective_kinds,
    collective_table,
    in_every_run,
    kernel_rows,
    letters,
    precision_table,
)
from harness.report.elements import Figure, Section, Table, table
from harness.report.palette import of_series
from harness.report.plots import plotly_json
from harness.report.tables.time import kind_label

_SMALL = 0.003  # share of all work: kinds below it in every run are left out
_KERNELS = 20  # per run
_KERNEL_WIDTH = 100


def kinds_section(
    labels: Sequence[str], summaries: Sequence[Summary], pairs: Sequence[Comparison]
) -> Section:
    """Time per kind of work, per step and rank, and which precision changed."""
    title = "Kernels by kind"
    runs = [
        (i, label, s)
        for i, (label, s) in enumerate(zip(labels, summaries, strict=True))
        if s.kinds and s.steps.counted
    ]
    kinds = list(dict.fromkeys(kind_label(k) for *_, s in runs for k in s.kinds if k.share >= _SMALL))
    if not kinds:
        return Section("kinds", title)
    times = [
        (i, label, {kind_label(k): k.duration_ns / s.steps.counted / 1e6 for k in s.kinds})
        for i, label, s in runs
    ]
    data = [
        plotly_json.bars(label, [known.get(kind, 0.0) for kind in kinds], kinds, of_series(i))
        for i, label, known in times
    ]
    words = "Time per kind of work in one step of one rank, a bar per run. Kernels that overlap both count."
    rows = [[kind, *(rate(known.get(kind, 0.0)) for *_, known in times)] for kind in kinds]
    numbers = Table("Time per step and rank (ms)", ("kind", *(label for _, label, _ in times)), rows)
    figure = _grouped("kinds", words, data, "time per step and rank (ms)", numbers)
    return Section("kinds", title, figures=[figure], tables=_precisions(pairs))


def collectives_section(labels: Sequence[str], pairs: Sequence[Comparison]) -> Section:
    """Per kind of collective and run: count, bytes and time of a step."""
    title = "Collectives"
    numbers = collective_table(pairs)
    if not numbers.rows:
        return Section("collectives", title)
    kinds = collective_kinds(pairs)
    times = {kind: in_every_run(pairs, f"{kind}_ns") for kind in kinds}
    data = [
        plotly_json.bars(label, [(times[kind][i] or 0.0) / 1e6 for kind in kinds], kinds, of_series(i))
        for i, label in enumerate(labels)
    ]
    words = "Time in collectives in one step of one rank, a bar per run. It includes waiting for other ranks."
    figure = _grouped("collectives", words, data, "time per step and rank (ms)", None)
    return Section("collectives", title, figures=[figure], tables=[numbers])


def kernels_section(pairs: Sequence[Comparison]) -> Section:
    """Kernels that appeared or vanished."""
    found = [
        (pair, kernel_rows(pair, other, _KERNELS, _KERNEL_WIDTH))
        for other, pair in zip(letters(pairs)[1:], pairs, strict=True)
    ]
    more = sum(len(pair.kernels) - len(rows) for pair, rows in found)
    tables = table(
        "The share is of the time of all kernels in the run that launched it",
        ("", "share", "kind", "kernel"),
        [row for _, rows in found for row in rows],
        left=4,
    )
    note = f"{more} shorter kernels are left out; `{PROGRAM} compare --json` has all." if more else ""
    return Section("kernels", "Kernels that appeared or vanished", tables=tables, note=note)


def _grouped(name: str, words: str, data: list[dict[str, Any]], axis: str, numbers: Table | None) -> Figure:
    """Bars of all runs beside each other, in the order of the command line."""
    axes = plotly_json.layout(axis, plotly_json.NAMES, barmode="group")
    height = plotly_json.bars_height(max(len(data[0]["y"]) * (len(data) + 1) // 2, 2))
    return Figure(name, words, data, axes, height, numbers, wide=True)


def _precisions(pairs: Sequence[Comparison]) -> list[Table]:
    found = (precision_table(pair, other) for other, pair in zip(letters(pairs)[1:], pairs, strict=True))
    return [shown for shown in found if shown.rows]
