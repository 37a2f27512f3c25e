"""The tests' own Slurm as an object: submit, wait, ask, and the environment in which its commands work.

It knows Slurm's commands and nothing of the harness, so that it can check what the harness says about a job.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

SCRIPT = Path(__file__).with_name("cluster.sh")
NOT_POSSIBLE_HERE = 3  # cluster.sh's exit code for "this machine does not allow it"
PATIENCE_S = 600.0  # a limit for a busy machine; no test claims how long something takes
UNFINISHED = {"PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "REQUEUED"}
_OUTER_JOB = re.compile(r"^(SLURM|SLURMD|SBATCH|SRUN|SALLOC|SQUEUE|SINFO|SCANCEL)_")


class NotPossibleHereError(Exception):
    """Slurm cannot be installed or started on this machine; the message says why."""


def wait_until(condition: Callable[[], object], what: str, timeout_s: float = PATIENCE_S) -> None:
    """Returns when the condition holds; fails with the name of the condition."""
    end_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end_s, f"waited {timeout_s:g} s for {what}"
        time.sleep(0.1)


@dataclass(frozen=True)
class Slurm:
    """A running cluster of node1 … nodeN with its files in `root`."""

    root: Path

    @property
    def env(self) -> dict[str, str]:
        """The environment of this process with this cluster only."""
        outer = {name: value for name, value in os.environ.items() if not _OUTER_JOB.match(name)}
        return {**outer, "SLURM_CONF": str(self.root / "etc" / "slurm.conf")}

    def run(
        self,
        *argv: str | Path,
        check: bool = True,
        timeout_s: float = PATIENCE_S,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """A command on the login node; the error of a command that failed contains its output."""
        done = subprocess.run(
            list(map(str, argv)),
            env={**self.env, **(env or {})},
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            cwd=cwd,
        )
        if check and done.returncode:
            raise AssertionError(f"{argv[0]} exited {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done

    def sbatch(self, *argv: str | Path) -> str:
        """Submit; the job's id."""
        return self.run("sbatch", "--parsable", *argv).stdout.strip()

    def job(self, job_id: str) -> dict[str, str]:
        """The fields of scontrol about a job: JobState, ExitCode, Reason …"""
        words = self.run("scontrol", "--oneliner", "show", "job", job_id).stdout.split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def state(self, job_id: str) -> str:
        """PENDING, RUNNING, COMPLETED, FAILED …"""
        return self.job(job_id)["JobState"]

    def wait(self, job_id: str, timeout_s: float = PATIENCE_S) -> str:
        """The state in which the job ended."""
        return self._wait_state(job_id, lambda state: state not in UNFINISHED, timeout_s)

    def wait_running(self, job_id: str, timeout_s: float = PATIENCE_S) -> None:
        """Returns when it runs; an assertion fails when it ends before."""
        assert self._wait_state(job_id, lambda state: state != "PENDING", timeout_s) == "RUNNING"

    def _wait_state(self, job_id: str, wanted: Callable[[str], bool], timeout_s: float) -> str:
        end_s = time.monotonic() + timeout_s
        while not wanted(state := self.state(job_id)):
            assert time.monotonic() < end_s, f"job {job_id} is still {state} after {timeout_s:g} s: {self.job(job_id)}"
            time.sleep(0.1)
        return state

    def set_rate(self, rate: str) -> None:
        """Link speed of every node, as tc writes it ("200mbit"), or "none" for as fast as it goes."""
        _cluster("rate", self.root, rate)

    def lose(self, number: int, silently: bool = True) -> None:
        """Everything on a node ends at once, for good: its daemons, steps and tasks. silently: its cable is cut first,
        as if it lost power; else the end of its processes closes their connections."""
        bridge = (self.root / "run" / "bridge").read_text().strip()
        network = (self.root / "run" / f"{bridge}-{number}.network").read_text().strip()
        if silently:
            self.run("ip", "link", "set", f"{bridge}-{number}", "down")
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has ended meanwhile
                if str((folder / "ns" / "net").readlink()) == network:
                    os.kill(int(folder.name), signal.SIGKILL)

    def logs(self) -> str:
        """All daemons' logs."""
        return _cluster("logs", self.root)


def _cluster(*argv: str | Path) -> str:
    done = subprocess.run([str(SCRIPT), *map(str, argv)], capture_output=True, text=True, timeout=400, check=False)
    if done.returncode == NOT_POSSIBLE_HERE:
        raise NotPossibleHereError(done.stderr.strip().splitlines()[-1])
    if done.returncode:
        raise AssertionError(f"{SCRIPT.name} {argv[0]} exited {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


class Keeper:
    """Ends a cluster when it is closed, or when this process is gone in whatever way."""

    def __init__(self, root: Path) -> None:
        self._process = subprocess.Popen(
            ["bash", "-c", 'read -r; exec "$1" stop "$2"', "-", str(SCRIPT), str(root)],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def close(self) -> None:
        """Returns when the cluster has ended."""
        self._process.communicate(timeout=120)


def start(root: Path, options: Sequence[str] = ()) -> tuple[Slurm, Keeper]:
    """Install what is missing and start. Raises NotPossibleHereError where this machine does not allow it."""
    _cluster("install", *(option for option in options if option == "--accounting"))
    keeper = Keeper(root)
    try:
        _cluster("start", root, *options)
    except (NotPossibleHereError, AssertionError):
        keeper.close()
        raise
    return Slurm(root), keeper
