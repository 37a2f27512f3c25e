"""The width of the terminal, and text with its colours."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.text import Text

NARROWEST = 40  # no sentence is easy to read in less


def columns(without_terminal: int, narrowest: int = NARROWEST) -> int:
    """Characters of a line: the terminal's or COLUMNS, from `narrowest` on; `without_terminal` for a file or a pipe."""
    return max(shutil.get_terminal_size((without_terminal, 0)).columns, narrowest)


def show(text: str | Text) -> None:
    """Print it: with its colours and links on a terminal that has them, without any with NO_COLOR or in a pipe."""
    from rich.console import Console

    Console(highlight=False, markup=False, emoji=False, soft_wrap=True).print(text, end="")
