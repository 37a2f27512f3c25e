"""Trace files found in folders, which may be huge: the search is bounded, and what could not be searched is said."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import harness.traces.open as opening
from harness.common.errors import RequestError, near_path
from harness.common.system.walk import Walk
from harness.traces.errors import TraceError
from harness.traces.nsys import REPORTS

MOST_LOOKED_AT = 500_000  # files and folders
MOST_OPENED = 10_000  # without a trace, files that had to be opened
_SAY_EVERY = 256
_DIGITS = re.compile(r"(\d+)")
TRACE_NAME = re.compile(r"rank|worker|trace", re.IGNORECASE)
_PACKED = (".zip", ".tar", ".tgz", ".tar.gz", ".7z", ".xz", ".bz2", ".zst")

Say = Callable[[str], None]


class FoundTraces(NamedTuple):
    """left_out: a sentence for each folder that could not be searched, and for each packed file that may be a trace."""

    files: list[Path]
    left_out: list[str]


def find_traces(paths: Iterable[Path | str]) -> list[Path]:
    """The trace files among `paths` and inside its folders, in a natural order (rank2 before rank10).

    Of a report and its own export only the export is taken. Links to folders are not followed.

    Raises:
        TraceError: a path does not exist, or is neither a file nor a folder.
        RequestError: a folder holds so many other files that it cannot be the one that was meant.
    """
    return search(paths).files


def search(paths: Iterable[Path | str], say: Say = lambda text: None) -> FoundTraces:
    """As `find_traces`, with what was left out. say: called now and then with what is searched, and how far it is."""
    found: dict[Path, None] = {}
    left_out: list[str] = []
    for path in map(Path, paths):
        if not path.exists():
            raise TraceError(path, "does not exist" + near_path(path))
        if path.is_file():
            found[path] = None
        elif path.is_dir():
            inside = _Folder(path, say)
            traces = inside.traces()
            if not traces and path.name.endswith(tuple(s for f in opening.FORMATS for s in f.suffixes)):
                raise TraceError(path, "is a folder without a trace, not a trace file")
            found.update(dict.fromkeys(traces))
            left_out += [*inside.walk.left_out, *inside.packed()]
        else:
            raise TraceError(path, "is a pipe or a device, neither a trace file nor a folder")
    return FoundTraces(list(found), left_out)


class _Folder:
    """The search of one folder."""

    def __init__(self, folder: Path, say: Say) -> None:
        self.walk = Walk(folder, self._count)
        self._say = say
        self._packed: list[Path] = []
        self._traces: list[Path] = []
        self._opened = 0  # since the last trace

    def traces(self) -> list[Path]:
        for file in self.walk.files():
            if self._looks_like_trace(file):
                self._traces.append(file)
                self._opened = 0
            elif file.name.endswith(_PACKED) and TRACE_NAME.search(file.name):
                self._packed.append(file)
        there = set(self._traces)
        superseded = {other for file in there for other in _superseded(file, there)}
        return sorted(there - superseded, key=_natural)

    def packed(self) -> list[str]:
        """A sentence for each packed file that may be a trace and was not unpacked beside it."""
        return [f"{file} is packed: unpack it first" for file in self._packed if not self._is_unpacked(file)]

    def _is_unpacked(self, packed: Path) -> bool:
        stem = next(packed.name.removesuffix(ending) for ending in _PACKED if packed.name.endswith(ending))
        beside = (file.name for file in self._traces if file.parent == packed.parent)
        return any(f"{name}.".startswith(f"{stem}.") for name in beside)

    def _count(self, walk: Walk) -> None:
        if walk.looked_at % _SAY_EVERY == 0:
            self._say(
                f"looking for traces in {walk.top}: {walk.looked_at:,} files and folders so far, "
                f"{len(self._traces):,} traces"
            )
        if self._opened > MOST_OPENED or walk.looked_at > MOST_LOOKED_AT:
            raise RequestError(self._too_many())

    def _too_many(self) -> str:
        last = f", the last in {self._traces[-1].parent}" if self._traces else ""
        return (
            f"{self.walk.top}: {len(self._traces):,} traces among the first {self.walk.looked_at:,} files and folders"
            f"{last}: give a folder that is nearer to the traces, or the files"
        )

    def _looks_like_trace(self, file: Path) -> bool:
        name = file.name
        known = next((f for f in opening.FORMATS if name.endswith(f.suffixes)), None)
        if known is None or any(f"{ending}." in name for ending in REPORTS):
            return False
        if not known.contains:
            return True
        self._opened += 1
        try:
            start = opening.beginning(file, unpack=True)
        except TraceError:
            start = b""
        # A damaged trace is kept: opening it gives an error, while without it the rank would only be missing.
        is_damaged = not start and TRACE_NAME.search(name) is not None
        return known.contains in start or start.startswith(opening.LFS_MAGIC) or is_damaged


def _superseded(report: Path, files: set[Path]) -> list[Path]:
    """Of a report and the exports beside it, the files to leave out: an export is valid if it is not older."""
    if report.suffix not in REPORTS:
        return []
    exports = [e for e in (report.with_name(report.stem + s) for s in (".sqlite", ".sqlite.gz")) if e in files]
    made_ns = _content_since(report)
    fresh = [e for e in exports if (since := _content_since(e)) is not None and since >= (made_ns or 0)]
    return [report, *(e for e in exports if e != fresh[0])] if fresh else exports


def _content_since(file: Path) -> int | None:
    """When a file was last written; None for an empty one and for one that vanished."""
    try:
        there = file.stat()
    except OSError:
        return None
    return there.st_mtime_ns if there.st_size else None


def _natural(path: Path) -> list[tuple[int, int, str]]:
    return [(1, int(part), "") if part.isdigit() else (0, 0, part) for part in _DIGITS.split(str(path))]
