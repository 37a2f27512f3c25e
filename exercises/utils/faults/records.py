"""Where a rank writes what was injected: as lines of JSON, or sealed in the run of a mystery."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from harness.common.faults import faults_file
from harness.common.mystery import LINES_BLOCK, seal, sealed_file, sealed_lines_file
from harness.observe.metrics import JsonLines


class Lines(Protocol):
    """Takes objects one by one."""

    def write(self, line: Mapping[str, object]) -> None: ...

    def close(self) -> None: ...


def lines_of(run_dir: Path, rank: int) -> Lines:
    """The records of one rank."""
    if sealed_file(run_dir).is_file():
        return SealedLines(sealed_lines_file(run_dir, rank))
    return JsonLines(faults_file(run_dir, rank))


class SealedLines:
    """Keeps the lines and writes them at the end, of the same size on every rank: neither when nor where something was
    injected can be seen."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._lines: list[str] = []

    def write(self, line: Mapping[str, object]) -> None:
        """Add one line."""
        self._lines.append(json.dumps(line))

    def close(self) -> None:
        """Write them all."""
        content = "".join(f"{line}\n" for line in self._lines).encode()
        self._path.write_text(seal(content, os.urandom(16), LINES_BLOCK), encoding="ascii")
