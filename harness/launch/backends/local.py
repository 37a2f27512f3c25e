"""The local backend: runs of this machine, which submitit starts and keeps, and their processes, as in /proc."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from harness.common.errors import RequestError, WorkError
from harness.common.paths import ROOT, TEMPLATES
from harness.common.system import processes
from harness.common.system.bounded_read import read_bounded_text, read_end
from harness.launch.argv import Word
from harness.launch.backends.protocol import Listed, PolledState, Submission, Together
from harness.run import Run, claim_local_id, disk_error, release_local_id, write_atomically
from harness.run.record import FINAL, State, Status
from harness.site.detection import visible_gpus

LAST_S = 10.0  # for what a killed script leaves behind, between the request to end and the kill


SUBMITTER = "submitter"  # in the controller's folder: the process that starts it
_LAST_WORDS_BYTES = 1 << 16  # of a log, for its last line
STARTING_S = 60  # between a run's publication and its controller's start lie the imports of submitit
ENDING = "it was asked to end, and is closing its traces"
TEMPLATE = TEMPLATES / "local.j2"
POLL_S = 0.3
# PyTorch's launcher itself kills ranks that have not ended 30 s after its own signal.
KILL_S = 40.0

PASSED_ON: dict[int, signal.Signals] = {
    signal.SIGTERM: signal.SIGTERM,
    signal.SIGINT: signal.SIGTERM,
    signal.SIGUSR1: signal.SIGUSR1,  # submitit's warning before the time limit is one of these two
    signal.SIGUSR2: signal.SIGUSR1,
}


def poll(run: Run) -> PolledState:
    """The state that the run itself wrote, checked against its process."""
    own = run.status()
    if own is not None and own.told_by is not None:
        return PolledState(own.state, own.why)
    state = _state(run, own)
    if state in FINAL:
        if state != "failed" or (own is not None and own.state != "running"):
            return PolledState(state)
        from harness.run.ended import end_of  # here: a dry run reads no run

        end = end_of(run, None)
        why = end.note or "; ".join(filter(None, [_how_it_ended(run), end.why]))
        return PolledState(end.state, why, told_by=socket.gethostname())
    if state == "unknown":
        return PolledState(state, _why_unknown(run, own))
    ending = asked_to_end(run).is_file()
    return PolledState(state, ENDING if ending else "", ending=ending)


def _state(run: Run, status: Status | None) -> State:
    if status is None:
        return _state_before_it_began(run)
    if status.state == "running" and not runs_here(run, status.pid, status.host):
        later = run.status()  # it may have written its end since the first reading
        if later is not None and later.state != "running":
            return later.state
        return "unknown" if _is_elsewhere(run) or controller(run) is None or is_kept(run) else "failed"
    return status.state


def _state_before_it_began(run: Run) -> State:
    if _is_elsewhere(run):
        return "unknown"
    young = time.time_ns() - run.record.created_ns < STARTING_S * 1_000_000_000
    if is_kept(run) or (young and controller(run) is None and _submitter_lives(run)):
        return "queued"
    own = run.status()  # as in `_state`
    return own.state if own is not None else "failed"


def _why_unknown(run: Run, status: Status | None) -> str:
    if is_kept(run):
        return "its script was killed; the processes that it started are being ended"
    last = "it has written nothing yet" if status is None else f"the last state that it wrote: {status.state}"
    return f"it was started on {run.record.submit_host}, and its processes cannot be seen from here; {last}"


def _submitter_lives(run: Run) -> bool:
    """False when the process that would start the run's controller was killed."""
    try:
        pid = int(read_bounded_text(run.controller_dir / SUBMITTER))
    except (OSError, ValueError):
        return True  # it does not say who it is
    return processes.lives(pid)


def _how_it_ended(run: Run) -> str:
    """Why a failed run did not write its end, with the last line of its controller's log."""
    text = ""
    for log in sorted(run.controller_dir.glob("*_log.err")):
        with suppress(OSError, ValueError):
            text += read_end(log, _LAST_WORDS_BYTES).decode("utf-8", "replace") + "\n"
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("submitit ")]
    message = f": {lines[-1].strip()}" if lines else ""
    return f"it ended without an exit status: a full disk, a very short time limit, or a kill{message}"


def controller(run: Run) -> int | None:
    """The id of the process that started the run and waits for its end, from the names of submitit's files."""
    numbers = [p.name.partition("_")[0] for p in run.controller_dir.glob("*_submitted.pkl")]
    return next((int(n) for n in numbers if n.isdigit()), None)


def asked_to_end(run: Run) -> Path:
    return run.controller_dir / "asked-to-end"


def runs_here(run: Run, pid: int | None, host: str | None) -> bool:
    """True when `pid` still is this run's script: another process may have the number now."""
    return host == socket.gethostname() and pid is not None and processes.was_started_with(pid, run.script)


def _is_elsewhere(run: Run) -> bool:
    """True when another machine started the run: its processes cannot be seen from here."""
    return run.record.submit_host != socket.gethostname()


def is_kept(run: Run) -> bool:
    """True while the run's controller lives."""
    pid = None if _is_elsewhere(run) else controller(run)
    return pid is not None and processes.was_started_with(pid, run.controller_dir)


RUNS_HERE = HELD = True


