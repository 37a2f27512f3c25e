"""Processes and the GPUs of their machine: GPU, peak memory and rank of each process."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.analysis.process.view import views
from harness.traces import open_trace
from harness.traces.trace import Trace
from tests.synthetic import nsys
from tests.synthetic.nsys import Nsys


def read(tmp_path: Path, made: Nsys) -> Trace:
    return open_trace(made.saved(tmp_path / "t.sqlite"))


def two_processes(cuda: tuple[int, int]) -> Nsys:
    """Processes 100 and 200 on nsys' GPUs 0 and 1, which they call `cuda`; both allocate, both GPUs are sampled."""
    made = Nsys()
    for gpu, (pid, number) in enumerate(zip((100, 200), cuda, strict=True)):
        made.add("TARGET_INFO_GPU", vmId=1, id=gpu, name=f"GPU {gpu}", cuDevice=gpu)
        made.add("TARGET_INFO_CUDA_DEVICE", gpuId=gpu, cudaId=number, pid=pid)
        made.call("cuInit", 10, 5, correlation=0, pid=pid, tid=pid)
        made.memory(20, 1_000 * (gpu + 1), pid=pid, device=number)
        made.kernel(f"of {pid}", 1_000, 50 * (gpu + 1), pid=pid, device=number)
        made.sampled(gpu, 10 * (gpu + 1))
    return made


@pytest.mark.parametrize("cuda", [(0, 0), (0, 1)], ids=["each sees one GPU", "both see both"])
def test_ranks_that_each_see_one_gpu_do_not_share_it(tmp_path: Path, cuda: tuple[int, int]) -> None:
    trace = read(tmp_path, two_processes(cuda))
    assert trace.events.device.tolist() == [0, 1]
    assert trace.events.process.tolist() == [100, 200]
    assert trace.identity.device_names == {0: "GPU 0", 1: "GPU 1"}
    assert [(m.device, m.value.tolist()) for m in trace.metrics] == [(0, [10.0]), (1, [20.0])]
    assert trace.peak_memory_bytes == {(100, 0): 1_000, (200, 1): 2_000}


def test_a_process_that_sees_the_last_gpu_alone_is_not_given_the_firsts_counters(tmp_path: Path) -> None:
    made = Nsys()
    for gpu in (0, 1, 2, 3):
        made.add("TARGET_INFO_GPU", vmId=1, id=gpu, name=f"GPU {gpu}", cuDevice=gpu)
        made.sampled(gpu, gpu)
    made.add("TARGET_INFO_CUDA_DEVICE", gpuId=3, cudaId=0, pid=9)
    made.kernel("k", 100, 10)
    trace = read(tmp_path, made)
    assert trace.events.device.tolist() == [3]
    assert [(m.device, m.value.tolist()) for m in trace.metrics] == [(g, [float(g)]) for g in range(4)]


def allocating(*, began: bool) -> Nsys:
    made = nsys.nsys_step()
    if began:
        made.call("cuInit", 0, 1, correlation=0)
    for start, size, freed in ((1, 100, False), (2, 50, False), (3, 100, True), (4, 20, False)):
        made.memory(start, size, freed=freed)
    made.memory(5, 999, kind=1)
    return made


def test_allocations_give_the_peak_of_a_device_recorded_from_the_start(tmp_path: Path) -> None:
    assert read(tmp_path, allocating(began=True)).peak_memory_bytes == {(9, 0): 150}


def test_what_a_process_held_before_the_recording_is_not_known_so_neither_is_its_peak(tmp_path: Path) -> None:
    assert read(tmp_path, allocating(began=False)).peak_memory_bytes == {}
    made = allocating(began=True)
    made.memory(6, 500, freed=True)
    assert read(tmp_path, made).peak_memory_bytes == {}, "more was freed than was seen to be allocated"


def test_each_process_of_a_report_has_the_rank_that_nccl_gave_it(tmp_path: Path) -> None:
    made = Nsys()
    for pid, rank in ((100, 1), (200, 0)):
        world = {"NCCL communicator ID": 77, "No. of ranks": 2, "Rank": rank}
        own = {"NCCL communicator ID": 78 + rank, "No. of ranks": 1, "Rank": 0}
        made.range("ncclCommInitRank", 0, 10, pid=pid, tid=pid, payload=world)
        made.range("ncclCommInitRank", 20, 10, pid=pid, tid=pid, payload=own)
        made.kernel("k", 100, 10, pid=pid, device=rank)
    trace = read(tmp_path, made)
    assert (trace.identity.rank, trace.identity.world_size) == (None, 2)
    assert [(view.pid, view.rank) for view in views(trace)] == [(100, 1), (200, 0)]
