"""Kineto traces of a small job with names that attack the page, and a run's directory around them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.synthetic import kineto
from tests.synthetic.kineto import Record

HOSTILE = "evil</script><script>window.hacked=1</script><img src=x onerror='window.hacked=1'>"
GEMM = "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_nn"
NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"
COPY = "Memcpy HtoD (Pinned -> Device)"
STEPS = 4
STEP_US = 1000
BASE_NS = 1_700_000_000_000_000_000


def events(rank: int) -> list[Record]:
    """One rank: per step a data-loading gap, a copy, ten products, a hostile kernel, an all-reduce."""
    rows: list[Record] = []
    number = rank * 1_000_000
    for step in range(STEPS):
        begin = step * STEP_US
        for name, start, length in (
            (f"ProfilerStep#{step}", 0, STEP_US),
            (f"DataLoad batch {step}", 0, 150),
            (f"batch_{step}", 150, STEP_US - 151),
            ("forward", 160, 300),
            ("backward", 470, 400),
            (HOSTILE, 880, 60),
        ):
            rows.append(_host("user_annotation", name, begin + start, length))
        work = [(COPY, "gpu_memcpy", 160, 20, 7)]
        work += [(GEMM, "kernel", 200 + 60 * k, 50, 7) for k in range(10)]
        work += [(HOSTILE, "kernel", 810, 30, 7)]
        # Rank 1 arrives 40 µs later: rank 0 waits for it.
        work += [(NCCL, "kernel", 800 + 40 * rank, 100 - 40 * rank, 20)]
        for name, category, start, length, stream in work:
            number += 1
            rows.append(_launch(begin + start - 8, number))
            rows.append(_device(category, name, (begin + start, length), (rank, stream), number))
    return rows


def _host(category: str, name: str, ts: int, dur: int, **args: Any) -> Record:
    return kineto.record(category, name, 1000 * ts, 1000 * dur, pid=10, tid=10, **args)


def _launch(ts: int, number: int) -> Record:
    return _host("cuda_runtime", "cudaLaunchKernel", ts, 4, correlation=number)


def _device(category: str, name: str, when: tuple[int, int], where: tuple[int, int], number: int) -> Record:
    (ts, dur), (device, stream) = when, where
    args: Record = {"device": device, "stream": stream, "correlation": number}
    if name == NCCL:
        size = 1 << 20
        args |= {"Collective name": "allreduce", "In msg nelems": size, "Out msg nelems": size,
                 "dtype": "BFloat16", "Group size": 2, "Process Group Name": "0"}  # fmt: skip
    if category == "gpu_memcpy":
        args |= {"bytes": 4096}
    return kineto.record(category, name, 1000 * ts, 1000 * dur, pid=device, tid=stream, **args)


def write_traces(folder: Path, ranks: int = 2) -> list[Path]:
    """`folder`/rank<R>.json of every rank."""
    folder.mkdir(parents=True, exist_ok=True)
    return [_write(folder / f"rank{rank}.json", rank, ranks) for rank in range(ranks)]


def _write(path: Path, rank: int, world: int) -> Path:
    header = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": d, "name": "NVIDIA <b>A100</b>"} for d in range(world)],
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world},
        "baseTimeNanoseconds": BASE_NS,
    }
    return kineto.kineto(path, events(rank), "json.dump", header=header, footer={})
