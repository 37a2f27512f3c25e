"""No finding claims more than the devices' time allows, whatever the trace."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.measure.paths import measure_jobs
from tests.real_traces import FOLDER, needs_real_traces
from tests.replay.invariants import broken
from tests.replay.replaying import summary_of
from tests.synthetic.simulated import MS, US, Costs, CpuJob, GpuJob

_STEPS = 5
_times = st.integers(1, 30)
_late = st.dictionaries(
    st.tuples(st.integers(0, 1), st.integers(0, _STEPS - 1)), st.integers(0, 20).map(lambda ms: ms * MS), max_size=8
)


@settings(max_examples=25, deadline=None)
@given(launch=_times, kernel=_times, transfer=_times, late=_late)
def test_no_finding_on_gpus_exceeds_its_devices_time(
    launch: int, kernel: int, transfer: int, late: dict[tuple[int, int], int]
) -> None:
    job = GpuJob(
        steps=_STEPS, launch_ns=10 * launch * US, kernel_ns=10 * kernel * US, transfer_ns=100 * transfer * US, late=late
    )
    assert not broken(summary_of(job.traces()))


@settings(max_examples=15, deadline=None)
@given(late=_late, messages=st.integers(1, 6))
def test_no_finding_on_cpus_exceeds_its_processes_time(late: dict[tuple[int, int], int], messages: int) -> None:
    job = CpuJob(Costs(ranks=2, steps=_STEPS, messages=messages, stalls=late))
    assert not broken(summary_of(job.traces()))


@needs_real_traces
@pytest.mark.parametrize("folder", sorted(path.name for path in FOLDER.glob("*/")) if FOLDER.is_dir() else [])
def test_no_finding_on_real_traces_exceeds_its_devices_time(folder: str) -> None:
    paths = [path for path in sorted((FOLDER / folder).iterdir()) if path.suffix != ".nsys-rep"]
    jobs = [[path] for path in paths] if folder != "kineto_dlrm_v100_8ranks" else [[FOLDER / folder]]
    for job in jobs:
        for summary in measure_jobs([Path(path) for path in job]):
            assert not broken(summary), job
