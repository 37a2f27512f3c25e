"""A launcher that starts light trainings without PyTorch, in the place of accelerate where that does not matter.

As accelerate it starts a rank per process, ends the others when one fails, tells the exit status of that one in
torchrun's last words, and ends with 1. A fault's site puts it before the interpreter's own modules, as `sitecustomize`.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from threading import Event
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a small Python of a container has no ntpath, without which there is no pathlib
    from pathlib import Path

GRACE_S = 30.0
LAST_WORDS = """Root Cause (first observed failure):
[0]:
  time      : {at}
  host      : {host}
  rank      : {rank} (local_rank: {rank})
  exitcode  : {code} (pid: {pid})
  error_file: <N/A>"""
CUSTOMIZE = """
with open("/proc/self/cmdline", encoding="utf-8") as file:
    argv = file.read().split("\\0")[:-1]
if "launch" in argv[2:4] and (argv[1].endswith("/accelerate") or "accelerate.commands.accelerate_cli" in argv[2:3]):
    from tests.faults.light_launch import launch
    launch(argv)
"""


def write_customize(folder: Path) -> None:
    """Make `folder` one that, on PYTHONPATH, puts `launch` in the place of the training's launcher."""
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(CUSTOMIZE, encoding="utf-8")


def launch(argv: list[str]) -> None:
    """Run the launcher's command line; does not return."""
    first = next(i for i, word in enumerate(argv) if word.endswith(".py"))
    local, nodes = int(os.environ["FAULTS_RANKS"]), int(os.environ["FAULTS_NODES"])
    node = int(argv[argv.index("--machine_rank") + 1])
    ranks = [_rank(argv[first:], node * local + i, local * nodes) for i in range(local)]

    def pass_on(number: int, _frame: FrameType | None) -> None:
        for rank in ranks:
            rank.send_signal(number)

    signal.signal(signal.SIGTERM, pass_on)
    failed = _wait(ranks)
    if failed is not None:
        print(LAST_WORDS.format(at=time.strftime("%F_%T"), host=socket.getfqdn(), **failed), file=sys.stderr)
    os._exit(int(failed is not None))


def _rank(argv: list[str], rank: int, world: int) -> subprocess.Popen[bytes]:
    env = os.environ | {"RANK": str(rank), "WORLD_SIZE": str(world)}
    return subprocess.Popen([sys.executable, *argv], env=env)


def _wait(ranks: list[subprocess.Popen[bytes]]) -> dict[str, int] | None:
    """Which rank was the first that failed, and how."""
    first = None
    while any(rank.poll() is None for rank in ranks) and first is None:
        Event().wait(0.05)
        first = next((number for number, rank in enumerate(ranks) if rank.poll()), None)
    if first is None:
        first = next((number for number, rank in enumerate(ranks) if rank.returncode), None)
    for rank in ranks:
        rank.terminate()
    for rank in ranks:
        try:
            rank.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            rank.kill()
    return None if first is None else {"rank": first, "code": ranks[first].returncode, "pid": ranks[first].pid}
