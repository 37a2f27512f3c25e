"""A report that a newer nsys wrote than the one at hand: both versions, and what to type where the newer one is."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

_FIRST_BYTES = 200
_MOST_S = 60
# The first line of a report. Before 2023 it has no version.
_WRITTEN_BY = re.compile(rb"\ANVIDIA Tegra Profiler Report (\d+)@(\d+)@(\d+)@")
_VERSION = re.compile(r"version (\d+)\.(\d+)\.(\d+)")
# What nsys 2022 and, from 2023 on, a later one says of such a report.
_REFUSED = re.compile(r"Version number is invalid: \d|newer than your current version")
_INCLUDES_JSON = (2024, 6)  # the first that leaves out NCCL's message sizes unless it is asked for them

Version = tuple[int, ...]


def written_by(report: Path) -> Version:
    """The version of the nsys that wrote a report; empty where the report does not tell it."""
    with report.open("rb") as stream:
        found = _WRITTEN_BY.match(stream.read(_FIRST_BYTES))
    return tuple(map(int, found.groups())) if found else ()


def export_command(report: Path) -> str:
    """What to type where an nsys is that can read a report; the export lies beside it."""
    export = report.with_name(report.name.removesuffix(".nsys-rep") + ".sqlite")
    json = ["--include-json=true"] if written_by(report) >= _INCLUDES_JSON else []
    return shlex.join(["nsys", "export", "--type", "sqlite", *json, "--output", str(export), str(report)])


def too_new(
    report: Path, said: str, nsys: Sequence[str], environ: Mapping[str, str] | None = None
) -> str | None:
    """Why a report cannot be exported, if it is that a newer nsys wrote it.

    said: what nsys said of it; nsys, environ: the words that start it, and its environment if it is not this one.
    """
    theirs, ours = written_by(report), _version(nsys, environ)
    if not _REFUSED.search(said) and not (theirs and ours and theirs > ours):
        return None
    newer = f"nsys {_dotted(theirs)}" if theirs else "a newer nsys"
    here = f"the nsys here is {_dotted(ours) or 'older'} ({nsys[-1]})"
    with_one = f"that or a later nsys is, type `{export_command(report)}`"
    return f"was written by {newer}, and {here}: where {with_one}, and give the .sqlite instead"


def _version(nsys: Sequence[str], environ: Mapping[str, str] | None) -> Version:
    argv = [*nsys, "--version"]
    try:
        done = subprocess.run(
            argv, env=environ, capture_output=True, text=True, errors="replace", timeout=_MOST_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ()
    found = _VERSION.search(done.stdout)
    return tuple(map(int, found.groups())) if found else ()


def _dotted(version: Version) -> str:
    return ".".join(map(str, version))
