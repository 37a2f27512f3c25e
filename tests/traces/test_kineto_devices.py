"""Devices that are no GPUs of NVIDIA or AMD, and devices of which nothing was recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.analysis.summary import RecordingVerdict, Summary, problem_texts
from harness.explain.answer import answer
from harness.measure.paths import measure_one
from harness.traces import open_trace
from harness.traces.trace import Activity, CopyKind, Trace
from tests.report.given_summary import text
from tests.synthetic import kineto

NO_GPU = kineto.HEADER | {"deviceProperties": []}


def written(tmp_path: Path, records: list[kineto.Record], header: dict[str, Any] = NO_GPU) -> Path:
    return kineto.kineto(tmp_path / "t.json", records, header=header)


def mtia(name: str, start_ns: int, length_ns: int, *, tid: int = 408, **more: object) -> kineto.Record:
    return kineto.record("mtia_ccp_events", name, start_ns, length_ns, pid=9, tid=tid, **more)


def runtime(start_ns: int, correlation: int) -> kineto.Record:
    return kineto.record("mtia_runtime", "runFunction", start_ns, 10, pid=50, tid=100, correlation=correlation)


def of(trace: Trace, activity: Activity) -> dict[str, tuple[int, int]]:
    events = trace.events
    rows = np.flatnonzero(events.activity == activity).tolist()
    return {trace.names[events.name[i]]: (int(events.start_ns[i]), int(events.end_ns[i])) for i in rows}


@pytest.fixture
def accelerated(tmp_path: Path) -> Path:
    """100 ns of which the device of MTIA works 50, and the host's operators fill 100."""
    return written(
        tmp_path,
        [
            kineto.operator("aten::mm", 0, 100),
            runtime(5, 1),
            mtia("fc-dtype_Float", 20, 30, correlation=1, stream=3),
            mtia("event_wait", 50, 40, stream=3),
            mtia("dma_request", 80, 20, tid=801, direction="HOST_TO_DEVICE", size=4096),
        ],
    )


def test_the_device_is_the_accelerator_and_not_the_host(accelerated: Path) -> None:
    trace = open_trace(accelerated)
    assert of(trace, Activity.KERNEL) == {"fc-dtype_Float": (20, 50)}
    assert of(trace, Activity.MEMCPY) == {"Memcpy HtoD": (80, 100)}
    assert not of(trace, Activity.CPU_OP)
    kernel, copy = trace.events.activity.tolist().index(Activity.KERNEL), trace.events.bytes.tolist().index(4096)
    assert (trace.events.launch_ns[kernel], trace.events.stream[kernel]) == (5, 3)
    assert (trace.events.copy_kind[copy], trace.events.stream[copy]) == (CopyKind.H2D, 801)


def test_the_accelerator_has_its_name_and_its_own_idle_time(accelerated: Path) -> None:
    (device,) = measure_one([accelerated]).devices
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


def test_a_launch_of_nothing_but_the_host_is_no_use_of_a_device(tmp_path: Path) -> None:
    records = [kineto.operator("aten::mm", 0, 100), kineto.call("cudaGetDeviceCount", 5, 5)]
    assert of(open_trace(written(tmp_path, records)), Activity.CPU_OP) == {"aten::mm": (0, 100)}
