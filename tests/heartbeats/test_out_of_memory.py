"""What used up the memory, by the messages of several versions of PyTorch and by numbers. The messages are those of
public reports, which are named beside them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import pytest

from harness.common.run_folder.run_files import HEARTBEATS, METRICS
from harness.heartbeats.dead import first_death
from harness.heartbeats.out_of_memory import Kind, Point, Shortage, growth, of_device, of_host

MB, GB = 10**6, 10**9
HINT = (
    " If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid"
    " fragmentation.  See documentation for Memory Management "
    " (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
)


class Case(NamedTuple):
    """source: a report on GitHub, of the message. ends: how what is said ends."""

    source: str
    message: str
    kind: Kind | None
    ends: str = ""


CASES = [
    Case("pytorch/pytorch/issues/35901, PyTorch 1.4",
         "CUDA out of memory. Tried to allocate 10.84 GiB (GPU 0; 23.65 GiB total capacity; 1.06 GiB already "
         "allocated; 10.26 GiB free; 12.53 GiB reserved in total by PyTorch)",
         "fragmentation", "was not in one piece; try PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:512"),
    Case("pytorch/pytorch/issues/59778, PyTorch 1.8",
         "CUDA out of memory. Tried to allocate 2.26 GiB (GPU 0; 6.00 GiB total capacity; 781.59 MiB already "
         "allocated; 3.03 GiB free; 1.24 GiB reserved in total by PyTorch) ", "", "do not say why that was not enough"),
    Case("microsoft/unilm/issues/137, PyTorch 1.4",
         "CUDA out of memory. Tried to allocate 128.00 MiB (GPU 0; 11.17 GiB total capacity; 10.85 GiB already "
         "allocated; 24.81 MiB free; 10.86 GiB reserved in total by PyTorch)", "peak", "peak that needed 108 MB more"),
    Case("One-2-3-45/issues/25, PyTorch 2.0: somebody has the rest, who is not listed",
         "CUDA out of memory. Tried to allocate 1.69 GiB (GPU 0; 14.56 GiB total capacity; 649.97 MiB already "
         "allocated; 1.31 GiB free; 1.01 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory "
         "try setting max_split_size_mb to avoid fragmentation.  See documentation for Memory Management and "
         "PYTORCH_CUDA_ALLOC_CONF", "other processes"),
    Case("carolchenyx/MGFN./issues/35, PyTorch 2.1, which writes capacty",
         "CUDA out of memory. Tried to allocate 1.70 GiB. GPU 0 has a total capacty of 6.00 GiB of which 0 bytes is "
         "free. Of the allocated memory 2.93 GiB is allocated by PyTorch, and 2.30 GiB is reserved by PyTorch but "
         "unallocated. If reserved but unallocated memory is large try setting max_split_size_mb to avoid "
         "fragmentation.  See documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF",
         "fragmentation", "try PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"),
    Case("FoundationVision/GenerateU/issues/10: in a container it is Process 20398 itself",
         "CUDA out of memory. Tried to allocate 496.00 MiB. GPU 0 has a total capacty of 14.75 GiB of which 235.06 MiB "
         "is free. Process 20398 has 14.52 GiB memory in use. Of the allocated memory 14.06 GiB is allocated by "
         "PyTorch, and 330.42 MiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large "
         "try setting max_split_size_mb to avoid fragmentation.  See documentation for Memory Management and "
         "PYTORCH_CUDA_ALLOC_CONF", "peak", "a peak that needed 274 MB more"),
    Case("murong-xu/CADS/issues/4, PyTorch 2.5",
         "CUDA out of memory. Tried to allocate 22.78 GiB. GPU 0 has a total capacity of 31.47 GiB of which 12.73 GiB "
         "is free. Including non-PyTorch memory, this process has 18.73 GiB memory in use. Of the allocated memory "
         f"9.08 GiB is allocated by PyTorch, and 9.35 GiB is reserved by PyTorch but unallocated.{HINT}", "peak"),
    Case("Tianhao-Qi/Mask2DiT/issues/4, PyTorch 2.5",
         "CUDA out of memory. Tried to allocate 35.60 GiB. GPU 0 has a total capacity of 79.33 GiB of which 26.16 GiB "
         "is free. Process 76883 has 53.16 GiB memory in use. Of the allocated memory 11.97 GiB is allocated by "
         f"PyTorch, and 40.69 GiB is reserved by PyTorch but unallocated.{HINT}", "fragmentation"),
    Case("awslabs/keys_values/issues/92, PyTorch 2.9: other ranks have a context on its GPU",
         "CUDA out of memory. Tried to allocate 572.00 MiB. GPU 0 has a total capacity of 39.49 GiB of which 321.31 "
         "MiB is free. Process 3721648 has 414.00 MiB memory in use. Including non-PyTorch memory, this process has "
         "37.46 GiB memory in use. Process 1374765 has 414.00 MiB memory in use. Process 1374763 has 414.00 MiB memory "
         "in use. Process 1374764 has 414.00 MiB memory in use. Of the allocated memory 36.04 GiB is allocated by "
         f"PyTorch, and 321.37 MiB is reserved by PyTorch but unallocated.{HINT.replace('CUDA_', '')}",
         "other processes", "other processes had 1.74 GB; nvidia-smi shows whose they are, or request the whole node"),
    Case("huggingface/diffusers/issues/13819, reproduced",
         "CUDA out of memory. Tried to allocate 130.00 MiB. GPU 0 has a total capacity of 94.96 GiB of which 59.69 MiB "
         "is free. Process 502587 has 1.78 GiB memory in use. Process 745081 has 86.44 GiB memory in use. Including "
         "non-PyTorch memory, this process has 6.62 GiB memory in use. Of the allocated memory 5.97 GiB is allocated "
         f"by PyTorch, and 116.33 MiB is reserved by PyTorch but unallocated.{HINT}", "other processes"),
    Case("Tongyi-MAI/Z-Image/issues/103, ROCm",
         "HIP out of memory. Tried to allocate 1.88 GiB. GPU 0 has a total capacity of 23.98 GiB of which 1.70 GiB is "
         "free. Of the allocated memory 21.65 GiB is allocated by PyTorch, and 279.78 MiB is reserved by PyTorch but "
         f"unallocated.{HINT}", "peak", "a peak that needed 193 MB more"),
    Case("Comfy-Org/ComfyUI/issues/9529, ROCm",
         "HIP out of memory. Tried to allocate 432.00 MiB. GPU 0 has a total capacity of 15.92 GiB of which 7.12 GiB "
         "is free. Of the allocated memory 8.08 GiB is allocated by PyTorch, and 321.96 MiB is reserved by PyTorch but "
         "unallocated.", ""),
    Case("intel/torch-xpu-ops/issues/3011, PyTorch 2.12 on an XPU",
         "XPU out of memory. Tried to allocate 4.66 GiB. GPU 0 has a total capacity of 5.65 GiB of which 5.65 GiB is "
         "free. Of the allocated memory 195.50 KiB is allocated by PyTorch, and 1.81 MiB is reserved by PyTorch but "
         "unallocated. Please use `empty_cache` to release all unoccupied cached memory.", ""),
    Case("c10/cuda/CUDACachingAllocator.cpp: by torch.cuda.set_per_process_memory_fraction",
         "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.33 GiB of which 70.00 GiB "
         "is free. 8.00 GiB allowed; Of the allocated memory 7.00 GiB is allocated by PyTorch, and 512.00 MiB is "
         f"reserved by PyTorch but unallocated.{HINT}", "peak", "a peak that needed 1.61 GB more"),
    Case("cut short before what is reserved",
         "CUDA out of memory. Tried to allocate 22.78 GiB. GPU 0 has a total capacity of 31.47 GiB of which 12.73 GiB "
         "is free. Including non-PyTorch memory, this process has 18.73 GiB memory", None),
    Case("on a host",
         "[enforce fail at alloc_cpu.cpp:73] . DefaultCPUAllocator: can't allocate memory: you tried to allocate "
         "116813856768 bytes. Error code 12 (Cannot allocate memory)", None),
]  # fmt: skip


def rising(first: int, by: int, count: int = 40) -> list[Point]:
    """So many steps, with bytes after each."""
    return [Point(step, first + by * step) for step in range(count)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.source)
def test_the_verdict_on_a_device_s_memory(case: Case) -> None:
    found = of_device(case.message, [])
    assert (found.kind if found else None) == case.kind
    assert found is None or found.said.endswith(case.ends)


def test_growth_on_a_device_is_what_would_have_fitted_without_it() -> None:
    message = next(case.message for case in CASES if "Z-Image" in case.source)
    found = of_device(message, rising(10 * GB, 20 * MB))
    assert found == Shortage(
        "growth",
        "it asked for 2.02 GB on its GPU",
        "; of 25.7 GB, 1.83 GB were free and 293 MB reserved but unused: it would have fitted, but what its tensors "
        "hold grew by 20.0 MB a step, and by 680 MB since the first steps",
    )
    small = of_device(message, rising(10 * GB, MB))
    assert small is not None and small.kind == "peak", "34 MB are fewer than were missing"


def test_growth_is_a_rise_up_to_the_end() -> None:
    assert growth([]) is None and growth(rising(GB, MB, 3)) is None
    assert growth(rising(GB, 0)) is None
    state = [Point(step, size * GB) for step, size in enumerate((1, 5, 5, 5, 5))]
    assert growth(state) is None, "it is made in the first step"
    assert growth([Point(step, GB + 400 * MB * (step % 5)) for step in range(40)]) is None, "texts of several lengths"
    assert growth(rising(GB, MB)) == (34 * MB, MB)


LEAK = (
    "; of 2.00 GB on its host, the rank last had 1.86 GB: its memory grew by 40.0 MB a step, and by "
    "1.36 GB since the first steps"
)


def host(ranks: list[list[Point]], beside: int | None = None, message: str = "", certain: bool = True) -> str | None:
    """The kind and what is said."""
    found = of_host(2 * GB, ranks, beside, message, certain=certain)
    return None if found is None else f"{found.kind}: {found.asked}{found.said}"


STEADY = rising(300 * MB, 0)
OF_ONE = "; of 2.00 GB on its host, the rank last had 300 MB: "


def test_the_verdict_on_a_host_s_memory() -> None:
    leak = rising(300 * MB, 40 * MB)
    assert host([leak]) == f"growth: {LEAK}"
    two = host([leak, leak])
    assert two is not None and two.endswith("their memory grew by 80.0 MB a step, and by 2.72 GB since the first steps")
    assert host([STEADY], 200 * MB) == f"peak: {OF_ONE}a peak inside a step took the rest"
    assert host([STEADY], 1500 * MB) == f"other processes: {OF_ONE}other processes had 1.50 GB"
    assert host([STEADY]) == f"peak: {OF_ONE}a peak inside a step, or other processes, took the rest"
    both = host([STEADY, rising(900 * MB, 0)], 1200 * MB)
    assert both is not None and both.startswith("peak: "), "900 MB beside it are the other rank's"


def test_what_a_rank_had_at_its_last_sign_of_life_is_of_its_growth() -> None:
    short = rising(300 * MB, 10 * MB)
    for last_bytes, kind in ((None, "peak"), (900 * MB, "peak"), (1400 * MB, "growth")):
        found = of_host(2 * GB, [short], 200 * MB, "", certain=True, last_bytes=last_bytes)
        assert found is not None and found.kind == kind, last_bytes
    for recorded in (STEADY, rising(300 * MB, 768)):
        found = of_host(2 * GB, [recorded], 200 * MB, "", certain=True, last_bytes=1400 * MB)
        assert found is not None and found.kind == "peak", "seen inside a step"


def test_a_process_that_was_killed_without_the_kernel_s_word_is_told_of_if_memory_was_short() -> None:
    assert host([STEADY], certain=False) is None
    assert (host([rising(1600 * MB, 0)], certain=False) or "").startswith("peak: ")
    assert of_host(None, [STEADY], None, "", certain=True) is None
    early = "no step of it had ended: a peak before the end of the first step, or other processes, took the rest"
    assert host([[]], 1500 * MB) == f"peak: ; of 2.00 GB on its host, {early}", "what it had itself is not known"


# The texts: of PyTorch, JingyunLiang/VRT/issues/49; of NumPy, numpy/_core/_exceptions.py; of a data loader,
# pytorch/pytorch/issues/108861.
TORCH = (
    "RuntimeError: [enforce fail at alloc_cpu.cpp:73] . DefaultCPUAllocator: can't allocate memory: you tried to "
    "allocate 116813856768 bytes. Error code 12 (Cannot allocate memory)"
)
NUMPY = "_ArrayMemoryError: Unable to allocate 7.45 GiB for an array with shape (1000000000,) and data type float64"
BUS = (
    "RuntimeError: DataLoader worker (pid 11011) is killed by signal: Bus error. It is possible that dataloader's "
    "workers are out of shared memory. Please try to raise your shared memory limit"
)


def test_an_allocation_on_a_host_that_failed_says_how_much_it_was() -> None:
    for message, size in ((TORCH, "117 GB"), (NUMPY, "8.00 GB")):
        found = host([STEADY], 0, message, certain=False)
        assert found == f"peak: it asked for {size}{OF_ONE}a peak inside a step took the rest"
    small = host([STEADY], 0, NUMPY.replace("7.45 G", "7.45 M"), certain=False)
    assert small == f": it asked for 7.81 MB{OF_ONE}so another limit holds, as ulimit -v"
    assert (host([STEADY], 0, BUS, certain=False) or "").startswith(": ; /dev/shm was full")


PLACE = ["/home/ann/train.py", 31, "step"]


def told(run: Path, **known: object) -> str:
    """What is said of a run whose rank 0 ended so, after it had recorded a leak."""
    usual = {"event": "gone", "rank": 0, "pid": 7, "step": 60, "place": PLACE, "unix_ns": 20, "beside_bytes": 0}
    path = HEARTBEATS.path(run, "n1")
    path.parent.mkdir()
    path.write_text(json.dumps(usual | known) + "\n")
    lines = [{"event": "start", "host": "n1", "host_limit_bytes": 2 * GB}]
    lines += [{"event": "step", "step": at, "host_memory_bytes": size} for at, size in rising(100 * MB, 40 * MB)]
    METRICS.path(run, 0).parent.mkdir()
    text = "".join(json.dumps(line | {"workers_memory_bytes": 200 * MB}) + "\n" for line in lines)
    METRICS.path(run, 0).write_text(text)
    found = first_death(run)
    assert found is not None
    return f"{found.sentence} | {found.short}"


def test_the_sentence_of_a_rank_that_the_kernel_killed(tmp_path: Path) -> None:
    killed = "the kernel killed it: the job used more memory than its cgroup allows"
    assert told(tmp_path, oom="cgroup") == (
        f"rank 0 failed first, in step 60: {killed} (last seen at train.py:31){LEAK} | "
        f"rank 0: {killed} (growth) train.py:31"
    )


def test_the_sentence_of_a_rank_whose_data_worker_was_killed(tmp_path: Path) -> None:
    said = "DataLoader worker (pid 46794) is killed by signal: Killed. "
    error = {"type": "RuntimeError", "message": said.strip(), "place": PLACE, "unix_ns": 20}
    assert told(tmp_path, oom="cgroup", error=error) == (
        f"rank 0 failed first, in step 60: RuntimeError: {said.strip()} (train.py:31){LEAK} | "
        "rank 0: RuntimeError (growth) train.py:31"
    )


def test_the_sentence_of_a_rank_without_memory_on_its_gpu(tmp_path: Path) -> None:
    message = next(case.message for case in CASES if "Z-Image" in case.source)
    assert told(tmp_path, error={"type": "OutOfMemoryError", "message": message, "place": PLACE, "unix_ns": 20}) == (
        "rank 0 failed first, in step 60: OutOfMemoryError: it asked for 2.02 GB on its GPU (train.py:31); of 25.7 GB, "
        "1.83 GB were free and 293 MB reserved but unused: a peak that needed 193 MB more | "
        "rank 0: OutOfMemoryError (peak) train.py:31"
    )
