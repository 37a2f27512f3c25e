"""Ctrl-C on a terminal interrupts the command that follows a run; that command then ends the run."""

from __future__ import annotations

import os
import pty
import signal
import sys
from contextlib import suppress
from pathlib import Path

from tests.launch.launch_shared import ROOT
from tests.waiting import wait_until

PROGRAM = """
import sys, time
from pathlib import Path
from harness.launch.backends.local import start_controller

folder = Path(sys.argv[1])
start_controller(folder / "job.sh", "local-1", folder / "controller", time_s=3600, warning_s=5, gpus=0)
try:
    (folder / "listening").touch()
    time.sleep(3600)
except KeyboardInterrupt:
    print("interrupted", flush=True)
(folder / "pressed").touch()
while not (folder / "done").exists():
    time.sleep(0.1)
"""

SCRIPT = """
cd "$(dirname "$0")"
trap 'touch trapped' INT
kill -INT $$
touch up
until [ -e pressed ]; do sleep 0.1; done
touch done
"""


def on_a_terminal(argv: list[str], *pressed_when: Path) -> str:
    """The output of a program on a terminal of its own, where Ctrl-C is pressed as soon as these files exist."""
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(ROOT)
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a parent process in the background ignores it
        os.execv(argv[0], argv)
    try:
        wait_until(lambda: all(file.exists() for file in pressed_when), f"{pressed_when}")
        os.write(terminal, b"\x03")
        wait_until(lambda: os.waitpid(child, os.WNOHANG)[0], "the end of the program")
    except AssertionError:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
    said = b""
    with suppress(OSError):  # a terminal without a program answers with an error
        while new := os.read(terminal, 4096):
            said += new
    os.close(terminal)
    return said.decode()


def test_ctrl_c_interrupts_the_command_and_neither_the_controller_nor_the_script(tmp_path: Path) -> None:
    (tmp_path / "job.sh").write_text(SCRIPT)
    said = on_a_terminal([sys.executable, "-c", PROGRAM, str(tmp_path)], tmp_path / "up", tmp_path / "listening")
    assert "interrupted" in said
    assert "Traceback" not in said
    assert (tmp_path / "done").is_file(), "the terminal ended the script"
    assert (tmp_path / "trapped").is_file(), "the script cannot trap SIGINT: it was started ignoring it"
