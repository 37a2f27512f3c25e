"""The place of a reference's traces, and whether they are unchanged. Writes none."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from harness.common.bounded_read import BoundedReadError
from harness.common.errors import WorkError
from harness.measure.references import Reference, StoredRun, StoredTrace, file_digest
from harness.run import Run, disk_error, runs_root
from harness.site.site import Site
from harness.study.reference.gather import here


def traces_root(reference: Reference) -> Path | None:
    """The folder from which the paths of the reference's runs go; None if this machine does not have it."""
    if reference.traces_in is None:
        root: Path | None = runs_root()
    else:
        place = here(reference.traces_in)
        root = None if place is None else place / reference.name
    return root if root is not None and root.is_dir() else None


def damaged_traces(root: Path | None, runs: Iterable[StoredRun], whole: bool) -> list[str]:
    """A sentence for each trace that is not what it was. whole: compare every byte with the checksum; else the sizes.

    A run that is not here as a whole is not damaged: its traces may be elsewhere.
    """
    if root is None:
        return []
    return [
        sentence
        for run in runs
        if (root / run.path).is_dir()
        for trace in run.traces
        for sentence in _damage(root / trace.path, trace, whole)
    ]


def runs_here(root: Path | None, runs: Iterable[StoredRun]) -> int:
    """How many of the runs are here with their folders."""
    return 0 if root is None else sum((root / run.path).is_dir() for run in runs)


def _damage(path: Path, trace: StoredTrace, whole: bool) -> Iterator[str]:
    try:
        size = path.stat().st_size
        if size < trace.size_bytes:
            yield f"trace truncated: {trace.path} has {size:,} of {trace.size_bytes:,} bytes"
        elif size > trace.size_bytes or (whole and file_digest(path) != trace.sha256):
            yield f"trace changed: {trace.path} is not what was recorded"
    except OSError as error:
        yield f"trace missing: {trace.path} ({error.strerror})"
    except BoundedReadError as error:
        yield f"trace changed: {trace.path} {error}"


def keep_runs(runs: Iterable[Run], name: str, site: Site) -> None:
    """Copy the runs of a recording to the site's folder for traces, if it names one; those there stay as they are.

    Raises:
        WorkError: the folder cannot be written, or a variable in its name is not set here.
    """
    if site.reference_traces is None:
        return
    place = here(site.reference_traces)
    if place is None:
        raise WorkError(
            f"site {site.name}: reference_traces is {site.reference_traces}, and a variable in it is not set here"
        )
    for run in runs:
        _copy(run.path, place / name / run.path.relative_to(run.path.parents[2]))


def _copy(source: Path, target: Path) -> None:
    if target.exists():
        return
    part = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        shutil.copytree(source, part)
        part.rename(target)
    except (OSError, shutil.Error) as error:
        with suppress(OSError):
            shutil.rmtree(part)
        cause = error if isinstance(error, OSError) and error.strerror else OSError(5, str(error))
        raise disk_error(target, cause) from None
