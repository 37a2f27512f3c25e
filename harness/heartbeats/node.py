"""The program beside the training on each node: it samples the devices, writes the heartbeats, and on the first node
decides whether the run is stuck."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from harness.common.display.text import ranks_named
from harness.common.run_folder.heartbeats import MEMORY
from harness.common.run_folder.run_files import EVIDENCE, MONITORS, STATUS
from harness.common.run_folder.run_store import UnreadFileError
from harness.heartbeats.collect import Collector
from harness.heartbeats.hang import Hang, write_hang
from harness.heartbeats.preparing import preparation, work_of
from harness.heartbeats.silent_nodes import seen
from harness.heartbeats.stuck import judge
from harness.monitor.record import record
from harness.monitor.source import exit_code_of

LOOK_S = 2.0
TELL_S = 300.0  # between two lines of the log on who works before the first step
LATE_S = 1.5  # a look that comes so much later: the job was suspended, or this process had no core


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0: asked to end, or the training has ended; 1: files cannot be written; 2: the request was wrong."""
    parser = argparse.ArgumentParser(prog="python -m harness.heartbeats.node", description=__doc__)
    parser.add_argument("--run", type=Path, required=True, help="the run's folder")
    parser.add_argument("--node", type=int, required=True, help="the node's number in the job")
    parser.add_argument("--name", required=True, help="the node's name among the run's monitors")
    watched = parser.add_mutually_exclusive_group(required=True)
    watched.add_argument("--below", type=int, metavar="PID", help="watch what this process starts, to its end")
    watched.add_argument("--pid", type=int, metavar="PID", help="watch this process and what it starts, to its end")
    parser.add_argument("--hz", type=float, default=1.0, help="samples of the devices per second")
    parser.add_argument("--on-hang", choices=("report", "stop"), default="report", help="what to do if it is stuck")
    asked = parser.parse_args(argv)
    return exit_code_of(lambda: _watch(asked, os.environ.get(MEMORY)))


def _watch(arguments: argparse.Namespace, claim: str | None) -> None:
    with ExitStack() as until:
        if claim:
            until.enter_context(Collector(arguments.run, Path(claim), arguments.name, arguments.node))
            if arguments.node == 0:
                until.enter_context(Guard(arguments.run, arguments.on_hang == "stop"))
        folder = MONITORS.path(arguments.run, arguments.name)
        record(folder, arguments.hz, arguments.name, pid=arguments.pid, below=arguments.below)
    if claim:  # not after an error: the monitor is started again
        shutil.rmtree(claim, ignore_errors=True)


class Guard:
    """Decides from the files of all nodes whether the run is stuck, in a thread, and writes `live/stuck.json`. Of a
    run that has ended no step yet it says who works.

    Looks every two seconds. stop: whether to end a job that is stuck, as soon as none of its ranks works: a long
    computation looks as one without an end. over: set when it looks no more."""

    def __init__(self, run: Path, stop: bool) -> None:
        self._run, self._stop = run, stop
        self.over = threading.Event()
        self._hang: Hang | None = None
        self._tell_s = 0.0  # when who works may be told again
        self._runs_since_ns = 0
        self._thread = threading.Thread(target=self._go, name="guard", daemon=True)

    def __enter__(self) -> Guard:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self._thread.join(3.0)

    def _go(self) -> None:
        while not self._waited():
            try:
                self._look()
            except (UnreadFileError, OSError, ValueError, LookupError, TypeError) as error:  # a damaged file of a node
                print(f"warning: cannot tell whether the run is stuck: {error!r}", file=sys.stderr)
                self.over.wait(30.0)

    def _waited(self) -> bool:
        """Wait until the next look; returns whether there is none."""
        begin_s = time.monotonic()
        over = self.over.wait(LOOK_S)
        if time.monotonic() - begin_s > LOOK_S + LATE_S:
            self._runs_since_ns = time.time_ns()
        return over

    def _look(self) -> None:
        node_evidence = seen(self._run, time.time_ns(), self._runs_since_ns) if any(EVIDENCE.paths(self._run)) else None
        found = judge(node_evidence) if node_evidence else None
        said = preparation(node_evidence) if node_evidence else ""
        if said and time.monotonic() >= self._tell_s:
            self._tell_s = time.monotonic() + TELL_S
            print(said, file=sys.stderr, flush=True)
        if found is None:
            if self._hang is not None:
                write_hang(self._run, self._hang._replace(until_ns=time.time_ns()))
            self._hang = None
            return
        works = [rank.rank for rank in node_evidence.ranks if work_of(rank)] if node_evidence else []
        hang = found._replace(found_ns=time.time_ns(), stops=self._stop and not works)
        if self._hang is None:
            goes_on = f"  the job continues: --on-hang stop does not end it while {ranks_named(works)} may work"
            lines = [*hang.told(hang.found_ns), *[goes_on] * (self._stop and not hang.stops)]
            print("\n".join(lines), file=sys.stderr, flush=True)
        if self._hang is None or (self._hang.sentence, self._hang.stops) != (hang.sentence, hang.stops):
            self._hang = hang
            write_hang(self._run, self._hang)
        if hang.stops:
            self.over.set()  # what is seen from now on is the end of the job
            self._end_job()

    def _end_job(self) -> None:
        """Tell the job's script, which ends what it has started and writes the state `stuck`."""
        with suppress(UnreadFileError, OSError, KeyError, ValueError, TypeError):
            status = STATUS.as_json.read(STATUS.path(self._run))
            if status["host"] == socket.gethostname():
                os.kill(int(status["pid"]), signal.SIGUSR2)


if __name__ == "__main__":
    sys.exit(main())
