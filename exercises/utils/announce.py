"""Messages about a training before its first step. Standard library only: they come before the import of PyTorch."""

from __future__ import annotations

import os
import sys


def announce(what: str) -> None:
    """One line on stderr from rank 0, and from the first node's launcher, which has no rank yet."""
    number = os.environ.get("RANK") or os.environ.get("NODE") or os.environ.get("SLURM_NODEID") or "0"
    if number == "0":
        print(f"{what} …", file=sys.stderr, flush=True)
