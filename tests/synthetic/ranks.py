"""Jobs of very many ranks, small Kineto traces of a GPU each, and the ways in which files of them get damaged."""

from __future__ import annotations

from pathlib import Path

from tests.synthetic import kineto
from tests.synthetic.kineto import Record

STEPS = 4
_STEP_NS, _FIRST_NS = 1_000_000, 1_000_000_000
_NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"
DAMAGES = ("empty", "half", "its first event", "garbage", "deep", "far")


def rank_trace(path: Path, rank: int, world_size: int) -> Path:
    """Steps of eight products and an all-reduce of all ranks."""
    header = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": rank % 4, "name": "NVIDIA A100"}],
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world_size},
        "host_name": f"node{rank // 4}",
        "baseTimeNanoseconds": 1_700_000_000_000_000_000,
    }
    records = [record for step in range(STEPS) for record in _step(rank, world_size, step)]
    return kineto.kineto(path, records, header=header, footer={"traceName": path.name})


def _step(rank: int, world_size: int, step: int) -> list[Record]:
    begin, device = _FIRST_NS + _STEP_NS * step, rank % 4
    message = {"Collective name": "allreduce", "In msg nelems": 1 << 20, "Out msg nelems": 1 << 20,
               "dtype": "BFloat16", "Group size": world_size, "Process Group Name": "0"}  # fmt: skip
    records = [kineto.said(f"ProfilerStep#{step}", begin, _STEP_NS)]
    for k in range(9):
        number = 10 * step + k + 1
        start = begin + 20_000 + 100_000 * k
        records.append(kineto.call("cudaLaunchKernel", start - 10_000, 4_000, correlation=number))
        if k < 8:
            work = kineto.kernel("ampere_bf16_s16816gemm_128x128", start, 95_000, device=device, correlation=number)
        else:
            late = 500 * (rank % 20)
            placed = {"device": device, "stream": 20, "correlation": number}
            work = kineto.kernel(_NCCL, start + late, 90_000 - late, **placed, **message)
        records.append(work)
    return records


def damaged(path: Path, how: str) -> None:
    """Damage a file in one of `DAMAGES`."""
    text = path.read_bytes()
    path.write_bytes(
        {
            "empty": b"",
            "half": text[: len(text) // 2],
            "its first event": text[: text.index(b"traceEvents") + 40],
            "garbage": text.replace(b'"stream"', b'"stream" oops', 1),
            "deep": text.replace(b'"stream"', b'"x": ' + b"[" * 50_000 + b"]" * 50_000 + b', "stream"', 1),
            "far": text.replace(b'"dur": 95.000', b'"dur": 1' + b"0" * 30, 1),
        }[how]
    )
