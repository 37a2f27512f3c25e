"""The local backend: the same script on this machine, kept alive by submitit's local executor.

submitit's controller outlives the command that started it, ends the script at its time limit and warns it before. A
Ctrl-C on the terminal is for that command alone, which then tells the run to stop.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from harness.common.errors import RequestError, WorkError
from harness.common.paths import TEMPLATES
from harness.experiment.exercises import Experiment
from harness.launch.argv import Word
from harness.launch.backends.protocol import Submission
from harness.run import Run, State, claim_local_id, disk_error, release_local_id, runs_root
from harness.site.detection import visible_gpus
from harness.site.site import Site

TEMPLATE = TEMPLATES / "local.j2"
RUNS_HERE = True
POLL_S = 0.3

PASSED_ON: dict[int, signal.Signals] = {
    signal.SIGTERM: signal.SIGTERM,
    signal.SIGINT: signal.SIGTERM,
    signal.SIGUSR1: signal.SIGUSR1,  # submitit's warning before the time limit is one of these two
    signal.SIGUSR2: signal.SIGUSR1,
}


def run_and_pass_signals(script: str, environment: dict[str, str]) -> int:
    """Run the script and pass signals on to it; returns its exit status. Executed by submitit's controller."""
    if os.getpgrp() != os.getpid():
        os.setpgrp()  # out of the terminal's reach, with a SIGINT of its own: the controller's own way to end it
    signal.signal(signal.SIGINT, signal.default_int_handler)  # bash cannot trap what was ignored at its start
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


STARTING_S = 60  # between a run's publication and its controller's start lie the imports of submitit


def directives(_asked: Experiment, _site: Site, _cpus: int | None) -> list[str]:
    """None: nobody reads them."""
    return []


def warnings(_asked: Experiment, _site: Site, _environ: Mapping[str, str]) -> list[str]:
    """None: a run begins at once."""
    return []


def refusals(_output_dir: str) -> list[str]:
    """None: a script can write wherever this machine can."""
    return []


def submit(asked: Submission) -> Run:
    """Number the staged run and start it; returns it.

    Raises:
        WorkError: it could not be written or started; nothing is left behind.
    """
    stage, site = asked.stage, asked.record.site
    job_id, folder = claim_local_id(runs_root())
    run = None
    try:
        Run(stage.path).write_record(asked.record.model_copy(update={"job_id": job_id}))
        run = stage.publish(asked.name_for(job_id), job_id)
        start_controller(run.script, job_id, folder, Limits(site.time_s, site.warning_s, asked.gpus))
    except (OSError, WorkError) as error:
        if run is not None:
            stage.withdraw(run)
        release_local_id(folder)
        raise error if isinstance(error, WorkError) else disk_error(stage.output_dir, error) from None
    return run


def submit_after(_run: Run, _argv: list[Word], _over: bool) -> str:
    """Nothing queues here.

    Raises:
        RequestError: always.
    """
    raise RequestError(
        "--submit: give one run that was submitted to Slurm; any other is converted here without it"
    )


def start_controller(script: Path, job_id: str, folder: Path, limits: Limits) -> None:
    """Start the script in the background as run `job_id`; `folder` is submitit's.

    Raises:
        OSError: the folder cannot be written.
    """
    from submitit import LocalExecutor

    executor = LocalExecutor(folder=folder)
    executor.update_parameters(
        timeout_min=limits.time_s / 60,
        signal_delay_s=max(1, limits.warning_s),  # without a warning its end would pass for a cancellation
    )
    # Ours, not submitit's: it knows GPUs by number only.
    devices = ",".join(visible_gpus(os.environ)[: limits.gpus])
    environment = {
        "HARNESS_JOB_ID": job_id,
        "HARNESS_PORT": str(free_port()),
        "CUDA_VISIBLE_DEVICES": devices,
    }
    with _deaf_to_the_terminal():
        executor.submit(run_and_pass_signals, str(script), environment)


