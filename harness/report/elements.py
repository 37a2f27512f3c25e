"""The elements of a page: sections of tables and figures. Plain data; the template and the plotters draw it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any


class Link(str):
    """A cell that leads to a file beside the page."""

    href: str

    def __new__(cls, text: str, href: str) -> Link:
        link = super().__new__(cls, text)
        link.href = href
        return link


class Moment(str):
    """A cell that leads to an instant in the timeline: on the clock of this rank's trace, nanoseconds."""

    href: str
    rank: int | None
    at_ns: int

    def __new__(cls, text: str, rank: int | None, at_ns: int) -> Moment:
        moment = str.__new__(cls, text)
        moment.href, moment.rank, moment.at_ns = "#timeline", rank, at_ns
        return moment


class Command(str):
    """A command in a table, or the head above commands: reads from the left, and wraps."""

    is_command = True


@dataclass(frozen=True)
class Table:
    """Cells are text, a Link, a Moment or a Command. The first `left` columns are aligned left, the others right."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: int = 1


@dataclass(frozen=True)
class Figure:
    """One plot as Plotly's JSON, with a sentence about it and its numbers as a table.

    `data` and `layout` use only bar, scatter, box, histogram and heatmap, so that matplotlib can draw them
    too (plots/png.py). Colours are those of the palette; a colour scale is named by its colour, or by two with a comma
    between: what is below zero, and above.
    """

    id: str
    caption: str
    data: list[dict[str, Any]]
    layout: dict[str, Any]
    height: int = 320
    table: Table | None = None
    wide: bool = False  # as wide as the page, instead of beside another figure


@dataclass(frozen=True)
class Section:
    """A headline, a sentence that says how to read the section, and its content. `note`: a remark below."""

    id: str
    title: str
    lead: str = ""
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
    facts: Sequence[tuple[str, str]] = ()
    note: str = ""

    @property
    def has_content(self) -> bool:
        """Whether the section has more than a remark."""
        return bool(self.figures or self.tables or self.facts)


@dataclass(frozen=True)
class Page:
    """Everything the template shows, top to bottom; the timeline stands between `before` and `after`."""

    title: str
    subtitle: str
    sentences: Sequence[str]
    command: str | None
    quality: Section
    before: Sequence[Section]
    after: Sequence[Section]
    timeline: bytes = b""
    on_cpu: bool = False  # all devices are CPUs
    further: Sequence[str] = ()  # sentences after the command
    moment: Moment | None = None  # where the timeline shows what the first sentence says


def table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> list[Table]:
    """The table in a list; an empty list when there are no rows."""
    cells = [list(row) for row in rows]
    return [Table(caption, head, cells, left)] if cells else []
