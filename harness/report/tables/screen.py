"""The screen of a terminal: lines of limited width, tables cut to fit. Knows cells as text, no summary."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from textwrap import wrap

from harness.common.printable import printable
from harness.format.format import apart, cut
from harness.report.elements import Table

WIDTH = 118  # of a file's lines, and of sentences on a wider screen
NAME = 30  # names are cut to this width before a column of numbers is left out
_INDENT, _GAP = 2, 2


class CommandLine(str):
    """A line of a command, which is never cut."""


@dataclass
class Screen:
    """A screen of this width. `narrowed`: a table lost a column to the width."""

    width: int = WIDTH
    narrowed: bool = False

    def wrapped(self, text: str, indent: str = "    ") -> list[str]:
        """The text in lines that fit; the second and later ones indented."""
        width = min(self.width, WIDTH)
        return wrap(text, width, subsequent_indent=indent, break_on_hyphens=False)  # a flag stays whole

    def cut(self, line: str) -> str:
        """A line that fits; a command to paste stays whole."""
        text = printable(line)
        return text if isinstance(line, CommandLine) else cut(text, self.width)

    def block(self, shown: Table, spare: Sequence[str] = ()) -> list[str]:
        """A table under its caption, without the columns that do not fit; empty without rows."""
        if not shown.rows:
            return []
        if not any(shown.head):
            return [*self.wrapped(shown.caption, "  "), *facts(shown.rows, self.width)]
        here = fitted(shown, self.width, spare)
        self.narrowed |= len(here.head) < len(shown.head)
        return [*self.wrapped(shown.caption, "  "), *table(here.head, here.rows, here.left)]


def table(head: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> list[str]:
    """Aligned columns under a head; the first `left` columns are aligned left, the others right."""
    cells = [list(map(printable, row)) for row in (head, *rows) if any(row)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    return [
        " " * _INDENT
        + (" " * _GAP)
        .join(cell.ljust(widths[i]) if i < left else cell.rjust(widths[i]) for i, cell in enumerate(row))
        .rstrip()
        for row in cells
    ]


def facts(rows: Iterable[Sequence[str]], width: int) -> list[str]:
    """A line for each name and what is said of it, in lines of at most `width` characters; nothing is cut."""
    pairs = [(printable(name), printable(said)) for name, said in rows]
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


def fitted(shown: Table, width: int, spare: Sequence[str] = ()) -> Table:
    """The table with lines of at most `width` characters, as far as its first two columns allow.

    Columns are left out in this order: columns without any value, the columns in `spare`, the columns at the right
    end. Names are shortened last, and only to `NAME` characters.
    """
    widths = [max(map(len, column)) for column in zip(shown.head, *shown.rows, strict=True)]
    kept = _kept(shown, [min(w, NAME) if i < shown.left else w for i, w in enumerate(widths)], width, spare)
    widest = _shortened({i: widths[i] for i in kept}, shown.left, width)
    cells = [[row[i] for row in shown.rows] for i in kept]
    columns = [
        apart(column, widest[i]) if i < shown.left else column for i, column in zip(kept, cells, strict=True)
    ]
    return Table(
        shown.caption,
        [shown.head[i] for i in kept],
        [list(row) for row in zip(*columns, strict=True)],
        sum(i < shown.left for i in kept),
    )


def _kept(shown: Table, least: Sequence[int], width: int, spare: Sequence[str]) -> list[int]:
    """The columns that fit beside each other with at least these widths."""
    kept = list(range(len(shown.head)))
    empty = [i for i in kept[shown.left :] if all(row[i] == "–" for row in shown.rows)]
    spared = [shown.head.index(name) for name in spare if name in shown.head]
    for column in dict.fromkeys([*empty, *spared, *reversed(kept[2:])]):
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
    """The length of a line of columns with these widths."""
    each = list(widths)
    return _INDENT + sum(each) + _GAP * (len(each) - 1)
