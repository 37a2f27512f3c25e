"""The program before the user's own command, in a job that the user already has: it makes the run, starts what runs
beside the training, once per node, and the command, passes signals on, ends as the command ends and leaves a report.

The training comes first. What fails here is said once and left out; the command is started all the same.
"""

from __future__ import annotations

import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import NoReturn

from harness.common.errors import HarnessError
from harness.common.paths import COMMAND, PROGRAM, ROOT
from harness.common.run_folder import job_folder
from harness.common.run_folder.heartbeats import MEMORY, live_folder
from harness.common.run_folder.job_folder import JoinedProcess, RunRequest
from harness.common.run_folder.run_files import HANG, MONITORS, NODE_STATUS
from harness.common.run_folder.run_store import UnreadFileError
from harness.common.system import processes
from harness.common.system.secrets import masked_words
from harness.launch.on_node.leftovers import kill_stuck
from harness.launch.on_node.node_status import NodeStatusFile
from harness.run.ending import Witnesses, decide

OBSERVER = ROOT / "harness/observe/site"
OTHERS_S = 60.0  # for what is left of the training on this node and on others, after the command ended well
BEGINS_S = 5.0  # for the monitor, if the training has ended before it began
KILL_S = 40.0  # after a request to end, for a training that is stuck
REPORT_S = 180.0
SAME_SIGNAL_S = 0.5  # in which a signal that the whole group gets has also come to the process that only listens
_RUNTIMES = ("apptainer", "singularity")
_FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGTRAP, signal.SIGSYS}
_FAULTS |= {signal.SIGKILL, signal.SIGSTOP}
_STOPS = (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
_PR_SET_PDEATHSIG = 1


def run(request: RunRequest, *, reports: bool) -> NoReturn:
    """Start the command, observed, and end as it ends. reports: whether to leave a report after it."""
    environ = dict(os.environ)
    told = environ.get(job_folder.VARIABLE, "")
    if told in job_folder.OFF:
        become(request.command, environ)
    if told and job_folder.is_of_this_job(Path(told), environ):
        say(environ, f"this job is observed already, in {Path(told).parent}: nothing is added")
        become(request.command, environ)
    command = list(request.command)
    try:
        joined = job_folder.join(environ, _label(command), request.start_in)
        settings = job_folder.write_settings(joined, request, environ)
        inside = environ | job_folder.beside(environ, joined, settings, OBSERVER) | _binds(command, environ, joined)
        if joined.first:
            job_folder.write_run(joined, request, environ, {})
            say(environ, f"run {joined.job_id}: {joined.path}", always=True)
    except (OSError, ValueError, KeyError, StopIteration, HarnessError, job_folder.NoFolderError) as error:
        say(environ, f"nothing is recorded, because {_why(error)}; the command starts without it")
        become(request.command, environ)
    if not joined.first_here:
        become(command, inside)
    ObservedCommand(joined, request, environ, inside, reports).go(command)


def say(environ: Mapping[str, str], sentence: str, always: bool = False) -> None:
    """Once in a job. always: the caller knows that it is the one process which says it."""
    number = environ.get("RANK") or environ.get("SLURM_PROCID") or environ.get("OMPI_COMM_WORLD_RANK") or "0"
    if always or number == "0":
        with suppress(OSError):  # a full disk, or a closed pipe
            print(f"{PROGRAM} observe: {sentence}", file=sys.stderr, flush=True)


def _why(error: BaseException) -> str:
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror)
    return str(error) or type(error).__name__


def _label(command: Sequence[str]) -> str:
    """What trains: the script among the words, else the program."""
    named = next((word for word in command if word.endswith(".py")), None)
    after = [after for word, after in pairwise(command) if word in ("-m", "--module")]
    return Path(named).name if named else after[-1].rpartition(".")[2] if after else Path(command[0]).name


