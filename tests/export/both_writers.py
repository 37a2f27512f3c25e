"""An nsys export of a made-up job that both writers take, nsys2prv and ours; its numbers are known by construction.

tests/data/nsys2prv holds what nsys2prv 0.5.8, with nsys 2023.4, and 0.6.0rc1, without nsys, wrote from it:
python -m tests.export.both_writers FOLDER, with one of them on PATH.
"""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from pathlib import Path

from harness.export.nsys2prv import Options, convert
from tests.synthetic.nsys import Nsys

DATA = Path(__file__).parents[1] / "data" / "nsys2prv"
VERSIONS = ("0.5.8", "0.6.0rc1")
STEP_NS, STEPS = 200_000, 3
GEMM_NS, REDUCE_NS, COPY_NS = 60_000, 50_000, 10_000
OVERLAP_NS = 20_000  # of an all-reduce, with the last product of its step
GEMM_THREADS, NCCL_THREADS = 132 * 2 * 128, 24 * 512
COUNTERS = {3: "SM Active [Throughput %]", 5: "Tensor Active [Throughput %]", 18: "DRAM Read Bandwidth [Throughput %]"}
SM_ACTIVE = (20, 80)  # in the two halves of a step
MESSAGE_BYTES = 1 << 20

# What nsys2prv reads and the readers of the harness do not.
_MORE = """
ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL ADD COLUMN greenContextId INT;
ALTER TABLE CUPTI_ACTIVITY_KIND_MEMCPY ADD COLUMN greenContextId INT;
ALTER TABLE CUPTI_ACTIVITY_KIND_MEMCPY ADD COLUMN graphNodeId INT;
ALTER TABLE CUPTI_ACTIVITY_KIND_RUNTIME ADD COLUMN returnValue INT DEFAULT 0;
CREATE TABLE ThreadNames (nameId INT, priority INT, globalTid INT);
CREATE TABLE ENUM_CUDA_MEMCPY_OPER (id INT, name TEXT, label TEXT);
CREATE TABLE ENUM_CUDA_MEM_KIND (id INT, name TEXT, label TEXT);
INSERT INTO ENUM_CUDA_MEMCPY_OPER VALUES (1, 'HtoD', 'Host-to-Device');
INSERT INTO ENUM_CUDA_MEM_KIND VALUES (1, 'Pinned', 'Pinned'), (2, 'Device', 'Device');
CREATE TABLE TARGET_INFO_CUDA_CONTEXT_INFO (nullStreamId INT, hwId INT, vmId INT, processId INT, deviceId INT,
  contextId INT, parentContextId INT, isGreenContext INT);
INSERT INTO TARGET_INFO_CUDA_CONTEXT_INFO VALUES (7, 0, 1, 9, 0, 1, NULL, 0);
INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_SCHEMA_VERSION_MINOR', '11'), ('EXPORT_SCHEMA_VERSION', '3.11.0');
ALTER TABLE NVTX_EVENTS ADD COLUMN category INT;
ALTER TABLE TARGET_INFO_SESSION_START_TIME ADD COLUMN localTime TEXT DEFAULT '2026-11-01 11:00:00';
CREATE TABLE META_DATA_CAPTURE (name TEXT, value TEXT);
INSERT INTO META_DATA_CAPTURE VALUES ('ENV', 'PWD="/home"'), ('COMMAND', 'python');
"""
_SIZES = {"gridX": 132, "gridY": 2, "gridZ": 1, "blockX": 128, "blockY": 1, "blockZ": 1, "registersPerThread": 64}
_SIZES |= dict.fromkeys(("staticSharedMemory", "dynamicSharedMemory", "localMemoryTotal"), 0)
_NCCL_SIZES = {"gridX": 24, "gridY": 1, "blockX": 512}


def made(path: Path) -> Path:
    """The export: in each step a copy, two products, and an all-reduce on another stream that begins with the end of
    the second."""
    job = Nsys(without_tables=["CUPTI_ACTIVITY_KIND_GRAPH_TRACE", "CUPTI_ACTIVITY_KIND_MEMSET"])
    job.add("TARGET_INFO_GPU", vmId=1, id=0, name="NVIDIA A100", cuDevice=0)
    job.range("NCCL", 1, None, kind=75, domain=1)
    for number, name in COUNTERS.items():
        job.add("TARGET_INFO_GPU_METRICS", typeId=0, sourceId=0, typeName="GPU", metricId=number, metricName=name)
    for step in range(STEPS):
        _step(job, 1_000 + step * STEP_NS, step)
    job.saved(path)
    with closing(sqlite3.connect(path)) as database:
        for column, size in _SIZES.items():
            database.execute(f"ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL ADD COLUMN {column} INT DEFAULT {size}")
        for column, size in _NCCL_SIZES.items():
            database.execute(f"UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET {column} = {size} WHERE streamId = 20")
        database.executescript(_MORE)
    return path


def _step(job: Nsys, begin: int, step: int) -> None:
    calls = 4 * step + 1
    job.range(f"batch_{step}", begin, STEP_NS - 5_000)
    job.range("forward", begin + 4_000, 20_000)
    for index, name in enumerate(("cudaMemcpyAsync_v3020", *["cudaLaunchKernel_v7000"] * 3)):
        job.call(name, begin + 1_000 + 5_000 * index, 2_000, correlation=calls + index)
    at = begin + 20_000
    job.copy(begin + 8_000, COPY_NS, kind=1, source=1, target=2, size=4096, correlation=calls)
    for index in (1, 2):
        job.kernel("gemm", at, GEMM_NS, correlation=calls + index)
        at += GEMM_NS
    start = at - OVERLAP_NS
    job.kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", start, REDUCE_NS, stream=20, correlation=calls + 3)
    payload = {"NCCL communicator ID": 1 << 40, "Message size [bytes]": MESSAGE_BYTES}  # in the order of NCCL 2.27
    job.range("ncclAllReduce", begin + 15_500, 3_000, domain=1, payload=payload)
    for half, value in enumerate(SM_ACTIVE):
        for number in COUNTERS:
            time = begin + half * STEP_NS // 2
            job.add("GPU_METRICS", timestamp=time, typeId=0, metricId=number, value=value // (1 + (number != 3)))


def main() -> None:
    folder = Path(sys.argv[1])
    export = made(folder / "trace.sqlite")
    convert([export], folder / "trace", Options())


if __name__ == "__main__":
    main()
