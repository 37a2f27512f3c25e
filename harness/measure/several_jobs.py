"""A folder with the traces of several jobs: told from the names of files and folders alone, before a trace is read."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from harness.common.errors import RequestError
from harness.common.paths import IN_CHECKOUT, PROGRAM
from harness.common.printable import printable
from harness.measure.paths import is_run, run_of
from harness.traces.open import FORMATS

MOST_LISTED = 20
COMMENT_AT = 60  # characters before the comment of a command, if it is not longer
MOST_NAMELESS = (
    16  # folders without ranks in their names: their traces, read at once, say whether they are one job
)
_RANK = re.compile(r"(?:rank|worker|process|proc)[-_.]?(\d+)", re.IGNORECASE)

Folders = Mapping[Path, Sequence[Path]]
"""The folder of some traces, or the run that they are of -> the traces."""


def refuse_several_jobs(path: Path, files: Sequence[Path]) -> None:
    """Raises RequestError: the traces below `path` are of several jobs; with the command for each of them."""
    if is_run(path) or not path.is_dir():
        return
    folders: dict[Path, list[Path]] = {}
    for file in files:
        if file.is_relative_to(path):
            folders.setdefault(Path(run_of(file) or file.parent), []).append(file)
    if may_be_one_job(folders):
        return
    what = f"{len(files)} traces of several jobs, in {len(folders)} folders"
    raise RequestError(
        f"{printable(str(path))}: holds {what}: choose one of them\n"
        + "\n".join(_commands(folders))
        + f"\nif all of them are of one job, name each folder: {_command(['A', 'B'])} …"
    )


def may_be_one_job(folders: Folders) -> bool:
    """Whether the traces of these folders may be the ranks of one job: not those of several runs, nor of folders that
    are not beside each other or have the same rank. Without ranks in the names, of few folders only."""
    if len(folders) < 2:
        return True
    if any(map(is_run, folders)) or len({folder.parent for folder in folders}) > 1:
        return False
    ranks = [{_rank(file) for file in files} for files in folders.values()]
    named = Counter(rank for each in ranks for rank in each if rank is not None)
    if named and max(named.values()) > 1:
        return False
    return not any(None in each for each in ranks) or len(folders) <= MOST_NAMELESS


def _rank(file: Path) -> int | None:
    """The rank in a file's name, else in its folder's."""
    found = _RANK.search(file.name) or _RANK.search(file.parent.name)
    return int(found[1]) if found else None


def _commands(folders: Folders) -> Iterator[str]:
    """A command for each folder, those with most traces first, and what it would read."""
    most_first = sorted(folders.items(), key=lambda pair: (-len(pair[1]), pair[0]))
    for folder, files in most_first[:MOST_LISTED]:
        yield f"  {_command([printable(str(folder))]):<{COMMENT_AT}}  # {_content(files)}"
    if len(folders) > MOST_LISTED:
        yield f"and {len(folders) - MOST_LISTED} more folders"


def _command(paths: Sequence[str]) -> str:
    return " ".join([*(["bash"] if IN_CHECKOUT else []), PROGRAM, "report", *map(shlex.quote, paths)])


def _content(files: Sequence[Path]) -> str:
    formats = Counter(next((f.name for f in FORMATS if file.name.endswith(f.suffixes)), "") for file in files)
    return ", ".join(
        f"{count} {name} {'traces' if count > 1 else 'trace'}" for name, count in formats.items()
    )
