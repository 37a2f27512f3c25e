"""The program of a job: it starts the job's script again below itself, hears the signals of the batch system, and
writes how the run ended, in every case.

    supervise.py SCRIPT [submitted]

The script starts it by its path. A script that slurm.sh did not start makes a run of its own, which keeps it and what
differs from the request in its last line.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[2])

try:
    import pydantic
    import yaml
except ImportError as problem:
    WRONG = (
        f"is no Python >= 3.10 with the harness's packages on {os.uname().nodename} ({os.uname().machine}; {problem})"
    )
    sys.exit(f"{os.environ.get('HARNESS_PYTHON')} {WRONG}: name one in the site's job_python")
assert pydantic and yaml

from harness.common.errors import HarnessError, WorkError
from harness.common.paths import ROOT
from harness.launch.outcome import record_end, record_start
from harness.live import processes
from harness.run import Run

SUBMITTED = "submitted"
"""The word after the script, where slurm.sh will move the run's directory into place."""
APPEARS_S = 60.0
GRACE_S = 40.0  # after a cancellation; before its time limit a job has time to write its traces
STOPPED = 143
_NODES = ("srun", "node.py")  # what starts the nodes, by the end of a word
_OF_SLURM = ("slurm", "allocation")
_PASSED_BY = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


class Supervisor:
    """A run while its script runs. reason: why it was asked to end."""

    def __init__(self, run: Run, job_id: str) -> None:
        self.run, self.job_id, self.reason = run, job_id, ""
        self._killer: threading.Timer | None = None
        self._script: subprocess.Popen[bytes] | None = None
        self._backend = run.record.backend
        warned_s = run.record.site.warning_s + 10
        self._on(signal.SIGUSR1, lambda: "timeout", warned_s)
        for number in (signal.SIGTERM, signal.SIGINT):
            self._on(number, lambda: self.reason or "cancelled", GRACE_S)
        # With --on-hang stop: no rank makes progress any more, so little can be written.
        self._on(signal.SIGUSR2, lambda: "stuck", GRACE_S)

    def _on(self, number: signal.Signals, why: Callable[[], str], seconds: float) -> None:
        def asked(*_: object) -> None:
            self.reason = why()
            threading.Thread(target=self._stop_nodes, args=(seconds,), daemon=True).start()

        signal.signal(number, asked)

    def go(self, script: Path) -> int:
        """Run the script to its end and write how that was; returns the exit status of the job."""
        record_start(self.run)
        if not self.reason:
            environ = os.environ | {"HARNESS_SUPERVISED": self.job_id}
            self._script = subprocess.Popen(["bash", str(script)], env=environ, preexec_fn=_deaf)  # noqa: PLW1509 - one thread
            if self.reason:  # it came before there was a script
                self._stop_nodes(GRACE_S)
            code = self._script.wait()
            code = 128 - code if code < 0 else code
        else:
            code = STOPPED
        if self._killer is not None:
            self._killer.cancel()
        # Usually the status is written last; a job that was stopped has little time and writes it first.
        if not self.reason:
            _draw(self.run)
        try:
            code = record_end(self.run, code, self.reason)
        except HarnessError as error:
            print(error, file=sys.stderr)
            code = error.exit_code
        if self.reason:
            _draw(self.run)
        return code

    def _stop_nodes(self, seconds: float) -> None:
        """Ask the nodes to end; then what is stuck is killed. Slurm itself kills what it cancels."""
        script = self._script
        if script is None:
            return
        if not self._started():
            if len(self.run.nodes()) < self.run.record.job["experiment"]["nodes"]:  # nothing has begun yet
                _send([*processes.below(script.pid), script.pid], signal.SIGKILL)
            return  # or only what comes after is left
        self._ask(signal.SIGTERM)
        if self._killer is None and (self._backend not in _OF_SLURM or self.reason == "stuck"):
            self._killer = threading.Timer(seconds, self._ask, [signal.SIGKILL])
            self._killer.daemon = True
            self._killer.start()

    def _started(self) -> list[int]:
        """What has started the nodes, below the script."""
        script = self._script
        return [] if script is None else [pid for pid in processes.below(script.pid)[:1] if _starts_nodes(pid)]

    def _ask(self, number: signal.Signals) -> None:
        """Signal all nodes. A kill of srun would end its tasks with KILL: a signal to the job's steps lets profiler and
        monitor finish. To all of them: which number is the training's depends on the site's own lines."""
        job = os.environ.get("SLURM_JOB_ID", "")
        if self._backend == "allocation":  # only its own step: the shell of the allocation may be another one
            steps = _output("squeue", "--noheader", "--steps", f"--jobs={job}", "--format=%i %j").splitlines()
            job = next((line.split()[0] for line in steps if line.split()[1:] == [f"run-{self.job_id}"]), "")
        if self._backend in _OF_SLURM:
            _output("scancel", f"--signal={number.name.removeprefix('SIG')}", job)
            return
        started = self._started()
        below = [pid for each in started for pid in processes.below(each)] if number is signal.SIGKILL else []
        _send([*started, *below], number)


