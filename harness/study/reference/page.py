"""The pages of a packaged reference: an index of its variants and lessons, and the answer to each lesson.

Every link is relative and leads into the package, so that it works offline. Writes no file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from harness.common.paths import TEMPLATES
from harness.common.printable import printable_lines
from harness.format.format import amount, duration, percent
from harness.format.page_policy import shown_in_page, without_scripts
from harness.measure.references import Environment as MadeWith
from harness.measure.references import Reference
from harness.run import when
from harness.study.lesson_arms import because, decide, numbers_text
from harness.study.lessons import Lesson, RelationOutcome, load_lesson
from harness.study.reference.lesson import StoredArm, arm_of, lessons_of, on_gpu, stored_pair
from harness.study.reference.numbers import Row, rows

MARKS = {RelationOutcome.HOLDS: "✓", RelationOutcome.FAILS: "✗", RelationOutcome.CANNOT_SHOW: "–"}
COMMAND = "bash slurm.sh"


class TraceLink(NamedTuple):
    """A trace in the package."""

    name: str
    href: str


class RunLinks(NamedTuple):
    """What the package has of a run; report: None if it has no page."""

    report: str | None
    traces: list[TraceLink]


@dataclass(frozen=True)
class PageRow:
    """A variant in the table, as text."""

    name: str
    command: str
    step: str
    exposed: str
    memory: str
    tokens_per_s: str
    lessons: tuple[str, ...]
    runs: Sequence[RunLinks]


class PageArm(NamedTuple):
    """One arm of a lesson."""

    letter: str
    variant: str
    command: str
    report: str | None


class PageAnswer(NamedTuple):
    """One relation, decided."""

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
    """The index page's content, without HTML."""

    name: str
    title: str
    lead: str
    site: str
    recorded: str
    rows: list[PageRow]
    lessons: list[PageLesson]
    environments: list[list[tuple[str, str]]]
    missing: str


Links = Mapping[str, Sequence[RunLinks]]


def compose(folder: Path, reference: Reference, title: str, links: Links) -> ReferencePage:
    """The content of a reference's pages. links: per variant, for each of its runs.

    Raises:
        WorkError: a file of the reference is damaged.
    """
    lacking = ", ".join(reference.missing)
    count = len(reference.variants)
    answered = lessons_of(reference)
    lessons = [load_lesson(name) for name in answered]
    return ReferencePage(
        name=reference.name,
        title=title,
        lead=f"{count} variant{'s' * (count != 1)}, each a command that can be run again.",
        site=reference.site,
        recorded=when(reference.created_ns),
        rows=[_row(row, links[row.variant], answered) for row in rows(folder, reference)],
        lessons=[_lesson(folder, reference, lesson, links) for lesson in lessons],
        environments=[list(_facts(each)) for each in reference.environments],
        missing=f"Not recorded: {lacking}." if lacking else "",
    )


def pages(page: ReferencePage) -> dict[str, str]:
    """Path in the package -> HTML."""
    index = _environment().get_template("reference/index.html.j2")
    answer = _environment().get_template("reference/lesson.html.j2")
    look = {"style": _style(), "policy": without_scripts(_style())}
    found = {"index.html": index.render(page=page, **look)}
    for lesson in page.lessons:
        found[f"lessons/{lesson.name}.html"] = answer.render(page=page, lesson=lesson, **look)
    return found


def _row(row: Row, links: Sequence[RunLinks], answered: Sequence[str]) -> PageRow:
    return PageRow(
        name=row.variant,
        command=row.command,
        step=duration(row.step_ns),
        exposed=percent(row.exposed_communication_share),
        memory=amount(row.peak_memory_bytes),
        tokens_per_s=amount(row.tokens_per_s, "").strip(),
        lessons=tuple(name for name in row.lessons if name in answered),
        runs=links,
    )


def _lesson(folder: Path, reference: Reference, whole: Lesson, links: Links) -> PageLesson:
    pair = stored_pair(folder, reference, whole)
    lesson = whole.here(cpu=not on_gpu(reference))
    arms = arm_of(pair[0], reference), arm_of(pair[1], reference)
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
    own = links[arm.variant.name]
    report = next((run.report for run in own if run.report), None)
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
    found.filters["with_code"] = with_code
    return found


@cache
def _style() -> Markup:
    parts = TEMPLATES / "report" / "page.css", TEMPLATES / "reference" / "reference.css"
    return Markup("").join(Markup(part.read_text(encoding="utf-8")) for part in parts)
