"""The local backend: the same script on this machine, kept alive by submitit's local executor.

submitit's controller outlives the command that started it, warns the script before its time limit and ends it there. A
Ctrl-C on the terminal reaches only that command, which then stops the run.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from harness.common.errors import RequestError, WorkError
from harness.common.paths import TEMPLATES
from harness.common.small_file import read_end, read_small_text
from harness.experiment.exercises import Experiment
from harness.launch.argv import Word
from harness.launch.backends.protocol import Joint, Submission, Together
from harness.run import Run, State, claim_local_id, disk_error, release_local_id, runs_root, write_atomically
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
        os.setpgrp()  # the terminal's Ctrl-C does not reach it; the controller ends it with SIGINT
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # bash cannot trap a signal that was ignored at its start
    process = subprocess.Popen(["bash", script], env={**os.environ, **environment}, start_new_session=True)

    def pass_on(number: int, _frame: FrameType | None) -> None:
        process.send_signal(PASSED_ON[number])

    for number in PASSED_ON:
        signal.signal(number, pass_on)
    return process.wait()


SUBMITTER = "submitter"  # in the controller's folder: the process that starts it
_LAST_WORDS_BYTES = 1 << 16  # of a log, for its last line
STARTING_S = 60  # between a run's publication and its controller's start lie the imports of submitit


def directives(_asked: Experiment, _site: Site, _cpus: int | None) -> list[str]:
    """Empty: only a queue reads directives."""
    return []


def warnings(_asked: Experiment, _site: Site, _environ: Mapping[str, str]) -> list[str]:
    """Empty: a run begins at once."""
    return []


def refusals(_output_dir: str) -> list[str]:
    """Empty: a script can write wherever this machine can."""
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
        write_atomically(folder / SUBMITTER, str(os.getpid()))
        Run(stage.path).write_record(asked.record.model_copy(update={"job_id": job_id}))
        run = stage.publish(asked.name_for(job_id), job_id)
        start_controller(
            run.script, job_id, folder, time_s=site.time_s, warning_s=site.warning_s, gpus=asked.gpus
        )
    except (OSError, WorkError) as error:
        if run is not None:
            stage.withdraw(run)
        release_local_id(folder)
        raise error if isinstance(error, WorkError) else disk_error(stage.output_dir, error) from None
    return run


def submit_after(_run: Run, _argv: list[Word], _over: bool) -> str:
    """Raises RequestError: this backend has no queue."""
    raise RequestError(
        "--submit: give one run that was submitted to Slurm; any other is converted here without it"
    )


def joint(_way: Together, _site: Site, _directives: list[str], _runs: int, _at_once: int | None) -> Joint:
    """Raises RequestError: this backend has no queue."""
    raise RequestError("this machine has no queue: its runs are started one after the other")


def submit_together(_asked: Sequence[Submission], _joint: Joint, _script: Path) -> list[Run]:
    """Raises RequestError: this backend has no queue."""
    raise RequestError("this machine has no queue: its runs are started one after the other")


def most_together(_way: Together) -> int:
    """Zero: this backend has no queue."""
    return 0


def start_controller(
    script: Path, job_id: str, folder: Path, *, time_s: int, warning_s: int, gpus: int
) -> None:
    """Start the script in the background as run `job_id`; `folder` is submitit's.

    time_s: its limit. warning_s: how long before the limit it is warned. gpus: how many of this machine's it sees.

    Raises:
        OSError: the folder cannot be written.
    """
    from submitit import LocalExecutor

    executor = LocalExecutor(folder=folder)
    executor.update_parameters(
        timeout_min=time_s / 60,
        signal_delay_s=max(1, warning_s),  # without a warning the end would look like a cancellation
    )
    # Not submitit's own list, which has only numbers.
    devices = ",".join(visible_gpus()[:gpus])
    environment = {
        "HARNESS_JOB_ID": job_id,
        "HARNESS_PORT": str(free_port()),
        "CUDA_VISIBLE_DEVICES": devices,
    }
    with _ignoring_ctrl_c():
        executor.submit(run_and_pass_signals, str(script), environment)


@contextmanager
def _ignoring_ctrl_c() -> Iterator[None]:
    """Processes that are started inside ignore Ctrl-C; this process ignores it only inside."""
    try:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    except ValueError:  # only the main thread may set a handler, and only it is interrupted
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before or signal.SIG_DFL)  # None: a handler that Python did not set


def free_port() -> int:
    """A TCP port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def state(run: Run, _silent: object = None) -> State:
    """The state that the run itself wrote, checked against its process."""
    own = run.status()
    if own is None:
        return _state_before_it_began(run)
    if own.state == "running" and not _is_alive(run, own.pid, own.host):
        later = run.status()  # it may have written its end since the first reading
        if later is not None and later.state != "running":
            return later.state
        return "unknown" if _is_elsewhere(run) or _controller(run) is None or _is_kept(run) else "failed"
    return own.state


