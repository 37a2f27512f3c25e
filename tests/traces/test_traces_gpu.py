"""Traces of an H100 (by scripts/gpu-acceptance) and of an H200 (small trainings with one fault each), and their truth.

truth.json: counted by tests/gpu/truth.py, which shares no line with the product. `fault`: the step with the
fault minus the step without it, by the training's own clock; with the profiler where the profiler's cost matters.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from harness.analysis.summary import Summary
from harness.explain.answer import answer
from harness.measure.paths import measure_one
from tests.report.given_summary import text

FOLDER = Path(__file__).parents[1] / "data"
TRUTH: dict[str, Any] = {
    f"{gpu}/{name}": known
    for gpu in ("h100", "h200")
    for name, known in json.loads((FOLDER / gpu / "truth.json").read_text(encoding="utf-8")).items()
}
FAULTS = {name: known["fault"] for name, known in TRUTH.items() if "fault" in known}


@cache
def summary(name: str, window: str = "steps") -> Summary:
    return measure_one([FOLDER / name], window)


def test_every_trace_has_its_truth() -> None:
    files = [path for gpu in ("h100", "h200") for path in (FOLDER / gpu).glob("*.json.gz")]
    assert sorted(TRUTH) == sorted(f"{path.parent.name}/{path.name}" for path in files) and len(TRUTH) == 22


@pytest.mark.parametrize("name", TRUTH)
def test_every_number_of_the_device_is_the_truth_to_the_nanosecond(name: str) -> None:
    (device,) = summary(name, "gpu").devices
    (known,) = TRUTH[name]["devices"].values()
    assert {key: getattr(device, key) for key in known} == known
    kernels = summary(name, "gpu").kernels
    assert sum(kernel.duration_ns for kernel in kernels) == TRUTH[name]["kernels"]["duration_ns"]
    assert sum(kernel.count for kernel in kernels) == TRUTH[name]["kernels"]["count"]


@pytest.mark.parametrize("name", TRUTH)
def test_every_kind_of_work_and_its_precision_is_told(name: str) -> None:
    products: dict[str, int] = {}
    for kind in summary(name).kinds:
        assert kind.kind != "other" or kind.share < 0.01
        if kind.kind in ("gemm", "attention"):
            of = kind.precision or "unknown"
            products[of] = products.get(of, 0) + kind.duration_ns
    unknown, every = products.pop("unknown", 0), sum(products.values())
    assert products[TRUTH[name]["precision"]] > 0.99 * every
    assert unknown < 0.3 * every, "cuDNN's attention, whose names say f16 for both kinds of 16 bits"
    assert all(part.with_known_launch == part.kernels for part in summary(name).launches)


@pytest.mark.parametrize("name", FAULTS)
def test_the_first_finding_is_the_fault(name: str) -> None:
    first, known = summary(name).findings[0], FAULTS[name]
    assert first.cause == known["cause"]
    if name.startswith(("h100/fault-", "h200/")) and known["cause"] != "fp32":  # the others are host-bound without it
        assert first.lost_ns == pytest.approx(known["measured_ns"], rel=0.25)
    assert first.lost_ns < 1.25 * known["measured_ns"]


@pytest.mark.parametrize(
    "name", ["h100/graphs.json.gz", "h100/compile.json.gz", "h100/fp8.json.gz", "h200/mfu-compiled.json.gz"]
)
def test_nothing_avoidable_is_found_where_nothing_was_planted(name: str) -> None:
    assert summary(name).findings == []


def test_idle_time_of_which_nothing_is_a_finding_has_its_causes_in_the_answer() -> None:
    found = summary("h100/compile.json.gz")
    assert "3.6 % of the time is idle, of several causes, each below 3.0 %." in text(answer(found))
    (largest, *_) = sorted(found.idle_causes, key=lambda one: -one.duration_ns)
    bound = largest.model_copy(update={"cause": "launch-bound", "share": 0.9})
    said = text(answer(found.model_copy(update={"idle_causes": [bound]})))
    assert "3.6 % of the time is idle, of which the largest known part is launch-bound: 3.3 % of the time." in said
    unknown = largest.model_copy(update={"cause": "not recorded", "share": 0.9})
    said = text(answer(found.model_copy(update={"idle_causes": [unknown]})))
    assert "3.6 % of the time is idle without a known cause." in said


def test_a_copy_of_pageable_memory_holds_the_host_although_its_call_returns_before_its_end() -> None:
    """The call returns some microseconds before such a copy ends: its last part is still in the driver's buffer."""
    said = text(answer(summary("h200/pageable.json.gz")))
    assert "copies from pageable host memory to the device, 1.34 GB at 6.16 GB/s" in said
    assert "pin_memory=True" in said


def test_much_elementwise_work_names_the_compiler_that_gained_a_quarter_on_this_gpu() -> None:
    """Measured: a step of 181 ms took 132 ms with torch.compile (docs/development/gpu.md)."""
    said = text(answer(summary("h200/mfu-eager.json.gz")))
    assert "torch.compile fuses such kernels" in said
    assert "torch.compile" not in text(answer(summary("h200/mfu-compiled.json.gz")))
