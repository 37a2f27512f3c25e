"""A run keeps its plan, and its report shows it beside what was measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.analysis.summary import Efficiency, RankTraining, Summary
from harness.experiment.exercises import DDP
from harness.launch.submit import prepare
from harness.measure.run_contents import predicted_and_measured, read_plan
from harness.plan.numbers import plan_text
from harness.plan.plan import plan_of
from harness.report.tables.catalogue import page_tables
from harness.run import Run
from harness.run.record import Status
from harness.site.site import load_site

PARAMETERS = 1000


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("HARNESS_RUNS", str(tmp_path))
    made = Run(tmp_path)
    prepared = prepare(DDP(gpus_per_node=2), load_site("local"))
    made.plan.write_text(plan_text(plan_of(prepared)), encoding="utf-8")
    return made


def measured() -> Summary:
    training = [
        RankTraining(rank=rank, tokens=768, samples=4, steps_counted=2, peak_memory_bytes=700_000_000, parameters=1000)
        for rank in range(2)
    ]
    return Summary(world_size=2, training=training, efficiency=Efficiency(tokens_per_s=20_000))


def rows(run: Run, summary: Summary | None = None) -> dict[str, Any]:
    found = predicted_and_measured(summary or measured(), read_plan(run))
    return {row.name: row for row in found}


def test_each_prediction_stands_beside_the_metric_of_its_name(run: Run) -> None:
    found = rows(run)
    assert found["tokens_per_step"].predicted == found["tokens_per_step"].measured == 2 * 2 * 192
    assert found["tokens_per_step"].ratio == 1
    assert found["peak_memory_bytes"].measured == 700_000_000
    assert found["peak_memory_bytes"].formula


def test_what_was_not_measured_is_not_in_the_table(run: Run) -> None:
    assert "all_reduce_bytes" not in rows(run), "there is no trace"
    assert "job_s" not in rows(run)
    assert rows(run, Summary()) == {}


def test_the_jobs_own_time_is_measured_from_its_start_to_its_end(run: Run) -> None:
    document = json.loads(run.plan.read_text(encoding="utf-8"))
    document["numbers"]["job_s"] = {"label": "the whole job", "value": 20, "unit": "s", "low": 10, "high": 40}
    run.plan.write_text(json.dumps(document), encoding="utf-8")
    run.write_status(Status(state="completed", started_ns=1_000_000_000, ended_ns=31_000_000_000))
    assert rows(run)["job_s"].measured == 30
    assert rows(run)["job_s"].ratio == 1.5


@pytest.mark.parametrize(
    "damaged", ["", "{", "[]", '{"numbers": 3}', '{"numbers": {"step_ns": {"value": "fast"}}}', "\x00"]
)
def test_a_damaged_plan_is_left_out_of_the_report(run: Run, damaged: str) -> None:
    run.plan.write_text(damaged, encoding="utf-8")
    assert rows(run) == {}
    run.plan.unlink()
    assert rows(run) == {}


def test_the_page_has_the_table_with_range_and_ratio(run: Run) -> None:
    document = json.loads(run.plan.read_text(encoding="utf-8"))
    speed = {"label": "tokens per second", "value": 20_000, "unit": "tokens/s", "low": 10_000, "high": 40_000}
    document["numbers"]["tokens_per_s"] = speed
    run.plan.write_text(json.dumps(document), encoding="utf-8")
    summary = measured()
    summary.predictions = predicted_and_measured(summary, read_plan(run))
    (table,) = [t for t in page_tables(summary, "steps") if t.caption.startswith("Numbers of the plan")]
    shown = [row for row in table.rows if row[0] == "tokens per second"]
    assert shown == [["tokens per second", "10.0 to 40.0 ktokens/s", "20.0 ktokens/s", "1.00"]]
