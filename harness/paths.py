"""Paths as people type them. Knows nothing of what they name."""

from __future__ import annotations

import os
from pathlib import Path


def expanded(text: str) -> Path:
    """The path with its `~` read as a shell does: a user who does not exist stays as typed, and is no error."""
    return Path(os.path.expanduser(text))  # noqa: PTH111 - Path.expanduser raises for such a user
