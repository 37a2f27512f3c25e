"""What a report is written on: lines of at most so many characters, tables cut to fit. Knows no summary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap

from harness.format.format import cut
from harness.report.elements import Table
from harness.report.tables.columns import fitted, table
from harness.traces.vocabulary import printable

WIDTH = 118  # of what is written to a file; no sentence is longer on a wider screen


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
