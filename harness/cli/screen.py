"""How wide the terminal is."""

from __future__ import annotations

import shutil

NARROWEST = 60  # below that no table can be read, and lines that wrap are the better evil


def columns(without_terminal: int) -> int:
    """Characters a line may have: the terminal's, or COLUMNS; `without_terminal` for a file or a pipe."""
    return max(shutil.get_terminal_size((without_terminal, 0)).columns, NARROWEST)
