"""All runs, and the one that a user means by an id, a name, a path or `last`; and a run whose files are staged."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from harness.common.display.printable import printable
from harness.common.errors import RequestError, WorkError, near_path, nearest_or_list
from harness.common.paths import COMMAND, IN_CHECKOUT, expanded
from harness.common.run_folder.job_folder import BACKEND, roots
from harness.common.run_folder.run_files import RECORD
from harness.common.system.bounded_read import BoundedReadError, open_regular, why_unread
from harness.common.system.slurm_notation import fields_of
from harness.common.system.users import whose
from harness.common.whole_number import whole_number
from harness.run.files import disk_error, make_shared, run_folders, run_roots, runs_root
from harness.run.run import LOCAL, Run
from harness.site.slurm_commands import JobId, scontrol

if TYPE_CHECKING:
    from harness.run.record import SeriesPart

_SLURM_ID = re.compile(r"(\d+)(_\d+)?(-\d+)?", re.ASCII)


def no_runs(root: Path) -> str:
    """The sentence for a place without runs, with what to do."""
    if shut := closed(root):
        return f"{shut[0]}: may not be read{whose(shut[0])}, or set HARNESS_RUNS to the folder of your own runs"
    elsewhere = (
        "" if IN_CHECKOUT else ", go to the folder where you typed it, or set HARNESS_RUNS to the folder of the runs"
    )
    return f"there are no runs yet in {root}; start one: {COMMAND} -e 1{elsewhere}"


def closed(root: Path) -> list[Path]:
    """The folders with runs, and the runs, that this user may not read; of folders in each other the outer one."""
    try:
        root.stat()
    except PermissionError:
        return [root]
    except OSError:
        return []
    if not _is_open(root):
        return [root]
    found: list[Path] = []
    for folder in run_folders(root):
        profiler = folder / "profiler"
        shut = next((each for each in (folder, profiler) if each.is_dir() and not _is_open(each)), None)
        runs = [] if shut else profiler.glob("[!.]*")
        found += [shut] if shut else [each for each in runs if not _is_open(each) and each.is_dir()]
    return sorted(found)


def _is_open(folder: Path) -> bool:
    return os.access(folder, os.R_OK | os.X_OK)


def all_runs(root: Path | None = None) -> list[Run]:
    """Every run, oldest first."""
    folders = [folder for each in run_roots(root) for folder in run_folders(each)]
    runs = [Run(p.parent) for folder in folders for p in folder.glob(f"profiler/[!.]*/{RECORD.name}")]
    return sorted(runs, key=lambda r: (r.known_record.created_ns if r.known_record else 0, r.name))


def find_run(token: str, root: Path | None = None) -> Run:
    """The run meant by a job id, a name, a path, or `last`. Raises RequestError: no run matches, or several do."""
    path = expanded(token)
    if Run(path).is_run:
        return Run(path.absolute())
    if path.name == RECORD.name and path.is_file():
        return Run(path.absolute().parent)
    refuse_odd_record(path)
    if Run(path).looks_like_run:
        raise WorkError(
            f"{path}: its run.json is lost, and with it its state: {COMMAND} report {path} answers from its traces"
        )
    if "/" in token and not path.exists():  # an id or a name has no slash
        raise RequestError(f"{printable(token)}: there is no such file or folder{near_path(path)}")
    runs = all_runs(root)
    if not any(token in (run.name, _safe_id(run)) for run in runs):
        runs += [run for place in _of_slurm(token, root) for run in all_runs(place)]
    if not runs:
        named = "" if token == "last" else f"there is no path {token!r}, and "
        raise RequestError(f"RUN: {named}{no_runs(root or runs_root())}")
    if token == "last":
        return runs[-1]
    hits = [r for r in runs if token == r.name] or [r for r in runs if token == _safe_id(r)]
    # Nothing is kept of a job's first command that did not train.
    hits = hits or [r for r in runs if _is_of_job(r, token)][:1]
    if len(hits) == 1:
        return hits[0]
    if hits:
        paths = ", ".join(str(r.path) for r in hits)
        raise RequestError(f"RUN: {token!r} names {len(hits)} runs: give the path, one of {paths}")
    known = ["last", *(r.name for r in runs), *filter(None, map(_safe_id, runs))]
    hint = nearest_or_list(token, known, f"{COMMAND} ls lists all; a run is given by id, name, path or `last`")
    lost = [r.name for r in runs if _safe_id(r) is None]
    raise RequestError(
        f"RUN: there is no run {token!r}{hint}"
        + (f"; the record of {len(lost)} cannot be read, as of {lost[-1]}: give its name" if lost else "")
        # It may be one of the runs that this user may not read.
        + (f"; {shut[0]} may not be read{whose(shut[0])}" if (shut := closed(root or runs_root())) else "")
    )


def trainings(run: Run, token: str) -> list[Run]:
    """What `observe` has seen in a job, the first one first, if the run was named by the job's id; else nothing."""
    if not _is_of_job(run, token):
        return []
    folder = run.path.parent.parent.parent
    return [each for each in all_runs(folder) if _is_of_job(each, token)]


