"""The local backend: the same script on this machine, kept alive by submitit's local executor.

submitit's controller outlives the command that started it, ends the script at its time limit and warns it before.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from harness.errors import WorkError
from harness.run import Run, State
from harness.site import nvidia_gpus

PASSED_ON: dict[int, signal.Signals] = {
    signal.SIGTERM: signal.SIGTERM,
    signal.SIGINT: signal.SIGTERM,
    signal.SIGUSR1: signal.SIGUSR1,  # submitit's warning before the time limit is one of these two
    signal.SIGUSR2: signal.SIGUSR1,
}


def run_script(script: str, environment: dict[str, str]) -> int:
    """Run the script and pass signals on to it; returns its exit status. Executed by submitit's controller."""
    process = subprocess.Popen(["bash", script], env={**os.environ, **environment}, start_new_session=True)

    def pass_on(number: int, _frame: FrameType | None) -> None:
        process.send_signal(PASSED_ON[number])

    for number in PASSED_ON:
        signal.signal(number, pass_on)
    return process.wait()


class Limits(NamedTuple):
    """What a local run may use."""

    time_s: int
    warning_s: int  # how long before the time limit it is warned
    gpus: int  # how many of this machine's GPUs it sees


def submit(script: Path, job_id: str, folder: Path, limits: Limits) -> None:
    """Start the script in the background as run `job_id`; `folder` is submitit's."""
    from submitit import LocalExecutor  # noqa: PLC0415 - a second of imports that only a real start needs

    executor = LocalExecutor(folder=folder)
    executor.update_parameters(
        timeout_min=limits.time_s / 60,
        signal_delay_s=limits.warning_s,
        gpus_per_node=limits.gpus,
        visible_gpus=_visible()[: limits.gpus],
    )
    environment = {"HARNESS_JOB_ID": job_id, "HARNESS_PORT": str(free_port())}
    executor.submit(run_script, str(script), environment)


def _visible(environ: Mapping[str, str] = os.environ) -> list[int]:
    named = environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None and all(d.strip().isdigit() for d in named.split(",")):
        return [int(d) for d in named.split(",")]
    return list(range(nvidia_gpus(environ)))


def free_port() -> int:
    """A TCP port that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def state(run: Run) -> State:
    """What the run itself wrote, checked against its process."""
    own = run.status()
    if own is None:
        return "queued"
    if own.state == "running" and not _is_alive(run, own.pid, own.host):
        later = run.status()  # it may have written its end between the two looks
        return later.state if later is not None and later.state != "running" else "unknown"
    return own.state


def cancel(run: Run) -> None:
    """Ask the run to stop; it writes its traces and its status itself.

    Raises:
        WorkError: its process is not on this machine.
    """
    own = run.status()
    if own is None or own.pid is None or not _is_alive(run, own.pid, own.host):
        raise WorkError(f"{run.name}: its process is not on this machine (any more): nothing was cancelled")
    os.kill(own.pid, signal.SIGTERM)


def _is_alive(run: Run, pid: int | None, host: str | None) -> bool:
    """True when `pid` still is this run's script; a number can be somebody else's by now."""
    if host != socket.gethostname():
        return False
    try:
        return str(run.script).encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
