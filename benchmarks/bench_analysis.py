"""What the analyses cost on an nsys export, each stage in a process of its own: CPU seconds and memory.

    python benchmarks/generate_nsys_sqlite.py /tmp/big.sqlite --kernels 5000000 --devices 2
    python benchmarks/bench_analysis.py /tmp/big.sqlite [--repeat 3]

`split` reads what ran on the devices and computes split, idle gaps and kernel statistics of every device;
`ranges` reads it and gives every kernel to its innermost range; `report` is everything `slurm.sh report`
does, from start to text. `process` includes starting Python and importing, `work` does not; memory is the
most the process ever held."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from bench_peers import middle, run

ROOT = Path(__file__).parents[1]

_SPLIT = """
from pathlib import Path
import numpy as np
from harness.analysis.process.kinds import classify, load_rules
from harness.analysis.process.prepared import device_rows
from harness.analysis.process.idle import busy, split_window
from harness.analysis.process.intervals import complement
from harness.traces.columns import NameTable
from harness.traces.database import opened
from harness.traces.nsys.cuda import device_events
from harness.traces.nsys.devices import read_devices
from harness.traces.trace import Calls
def work(arguments):
    names, none = NameTable(), np.empty(0, np.int64)
    with opened(Path(arguments[0])) as database:
        no_calls = Calls(none, none, none.astype(np.int32), none, none, none)
        events = device_events(database, names, no_calls, read_devices(database))
    kinds = classify(events, names.texts, load_rules())
    for device, rows in device_rows(events.device).items():
        one_device(device, events, rows, kinds.event_class[rows])
def one_device(device, events, rows, event_class):
    start, end, name = events.start_ns[rows], events.end_ns[rows], events.name[rows]
    sets = busy(start, end, event_class)
    window = int(start.min()), int(end.max())
    gaps = complement(sets.any, *window)
    total = np.bincount(name, weights=(end - start).astype(np.float64))
    longest = np.zeros(len(total), np.int64)
    np.maximum.at(longest, name, end - start)
    print(device, split_window(sets, *window).idle_ns, len(gaps.start))
    print(np.bincount(name).max(), total.max(), longest.max())
"""
_RANGES = """
from pathlib import Path
from harness.analysis.process.intervals import nest, owners_of_events
from harness.analysis.process.view import views
from harness.traces import open_trace
def work(arguments):
    for view in views(open_trace(Path(arguments[0]))):
        owner = owners_of_events(view.events, nest(view.ranges, view.events))
        print(view.pid, (owner >= 0).sum(), "of", len(view.events))
"""
_REPORT = """
from harness.cli.main import main
def work(arguments):
    assert main(["report", arguments[0]]) == 0
"""
_STAGES = {"split": _SPLIT, "ranges": _RANGES, "report": _REPORT}


def warm_seconds(function: Callable[[], object], repeat: int) -> float:
    """Median wall time of a call in this process, after one that is not counted."""
    function()
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return median(times)


def report_here(trace: Path) -> str:
    """The whole report as text, in this process."""
    from harness.measure.paths import measure_jobs
    from harness.report.tables.terminal import render

    return "\n".join(render(summary) for summary in measure_jobs([trace]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    size = options.trace.stat().st_size
    print(f"{options.trace.name}, {size / 1e6:.0f} MB, medians of {options.repeat}")
    for name, code in _STAGES.items():
        cost = middle([run(sys.executable, code, [str(options.trace)], ROOT) for _ in range(options.repeat)])
        print(
            f"  {name:7} process {cost.process_wall_s:6.2f} s wall {cost.process_cpu_s:6.2f} s cpu"
            f"   work {cost.work_wall_s:6.2f} s wall {cost.work_cpu_s:6.2f} s cpu   {cost.rss_bytes / 1e6:6.0f} MB"
        )
    if size < 100e6:
        sys.path.insert(0, str(ROOT))
        print(f"  report  {warm_seconds(lambda: report_here(options.trace), 5):.3f} s wall in a warm process")


if __name__ == "__main__":
    main()
