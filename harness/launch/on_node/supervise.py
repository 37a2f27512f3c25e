"""The program of a job: it starts the job's script again below itself, hears the signals of the batch system, and
writes how the run ended, in every case.

    supervise.py SCRIPT [submitted]
    supervise.py --series [--limit S --warning S] RUN_DIR…

The script starts it by its path. A script that slurm.sh did not start makes a run of its own, which keeps it and what
differs from the request in its last line.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[3])

try:
    import pydantic
    import yaml
except ImportError as problem:
    WRONG = (
        f"is no Python >= 3.10 with the harness's packages on {os.uname().nodename} ({os.uname().machine}; {problem})"
    )
    sys.exit(f"{os.environ.get('HARNESS_PYTHON')} {WRONG}: name one in the site's job_python")
assert pydantic and yaml

from harness.common.errors import HarnessError
from harness.common.paths import COMMAND, ROOT
from harness.common.run_folder.run_files import ERR, MONITOR_SAMPLES, MONITORS, OUT, SCRIPT
from harness.common.system import processes
from harness.common.system.programs import shell_status
from harness.common.system.scrub_environment import of_outer_launch
from harness.run import SUBMITTED, Run
from harness.run.ended import end_of, nodes_of, not_injected, what_is_open, why_nothing_was_recorded
from harness.run.ending import STOPPED
from harness.run.record import Status
from harness.site.slurm_commands import LEAKING, ORDER_S, ask, squeue_all

APPEARS_S = 60.0
GRACE_S = 40.0  # after a cancellation; before its time limit a job has time to write its traces
_NODES = ("srun", "node.py")  # what starts the nodes, by the end of a word
_OF_SLURM = ("slurm", "allocation")
_SLURMS = tuple(prefix for prefix in LEAKING if not prefix.startswith("PMI"))  # of MPI also settings are named so
_PASSED_BY = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


def record_start(run: Run) -> None:
    run.write_status(Status(state="running", pid=os.getpid(), host=socket.gethostname(), started_ns=time.time_ns()))


def record_end(run: Run, code: int, reason: str, asked_ns: int | None = None) -> int:
    """Write how the job ended; returns the exit code it should have. code: of its script. reason, asked_ns: the state
    that it was asked to end for, and when; None: just now."""
    as_written = run.nodes()
    nodes = nodes_of(run)
    expected_files = {name: run.path / name for name in run.record.job["expects"]}
    missing = [name for name, path in expected_files.items() if not (path.is_file() and path.stat().st_size)]
    before = run.status()
    end = end_of(run, code, reason, asked_ns or time.time_ns(), bool(missing))
    notes: list[str] = []
    if end.state == "completed":
        notes = [why_nothing_was_recorded(run.record, missing), end.note, what_is_open(run), not_injected(run)]
    status = Status(
        state=end.state,
        note="; ".join(filter(None, notes)),
        why=end.why,
        exit_code=end.exit_code,
        host=socket.gethostname(),
        missing=missing,
        allocated_ns=allocated_ns(run),
        started_ns=before.started_ns if before else None,
        ended_ns=time.time_ns(),
    )
    if before is not None and before.told_by is not None and status.state in ("failed", "cancelled"):
        # Who runs the jobs had given it up, as one on a node that was cut off, and so it was ended.
        status = status.model_copy(update={"state": before.state, "told_by": before.told_by, "why": before.why})
    run.write_record(run.record.model_copy(update={"status": status, "nodes": nodes}))
    for node in nodes:
        if node not in as_written:
            run.write_node(node)
    run.write_status(status)
    for name in missing:
        print(f"expected report is missing or empty: {run.path / name}", file=sys.stderr)
    return end.exit_code or 0


def allocated_ns(run: Run) -> int | None:
    """When Slurm gave this job its nodes, by its own variable, which newer versions set, or by its queue."""
    told = os.environ.get("SLURM_JOB_START_TIME", "")
    if run.record.backend != "slurm" or run.job_id.partition("-")[1]:  # of several runs in one allocation
        return None
    if told.isdecimal():
        return int(told) * 1_000_000_000
    entry = (squeue_all(run.record.cluster, [run.job_id]) or {}).get(run.job_id)
    return None if entry is None else entry.starts_ns


class Supervisor:
    """A run while its script runs. reason: why it was asked to end; asked_ns: when it first was."""

    def __init__(self, run: Run, job_id: str) -> None:
        self.run, self.job_id, self.reason = run, job_id, ""
        self.asked_ns: int | None = None
        self._killer: threading.Timer | None = None
        self._script: subprocess.Popen[bytes] | None = None
        self._backend = run.record.backend
        warned_s = run.record.site.warning_s + 10
        self._on(signal.SIGUSR1, lambda: "timeout", warned_s)
        for number in (signal.SIGTERM, signal.SIGINT):
            self._on(number, lambda: self.reason or "cancelled", GRACE_S)
        # With --on-hang stop: no rank makes progress any more, so little can be written.
        self._on(signal.SIGUSR2, lambda: "stuck", GRACE_S)
        # The local backend blocks them until here, as they would end bash.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGUSR1))

    def _on(self, number: signal.Signals, why: Callable[[], str], seconds: float) -> None:
        def asked(*_: object) -> None:
            self.reason = why()
            self.asked_ns = self.asked_ns or time.time_ns()
            threading.Thread(target=self._stop_nodes, args=(seconds,), daemon=True).start()

        signal.signal(number, asked)

    def go(self, script: Path) -> int:
        """Run the script to its end and write how that was; returns the exit status of the job."""
        record_start(self.run)
        if not self.reason:
            environ = self._environment()
            self._script = subprocess.Popen(
                ["bash", str(script)],
                stdin=subprocess.DEVNULL,  # as in a Slurm job: a shell's input is for the shell, as the list of a loop
                env=environ,
                preexec_fn=_deaf,  # noqa: PLW1509 - one thread
            )
            if self.reason:  # it came before there was a script
                self._stop_nodes(GRACE_S)
            code = shell_status(processes.wait(self._script))
        else:
            code = STOPPED
        if self._killer is not None:
            self._killer.cancel()
        # Usually the status is written last; a job that was stopped has little time and writes it first.
        if not self.reason:
            _draw(self.run)
        try:
            code = record_end(self.run, code, self.reason, self.asked_ns)
        except HarnessError as error:
            print(error, file=sys.stderr)
            code = error.exit_code
        if self.reason:
            _draw(self.run)
        return code

    def _environment(self) -> dict[str, str]:
        """What the script gets: nothing of an outer launch, as of the shell of a script that was started by hand, nor
        of submitit; and without Slurm nothing of a Slurm job around this run."""
        outer = set(of_outer_launch(os.environ))
        if self._backend not in _OF_SLURM:
            outer |= {name for name in os.environ if name.startswith(_SLURMS)}
        kept = {name: text for name, text in os.environ.items() if name not in outer}
        return kept | {"HARNESS_SUPERVISED": self.job_id}

    def _stop_nodes(self, seconds: float) -> None:
        """Ask the nodes to end; then what is stuck is killed. Slurm itself kills what it cancels."""
        script = self._script
        if script is None:
            return
        if not self._started():
            if len(self.run.nodes()) < self.run.record.job["experiment"]["nodes"]:  # nothing has begun yet
                processes.signal_all([*processes.descendants(script.pid), script.pid], signal.SIGKILL)
            return  # or only what comes after is left
        self._ask(signal.SIGTERM)
        if self._killer is None and (self._backend not in _OF_SLURM or self.reason == "stuck"):
            self._killer = threading.Timer(seconds, self._ask, [signal.SIGKILL])
            self._killer.daemon = True
            self._killer.start()

    def _started(self) -> list[int]:
        """What has started the nodes, below the script."""
        script = self._script
        return [] if script is None else [pid for pid in processes.descendants(script.pid)[:1] if _starts_nodes(pid)]

    def _ask(self, number: signal.Signals) -> None:
        """Signal all nodes. A kill of srun would end its tasks with KILL: a signal to the job's steps lets profiler and
        monitor finish. To all of them: which number is the training's depends on the site's own lines."""
        job = os.environ.get("SLURM_JOB_ID", "")
        if self._backend == "allocation":  # only its own step: the shell of the allocation may be another one
            steps = ask(
                "squeue", "--noheader", "--steps", f"--jobs={job}", "--format=%i %j", limit_s=ORDER_S
            ).out.splitlines()
            job = next((line.split()[0] for line in steps if line.split()[1:] == [f"run-{self.job_id}"]), "")
        if self._backend in _OF_SLURM:
            ask("scancel", f"--signal={number.name.removeprefix('SIG')}", job, limit_s=ORDER_S)
            return
        started = self._started()
        below = [pid for each in started for pid in processes.descendants(each)] if number is signal.SIGKILL else []
        processes.signal_all([*started, *below], number)


def _deaf() -> None:
    """The script and what it calls itself do not hear what is meant for the nodes: bash would end at once."""
    for number in _PASSED_BY:
        signal.signal(number, signal.SIG_IGN)


def _starts_nodes(pid: int) -> bool:
    words = processes.words_of(pid)[:3]  # python -E node.py
    return any(word.decode("utf-8", "replace").rpartition("/")[2] in _NODES for word in words)


def _draw(run: Run) -> None:
    """The monitors' plots."""
    if any(path.exists() for path in MONITOR_SAMPLES.paths(run.path)):
        argv = [sys.executable, "-m", "harness.monitor", "plot", str(MONITORS.folder(run.path))]
        environ = os.environ | {"PYTHONPATH": str(ROOT)}
        try:
            subprocess.run(argv, env=environ, stdout=subprocess.DEVNULL, check=False)
        except OSError as error:
            print(f"no plots of the monitor: {error}", file=sys.stderr)


