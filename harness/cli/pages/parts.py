"""Which parts of the documents are written from declarations, and how a document gets them. Knows no part's content."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from harness.cli.pages import faults, lessons, metrics, options
from harness.common.paths import ROOT

PARTS: dict[str, Callable[[], str]] = {
    "fault-kinds": faults.kinds,
    "fault-keys": faults.keys,
    "fault-words": faults.words,
    "fault-records": faults.records,
    "options": options.tables,
    "summary": metrics.sections,
    "problems": metrics.problems,
    "monitor-columns": metrics.columns,
    "metric-names": metrics.names,
    "tables": metrics.tables,
    "lesson-needs": lessons.needs,
    **{f"lessons-{number}": runs for number, runs in lessons.RUNS.items()},
}
_WRITTEN = re.compile(r"(?<=<!-- written: )([\w-]+)( -->\n).*?(?=<!-- end -->)", re.DOTALL)


def documents() -> list[Path]:
    """The documents with a part that is written."""
    found = [*sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "exercises").glob("*/README.md"))]
    return [path for path in found if "<!-- written: " in path.read_text(encoding="utf-8")]


def renewed(text: str) -> str:
    """A document with its written parts as the declarations have them now."""
    return _WRITTEN.sub(lambda part: f"{part[1]}{part[2]}\n{PARTS[part[1]]()}\n\n", text)
