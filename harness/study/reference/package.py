"""The archive of a reference: its stored numbers, and of its runs reports, summaries and traces."""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from harness.common.errors import RequestError
from harness.common.run_files import SUMMARY
from harness.common.run_store import UnreadFileError
from harness.common.walk import Walk
from harness.measure.references import INDEX, Reference, StoredRun, read_reference, read_runs, variant_file
from harness.run import Run, disk_error
from harness.study.reference.variants import damaged_traces, run_here, traces_root
from harness.traces.progress import OnProgress

_PARAVER = (".prv", ".pcf", ".row")
_PRIVATE = ("user", "submit_host")  # of a summary's run


class ArchiveEntry(NamedTuple):
    """A file of the archive: its path inside, and its content, or the file that has it."""

    path: str
    content: bytes | Path

    @property
    def size_bytes(self) -> int:
        return self.content.stat().st_size if isinstance(self.content, Path) else len(self.content)


class PackedRun(NamedTuple):
    """A run that the archive has. folder: its folder inside. report: its page is there."""

    variant: str
    run: Run
    folder: str
    report: bool


class Package(NamedTuple):
    """What an archive will hold. without_report: variants of which a run has no page, or is not on this machine."""

    reference: Reference
    entries: list[ArchiveEntry]
    runs: list[PackedRun]
    without_report: list[str]

    def with_page(self, name: str, text: str) -> Package:
        """The archive with a page at its top."""
        entries = sorted([*self.entries, ArchiveEntry(name, text.encode())], key=lambda entry: entry.path)
        return self._replace(entries=entries)


def runs_of(folder: Path, with_traces: bool = False) -> dict[str, list[Run | None]]:
    """Variant -> its runs; None for a run that is not on this machine. with_traces: also for one whose traces are not
    those that were recorded. Raises WorkError: a file is damaged."""
    reference = read_reference(folder)
    root = traces_root(reference)

    def found(stored: StoredRun) -> Run | None:
        changed = with_traces and damaged_traces(root, [stored], whole=True)
        return None if changed else run_here(root, stored)

    return {each.name: [*map(found, read_runs(folder, each).runs)] for each in reference.variants}


def plan_package(folder: Path, with_traces: bool) -> Package:
    """Every file of the archive of a reference. Raises WorkError: a file of the reference is damaged."""
    reference = read_reference(folder)
    entries = [ArchiveEntry(INDEX, folder / INDEX)]
    entries += [ArchiveEntry(f"variants/{v.name}.json", variant_file(folder, v.name)) for v in reference.variants]
    packed: list[PackedRun] = []
    without: list[str] = []
    for variant, runs in runs_of(folder, with_traces).items():
        for number, run in enumerate(runs, 1):
            if run is not None:
                inside = f"runs/{variant}/{number}"
                packed.append(PackedRun(variant, run, inside, run.page.is_file()))
                entries += _files(run, inside, with_traces)
        if any(run is None or not run.page.is_file() for run in runs):
            without.append(variant)
    return Package(reference, sorted(entries, key=lambda entry: entry.path), packed, without)


def _files(run: Run, inside: str, with_traces: bool) -> Iterator[ArchiveEntry]:
    if run.page.is_file():
        yield ArchiveEntry(f"{inside}/{run.page.name}", run.page)
    with suppress(UnreadFileError, AttributeError, KeyError, TypeError):
        yield ArchiveEntry(f"{inside}/{run.summary.name}", _without_names(run.read(SUMMARY.as_json)))
    if with_traces:
        converted = [path for path in Walk(run.path).files() if path.suffix in _PARAVER and path.is_file()]
        for path in [*filter(Path.is_file, run.traces()), *sorted(converted)]:
            yield ArchiveEntry(f"{inside}/{path.relative_to(run.path)}", path)


def _without_names(content: dict[str, Any]) -> bytes:
    """A summary without who made the run, and with the traces' paths as they are in the package."""
    content["run"] = {name: value for name, value in (content.get("run") or {}).items() if name not in _PRIVATE}
    for source in content.get("sources", []):
        path = Path(source["path"])
        source["path"] = f"{path.parent.name}/{path.name}"
    return (json.dumps(content, indent=1) + "\n").encode()


def write_package(package: Package, file: Path, progress: OnProgress) -> None:
    """Write the archive under a temporary name, then rename it. progress: called with bytes done and in all.

    Raises:
        RequestError: the file is there already, or its folder is not.
        DiskError: it cannot be written; nothing is left behind.
    """
    refuse_output(file)
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with (
            temporary.open("wb") as raw,
            gzip.GzipFile(filename="", fileobj=raw, mode="wb", compresslevel=6, mtime=0) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as archive,
        ):
            _fill(archive, package, progress)
        temporary.replace(file)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise disk_error(file, error) from None


def refuse_output(file: Path) -> None:
    """Raises RequestError: the archive cannot be written to `file`."""
    if not file.name.endswith((".tar.gz", ".tgz")):
        raise RequestError(f"-o {file}: an archive's name ends with .tar.gz")
    if file.exists():
        raise RequestError(f"-o {file}: exists, and is not overwritten: give another name")
    if not file.parent.is_dir():
        raise RequestError(f"-o {file}: there is no folder {file.parent}")


def _fill(archive: tarfile.TarFile, package: Package, progress: OnProgress) -> None:
    done, every = 0, sum(entry.size_bytes for entry in package.entries)
    for entry in package.entries:
        info = tarfile.TarInfo(f"{package.reference.name}/{entry.path}")
        info.size, info.mode = entry.size_bytes, 0o644
        info.mtime = package.reference.created_ns // 1_000_000_000
        if isinstance(entry.content, Path):
            with entry.content.open("rb") as content:
                archive.addfile(info, content)
        else:
            archive.addfile(info, io.BytesIO(entry.content))
        done += info.size
        progress(done, every)
