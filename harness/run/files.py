"""Where runs are kept, their files and records. A file is written whole or not at all; a failed write gives one
sentence.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from harness.common.bounded_read import parse_json, read_lines
from harness.common.errors import WorkError
from harness.common.paths import IN_CHECKOUT, ROOT, expanded
from harness.common.secrets import holds_secret, masked_words
from harness.common.users import whose
from harness.experiment.exercises import AnyExperiment, Own
from harness.site.site import Site

OWN_FOLDER = "own"
SECRET_MODE = 0o600


def runs_root(environ: Mapping[str, str] = os.environ) -> Path:
    """The folder that holds the exercises' logs/ and profiler/ folders: HARNESS_RUNS, else the checkout's exercises/.
    Where the harness is installed without a checkout, the current folder's exercises/."""
    given = environ.get("HARNESS_RUNS")
    return expanded(given).absolute() if given else (ROOT if IN_CHECKOUT else Path.cwd()) / "exercises"


def own_runs_root(environ: Mapping[str, str] = os.environ) -> Path:
    """The same for the user's own trainings: HARNESS_RUNS, else `runs` in the folder where the command is typed."""
    return runs_root(environ) if environ.get("HARNESS_RUNS") else Path.cwd() / "runs"


def run_roots(root: Path | None = None) -> list[Path]:
    """The folders in which runs are looked for: both of the above, or only `root`."""
    return [root] if root is not None else list(dict.fromkeys([runs_root(), own_runs_root()]))


def run_folders(root: Path) -> list[Path]:
    """The folders below a root that hold the runs of one exercise, or of the user's own trainings."""
    return [*root.glob("exercise_*"), *root.glob(OWN_FOLDER)]


