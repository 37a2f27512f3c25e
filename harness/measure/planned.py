"""The plan that a run kept, beside what was measured. A plan that is missing or damaged is left
out: it is no part of the recording."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from harness.analysis.metrics import metrics_by_name
from harness.analysis.summary import Predicted, Summary
from harness.common.bounded_read import read_bounded_json
from harness.run import Run

JOB_SECONDS = "job_s"


class _Number(BaseModel):
    """What is read of a number of plan.json."""

    model_config = ConfigDict(extra="ignore")

    label: str
    value: float
    unit: str
    low: float | None = None
    high: float | None = None
    formula: str | None = None
    source: str | None = None


class _Document(BaseModel):
    model_config = ConfigDict(extra="ignore")

    numbers: dict[str, _Number]


def read_plan(run: Run) -> dict[str, Any]:
    """The numbers of plan.json by name, and the seconds that the job took; empty without a plan that can be read."""
    try:
        plan = _Document.model_validate(read_bounded_json(run.plan))
    except (OSError, ValueError, ValidationError):
        return {}
    status = run.status()
    ended = status and status.ended_ns and status.started_ns and (status.ended_ns - status.started_ns) / 1e9
    return {"numbers": plan.numbers, "measured": {JOB_SECONDS: ended} if ended else {}}


def predicted_and_measured(summary: Summary, plan: Mapping[str, Any]) -> list[Predicted]:
    """Each number of the plan that has a metric of the same name, in the plan's order; a metric of 0 has none."""
    if not plan:
        return []
    return list(_rows(plan["numbers"], {**metrics_by_name(summary), **plan["measured"]}))


def _rows(numbers: Mapping[str, _Number], measured: Mapping[str, float]) -> Iterator[Predicted]:
    for name, number in numbers.items():
        found = measured.get(name)
        if found and number.value > 0:
            yield Predicted(
                name=name,
                label=number.label.strip(),
                unit=number.unit,
                predicted=number.value,
                low=number.low,
                high=number.high,
                measured=found,
                ratio=found / number.value,
                formula=number.formula,
                source=number.source,
            )
