"""The program beside the training on each node: it samples the devices, writes the heartbeats, and on the first node
decides whether the run is stuck."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from harness.common.heartbeats import MEMORY
from harness.live.collect import Collector
from harness.live.guard import Guard
from harness.monitor.record import record
from harness.monitor.source import exit_code_of


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0: asked to end, or the training has ended; 1: files cannot be written; 2: the request was wrong."""
    parser = argparse.ArgumentParser(prog="python -m harness.live.node", description=__doc__)
    parser.add_argument("--run", type=Path, required=True, help="the run's folder")
    parser.add_argument("--node", type=int, required=True, help="the node's number in the job")
    parser.add_argument("--name", required=True, help="the node's name among the run's monitors")
    parser.add_argument("--below", type=int, required=True, metavar="PID", help="watch what this process starts")
    parser.add_argument("--hz", type=float, default=1.0, help="samples of the devices per second")
    parser.add_argument("--on-hang", choices=("report", "stop"), default="report", help="what to do if it is stuck")
    asked = parser.parse_args(argv)
    return exit_code_of(lambda: _watch(asked, os.environ.get(MEMORY)))


def _watch(asked: argparse.Namespace, memory: str | None) -> None:
    with ExitStack() as until:
        if memory:
            until.enter_context(Collector(asked.run, Path(memory), asked.name, asked.node))
            if asked.node == 0:
                until.enter_context(Guard(asked.run, asked.on_hang == "stop"))
        record(asked.run / "gpus-monitor" / asked.name, asked.hz, (), asked.name, asked.below)
    if memory:  # not after an error: the monitor is started again
        shutil.rmtree(memory, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
