"""The SQLite export of an nsys report: made, unpacked, or why it cannot be, as when a newer nsys wrote the report."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import BinaryIO

from isal import igzip, isal_zlib

from harness.traces.errors import TraceError, unpacks_to_too_much
from harness.traces.progress import OnProgress, silent

_FIRST_BYTES = 200
_MOST_S = 60
# The first line of a report. Before 2023 it has no version.
_WRITTEN_BY = re.compile(rb"\ANVIDIA Tegra Profiler Report (\d+)@(\d+)@(\d+)@")
_VERSION = re.compile(r"version (\d+)\.(\d+)\.(\d+)")
# What nsys 2022 and, from 2023 on, a later one says of such a report.
_REFUSED = re.compile(r"Version number is invalid: \d|newer than your current version")
_INCLUDES_JSON = (2024, 6)  # the first that leaves out NCCL's message sizes unless it is asked for them

Version = tuple[int, ...]
_DAMAGE: tuple[type[Exception], ...] = (EOFError, OSError, isal_zlib.error)  # type: ignore[assignment]
_PIECE_BYTES = 1 << 20
_SPARE_BYTES = 256 << 20  # of the disk, which are left to others
_HASH_BYTES = 8
_MOST_OUTPUT = 4096
# Without it newer versions leave out NCCL's message sizes; older versions do not know it.
_JSON = "--include-json"
_PER_CENT = re.compile(r"(\d+)%")

_WITHOUT_NSYS = (
    "cannot be read without nsys, and nsys is not installed: where nsys is, type `{command}`, "
    "and give the .sqlite instead; or fetch one (as root on Debian): `bash scripts/fetch-nsys FOLDER` in the checkout, "
    "then put FOLDER on PATH"
)


def written_by(report: Path) -> Version:
    """The version of the nsys that wrote a report; empty where the report does not tell it."""
    with report.open("rb") as stream:
        found = _WRITTEN_BY.match(stream.read(_FIRST_BYTES))
    return tuple(map(int, found.groups())) if found else ()


def export_command(report: Path) -> str:
    """What to type where an nsys is that can read a report; the export lies beside it."""
    export = report.with_suffix(".sqlite")
    json = ["--include-json=true"] if written_by(report) >= _INCLUDES_JSON else []
    return shlex.join(["nsys", "export", "--type", "sqlite", *json, "--output", str(export), str(report)])


def _too_new(report: Path, said: str, nsys: str) -> str | None:
    """Why a report cannot be exported, if it is that a newer nsys wrote it. said: what this nsys said of it."""
    theirs, ours = written_by(report), _version(nsys)
    if not _REFUSED.search(said) and not (theirs and ours and theirs > ours):
        return None
    newer = f"nsys {_dotted(theirs)}" if theirs else "a newer nsys"
    here = f"the nsys here is {_dotted(ours) or 'older'} ({nsys})"
    with_one = f"that or a later nsys is, type `{export_command(report)}`"
    return f"was written by {newer}, and {here}: where {with_one}, and give the .sqlite instead"


def _version(nsys: str) -> Version:
    found = _VERSION.search(_said([nsys, "--version"]))
    return tuple(map(int, found.groups())) if found else ()


def _said(argv: Sequence[str]) -> str:
    """What a command prints; empty if it does not start or does not end."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, errors="replace", timeout=_MOST_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout + done.stderr


def _dotted(version: Version) -> str:
    return ".".join(map(str, version))


@contextmanager
def unpacked(path: Path) -> Iterator[Path]:
    """A temporary plain copy of the gzipped `path`. Raises TraceError: the compressed file is damaged, or its content
    is too much for the disk or for any export."""
    with tempfile.TemporaryDirectory(prefix="harness-") as folder:
        plain = Path(folder) / "export.sqlite"
        with path.open("rb") as packed, plain.open("wb", buffering=0) as target:
            _copy(path, packed, target)
        yield plain