def _is_of_job(run: Run, token: str) -> bool:
    """Whether a run is a training that `observe` has seen in the job: the first one, or as 12-1 in the job 12."""
    record, is_job = run.known_record, _SLURM_ID.fullmatch(token)
    if record is None or not is_job or record.backend != BACKEND:
        return False
    return re.fullmatch(rf"{token}(-\d+)?", record.job_id) is not None


def _of_slurm(token: str, root: Path | None) -> list[Path]:
    """Where the runs of a job may be that was started in another folder, as Slurm remembers it for some minutes."""
    found = _SLURM_ID.fullmatch(token)
    if found is None or root is not None or os.environ.get("HARNESS_RUNS"):
        return []
    folder = fields_of(scontrol(JobId(found[1] + (found[2] or ""), None)).text).get("WorkDir", "")
    known = run_roots()
    return [each for each in roots({}, folder) if each not in known and each.is_dir()] if folder else []


def refuse_odd_record(path: Path) -> None:
    """Raises RequestError: `path` is a run's folder whose run.json is no file."""
    record = Run(path).record_file
    try:
        if path.is_dir() and os.path.lexists(record):
            with open_regular(record):
                pass
    except (OSError, BoundedReadError) as error:
        raise RequestError(f"{record}: {why_unread(error)}") from None


def _safe_id(run: Run) -> str | None:
    return run.known_record.job_id if run.known_record else None


def part_of(run: Run) -> SeriesPart | None:
    """Of which series a run is; None where it is of none, or its record is lost."""
    return run.known_record.part if run.known_record else None


class Stage:
    """A run's directory before it has a name. A context manager, which removes what was not published."""

    def __init__(self, output_dir: Path) -> None:
        self.output_dir = output_dir
        self.path = output_dir / "profiler" / f".staging-{os.getpid()}-{time.time_ns()}"
        self._made: list[Path] = []

    def __enter__(self) -> Stage:
        folders = (self.path, self.output_dir / "logs")
        try:
            for folder in folders:
                self._made += [p for p in (folder, *folder.parents) if not p.exists() and p not in self._made]
            for folder in folders:
                make_shared(folder.parent if folder == self.path else folder)
            self.path.mkdir(exist_ok=True)
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
        """Give the run its name; it must be new. Raises WorkError: there is a run of that name."""
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
    """A number that no other local run has, and a folder of its own for the backend. Also the logs say which numbers
    are taken: whoever copies the runs' folder may leave the hidden folder behind."""
    # Also in the other places where this user's commands look for runs.
    places = dict.fromkeys([root, *run_roots()])
    logs = (log for place in places for folder in run_folders(place) for log in folder.glob("logs/local-*"))
    taken = (p.name.removeprefix("local-") for p in (*logs, *(p for place in places for p in place.glob(f"{LOCAL}/*"))))
    number = max((n for n in map(whole_number, taken) if n is not None), default=0)
    folder = _claim(root, map(str, count(number + 1)))
    return f"local-{folder.name}", folder


def claim_folder(root: Path, job_id: str) -> tuple[str, Path]:
    """The next free `JOB-NUMBER` of an allocation, and a folder of its own for the backend."""
    names = (f"{job_id}-{number}" for number in count())
    # Whoever copies the runs' folder may leave the hidden folder behind.
    folder = _claim(root, (n for n in names if not any((f / "logs" / n).exists() for f in run_folders(root))))
    return folder.name, folder


def _claim(root: Path, names: Iterator[str]) -> Path:
    """A new folder below `root` with the first of these names that is free there and, where this user may write, in the
    folder of the exercises' runs: so the runs of all folders have different ids. Raises DiskError."""
    base, shared = root / LOCAL, runs_root() / LOCAL
    try:
        make_shared(base)
        for name in names:
            with suppress(FileExistsError):
                if shared != base:
                    _claim_shared(shared / name)
                (base / name).mkdir()
                return base / name
    except OSError as error:
        _remove_if_empty(base)
        raise disk_error(base, error) from None
    raise AssertionError("the names do not end")


def _claim_shared(folder: Path) -> None:
    """Nothing where this user may not write. Raises FileExistsError: another run has the name."""
    with suppress(OSError):
        make_shared(folder.parent)
    try:
        folder.mkdir()
    except OSError as error:
        if isinstance(error, FileExistsError):
            raise


def release_local_id(folder: Path) -> None:
    """Give back what `claim_local_id` claimed, for a run that was not started."""
    shutil.rmtree(folder, ignore_errors=True)
    for each in (runs_root() / LOCAL / folder.name, folder.parent, runs_root() / LOCAL):
        _remove_if_empty(each)


def _remove_if_empty(folder: Path) -> None:
    with suppress(OSError):  # another run's folder is in it, or it is not there
        folder.rmdir()
