"""What the monitor costs: its share of a core while it watches, and the cost of one sample as the file grows.

    python -m benchmarks.bench_monitor [--seconds 15]

The peer does what the workshop's monitor did: start a program per sample (here `true`, far cheaper than
nvidia-smi) and write the whole CSV again. Both are measured in one run, so the ratios hold on a busy machine;
absolute times do not.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from harness.monitor.processes import ProcessSource, ProcessTree, find_processes
from harness.monitor.record import SampleFile

LIMIT_PERCENT = 1.0
WORKLOAD = "import time\nfor _ in range(10**9): time.sleep(0.01)"
SIZES = (100, 1000, 4000)  # samples already in the file; 3600 is an hour at 1 Hz
REPEATS = 40
PROCESSES = 8


@contextmanager
def training() -> Iterator[None]:
    """Eight processes to watch."""
    children = [subprocess.Popen([sys.executable, "-c", WORKLOAD]) for _ in range(PROCESSES)]
    try:
        yield
    finally:
        for child in children:
            child.kill()
            child.wait()


def measure_share(hz: float, seconds: float, folder: Path) -> float:
    """Percent of one core that a recording monitor uses, after its start."""
    monitor = subprocess.Popen(
        [sys.executable, "-m", "harness.monitor", "record", "--out", str(folder), "--hz", str(hz)]
    )
    time.sleep(2)
    process = psutil.Process(monitor.pid)
    before, started = process.cpu_times(), time.monotonic()
    time.sleep(seconds)
    after, elapsed = process.cpu_times(), time.monotonic() - started
    monitor.terminate()
    monitor.wait()
    return 100 * (after.user + after.system - before.user - before.system) / elapsed


def cpu_seconds() -> float:
    """CPU time of this process and of the children it has waited for."""
    usages = (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def per_call_ms(call: Callable[[], object]) -> float:
    """CPU milliseconds per call."""
    before = cpu_seconds()
    for _ in range(REPEATS):
        call()
    return 1000 * (cpu_seconds() - before) / REPEATS


def measure_ours(folder: Path) -> list[float]:
    """CPU milliseconds per sample with SIZES samples in the file."""
    source = ProcessSource(ProcessTree(find_processes([os.getpid()]), with_roots=False), None)
    samples = SampleFile(folder / "samples.csv", source.columns)
    costs, count = [], 0

    def take() -> None:
        samples.append(time.time_ns(), [0], source.sample())

    for size in SIZES:
        while count < size:
            samples.append(count, [0], [(50.0, 10**9, 8, 60.0, 10**10, None, None)])
            count += 1
        costs.append(per_call_ms(take))
        count += REPEATS
    return costs


def measure_peer(folder: Path) -> list[float]:
    """The same for a program started per sample and a file written anew each time."""
    rows: list[str] = []
    path = folder / "peer.csv"
    costs = []

    def take() -> None:
        subprocess.run(["true"], check=True)
        rows.append(f"{time.time_ns()},0,50.000,1000000000,8,60.000,10000000000,,\n")
        path.write_text("unix_ns,device\n" + "".join(rows))

    for size in SIZES:
        rows.extend(["1700000000000000000,0,50.000,1000000000,8,60.000,10000000000,,\n"] * (size - len(rows)))
        costs.append(per_call_ms(take))
    return costs


def main() -> int:
    """Print the table; exit 1 when the monitor takes more than its share at 1 Hz."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=15.0, help="how long to watch at each rate")
    seconds = parser.parse_args().seconds
    with tempfile.TemporaryDirectory() as name, training():
        folder = Path(name)
        shares = {hz: measure_share(hz, seconds, folder / f"{hz}") for hz in (1, 10)}
        for hz, share in shares.items():
            print(f"{hz:>2} Hz, {PROCESSES} processes: {share:.2f} % of a core")
        ours, peer = measure_ours(folder), measure_peer(folder)
    print(f"allowed at 1 Hz: {LIMIT_PERCENT:g} %\n")
    print(f"{'samples in the file':>20} {'ours, CPU ms':>13} {'peer, CPU ms':>13} {'peer / ours':>12}")
    for size, our_ms, peer_ms in zip(SIZES, ours, peer, strict=True):
        print(f"{size:>20} {our_ms:>13.2f} {peer_ms:>13.2f} {peer_ms / our_ms:>12.1f}")
    growth, peer_growth = ours[-1] / ours[0], peer[-1] / peer[0]
    print(f"cost at {SIZES[-1]} samples / at {SIZES[0]}: ours {growth:.2f}, peer {peer_growth:.2f}")
    return int(shares[1] > LIMIT_PERCENT)


if __name__ == "__main__":
    sys.exit(main())