def _copy(path: Path, packed: BinaryIO, open_file: FileIO) -> None:
    unpacked_bytes = 0
    for piece in _pieces(path, packed):
        unpacked_bytes += len(piece)
        if too_much := unpacks_to_too_much(packed.tell(), unpacked_bytes):
            raise TraceError(path, too_much)
        folder = Path(str(open_file.name)).parent
        if shutil.disk_usage(folder).free < _SPARE_BYTES + len(piece):
            raise TraceError(path, _no_room(folder, unpacked_bytes))
        try:
            rest = memoryview(piece)
            while rest:
                rest = rest[open_file.write(rest) :]
        except OSError as error:
            raise TraceError(path, f"{_no_room(folder, unpacked_bytes)} ({error.strerror})") from error


def _pieces(path: Path, packed: BinaryIO) -> Iterator[bytes]:
    try:
        source = igzip.open(packed, "rb")  # type: ignore[no-untyped-call]
        while piece := source.read(_PIECE_BYTES):
            yield piece
    except _DAMAGE as error:
        raise TraceError(path, f"cannot be unpacked: the compressed file is damaged ({error})") from error


def _no_room(folder: Path, size: int) -> str:
    return (
        f"cannot be unpacked: {folder.parent} has no room for its {size / 1e6:.0f} MB and more; "
        "name a folder with more room in TMPDIR, or unpack it yourself"
    )


def exported(report: Path, progress: OnProgress = silent) -> Path:
    """The export of `report`, made now or earlier. Raises TraceError: nsys is not installed or cannot export it.

    The export's name has a hash of the report, so a changed report is exported again.
    If the folder is not writable, the export goes to the user's cache.
    """
    stem = f"{report.name}.{_content_hash(report)}"
    plain, full = f"{stem}.sqlite", f"{stem}.json.sqlite"
    if kept := _kept(report, full):
        return kept
    nsys = _installed()
    if nsys is not None and _JSON in _said([nsys, "export", "--help"]):
        return _export(nsys, [f"{_JSON}=true"], report, full, progress)
    if kept := _kept(report, plain):
        return kept
    if nsys is not None:
        return _export(nsys, [], report, plain, progress)
    if beside := _beside(report):
        return beside
    raise TraceError(report, _WITHOUT_NSYS.format(command=export_command(report)))


def _beside(report: Path) -> Path | None:
    """An export that somebody made beside the report, if it is not older."""
    beside = report.with_suffix(".sqlite")
    if beside.is_file() and beside.stat().st_mtime_ns >= report.stat().st_mtime_ns:
        return beside
    return None


def _kept(report: Path, name: str) -> Path | None:
    """An export that was made earlier."""
    places = (folder / name for folder in (report.parent, _cache_folder()))
    return next((place for place in places if place.is_file()), None)


def _content_hash(report: Path) -> str:
    digest = hashlib.blake2b(digest_size=_HASH_BYTES)
    with report.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "harness" / "nsys"


def _installed() -> str | None:
    home = os.environ.get("NSYS_HOME")
    return shutil.which("nsys") or (shutil.which("nsys", path=f"{home}/bin") if home else None)


def _export(nsys: str, options: list[str], report: Path, name: str, progress: OnProgress) -> Path:
    folder = report.parent if os.access(report.parent, os.W_OK) else _cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".export-") as scratch:
        fresh = Path(scratch) / "export.sqlite"
        command = [nsys, "export", "--type", "sqlite", "--output", str(fresh), *options, str(report)]
        code, output = _run(command, report, progress)
        if code == 0 and fresh.is_file():
            return fresh.replace(folder / name)
    said = " ".join(output.split())
    newer = _too_new(report, said, nsys)
    if newer and (beside := _beside(report)):
        return beside
    refused = f"cannot be exported by {nsys} (exit code {code}: {said[-200:] or 'no message'})"
    raise TraceError(report, newer or refused)


def _run(command: list[str], report: Path, progress: OnProgress) -> tuple[int, str]:
    """Exit code and output of a command that prints its progress in per cent."""
    output, size = "", report.stat().st_size
    try:
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
            assert process.stdout is not None
            while piece := os.read(process.stdout.fileno(), _MOST_OUTPUT):
                output = (output + piece.decode(errors="replace"))[-_MOST_OUTPUT:]
                if done := _PER_CENT.findall(output):
                    progress(size * int(done[-1]) // 100, size)
    except OSError as error:
        raise TraceError(report, f"cannot be read: nsys does not start ({error.strerror})") from error
    return process.returncode, output
