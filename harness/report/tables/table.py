"""The declaration of a table: once, for terminal, page, files and compare. Knows no table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from harness.analysis.metrics import Number
from harness.analysis.summary import CodeLocation, Summary, SummaryPart
from harness.format.labels import code_place
from harness.report.elements import Table

R = TypeVar("R")
FileRow = dict[str, Any]
OfSummary = Callable[[Summary], str]
WHOLE = 1_000  # characters of a name that is cut only where the table is fitted to a terminal


@dataclass(frozen=True)
class Column(Generic[R]):
    """A head, and the text of each row's cell.

    `fit` shortens the cells of the whole column to a width, so that names that differ stay different: to `page`
    characters on the page, to `terminal` in the terminal.
    """

    head: str | OfSummary
    cell: Callable[[R], str]
    fit: Callable[[Sequence[str], int], list[str]] | None = None
    page: int = WHOLE
    terminal: int = WHOLE

    def cells(self, rows: Sequence[R], on_page: bool) -> list[str]:
        """The text of every row."""
        texts = [self.cell(row) for row in rows]
        return self.fit(texts, self.page if on_page else self.terminal) if self.fit else texts


@dataclass(frozen=True)
class File:
    """One CSV or Parquet file: its name without the ending, and its records."""

    name: str
    records: Callable[[Summary], Iterable[FileRow]]


def file_of(field: str) -> File:
    """A file with all rows of a list in the Summary."""
    return File(field, lambda s: map(plain, getattr(s, field)))


def file_per_device(field: str) -> File:
    """A file with all rows of a list that each device has, with the device's rank and number."""
    return File(
        f"device_{field}",
        lambda s: (
            {"rank": d.rank, "device": d.device, **plain(row)} for d in s.devices for row in getattr(d, field)
        ),
    )


def plain(row: SummaryPart) -> FileRow:
    """The row's plain values, without the lists and tables inside it; a place in a program is one text."""
    places = {k: code_place(v) for k, v in row if isinstance(v, CodeLocation)}
    dumped = row.model_dump(mode="json") | places
    return {k: v for k, v in dumped.items() if not isinstance(v, (list, dict))}


@dataclass(frozen=True, kw_only=True)
class TableOf(Generic[R]):
    """A table, declared once.

    `section` is the page's section that shows it; where a figure shows it, `figure` is that figure's id; a table with
    neither is not on the page. `topic` is its name in the terminal's short form, in the list of what `--full` shows.
    """

    caption: str | OfSummary
    columns: Sequence[Column[R]]
    rows: Callable[[Summary], Sequence[R]]
    left: int = 1  # columns that read from the left
    section: str = ""
    figure: str = ""
    page_order: int = 0  # within the section; equal: as in the catalogue
    topic: str = ""
    in_terminal: Callable[[Summary], bool] = lambda s: True
    terminal_caption: OfSummary | None = None
    spare: Sequence[str] = ()  # columns that go first where the terminal is narrow
    most: int = WHOLE  # rows in the terminal; the page and the files have more
    rest: str = ""  # the terminal's word for the rows beyond `most`
    advice: Callable[[Summary], Sequence[str]] = lambda s: ()  # sentences below it in the terminal
    file: File | None = None
    numbers: Sequence[Number] = ()  # for compare and --fail-if, beside analysis/metrics.py

    def on_page(self, s: Summary) -> Table:
        """Every row, as the page shows it."""
        return self.of(self.rows(s), s)

    def of(self, rows: Sequence[R], s: Summary, *, on_page: bool = True) -> Table:
        """Some of the table's rows as text."""
        columns = [column.cells(rows, on_page) for column in self.columns]
        heads = [_text(column.head, s) for column in self.columns]
        return Table(_text(self.caption, s), heads, list(zip(*columns, strict=True)), self.left)


def _text(text: str | OfSummary, s: Summary) -> str:
    return text(s) if callable(text) else text
