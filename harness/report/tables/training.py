"""The tables of what the training said of itself, and of the plan beside it."""

from __future__ import annotations

from harness.analysis import summary
from harness.analysis.summary import Summary
from harness.common.display.format import amount, quantity, quantity_range
from harness.report.tables.kernels import _MANY_RANKS
from harness.report.tables.table import Column, TableOf, file_of


def _expected(predicted_number: summary.PredictedNumber) -> str:
    if predicted_number.low is None or predicted_number.high is None:
        return quantity(predicted_number.predicted, predicted_number.unit)
    return quantity_range(predicted_number.low, predicted_number.high, predicted_number.unit)


PREDICTIONS = TableOf[summary.PredictedNumber](
    caption="Numbers of the plan, and measured numbers",
    rows=lambda s: s.predictions,
    columns=(
        Column("what", "label"),
        Column("predicted", _expected),
        Column("measured", lambda p: quantity(p.measured, p.unit)),
        Column("measured / predicted", lambda p: f"{p.ratio:.2f}"),
    ),
    section="steps",
    file=file_of("predictions"),
)


def _own_clock(s: Summary) -> str:
    phase = next((t.phase_counted for t in s.training), None)
    return f"Training's own clock, medians of {phase or 'all'} steps"


TRAINING = TableOf[summary.RankTraining](
    caption=_own_clock,
    rows=lambda s: s.training,
    columns=(
        Column("rank", "rank"),
        Column("steps", lambda t: f"{t.steps_counted}/{t.steps_total}"),
        Column("step", "median_step_ns"),
        Column("data", "median_data_ns"),
        Column("forward", "median_forward_ns"),
        Column("backward", "median_backward_ns"),
        Column("optimizer", "median_optimizer_ns"),
        Column("speed", lambda t: amount(t.tokens_per_s, "tokens/s")),
        Column("loss", lambda t: "–" if t.last_loss is None else f"{t.last_loss:.4f}"),
        Column("peak memory", "peak_memory_bytes"),
        Column("recording adds", lambda t: amount(t.profiler_memory_bytes or None)),
        Column("status", "status"),
    ),
    section="steps",
    spare=("steps", "loss", "status", "recording adds", "peak memory"),
    most=_MANY_RANKS,
    rest="ranks",
    file=file_of("training"),
)
