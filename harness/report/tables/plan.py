"""The table of what a run's plan predicted, beside what was measured."""

from __future__ import annotations

from harness.analysis.summary import Predicted
from harness.format.format import quantity, quantity_range
from harness.report.tables.table import Column, TableOf, file_of


def _expected(row: Predicted) -> str:
    if row.low is None or row.high is None:
        return quantity(row.predicted, row.unit)
    return quantity_range(row.low, row.high, row.unit)


PREDICTIONS = TableOf[Predicted](
    caption="Numbers of the plan, and measured numbers",
    rows=lambda s: s.predictions,
    columns=(
        Column("what", lambda p: p.label),
        Column("predicted", _expected),
        Column("measured", lambda p: quantity(p.measured, p.unit)),
        Column("measured / predicted", lambda p: f"{p.ratio:.2f}"),
    ),
    section="steps",
    topic="the plan",
    file=file_of("predictions"),
)
