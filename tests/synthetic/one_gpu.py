"""Kineto traces of one GPU with known answers, and a summary of such a trace as plain JSON."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

BASE_US = 4458676522690.655  # as Kineto writes them: a float64 just holds the third decimal

Event = dict[str, Any]


def event(cat: str, name: str, begin: float, length: float, *, tid: Any = 1, **args: Any) -> Event:
    """A complete event; times in µs after the trace's base."""
    times = {"ts": round(BASE_US + begin, 3), "dur": length}
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, **times, "args": args}


def launched(
    name: str, number: int, begin: float, length: float, cat: str = "kernel", *, stream: int = 7
) -> list[Event]:
    """Work on the device, and the call behind it 10 µs earlier."""
    call = event("cuda_runtime", "cudaLaunchKernel", begin - 10, 5.0, correlation=number)
    return [call, event(cat, name, begin, length, tid=stream, device=0, stream=stream, correlation=number)]


def training(steps: int = 6, idle: float = 700.0) -> dict[str, Any]:
    """Steps of 1 ms: a bf16 product, a copy, and `idle` µs in which the host launches nothing."""
    events: list[Event] = []
    busy = 1000.0 - idle
    for n in range(steps):
        begin = 1000.0 * n
        events.append(event("user_annotation", f"ProfilerStep#{n}", begin, 1000.0))
        events.append(event("cpu_op", "aten::mm", begin, 20.0, **{"Input Dims": [[64, 64]], "Input type": ["float"]}))
        events += launched("ampere_bf16_s16816gemm_128x128", 2 * n + 1, begin + idle, busy - 100.0)
        events += launched("Memcpy HtoD (Pinned -> Device)", 2 * n + 2, begin + 900.0, 100.0, "gpu_memcpy")
    return document(events)


def document(events: list[Event]) -> dict[str, Any]:
    """What a trace file of one process holds."""
    return {"schemaVersion": 1, "distributedInfo": {"rank": 0, "world_size": 1}, "traceEvents": events}


def written(path: Path, trace: dict[str, Any]) -> Path:
    """The trace as a file."""
    with gzip.open(path, "wt", encoding="utf-8") as file:
        json.dump(trace, file)
    return path


def summary_of(path: Path) -> dict[str, Any]:
    """What `report --json` prints of a trace."""
    from harness.measure.paths import measure_one as measure

    read: dict[str, Any] = json.loads(measure([path]).model_dump_json())
    return read
