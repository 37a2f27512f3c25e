"""A launcher that starts light trainings without PyTorch, in the place of accelerate where that does not matter.

As accelerate it starts a rank per process, ends the others when one fails, and has the failed one's exit status. A
fault's site puts it before the interpreter's own modules, as `sitecustomize`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

GRACE_S = 30.0
CUSTOMIZE = """
import sys
if "exercises.utils.launch" in sys.orig_argv[:4]:
    from tests.faults.light_launch import launch
    launch(sys.orig_argv)
"""


def write_customize(folder: Path) -> None:
    """Make `folder` one that, on PYTHONPATH, puts `launch` in the place of the training's launcher."""
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(CUSTOMIZE, encoding="utf-8")


def launch(argv: list[str]) -> None:
    """Run the launcher's command line; does not return."""
    first = next(i for i, word in enumerate(argv) if word.endswith(".py"))
    local, nodes = int(os.environ["FAULTS_RANKS"]), int(os.environ["FAULTS_NODES"])
    node = int(os.environ.get("SLURM_NODEID") or os.environ.get("NODE") or 0)
    ranks = [_rank(argv[first:], node * local + i, local * nodes) for i in range(local)]

    def pass_on(number: int, _frame: FrameType | None) -> None:
        for rank in ranks:
            rank.send_signal(number)

    signal.signal(signal.SIGTERM, pass_on)
    os._exit(_wait(ranks))


def _rank(argv: list[str], rank: int, world: int) -> subprocess.Popen[bytes]:
    env = os.environ | {"RANK": str(rank), "WORLD_SIZE": str(world)}
    return subprocess.Popen([sys.executable, *argv], env=env)


def _wait(ranks: list[subprocess.Popen[bytes]]) -> int:
    failed = 0
    while any(rank.poll() is None for rank in ranks) and not failed:
        time.sleep(0.05)
        failed = next((code for rank in ranks if (code := rank.poll())), 0)
    failed = failed or next((rank.returncode for rank in ranks if rank.returncode), 0)
    for rank in ranks:
        rank.terminate()
    for rank in ranks:
        try:
            rank.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            rank.kill()
    return 128 - failed if failed < 0 else failed