def into_log(folder: Path) -> None:
    """From here on, what this process and its children print goes into the run's logs."""
    folder.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    for number, name in ((1, OUT.name), (2, ERR.name)):
        with (folder / name).open("ab") as log:
            os.dup2(log.fileno(), number)


def started_by_hand(script: Path) -> None:
    """Make a run of a script that slurm.sh did not start, and become the program of that run. Raises HarnessError: the
    script's last line is no request, or the run cannot be written."""
    from harness.launch.on_node.by_hand import run_of_script

    run = run_of_script(script, Path(os.environ["RUN_DIR"]), os.environ["JOB_ID"])
    os.environ.update(HARNESS_JOB_ID=run.job_id, JOB_ID=run.job_id, RUN_DIR=str(run.path))
    print(f"run {run.job_id}: {run.path}\nfollow it: {COMMAND} logs {run.job_id} -f", flush=True)
    os.execv(sys.executable, [sys.executable, __file__, str(run.script), SUBMITTED])


class SupervisedSeries:
    """Runs in one allocation, one after the other. A run is warned of its own time limit as a job of its own would be,
    and what is left of it is ended then."""

    def __init__(self, limit_s: int, warning_s: int) -> None:
        self._limit_s, self._warning_s = limit_s, warning_s
        self._child: subprocess.Popen[bytes] | None = None
        self._stop_signal: signal.Signals | None = None  # all runs were asked to end
        for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._pass_on)

    def _pass_on(self, number: int, _frame: object) -> None:
        self._stop_signal = signal.SIGUSR1 if number == signal.SIGUSR1 else signal.SIGTERM
        if self._child is not None:
            self._child.send_signal(self._stop_signal)

    def one(self, run: Path, job_id: str) -> int:
        """Run its script to its end; returns its exit status."""
        if self._stop_signal or not appears(SCRIPT.path(run)):
            return 0 if self._stop_signal else 1
        environ = os.environ | {"HARNESS_JOB_ID": job_id}
        self._child = child = subprocess.Popen(["bash", str(SCRIPT.path(run))], env=environ)
        if self._stop_signal:  # it came before the child had its name here
            child.send_signal(self._stop_signal)
        for seconds, number in ((self._limit_s, signal.SIGUSR1), (self._warning_s + 1, signal.SIGKILL)):
            try:
                return child.wait(seconds)
            except subprocess.TimeoutExpired:
                child.send_signal(number)
        return child.wait()


