"""What the GPU tests claim of a report: a sound one passes, and each kind of damage is found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.gpu.claims import clocks_agree, conservation, idle_causes, kinds_of_work, launches, ran_in
from tests.gpu.test_gpu_faults import FAULTS, has_right_size
from tests.synthetic.one_gpu import event, launched, summary_of, training, written


@pytest.fixture
def summary(tmp_path: Path) -> dict[str, Any]:
    return summary_of(written(tmp_path / "rank0.json.gz", training()))


def test_a_sound_report_passes(summary: dict[str, Any]) -> None:
    for claim in (conservation, kinds_of_work, launches, idle_causes):
        claim(summary)


def test_a_lost_nanosecond_is_found(summary: dict[str, Any]) -> None:
    summary["devices"][0]["steps"][2]["idle_ns"] -= 1
    with pytest.raises(AssertionError, match="off by 1 ns"):
        conservation(summary)


def test_idle_time_without_a_cause_is_found(summary: dict[str, Any]) -> None:
    summary["idle_causes"][0]["duration_ns"] -= 5
    with pytest.raises(AssertionError):
        idle_causes(summary)


def test_a_kernel_of_no_known_kind_is_named(tmp_path: Path) -> None:
    trace = training()
    trace["traceEvents"] += launched("zzyzx", 99, 50.0, 120.0)
    with pytest.raises(AssertionError, match="zzyzx"):
        kinds_of_work(summary_of(written(tmp_path / "rank0.json.gz", trace)))


def test_kernels_without_a_launch_are_found(tmp_path: Path) -> None:
    trace = training()
    trace["traceEvents"].append(event("kernel", "gemm", 50.0, 1.0, device=0, stream=7, correlation=4711))
    with pytest.raises(AssertionError, match="6 of 7 kernels have a known launch"):
        launches(summary_of(written(tmp_path / "rank0.json.gz", trace)))


def test_two_clocks_that_differ_are_found(summary: dict[str, Any]) -> None:
    summary["training"] = [{"median_step_ns": 1_040_000}]
    clocks_agree(summary)
    summary["training"] = [{"median_step_ns": 1_200_000}]
    with pytest.raises(AssertionError):
        clocks_agree(summary)


def test_a_precision_other_than_the_requested_one_is_found(summary: dict[str, Any]) -> None:
    ran_in(summary, "bf16")
    with pytest.raises(AssertionError):
        ran_in(summary, "fp32")


@pytest.mark.parametrize(
    ("name", "lost_ns", "right"),
    [
        *(("fault-data-stall", lost, right) for lost, right in ((110, True), (70, False), (130, False))),
        *(("fp32", lost, right) for lost, right in ((40, True), (130, False))),
    ],
)
def test_milliseconds_are_right_within_a_quarter_and_a_lower_bound_may_be_low(
    name: str, lost_ns: float, right: bool
) -> None:
    assert has_right_size(FAULTS[name], lost_ns, cost_ns=100) is right
