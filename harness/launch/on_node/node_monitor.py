"""The monitor beside a node's commands: a program of its own, in a thread that starts it once more if it died."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Protocol

from harness.common.paths import ROOT
from harness.common.system import processes
from harness.common.system.programs import shell_status


class MonitoredNode(Protocol):
    """A node of a run. watched: the name of its samples. stopped: it was asked to end."""

    run: Path
    number: int
    host: str
    watched: str
    stopped: bool

    def say(self, sentence: str) -> None:
        """Write a line of the job's log."""


class Monitor:
    """The monitor of a node. hz: samples of the devices per second; on_hang: what it does if the run is stuck."""

    def __init__(self, node: MonitoredNode, hz: float, on_hang: str) -> None:
        self._node, self._over = node, False
        self._argv = [sys.executable, "-m", "harness.heartbeats.node", f"--run={node.run}", f"--node={node.number}"]
        self._argv += [f"--name={node.watched}", f"--below={os.getpid()}", f"--hz={hz}", f"--on-hang={on_hang}"]
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        node = self._node
        for what in ("started again once", "not started again: samples are missing from now on"):
            if self._over or node.stopped:
                return
            inherited = {name: text for name, text in os.environ.items() if name != "PYTHONHOME"}
            self._process = subprocess.Popen(self._argv, env=inherited | {"PYTHONPATH": str(ROOT)})
            if self._over:  # it was asked before there was one
                self._process.terminate()
            code = shell_status(self._process.wait())
            if not code or self._over or node.stopped:
                return
            at = time.strftime("%H:%M:%S")
            node.say(f"warning: {node.host}: the monitor ended with status {code} at {at}; it is {what}")

    def end(self) -> None:
        """Ask it to end; a driver may not answer it, and the job must end all the same."""
        self._over = True
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self._process is not None:
                processes.signal_all([self._process.pid], number)
            self._thread.join(10)
