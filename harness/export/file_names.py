"""The names of an export's files: a free one, or the user's, which must not be taken."""

from __future__ import annotations

from itertools import chain, count
from pathlib import Path

from harness.common.errors import RequestError

Suffixes = tuple[str, ...]  # of the files that one export writes beside each other
PARAVER, PERFETTO, AS_GIVEN = (".prv", ".pcf", ".row", ".prv.gz"), (".perfetto.gz",), ("",)
NAME = "trace"


def prefix_for(out: Path | None, folder: Path, suffixes: Suffixes) -> tuple[Path, list[str]]:
    """Where to write, without a suffix, and notes: `out`, else the first free of trace, trace-2, … in the folder."""
    prefix = out or _free(folder / NAME, suffixes)
    if out or prefix.name == NAME:
        return prefix, []
    return prefix, [f"{NAME}{suffixes[0]} existed already and is kept; --out PREFIX sets another name"]


def refuse_taken(out: Path, suffixes: Suffixes) -> None:
    """Raises RequestError: `--out` names a folder, or a file that is already there."""
    if out.is_dir():
        raise RequestError(f"--out {out}: is a folder; give a new name, as in --out {out / NAME}")
    if taken := _taken(out, suffixes):
        raise RequestError(
            f"--out {out}: {taken} exists already and is never overwritten; give another name, for example "
            f"{_free_like(out, suffixes)}"
        )


def _taken(prefix: Path, suffixes: Suffixes) -> Path | None:
    paths = [prefix.with_name(prefix.name + suffix) for suffix in suffixes]
    return next((path for path in paths if path.exists() or path.is_symlink()), None)


def _free(prefix: Path, suffixes: Suffixes) -> Path:
    numbered = (prefix.with_name(f"{prefix.name}-{number}") for number in count(2))
    return next(path for path in chain([prefix], numbered) if not _taken(path, suffixes))


def _free_like(out: Path, suffixes: Suffixes) -> Path:
    """A free name like `out`; the ending of a whole file name stays."""
    ending = "" if any(suffixes) else "".join(out.suffixes)
    free = _free(out.with_name(out.name.removesuffix(ending)), tuple(ending + suffix for suffix in suffixes))
    return free.with_name(free.name + ending)
