"""Run: one submission and everything it left on disk. The only place that knows a path in a run.

Files are written to a temporary name and renamed; a run's directory never changes its name once it has one.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from harness.common.errors import RequestError, WorkError, nearest
from harness.common.paths import IN_CHECKOUT, PROGRAM, ROOT, expanded
from harness.experiment.exercises import AnyExperiment
from harness.site.site import Site

State = Literal["queued", "running", "completed", "failed", "cancelled", "timeout", "node_fail", "unknown"]
LOCAL = ".local"  # in the runs' folder: a folder per local run, its number
FINAL: frozenset[State] = frozenset({"completed", "failed", "cancelled", "timeout", "node_fail"})


class NodeStatus(BaseModel):
    """What one node says about its part."""

    model_config = ConfigDict(extra="ignore", defer_build=True)

    node: int
    host: str
    exit: int
    started_ns: int
    ended_ns: int


class Status(BaseModel):
    """What the job itself wrote about its end (or its beginning)."""

    model_config = ConfigDict(extra="ignore", defer_build=True)

    state: State
    exit_code: int | None = None
    pid: int | None = None  # of the script, where the job runs on this machine
    host: str | None = None
    missing: list[str] = []  # reports that should be there and are not
    started_ns: int | None = None
    ended_ns: int | None = None


class Record(BaseModel):
    """run.json: enough to run it again, and to know afterwards what it was."""

    model_config = ConfigDict(extra="forbid", defer_build=True)

    schema_version: Literal[1] = 1
    job_id: str
    cluster: str | None = None  # whose number that is, where sbatch named one
    backend: str  # its name among the backends of the launch
    experiment: AnyExperiment  # as asked
    site: Site  # as overridden
    job: dict[str, Any]  # as resolved
    command: list[str]
    git: dict[str, str | bool | None]
    versions: dict[str, str]
    user: str
    submit_host: str
    created_ns: int
    status: Status | None = None
    nodes: list[NodeStatus] = []


class Run:
    """A run's directory, `…/profiler/<name>/`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def name(self) -> str:
        return self.path.name

    @cached_property
    def record(self) -> Record:
        """What run.json says.

        Raises:
            WorkError: it is missing or not one of ours.
        """
        try:
            return Record.model_validate_json((self.path / "run.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise WorkError(f"{self.path / 'run.json'} cannot be read: {_first_line(error)}") from None

    @property
    def job_id(self) -> str:
        return self.record.job_id

    @property
    def script(self) -> Path:
        return self.path / "job.sbatch"

    @property
    def is_run(self) -> bool:
        """Whether the directory says of itself that it is a run."""
        return (self.path / "run.json").is_file()

    @property
    def page(self) -> Path:
        """The report's page."""
        return self.path / "report.html"

    @property
    def comm(self) -> Path:
        """What exercise 0 measured."""
        return self.path / "comm"

    @property
    def log_dir(self) -> Path:
        """Where log.out and log.err are: `…/logs/<jobid>/`."""
        return self.path.parent.parent / "logs" / self.job_id

    @property
    def out(self) -> Path:
        return self.log_dir / "log.out"

    @property
    def err(self) -> Path:
        return self.log_dir / "log.err"

    @property
    def controller_dir(self) -> Path:
        """The local backend's own folder: see `claim_local_id`."""
        return self.path.parents[2] / LOCAL / self.job_id.removeprefix("local-")

    @property
    def scheduler_log(self) -> Path:
        """What Slurm itself wrote (a cancellation, a time limit); absent when it wrote nothing."""
        return self.path.parent.parent / "logs" / f"slurm-{self.job_id}.out"

    @property
    def summary(self) -> Path:
        return self.path / "summary.json"

    def traces(self) -> list[Path]:
        """What a profiler left: Kineto files, else nsys reports or their exports."""
        kineto = sorted((self.path / "torch").glob("rank*.json.gz"))
        if kineto:
            return kineto
        reports = sorted((self.path / "nsys").glob("*.nsys-rep"))
        return reports or sorted((self.path / "nsys").glob("*.sqlite"))

    def metrics(self) -> list[Path]:
        """What the training wrote about its steps, one file per rank."""
        return sorted((self.path / "metrics").glob("rank*.jsonl"))

    def monitors(self) -> list[Path]:
        """The monitor's folders, one per node."""
        return sorted(p for p in (self.path / "gpus-monitor").glob("*") if p.is_dir())

    def nodes(self) -> list[NodeStatus]:
        """What the nodes said about themselves so far; what cannot be read, a full disk's half file, is no word."""
        found = map(_node_status, (self.path / "node-status").glob("[0-9]*.json"))
        return sorted((status for status in found if status is not None), key=lambda status: status.node)

    def status(self) -> Status | None:
        """What the job itself last wrote; None before it started."""
        try:
            return Status.model_validate_json((self.path / "status.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None

    def write_status(self, status: Status) -> None:
        write_atomically(self.path / "status.json", status.model_dump_json(indent=1) + "\n")

    def write_record(self, record: Record) -> None:
        write_atomically(self.path / "run.json", record.model_dump_json(indent=1) + "\n")
        self.__dict__.pop("record", None)


def _node_status(path: Path) -> NodeStatus | None:
    try:
        return NodeStatus.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def runs_root(environ: Mapping[str, str] = os.environ) -> Path:
    """The folder that holds the exercises' logs/ and profiler/ folders: HARNESS_RUNS, else the checkout's exercises/.

    Installed without a checkout, that of the folder one stands in.
    """
    given = environ.get("HARNESS_RUNS")
    return expanded(given).absolute() if given else (ROOT if IN_CHECKOUT else Path.cwd()) / "exercises"


def no_runs(root: Path) -> str:
    """What to say where there is no run, and what to do then."""
    elsewhere = "give the path of a run or of traces, or set HARNESS_RUNS to the folder of the runs"
    then = "start one: slurm.sh -e 1" if IN_CHECKOUT else elsewhere
    return f"there are no runs yet in {root}; {then}"


def all_runs(root: Path | None = None) -> list[Run]:
    """Every run, oldest first."""
    found = (root or runs_root()).glob("exercise_*/profiler/[!.]*/run.json")
    runs = [Run(p.parent) for p in found]
    return sorted(runs, key=lambda r: (_created_ns(r), r.name))


def _created_ns(run: Run) -> int:
    try:
        return run.record.created_ns
    except WorkError:
        return 0


def find_run(token: str, root: Path | None = None) -> Run:
    """The run meant by a job id, a name, a path, or `last`.

    Raises:
        RequestError: there is none, or several.
    """
    path = expanded(token)
    if Run(path).is_run:
        return Run(path.absolute())
    if path.name == "run.json" and path.is_file():
        return Run(path.absolute().parent)
    if "/" in token and not path.exists():  # no id and no name of a run has a slash
        raise RequestError(f"{token}: there is no such file or folder")
    runs = all_runs(root)
    if not runs:
        named = "" if token == "last" else f"there is no path {token!r}, and "
        raise RequestError(f"RUN: {named}{no_runs(root or runs_root())}")
    if token == "last":
        return runs[-1]
    hits = [r for r in runs if token == r.name] or [r for r in runs if token == _safe_id(r)]
    if len(hits) == 1:
        return hits[0]
    if hits:
        raise RequestError(
            f"RUN: {token!r} is the id of {len(hits)} runs: give the name, one of {_names(hits)}"
        )
    near = nearest(token, [*(r.name for r in runs), *filter(None, map(_safe_id, runs))])
    raise RequestError(
        f"RUN: there is no run {token!r}: give a job id, a name, a path or `last` (see {PROGRAM} ls)"
        + (f": did you mean {near}?" if near else "")
    )


def _safe_id(run: Run) -> str | None:
    try:
        return run.job_id
    except WorkError:
        return None


def _names(runs: list[Run]) -> str:
    return ", ".join(r.name for r in runs)


def write_atomically(path: Path, text: str) -> None:
    """Write a file under a temporary name, then rename it: readers see all of it or none.

    Raises:
        DiskError: the disk is full or not writable; nothing is left behind.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        with suppress(OSError):  # what could not be made need not be removed
            temporary.unlink()
        raise disk_error(path, error) from None


class DiskError(WorkError):
    """A write that failed; begins with the path."""


def disk_error(path: Path, error: OSError) -> DiskError:
    """A sentence for a write that failed. HARNESS_RUNS helps only where it says where to write."""
    ours = path.absolute().is_relative_to(runs_root())
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        otherwise = ", or set HARNESS_RUNS" if ours else ""
        return DiskError(f"{path}: no space left on this disk (or in your quota): free some{otherwise}")
    otherwise = ": choose another place with HARNESS_RUNS" if ours else ""
    return DiskError(f"{path}: cannot be written ({error.strerror}){otherwise}")


@contextmanager
def named_by(flag: str) -> Iterator[None]:
    """A write that fails inside is told as that flag's, which said where to write."""
    try:
        yield
    except DiskError as error:
        raise DiskError(f"{flag} {error}") from None


class Stage:
    """A run's directory before it has a name. Use as a context manager: what is not published is removed."""

    def __init__(self, output_dir: Path) -> None:
        self.output_dir = output_dir
        self.path = output_dir / "profiler" / f".staging-{os.getpid()}-{time.time_ns()}"
        self._made: list[Path] = []

    def __enter__(self) -> Stage:
        folders = (self.path, self.output_dir / "logs")
        for folder in folders:
            self._made += [p for p in (folder, *folder.parents) if not p.exists() and p not in self._made]
        try:
            for folder in folders:
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            self.__exit__()
            raise disk_error(self.output_dir, error) from None
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        for folder in sorted(self._made, key=lambda p: len(p.parts), reverse=True):
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()

    def publish(self, name: str, job_id: str) -> Run:
        """Give the run its name; it must be new.

        Raises:
            WorkError: there is a run of that name.
        """
        target = self.output_dir / "profiler" / name
        if target.exists():
            raise WorkError(f"{target} exists already: nothing was overwritten")
        logs = self.output_dir / "logs" / job_id
        try:
            logs.mkdir(exist_ok=True)
            self.path.rename(target)
        except OSError:
            shutil.rmtree(logs, ignore_errors=True)
            raise
        return Run(target)

    def withdraw(self, run: Run) -> None:
        """Remove a published run that could not be started."""
        for folder in (run.log_dir, run.path):
            shutil.rmtree(folder, ignore_errors=True)


def claim_local_id(root: Path) -> tuple[str, Path]:
    """A number that no other local run has, and a folder of its own for the backend."""
    base = root / LOCAL
    try:
        base.mkdir(parents=True, exist_ok=True)
        number = max((int(p.name) for p in base.iterdir() if p.name.isdigit()), default=0)
        while True:
            number += 1
            try:
                (base / str(number)).mkdir()
            except FileExistsError:
                continue
            return f"local-{number}", base / str(number)
    except OSError as error:
        _remove_if_empty(base)
        raise disk_error(base, error) from None


def release_local_id(folder: Path) -> None:
    """Give back what `claim_local_id` claimed, for a run that never was."""
    shutil.rmtree(folder, ignore_errors=True)
    _remove_if_empty(folder.parent)


def _remove_if_empty(folder: Path) -> None:
    with suppress(OSError):  # another run's folder is in it, or it is not there
        folder.rmdir()


def read_json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a JSONL file; a last line that was cut short is passed over."""
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            yield value


def when(time_ns: int | None) -> str:
    """A time for people: local, to the second."""
    return "" if time_ns is None else datetime.fromtimestamp(time_ns / 1e9).strftime("%Y-%m-%d %H:%M:%S")


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]
