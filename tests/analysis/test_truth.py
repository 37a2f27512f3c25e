"""On real traces every number is the one computed from the file's own decimals, to the nanosecond."""

from __future__ import annotations

from collections import Counter

import pytest

from harness.analysis.summary import Device, Window
from harness.measure.jobs import summarise
from harness.measure.paths import measure_files
from harness.measure.paths import measure_one as measure
from tests.real_traces import FOLDER, TRUTH, needs_real_traces

KINETO = [path for path, numbers in TRUTH.items() if "hta_0_5_0" in numbers]
NSYS = [path for path in TRUTH if path not in KINETO]

pytestmark = needs_real_traces


def devices(path: str) -> list[Device]:
    return measure([FOLDER / path], Window.GPU).devices


@pytest.mark.parametrize("path", KINETO)
def test_a_kineto_trace_gives_the_exact_numbers(path: str) -> None:
    (device,) = devices(path)
    truth = TRUTH[path]["exact"]
    assert {key: getattr(device, key) for key in truth} == truth


@pytest.mark.parametrize("path", NSYS)
def test_every_device_of_an_nsys_report_gives_the_exact_numbers(path: str) -> None:
    found = {str(d.device): d for d in devices(path)}
    truth = TRUTH[path]["exact_by_device"]
    assert set(found) == set(truth)
    for device, numbers in truth.items():
        assert {key: getattr(found[device], key) for key in numbers} == numbers


def test_96_percent_of_the_collectives_of_the_eight_ranks_is_waiting_and_rank_7_is_last() -> None:
    """The first of the eight waits for rank 7's profiler: 7,624 µs of start skew."""
    job = measure([FOLDER / "kineto_dlrm_v100_8ranks"])
    duration = sum(c.duration_ns for c in job.collectives)
    waiting, profiler = (sum(getattr(c, f) for c in job.collectives) for f in ("waiting_ns", "profiler_ns"))
    assert sum(c.count for c in job.collectives) == 8
    assert (waiting + profiler) / duration == pytest.approx(0.964, abs=0.0005)
    last: Counter[int] = Counter()
    skew_ns = 7_624_000
    for row in job.collectives:
        last.update(row.last_arrivals)
        skew_ns += row.mean_start_skew_ns * sum(row.last_arrivals.values())
    assert skew_ns / 8 == pytest.approx(1_405_000, rel=0.001)
    transfer = sum(c.transfer_ns for c in job.collectives) / 8 / 8
    assert transfer == pytest.approx(27_000, rel=0.02)
    assert last == {7: 4, 5: 2, 4: 1}
    assert [s.rank for s in job.stragglers] == [7]


def test_the_eight_ranks_are_one_job_and_the_two_runs_of_resnet_are_two() -> None:
    assert measure([FOLDER / "kineto_dlrm_v100_8ranks"]).ranks == list(range(8))
    parts, broken, _ = measure_files(sorted((FOLDER / "kineto_resnet50_workers").glob("*.gz")), Window.STEPS)
    assert len(summarise(parts, broken)) == 2


@pytest.mark.parametrize("path", [*KINETO, *NSYS])
def test_less_than_three_percent_of_kernel_time_is_of_unknown_kind(path: str) -> None:
    summary = measure([FOLDER / path], Window.GPU)
    total = sum(k.duration_ns for k in summary.kinds)
    assert total > 0
    assert sum(k.duration_ns for k in summary.kinds if k.kind == "other") < 0.03 * total


@pytest.mark.parametrize(
    ("name", "send_recv", "attention"),
    [("before", (66, 25_401_752), (68, 272_317_378)), ("after", (62, 33_742_101), (60, 240_755_667))],
)
def test_kernels_are_counted_as_nsys_counts_them(
    name: str, send_recv: tuple[int, int], attention: tuple[int, int]
) -> None:
    job = measure([FOLDER / "nsys_h100_2gpu_ab" / f"{name}.sqlite"], Window.GPU)
    for kernel, counted in (("ncclDevKernel_SendRecv", send_recv), ("flash_fwd_kernel", attention)):
        rows = [k for k in job.kernels if kernel in k.name]
        assert (sum(k.count for k in rows), sum(k.duration_ns for k in rows)) == counted
