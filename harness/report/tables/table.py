"""The declaration of a table, once, for terminal, page, files and compare; and how a screen shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Any, Generic, TypeVar

from harness.analysis.labels import code_place
from harness.analysis.summary import CodeLocation, Summary, SummaryPart
from harness.common.display.format import aligned, amount, apart, cut, duration, percent, rate
from harness.common.display.printable import printable
from harness.report.elements import PageTable

R = TypeVar("R")
FileRow = dict[str, Any]
OfSummary = Callable[[Summary], str]
WHOLE = 1_000  # characters of a name that is cut only where the table is fitted to a terminal
WIDTH = 118  # of a file's lines, and of sentences on a wider screen
NAME = 30  # names are cut to this width before a column of numbers is left out
_INDENT, _GAP = 2, 2  # the gap is that of `aligned`
_UNITS: tuple[tuple[str, Callable[[float], str]], ...] = (  # how fields end, and how their numbers are told
    ("_ns", duration), ("bytes", amount), ("share", percent), ("_fraction", percent), ("gb_per_s", rate),
)  # fmt: skip
_NAMED = ("rank", "device", "step", "size")  # how fields end whose numbers count nothing


@dataclass(frozen=True)
class Column(Generic[R]):
    """A head, and each row's cell: the name of a field, told with the unit that the name gives, or a text of the row.
    `fit` shortens the cells of the whole column to a width, so that names that differ stay different: to `page`
    characters on the page, to `terminal` in the terminal."""

    head: str | OfSummary
    cell: str | Callable[[R], str]
    fit: Callable[[Sequence[str], int], list[str]] | None = None
    page: int = WHOLE
    terminal: int = WHOLE

    def cells(self, rows: Sequence[R], on_page: bool) -> list[str]:
        cell = self.cell
        texts = [field_text(cell, getattr(row, cell)) if isinstance(cell, str) else cell(row) for row in rows]
        return self.fit(texts, self.page if on_page else self.terminal) if self.fit else texts


def field_text(field: str, value: str | float | None) -> str:
    """The value of a field with the unit that its name gives; a dash without a value. Numbers that count nothing, as a
    rank, have no commas.

    >>> field_text("mean_ns", 1500), field_text("share", 0.25), field_text("count", 1500), field_text("rank", 1500)
    ('1.50 µs', '25.0 %', '1,500', '1500')
    """
    if value is None or isinstance(value, str):
        return value or "–"
    for ending, text in _UNITS:
        if field.endswith(ending):
            return text(value)
    return str(value) if field.endswith(_NAMED) else f"{value:,}"


@dataclass(frozen=True)
class File:
    """One CSV file: its name without the ending, and its records."""

    name: str
    records: Callable[[Summary], Iterable[FileRow]]


def file_of(field: str) -> File:
    """A file with all rows of a list in the Summary."""
    return File(field, lambda s: map(plain, getattr(s, field)))


def file_per_device(field: str) -> File:
    """A file with all rows of a list that each device has, with the device's rank and number."""
    return File(
        f"device_{field}",
        lambda s: ({"rank": d.rank, "device": d.device, **plain(row)} for d in s.devices for row in getattr(d, field)),
    )


def plain(summary_part: SummaryPart) -> FileRow:
    """The row's plain values, without the lists and tables inside it; a place in a program is one text."""
    places = {
        k: code_place(v)
        for k in summary_part.__struct_fields__
        if isinstance(v := getattr(summary_part, k), CodeLocation)
    }
    dumped = summary_part.model_dump() | places
    return {k: v for k, v in dumped.items() if not isinstance(v, (list, tuple, dict))}


@dataclass(frozen=True, kw_only=True)
class TableOf(Generic[R]):
    """A table, declared once. `section` is the page's section that shows it; where a figure shows it, `figure` is that
    figure's id; a table with neither is not on the page."""

    caption: str | OfSummary
    columns: Sequence[Column[R]]
    rows: Callable[[Summary], Sequence[R]]
    left: int = 1  # columns that read from the left
    section: str = ""
    figure: str = ""
    page_order: int = 0  # within the section; equal: as in the catalogue
    in_terminal: Callable[[Summary], bool] = lambda s: True
    terminal_caption: OfSummary | None = None
    spare: Sequence[str] = ()  # columns that go first where the terminal is narrow
    most: int = WHOLE  # rows in the terminal; the page and the files have more
    rest: str = ""  # the terminal's word for the rows beyond `most`
    advice: Callable[[Summary], Sequence[str]] = lambda s: ()  # sentences below it in the terminal
    file: File | None = None

    def on_page(self, s: Summary) -> PageTable:
        """Every row, as the page shows it."""
        return self.of(self.rows(s), s)

    def of(self, rows: Sequence[R], s: Summary, *, on_page: bool = True) -> PageTable:
        """Some of the table's rows as text."""
        columns = [column.cells(rows, on_page) for column in self.columns]
        heads = [_text(column.head, s) for column in self.columns]
        return PageTable(_text(self.caption, s), heads, list(zip(*columns, strict=True)), self.left).shown()


