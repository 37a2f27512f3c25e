"""All runs, and the one that a user means by an id, a name, a path or `last`."""

from __future__ import annotations

import os
from pathlib import Path

from harness.common.bounded_read import BoundedReadError, open_regular, why_unread
from harness.common.errors import RequestError, WorkError, nearest_or_list
from harness.common.paths import IN_CHECKOUT, PROGRAM, expanded
from harness.common.printable import printable
from harness.common.users import whose
from harness.run.files import run_folders, run_roots, runs_root
from harness.run.record import Part
from harness.run.run import Run


def no_runs(root: Path) -> str:
    """The sentence for a place without runs, with what to do."""
    elsewhere = "give the path of a run or of traces, or set HARNESS_RUNS to the folder of the runs"
    if shut := closed(root):
        return (
            f"{shut[0]}: may not be read{whose(shut[0])}, or set HARNESS_RUNS to the folder of your own runs"
        )
    then = "start one: slurm.sh -e 1" if IN_CHECKOUT else elsewhere
    return f"there are no runs yet in {root}; {then}"


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
        if not _is_open(folder):
            found.append(folder)
        elif profiler.is_dir() and not _is_open(profiler):
            found.append(profiler)
        else:
            found += [each for each in profiler.glob("[!.]*") if not _is_open(each) and each.is_dir()]
    return sorted(found)


def _is_open(folder: Path) -> bool:
    return os.access(folder, os.R_OK | os.X_OK)


def all_runs(root: Path | None = None) -> list[Run]:
    """Every run, oldest first."""
    folders = [folder for each in run_roots(root) for folder in run_folders(each)]
    runs = [Run(p.parent) for folder in folders for p in folder.glob("profiler/[!.]*/run.json")]
    return sorted(runs, key=lambda r: (_created_ns(r), r.name))


def _created_ns(run: Run) -> int:
    try:
        return run.record.created_ns
    except WorkError:
        return 0


def find_run(token: str, root: Path | None = None) -> Run:
    """The run meant by a job id, a name, a path, or `last`.

    Raises:
        RequestError: no run matches, or several do.
    """
    path = expanded(token)
    if Run(path).is_run:
        return Run(path.absolute())
    if path.name == "run.json" and path.is_file():
        return Run(path.absolute().parent)
    refuse_odd_record(path)
    if Run(path).looks_like_run:
        raise WorkError(
            f"{path}: its run.json is lost, and with it its state: {PROGRAM} report {path} answers from its traces"
        )
    if "/" in token and not path.exists():  # an id or a name has no slash
        raise RequestError(f"{printable(token)}: there is no such file or folder")
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
            f"RUN: {token!r} is the id of {len(hits)} runs: give the name, one of {', '.join(r.name for r in hits)}"
        )
    known = ["last", *(r.name for r in runs), *filter(None, map(_safe_id, runs))]
    hint = nearest_or_list(
        token, known, f"{PROGRAM} ls lists all; a run is given by id, name, path or `last`"
    )
    lost = [r.name for r in runs if _safe_id(r) is None]
    raise RequestError(
        f"RUN: there is no run {token!r}{hint}"
        + (f"; the record of {len(lost)} cannot be read, as of {lost[-1]}: give its name" if lost else "")
        + _among_closed(root or runs_root())
    )


def refuse_odd_record(path: Path) -> None:
    """Raises RequestError: `path` is a run's folder whose run.json is no file."""
    record = Run(path).record_file
    try:
        if path.is_dir() and os.path.lexists(record):
            with open_regular(record):
                pass
    except (OSError, BoundedReadError) as error:
        raise RequestError(f"{record}: {why_unread(error)}") from None


def _among_closed(root: Path) -> str:
    """A remark where it may be one of the runs that this user may not read."""
    shut = closed(root)
    return f"; {shut[0]} may not be read{whose(shut[0])}" if shut else ""


def _safe_id(run: Run) -> str | None:
    try:
        return run.job_id
    except WorkError:
        return None


def part_of(run: Run) -> Part | None:
    """Of which series a run is; None where it is of none, or its record is lost."""
    try:
        return run.record.part
    except WorkError:
        return None
