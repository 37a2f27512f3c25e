"""Kineto traces of a small job with names that attack the page, and a run's directory around them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HOSTILE = "evil</script><script>window.hacked=1</script><img src=x onerror='window.hacked=1'>"
GEMM = "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_nn"
NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"
COPY = "Memcpy HtoD (Pinned -> Device)"
STEPS = 4
STEP_US = 1000
BASE_NS = 1_700_000_000_000_000_000


def events(rank: int) -> list[dict[str, Any]]:
    """One rank: per step a data-loading gap, a copy, ten products, a hostile kernel, an all-reduce."""
    rows: list[dict[str, Any]] = []
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


def _host(category: str, name: str, ts: int, dur: int) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "pid": 10, "tid": 10, "ts": ts, "dur": dur, "args": {}}


def _launch(ts: int, number: int) -> dict[str, Any]:
    return _host("cuda_runtime", "cudaLaunchKernel", ts, 4) | {"args": {"correlation": number}}


def _device(
    category: str, name: str, when: tuple[int, int], where: tuple[int, int], number: int
) -> dict[str, Any]:
    (ts, dur), (device, stream) = when, where
    args: dict[str, Any] = {"device": device, "stream": stream, "correlation": number}
    if name == NCCL:
        size = 1 << 20
        args |= {"Collective name": "allreduce", "In msg nelems": size, "Out msg nelems": size,
                 "dtype": "BFloat16", "Group size": 2, "Process Group Name": "0"}  # fmt: skip
    if category == "gpu_memcpy":
        args |= {"bytes": 4096}
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": device,
        "tid": stream,
        "ts": ts,
        "dur": dur,
        "args": args,
    }


def write_traces(folder: Path, ranks: int = 2) -> list[Path]:
    """`folder`/rank<R>.json of every rank."""
    folder.mkdir(parents=True, exist_ok=True)
    return [_write(folder / f"rank{rank}.json", rank, ranks) for rank in range(ranks)]


def _write(path: Path, rank: int, world: int) -> Path:
    document = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": d, "name": "NVIDIA <b>A100</b>"} for d in range(world)],
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world},
        "baseTimeNanoseconds": BASE_NS,
        "traceEvents": events(rank),
    }
    path.write_text(json.dumps(document))
    return path