def write_atomically(path: Path, text: str, still: Callable[[], bool] = lambda: True, mode: int | None = None) -> bool:
    """Write a file under a temporary name, then rename it: readers see all of it or none.

    still: whether it is still wanted, asked just before the renaming. A shared file system has then made a file in that
    folder, and shows what other machines wrote there. mode: who may read it; None: as the umask has it. Returns whether
    it was written.

    Raises DiskError: the disk is full or not writable; nothing is left behind.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        if mode is not None:
            temporary.unlink(missing_ok=True)
            temporary.touch(mode, exist_ok=False)  # before it has any content
        temporary.write_text(text, encoding="utf-8")
        wanted = still()
        if wanted:
            temporary.replace(path)
        else:
            temporary.unlink()
        return wanted
    except OSError as error:
        with suppress(OSError):  # it may not have been made
            temporary.unlink()
        raise disk_error(path, error) from None


class DiskError(WorkError):
    """A write that failed. The sentence begins with the path."""


def disk_error(path: Path, error: OSError) -> DiskError:
    """A sentence for a write that failed. It names HARNESS_RUNS only for a path in the runs' folder, and not for one in
    a run that there is: that stays where it is."""
    in_run = any(map(os.path.lexists, (folder / "run.json" for folder in (path.parent, path.parent.parent))))
    ours = path.absolute().is_relative_to(runs_root()) and not in_run
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        otherwise = ", or set HARNESS_RUNS" if ours else ""
        return DiskError(f"{path}: no space left on this disk (or in your quota): free some{otherwise}")
    otherwise = ": choose another place with HARNESS_RUNS" if ours else ""
    owner = whose(path) if error.errno in (errno.EACCES, errno.EPERM) else ""
    return DiskError(f"{path}: cannot be written ({error.strerror}){owner}{otherwise}")


def make_shared(folder: Path) -> None:
    """Make a folder between the runs' folder and its runs, and those above it, as open as the runs' folder is.

    Where several people share that (it is sticky, or its group may write), the first of them must not close what the
    others need, whatever the umask.

    Raises OSError: it cannot be made.
    """
    root = runs_root()
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(exist_ok=True)
        if each != root and each.is_relative_to(root):
            mode = root.stat().st_mode
            if mode & (stat.S_ISVTX | stat.S_IWGRP | stat.S_IWOTH):
                each.chmod(stat.S_IMODE(mode))


@contextmanager
def naming_flag(flag: str) -> Iterator[None]:
    """A write that fails inside is reported with the flag that gave the path."""
    try:
        yield
    except DiskError as error:
        raise DiskError(f"{flag} {error}") from None


def read_json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a JSONL file; a line that is not JSON, as a last line that was cut short, is left out. Raises
    OSError: it is missing or may not be read. SmallFileError: it is no regular file, or has a line without end."""
    for line in read_lines(path):
        try:
            value = parse_json(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            yield value


State = Literal["queued", "running", "completed", "failed", "cancelled", "timeout", "node_fail", "stuck", "unknown"]
FINAL: frozenset[State] = frozenset({"completed", "failed", "cancelled", "timeout", "node_fail", "stuck"})

ITSELF = "the job itself"  # in `Status.told_by`: Slurm has forgotten the job, so nobody will know its end better

# What files say is computed with: numbers that no clock and no system gives are refused with the file.
UnixNs = Annotated[int, Field(ge=0, lt=1 << 63)]
Number = Annotated[int, Field(gt=-(1 << 31), lt=1 << 32)]  # of a node, a process, an exit


class NodeStatus(BaseModel):
    """How a node's commands ended, as the node wrote it."""

    model_config = ConfigDict(extra="ignore", defer_build=True)

    node: Number
    host: str
    exit: Number
    started_ns: UnixNs
    ended_ns: UnixNs
    topology: str = ""  # Slurm's SLURM_TOPOLOGY_ADDR and SLURM_TOPOLOGY_ADDR_PATTERN of the node's task
    topology_pattern: str = ""

    @property
    def switch(self) -> str | None:
        """The network switch that the node hangs on, as Slurm's topology names it; None where Slurm knows of none.

        >>> names = {"topology": "root.leaf07.node4.site", "topology_pattern": "switch.switch.node"}
        >>> NodeStatus(node=4, host="node4", exit=0, started_ns=0, ended_ns=0, **names).switch
        'leaf07'
        """
        above = self.topology_pattern.split(".")[:-1]
        names = self.topology.split(".", len(above))
        return names[-2] if above and len(names) > len(above) else None


class Status(BaseModel):
    """The state that the job itself wrote, at its beginning and at its end; or its end as another learned it.

    told_by: the word of who said so, where the job could not: Slurm's, as NODE_FAIL. why: a sentence with it.
    note: what a completed job leaves open.
    """

    model_config = ConfigDict(extra="ignore", defer_build=True)

    state: State
    exit_code: Number | None = None
    pid: Number | None = None  # of the script, where the job runs on this machine
    host: str | None = None
    missing: list[str] = []  # reports that should be there and are not
    started_ns: UnixNs | None = None
    ended_ns: UnixNs | None = None
    told_by: str | None = None
    why: str = ""
    note: str = ""

    @property
    def is_own_word(self) -> bool:
        """Whether the job itself wrote it."""
        return self.told_by in (None, ITSELF)

    @property
    def is_settled(self) -> bool:
        """Whether nobody knows its end better. A job that was stopped, or lost its neighbours, does not know for whom:
        its user, a node that failed, a job of higher priority."""
        return self.state in FINAL and (self.state in ("completed", "timeout", "stuck") or self.told_by is not None)


class Part(BaseModel):
    """A run's place among runs that were asked for together: a sweep, a reference, the two arms of a check.

    series: the whole's own name, as no other has it. point: the setting, the same text for the same setting.
    repeat: which of the runs with that setting, from 0.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    series: str
    point: str
    repeat: Number = 0


class Program(BaseModel):
    """The user's own training. script: its path, or the name of its module or command; git: of its repository."""

    model_config = ConfigDict(extra="forbid", defer_build=True)

    script: str
    arguments: list[str]
    python: str
    git: dict[str, str | bool | None]


class Record(BaseModel):
    """run.json: enough to start the run again and to explain it later."""

    model_config = ConfigDict(extra="forbid", defer_build=True)

    schema_version: Literal[1] = 1
    job_id: str
    cluster: str | None = None  # that gave the job id, where sbatch named one
    backend: str  # its name among the backends of the launch
    experiment: AnyExperiment  # as asked
    site: Site  # as overridden
    job: dict[str, Any]  # as resolved
    command: list[str]
    git: dict[str, str | bool | None]
    versions: dict[str, str]
    program: Program | None = None
    user: str
    submit_host: str
    created_ns: UnixNs
    part: Part | None = None
    status: Status | None = None
    nodes: list[NodeStatus] = []

    @property
    def shown_command(self) -> list[str]:
        """The command as typed, for people: without the secrets in it."""
        return masked_words(self.command)

    @property
    def holds_secret(self) -> bool:
        """Whether only its owner may read it."""
        own = self.experiment.command if isinstance(self.experiment, Own) else ()
        return holds_secret([*self.command, *own])


def without_secrets(record: dict[str, Any]) -> dict[str, Any]:
    """The content of a run.json as others may see it: `***` in place of what looks like a secret in a command."""
    found = dict(record)
    for key in ("command", "arguments"):
        words = found.get(key)
        if isinstance(words, list) and all(isinstance(word, str) for word in words):
            found[key] = masked_words(words)
    for key in ("experiment", "job", "program"):
        if isinstance(found.get(key), dict):
            found[key] = without_secrets(found[key])
    return found


def when(time_ns: int | None) -> str:
    """A time for people: local, to the second."""
    return "" if time_ns is None else datetime.fromtimestamp(time_ns / 1e9).strftime("%Y-%m-%d %H:%M:%S")