def _text(text_or_function: str | OfSummary, s: Summary) -> str:
    return text_or_function(s) if callable(text_or_function) else text_or_function


def setting(value: object) -> str:
    if isinstance(value, tuple | list):
        return " ".join(map(str, value)) or "–"
    return "–" if value is None else str(value)


@dataclass
class TableScreen:
    """A screen of this width. `narrowed`: a table lost a column to the width."""

    width: int = WIDTH
    narrowed: bool = False

    def wrapped(self, text: str, indent: str = "    ") -> list[str]:
        """The text in lines that fit; the second and later ones indented."""
        width = min(self.width, WIDTH)
        return wrap(text, width, subsequent_indent=indent, break_on_hyphens=False)  # a flag stays whole

    def cut(self, line: str) -> str:
        return cut(printable(line), self.width)

    def block(self, shown: PageTable, spare: Sequence[str] = ()) -> list[str]:
        """A table under its caption, without the columns that do not fit; empty without rows."""
        if not shown.rows:
            return []
        if not any(shown.head):
            return [*self.wrapped(shown.caption, "  "), *facts(shown.rows, self.width)]
        here = fitted(shown, self.width, spare)
        self.narrowed |= len(here.head) < len(shown.head)
        return [*self.wrapped(shown.caption, "  "), *table(here.head, here.rows, here.left)]


def table(head: Sequence[str], cells_of_rows: Iterable[Sequence[str]], left: int = 1) -> list[str]:
    """Aligned columns under a head; the first `left` columns are aligned left, the others right."""
    cells = [list(map(printable, row)) for row in (head, *cells_of_rows) if any(row)]
    return [" " * _INDENT + line for line in aligned(cells, range(left))]


def facts(cells: Iterable[Sequence[str]], width: int) -> list[str]:
    """A line for each name and what is said of it, in lines of at most `width` characters; nothing is cut."""
    pairs = [(printable(name), printable(said)) for name, said in cells]
    start = _INDENT + max(len(name) for name, _ in pairs) + _GAP
    return [
        line
        for name, said in pairs
        for line in wrap(
            said or "–",
            max(width, start + NAME),
            initial_indent=(" " * _INDENT + name).ljust(start),
            subsequent_indent=" " * start,
            break_on_hyphens=False,
            break_long_words=False,
        )
    ]


def fitted(shown: PageTable, width: int, spare: Sequence[str] = ()) -> PageTable:
    """The table with lines of at most `width` characters, as far as its first two columns allow: without the columns in
    `spare`, then without those at the right end; names are shortened last, to at least `NAME` characters."""
    widths = [max(map(len, column)) for column in zip(shown.head, *shown.rows, strict=True)]
    kept = _kept(shown, [min(w, NAME) if i < shown.left else w for i, w in enumerate(widths)], width, spare)
    widest = _shortened({i: widths[i] for i in kept}, shown.left, width)
    cells = [[row[i] for row in shown.rows] for i in kept]
    columns = [apart(column, widest[i]) if i < shown.left else column for i, column in zip(kept, cells, strict=True)]
    return PageTable(
        shown.caption,
        [shown.head[i] for i in kept],
        [list(row) for row in zip(*columns, strict=True)],
        sum(i < shown.left for i in kept),
    )


def _kept(shown: PageTable, least: Sequence[int], width: int, spare: Sequence[str]) -> list[int]:
    """The columns that fit beside each other with at least these widths."""
    kept = list(range(len(shown.head)))
    spared = [shown.head.index(name) for name in spare if name in shown.head]
    for column in dict.fromkeys([*spared, *reversed(kept[2:])]):
        if _line(least[i] for i in kept) <= width:
            break
        kept.remove(column)
    return kept


def _shortened(widths: dict[int, int], left: int, width: int) -> dict[int, int]:
    """The widths of columns with the widest names cut until all fit."""
    for i in sorted((i for i in widths if i < left), key=lambda i: -widths[i]):
        over = _line(widths.values()) - width
        widths[i] = max(widths[i] - max(over, 0), min(widths[i], NAME))
    return widths


def _line(widths: Iterable[int]) -> int:
    each = list(widths)
    return _INDENT + sum(each) + _GAP * (len(each) - 1)