@contextmanager
def _deaf_to_the_terminal() -> Iterator[None]:
    """Processes started meanwhile ignore Ctrl-C; here it is heard again afterwards, as before."""
    try:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    except ValueError:  # only the main thread may, and only it is interrupted
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before or signal.SIG_DFL)  # None: whoever handled it was no Python


def free_port() -> int:
    """A TCP port that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def state(run: Run, _silent: object = None) -> State:
    """What the run itself wrote, checked against its process."""
    own = run.status()
    if own is None:
        return _state_before_it_began(run)
    if own.state == "running" and not _is_alive(run, own.pid, own.host):
        later = run.status()  # it may have written its end between the two looks
        if later is not None and later.state != "running":
            return later.state
        return "unknown" if _is_elsewhere(run) or _controller(run) is None or _is_kept(run) else "failed"
    return own.state


def _state_before_it_began(run: Run) -> State:
    if _is_elsewhere(run):
        return "unknown"
    young = time.time_ns() - run.record.created_ns < STARTING_S * 1_000_000_000
    if _is_kept(run) or (young and _controller(run) is None):
        return "queued"
    own = run.status()  # as in `state`
    return own.state if own is not None else "failed"


def why(run: Run, state: State) -> str:
    """Why a failed run did not write its end: the last line of its controller's log; empty when it did."""
    own = run.status()
    if state != "failed" or (own is not None and own.state != "running"):
        return ""
    lines = [
        line
        for log in sorted(run.controller_dir.glob("*_log.err"))
        for line in log.read_text(encoding="utf-8", errors="replace").splitlines()
        if line.strip() and not line.startswith("submitit ")
    ]
    said = f": {lines[-1].strip()}" if lines else ""
    return f"it ended without writing how, as on a full disk, at a time limit of seconds or when killed{said}"


def logs(_run: Run) -> list[Path]:
    """None: what the script prints goes to the run's own logs."""
    return []


def _controller(run: Run) -> int | None:
    """The id of the process that started the run and waits for its end: submitit names its files by it."""
    numbers = [p.name.partition("_")[0] for p in run.controller_dir.glob("*_submitted.pkl")]
    return next((int(n) for n in numbers if n.isdigit()), None)


def cancel(run: Run) -> None:
    """Ask the run to stop; it writes its traces and its status itself.

    Raises:
        WorkError: its process is not on this machine.
    """
    own, controller = run.status(), _controller(run)
    if own is None and controller is not None and _is_kept(run):
        os.kill(controller, signal.SIGTERM)  # it passes that on, as soon as there is somebody to hear it
        return
    if own is None or own.pid is None or not _is_alive(run, own.pid, own.host):
        raise WorkError(f"{run.name}: its process is not on this machine (any more): nothing was cancelled")
    os.kill(own.pid, signal.SIGTERM)


def _is_alive(run: Run, pid: int | None, host: str | None) -> bool:
    """True when `pid` still is this run's script; a number can be somebody else's by now."""
    if host != socket.gethostname():
        return False
    return pid is not None and _was_started_with(pid, run.script)


def _is_elsewhere(run: Run) -> bool:
    """True when another machine started the run: its processes cannot be seen from here."""
    return run.record.submit_host != socket.gethostname()


def _is_kept(run: Run) -> bool:
    """True while the run's controller lives."""
    pid = None if _is_elsewhere(run) else _controller(run)
    return pid is not None and _was_started_with(pid, run.controller_dir)


def _was_started_with(pid: int, path: Path) -> bool:
    """True when process `pid` lives and has an argument that ends like `path`, which a link may have led us to."""
    end = "/".join(("", *path.parts[-2:])).encode()
    process = Path(f"/proc/{pid}")
    try:
        words = (process / "cmdline").read_bytes()
        if not words:  # a zombie, or so new that the kernel has not noted its words yet
            return b") Z " not in (process / "stat").read_bytes()
        return any(word.endswith(end) for word in words.split(b"\0"))
    except OSError:
        return False
