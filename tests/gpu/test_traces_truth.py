"""The brute force that traces are held against is right itself: by hand, on random work, and on real traces."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.claims import is_the_truth
from tests.gpu.truth import COMMUNICATION, COMPUTE, MEMORY, Span, of_device, read, split, truth
from tests.real_traces import FOLDER, TRUTH, needs_real_traces
from tests.synthetic.one_gpu import event, summary_of, training, written

KINETO = [path for path in TRUTH if "resnet" not in path and "hta_0_5_0" in TRUTH[path]]  # of today's categories


def test_a_case_done_by_hand() -> None:
    work = [
        Span(0, 100, COMPUTE, "gemm", 0),
        Span(50, 150, COMMUNICATION, "nccl", 0),
        Span(140, 200, MEMORY, "copy", 0),
        Span(300, 400, COMPUTE, "gemm", 0),
    ]
    assert of_device(work) == {
        "gpu_events": 4,
        "window_ns": 400,
        "compute_ns": 200,
        "communication_ns": 100,
        "overlapped_communication_ns": 50,
        "exposed_communication_ns": 50,
        "memory_ns": 60,
        "exposed_memory_ns": 50,
        "idle_ns": 100,
    }
    assert split(work, 60, 310)["window_ns"] == 250
    assert split(work, 60, 310)["compute_ns"] == 50


def made(seed: int) -> dict[str, Any]:
    """Work of all classes at random, on two streams."""
    chance = random.Random(seed)
    kinds = [
        ("kernel", "gemm"),
        ("kernel", "ncclDevKernel_AllReduce"),
        ("gpu_memcpy", "Memcpy HtoD"),
        ("gpu_memset", "m"),
    ]
    events = []
    for number in range(200):
        cat, name = chance.choice(kinds)
        begin, length = chance.randrange(10**6) / 1000, chance.randrange(2 * 10**4) / 1000
        events.append(event(cat, name, begin, length, device=0, stream=number % 2, correlation=number))
    return {"traceEvents": events}


@pytest.mark.parametrize("seed", range(5))
def test_the_report_of_random_work_is_the_truth(tmp_path: Path, seed: int) -> None:
    path = written(tmp_path / "rank0.json.gz", made(seed))
    is_the_truth(summary_of(path), truth(read(path)))


def test_steps_and_kernels_are_counted(tmp_path: Path) -> None:
    known = truth(read(written(tmp_path / "rank0.json.gz", training(steps=4))))
    assert known["steps_ns"] == [1_000_000] * 4
    assert known["kernels"] == {"count": 4, "duration_ns": 4 * 200_000}


@needs_real_traces
@pytest.mark.parametrize("path", KINETO)
def test_real_traces_have_the_numbers_that_others_computed(path: str) -> None:
    known = TRUTH[path]["exact"]
    (found,) = truth(read(FOLDER / path))["devices"].values()
    assert {key: found[key] for key in known} == known
