"""The surroundings of a step: its folders, its time, its Python, and whether this machine has a GPU.

Knows no step. A step's own files lie in `work`, which stays on the machine; only `out` is meant to be taken home.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from failures import LackError, StepError

# What the harness and its exercises import; of the frameworks only the one that every exercise has.
LAUNCHER = ("pydantic", "typer", "yaml", "jinja2", "submitit", "numpy", "msgspec", "isal", "plotly", "matplotlib")
TRAINING = ("torch", "accelerate", "transformers", "tokenizers", "tqdm", "regex", "psutil", *LAUNCHER)
ROOT = Path(__file__).resolve().parents[2]
DRIVERS_PROGRAMS = "/usr/local/nvidia/bin"  # where containers get the driver's programs
LEAST_S = 15.0  # nothing is started with less
GRACE_S = 20.0  # a run that must stop first writes its status and its traces


@dataclass(frozen=True)
class Place:
    """A step's surroundings. `python`: imports what this process can; `end_s`: on the monotonic clock."""

    out: Path
    work: Path
    python: Path
    end_s: float

    @property
    def seconds_left(self) -> float:
        """Until the step's time is over."""
        return self.end_s - time.monotonic()

    @property
    def is_late(self) -> bool:
        """Whether too little time is left to start anything."""
        return self.seconds_left < LEAST_S

    def seconds_for(self, most: float) -> float:
        """The time limit of something that usually takes less than `most`."""
        return max(1.0, min(most, self.seconds_left))

    def environment(self) -> dict[str, str]:
        """The environment of all programs: runs go into the work folder; PYTHONPATH is not needed."""
        ours = {"HARNESS_RUNS": str(self.work / "runs"), "PYTHONUNBUFFERED": "1", "COLUMNS": "120"}
        return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | ours

    def run(self, argv: Sequence[str | Path], seconds: float, log: Path | None = None) -> Finished:
        """Run a program to its end, or to the end of its time."""
        return run(argv, seconds, self.environment(), log)


@dataclass(frozen=True)
class Finished:
    """A program that has ended; `code` is None if its time limit was reached."""

    code: int | None
    stdout: str
    stderr: str

    @property
    def ending(self) -> str:
        """The last line of its output, for a sentence about its failure."""
        lines = [line.strip() for line in (self.stderr or self.stdout).splitlines() if line.strip()]
        return lines[-1][:300] if lines else "it printed nothing"


def run(
    argv: Sequence[str | Path],
    seconds: float,
    environment: Mapping[str, str],
    log: Path | None = None,
    grace_s: float = GRACE_S,
) -> Finished:
    """Run a program in a session of its own. At the end of its time it gets SIGINT, and SIGKILL `grace_s` later."""
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
        code: int | None = None
        try:
            stdout, stderr = process.communicate(timeout=seconds)
            code = process.returncode
        except subprocess.TimeoutExpired:
            stdout, stderr = _end(process, grace_s)
        except BaseException:
            _end(process, grace_s)
            raise
    if log is not None:
        _append(log, argv, stdout, stderr)
    return Finished(code, stdout, stderr)


def _end(process: subprocess.Popen[str], grace_s: float) -> tuple[str, str]:
    for number, patience_s in ((signal.SIGINT, grace_s), (signal.SIGKILL, GRACE_S)):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            return process.communicate(timeout=patience_s)
        except subprocess.TimeoutExpired:
            continue
    return "", ""


def _append(log: Path, argv: Sequence[str | Path], stdout: str, stderr: str) -> None:
    with log.open("a", encoding="utf-8") as file:
        file.write(f"$ {' '.join(map(str, argv))}\n{stdout}{stderr}\n")


def has_gpu() -> bool:
    """Whether this machine shows an NVIDIA GPU; asks no PyTorch, which may be absent or built for CPUs.

    Where nvidia-smi is missing, the driver's device files decide, as in the harness.
    """
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1", "NoDevFiles"):
        return False
    return nvidia_smi() is not None or any(Path("/dev").glob("nvidia[0-9]*"))


@cache
def nvidia_smi() -> str | None:
    """The path of an nvidia-smi that sees a GPU. Asked once: without a resident driver it takes a second."""
    program = shutil.which("nvidia-smi", path=f"{os.environ.get('PATH', os.defpath)}:{DRIVERS_PROGRAMS}")
    if program is None:
        return None
    try:
        done = subprocess.run([program, "-L"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return program if done.returncode == 0 and "GPU " in done.stdout else None


def require_packages(*modules: str) -> None:
    """Raises LackError: one of these cannot be imported here."""
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    if missing:
        raise LackError(f"the packages {', '.join(missing)} (step inventory names the command)")


def require_success(done: Finished, what: str) -> Finished:
    """Raises StepError: the program failed or its time limit was reached."""
    if done.code is None:
        raise StepError(f"{what}: its time limit was reached")
    if done.code != 0:
        raise StepError(f"{what}: exit status {done.code}: {done.ending}")
    return done
