"""A .nsys-rep to its SQLite export with the installed nsys; the export is kept beside the report."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from harness.traces.errors import TraceError
from harness.traces.nsys.newer import export_command, too_new
from harness.traces.progress import OnProgress, silent

_HASH_BYTES = 8
_MOST_OUTPUT = 4096
_MOST_HELP_S = 60
# Without it newer versions leave out NCCL's message sizes; older versions do not know it.
_JSON = "--include-json"
_PER_CENT = re.compile(r"(\d+)%")


def exported(report: Path, progress: OnProgress = silent) -> Path:
    """The export of `report`, made now or earlier.

    The export's name has a hash of the report, so a changed report is exported again.
    If the folder is not writable, the export goes to the user's cache.

    Raises:
        TraceError: nsys is not installed or cannot export the report.
    """
    stem = f"{report.name}.{_content_hash(report)}"
    plain, full = f"{stem}.sqlite", f"{stem}.json.sqlite"
    if kept := _kept(report, full):
        return kept
    nsys = _installed()
    if nsys is not None and _knows_json(nsys):
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
    beside = report.with_name(report.name.removesuffix(".nsys-rep") + ".sqlite")
    if beside.is_file() and beside.stat().st_mtime_ns >= report.stat().st_mtime_ns:
        return beside
    return None


def _kept(report: Path, name: str) -> Path | None:
    """An export that was made earlier."""
    places = (folder / name for folder in (report.parent, _cache_folder()))
    return next((place for place in places if place.is_file()), None)


def _knows_json(nsys: str) -> bool:
    try:
        help_text = subprocess.run(
            [nsys, "export", "--help"], capture_output=True, timeout=_MOST_HELP_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return _JSON.encode() in help_text.stdout + help_text.stderr


_WITHOUT_NSYS = (
    "cannot be read without nsys, and nsys is not installed: where nsys is, type `{command}`, "
    "and give the .sqlite instead; or fetch one (as root on Debian): `bash scripts/fetch-nsys FOLDER` in the checkout, "
    "then put FOLDER on PATH"
)


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
    newer = too_new(report, " ".join(output.split()), [nsys])
    if newer and (beside := _beside(report)):
        return beside
    raise TraceError(report, newer or _why(nsys, code, output))


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


def _why(nsys: str, code: int, output: str) -> str:
    output = " ".join(output.split())
    return f"cannot be exported by {nsys} (exit code {code}: {output[-200:] or 'no message'})"
