"""What a session of the tests has started is gone after it, also when it was killed (tests/leftovers.py)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.leftovers import OF_PART, SESSION
from tests.waiting import limit_s, wait_until

ROOT = Path(__file__).parents[2]
# As pytest: it begins a session, leaves a program that has a folder of its own, and a fork that has its pipes.
LEAVES = """
import multiprocessing, subprocess, sys, time
from pathlib import Path
from tests import leftovers
leftovers.begin(grace_s=0)
folder = Path(sys.argv[1])
folder.mkdir()
leftovers.remove_at_the_end(folder)
subprocess.run(["mount", "-t", "tmpfs", "tmpfs", folder], check=False, stderr=subprocess.DEVNULL)
fork = multiprocessing.get_context("fork").Process(target=time.sleep, args=(3600,))
fork.start()
left = subprocess.Popen(["sleep", "3600"], start_new_session=True)
print(left.pid, fork.pid, flush=True)
left.wait()
"""


def test_a_killed_session_leaves_no_process_no_mount_and_no_folder(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    env = {name: value for name, value in os.environ.items() if name not in (SESSION, OF_PART)}
    session = subprocess.Popen(
        [sys.executable, "-c", LEAVES, str(folder)], cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True
    )
    assert session.stdout is not None
    left, fork = (Path("/proc", pid) for pid in session.stdout.readline().split())
    assert left.is_dir() and fork.is_dir() and folder.is_dir()
    session.kill()
    session.wait(timeout=limit_s())
    wait_until(
        lambda: not (left / "exe").exists(), "the end of the program"
    )  # where process 1 reaps late it is a zombie
    wait_until(lambda: not folder.exists(), "the end of the folder")
    os.kill(int(fork.name), signal.SIGKILL)  # /proc shows the environment that its parent began with, so it has no mark