def _deaf() -> None:
    """The script and what it calls itself do not hear what is meant for the nodes: bash would end at once."""
    for number in _PASSED_BY:
        signal.signal(number, signal.SIG_IGN)


def _starts_nodes(pid: int) -> bool:
    with suppress(OSError):
        words = (processes.PROC / str(pid) / "cmdline").read_bytes().split(b"\0")[:2]
        return any(word.decode("utf-8", "replace").rpartition("/")[2] in _NODES for word in words)
    return False


def _send(pids: Sequence[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _output(*argv: str) -> str:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout


def _draw(run: Run) -> None:
    """The monitors' plots."""
    if any((folder / "samples.csv").exists() for folder in run.monitors()):
        argv = [sys.executable, "-m", "harness.monitor", "plot", str(run.path / "gpus-monitor")]
        environ = os.environ | {"PYTHONPATH": str(ROOT)}
        subprocess.run(argv, env=environ, stdout=subprocess.DEVNULL, check=False)


def into_log(folder: Path) -> None:
    """From here on, what this process and its children print goes into the run's logs."""
    folder.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    for number, name in ((1, "log.out"), (2, "log.err")):
        with (folder / name).open("ab") as log:
            os.dup2(log.fileno(), number)


def started_by_hand(script: Path) -> None:
    """Make a run of a script that slurm.sh did not start, and become the program of that run. Raises HarnessError: the
    script's last line is no request, or the run cannot be written."""
    from harness.launch.submit import run_of_script

    run = run_of_script(script, Path(os.environ["RUN_DIR"]), os.environ["JOB_ID"])
    os.environ.update(HARNESS_JOB_ID=run.job_id, JOB_ID=run.job_id, RUN_DIR=str(run.path))
    print(f"run {run.job_id}: {run.path}", flush=True)
    os.execv(sys.executable, [sys.executable, __file__, str(run.script), SUBMITTED])


def _wait_for(run: Run) -> None:
    """The submitter moves the run's directory into place as soon as it knows the job's id. Raises WorkError: it did
    not."""
    end_s = time.monotonic() + APPEARS_S
    while not run.is_run:
        if time.monotonic() > end_s:
            raise WorkError(
                f"{run.record_file} did not appear within a minute: the submission was interrupted; submit again"
            )
        time.sleep(0.2)


def main(argv: Sequence[str]) -> int:
    script, words = Path(argv[0]), argv[1:]
    try:
        run, job_id = Run(Path(os.environ["RUN_DIR"])), os.environ["JOB_ID"]
        if not run.is_run and SUBMITTED not in words and "HARNESS_JOB_ID" not in os.environ:
            started_by_hand(script)
        output = run.path.parents[1]
        into_log(output / "logs" / job_id)
        os.chdir(output)
        _wait_for(run)
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
