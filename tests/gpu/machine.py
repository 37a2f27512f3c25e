"""Whether this machine has an NVIDIA GPU, and how a program runs on it. Imports the standard library only."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
DRIVERS_PROGRAMS = "/usr/local/nvidia/bin"  # where containers get the driver's programs
GRACE_S = 20.0  # a run that must stop first writes its status and its traces


class Ended(NamedTuple):
    """A program that has ended; `code` is None if its time limit was reached."""

    code: int | None
    stdout: str
    stderr: str

    @property
    def why(self) -> str:
        """How it ended, with the last line that it printed."""
        lines = (self.stderr or self.stdout).split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "it printed nothing")
        return "its time limit was reached" if self.code is None else f"exit status {self.code}: {last[:300]}"


def run(argv: Sequence[str | Path], seconds: float, environment: Mapping[str, str]) -> Ended:
    """Run a program in a session of its own. At the end of its time it gets SIGINT, and SIGKILL 20 s later."""
    with subprocess.Popen(
        [str(word) for word in argv],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=dict(environment),
        cwd=ROOT,
        start_new_session=True,
    ) as process:
        try:
            stdout, stderr = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            return Ended(None, *_end(process))
        except BaseException:
            _end(process)
            raise
    return Ended(process.returncode, stdout, stderr)


def _end(process: subprocess.Popen[str]) -> tuple[str, str]:
    for number in (signal.SIGINT, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            return process.communicate(timeout=GRACE_S)
        except ProcessLookupError:
            break
        except subprocess.TimeoutExpired:
            continue
    return "", ""


def has_gpu() -> bool:
    """Whether this machine shows an NVIDIA GPU; asks no PyTorch, which may be absent or built for CPUs.

    Where nvidia-smi is missing, the driver's device files decide, as in the harness.
    """
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1", "NoDevFiles"):
        return False
    return nvidia_smi() is not None or any(Path("/dev").glob("nvidia[0-9]*"))


@cache
def nvidia_smi() -> str | None:
    """The path of an nvidia-smi that sees a GPU. Called once: without a resident driver it takes a second."""
    program = shutil.which("nvidia-smi", path=f"{os.environ.get('PATH', os.defpath)}:{DRIVERS_PROGRAMS}")
    if program is None:
        return None
    try:
        done = subprocess.run([program, "-L"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return program if done.returncode == 0 and "GPU " in done.stdout else None
