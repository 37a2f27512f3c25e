"""What the suite measured, kept beside the table: reliability.md shows it. Written with HARNESS_WRITE_FAULTS=1."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tests.faults.play import Case
from tests.faults.verdict import FaultOutcome

FILE = Path(__file__).with_name("measured.json")
WRITE = "HARNESS_WRITE_FAULTS"


def read() -> dict[str, FaultOutcome]:
    """Every case's outcome, by the case's name."""
    found = json.loads(FILE.read_text(encoding="utf-8")) if FILE.is_file() else {}
    return {name: FaultOutcome(**outcome) for name, outcome in found.items()}


def noted(case: Case, outcome: FaultOutcome) -> None:
    """Keep the outcome of a case that was played, where that was asked for."""
    if os.environ.get(WRITE):
        all_of_them = {**read(), case.name: outcome}
        lines = {name: each._asdict() for name, each in sorted(all_of_them.items())}
        FILE.write_text(json.dumps(lines, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
