"""Real traces from real GPUs: the numbers of truth.json, and what their folders' description says of them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from harness.traces import find_traces, open_trace
from harness.traces.trace import Activity, Events, Trace
from tests.real_traces import FOLDER, TRUTH, needs_real_traces

pytestmark = needs_real_traces


def union_ns(events: Events, rows: NDArray[np.bool_]) -> int:
    start, end = events.start_ns[rows], events.end_ns[rows]
    order = np.argsort(start, kind="stable")
    start, reach = start[order], np.maximum.accumulate(end[order])
    covered = np.append(start[:1], reach[:-1])
    return int((reach - np.minimum(np.maximum(start, covered), reach)).sum())


def split(trace: Trace, device: int) -> dict[str, int]:
    e = trace.events
    here = e.device == device
    kernel = here & (e.activity == Activity.KERNEL)
    talks = kernel & np.array(["nccl" in name.lower() for name in trace.names])[e.name]
    window = int(e.end_ns[here].max() - e.start_ns[here].min())
    compute = union_ns(e, kernel & ~talks)
    return {
        "gpu_events": int(here.sum()),
        "kernels": int(kernel.sum()),
        "window_ns": window,
        "idle_ns": window - union_ns(e, here),
        "compute_ns": compute,
        "communication_ns": union_ns(e, talks),
        "exposed_communication_ns": union_ns(e, kernel) - compute,
        "memory_ns": union_ns(e, here & ~kernel),
    }


@pytest.mark.parametrize("name", TRUTH)
def test_every_number_of_the_truth_is_met_to_the_nanosecond(name: str) -> None:
    trace = open_trace(FOLDER / name)
    expected = TRUTH[name].get("exact_by_device") or {"0": TRUTH[name]["exact"]}
    assert {str(d) for d in trace.events.device.tolist()} <= set(map(str, range(8)))
    for device, numbers in expected.items():
        number = int(trace.events.device[0]) if "exact" in TRUTH[name] else int(device)
        measured = split(trace, number)
        assert {key: measured[key] for key in numbers if key in measured} == {
            key: value for key, value in numbers.items() if key in measured
        }


def test_a_report_is_what_its_export_is(
    tmp_path: Path, nsys_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(nsys_folder), prepend=os.pathsep)
    report = tmp_path / "rank0.nsys-rep"
    shutil.copyfile(FOLDER / "nsys_a100_ddp_4gpu/rank0.nsys-rep", report)
    heard: list[int] = []
    trace = open_trace(report, progress=lambda done, total: heard.append(100 * done // total))
    expected = TRUTH["nsys_a100_ddp_4gpu/rank0.sqlite.gz"]["exact_by_device"]["0"]
    measured = split(trace, 0)
    assert {key: measured[key] for key in expected} == expected
    assert len(trace.collectives) == 472 and trace.identity.tool_version
    assert max(heard) == 100 and len(set(heard)) > 2


def test_eight_ranks_are_one_job() -> None:
    traces = [open_trace(path) for path in find_traces([FOLDER / "kineto_dlrm_v100_8ranks"])]
    assert [t.identity.rank for t in traces] == list(range(8))
    assert {t.identity.world_size for t in traces} == {8}
    assert {len(t.collectives) for t in traces} == {8}
    kinds = {tuple(t.names[i] for i in t.collectives.kind) for t in traces}
    assert len(kinds) == 1 and {"all_reduce", "all_to_all"} == set(kinds.pop())
    assert all((t.collectives.bytes > 0).all() for t in traces), "the spans' shapes give the sizes"


def test_collective_arguments_are_read() -> None:
    trace = open_trace(FOLDER / "kineto_a100_collective_args/rank0.json.gz")
    c = trace.collectives
    assert len(c) == 21 and (c.bytes > 0).all() and set(c.group_size.tolist()) == {2}
    assert {trace.names[i] for i in c.group} == {"0"}
    assert "cuda_runtime" not in trace.names and trace.identity.device_names[0].startswith("NVIDIA A100")


def test_nsys_sums_are_those_of_the_kernel_table() -> None:
    trace = open_trace(FOLDER / "nsys_a100_ddp_4gpu/rank0.sqlite.gz")
    c = trace.collectives
    assert len(c) == 472 and {trace.names[i] for i in c.kind} == {"all_reduce"}
    assert int((c.end_ns - c.start_ns).sum()) == 292_789_300
    domains = {trace.names[i] for i in set(trace.ranges.domain.tolist()) - {-1}}
    assert "NCCL" in domains
    assert trace.dropped_events == 26


@pytest.mark.parametrize(
    ("name", "kernel", "count", "sum_ns"),
    [("before", "ncclDevKernel_SendRecv", 66, 25_401_752), ("before", "flash_fwd_kernel", 68, 272_317_378),
     ("after", "ncclDevKernel_SendRecv", 62, 33_742_101), ("after", "flash_fwd_kernel", 60, 240_755_667)],
)  # fmt: skip
def test_both_devices_of_a_report_are_counted(name: str, kernel: str, count: int, sum_ns: int) -> None:
    trace = open_trace(FOLDER / f"nsys_h100_2gpu_ab/{name}.sqlite")
    e = trace.events
    rows = np.array([kernel in text for text in trace.names])[e.name]
    assert (int(rows.sum()), int((e.end_ns - e.start_ns)[rows].sum())) == (count, sum_ns)
    assert set(e.device.tolist()) == {0, 1}