def appears(file: Path) -> bool:
    """Whether a file of a run comes: its submitter moves the runs into place when it knows the job's id."""
    end_s = time.monotonic() + APPEARS_S
    while not file.exists():
        if time.monotonic() > end_s:
            why = "did not appear within a minute: the submission was interrupted; submit again"
            print(f"{file} {why}", file=sys.stderr)
            return False
        time.sleep(0.2)
    return True


def run_series(argv: Sequence[str]) -> int:
    """`[--limit S --warning S] RUN_DIR…`; returns the exit status of the last run that failed, else 0."""
    parser = argparse.ArgumentParser(prog="supervise.py --series")
    parser.add_argument("--limit", type=int, metavar="S", help="seconds until a run is warned")
    parser.add_argument("--warning", type=int, metavar="S", default=0, help="seconds between the warning and its end")
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN_DIR")
    asked = parser.parse_args(argv)
    if asked.limit is None:  # a task of an array: this program becomes its script
        script = SCRIPT.path(asked.runs[0])
        if appears(script):
            os.execvp("bash", ["bash", str(script)])
        return 1
    job, code = os.environ["SLURM_JOB_ID"], 0
    series = SupervisedSeries(asked.limit, asked.warning)
    for number, run in enumerate(asked.runs):
        failed = series.one(run, f"{job}-{number}")
        if failed:
            code = shell_status(failed)
            # Its steps, not this program: the next run starts on idle nodes.
            ask("scancel", "--signal=KILL", job, limit_s=ORDER_S)
    log = asked.runs[0].parents[1] / "logs" / f"slurm-{job}.out"
    with suppress(OSError):
        if not log.stat().st_size:
            log.unlink()
    return code


def main(argv: Sequence[str]) -> int:
    if argv[0] == "--series":
        return run_series(argv[1:])
    script, words = Path(argv[0]), argv[1:]
    try:
        run, job_id = Run(Path(os.environ["RUN_DIR"])), os.environ["JOB_ID"]
        if not run.is_run and SUBMITTED not in words and "HARNESS_JOB_ID" not in os.environ:
            started_by_hand(script)
        output = run.path.parents[1]
        into_log(output / "logs" / job_id)
        os.chdir(output)
        if not appears(run.record_file):
            return 1
        code = Supervisor(run, job_id).go(script)
        own_log = output / "logs" / f"slurm-{job_id}.out"
        if own_log.exists() and not own_log.stat().st_size:
            own_log.unlink()
    except (HarnessError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
