"""Devices that are no GPUs of NVIDIA or AMD, and devices of which nothing was recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.analysis.summary import RecordingVerdict, Summary, problem_texts
from harness.explain.answer import answer
from harness.measure.paths import measure_one
from tests.report.given_summary import text
from tests.synthetic import kineto

# 100 ns of which the device of MTIA works 50, and the host's operators fill 100.
ACCELERATED = [
    kineto.operator("aten::mm", 0, 100),
    kineto.record("mtia_runtime", "runFunction", 5, 10, pid=50, tid=100, correlation=1),
    kineto.record("mtia_ccp_events", "fc-dtype_Float", 20, 30, pid=9, tid=408, correlation=1, stream=3),
    kineto.record("mtia_ccp_events", "event_wait", 50, 40, pid=9, tid=408, stream=3),
    kineto.record(
        "mtia_ccp_events", "dma_request", 80, 20, pid=9, tid=801, direction="HOST_TO_DEVICE", size=4096
    ),
]  # fmt: skip
NO_GPU = kineto.HEADER | {"deviceProperties": []}


def written(tmp_path: Path, records: list[kineto.Record], header: dict[str, Any] = NO_GPU) -> Path:
    return kineto.kineto(tmp_path / "t.json", records, header=header)


def test_the_accelerator_has_its_name_and_its_own_idle_time(tmp_path: Path) -> None:
    (device,) = measure_one([written(tmp_path, ACCELERATED)]).devices
    assert (device.name, device.device_kind) == ("MTIA", "gpu")
    assert (device.window_ns, device.compute_ns, device.memory_ns, device.idle_ns) == (80, 30, 20, 30)


def launches(count: int) -> list[kineto.Record]:
    return [kineto.call("cudaLaunchKernel", 10 * i, 5, correlation=i) for i in range(count)]


def only_launched(tmp_path: Path, header: dict[str, Any]) -> Summary:
    operators = [kineto.operator("aten::mm", 10 * i, 9) for i in range(20)]
    return measure_one([written(tmp_path, [*operators, *launches(20)], header)])


@pytest.mark.parametrize("header", [NO_GPU, kineto.HEADER], ids=["no device named", "a device named"])
def test_the_host_does_not_stand_in_for_a_device_that_was_used(tmp_path: Path, header: dict[str, Any]) -> None:
    found = only_launched(tmp_path, header)
    assert (found.devices, found.findings) == ([], [])
    assert found.quality.verdict is not RecordingVerdict.GOOD
    assert problem_texts.DEVICE_MISSING in [problem.what for problem in found.quality.problems]
    said = text(answer(found))
    assert "20 calls put work on a device, and no kernel, copy or set is in the file" in said
    assert "comput" not in said