def run_and_pass_signals(words: list[str], environment: dict[str, str | None]) -> int:
    """Run a script and pass signals on to it; returns its exit status. Executed by submitit's controller.

    words: its path and arguments. environment: what differs from that of the controller; None: a variable that is not
    set.
    """
    if os.getpgrp() != os.getpid():
        os.setpgrp()  # the terminal's Ctrl-C does not reach it; the controller ends it with SIGINT
    signal.signal(signal.SIGINT, signal.default_int_handler)  # bash cannot trap a signal that was ignored at its start
    variables = {name: text for name, text in {**os.environ, **environment}.items() if text is not None}
    # Blocked in the script too, until its supervisor can take them: bash would end at once, without a status.
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON.values())
    process = subprocess.Popen(["bash", *words], env=variables, start_new_session=True)

    def pass_on(number: int, _frame: FrameType | None) -> None:
        process.send_signal(PASSED_ON[number])

    for number in PASSED_ON:
        signal.signal(number, pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON.values())
    code = processes.wait(process)
    processes.end_session(process.pid, LAST_S)  # of a script that was killed, the training would run on
    return code


def _nothing(*_: object) -> list[Any]:
    """There is no queue that reads directives, writes logs, or makes a run wait or fail for its folder."""
    return []


def submit_together(*_: object) -> NoReturn:
    """Raises RequestError: this backend has no queue."""
    raise RequestError("this machine has no queue: its runs are started one after the other")


directives = warnings = refusals = logs = _nothing


def submit(submission: Submission) -> Run:
    """Number the staged run and start it; returns it. Raises as `start_staged`."""
    site = submission.record.site
    start = partial(start_controller, time_s=site.time_s, warning_s=site.warning_s, gpus=submission.gpus)
    return start_staged(submission, *claim_local_id(submission.stage.output_dir.parent), start)


def start_staged(submission: Submission, job_id: str, folder: Path, start: Callable[[Path, str, Path], None]) -> Run:
    """Give the staged run its id and start it; returns it. folder: claimed with the id, for what keeps the run. start:
    takes the script, the id and this folder. Raises WorkError: it could not be written or started; nothing is left
    behind."""
    stage = submission.stage
    run: Run | None = None
    try:
        write_atomically(folder / SUBMITTER, str(os.getpid()))
        Run(stage.path).write_record(submission.record.model_copy(update={"job_id": job_id}))
        run = stage.publish(submission.name_for(job_id), job_id)
        start(run.script, job_id, folder)
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


def most_together(_way: Together) -> int:
    return 0


def start_controller(script: Path, job_id: str, folder: Path, *, time_s: int, warning_s: int, gpus: int) -> None:
    """Start the script in the background as run `job_id`, which sees so many of this machine's GPUs. The other
    arguments, and the errors, are those of `keep`."""
    # Not submitit's own list, which has only numbers.
    devices = ",".join(visible_gpus()[:gpus])
    environment = {"HARNESS_JOB_ID": job_id, "HARNESS_PORT": str(free_port()), "CUDA_VISIBLE_DEVICES": devices}
    keep([str(script)], environment, folder, time_s=time_s, warning_s=warning_s)


def keep(words: list[str], environment: Mapping[str, str | None], folder: Path, *, time_s: int, warning_s: int) -> None:
    """Start a script with its arguments, `words`, in the background; `folder` is submitit's.

    environment: what differs from that of this process; None: a variable that is not set. time_s: its limit.
    warning_s: how long before the limit it is warned.

    Raises OSError: the folder cannot be written.
    """
    from submitit import LocalExecutor

    executor = LocalExecutor(folder=folder)
    executor.update_parameters(
        timeout_min=time_s / 60,
        signal_delay_s=max(1, warning_s),  # without a warning the end would look like a cancellation
    )
    own = {**environment, "PYTHONPATH": os.environ.get("PYTHONPATH")}
    with _ignoring_ctrl_c(), _with_our_modules(folder):
        executor.submit(run_and_pass_signals, words, own)


@contextmanager
def _with_our_modules(folder: Path) -> Iterator[None]:
    """A Python that is started inside finds our modules: where the user is, others may have their names. What it prints
    to stderr goes into the folder, not to this terminal."""
    place, before = Path.cwd(), os.environ.get("PYTHONPATH")
    terminal = os.dup(2)
    try:
        with (folder / "controller_log.err").open("ab") as file:
            os.dup2(file.fileno(), 2)
        os.chdir(folder)
        os.environ["PYTHONPATH"] = str(ROOT)
        yield
    finally:
        os.dup2(terminal, 2)
        os.close(terminal)
        os.chdir(place)
        if before is None:
            os.environ.pop("PYTHONPATH", None)
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
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def listed(runs: Sequence[Run]) -> dict[Path, Listed] | None:
    """There is no queue: each run's own files and process say its state."""
    return {run.path: Listed(poll(run)) for run in runs}


def cancel(run: Run) -> list[Run]:
    """Ask the run to stop; it writes its traces and its status itself. What still runs after KILL_S is then killed.
    Raises WorkError: its process is not on this machine."""
    own, keeper = run.status(), controller(run)
    if own is None and keeper is not None and is_kept(run):
        _end(run, keeper)  # it passes the signal on when the script has started
        return []
    if own is None or own.pid is None or not runs_here(run, own.pid, own.host):
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
        for child in processes.descendants(pid) if overdue else ():
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        os.kill(pid, signal.SIGTERM)
    except PermissionError:
        raise WorkError(f"{run.name} is {run.record.user}'s: only its owner can stop it") from None
    except ProcessLookupError:  # it ended meanwhile
        return
