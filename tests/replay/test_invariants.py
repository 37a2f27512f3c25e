"""No finding and no promise claims more than the devices' time allows, whatever the trace."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpu_jobs.conservation import broken_promises
from hypothesis import example, given, settings
from hypothesis import strategies as st

from harness.analysis.summary import WhatIf
from harness.measure.paths import measure_jobs
from tests.gallery import gallery_jobs
from tests.real_traces import FOLDER, needs_real_traces
from tests.replay.replaying import summary_of
from tests.synthetic.simulated import MS, US, Costs, CpuJob, GpuJob

_STEPS = 5
_times = st.integers(1, 30)
_late = st.dictionaries(
    st.tuples(st.integers(0, 1), st.integers(0, _STEPS - 1)), st.integers(0, 20).map(lambda ms: ms * MS), max_size=8
)


@settings(max_examples=25, deadline=None)
@given(launch=_times, kernel=_times, transfer=_times, late=_late)
@example(launch=1, kernel=1, transfer=1, late={(0, 2): 19 * MS})  # the sum of all was once more than the step
def test_nothing_on_gpus_exceeds_its_devices_time(
    launch: int, kernel: int, transfer: int, late: dict[tuple[int, int], int]
) -> None:
    job = GpuJob(
        steps=_STEPS, launch_ns=10 * launch * US, kernel_ns=10 * kernel * US, transfer_ns=100 * transfer * US, late=late
    )
    assert not broken_promises(summary_of(job.traces()))


@settings(max_examples=15, deadline=None)
@given(late=_late, messages=st.integers(1, 6))
def test_nothing_on_cpus_exceeds_its_processes_time(late: dict[tuple[int, int], int], messages: int) -> None:
    job = CpuJob(Costs(ranks=2, steps=_STEPS, messages=messages, stalls=late))
    assert not broken_promises(summary_of(job.traces()))


_FILES = [path for path in sorted(FOLDER.glob("*/*.*")) if path.suffix in (".gz", ".sqlite")]
_REAL = [
    FOLDER / "kineto_dlrm_v100_8ranks",
    *(path for path in _FILES if path.parent.name != "kineto_dlrm_v100_8ranks"),
]


@pytest.mark.parametrize(
    "job",
    [
        *(pytest.param(job, id=f"{job.parent.name}-{job.name}", marks=needs_real_traces) for job in _REAL),
        # a third of the gallery, as each takes a second
        *(
            pytest.param(job, id=job.name, marks=pytest.mark.long if i % 3 else ())
            for i, job in enumerate(gallery_jobs())
        ),
    ],
)
def test_nothing_on_real_traces_exceeds_its_devices_time(job: Path) -> None:
    for summary in measure_jobs([job]):
        assert not broken_promises(summary)


def test_a_promise_beyond_what_is_not_work_is_seen() -> None:
    """The property itself can fail: half of a device's work promised away is told, and so is an end below nothing."""
    summary = summary_of(GpuJob(steps=_STEPS, launch_ns=50 * US, kernel_ns=300 * US).traces())
    assert summary.replay is not None and not broken_promises(summary)
    work = summary.devices[0].compute_ns / summary.replay.steps
    made = WhatIf(name="no-tiny-kernels", meaning="", step_ns=round(work / 2), gain=0.5, low_ns=-17, high_ns=None)
    replay = summary.replay.model_copy(update={"what_ifs": [made]})
    said = broken_promises(summary.model_copy(update={"replay": replay}))
    assert len(said) == 3 and "are work" in said[0] and "-17" in said[-1]
