"""The elements of a page: sections of tables and figures. Plain data; the template and the plotters draw it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from harness.common.display.format import Scale

if TYPE_CHECKING:
    from harness.explain.answer import Diagnosis

OTHER = "other"  # the label of a bar's part that no other part has
WINDOW = "window"  # what a bar is of, where no step is marked


class Link(str):
    """A text that leads to a file, by its path from the page's folder."""

    href: str

    def __new__(cls, text: str, href: str) -> Link:
        link = super().__new__(cls, text)
        link.href = href
        return link


class Moment(str):
    """A cell that leads to a moment in the timeline: nanoseconds on the clock of this rank's trace."""

    href: str
    rank: int | None
    at_ns: int

    def __new__(cls, text: str, rank: int | None, at_ns: int) -> Moment:
        moment = str.__new__(cls, text)
        moment.href, moment.rank, moment.at_ns = "#timeline", rank, at_ns
        return moment


class CommandCell(str):
    """A command in a table, or the head of a column of commands. Such a column is aligned left."""

    is_command = True


@dataclass(frozen=True)
class PageTable:
    """Cells are text, a Link, a Moment or a Command. The first `left` columns are aligned left, the others right."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: int = 1

    def shown(self) -> PageTable:
        """As a reader sees it: without rows of which the share is 0.0 %, and without columns that have no value."""
        shares = [i for i, name in enumerate(self.head) if name.startswith("share")]
        rows = [row for row in self.rows if not any(row[i] == "0.0 %" for i in shares)] or self.rows
        kept = [i for i in range(len(self.head)) if not i or not rows or any(row[i] not in ("–", "") for row in rows)]
        cells = [[row[i] for i in kept] for row in rows]
        return PageTable(self.caption, [self.head[i] for i in kept], cells, sum(i < self.left for i in kept))


@dataclass(frozen=True)
class Figure:
    """One plot as Plotly's JSON, with a sentence about it and its numbers as a table.

    `data` and `layout` use only bar, scatter and heatmap. Colours are those of the palette. A colour scale is named by
    its colour.
    """

    id: str
    caption: str
    data: list[dict[str, Any]]
    layout: dict[str, Any]
    height: int = 320
    table: PageTable | None = None
    wide: bool = False  # as wide as the page, instead of beside another figure

    @property
    def drawn(self) -> list[dict[str, Any]]:
        """The plot's data without bars that are zero everywhere, which would have a legend for nothing."""
        return [trace for i, trace in enumerate(self.data) if i == 0 or _has_value(trace)]

    @property
    def is_bare(self) -> bool:
        """Whether the plot has at most one bar, one point or one column of a heatmap: a number says as much."""
        return sum(_marks(trace) for trace in self.data) < 2


def _has_value(trace: dict[str, Any]) -> bool:
    return trace["type"] != "bar" or any(trace["x" if trace.get("orientation") == "h" else "y"])


def _marks(trace: dict[str, Any]) -> int:
    """How many bars, points or columns a reader sees."""
    if trace["type"] == "heatmap":
        return len(trace["x"])
    if trace["type"] == "bar":
        return sum(1 for length in trace["x" if trace.get("orientation") == "h" else "y"] if length)
    return sum(1 for value in trace["y"] if value is not None)


@dataclass(frozen=True)
class Listing:
    """A folded part with lines to copy, as they are."""

    title: str
    lines: Sequence[str]


@dataclass(frozen=True)
class Section:
    """A title, a sentence that says how to read the section, and its content. `note`: a remark below."""

    id: str
    title: str
    lead: str = ""
    figures: Sequence[Figure] = ()
    tables: Sequence[PageTable] = ()
    facts: Sequence[tuple[str, str]] = ()
    note: str = ""
    listings: Sequence[Listing] = ()

    @property
    def has_content(self) -> bool:
        """Whether there is anything below the title and the sentence. A section without content is left out."""
        return bool(self.figures or self.tables or self.facts or self.note or self.listings)


@dataclass(frozen=True)
class Code:
    """Some lines of a program, the first with the number `first`; `marked` is the number of the one that counts."""

    caption: str
    lines: Sequence[str]
    first: int
    marked: int


@dataclass(frozen=True)
class Page:
    """Everything that the template shows, top to bottom. The timeline is between `before` and `after`; the sections
    in `after` are folded: a reader opens them. code: the lines of a program below a sentence, by the sentence."""

    title: str
    subtitle: str
    said: Diagnosis
    before: Sequence[Section]
    after: Sequence[Section]
    timeline: bytes = b""
    on_cpu: bool = False  # all devices are CPUs
    numbers: Sequence[tuple[str, str]] = ()  # the few that a reader wants first, each with its words
    step: StepBar | None = None
    moment: Moment | None = None  # where the timeline shows the first sentence's cause
    code: Mapping[str, Sequence[Code]] = field(default_factory=dict)


class StepBarPart(NamedTuple):
    """avoidable_ns: how much of it a loss that is told costs, if such a loss is a part of it."""

    label: str
    ns: float
    color: str
    avoidable_ns: float = 0


@dataclass(frozen=True)
class StepBar:
    """A step in parts that add up to it. what: which step it is, or the whole window."""

    what: str
    whole_ns: float
    parts: Sequence[StepBarPart]

    @property
    def told(self) -> list[str]:
        """Each part's label, its time and what of it can be avoided; the last has the unit. What rounding leaves over
        is with the part that is no loss and no other sentence has: other time, or else the first."""
        scale = Scale(self.whole_ns)
        rest_at = -1 if self.parts[-1].label == OTHER else 0
        texts = scale.parts([part.ns for part in self.parts], rest_at)
        texts[-1] += f" {scale.unit}"
        return [
            f"{part.label} {text}{_avoidable_words(part, scale)}" for part, text in zip(self.parts, texts, strict=True)
        ]

    @property
    def shares(self) -> list[float]:
        return [part.ns / self.whole_ns for part in self.parts]


def _avoidable_words(part: StepBarPart, scale: Scale) -> str:
    if not part.avoidable_ns:
        return ""
    some = scale.text(part.avoidable_ns)
    return ", all avoidable" if part.avoidable_ns >= part.ns or some == scale.text(part.ns) else f", {some} avoidable"


def table(caption: str, head: Sequence[str], cells_of_rows: Iterable[Sequence[str]], left: int = 1) -> list[PageTable]:
    """The table in a list; an empty list when there are no rows."""
    cells = [list(row) for row in cells_of_rows]
    return [PageTable(caption, head, cells, left).shown()] if cells else []
