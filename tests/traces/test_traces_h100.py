"""Traces of an H100 in this repository (tests/data/h100), as scripts/gpu-acceptance made them, and their truth.

truth.json: counted by scripts/acceptance/truth.py, which shares no line with the product. `fault`: the step with the
fault minus the step without it, by the training's own clock, with the profiler.
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

FOLDER = Path(__file__).parents[1] / "data" / "h100"
TRUTH: dict[str, Any] = json.loads((FOLDER / "truth.json").read_text(encoding="utf-8"))
FAULTS = {name: known["fault"] for name, known in TRUTH.items() if "fault" in known}


@cache
def summary(name: str, window: str = "steps") -> Summary:
    return measure_one([FOLDER / name], window)


def test_every_trace_has_its_truth() -> None:
    assert sorted(TRUTH) == sorted(path.name for path in FOLDER.glob("*.json.gz")) and len(TRUTH) == 10


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
    assert unknown < 0.15 * every, "cuDNN's attention, whose names say f16 for both kinds of 16 bits"
    assert all(part.with_known_launch == part.kernels for part in summary(name).launches)


@pytest.mark.parametrize("name", FAULTS)
def test_the_first_finding_is_the_fault(name: str) -> None:
    first, known = summary(name).findings[0], FAULTS[name]
    assert first.cause == known["cause"]
    if name.startswith("fault-"):  # nothing else differs; the others are host-bound without their fault
        assert first.lost_ns == pytest.approx(known["measured_ns"], rel=0.25)
    assert first.lost_ns < 1.25 * known["measured_ns"]


@pytest.mark.parametrize("name", ["graphs.json.gz", "compile.json.gz", "fp8.json.gz"])
def test_nothing_avoidable_is_found_where_nothing_was_planted(name: str) -> None:
    assert summary(name).findings == []


def test_idle_time_of_which_nothing_is_a_finding_has_its_causes_in_the_answer() -> None:
    found = summary("compile.json.gz")
    assert "3.6 % of the time is idle, of several causes, each below 3.0 %." in " ".join(answer(found).sentences)
    (largest, *_) = sorted(found.idle_causes, key=lambda one: -one.duration_ns)
    bound = largest.model_copy(update={"cause": "launch-bound", "share": 0.9})
    said = " ".join(answer(found.model_copy(update={"idle_causes": [bound]})).sentences)
    assert "3.6 % of the time is idle, of which the largest known part is launch-bound: 3.3 % of the time." in said
    unknown = largest.model_copy(update={"cause": "not recorded", "share": 0.9})
    said = " ".join(answer(found.model_copy(update={"idle_causes": [unknown]})).sentences)
    assert "3.6 % of the time is idle without a known cause." in said
