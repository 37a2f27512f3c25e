"""A reference as one archive that students copy and open offline. The same reference gives the same bytes.

Names neither who made it nor where: the archive's entries have no owner, and summaries lose user and host.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from harness.common.bounded_read import read_bounded_json
from harness.common.errors import RequestError
from harness.common.walk import Walk
from harness.measure.references import INDEX, Reference, read_reference, read_runs, variant_file
from harness.run import Run, disk_error
from harness.study.reference.page import Links, RunLinks, TraceLink, compose, pages
from harness.study.reference.traces import traces_root
from harness.study.reference.variants import list_names, load_list
from harness.traces.progress import OnProgress

_PARAVER = (".prv", ".pcf", ".row")
_PRIVATE = ("user", "submit_host")  # of a summary's run


class Entry(NamedTuple):
    """A file of the archive: its path inside, and its content, or the file that has it."""

    path: str
    content: bytes | Path

    @property
    def size_bytes(self) -> int:
        return self.content.stat().st_size if isinstance(self.content, Path) else len(self.content)


class Package(NamedTuple):
    """What an archive will hold. without_report: variants of which a run has no page, or is not on this machine."""

    reference: Reference
    entries: list[Entry]
    without_report: list[str]


def runs_of(folder: Path) -> dict[str, list[Run | None]]:
    """Variant -> its runs; None for a run that is not on this machine. Raises WorkError: a file is damaged."""
    reference = read_reference(folder)
    root = traces_root(reference)

    def found(path: str) -> Run | None:
        return Run(root / path) if root is not None and (root / path).is_dir() else None

    return {
        each.name: [found(run.path) for run in read_runs(folder, each).runs] for each in reference.variants
    }


def plan_package(folder: Path, with_traces: bool) -> Package:
    """Every file of the archive of a reference.

    Raises:
        WorkError: a file of the reference is damaged.
    """
    reference = read_reference(folder)
    entries = [Entry(INDEX, folder / INDEX)]
    entries += [Entry(f"variants/{v.name}.json", variant_file(folder, v.name)) for v in reference.variants]
    links: dict[str, list[RunLinks]] = {}
    without: list[str] = []
    for variant, runs in runs_of(folder).items():
        links[variant] = []
        for number, run in enumerate(runs, 1):
            own = [] if run is None else list(_files(run, f"runs/{variant}/{number}", with_traces))
            entries += own
            links[variant].append(_links(own))
        if any(link.report is None for link in links[variant]):
            without.append(variant)
    entries += _pages(folder, reference, links)
    return Package(reference, sorted(entries, key=lambda entry: entry.path), without)


def _pages(folder: Path, reference: Reference, links: Links) -> list[Entry]:
    known = reference.variants_from in list_names()
    title = load_list(reference.variants_from).title if known else reference.variants_from
    made = pages(compose(folder, reference, title, links))
    return [Entry(path, text.encode()) for path, text in made.items()]


def _files(run: Run, inside: str, with_traces: bool) -> Iterator[Entry]:
    if run.page.is_file():
        yield Entry(f"{inside}/{run.page.name}", run.page)
    with suppress(OSError, ValueError, AttributeError, KeyError, TypeError):
        yield Entry(f"{inside}/{run.summary.name}", _without_names(run.summary))
    if with_traces:
        converted = [path for path in Walk(run.path).files() if path.suffix in _PARAVER and path.is_file()]
        for path in [*filter(Path.is_file, run.traces()), *sorted(converted)]:
            yield Entry(f"{inside}/{path.relative_to(run.path)}", path)


def _without_names(summary: Path) -> bytes:
    """A summary without who made the run, and with the traces' paths as they are in the package."""
    content = read_bounded_json(summary)
    content["run"] = {
        name: value for name, value in (content.get("run") or {}).items() if name not in _PRIVATE
    }
    for source in content.get("sources", []):
        path = Path(source["path"])
        source["path"] = f"{path.parent.name}/{path.name}"
    return (json.dumps(content, indent=1) + "\n").encode()


def _links(files: list[Entry]) -> RunLinks:
    report = next((quote(entry.path) for entry in files if entry.path.endswith("/report.html")), None)
    traces = [
        TraceLink(Path(entry.path).name, quote(entry.path))
        for entry in files
        if not entry.path.endswith((".html", "/summary.json", ".pcf", ".row"))
    ]
    return RunLinks(report, traces)


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
