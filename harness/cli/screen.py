"""How wide the terminal is."""

from __future__ import annotations

import shutil

NARROWEST = 60  # no table fits into less; lines that wrap are better then


def columns(without_terminal: int) -> int:
    """Characters of a line: the terminal's or COLUMNS; `without_terminal` for a file or a pipe."""
    return max(shutil.get_terminal_size((without_terminal, 0)).columns, NARROWEST)
