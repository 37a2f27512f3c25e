"""The tests' own Slurm as an object: submit, wait, ask, and the environment in which its commands work.

It knows Slurm's commands and nothing of the harness, so that it can check what the harness says about a job.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.leftovers import unmarked
from tests.waiting import LIMIT_S, limit_s, wait_until

SCRIPT = Path(__file__).with_name("cluster.sh")
NOT_POSSIBLE_HERE = 3  # cluster.sh's exit code for "this machine does not allow it"
JOB_S = 200.0  # a limit for a job, which may wait for others in the queue: below that of a test
WAITING = {"PENDING", "CONFIGURING", "REQUEUED"}
UNFINISHED = WAITING | {"RUNNING", "COMPLETING", "SUSPENDED"}
_OUTER_JOB = re.compile(r"^(SLURM|SLURMD|SBATCH|SRUN|SALLOC|SQUEUE|SINFO|SCANCEL)_")


class NotPossibleHereError(Exception):
    """Slurm cannot be installed or started on this machine; the message says why."""


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
        seconds: float = LIMIT_S,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """A command on the login node; the error of a command that failed contains its output. seconds: its limit on an
        idle machine."""
        done = subprocess.run(
            list(map(str, argv)),
            env={**self.env, **(env or {})},
            capture_output=True,
            text=True,
            timeout=limit_s(seconds),
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

    def wait(self, job_id: str, seconds: float = JOB_S) -> str:
        """The state in which the job ended."""
        return self._wait_state(job_id, lambda state: state not in UNFINISHED, "end", seconds)

    def wait_running(self, job_id: str) -> None:
        """Returns when it runs; an assertion fails when it ends before."""
        state = self._wait_state(job_id, lambda state: state not in WAITING, "begin", JOB_S)
        assert state == "RUNNING", self.about(job_id)

    def wait_while_it_runs(
        self, job_id: str, condition: Callable[[], object], what: str, said: Callable[[], object] = str
    ) -> None:
        """Returns when the condition holds. Fails at once when the job has ended and it does not: then it never will.

        said: what to say beside Slurm's words about the job.
        """

        def holds() -> bool:
            has_ended = self.state(job_id) not in UNFINISHED  # before the condition, which may come to hold at the end
            if condition():
                return True
            assert not has_ended, f"the job ended before {what}\n{self.about(job_id)}\n{said()}"
            return False

        wait_until(holds, what, lambda: f"{self.about(job_id)}\n{said()}", JOB_S)

    def about(self, job_id: str) -> str:
        """What Slurm says of the job, and the end of what the job wrote."""
        done = self.run("scontrol", "--details", "show", "job", job_id, check=False)
        files = re.findall(r"^ *Std(?:Out|Err)=(.+)$", done.stdout, re.MULTILINE)
        ends = [f"{file}:\n{path.read_text(errors='replace')[-3000:]}" for file in dict.fromkeys(files)
                if (path := Path(file)).is_file()]  # fmt: skip
        return "\n".join([done.stdout + done.stderr, *ends])

    def _wait_state(self, job_id: str, wanted: Callable[[str], bool], what: str, seconds: float) -> str:
        states = [""]

        def holds() -> bool:
            states[0] = self.state(job_id)
            return wanted(states[0])

        wait_until(holds, f"job {job_id} to {what}", lambda: self.about(job_id), seconds)
        return states[0]

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


def _cluster(*argv: str | Path) -> str:
    done = subprocess.run(
        [str(SCRIPT), *map(str, argv)], capture_output=True, text=True, timeout=limit_s(400), check=False
    )
    if done.returncode == NOT_POSSIBLE_HERE:
        raise NotPossibleHereError(done.stderr.strip().splitlines()[-1])
    if done.returncode:
        raise AssertionError(f"{SCRIPT.name} {argv[0]} exited {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


# A fork of this process may hold the other end of the pipe, so its end is looked for, too.
_KEEP = """
until read -r -t 1 || (($? <= 128)) || [[ $(awk '{ print $4 }' "/proc/$$/stat") != "$3" ]]; do :; done
"$1" stop "$2"
rm -rf -- "$2"
"""


class Keeper:
    """Ends a cluster and removes its files when it is closed, or when this process is gone in whatever way."""

    def __init__(self, root: Path) -> None:
        self._process = subprocess.Popen(
            ["bash", "-c", _KEEP, "-", str(SCRIPT), str(root), str(os.getpid())],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env=unmarked(),
        )

    def close(self) -> None:
        """Returns when the cluster has ended."""
        self._process.communicate(b"\n", timeout=limit_s())


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