def become(command: Sequence[str], environ: Mapping[str, str]) -> NoReturn:
    """Become the command, as if it had been typed alone."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(command[0], list(command), dict(environ))
    except OSError as error:
        print(f"{PROGRAM} observe: {command[0]}: {error.strerror}", file=sys.stderr)
        os._exit(126 if isinstance(error, PermissionError) else 127)


def _binds(command: Sequence[str], environ: Mapping[str, str], joined: JoinedProcess) -> dict[str, str]:
    """So that a container which this command starts shows the observer and the run."""
    if not any(Path(word).name in _RUNTIMES for word in command):
        return {}
    paths = [str(ROOT), str(joined.path)] + ([] if joined.memory is None else [str(joined.memory)])
    names = [f"{runtime.upper()}_{name}" for runtime in _RUNTIMES for name in ("BIND", "BINDPATH")]
    given = [name for name in names if environ.get(name)] or ["APPTAINER_BIND", "SINGULARITY_BIND"]
    return {name: ",".join([*filter(None, [environ.get(name)]), *paths]) for name in given}


class ObservedCommand:
    """The command of one node's first process, while it runs."""

    def __init__(
        self, joined: JoinedProcess, request: RunRequest, before: dict[str, str], inside: dict[str, str], reports: bool
    ) -> None:
        """before: the environment as it was; inside: that of the command."""
        self._joined, self._request, self._before, self._inside = joined, request, before, inside
        self._reports = reports
        self._status = NodeStatusFile(joined.path, joined.node, before)
        self._child = 0
        self._monitor: subprocess.Popen[bytes] | None = None
        self._asked_ns = 0  # when it was asked to end
        self._kill_at_s: float | None = None

    def go(self, command: list[str]) -> NoReturn:
        """Run the command to its end, and end as it did."""
        waits = signal.valid_signals() - _FAULTS
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, waits)
        group = _GroupListener(waits)
        self._child = _start(command, self._inside, mask)
        self._quietly(lambda: self._begin(command))
        status = self._wait(waits, group)
        group.end()
        code = 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        self._quietly(lambda: self._end(code))
        _end_as(status)

    def _quietly(self, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:  # noqa: BLE001 - the edge between us and somebody's job
            say(self._before, f"not all is recorded, because {_why(error)}", always=self._joined.first)

    # -- while it runs -------------------------------------------------------------------------------------------------

    def _begin(self, command: Sequence[str]) -> None:
        joined = self._joined
        self._status.commands.append(masked_words(command))
        host = self._status.host
        name = f"{host}-{joined.node}" if joined.node else host
        for folder in (MONITORS.path(joined.path, name), self._status.path.parent):
            folder.mkdir(parents=True, exist_ok=True)
        self._status.write(None)
        argv = [sys.executable, "-m", "harness.heartbeats.node", f"--run={joined.path}", f"--node={joined.node}"]
        argv += [f"--name={name}", f"--below={_above_all()}", f"--on-hang={self._request.on_hang}"]
        self._monitor = subprocess.Popen(
            argv,
            env=self._ours(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            preexec_fn=_as_usual,  # noqa: PLW1509 - one thread
        )
        if joined.first:
            self._describe()

    def _describe(self) -> None:
        """Write into the record what takes a moment to find out."""
        from harness.common.run_folder.submission import passed_on
        from harness.common.system.inherited import own_limits
        from harness.common.system.programs import git_state_of

        words = list(self._request.command)
        at = next((i for i, word in enumerate(words) if word.endswith(".py")), None)
        script = None if at is None else Path(self._request.start_in, words[at])
        folder = script.parent if script is not None and script.is_file() else Path(self._request.start_in)
        program = {
            "script": words[0] if script is None else str(script),
            "arguments": words[(at or 0) + 1 :],
            "python": shutil.which("python3") or "",
            "git": git_state_of(folder),
        }
        more = {"program": program, "inherited": passed_on(self._before, ()), "limits": own_limits()}
        job_folder.write_run(self._joined, self._request, self._before, more, self._status.started_ns)

    def _ours(self) -> dict[str, str]:
        """The environment of our own programs: the user's, without what the training sees of us."""
        found = {name: text for name, text in self._before.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
        found |= {"PYTHONPATH": str(ROOT), job_folder.VARIABLE: job_folder.OFF[0]}
        return found if self._joined.memory is None else found | {MEMORY: str(self._joined.memory)}

    def _wait(self, waits: set[signal.Signals], group: _GroupListener) -> int:
        """Pass signals on until the command has ended; returns its status as `os.wait` gives it."""
        since_s: dict[int, float] = {}  # signals that the command may not have got
        while True:
            got = signal.sigtimedwait(waits, 0.1 if since_s or self._kill_at_s else 3600.0)
            if got is not None and got.si_signo == signal.SIGCHLD:
                ended, status = os.waitpid(self._child, os.WNOHANG)
                if ended:
                    return status
            elif got is not None and not self._is_stuck(got.si_signo):
                since_s[got.si_signo] = time.monotonic()
                if got.si_signo in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                    self._asked_ns = self._asked_ns or time.time_ns()
            for number in group.got():
                if since_s.pop(number, None) is not None and number in _STOPS:
                    os.kill(os.getpid(), signal.SIGSTOP)  # the terminal has stopped all of us, and wakes all of us
            for number, at_s in list(since_s.items()):
                if time.monotonic() - at_s > SAME_SIGNAL_S:
                    del since_s[number]
                    with suppress(ProcessLookupError):
                        os.kill(self._child, number)
            if self._kill_at_s is not None and time.monotonic() > self._kill_at_s:
                self._kill_at_s = None
                processes.signal_all([self._child, *processes.descendants(self._child)], signal.SIGKILL)

    def _is_stuck(self, number: int) -> bool:
        """Whether a signal is the guard's word, with --on-hang stop, that no rank makes progress any more."""
        if number != signal.SIGUSR2 or not self._ends_stuck():
            return False
        self._kill_at_s = time.monotonic() + KILL_S
        processes.signal_all([self._child], signal.SIGTERM)
        threading.Thread(target=kill_stuck, args=(str(self._joined.memory),), daemon=True).start()
        return True

    def _ends_stuck(self) -> bool:
        """Whether the guard ends the job, which it does not while a rank works."""
        with suppress(UnreadFileError, KeyError, TypeError):
            return HANG.as_json.read(HANG.path(self._joined.path))["stops"] is True
        return False

    # -- the end -------------------------------------------------------------------------------------------------------

    def _end(self, code: int) -> None:
        joined = self._joined
        if not code:  # after a failure, whoever started the tasks ends the others, and must learn of it at once
            claim = joined.claim
            _until(lambda: not any(map(processes.lives, set(job_folder.members_here(claim)) - {os.getpid()})), OTHERS_S)
        monitor = self._monitor
        if monitor is not None:
            if joined.memory is not None and any(joined.memory.glob("rank*.json")):  # a rank's last words are in it
                begun = live_folder(joined.path)
                _until(lambda: any(begun.glob("*.jsonl")) or monitor.poll() is not None, BEGINS_S)
            for number in (signal.SIGTERM, signal.SIGKILL):
                processes.signal_all([monitor.pid], number)
                with suppress(subprocess.TimeoutExpired):
                    monitor.wait(5)
                    break
        if joined.memory is not None:
            shutil.rmtree(joined.memory, ignore_errors=True)
        self._status.write(code)
        if not joined.first:
            return
        if not any(job_folder.trained(joined.path)):
            job_folder.withdraw(joined, self._before, code)
            say(self._before, "no Python process below this command trained with PyTorch: nothing is kept", always=True)
            return
        if not code:
            _until(lambda: not self._open_nodes(), OTHERS_S)
        self._write_end(code)
        if self._reports and not code:
            self._report()
        else:
            say(self._before, f"{COMMAND} report {joined.job_id} shows where its time went", always=True)

    def _open_nodes(self) -> list[Path]:
        found = []
        for path in NODE_STATUS.paths(self._joined.path):
            with suppress(UnreadFileError, KeyError):
                if NODE_STATUS.as_json.read(path)["exit"] is None:
                    found.append(path)
        return found

    def _write_end(self, code: int) -> None:
        asked = "cancelled" if self._asked_ns else ""
        if self._ends_stuck():
            asked = "stuck"
        if code:  # the ranks' own words would take time to read, and whoever waits for this must learn of it at once
            job_folder.write_end(self._joined, decide(Witnesses(code, asked)).state, code)
            return
        from harness.run import Run
        from harness.run.ended import end_of

        end = end_of(Run(self._joined.path), 0, asked, self._asked_ns)
        job_folder.write_end(self._joined, end.state, end.exit_code, why=end.why, note=end.note)

    def _report(self) -> None:
        """The answer, below the user's own output; the page is in the run."""
        argv = [sys.executable, "-m", "harness", "report", str(self._joined.path)]
        with suppress(subprocess.TimeoutExpired):
            subprocess.run(
                argv,
                env={**self._ours(), "COLUMNS": self._before.get("COLUMNS", "80")},
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr.fileno(),
                timeout=REPORT_S,
                preexec_fn=_as_usual,
                check=False,
            )
            return
        say(self._before, f"the report takes long: {COMMAND} report {self._joined.job_id} makes it later", always=True)


class _GroupListener:
    """A process that only listens: a signal that it gets went to the whole group or step, and so to the command too."""

    def __init__(self, waits: set[signal.Signals]) -> None:
        self._read, write = os.pipe()
        os.set_blocking(self._read, False)
        self._pid = os.fork()
        if self._pid == 0:
            with suppress(BaseException):
                _dies_with_its_parent()
                for number in (0, 1, 2):  # nobody's pipe stays open because of it
                    os.dup2(os.open(os.devnull, os.O_RDWR), number)
                while True:
                    got = signal.sigtimedwait(waits, 3600.0)
                    if got is not None:
                        os.write(write, bytes([got.si_signo]))
            os._exit(0)
        os.close(write)

    def got(self) -> list[int]:
        """The signals since the last call."""
        if not select.select([self._read], [], [], 0)[0]:
            return []
        return list(os.read(self._read, 4096))

    def end(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(self._pid, 0)


def _dies_with_its_parent() -> None:
    import ctypes  # in this process alone: it takes a while

    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


def _start(command: Sequence[str], environ: Mapping[str, str], mask: set[int | signal.Signals]) -> int:
    """The command as a child with this process's files, terminal and signals; returns its process id."""
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        become(command, environ)
    return child


def _as_usual() -> None:
    """A program of ours hears signals again, and leaves the cores to the training."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    with suppress(OSError):
        os.nice(10)


def _above_all() -> int:
    """The process below which all ranks of this node are: Slurm's, or the launcher's that made this one a rank."""
    parent = os.getppid()
    state = processes.stat_of(parent)
    is_rank = os.environ.get("RANK", "").isdecimal() and os.environ.get("LOCAL_RANK", "").isdecimal()
    return parent if is_rank or (state is not None and state.name == "slurmstepd") else os.getpid()


def _until(over: Callable[[], bool], most_s: float) -> None:
    end_s = time.monotonic() + most_s
    while not over() and time.monotonic() < end_s:
        time.sleep(0.05)


def _end_as(status: int) -> NoReturn:
    """End as the command did: with its exit status, or by the same signal."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the command has left its core already
        with suppress(OSError, ValueError):  # of KILL there is no handler to set
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.kill(os.getpid(), number)
    os._exit(128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))
