"""Our report beside HolisticTraceAnalysis 0.5.0 on the same Kineto files, in one run, taking turns.

    python benchmarks/bench_peers.py --hta-python /path/to/venv/bin/python TRACE… [--repeat 3]

Both read the traces and compute split, overlap, idle time and kernels. HTA lives in an environment of its own (pip
install HolisticTraceAnalysis==0.5.0): it brings pandas and is never imported here. Several traces are one job's
ranks. CPU seconds are those of all worker processes. Prints medians of wall time, CPU time and memory, and the
ratios that docs/development/performance.md quotes."""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import median

_CLOCK = """
import json, resource, sys, time
imported = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
def cpu_s():
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)
wall, cpu = time.perf_counter(), cpu_s()
work(sys.argv[1:])
print(json.dumps({"wall_s": time.perf_counter() - wall, "cpu_s": cpu_s() - cpu, "imported": imported}))
"""
_OURS = """
from harness.measure.paths import measure_jobs
def work(traces):
    assert sum(len(job.devices) for job in measure_jobs(traces)) == len(traces)
"""
_HTA = """
import logging
logging.disable(logging.WARNING)
from hta.trace_analysis import TraceAnalysis
def work(traces):
    analysis = TraceAnalysis(trace_files=dict(enumerate(traces)), trace_dir="")
    assert len(analysis.get_temporal_breakdown(visualize=False)) == len(traces)
    analysis.get_comm_comp_overlap(visualize=False)
    analysis.get_idle_time_breakdown(ranks=list(range(len(traces))), visualize=False)
    analysis.get_gpu_kernel_breakdown(visualize=False)
"""


@dataclass(frozen=True)
class Cost:
    """What one process took: its whole life, and the work alone, after its imports."""

    process_wall_s: float
    process_cpu_s: float
    work_wall_s: float
    work_cpu_s: float
    rss_bytes: int
    imported_rss_bytes: int  # of it, held before the work began


def run(python: str, code: str, arguments: Sequence[str], cwd: Path) -> Cost:
    """Run `code`, which defines `work(arguments)`, in an interpreter of its own. Raises
    CalledProcessError."""
    command = [python, "-c", code + _CLOCK, *arguments]
    start = time.perf_counter()
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, cwd=cwd, stdout=log, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        log.seek(0)
        said = log.read()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command[:2], said)
    work = json.loads(said.strip().splitlines()[-1])
    cpu, rss = usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024
    return Cost(wall, cpu, work["wall_s"], work["cpu_s"], rss, work["imported"])


def middle(costs: Sequence[Cost]) -> Cost:
    """The medians of each."""
    return Cost(*(median(getattr(c, f.name) for c in costs) for f in fields(Cost)))


def unpacked(traces: Sequence[Path], folder: Path) -> list[Path]:
    """The traces as plain JSON, so that both tools parse the same bytes."""
    found = []
    for i, trace in enumerate(traces):
        target = folder / f"rank{i}.json"
        with gzip.open(trace) if trace.suffix == ".gz" else trace.open("rb") as source, target.open("wb") as out:
            shutil.copyfileobj(source, out)
        found.append(target)
    return found


def show(name: str, cost: Cost, size: int) -> None:
    speed, held = size / 1e6 / cost.work_wall_s, (cost.rss_bytes - cost.imported_rss_bytes) / size
    print(
        f"  {name:8} work {cost.work_wall_s:7.2f} s wall, {cost.work_cpu_s:6.2f} s cpu, {speed:4.0f} MB/s"
        f"   process {cost.process_wall_s:7.2f} s wall, {cost.process_cpu_s:6.2f} s cpu"
        f"   memory {cost.rss_bytes / 1e6:6.0f} MB, {held:5.2f} B/B for the work"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="+", type=Path)
    parser.add_argument("--hta-python", required=True, help="interpreter of an environment with HTA 0.5.0")
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        files = unpacked(options.traces, Path(folder))
        size = sum(f.stat().st_size for f in files)
        names = [str(f) for f in files]
        ours: list[Cost] = []
        hta: list[Cost] = []
        for _ in range(options.repeat):
            ours.append(run(sys.executable, _OURS, names, Path(__file__).parents[1]))
            hta.append(run(options.hta_python, _HTA, names, Path(folder)))
    print(f"{len(files)} traces, {size / 1e6:.0f} MB, medians of {options.repeat} turns, {os.cpu_count()} cores")
    show("harness", middle(ours), size)
    show("HTA", middle(hta), size)
    a, b = middle(ours), middle(hta)
    work, process = b.work_wall_s / a.work_wall_s, b.process_wall_s / a.process_wall_s
    work_cpu = b.work_cpu_s / a.work_cpu_s
    cpu, memory = b.process_cpu_s / a.process_cpu_s, b.rss_bytes / a.rss_bytes
    print(
        f"  ratio    work {work:.1f} x wall, {work_cpu:.1f} x cpu"
        f"   process {process:.1f} x wall, {cpu:.1f} x cpu   memory {memory:.1f} x"
    )


if __name__ == "__main__":
    main()
