"""Exercise 1 with Kineto, as students run it: five runs, their step, speed, MFU and HFU, and what each report shows."""

from __future__ import annotations

import json
from collections.abc import Callable
from statistics import median
from typing import Any

import pytest

from tests.gpu.claims import Claim, Summary, of_each_report, ran_in
from tests.gpu.machine import has_gpu
from tests.gpu.work import BF16, EXERCISE_1, WINDOW, Run, Work, figures

pytestmark = pytest.mark.gpu
GOAL_MFU = 0.5
Record = Callable[[str, Any], None]


@pytest.fixture(scope="session", params=EXERCISE_1)
def run(request: pytest.FixtureRequest, work: Work) -> Run:
    return work.exercise_1(request.param)


def test_it_trains(run: Run, record_property: Record) -> None:
    numbers = figures(run.summary)
    record_property("run", numbers | {"unprofiled_step_ns": unprofiled_step_ns(run)})
    tables = ("kinds", "idle_causes", "quality", "copies")
    record_property("report", {key: run.summary[key] for key in tables} | {"kernels": run.summary["kernels"][:15]})
    assert numbers["step_ns"] > 0


def unprofiled_step_ns(run: Run) -> float | None:
    """The median step before the profiler is set up, without the first two; the difference is the cost of profiling."""
    lines = map(json.loads, (run.path / "metrics/rank0.jsonl").read_text(encoding="utf-8").splitlines())
    steps: list[int] = [line["step_ns"] for line in lines if line.get("event") == "step" and line["phase"] == "skip"]
    return median(steps[2:]) if len(steps) > 2 else None


@of_each_report
def test_its_report(run: Run, claim: Claim) -> None:
    claim(run.summary)


def test_its_products_have_the_precision_that_was_requested(run: Run) -> None:
    ran_in(run.summary, "fp32" if run.name == "fp32" else "bf16")


@pytest.mark.usefixtures("gpu")
def test_its_device_is_a_gpu(run: Run) -> None:
    assert {device["device_kind"] for device in run.summary["devices"]} == {"gpu"}


def test_its_answer_has_a_step(run: Run, work: Work, record_property: Record) -> None:
    report = work.harness(["report", run.path, "--no-html"])
    answer = " ".join((report.rpartition("\n\n")[0] or report).split())  # without its page and the command for more
    record_property("answer", answer)
    from harness.analysis.summary import problem_texts

    beside_others = not has_gpu() and problem_texts.BUSY in answer  # a CPU that other tests use: no time is certain
    assert " a step" in answer or beside_others


def test_waiting_for_data_is_seen_where_it_is_slow(work: Work) -> None:
    slow, usual = (data_loading(work.exercise_1(name).summary) for name in ("slow-data", "bf16"))
    assert slow > 2 * usual


def data_loading(summary: Summary) -> float:
    """The share of the window in which the devices wait for data."""
    waited: int = sum(c["duration_ns"] for c in summary["idle_causes"] if c["cause"] == "data loading")
    window: int = sum(device["window_ns"] for device in summary["devices"])
    return waited / window


@pytest.mark.usefixtures("gpu")  # a CPU's process holds more than activations
def test_checkpointing_saves_memory_and_its_hfu_is_above_its_mfu(work: Work) -> None:
    with_it, without = (figures(work.exercise_1(name).summary) for name in ("checkpointing", "bf16"))
    assert with_it["peak_memory_bytes"] < without["peak_memory_bytes"]
    assert with_it["hfu"] > with_it["mfu"]


@pytest.mark.usefixtures("gpu")  # the peak of a CPU is not measured
def test_mfu_in_bf16_reaches_half(work: Work, record_property: Record) -> None:
    """With the model file's micro-batch, else with four times as much in the same optimizer step."""
    reached = figures(work.exercise_1("bf16").summary)["mfu"]
    if reached is not None and reached < GOAL_MFU:
        larger = work.launched("bf16-large-batch", "-e", "1", *BF16, *WINDOW, "--micro-batch-size", "16")
        record_property("mfu_of_the_usual_batch", reached)
        record_property("run", figures(larger.summary))
        reached = figures(larger.summary)["mfu"]
    assert reached is not None and reached >= GOAL_MFU
