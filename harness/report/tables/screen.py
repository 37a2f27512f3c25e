"""What a report is written on: lines of at most so many characters, tables cut to fit. Knows cells as text, no
summary."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from textwrap import wrap

from harness.format.format import apart, cut
from harness.report.elements import Table
from harness.traces.vocabulary import printable

WIDTH = 118  # of what is written to a file; no sentence is longer on a wider screen
NAME = 30  # characters of a name that are left before a column of numbers goes
_INDENT, _GAP = 2, 2


class Command(str):
    """A line of a command."""


@dataclass
class Screen:
    """What is written on. `narrowed`: a table lost a column to it."""

    width: int = WIDTH
    narrowed: bool = False

    def wrapped(self, text: str, indent: str = "    ") -> list[str]:
        """The text in lines that fit and can be read; the second and later ones indented."""
        width = min(self.width, WIDTH)
        return wrap(text, width, subsequent_indent=indent, break_on_hyphens=False)  # a flag stays whole

    def cut(self, line: str) -> str:
        """A line that fits; a command to paste stays whole."""
        text = printable(line)
        return text if isinstance(line, Command) else cut(text, self.width)

    def block(self, shown: Table, spare: Sequence[str] = ()) -> list[str]:
        """A table under its caption, without the columns that do not fit; nothing where it has no rows."""
        if not shown.rows:
            return []
        here = fitted(shown, self.width, spare)
        self.narrowed |= len(here.head) < len(shown.head)
        return [*self.wrapped(shown.caption, "  "), *table(here.head, here.rows, here.left)]


def table(head: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> list[str]:
    """Aligned columns under a head; the first `left` columns read from the left, numbers from the right."""
    cells = [list(row) for row in (head, *rows) if any(row)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    return [
        " " * _INDENT
        + (" " * _GAP)
        .join(cell.ljust(widths[i]) if i < left else cell.rjust(widths[i]) for i, cell in enumerate(row))
        .rstrip()
        for row in cells
    ]


def fitted(shown: Table, width: int, spare: Sequence[str] = ()) -> Table:
    """The table with lines of at most `width` characters, as far as its first two columns allow.

    First the columns in `spare` go, the first of them first, and before them those without any value; then the
    columns at the right end. Names are shortened last, and only to `NAME` characters.
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
    """The columns that fit beside each other when each takes at least so much."""
    kept = list(range(len(shown.head)))
    empty = [i for i in kept[shown.left :] if all(row[i] == "–" for row in shown.rows)]
    named = [shown.head.index(name) for name in spare if name in shown.head]
    going = [*empty, *named, *reversed(kept[2:])]
    for column in dict.fromkeys(going):
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
    """The length of a line of columns so wide."""
    each = list(widths)
    return _INDENT + sum(each) + _GAP * (len(each) - 1)
