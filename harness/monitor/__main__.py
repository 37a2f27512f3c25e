"""Draws what the monitor has sampled: `python -m harness.monitor plot DIR`. It imports little, as every run waits for
it."""

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
    plot = commands.add_parser("plot", help="plots and summary.json of a folder of samples, or one per node")
    plot.add_argument("dir", type=Path, metavar="DIR")
    arguments = parser.parse_args(argv)
    return exit_code_of(lambda: _plot(arguments.dir))


def _plot(folder: Path) -> None:
    found = find(folder)
    if not found:
        raise MonitorError(f"{folder}: no samples.csv in it, nor in a folder below it")
    gc.disable()  # what matplotlib makes is never garbage, and every run waits for its plots
    from harness.monitor.plot import plot

    for node in found:
        for path in plot(node):
            print(path)
    gc.freeze()


if __name__ == "__main__":
    sys.exit(main())
