"""Real traces from real GPUs: the numbers of truth.json, and what their folders' description says of them."""

from __future__ import annotations

import os
import shutil
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

from harness.traces import find_traces, open_trace
from harness.traces.trace import Events
from tests.real_traces import FOLDER, needs_real_traces

pytestmark = needs_real_traces


def test_a_report_is_what_its_export_is(tmp_path: Path, nsys_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(nsys_folder), prepend=os.pathsep)
    report = tmp_path / "rank0.nsys-rep"
    shutil.copyfile(FOLDER / "nsys_a100_ddp_4gpu/rank0.nsys-rep", report)
    reported: list[int] = []
    trace = open_trace(report, progress=lambda done, total: reported.append(100 * done // total))
    export = open_trace(FOLDER / "nsys_a100_ddp_4gpu/rank0.sqlite.gz")
    assert trace.names == export.names
    for column in fields(Events):
        values = (getattr(read.events, column.name) for read in (trace, export))
        assert np.array_equal(*values), column.name
    assert len(trace.collectives) == 472 and trace.identity.tool_version
    assert max(reported) == 100 and len(set(reported)) > 2


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