def _state_before_it_began(run: Run) -> State:
    if _is_elsewhere(run):
        return "unknown"
    young = time.time_ns() - run.record.created_ns < STARTING_S * 1_000_000_000
    if _is_kept(run) or (young and _controller(run) is None and _submitter_lives(run)):
        return "queued"
    own = run.status()  # as in `state`
    return own.state if own is not None else "failed"


def _submitter_lives(run: Run) -> bool:
    """False when the process that would start the run's controller was killed."""
    try:
        pid = int(read_small_text(run.controller_dir / SUBMITTER))
    except (OSError, ValueError):
        return True  # it does not say who it is
    try:
        return b") Z " not in Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False


def why(run: Run, state: State) -> str:
    """Why a failed run did not write its end: the last line of its controller's log; empty when it did."""
    own = run.status()
    if state != "failed" or (own is not None and own.state != "running"):
        return ""
    lines = [
        line
        for log in sorted(run.controller_dir.glob("*_log.err"))
        for line in _end_of(log).splitlines()
        if line.strip() and not line.startswith("submitit ")
    ]
    message = f": {lines[-1].strip()}" if lines else ""
    return (
        f"it ended without writing how, as on a full disk, at a time limit of seconds or when killed{message}"
    )


def _end_of(log: Path) -> str:
    """The last lines of a log; empty where it cannot be read."""
    try:
        return read_end(log, _LAST_WORDS_BYTES).decode("utf-8", "replace")
    except (OSError, ValueError):
        return ""


def logs(_run: Run) -> list[Path]:
    """Empty: the script's output is in the run's own logs."""
    return []


def _controller(run: Run) -> int | None:
    """The id of the process that started the run and waits for its end, from the names of submitit's files."""
    numbers = [p.name.partition("_")[0] for p in run.controller_dir.glob("*_submitted.pkl")]
    return next((int(n) for n in numbers if n.isdigit()), None)


def cancel(run: Run) -> None:
    """Ask the run to stop; it writes its traces and its status itself.

    Raises:
        WorkError: its process is not on this machine.
    """
    own, controller = run.status(), _controller(run)
    if own is None and controller is not None and _is_kept(run):
        os.kill(controller, signal.SIGTERM)  # it passes the signal on when the script has started
        return
    if own is None or own.pid is None or not _is_alive(run, own.pid, own.host):
        raise WorkError(f"{run.name}: its process is not on this machine (any more): nothing was cancelled")
    os.kill(own.pid, signal.SIGTERM)


def _is_alive(run: Run, pid: int | None, host: str | None) -> bool:
    """True when `pid` still is this run's script: another process may have the number now."""
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
    """True when process `pid` lives and has an argument that ends like `path`, whose start may be a link."""
    end = "/".join(("", *path.parts[-2:])).encode()
    process = Path(f"/proc/{pid}")
    try:
        words = (process / "cmdline").read_bytes()
        if not words:  # a zombie, or so new that its words are not there yet
            return b") Z " not in (process / "stat").read_bytes()
        return any(word.endswith(end) for word in words.split(b"\0"))
    except OSError:
        return False
