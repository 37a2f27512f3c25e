"""The width of the terminal, and text with its colours."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

from harness.common.display.printable import shown_on, unguarded

if TYPE_CHECKING:
    from rich.text import Text

NARROWEST = 40  # no sentence is easy to read in less


def columns(without_terminal: int, narrowest: int = NARROWEST) -> int:
    """Characters of a line: the terminal's or COLUMNS, from `narrowest` on; `without_terminal` for a file or a pipe."""
    return max(shutil.get_terminal_size((without_terminal, 0)).columns, narrowest)


def show(text: str | Text) -> None:
    """Print it: with its colours and links on a terminal that has them, without any with NO_COLOR or in a pipe.

    The guard of the output would take the colours away, too: here only the words go through it.
    """
    from rich.console import Console
    from rich.segment import Segment, Segments
    from rich.text import Text

    out = unguarded(sys.stdout)
    console = Console(file=out, highlight=False, markup=False, emoji=False, soft_wrap=True)
    words = Text(text, end="") if isinstance(text, str) else Text.assemble(text, end="")
    parts = console.render(words, console.options.update(no_wrap=True, overflow="ignore"))
    console.print(Segments(Segment(shown_on(out, part.text), part.style) for part in parts), end="")
