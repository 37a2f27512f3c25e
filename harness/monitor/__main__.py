"""The monitor's own command line; it imports little, because it starts beside every training."""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Sequence
from pathlib import Path

from harness.monitor.samples import find
from harness.monitor.source import MonitorError, exit_code_of


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0: done; 1: the files cannot be written or read; 2: the request was wrong."""
    parser = argparse.ArgumentParser(prog="python -m harness.monitor", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    record = commands.add_parser("record", help="sample this node's devices until SIGTERM")
    record.set_defaults(run=_record)
    out = "folder of samples.csv and meta.json"
    record.add_argument("--out", type=Path, required=True, metavar="DIR", help=out)
    record.add_argument("--hz", type=float, default=1.0, help="samples per second, up to 10 (default 1)")
    record.add_argument("--name", help="name of this node (default: its host name)")
    pids = "sample these process trees and end with them (default: the parent's other descendants)"
    record.add_argument("--pid", type=int, nargs="+", action="extend", default=[], metavar="PID", help=pids)
    below = "sample the other descendants of this process and end with it, whoever started the monitor"
    record.add_argument("--below", type=int, metavar="PID", help=below)
    plot = commands.add_parser("plot", help="plots and summary.json of a folder of samples, or one per node")
    plot.set_defaults(run=_plot)
    plot.add_argument("dir", type=Path, metavar="DIR")
    arguments = parser.parse_args(argv)
    return exit_code_of(lambda: arguments.run(arguments))


def _plot(arguments: argparse.Namespace) -> None:
    found = find(arguments.dir)
    if not found:
        raise MonitorError(f"{arguments.dir}: no samples.csv in it, nor in a folder below it")
    gc.disable()  # what matplotlib makes is never garbage, and every run waits for its plots
    from harness.monitor.plot import plot

    for node in found:
        for path in plot(node):
            print(path)
    gc.freeze()


def _record(arguments: argparse.Namespace) -> None:
    from harness.monitor.record import record

    record(arguments.out, arguments.hz, arguments.pid, arguments.name, arguments.below)


if __name__ == "__main__":
    sys.exit(main())
