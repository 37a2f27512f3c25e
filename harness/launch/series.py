"""The program of a submission of several runs: it starts the script of each, one after the other.

    series.py [--limit S --warning S] RUN_DIR…

A run is warned of its own time limit as a job of its own would be, and what is left of it is ended then. One run
without a limit is a task of an array: this program becomes its script. Standard library only.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

APPEARS_S = 60.0


class Series:
    """Runs in one allocation. stopped: all were asked to end."""

    def __init__(self, limit_s: int, warning_s: int) -> None:
        self._limit_s, self._warning_s = limit_s, warning_s
        self._child: subprocess.Popen[bytes] | None = None
        self.stopped = False
        for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._pass_on)

    def _pass_on(self, number: int, _frame: object) -> None:
        self.stopped = True
        if self._child is not None:
            self._child.send_signal(signal.SIGUSR1 if number == signal.SIGUSR1 else signal.SIGTERM)

    def one(self, run: Path, job_id: str) -> int:
        """Run its script to its end; returns its exit status."""
        if self.stopped or not appears(run / "job.sbatch"):
            return 0 if self.stopped else 1
        environ = os.environ | {"HARNESS_JOB_ID": job_id}
        self._child = child = subprocess.Popen(["bash", str(run / "job.sbatch")], env=environ)
        if self.stopped:  # it came before there was a child
            child.terminate()
        for seconds, number in ((self._limit_s, signal.SIGUSR1), (self._warning_s + 1, signal.SIGKILL)):
            try:
                return child.wait(seconds)
            except subprocess.TimeoutExpired:
                child.send_signal(number)
        return child.wait()


def appears(script: Path) -> bool:
    """The submitter moves the runs' directories into place as soon as it knows the job's id."""
    end_s = time.monotonic() + APPEARS_S
    while not script.exists():
        if time.monotonic() > end_s:
            why = "did not appear within a minute: the submission was interrupted; submit again"
            print(f"{script} {why}", file=sys.stderr)
            return False
        time.sleep(0.2)
    return True


def main(argv: list[str]) -> int:
    """Returns the exit status of the last run that failed, else 0."""
    parser = argparse.ArgumentParser(prog="series.py", description=__doc__)
    parser.add_argument("--limit", type=int, metavar="S", help="seconds until a run is warned")
    parser.add_argument("--warning", type=int, metavar="S", default=0, help="seconds between the warning and its end")
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN_DIR")
    asked = parser.parse_args(argv)
    if asked.limit is None:
        script = asked.runs[0] / "job.sbatch"
        if appears(script):
            os.execvp("bash", ["bash", str(script)])
        return 1
    job, code = os.environ["SLURM_JOB_ID"], 0
    series = Series(asked.limit, asked.warning)
    for number, run in enumerate(asked.runs):
        failed = series.one(run, f"{job}-{number}")
        if failed:
            code = 128 - failed if failed < 0 else failed
            # Its steps, not this program: the next run starts on idle nodes.
            subprocess.run(["scancel", "--signal=KILL", job], stderr=subprocess.DEVNULL, check=False)
    log = asked.runs[0].parents[1] / "logs" / f"slurm-{job}.out"
    with suppress(OSError):
        if not log.stat().st_size:
            log.unlink()
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
