"""The faults of a mystery: plain text in a hidden folder of its run, which no command prints before the mystery's end.

Nothing is encrypted. Who looks finds them; nobody comes upon them by accident.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

from harness.common.paths import PROGRAM
from harness.common.run_folder.run_files import HIDDEN_FAULTS

HIDDEN_FILE = HIDDEN_FAULTS.name  # in the run
_FIRST_LINE = f"Please do not look: the faults of a mystery follow. `{PROGRAM} lesson mystery reveal RUN` shows them.\n"


def hidden_folder(run: Path) -> Path:
    """What stays hidden until the end of a mystery."""
    return hidden_file(run).parent


def hidden_file(run: Path) -> Path:
    """Where a training finds the faults of a mystery."""
    return HIDDEN_FAULTS.path(run)


def is_mystery(run: Path) -> bool:
    """Whether the run's folder is that of a mystery, hidden still or not."""
    return hidden_file(run).is_file()


def hidden_text(faults: Sequence[str]) -> str:
    """The content of the file. faults: each as `--fault` takes it."""
    return "\n".join([_FIRST_LINE, *faults, ""])


def hidden_faults(run: Path) -> tuple[str, ...]:
    """The faults of a mystery; none in another run, or if its file cannot be read."""
    lines = (HIDDEN_FAULTS.known(hidden_file(run)) or "").split("\n")
    return tuple(filter(None, lines[1:]))


def checksum(faults: Sequence[str]) -> str:
    """SHA-256 of the faults, hexadecimal: the same for the same mystery."""
    return sha256("\n".join(faults).encode()).hexdigest()
