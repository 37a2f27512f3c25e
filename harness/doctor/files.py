"""What a run reads and where it writes: data, checkpoints, the runs' folder, temporary files. Leaves nothing behind."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from harness.common.bounded_read import BoundedReadError, open_regular, why_unread
from harness.doctor.result import Result, ok, problem, warning
from harness.doctor.surroundings import Surroundings
from harness.format.format import amount
from harness.launch.argv import Word, from_site, read_here, shown
from harness.launch.lookup import Wanted, why_missing

LITTLE_TEMPORARY_BYTES = 1 << 30


def inputs(around: Surroundings) -> Iterator[Result]:
    """Data and checkpoints of exercises 1 to 3, read as the training will."""
    named = _named(around)
    for what, (word, wanted, remedy) in named.items():
        path = Path(read_here(word, around.environ).text)
        kinds: tuple[Wanted, ...] = ("folder", "weights") if wanted == "weights" else (wanted,)
        missing = (why_missing(word, around.environ, kind) for kind in kinds)
        why = next(filter(None, missing), "") or _unreadable(path, wanted)
        yield problem(what, why, remedy) if why else ok(what, shown(word))
    if around.jobs and not named:
        yield ok(
            "data and checkpoints",
            "the site sets neither: the exercises use a small data set of the harness and random weights",
        )


def _named(around: Surroundings) -> dict[str, tuple[Word, Wanted, str]]:
    """What to look for, and what to do without it."""
    found: dict[str, tuple[Word, Wanted, str]] = {}
    for job in around.jobs:
        if job.data is not None:
            found["data"] = (
                job.data,
                "file",
                "bash slurm.sh -e 1 -- --data FILE   # or data: in the site file",
            )
        if job.checkpoint is not None:
            name = f"checkpoint {shown(job.checkpoint).rpartition('/')[2]}"
            fetch = (
                "bash slurm.sh -e 1 -- --random-weights   # the same profile; or models_dir: in the site file"
            )
            found[name] = (job.checkpoint, "weights", fetch)
    if around.site.megatron_data is not None:
        ends = "bash slurm.sh -e 3   # builds its data if the site file has no megatron_data:"
        found["megatron_data"] = (from_site(around.site.megatron_data), "prefix", ends)
    return found


def _unreadable(path: Path, wanted: Wanted) -> str:
    """Why the first bytes cannot be read; empty when they can."""
    files = {
        "weights": sorted(path.glob("*.safetensors")) + sorted(path.glob("*.json")),
        "prefix": [Path(f"{path}.bin"), Path(f"{path}.idx")],
    }.get(wanted, [path])
    for file in files:
        try:
            with open_regular(file) as opened:
                if not opened.read(1):
                    return f"{file} is empty"
        except (OSError, BoundedReadError) as error:
            return f"{file} cannot be read ({why_unread(error)})"
    return ""


def runs_folder(around: Surroundings) -> Iterator[Result]:
    """Whether a run can be written."""
    yield writable_verdict(around.runs)


def writable_verdict(folder: Path) -> Result:
    """Whether a file can be made in the folder, or where the folder will be made."""
    there = existing(folder)
    what = f"runs go to {folder}"
    if "\\" in str(folder):
        return problem(
            what, "Slurm writes no log to a path with a backslash", "export HARNESS_RUNS=$HOME/runs"
        )
    try:
        with tempfile.NamedTemporaryFile(dir=there, prefix=".doctor-") as file:
            file.write(b"x" * 4096)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        elsewhere = "export HARNESS_RUNS=$SCRATCH/runs   # a folder that you and the compute nodes can write"
        return problem(what, f"{there} cannot be written ({error.strerror})", elsewhere)
    return ok(what, "is writable" if there == folder else f"will be made; {there} is writable")


def existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    return next(path for path in (folder, *folder.parents) if path.is_dir())


def temporary(around: Surroundings) -> Iterator[Result]:
    """The folder for temporary files, which nsys writes to while it records."""
    folder = Path(around.environ.get("TMPDIR") or "/tmp")
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        yield problem(f"TMPDIR {folder}", f"cannot be used ({error.strerror})", "export TMPDIR=/tmp")
        return
    yield temporary_verdict(folder, free)


def temporary_verdict(folder: Path, free_bytes: int) -> Result:
    """Whether nsys has room while it records."""
    found = f"{amount(free_bytes)} are free"
    if free_bytes < LITTLE_TEMPORARY_BYTES:
        return warning(
            f"TMPDIR {folder}", f"{found}: nsys may lose its report", f"du -xsh {folder}/* | sort -h | tail"
        )
    return ok(f"TMPDIR {folder}", found)
