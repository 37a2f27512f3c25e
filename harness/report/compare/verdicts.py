"""The table of comparisons: two arms, their difference, and the verdict, a row for each comparison. Every command that
compares runs shows its result in it."""

from __future__ import annotations

from collections.abc import Sequence

from harness.common.display.format import metric_text
from harness.compare.comparison import ArmValue, Comparison
from harness.compare.verdict import ChangeVerdict
from harness.report.elements import PageTable
from harness.report.tables.table import Column

Row = tuple[str, Comparison]
_WORDS = {
    "step_ns": "step time",
    "step_ns_per_token": "step time per token",
    "mean_step_ns": "mean step time",
    "throughput": "throughput",
}


def metric_words(metric: str) -> str:
    """What a metric is called where it is judged."""
    return _WORDS.get(metric, metric)


def verdict_words(comparison: Comparison) -> str:
    """The verdict; of the same, within how much."""
    within = comparison.verdict is ChangeVerdict.SAME and comparison.threshold
    return comparison.verdict.value + (f" (within {100 * comparison.threshold:g} %)" if within else "")


def verdict_text(comparison: Comparison, *, doubtful: bool = False) -> str:
    """`worse, +12.3 % ± 1.1 %`; if nothing can be told, with the reason."""
    why = f" ({comparison.why})" if comparison.verdict in (ChangeVerdict.UNKNOWN, ChangeVerdict.NOT_COMPARABLE) else ""
    return f"{verdict_words(comparison)}{why}, {comparison.change}{', doubtful' * doubtful}"


def interval_text(comparison: Comparison) -> str:
    """`1.030, 95 % interval 1.020 to 1.040 (20 and 20 steps)`: b over a."""
    if comparison.ratio is None:
        return "–"
    ends = (
        f", 95 % interval {comparison.low:.3f} to {comparison.high:.3f}"
        if comparison.low is not None and comparison.high
        else ""
    )
    n = (comparison.a.steps, comparison.b.steps) if comparison.noise == "steps" else (comparison.a.n, comparison.b.n)
    return f"{comparison.ratio:.3f}{ends} ({n[0]} and {n[1]} steps)"


def verdict_table(rows: Sequence[Row], names: tuple[str, str], caption: str = "", label: str = "") -> PageTable:
    """A row for each comparison. names: of the arms. label: the head of the first column."""
    a, b = names
    columns: tuple[Column[Row], ...] = (
        Column(label, lambda row: row[0]),
        Column(a, lambda row: _value(row[1], row[1].a)),
        Column(b, lambda row: _value(row[1], row[1].b)),
        Column("difference", lambda row: row[1].change),
        Column("verdict", lambda row: verdict_words(row[1])),
    )
    cells = [column.cells(rows, on_page=False) for column in columns]
    return PageTable(caption, [str(column.head) for column in columns], list(zip(*cells, strict=True)))


def _value(comparison: Comparison, arm: ArmValue) -> str:
    return "–" if arm.value is None else metric_text(comparison.metric, arm.value)
