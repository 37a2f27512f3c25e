"""The pages of a packaged reference: an index of its variants and lessons, and the answer to each lesson.

Every link is relative and leads into the package, so that it works offline. Writes no file.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from harness.common.bounded_read import read_bounded_json
from harness.common.errors import RequestError
from harness.common.format import amount, duration, percent, shown_in_page, without_scripts
from harness.common.paths import COMMAND, TEMPLATES
from harness.common.printable import printable_lines
from harness.common.walk import Walk
from harness.measure.references import INDEX, Reference, StoredRun, read_reference, read_runs, variant_file
from harness.measure.references import Environment as MadeWith
from harness.run import Run, disk_error, when
from harness.study.lessons import MARKS, Lesson, RelationOutcome, because, decide, load_lesson, numbers_text
from harness.study.reference.collect import Row, StoredArm, lessons_of, on_gpu, rows, stored_pair
from harness.study.reference.variants import damaged_traces, list_names, load_list, run_here, traces_root
from harness.traces.progress import OnProgress


class TraceLink(NamedTuple):
    name: str
    href: str


class RunLinks(NamedTuple):
    """What the package has of a run; report: None if it has no page."""

    report: str | None
    traces: list[TraceLink]


class PageArm(NamedTuple):
    letter: str
    variant: str
    command: str
    report: str | None


class PageAnswer(NamedTuple):
    mark: str
    says: str
    numbers: str
    why: str


@dataclass(frozen=True)
class PageLesson:
    """A lesson on the index page, and its own page."""

    name: str
    title: str
    question: str
    hints: list[str]
    arms: list[PageArm]
    answers: list[PageAnswer]
    because: list[str]

    @property
    def href(self) -> str:
        """Of its page, from the index."""
        return f"lessons/{quote(self.name)}.html"


@dataclass(frozen=True)
class ReferencePage:
    """The index page's content, without HTML. rows: the variants, and what the package has of their runs."""

    name: str
    title: str
    lead: str
    site: str
    recorded: str
    rows: list[tuple[Row, Sequence[RunLinks]]]
    lessons: list[PageLesson]
    environments: list[list[tuple[str, str]]]
    missing: str


Links = Mapping[str, Sequence[RunLinks]]


def compose(folder: Path, reference: Reference, title: str, links: Links) -> ReferencePage:
    """The content of a reference's pages. links: per variant, for each of its runs.
    Raises WorkError: a file of the reference is damaged."""
    lacking = ", ".join(reference.missing)
    count = len(reference.variants)
    answered = lessons_of(reference)
    lessons = [load_lesson(name) for name in answered]
    shown = [
        row._replace(lessons=tuple(name for name in row.lessons if name in answered)) for row in rows(folder, reference)
    ]
    return ReferencePage(
        name=reference.name,
        title=title,
        lead=f"{count} variant{'s' * (count != 1)}, each a command that can be run again.",
        site=reference.site,
        recorded=when(reference.created_ns),
        rows=[(row, links[row.variant]) for row in shown],
        lessons=[_lesson(folder, reference, lesson, links) for lesson in lessons],
        environments=[list(_facts(each)) for each in reference.environments],
        missing=f"Not recorded: {lacking}." if lacking else "",
    )


def pages(page: ReferencePage) -> dict[str, str]:
    """Path in the package -> HTML."""
    index = _environment().get_template("reference/index.html.j2")
    answer = _environment().get_template("reference/lesson.html.j2")
    look = {"style": _style(), "policy": without_scripts(_style())}
    found = {"index.html": index.render(page=page, command=COMMAND, **look)}
    for lesson in page.lessons:
        found[f"lessons/{lesson.name}.html"] = answer.render(page=page, lesson=lesson, **look)
    return found


def _lesson(folder: Path, reference: Reference, whole: Lesson, links: Links) -> PageLesson:
    pair = stored_pair(folder, reference, whole)
    lesson = whole.here(cpu=not on_gpu(reference))
    arms = pair[0].arm, pair[1].arm
    answers = [
        PageAnswer(
            MARKS[one.outcome],
            one.relation.says,
            numbers_text(one),
            "" if one.outcome is RelationOutcome.HOLDS else f"{one.outcome.value}: {one.why}",
        )
        for one in decide(whole, *arms)
    ]
    return PageLesson(
        name=lesson.name,
        title=lesson.title,
        question=lesson.question.strip(),
        hints=lesson.hints,
        arms=[_arm(letter, arm, links) for letter, arm in zip("ab", pair, strict=True)],
        answers=answers,
        because=because(whole, *arms).strip().split("\n\n"),
    )


def _arm(letter: str, arm: StoredArm, links: Links) -> PageArm:
    report = next((run.report for run in links[arm.variant.name] if run.report), None)
    return PageArm(letter, arm.variant.name, arm.variant.command, report)


def _facts(made: MadeWith) -> Iterator[tuple[str, str]]:
    hardware = made.hardware
    yield "site", made.site
    yield "device", hardware.device + (f", {hardware.cores} cores" if hardware.cores else "")
    yield from (made.software | made.tools).items()
    if made.container:
        yield "container", f"sha256 {made.container}"
    if made.commit:
        yield "harness", made.commit


def with_code(text: str) -> Markup:
    """A lesson's text as HTML, escaped; what stands between backquotes is code.

    >>> with_code("`peak memory` < 2 GB")
    Markup('<code>peak memory</code> &lt; 2 GB')
    """
    parts = printable_lines(text).split("`")
    if len(parts) % 2 == 0:  # a backquote without another is a character
        return escape("`".join(parts))
    code = Markup("<code>{}</code>")
    return Markup("").join(code.format(part) if i % 2 else escape(part) for i, part in enumerate(parts))


@cache
def _environment() -> Environment:
    found = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        autoescape=True,
        finalize=shown_in_page,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters |= {"with_code": with_code, "duration": duration, "percent": percent, "amount": amount}
    return found


@cache
def _style() -> Markup:
    parts = TEMPLATES / "report" / "page.css", TEMPLATES / "reference" / "reference.css"
    return Markup("").join(Markup(part.read_text(encoding="utf-8")) for part in parts)


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
    entries = [Entry(INDEX, folder / INDEX)]
    entries += [Entry(f"variants/{v.name}.json", variant_file(folder, v.name)) for v in reference.variants]
    links: dict[str, list[RunLinks]] = {}
    without: list[str] = []
    for variant, runs in runs_of(folder, with_traces).items():
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
    content["run"] = {name: value for name, value in (content.get("run") or {}).items() if name not in _PRIVATE}
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
