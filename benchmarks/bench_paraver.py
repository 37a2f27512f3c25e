"""How long our Paraver writer takes, beside nsys2prv on the same export in the same run where that is installed.

    python benchmarks/bench_paraver.py [--kernels 100000]
    python benchmarks/bench_paraver.py EXPORT.sqlite --nsys2prv PROGRAM [--nsys-home DIR]

Without an export, kernels with their launches, ranges and collectives are made up. CPU time of both, children included.
nsys2prv needs an nsys (in PATH or `--nsys-home`/bin) for its `stats`.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from harness.export.paraver import write_paraver
from harness.traces import open_trace
from harness.traces.trace import Activity, Calls, Collectives, Events, Identity, RangeKind, Ranges, Trace


def main() -> int:
    """0: measured (and, beside nsys2prv, at least 10 times faster); 1: not."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("export", nargs="?", type=Path, help="an nsys export (.sqlite)")
    parser.add_argument("--kernels", type=int, default=100_000)
    parser.add_argument("--nsys2prv", help="the program, to be measured too")
    parser.add_argument("--nsys-home", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        ours_s = _ours(options.export, options.kernels, Path(folder))
        if not (options.export and options.nsys2prv):
            return 0
        theirs_s = _theirs(options.export, options.nsys2prv, options.nsys_home, Path(folder))
    print(f"ratio     {theirs_s / ours_s:8.1f}")
    return 0 if theirs_s >= 10 * ours_s else 1


def _ours(export: Path | None, kernels: int, folder: Path) -> float:
    begin = time.process_time()
    trace = open_trace(export) if export else synthetic(kernels)
    read = time.process_time()
    written = write_paraver([trace], folder / "ours")
    done = time.process_time()
    size = written.prv.stat().st_size
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    if export:
        print(f"read      {read - begin:8.2f} s")
    print(
        f"write     {done - read:8.2f} s   {len(trace.events)} events, {written.records} records, "
        f"{size / 1e6:.1f} MB, {size / 1e6 / (done - read):.0f} MB/s, peak {peak:.0f} MB"
    )
    return done - begin if export else done - read


def _theirs(export: Path, program: str, nsys_home: Path | None, folder: Path) -> float:
    shutil.copy(export, folder / "report.sqlite")
    environment = dict(os.environ) | ({"NSYS_HOME": str(nsys_home.resolve())} if nsys_home else {})
    argv = [program, "-t", "nvtx_pushpop_trace,nccl,cuda_api_trace,gpu_metrics", "report.nsys-rep", "theirs"]
    begin = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    end = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        sys.exit(f"nsys2prv failed: {done.stderr[-500:]}")
    spent = end.ru_utime + end.ru_stime - begin.ru_utime - begin.ru_stime
    size = (folder / "theirs.prv").stat().st_size
    print(f"nsys2prv  {spent:8.2f} s   {size / 1e6:.1f} MB, peak {end.ru_maxrss / 1024:.0f} MB")
    return spent


def synthetic(kernels: int) -> Trace:
    """Back-to-back kernels on one stream, one in 13 a collective on another, each launched by a call in a range."""
    random = np.random.default_rng(0)
    names = [f"kernel_{i}" for i in range(40)] + ["ncclDevKernel_AllReduce", "cudaLaunchKernel", "all_reduce", "g"]
    length = random.integers(2_000, 60_000, kernels)
    start = np.cumsum(length + 500) - length
    nccl = np.arange(kernels) % 13 == 12
    index = np.arange(kernels, dtype=np.int64)
    none = np.full(kernels, -1, np.int64)
    call = start - 5_000 - start[0] + 5_000
    told = np.flatnonzero(nccl)
    ranges = start[:: max(1, kernels // 20_000)]
    return Trace(
        identity=Identity("kineto", "synthetic", rank=0, host="node", clock="unix"),
        names=names,
        events=Events(
            start, start + length, np.where(nccl, 40, index % 40).astype(np.int32),
            np.full(kernels, Activity.KERNEL, np.uint8), np.zeros(kernels, np.int32), np.where(nccl, 20, 7),
            index, call, np.full(kernels, 5, np.int64), none, none.astype(np.int32),
            np.zeros(kernels, np.uint8), none.astype(np.int32), none,
        ),
        calls=Calls(call, call + 1_500, np.full(kernels, 41, np.int32), np.full(kernels, 5, np.int64), index, none),
        ranges=Ranges(
            ranges, ranges + 1_000, np.zeros(len(ranges), np.int32), np.full(len(ranges), 5, np.int64),
            np.full(len(ranges), RangeKind.ANNOTATION, np.uint8), np.full(len(ranges), -1, np.int64),
            np.full(len(ranges), -1, np.int32), np.zeros(len(ranges), np.uint8),
        ),
        collectives=Collectives(
            start_ns=start[told], end_ns=(start + length)[told], event=told,
            kind=np.full(len(told), 42, np.int32), bytes=np.full(len(told), 1 << 20),
            dtype=np.full(len(told), -1, np.int32), group=np.full(len(told), 43, np.int32),
            group_size=np.full(len(told), 4, np.int32), peer=np.full(len(told), -1, np.int32),
        ),
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
