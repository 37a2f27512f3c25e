"""What the GPU tests claim of a report: a sound one passes, and each kind of damage is found."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.claims import clocks_agree, conservation, idle_causes, kinds_of_work, launches, ran_in
from tests.gpu.test_gpu_faults import FAULTS, has_right_size
from tests.synthetic.one_gpu import event, launched, summary_of, training, written

LOST = event("kernel", "gemm", 50.0, 1.0, device=0, stream=7, correlation=4711)  # no call launched it


@pytest.fixture
def summary(tmp_path: Path) -> dict[str, Any]:
    return summary_of(written(tmp_path / "rank0.json.gz", training()))


def test_a_sound_report_passes(summary: dict[str, Any]) -> None:
    for claim in (conservation, kinds_of_work, launches, idle_causes):
        claim(summary)
    ran_in(summary, "bf16")
    summary["training"] = [{"median_step_ns": 1_040_000}]
    clocks_agree(summary)


@pytest.mark.parametrize(
    ("table", "field", "changed", "claim"),
    [
        ("devices", "idle_ns", 1, conservation),
        ("idle_causes", "duration_ns", 1, idle_causes),
        ("training", "median_step_ns", 1_200_000, clocks_agree),
        ("kinds", "precision", "fp32", partial(ran_in, precision="bf16")),
    ],
)
def test_a_field_that_is_wrong_is_found(
    summary: dict[str, Any], table: str, field: str, changed: object, claim: Callable[[dict[str, Any]], None]
) -> None:
    summary["training"] = [{"median_step_ns": 1_000_000}]
    for row in summary[table]:
        row[field] = changed
    with pytest.raises(AssertionError):
        claim(summary)


@pytest.mark.parametrize(
    ("events", "claim", "said"),
    [
        (launched("zzyzx", 99, 50.0, 120.0), kinds_of_work, "zzyzx"),
        ([LOST], launches, "6 of 7 kernels have a known launch"),
    ],
    ids=["of no known kind", "without a launch"],
)
def test_a_kernel_that_a_report_cannot_place_is_found(
    tmp_path: Path, events: list[dict[str, Any]], claim: Callable[[dict[str, Any]], None], said: str
) -> None:
    trace = training()
    trace["traceEvents"] += events
    with pytest.raises(AssertionError, match=said):
        claim(summary_of(written(tmp_path / "rank0.json.gz", trace)))


@pytest.mark.parametrize(
    ("name", "lost_ns", "right"),
    [
        *(("fault-sync", lost, right) for lost, right in ((110, True), (70, False), (130, False))),
        *(("fp32", lost, right) for lost, right in ((40, True), (130, False))),
    ],
)
def test_milliseconds_are_right_within_a_quarter_and_a_lower_bound_may_be_low(
    name: str, lost_ns: float, right: bool
) -> None:
    assert has_right_size(FAULTS[name], lost_ns, cost_ns=100) is right
