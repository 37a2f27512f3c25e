"""A process beside a rank, which ends with it however it ends. Standard library only."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

# PR_SET_PDEATHSIG (1) with SIGKILL (9): the kernel ends this process when the thread that started it is gone, which
# may have been before. Then the module runs. Its words come by the input, byte by byte as what follows is the
# module's: a list of processes is not to tell what a mystery does.
START = """
import ctypes, json, os, runpy, sys
ctypes.CDLL(None).prctl(1, 9)
if os.getppid() != int(sys.argv[1]):
    sys.exit()
line = b""
while not line.endswith(b"\\n"):
    byte = os.read(0, 1)
    if not byte:
        sys.exit()
    line += byte
sys.argv = json.loads(line)
runpy.run_path(sys.argv[0], run_name="__main__")
"""


class SideProcess:
    """A module of this folder as a process of its own, without the packages of this one."""

    def __init__(self, module: str, *arguments: object) -> None:
        script = Path(__file__).with_name(f"{module}.py")
        argv = [sys.executable, "-I", "-S", "-c", START, str(os.getpid())]
        # A batch system sends SIGTERM to every process of a job: what follows is the training's affair alone.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
        try:
            self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        assert self._process.stdout is not None
        self._answers = self._process.stdout.fileno()
        self._pending = b""
        os.set_blocking(self._answers, False)
        self.send(json.dumps([str(script), *map(str, arguments)]))

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, line: str) -> None:
        """Write a line to its input."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())
        self._process.stdin.flush()

    def received(self) -> Iterator[str]:
        """The lines that it has written since the last call; does not wait."""
        while True:
            try:
                more = os.read(self._answers, 4096)
            except BlockingIOError:
                break
            if not more:
                break
            self._pending += more
        *lines, self._pending = self._pending.split(b"\n")
        yield from (line.decode() for line in lines)

    def wait(self) -> None:
        """Wait for its end, however long that takes."""
        self._process.wait()

    def kill(self) -> None:
        """End it at once, whatever it does."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Ask it to end, with an empty line, and wait for that. Data workers may hold its input open."""
        self.send("")
        self._process.wait()
