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
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from harness.common.errors import RequestError, WorkError
from harness.common.paths import PYTHON_PATH, TEMPLATES
from harness.experiment.exercises import Experiment
from harness.launch.argv import Word
from harness.launch.backends import local_poll, processes
from harness.launch.backends.local_poll import SUBMITTER, asked_to_end, controller, is_alive, is_kept
from harness.launch.backends.protocol import Joint, Listed, Submission, Together
from harness.run import Run, claim_local_id, disk_error, release_local_id, write_atomically
from harness.site.detection import visible_gpus
from harness.site.site import Site

TEMPLATE = TEMPLATES / "local.j2"
RUNS_HERE = True
poll = local_poll.poll
POLL_S = 0.3
# PyTorch's launcher itself kills ranks that have not ended 30 s after its own signal.
KILL_S = 40.0

PASSED_ON: dict[int, signal.Signals] = {
    signal.SIGTERM: signal.SIGTERM,
    signal.SIGINT: signal.SIGTERM,
    signal.SIGUSR1: signal.SIGUSR1,  # submitit's warning before the time limit is one of these two
    signal.SIGUSR2: signal.SIGUSR1,
}


def run_and_pass_signals(script: str, environment: dict[str, str | None]) -> int:
    """Run the script and pass signals on to it; returns its exit status. Executed by submitit's controller.

    environment: what differs from that of the controller; None: a variable that is not set.
    """
    if os.getpgrp() != os.getpid():
        os.setpgrp()  # the terminal's Ctrl-C does not reach it; the controller ends it with SIGINT
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # bash cannot trap a signal that was ignored at its start
    variables = {name: text for name, text in {**os.environ, **environment}.items() if text is not None}
    process = subprocess.Popen(["bash", script], env=variables, start_new_session=True)

    def pass_on(number: int, _frame: FrameType | None) -> None:
        process.send_signal(PASSED_ON[number])

    for number in PASSED_ON:
        signal.signal(number, pass_on)
    code = process.wait()
    processes.end_session(process.pid)  # of a script that was killed, the training would run on
    return code


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
    job_id, folder = claim_local_id(stage.output_dir.parent)
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
        "--submit takes one run that was submitted to Slurm; without --submit, a run is converted on this machine"
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
    environment: dict[str, str | None] = {
        "HARNESS_JOB_ID": job_id,
        "HARNESS_PORT": str(free_port()),
        "CUDA_VISIBLE_DEVICES": devices,
        "PYTHONPATH": os.environ.get("PYTHONPATH"),
    }
    with _ignoring_ctrl_c(), _with_our_modules(folder):
        executor.submit(run_and_pass_signals, str(script), environment)


@contextmanager
def _with_our_modules(folder: Path) -> Iterator[None]:
    """A Python that is started inside finds our modules: where the user is, others may have their names."""
    place, before = Path.cwd(), os.environ.get("PYTHONPATH")
    os.chdir(folder)
    os.environ["PYTHONPATH"] = str(PYTHON_PATH)
    try:
        yield
    finally:
        os.chdir(place)
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


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


def logs(_run: Run) -> list[Path]:
    """Empty: the script's output is in the run's own logs."""
    return []


def listed(runs: Sequence[Run], places: bool = False) -> dict[Path, Listed] | None:
    """There is no queue: each run's own files and process say its state."""
    return {run.path: Listed(poll(run)) for run in runs}


def cancel(run: Run) -> list[Run]:
    """Ask the run to stop; it writes its traces and its status itself. What still runs after KILL_S is then killed.

    Raises:
        WorkError: its process is not on this machine.
    """
    own, keeper = run.status(), controller(run)
    if own is None and keeper is not None and is_kept(run):
        _end(run, keeper)  # it passes the signal on when the script has started
        return []
    if own is None or own.pid is None or not is_alive(run, own.pid, own.host):
        raise WorkError(f"{run.name}: its process is not on this machine (any more): nothing was cancelled")
    _end(run, own.pid)
    return []


def _end(run: Run, pid: int) -> None:
    """Ask `pid` to end; where it was asked long ago, kill what it started, so that it can write how it ended."""
    asked = asked_to_end(run)
    try:
        overdue = time.time() - asked.stat().st_mtime > KILL_S
    except OSError:
        overdue = False
        with suppress(OSError):  # a full disk: then it is only not said that it is ending
            asked.touch()
    try:
        for child in processes.below(pid) if overdue else ():
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        os.kill(pid, signal.SIGTERM)
    except PermissionError:
        raise WorkError(f"{run.name} is {run.record.user}'s: only its owner can stop it") from None
    except ProcessLookupError:  # it ended meanwhile
        return


def kill_s(_run: Run) -> float:
    """Seconds that a run has for its traces after the first request."""
    return KILL_S
