"""Findings on a GPU that its kernels and ranges show: precision, a range with a number."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from harness.analysis.summary import Summary, TimeLost
from harness.explain.answer import answer
from harness.measure.paths import measure_one
from tests.report.given_summary import text
from tests.synthetic import one_gpu

STEPS = 6
HOST_US = 50.0  # that a step takes on the host, which is ahead of the device
TF32 = "sm86_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckcrs_nhwc_tilesize128x128x16_stage4_cudnn"
FP32 = "ampere_sgemm_128x64_nn"
BF16 = "ampere_bf16_s16816gemm_bf16_128x128"


def busy(kernels: list[tuple[str, float]], steps: int = STEPS) -> list[one_gpu.Event]:
    """Steps in which the device runs these kernels of so many µs, one after the other, all launched ahead."""
    events: list[one_gpu.Event] = []
    begin = HOST_US
    for n in range(steps):
        events.append(one_gpu.event("user_annotation", f"ProfilerStep#{n}", HOST_US * n, HOST_US))
        for i, (name, us) in enumerate(kernels):
            number = n * len(kernels) + i + 1
            launch = HOST_US * n + 5 * i
            events.append(one_gpu.event("cuda_runtime", "cudaLaunchKernel", launch, 3.0, correlation=number))
            on_device: dict[str, Any] = {"device": 0, "stream": 7, "correlation": number}
            events.append(one_gpu.event("kernel", name, begin, us, tid=7, **on_device))
            begin += us
    return events


def measured(tmp_path: Path, events: list[one_gpu.Event]) -> Summary:
    return measure_one([one_gpu.written(tmp_path / "rank0.json.gz", one_gpu.document(events))])


def found(summary: Summary, cause: str) -> TimeLost | None:
    return next((one for one in summary.findings if one.cause == cause), None)


@pytest.mark.parametrize(("name", "saved"), [(FP32, 1 / 2), (TF32, 1 / 3)])
def test_products_in_32_bits_are_told_with_what_16_bits_save_at_least(tmp_path: Path, name: str, saved: float) -> None:
    summary = measured(tmp_path, busy([(name, 600), ("vectorized_elementwise_kernel", 400)]))
    products = found(summary, "fp32")
    assert products is not None
    assert products.lost_ns == pytest.approx(600_000 * saved, rel=0.02)
    precision = "tf32" if name is TF32 else "fp32"
    assert re.search(rf"\({precision} 60\.0 % of the device's work\)", text(answer(summary)))


def test_a_model_in_16_bits_and_in_one_layout_has_neither(tmp_path: Path) -> None:
    summary = measured(tmp_path, busy([(BF16, 600), ("vectorized_elementwise_kernel", 400)]))
    assert summary.findings == []


def test_a_range_with_a_number_in_its_name_keeps_its_name(tmp_path: Path) -> None:
    events = one_gpu.launched(BF16, 1, 20, 100.0)
    for n in range(4):
        begin = 200 + 1000.0 * n
        events.append(one_gpu.event("user_annotation", f"ensure_layer_{n}_weights", begin, 900.0))
        events += one_gpu.launched(BF16, n + 10, begin + 950, 20.0)
    said = text(answer(measured(tmp_path, events)))
    assert "ensure_layer_#_weights" in said
